/* The pool: every worker once a run, none past a barrier early, callers in turn, alive in a forked child. */
#define _GNU_SOURCE
#include "model.h"

#include "../runtime/crowd.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../runtime/pool.h"

/* ---- runs and barriers -------------------------------------------------------------------------------- */

enum { N_PHASES = 20, WORKERS_AT_MOST = 16 };

/* Plain ints: only the barriers order them, so the thread sanitizer and the sums both see a barrier that leaks. */
struct Count {
    struct Pool *pool;
    int32_t n_workers, done[2][WORKERS_AT_MOST], n_wrong[WORKERS_AT_MOST];
};

static void count_phases(void *context, int32_t worker)
{
    struct Count *count = context;
    for (int32_t phase = 0; phase < N_PHASES; phase++) {
        count->done[phase % 2][worker]++;
        pool_barrier(count->pool);
        for (int32_t i = 0; i < count->n_workers; i++)   /* after the barrier all are in the same phase */
            count->n_wrong[worker] += count->done[phase % 2][i] != count->done[phase % 2][worker];
    }
}

static void run_and_count(int32_t n_workers, int32_t n_runs)
{
    struct Count count = { NULL, n_workers, { { 0 } }, { 0 } };
    if (!CHECK(pool_create(&count.pool, n_workers) == STATUS_OK, "%d workers", n_workers))
        return;
    for (int32_t run = 0; run < n_runs; run++) {
        count.n_workers = pool_workers(count.pool);   /* fewer where the machine is crowded */
        memset(count.done, 0, sizeof count.done);
        CHECK(count.n_workers >= 1 && count.n_workers <= n_workers, "%d of %d", count.n_workers, n_workers);
        CHECK(pool_run(count.pool, count_phases, &count) == STATUS_OK, "%d workers, run %d", n_workers, run);
        for (int32_t i = 0; i < n_workers; i++)
            CHECK(count.done[0][i] + count.done[1][i] == (i < count.n_workers ? N_PHASES : 0), "worker %d of %d", i,
                  count.n_workers);
    }
    pool_destroy(count.pool);
    for (int32_t i = 0; i < n_workers; i++)
        CHECK(count.n_wrong[i] == 0, "worker %d of %d passed a barrier early %d times", i, n_workers, count.n_wrong[i]);
}

/* Workers that wait most of the time are halved, and come back once that has passed. */
void test_crowd(void)
{
    struct Crowd crowd;
    crowd_init(&crowd, 7);
    for (int32_t step = 0; step < 10000; step++)
        crowd_note(&crowd, step % 9 == 0 ? 7000 : 700, 1000);          /* now and then a bad step */
    CHECK(crowd.n == 7, "%d of 7 after a calm time", crowd.n);
    int32_t n_bad = 0, n_few = 0;
    for (int32_t step = 0; step < 10000; step++) {
        n_bad += crowd.n > 2;
        n_few += crowd.n < 2;
        crowd_note(&crowd, crowd.n > 2 ? crowd.n * 800 : 0, 1000);     /* a third worker is always too many */
    }
    CHECK(n_bad < 300 && n_few == 0, "%d of 10000 steps with more than 2, %d with fewer", n_bad, n_few);
    for (int32_t step = 0; step < 5000; step++)
        crowd_note(&crowd, 0, 1000);
    CHECK(crowd.n == 7, "%d of 7 after the crowd has left", crowd.n);
}

static int32_t n_threads_of_process(void)
{
    int32_t n = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; tasks && (entry = readdir(tasks));)
        n += entry->d_name[0] != '.';
    if (tasks)
        closedir(tasks);
    return n;
}

/* A joined thread may be seen for a moment more, now and when n was counted. */
static bool has_no_more_threads(int32_t n)
{
    for (int32_t i = 0; i < 1000 && n_threads_of_process() > n; i++)
        usleep(1000);
    return n_threads_of_process() <= n;
}

