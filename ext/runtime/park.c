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

enum { PAUSE_NANOSECONDS = 50000, YIELD_NANOSECONDS = 1000000, PAUSES_PER_LOOK = 32 };

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

static int is_changed(struct Word *word, uint32_t old)
{
    return atomic_load_explicit(&word->value, memory_order_acquire) != old;
}

int64_t word_wait_change(struct Word *word, uint32_t old)
{
    int64_t start = now_nanoseconds(), waited = 0;
    while (waited < PAUSE_NANOSECONDS) {
        for (int i = 0; i < PAUSES_PER_LOOK; i++) {
            if (is_changed(word, old))
                return 0;
            pause_once();
        }
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
