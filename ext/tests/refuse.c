/* Stands between the engine and the system (linked with --wrap), so that threads and memory can be refused. */
#include "tests.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

static _Atomic int threads_left = -1, memory_left = -1;

void refuse_threads_after(int allowed) { threads_left = allowed; }
void refuse_memory_after(int allowed) { memory_left = allowed; }

static bool is_refused(_Atomic int *left)
{
    int now = atomic_load(left);
    if (now > 0)
        atomic_store(left, now - 1);
    return now == 0;
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument)
{
    return is_refused(&threads_left) ? EAGAIN : __real_pthread_create(thread, attributes, start, argument);
}

void *__real_mmap(void *address, size_t length, int protection, int flags, int file, off_t offset);
void *__wrap_mmap(void *address, size_t length, int protection, int flags, int file, off_t offset);
void *__wrap_mmap(void *address, size_t length, int protection, int flags, int file, off_t offset)
{
    if (is_refused(&memory_left)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return __real_mmap(address, length, protection, flags, file, offset);
}
