/* The kernel table: pure arithmetic over a range; no threads, no allocation, no model names. */
#ifndef RILLM_KERNELS_H
#define RILLM_KERNELS_H

#include "../rillm.h"

/* A function that is compiled anew for each set of constant arguments: counts of rows, heads, bits. */
#define SPECIALIZED static inline __attribute__((always_inline))

/* Vectors are padded to 16 floats with zeros unless a line says otherwise. */
typedef void quantize_fn(const float *x, int32_t n_columns /* a multiple of GROUP */, int8_t *q,
                         float *scales /* [n_columns / GROUP] */, int32_t *minus_sums);
typedef void residue_fn(const float *x, int32_t n_columns, const int8_t *q, const float *scales,
                        float *out /* [n_columns]: x − scales · q, rounded once */);
typedef void norm_fn(const float *x, const float *weight, const float *bias /* or NULL */, int32_t width,
                     int32_t n /* numbers among the width, the others being zeros */, float epsilon, float *out);
typedef void rope_fn(float *head, const float *cosines, const float *sines, int32_t half);
typedef void softcap_fn(float *x, int32_t n, float cap);   /* cap · tanh(x / cap) */
typedef void add_fn(float *x, const float *y, int32_t n);

/* A cache block: K [BLOCK_POSITIONS / 16, dim, 16], then V [BLOCK_POSITIONS, dim]; dim a multiple of 16.
   In int8 then float scales of keys [BLOCK_POSITIONS] and of values [BLOCK_POSITIONS]. */
typedef void store_kv_fn(const float *key, const float *value, int32_t dim, int32_t position_in_block,
                         void *block); /* key or value may be NULL */

/* A partial: [max, sum of exp(score − max), 14 unused, out[dim]], of one head over some positions. */
enum { PARTIAL_MAX, PARTIAL_SUM, PARTIAL_OUT = LANES };
typedef void attend_block_fn(const float *queries /* [n_heads, dim] */, int32_t n_heads, int32_t dim, const void *block,
                             const void *next /* the block after it, which is asked for; or NULL */, int32_t first,
                             int32_t last /* visible: first ≤ p < last */, float scale, float softcap /* 0: none */,
                             float *partials /* [n_heads, LANES + dim] */);
/* The sum of n floats (a multiple of 64), for measuring how fast memory can be read at all. */
typedef float read_sum_fn(const float *x, size_t n);
typedef void merge_partial_fn(float *into, const float *partial, int32_t dim);
typedef void finish_partial_fn(const float *partial, int32_t dim, float *out /* [dim] */);

/* The least and the greatest of n floats, 1 or more, in the order of order_of_f32. */
struct Extremes { int32_t least, greatest; };
typedef struct Extremes extremes_fn(const float *x, int32_t n);
/* The random words of the tokens from 4 · first_block on: words[j][i] is token 4 · (first_block + i) + j's. */
enum { NOISE_BLOCKS = 64, NOISE_TOKENS = 4 * NOISE_BLOCKS, NOISE_LANES = 8 };
struct Noise { uint32_t words[4][NOISE_BLOCKS], least[NOISE_LANES]; /* [l]: of blocks l, l + 8, … */ };
typedef void noise_fn(const struct NoiseKey *key, uint32_t first_block, struct Noise *noise);

struct Kernels {
#define KERNEL(name, type) type *name;
#include "kernels.inc"
#undef KERNEL
    const char *isa;
};

static inline activate_fn *kernels_activate(const struct Kernels *kernels, enum ActivationFunction function)
{
    switch (function) {
    case ACTIVATION_SILU: return kernels->silu;
    case ACTIVATION_GELU_TANH: return kernels->gelu_tanh;
    case ACTIVATION_GELU: return kernels->gelu;
    case ACTIVATION_RELU2: return kernels->relu2;
    case ACTIVATION_XIELU: return kernels->xielu;
    default: return NULL;
    }
}

static inline store_kv_fn *kernels_store_kv(const struct Kernels *kernels, enum KvFormat format)
{
    return format == KV_F32 ? kernels->store_kv_f32 : format == KV_F16 ? kernels->store_kv_f16 : kernels->store_kv_q8;
}

static inline attend_block_fn *kernels_attend_block(const struct Kernels *kernels, enum KvFormat format)
{
    return format == KV_F32 ? kernels->attend_block_f32
        : format == KV_F16  ? kernels->attend_block_f16
                            : kernels->attend_block_q8;
}

static inline matmul_fn *kernels_matmul(const struct Kernels *kernels, enum FormatId format)
{
    switch (format) {
    case FORMAT_F32: return kernels->matmul_f32;
    case FORMAT_F16: return kernels->matmul_f16;
    case FORMAT_BF16: return kernels->matmul_bf16;
    case FORMAT_Q8: return kernels->matmul_q8;
    case FORMAT_Q4: return kernels->matmul_q4;
    case FORMAT_Q4M: return kernels->matmul_q4m;
    case FORMAT_Q5: return kernels->matmul_q5;
    case FORMAT_Q5M: return kernels->matmul_q5m;
    case FORMAT_Q5B: return kernels->matmul_q5b;
    case FORMAT_Q4K: return kernels->matmul_q4k;
    case FORMAT_Q5K: return kernels->matmul_q5k;
    case FORMAT_Q6K: return kernels->matmul_q6k;
    case FORMAT_Q8K: return kernels->matmul_q8k;
    case FORMAT_Q4K16: return kernels->matmul_q4k16;
    case FORMAT_Q4_64: return kernels->matmul_q4_64;
    default: return NULL;
    }
}

#endif
