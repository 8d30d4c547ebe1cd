/* Kernels over one vector, every table: the stated order bit for bit, and the true value in long double nearby. */
#include "tests.h"

#include <stdlib.h>

static const int32_t sizes[] = { 1, 16, 31, 32, 33, 40, 96, 576 };
enum { N_SIZES = sizeof sizes / sizeof sizes[0], SIZE_AT_MOST = 576 };

/* Floats padded with zeros to 16, and not one more. */
static float *padded(struct Random *random, float amplitude, int32_t n)
{
    int32_t whole = (n + LANES - 1) / LANES * LANES;
    float *x = line_alloc((size_t)whole * sizeof *x);
    memset(x, 0, (size_t)whole * sizeof *x);
    random_floats(random, amplitude, x, (size_t)n);
    return x;
}

/* exp and its bounds, through the one kernel that shows it bare: merging a run of sum 1 under a maximum of 0. */
static float exp_of(const struct Kernels *kernels, float x)
{
    float into[LANES * 2] = { 0 }, partial[LANES * 2] = { 0 };
    into[PARTIAL_MAX] = x;
    into[PARTIAL_SUM] = 1.0f;
    kernels->merge_partial(into, partial, LANES);
    return into[PARTIAL_SUM];
}

static float ulp_of(long double x)
{
    float below = (float)fabsl(x);
    return nextafterf(below, INFINITY) - below;
}

void test_exp(void)
{
    struct Random random = random_named("exp", 0);
    for (int32_t i = 0; i < 100000; i++) {
        float x = -80.0f * (float)(random_u32(&random) >> 8) * 0x1p-24f;
        x = i < 1000 ? (float)(-i * 0.0866433976 * (1 + (i % 3 - 1) * 1e-7)) : i < 2000 ? x * 0x1p-20f : x;
        if (x < -80.0f)
            continue;
        long double expected = expl(x);
        float portable = exp_of(isas[0], x);
        CHECK(fabsl(portable - expected) <= 2 * ulp_of(expected), "exp %a = %a", x, portable);
        FOR_EACH_ISA(kernels)
            CHECK(same_bits(exp_of(kernels, x), portable), "%s: exp %a = %a", kernels->isa, x, exp_of(kernels, x));
        hash_bits(&portable, sizeof portable);
    }
    FOR_EACH_ISA(kernels) {
        CHECK(exp_of(kernels, 0.0f) == 1.0f, "%s", kernels->isa);
        CHECK(exp_of(kernels, -80.0f) > 0.0f, "%s", kernels->isa);
        for (float x = nextafterf(-80.0f, -INFINITY); x > -INFINITY; x *= 1.5f)
            CHECK(bits_of_f32(exp_of(kernels, x)) == 0, "%s: exp %a = %a", kernels->isa, x, exp_of(kernels, x));
        CHECK(bits_of_f32(exp_of(kernels, -INFINITY)) == 0, "%s", kernels->isa);
    }
}