void test_pool(void)
{
    int32_t before = n_threads_of_process();
    for (int32_t i = 0; i < 100; i++)
        run_and_count(i % 4 + 1, 1);
    run_and_count(2, 300);
    run_and_count(8, 60);          /* more workers than cores */
    run_and_count(WORKERS_AT_MOST, 10);
    struct Pool *idle = NULL;      /* never run: no thread was started, none is joined */
    CHECK(pool_create(&idle, 4) == STATUS_OK, "idle");
    CHECK(has_no_more_threads(before), "%d threads before, %d now", before, n_threads_of_process());
    pool_destroy(idle);
    pool_destroy(NULL);
}

/* ---- engines: many callers, a parked pool, a forked child, refused threads ------------------------------ */

struct Scene {
    struct Model *model;
    struct Engine *engine;
    pthread_barrier_t start;       /* callers begin at one moment */
    struct Cache *begun;           /* or NULL: where they all go on from */
};

static struct Scene scene_of(int32_t shape, int32_t n_threads)
{
    struct Scene scene = { .model = model_create(&shapes[shape]) };
    if (engine_create(&scene.engine, &scene.model->plan, isas[n_isas - 1], n_threads) != STATUS_OK)
        abort();
    return scene;
}

static void leave(struct Scene *scene)
{
    engine_destroy(scene->engine);
    model_destroy(scene->model);
}

static struct Cache *cache_of(const struct Scene *scene)
{
    struct Cache *cache = NULL;
    if (cache_create(&cache, &scene->model->plan, scene->model->shape->kv,
                     &(struct Context){ .length = TOKENS_AT_MOST })
        != STATUS_OK)
        abort();
    return cache;
}

static void *read_on(void *argument)
{
    struct Scene *scene = argument;
    struct Cache *cache = cache_of(scene);
    pthread_barrier_wait(&scene->start);
    if (scene->begun) { /* all go on where one is, in pages that are theirs together until they write */
        for (int32_t ring = 0; ring < cache_rings(cache); ring++)
            cache_adopt(cache, ring, 0, cache_page(scene->begun, ring, 0));
        CHECK(cache_resume(cache, cache_length(scene->begun)) == STATUS_OK, "resumed");
    }
    for (int32_t i = 0; i < 25; i++)
        goes_on(scene->model, scene->engine, cache, i % 3 + 1, "one of many callers");
    cache_destroy(cache);
    return NULL;
}

static void read_in_threads(struct Scene *scene, int32_t n)
{
    pthread_t threads[WORKERS_AT_MOST];
    pthread_barrier_init(&scene->start, NULL, (unsigned)n);
    for (int32_t i = 0; i < n; i++)
        if (!CHECK(pthread_create(&threads[i], NULL, read_on, scene) == 0, "caller %d", i))
            abort();
    for (int32_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&scene->start);
}

void test_pool_turns(void)
{
    struct Scene scene = scene_of(0, 3);
    read_in_threads(&scene, 6);
    scene.begun = cache_of(&scene);
    goes_on(scene.model, scene.engine, scene.begun, 11, "before others go on");
    read_in_threads(&scene, 6);
    goes_on(scene.model, scene.engine, scene.begun, 11, "after others went on");
    cache_destroy(scene.begun);
    struct Cache *cache = cache_of(&scene);
    for (int32_t i = 0; i < 5; i++) {
        usleep(i * 1500);          /* long enough for workers to yield, then to sleep in the kernel */
        goes_on(scene.model, scene.engine, cache, 1, "after a pause");
    }
    cache_destroy(cache);
    leave(&scene);
}

/* True when the child ended well: no check of its own failed, and it did not hang. */
static bool child_succeeds(void (*work)(struct Scene *), struct Scene *scene)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        long failed = n_failed_checks_now();
        work(scene);
        fflush(stdout);
        _exit(n_failed_checks_now() != failed);
    }
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static void check_children(int32_t n, void (*work)(struct Scene *), struct Scene *scene, const char *when)
{
    bool well = true;
    for (int32_t i = 0; i < n && well; i++)
        well = CHECK(child_succeeds(work, scene), "%s: child %d of %d", when, i, n);
}

