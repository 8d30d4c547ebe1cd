/* run [[--all-but] NAME...]: runs the tests and prints a line for each, the bits that must agree, and the count. */
#define _GNU_SOURCE
#include "tests.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define TEST(name) void test_##name(void);
#include "list.inc"
#undef TEST
static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
#define TEST(name) { #name, test_##name },
#include "list.inc"
#undef TEST
};

enum { N_TESTS = sizeof tests / sizeof tests[0], PRINTED_FAILURES = 8 };

const struct Kernels *isas[N_ISAS];
int32_t n_isas;
static _Atomic long n_checks, n_failed_checks;
static uint64_t seed, hash = 0xcbf29ce484222325;

bool check_at(bool holds, const char *file, int line, const char *what, const char *format, ...)
{
    atomic_fetch_add(&n_checks, 1);
    if (holds || atomic_fetch_add(&n_failed_checks, 1) >= PRINTED_FAILURES)
        return holds;
    va_list arguments;
    va_start(arguments, format);
    printf("%s:%d: %s: ", file, line, what);
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
    return false;
}

long n_failed_checks_now(void) { return n_failed_checks; }

struct Random random_named(const char *name, int32_t index)
{
    uint64_t state = seed + (uint64_t)index * 0x2545f4914f6cdd1d;
    for (; *name; name++)
        state = (state ^ (uint8_t)*name) * 0x100000001b3;
    return (struct Random){ state };
}

uint32_t random_u32(struct Random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

int32_t random_below(struct Random *random, int32_t n)
{
    return (int32_t)((uint64_t)random_u32(random) * (uint64_t)n >> 32);
}

int32_t random_between(struct Random *random, int32_t first, int32_t last)
{
    return first + random_below(random, last - first + 1);
}

float random_float(struct Random *random, float amplitude)
{
    return (float)((int32_t)(random_u32(random) >> 7) - (1 << 24)) * 0x1p-24f * amplitude;
}

void random_floats(struct Random *random, float amplitude, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = random_float(random, amplitude);
}

void hash_bits(const void *data, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        hash = (hash ^ ((const uint8_t *)data)[i]) * 0x100000001b3;
}

bool all_same_bits(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!same_bits(a[i], b[i]))
            return false;
    return true;
}

void *line_alloc(size_t n_bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, LINE_BYTES, n_bytes ? n_bytes : 1) != 0)
        abort();
    return memset(memory, 0xa5, n_bytes);
}

static bool is_named(int n, char **names, const char *test)
{
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], test) == 0)
            return true;
    return false;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

int main(int n_arguments, char **arguments)
{
    const char *wish = getenv("RILLM_TEST_SEED");
    bool is_all_but = n_arguments > 1 && strcmp(arguments[1], "--all-but") == 0;
    int n_names = n_arguments - 1 - is_all_but;
    char **names = arguments + 1 + is_all_but;
    int n_passed = 0, n_failed = 0;
    seed = wish ? strtoull(wish, NULL, 0) : 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int isa = 0; isa < N_ISAS; isa++)
        if (isa_available(isa))
            isas[n_isas++] = kernels_for(isa);
    printf("seed %" PRIu64 ", compiler %s, ISAs", seed, __VERSION__);
    FOR_EACH_ISA(kernels)
        printf(" %s", kernels->isa);
    printf("\n");
    for (int i = 0; i < N_TESTS; i++) {
        if (n_names && is_named(n_names, names, tests[i].name) == is_all_but)
            continue;
        double start = seconds();
        n_checks = n_failed_checks = 0;
        tests[i].run();
        bool passed = n_failed_checks == 0 && n_checks > 0;
        n_passed += passed;
        n_failed += !passed;
        printf("%-6s %-18s %9ld checks %6.2f s", passed ? "ok" : "FAILED", tests[i].name, n_checks, seconds() - start);
        if (n_failed_checks)
            printf(", %ld failed", n_failed_checks);
        printf("\n");
    }
    printf("bits %016" PRIx64 "\n", hash);
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed != 0 || n_passed == 0;
}
