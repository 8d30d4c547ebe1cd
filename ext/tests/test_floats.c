/* Scalar float code against libm in long double, over every half and over sums made to round badly. */
#include "tests.h"

#include <stdlib.h>

/* ---- f16 ------------------------------------------------------------------------------------------ */

static double value_of_half(uint16_t half)
{
    int exponent = half >> 10 & 31, mantissa = half & 0x3ff;
    double magnitude = exponent ? ldexp(mantissa + 1024, exponent - 25) : ldexp(mantissa, -24);
    if (exponent == 31)
        magnitude = mantissa ? NAN : INFINITY;
    return half & 0x8000 ? -magnitude : magnitude;
}

void test_f16(void)
{
    for (uint32_t half = 0; half < 0x10000; half++) {
        double value = value_of_half((uint16_t)half);
        float got = f32_from_f16((uint16_t)half);
        CHECK(same_bits(got, (float)value), "half %04x: %a", half, got);
        uint16_t back = f16_from_f32(got);
        CHECK(back == half || (isnan(value) && isnan(value_of_half(back))), "half %04x came back as %04x", half, back);
    }
    for (uint32_t half = 0; half < 0x7c00; half++) { /* half way to the next: to the even one; else to the nearer */
        double next = half == 0x7bff ? 65536.0 : value_of_half((uint16_t)(half + 1));
        float tie = (float)((value_of_half((uint16_t)half) + next) / 2);
        for (uint32_t sign = 0; sign < 2; sign++) {
            float value = sign ? -tie : tie;
            uint32_t low = half | sign << 15, even = (half & 1 ? half + 1 : half) | sign << 15;
            CHECK(f16_from_f32(value) == even, "%a became %04x", value, f16_from_f32(value));
            CHECK(f16_from_f32(nextafterf(value, 0.0f)) == low, "just inside %a", value);
            CHECK(f16_from_f32(nextafterf(value, sign ? -INFINITY : INFINITY)) == low + 1, "just outside %a", value);
        }
    }
    CHECK(f16_from_f32(FLT_MAX) == 0x7c00 && f16_from_f32(-INFINITY) == 0xfc00, "overflow");
    CHECK(f16_from_f32(FLT_TRUE_MIN) == 0 && f16_from_f32(-FLT_MIN) == 0x8000, "underflow");
}

/* ---- fma ------------------------------------------------------------------------------------------ */

static float float_of_exponent(struct Random *random, int32_t exponent)
{
    uint32_t bits = random_u32(random);
    return f32_of_bits((bits & 0x807fffff) | (uint32_t)(exponent < 0 ? 0 : exponent > 254 ? 254 : exponent) << 23);
}

/* a·b + c made to cancel, to tie, to fall among the subnormals or over the edge. */
void make_triple(struct Random *random, int32_t kind, float *a, float *b, float *c)
{
    int32_t e = random_between(random, 1, 254), f = random_between(random, 1, 254);
    *a = float_of_exponent(random, e);
    *b = float_of_exponent(random, f);
    *c = float_of_exponent(random, random_between(random, 0, 254));
    switch (kind % 8) {
    case 0: /* any bits */
        *a = f32_of_bits(random_u32(random)), *b = f32_of_bits(random_u32(random)),
        *c = f32_of_bits(random_u32(random));
        break;
    case 1: /* like sizes */
        *b = float_of_exponent(random, 254 - e + random_between(random, -30, 30));
        *c = float_of_exponent(random, 127 + random_between(random, -60, 60));
        break;
    case 2: /* cancels but for the product's low bits */
        *b = float_of_exponent(random, 254 - e);
        *c = f32_of_bits(bits_of_f32(-(*a * *b)) + random_u32(random) % 3 - 1);
        break;
    case 3: /* the product has 25 bits, the last set: a tie, which c breaks or not */
        *a = (float)(random_below(random, 1 << 12) * 2 + 1 + (1 << 12)),
        *b = (float)(random_below(random, 1 << 11) * 2 + 1 + (1 << 11));
        *c = random_float(random, 1.0f) * f32_of_bits((uint32_t)random_between(random, 1, 150) << 23);
        *c = kind & 8 ? *c : 0.0f;
        break;
    case 4: /* c is the large one and the product less than its last bit */
        *b = float_of_exponent(random, 254 - e);
        *c = float_of_exponent(random, 127 + random_between(random, 22, 27));
        *c = kind & 8 ? f32_of_bits(bits_of_f32(*c) & 0xff800000) : *c;
        break;
    case 5: /* a subnormal sum */
        *b = float_of_exponent(random, 127 - e + random_between(random, -24, 4));
        *c = float_of_exponent(random, random_between(random, 0, 2));
        break;
    case 6: /* at the edge of infinity */
        *b = float_of_exponent(random, 381 - e - random_below(random, 3));
        *c = float_of_exponent(random, 254 - random_below(random, 26));
        break;
    case 7: /* half of the last subnormal, and what tips it */
        *a = 0x1p-75f, *b = f32_of_bits((52u << 23) + (uint32_t)random_below(random, 3) - 1);
        *c = random_below(random, 2) ? f32_of_bits((uint32_t)random_below(random, 3)) : 0.0f;
        break;
    }
}

