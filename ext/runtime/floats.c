/* Scalar float code that must not depend on libm, on the caller's rounding mode or on flags. */
#include "floats.h"
#include "../rillm.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
struct FloatEnvironment floats_enter(void)
{
    struct FloatEnvironment previous = { _mm_getcsr() };
    _mm_setcsr(0x1f80); /* all exceptions masked, round to nearest, no FTZ, no DAZ */
    return previous;
}
void floats_leave(struct FloatEnvironment previous) { _mm_setcsr((unsigned)previous.control); }
#elif defined(__aarch64__)
struct FloatEnvironment floats_enter(void)
{
    struct FloatEnvironment previous;
    __asm__ volatile("mrs %0, fpcr" : "=r"(previous.control));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return previous;
}
void floats_leave(struct FloatEnvironment previous) { __asm__ volatile("msr fpcr, %0" : : "r"(previous.control)); }
#else
struct FloatEnvironment floats_enter(void) { return (struct FloatEnvironment){ 0 }; }
void floats_leave(struct FloatEnvironment previous) { (void)previous; }
#endif

float f32_from_f16(uint16_t half) { return f32_of_f16(half); }
uint16_t f16_from_f32(float value) { return f16_of_f32(value); }

/* log x = e·ln 2 + 2·atanh(s), s = (m − 1)/(m + 1), m in [√½, √2). */
double log_f64(double x)
{
    uint64_t bits = bits_of_f64(x);
    int exponent = (int)(bits >> 52) - 1023;
    double m = f64_of_bits((bits & 0xfffffffffffff) | 0x3ff0000000000000);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exponent++;
    }
    double s = (m - 1.0) / (m + 1.0), z = s * s, series = 0.0;
    for (int k = 23; k >= 1; k -= 2)
        series = series * z + 1.0 / k;
    return exponent * 0.6931471805599453 + 2.0 * s * series;
}

/* x − n·π/2 in three parts of 33 bits, then Taylor's series on [−π/4, π/4]. Large n are taken in two pieces, so that
   each times the first part is exact. */
static double sin_of_quadrant(double x, int quadrant)
{
    double n = x * 0.6366197723675814;
    n = (n + 6755399441055744.0) - 6755399441055744.0;
    double far = (double)((int64_t)n / (1 << 20) * (1 << 20));
    double r = x - far * 1.57079632673412561417;
    r -= (n - far) * 1.57079632673412561417;
    r -= n * 6.07710050630396597660e-11;
    r -= n * 2.02226624879595063154e-21;
    int64_t which = ((int64_t)n + quadrant) & 3;
    double z = r * r, series = 0.0;
    if (which & 1) {
        for (int k = 20; k >= 2; k -= 2)
            series = (1.0 - series) * z / (k * (k - 1));
        series = 1.0 - series;
    } else {
        for (int k = 21; k >= 3; k -= 2)
            series = (1.0 - series) * z / (k * (k - 1));
        series = r * (1.0 - series);
    }
    return which & 2 ? -series : series;
}

double exact_sin(double radians) { return sin_of_quadrant(radians, 0); }
double exact_cos(double radians) { return sin_of_quadrant(radians, 1); }
