/* What the tests share: checks that count, inputs from an integer generator, a hash of the bits that must agree. */
#ifndef RILLM_TESTS_H
#define RILLM_TESTS_H

#include <math.h>
#include <stdio.h>

#include "../kernels/kernels.h"
#include "../runtime/floats.h"

/* A failed check prints where and what; the printf arguments after it say with which inputs. */
#define CHECK(holds, ...) check_at((holds), __FILE__, __LINE__, #holds, __VA_ARGS__)
bool check_at(bool holds, const char *file, int line, const char *what, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

long n_failed_checks_now(void);   /* of the running test: a forked child reports by it */

/* splitmix64 (Steele, Lea & Flood, OOPSLA 2014): the same inputs from every compiler, none from libm. */
struct Random { uint64_t state; };
struct Random random_named(const char *name, int32_t index); /* of RILLM_TEST_SEED, name and index alone */
uint32_t random_u32(struct Random *random);
int32_t random_below(struct Random *random, int32_t n);
int32_t random_between(struct Random *random, int32_t first, int32_t last); /* both included */
float random_float(struct Random *random, float amplitude);                /* 24 random bits in ±amplitude */
void random_floats(struct Random *random, float amplitude, float *out, size_t n);

/* blocks.c: what a file's blocks are, told again; n_columns 0: floats. */
struct BlockKind {
    enum FormatId format;     /* that holds them exactly */
    int32_t n_columns, n_bytes;
    int32_t scale, minimum; /* where the f16 lies, or −1; the scale of a kind without is its first byte, an exponent */
    float spread, centre; /* deviation of values under a scale of 1, and the minimum that brings their mean to 0 */
};
extern const struct BlockKind block_kinds[N_SOURCES];
/* Values of about that deviation; 0: scales are any finite number. */
void random_blocks(struct Random *random, enum SourceKind kind, float deviation, uint8_t *blocks, size_t n_blocks);

/* FNV-1a-64 of everything that must be the same bits in every build; printed as `bits`. */
void hash_bits(const void *data, size_t n_bytes);

static inline bool same_bits(float a, float b) { return bits_of_f32(a) == bits_of_f32(b) || (a != a && b != b); }
bool all_same_bits(const float *a, const float *b, size_t n);

/* Exactly n_bytes on a 64-byte line, so that a sanitizer sees one byte too far; filled with 0xa5. */
void *line_alloc(size_t n_bytes);

/* The tables this machine can run, portable first: asked for once, since cpuid is slow on virtual machines. */
extern const struct Kernels *isas[N_ISAS];
extern int32_t n_isas;
#define FOR_EACH_ISA(kernels)                                                                                          \
    for (int32_t isa_ = 0; isa_ < n_isas; isa_++)                                                                      \
        for (const struct Kernels *kernels = isas[isa_]; kernels; kernels = NULL)

/* What a host library may have left behind: 0 is the default, others round oddly or flush subnormals. */
enum { N_FLOAT_STATES = 5 };
uint64_t float_state(void);
void set_float_state(int state);

/* refuse.c: after `allowed` more, the system refuses; a negative number allows all. */
void refuse_threads_after(int allowed);
void refuse_memory_after(int allowed);

#endif
