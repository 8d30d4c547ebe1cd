/* Threads start with the first step and again in a forked child, where only the forking thread lives on. */
#define _GNU_SOURCE
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "crowd.h"
#include "park.h"

enum { STACK_BYTES = 1 << 20 };

struct Pool {
    int32_t n_threads, n_started;
    _Atomic uint32_t generation;     /* of the process that started the threads */
    _Atomic uint32_t claimed;        /* the generation that some thread of it resets, or has reset, the pool for */
    struct Crowd crowd;
    _Atomic bool is_closing;
    work_fn *work;
    void *context;
    pthread_t threads[MAX_THREADS];
    pthread_mutex_t mutex;           /* turns */
    pthread_cond_t turn_ended;
    uint64_t next_turn, serving;
    /* What changes within a step has lines of its own. */
    struct Word phase, wakes[MAX_THREADS];  /* of each worker: advanced for every step that it takes part in */
    _Alignas(LINE_BYTES) _Atomic uint64_t arrived; /* the phase, and how many wait for it to end */
    _Atomic int64_t waited;          /* nanoseconds in barriers in this step, where more than a pause */
};

struct Start {
    struct Pool *pool;
    int32_t worker;
    uint32_t wake;
};

static _Atomic uint32_t fork_generation;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static void after_fork_in_child(void) { atomic_fetch_add(&fork_generation, 1); }
static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork_in_child); }

static void reset(struct Pool *pool, uint32_t generation)
{
    pool->n_started = 1;
    pool->phase = (struct Word){ 0 };
    for (int32_t i = 0; i < pool->n_threads; i++)
        pool->wakes[i] = (struct Word){ 0 };
    crowd_init(&pool->crowd, pool->n_threads);
    atomic_store(&pool->arrived, 0);
    atomic_store(&pool->is_closing, false);
    pool->next_turn = pool->serving = 0;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->turn_ended, NULL);
    atomic_store(&pool->generation, generation);
}

/* In a forked child the first caller resets; others that come at once wait for it. */
static void reset_after_fork(struct Pool *pool)
{
    uint32_t generation = atomic_load(&fork_generation), claimed = atomic_load(&pool->claimed);
    if (atomic_load(&pool->generation) == generation)
        return;
    if (claimed != generation && atomic_compare_exchange_strong(&pool->claimed, &claimed, generation))
        reset(pool, generation);
    while (atomic_load(&pool->generation) != generation)
        sched_yield();
}

static void *serve(void *argument)
{
    struct Start start = *(struct Start *)argument;
    free(argument);
    for (uint32_t seen = start.wake;; seen++) {
        word_wait_change(&start.pool->wakes[start.worker], seen);
        if (atomic_load(&start.pool->is_closing))
            return NULL;
        start.pool->work(start.pool->context, start.worker);
        pool_barrier(start.pool);   /* meets the caller's in pool_run */
    }
}

enum Status pool_create(struct Pool **created, int32_t n_threads)
{
    if (n_threads < 1 || n_threads > MAX_THREADS)
        return STATUS_BAD_ARGUMENT;
    pthread_once(&fork_once, watch_forks);
    struct Pool *pool = aligned_alloc(_Alignof(struct Pool), sizeof *pool);   /* words have lines of their own */
    if (!pool)
        return STATUS_NO_MEMORY;
    memset(pool, 0, sizeof *pool);
    pool->n_threads = n_threads;
    atomic_store(&pool->claimed, atomic_load(&fork_generation));
    reset(pool, atomic_load(&fork_generation));
    *created = pool;
    return STATUS_OK;
}

static void stop_threads(struct Pool *pool)
{
    atomic_store(&pool->is_closing, true);
    for (int32_t i = 1; i < pool->n_started; i++)
        word_advance(&pool->wakes[i]);
    for (int32_t i = 1; i < pool->n_started; i++)
        pthread_join(pool->threads[i], NULL);
    pool->n_started = 1;
    atomic_store(&pool->is_closing, false);
}

