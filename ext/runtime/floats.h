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
