/* Floats that are the same everywhere: conversions, fused multiply-add, exp and log without libm. */
#ifndef RILLM_FLOATS_H
#define RILLM_FLOATS_H

#include <float.h>
#include <stdint.h>
#include <string.h>

#ifdef __FAST_MATH__
#error "rillm needs IEEE arithmetic: compile without -ffast-math"
#endif
#if FLT_EVAL_METHOD != 0
#error "rillm needs float arithmetic in float: compile for SSE2 or later"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rillm's panels are little endian"
#endif

static inline uint32_t bits_of_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static inline float f32_of_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}
/* The bits of floats as integers in the same order, −0 just below 0; and back. */
static inline int32_t order_of_bits(uint32_t bits) { return (int32_t)(bits ^ (bits & 0x80000000 ? 0x7fffffff : 0)); }
static inline int32_t order_of_f32(float x) { return order_of_bits(bits_of_f32(x)); }
static inline float f32_of_order(int32_t order) { return f32_of_bits((uint32_t)order_of_bits((uint32_t)order)); }
static inline uint64_t bits_of_f64(double x)
{
    uint64_t u;
    memcpy(&u, &x, 8);
    return u;
}
static inline double f64_of_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, 8);
    return x;
}
static inline float f32_of_bf16(uint16_t b) { return f32_of_bits((uint32_t)b << 16); }
/* Conversions without branches, for loops over lanes. */
static inline float f32_of_f16(uint16_t half)
{
    int32_t magnitude = half & 0x7fff;
    uint32_t tiny = bits_of_f32((float)magnitude * 0x1p-24f);
    uint32_t normal = ((uint32_t)magnitude << 13) + (magnitude < 0x7c00 ? 112u << 23 : 224u << 23);
    return f32_of_bits((uint32_t)(half & 0x8000) << 16 | (magnitude < 0x400 ? tiny : normal));
}
static inline uint16_t f16_of_f32(float value)
{
    int32_t magnitude = bits_of_f32(value) & 0x7fffffff;
    float shifted = f32_of_bits((uint32_t)magnitude) + 0.5f; /* below 2^-14: a multiple of 2^-24, rounded by this */
    int32_t tiny = (int32_t)bits_of_f32(shifted) - 0x3f000000;
    int32_t normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    int32_t huge = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00; /* 65520 and above round to infinity */
    int32_t finite = magnitude < 0x38800000 ? tiny : normal;
    return (uint16_t)((bits_of_f32(value) >> 16 & 0x8000) | (uint32_t)(magnitude < 0x477ff000 ? finite : huge));
}
static inline uint16_t bf16_of_f32(float value)
{
    uint32_t bits = bits_of_f32(value);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* a·b is exact in double; the sum is rounded to odd there, so that the last rounding, to float, is right. */
static inline float fma_f32(float a, float b, float c)
{
    double product = (double)a * b, sum = product + c;
    double other = sum - product, error = (product - (sum - other)) + (c - other);
    uint64_t bits = bits_of_f64(sum);
    int inexact = error != 0.0 && (bits & 1) == 0;   /* error is NaN or 0 when the sum is not finite */
    if (inexact && sum - sum == 0.0)
        bits += ((error > 0.0) == (sum > 0.0)) ? 1 : (uint64_t)-1;
    return (float)f64_of_bits(bits);
}

double log_f64(double x);      /* natural logarithm of a normal positive double, error < 1e-14 relative */

struct FloatEnvironment { uint64_t control; };
struct FloatEnvironment floats_enter(void);          /* nearest, no flush to zero; returns what was */
void floats_leave(struct FloatEnvironment previous);

#endif