void test_fma(void)
{
    struct Random random = random_named("fma", 0);
    for (int32_t i = 0; i < 1000000; i++) {
        float a, b, c;
        make_triple(&random, i, &a, &b, &c);
        float got = fma_f32(a, b, c), expected = fmaf(a, b, c);
        CHECK(same_bits(got, expected), "%a · %a + %a = %a, expected %a", a, b, c, got, expected);
    }
}

/* ---- log, noise, sine ------------------------------------------------------------------------------ */

static double any_positive(struct Random *random)
{
    uint64_t high = random_u32(random), bits = high << 32 | random_u32(random);
    uint64_t exponent = (uint64_t)random_between(random, 1, 2046);
    if (random_below(random, 2))
        exponent = (uint64_t)random_between(random, 1020, 1024);
    return f64_of_bits((bits & 0xfffffffffffff) | exponent << 52);
}

void test_log_and_noise(void)
{
    struct Random random = random_named("log", 0);
    for (int32_t i = 0; i < 200000; i++) {
        double x = i < 1000 ? 1.0 + (i - 500) * 0x1p-40 : any_positive(&random);
        long double expected = logl(x);
        CHECK(fabsl(log_f64(x) - expected) <= 1e-14L * fabsl(expected), "log %a = %a", x, log_f64(x));
    }
    float smallest = INFINITY, largest = -INFINITY;
    for (int32_t i = 0; i < 200000; i++) {
        uint32_t word = i < 4096 ? (uint32_t)i : i < 8192 ? UINT32_MAX - (uint32_t)(i - 4096) : random_u32(&random);
        float noise = noise_of_word(word);
        long double expected = -logl(-log1pl(-((long double)word + 0.5L) * 0x1p-32L));
        CHECK(fabsl(noise - expected) <= 0x1p-24L * fabsl(expected) + 1e-13L, "noise of %08x is %a", word, noise);
        smallest = noise < smallest ? noise : smallest;
        largest = noise > largest ? noise : largest;
        hash_bits(&noise, sizeof noise);
    }
    CHECK(smallest > -3.2f && largest < 22.9f, "noise from %g to %g", smallest, largest); /* −log(log 2³³), log 2³³ */
}

void test_sine(void)
{
    struct Random random = random_named("sine", 0);
    for (int32_t i = 0; i < 200000; i++) {
        float position = (float)random_below(&random, 1 << 20), angle = position * random_float(&random, 1.0f);
        double x = i < 1000 ? (double)(float)(i * 1.5707963267948966) : (double)angle;
        double sine = exact_sin(x), cosine = exact_cos(x);
        CHECK(fabsl(sine - sinl(x)) <= 0x1p-52L, "sin %a = %a", x, sine);
        CHECK(fabsl(cosine - cosl(x)) <= 0x1p-52L, "cos %a = %a", x, cosine);
        hash_bits(&sine, sizeof sine);
        hash_bits(&cosine, sizeof cosine);
    }
}

/* ---- Philox: the known answers of Random123 (kat_vectors) -------------------------------------------- */

void test_philox(void)
{
    static const struct {
        uint32_t counter[4], key[2], expected[4];
    } answers[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX },
          { UINT32_MAX, UINT32_MAX },
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
          { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        uint32_t words[4];
        philox4x32_10(answers[i].counter, answers[i].key, words);
        CHECK(memcmp(words, answers[i].expected, sizeof words) == 0, "answer %zu", i);
    }
}