static void read_in_child(struct Scene *scene)
{
    struct Cache *cache = cache_of(scene);
    for (int32_t i = 0; i < 8; i++)
        goes_on(scene->model, scene->engine, cache, i + 1, "in a forked child");
    cache_destroy(cache);
    engine_destroy(scene->engine);
}

static void read_in_threads_of_child(struct Scene *scene) { read_in_threads(scene, 4); }

/* Two callers at the very same moment, the first after a fork, both find the pool as the parent left it. */
static struct Pool *inherited;
static _Atomic int32_t n_callers, n_inside;

static void *take_turns(void *argument)
{
    atomic_fetch_add(&n_callers, 1);
    while (n_callers < 2)
        continue;
    for (int32_t i = 0; i < 20; i++) {
        pool_take_turn(inherited);
        CHECK(atomic_fetch_add(&n_inside, 1) == 0, "two callers at once in turn %d after a fork", i);
        atomic_fetch_sub(&n_inside, 1);
        pool_end_turn(inherited);
    }
    return argument;
}

static void take_turns_in_child(struct Scene *unused)
{
    pthread_t other;
    (void)unused;
    n_callers = 0;
    if (pthread_create(&other, NULL, take_turns, NULL) != 0)
        abort();
    take_turns(NULL);
    pthread_join(other, NULL);
}

static _Atomic bool is_reading;
static void *read_until_told(void *argument)
{
    struct Scene *scene = argument;
    struct Cache *cache = cache_of(scene);
    while (is_reading) {
        goes_on(scene->model, scene->engine, cache, 2, "while others fork");
        if (cache_length(cache) > 50)
            cache_rewind(cache, 0);
    }
    cache_destroy(cache);
    return NULL;
}

void test_pool_fork(void)
{
    struct Scene scene = scene_of(3, 3);
    check_children(1, read_in_child, &scene, "forked before the first step");
    struct Cache *cache = cache_of(&scene);
    goes_on(scene.model, scene.engine, cache, 3, "before a fork");
    check_children(1, read_in_child, &scene, "forked between steps");
    goes_on(scene.model, scene.engine, cache, 3, "in the parent, after a fork");
    check_children(10, read_in_threads_of_child, &scene, "first used by several threads of the child");
    goes_on(scene.model, scene.engine, cache, 3, "in the parent, after forks");

    CHECK(pool_create(&inherited, 2) == STATUS_OK, "a pool to inherit");
    check_children(200, take_turns_in_child, NULL, "first used by two threads of the child at once");
    pool_destroy(inherited);

    pthread_t reader; /* in the middle of a step, when a turn is taken and the workers are in a barrier */
    is_reading = true;
    if (pthread_create(&reader, NULL, read_until_told, &scene) != 0)
        abort();
    check_children(10, read_in_child, &scene, "forked within another thread's step");
    is_reading = false;
    pthread_join(reader, NULL);
    cache_destroy(cache);
    leave(&scene);
}

/* The system refuses the k-th thread: the step says so and joins those it had; asked again it starts all. */
void test_pool_refused(void)
{
    int32_t before = n_threads_of_process();
    for (int32_t allowed = 0; allowed < 3; allowed++) {
        struct Scene scene = scene_of(0, 4);
        struct Cache *cache = cache_of(&scene);
        float *logits = line_alloc((size_t)scene.model->vocab_stride * sizeof *logits);
        for (int32_t attempt = 0; attempt < 2; attempt++) {
            struct Row row = { cache, 0, scene.model->texts[0].tokens[0], -1, NULL, 0, WANTS_LOGITS };
            refuse_threads_after(allowed);
            enum Status status = engine_forward(scene.engine, &row, 1, logits);
            refuse_threads_after(-1);
            CHECK(status == STATUS_NO_THREAD, "%d threads allowed: status %d", allowed, (int)status);
            CHECK(cache_length(cache) == 0, "length %d", cache_length(cache));
            CHECK(has_no_more_threads(before), "%d threads left over", n_threads_of_process() - before);
        }
        goes_on(scene.model, scene.engine, cache, 3, "asked again");
        cache_destroy(cache);
        leave(&scene);
        free(logits);
    }
}