/* Sixteen lanes, then halves: i + (i + 8), + 4, + 2, + 1. */
static float sum_of_lanes(float lanes[LANES])
{
    for (int32_t half = LANES / 2; half > 0; half /= 2)
        for (int32_t i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    return lanes[0];
}

static float sum_of_squares(const float *x, int32_t n, float mean)
{
    float lanes[LANES] = { 0 };
    for (int32_t i = 0; i < n; i++)
        lanes[i % LANES] = fmaf(x[i] - mean, x[i] - mean, lanes[i % LANES]);
    return sum_of_lanes(lanes);
}

static float mean_of(const float *x, int32_t n)
{
    float lanes[LANES] = { 0 };
    for (int32_t i = 0; i < n; i++)
        lanes[i % LANES] += x[i];
    return sum_of_lanes(lanes) / (float)n;
}

void test_norms(void)
{
    static const float amplitudes[] = { 0.0f, 1e-18f, 1.0f, 1e15f };
    for (int32_t i = 0; i < N_SIZES * 4 * 2; i++) {
        struct Random random = random_named("norm", i);
        int32_t n = sizes[i / 8], width = (n + LANES - 1) / LANES * LANES;
        bool is_layer = i % 2, has_bias = is_layer && i % 4 > 1;
        float *x = padded(&random, amplitudes[i / 2 % 4], n), *weight = padded(&random, 2.0f, n);
        float *bias = padded(&random, 2.0f, n), *out = padded(&random, 1.0f, n);
        float mean = is_layer ? mean_of(x, n) : 0.0f,
              factor = 1.0f / sqrtf(sum_of_squares(x, n, mean) / (float)n + 1e-5f);
        long double true_mean = 0, variance = 0;
        for (int32_t c = 0; is_layer && c < n; c++)
            true_mean += (long double)x[c] / n;
        for (int32_t c = 0; c < n; c++)
            variance += (x[c] - true_mean) * (x[c] - true_mean) / n;
        FOR_EACH_ISA(kernels) {
            (is_layer ? kernels->norm_layer : kernels->norm_rms)(x, weight, has_bias ? bias : NULL, width, n, 1e-5f,
                                                                 out);
            for (int32_t c = 0; c < width; c++) {
                float expected = (x[c] - mean) * factor * weight[c];
                long double near = (x[c] - true_mean) / sqrtl(variance + 1e-5L) * weight[c];
                CHECK(same_bits(out[c], has_bias ? expected + bias[c] : expected), "%s: %d of %d is %a", kernels->isa,
                      c, n, out[c]);
                CHECK(fabsl(out[c] - near - (has_bias ? bias[c] : 0.0f)) <= 2e-5L, "%s: %d of %d is %a", kernels->isa,
                      c, n, out[c]);
            }
        }
        free(x), free(weight), free(bias), free(out);
    }
}

/* Half an integer is where rounding shows: amax is 127, so the scale is 1 and n + ½ must go to the even one. */
void test_quantize(void)
{
    static const float amplitudes[] = { 0, 1e-45f, 1e-38f, 0x1.fffffep-101f, 0x1p-100f, 1e-8f, 1, 1e4f, 3e38f };
    enum { N_AMPLITUDES = sizeof amplitudes / sizeof amplitudes[0], N = 96 };
    for (int32_t i = 0; i <= N_AMPLITUDES; i++) {
        struct Random random = random_named("quantize", i);
        float *x = padded(&random, 1.0f, N);
        for (int32_t c = 0; c < N; c++)
            x[c] = i < N_AMPLITUDES ? x[c] * amplitudes[i] : (float)random_between(&random, -127, 126) + 0.5f;
        x[5] = i < N_AMPLITUDES ? amplitudes[i] : 127.0f, x[40] = -x[5], x[95] = x[5];
        FOR_EACH_ISA(kernels) {
            int8_t *q = line_alloc(N);
            float scales[N / GROUP], *residue = line_alloc(N * sizeof *residue);
            int32_t minus_sums[N / GROUP];
            kernels->quantize(x, N, q, scales, minus_sums);
            kernels->residue(x, N, q, scales, residue);
            for (int32_t g = 0; g < N / GROUP; g++) {
                float largest = 0.0f;
                int32_t sum = 0;
                for (int32_t c = g * GROUP; c < (g + 1) * GROUP; c++)
                    largest = fabsf(x[c]) > largest ? fabsf(x[c]) : largest;
                bool is_tiny = largest < 0x1p-100f;
                CHECK(same_bits(scales[g], is_tiny ? 0.0f : largest / 127.0f), "%s: scale %a", kernels->isa, scales[g]);
                for (int32_t c = g * GROUP; c < (g + 1) * GROUP; c++) {
                    float expected = is_tiny ? 0.0f : rintf(x[c] * (127.0f / largest));
                    CHECK((float)q[c] == expected && q[c] >= -127, "%s: %a of %a is %d", kernels->isa, x[c], largest,
                          q[c]);
                    float left = fmaf(-scales[g], (float)q[c], x[c]);
                    CHECK(same_bits(residue[c], left), "%s: %a left of %a, expected %a", kernels->isa, residue[c], x[c],
                          left);
                    sum += q[c];
                }
                CHECK(minus_sums[g] == -sum, "%s: −Σ is %d, expected %d", kernels->isa, minus_sums[g], -sum);
            }
            free(q), free(residue);
        }
        free(x);
    }
}

void test_rope(void)
{
    for (int32_t half = 1; half <= 64; half += half < 8 ? 1 : 7) {
        struct Random random = random_named("rope", half);
        float *head = line_alloc((size_t)half * 8), *turned = line_alloc((size_t)half * 8);
        float *cosines = line_alloc((size_t)half * 4), *sines = line_alloc((size_t)half * 4);
        random_floats(&random, 3.0f, head, (size_t)half * 2);
        random_floats(&random, 1.0f, cosines, (size_t)half);
        random_floats(&random, 1.0f, sines, (size_t)half);
        FOR_EACH_ISA(kernels) {
            memcpy(turned, head, (size_t)half * 8);
            kernels->rope_half(turned, cosines, sines, half);
            for (int32_t i = 0; i < half; i++) {
                float a = head[i], b = head[i + half], ac = a * cosines[i], bs = b * sines[i];
                float bc = b * cosines[i], as = a * sines[i];
                CHECK(same_bits(turned[i], ac - bs), "%s: %d of %d", kernels->isa, i, half);
                CHECK(same_bits(turned[i + half], bc + as), "%s: %d of %d", kernels->isa, i + half, half);
            }
        }
        free(head), free(turned), free(cosines), free(sines);
    }
}