void pool_destroy(struct Pool *pool)
{
    if (!pool)
        return;
    reset_after_fork(pool);
    stop_threads(pool);
    pthread_mutex_destroy(&pool->mutex);
    pthread_cond_destroy(&pool->turn_ended);
    free(pool);
}

void pool_take_turn(struct Pool *pool)
{
    reset_after_fork(pool);
    pthread_mutex_lock(&pool->mutex);
    uint64_t turn = pool->next_turn++;
    while (pool->serving != turn)
        pthread_cond_wait(&pool->turn_ended, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

void pool_end_turn(struct Pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    pool->serving++;
    pthread_cond_broadcast(&pool->turn_ended);
    pthread_mutex_unlock(&pool->mutex);
}

/* Workers take no signals: Ctrl-C belongs to the caller. */
static enum Status start_threads(struct Pool *pool)
{
    sigset_t all, previous;
    pthread_attr_t attributes;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &previous);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    enum Status status = STATUS_OK;
    while (pool->n_started < pool->n_threads && status == STATUS_OK) {
        struct Start *start = malloc(sizeof *start);
        if (start)
            *start = (struct Start){ pool, pool->n_started, atomic_load(&pool->wakes[pool->n_started].value) };
        if (!start || pthread_create(&pool->threads[pool->n_started], &attributes, serve, start) != 0) {
            free(start);
            stop_threads(pool);
            status = STATUS_NO_THREAD;
        } else {
            pool->n_started++;
        }
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &previous, NULL);
    return status;
}

enum Status pool_run(struct Pool *pool, work_fn *work, void *context)
{
    if (pool->n_started < pool->n_threads) {
        enum Status status = start_threads(pool);
        if (status != STATUS_OK)
            return status;
    }
    const int64_t begun = now_nanoseconds();
    pool->work = work;
    pool->context = context;
    atomic_store(&pool->waited, 0);
    for (int32_t i = 1; i < pool->crowd.n; i++)
        word_advance(&pool->wakes[i]);
    work(context, 0);
    pool_barrier(pool);
    crowd_note(&pool->crowd, atomic_load(&pool->waited), now_nanoseconds() - begun);
    return STATUS_OK;
}

int32_t pool_workers(const struct Pool *pool) { return pool->crowd.n; }

uint32_t pool_phase(const struct Pool *pool) { return atomic_load(&pool->phase.value); }

/* What a barrier must know before it arrives: once all have, others may leave, and the next run may begin. */
struct Meeting { uint32_t phase, n; };

static struct Meeting next_meeting(const struct Pool *pool)
{
    return (struct Meeting){ pool_phase(pool), (uint32_t)pool->crowd.n };
}

/* True for the last, who lets all go on. */
static bool arrive(struct Pool *pool, struct Meeting meeting)
{
    if ((uint32_t)atomic_fetch_add(&pool->arrived, 1) + 1 < meeting.n)
        return false;
    atomic_store(&pool->arrived, (uint64_t)(meeting.phase + 1) << 32);
    word_advance(&pool->phase);
    return true;
}

static void await_others(struct Pool *pool, struct Meeting meeting)
{
    int64_t waited = word_wait_change(&pool->phase, meeting.phase);
    if (waited)
        atomic_fetch_add(&pool->waited, waited);
}

void pool_barrier(struct Pool *pool)
{
    const struct Meeting meeting = next_meeting(pool);
    if (!arrive(pool, meeting))
        await_others(pool, meeting);
}

bool pool_barrier_soon(struct Pool *pool)
{
    const struct Meeting meeting = next_meeting(pool);
    if (arrive(pool, meeting) || word_changes_soon(&pool->phase, meeting.phase))
        return true;
    for (uint64_t seen = atomic_load(&pool->arrived); seen >> 32 == meeting.phase && (uint32_t)seen < meeting.n;)
        if (atomic_compare_exchange_weak(&pool->arrived, &seen, seen - 1))
            return false;
    await_others(pool, meeting);                     /* the last has just come */
    return true;
}
