/* A spinning waiter answers in nanoseconds but costs a core; a sleeping one costs nothing but a system call. */
#define _GNU_SOURCE
#include "park.h"

#include <sched.h>
#include <time.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
static void sleep_while(struct Word *word, uint32_t old)
{
    syscall(SYS_futex, &word->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
}
static void wake_all(struct Word *word)
{
    syscall(SYS_futex, &word->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}
#else
static void sleep_while(struct Word *word, uint32_t old)
{
    (void)word, (void)old;
    nanosleep(&(struct timespec){ 0, 50000 }, NULL);
}
static void wake_all(struct Word *word) { (void)word; }
#endif

enum { PAUSE_NANOSECONDS = 50000, YIELD_NANOSECONDS = 1000000, PAUSES_PER_LOOK = 32, PAUSES_SOON = 128 };

int64_t now_nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void pause_once(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool is_changed(struct Word *word, uint32_t old)
{
    return atomic_load_explicit(&word->value, memory_order_acquire) != old;
}

static bool pause_while(struct Word *word, uint32_t old, int n_pauses)
{
    for (int i = 0; i < n_pauses; i++) {
        if (is_changed(word, old))
            return false;
        pause_once();
    }
    return true;
}

bool word_changes_soon(struct Word *word, uint32_t old) { return !pause_while(word, old, PAUSES_SOON); }

int64_t word_wait_change(struct Word *word, uint32_t old)
{
    int64_t start = now_nanoseconds(), waited = 0;
    while (waited < PAUSE_NANOSECONDS) {
        if (!pause_while(word, old, PAUSES_PER_LOOK))
            return 0;
        waited = now_nanoseconds() - start;
    }
    while (waited < YIELD_NANOSECONDS) {
        if (is_changed(word, old))
            return waited;
        sched_yield();
        waited = now_nanoseconds() - start;
    }
    atomic_fetch_add(&word->sleepers, 1);
    while (!is_changed(word, old))
        sleep_while(word, old);   /* the kernel looks at the value again: a wake cannot be missed */
    atomic_fetch_sub(&word->sleepers, 1);
    return now_nanoseconds() - start;
}

void word_advance(struct Word *word)
{
    atomic_fetch_add(&word->value, 1);
    if (atomic_load(&word->sleepers))
        wake_all(word);
}
