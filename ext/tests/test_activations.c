/* Activation functions against their formulas in long double, and to the bit across tables; and plain sums. */
#include "tests.h"

#include <stdlib.h>

static const float xielu_parameters[] = { 0.8f, 0.7f, 0.5f, -1e-6f };

static long double true_value(enum ActivationFunction function, long double x)
{
    switch (function) {
    case ACTIVATION_SILU: return x / (1 + expl(-x));
    case ACTIVATION_GELU_TANH: return x / (1 + expl(-1.59576912160573071L * (x + 0.044715L * x * x * x)));
    case ACTIVATION_GELU: return x / 2 * (1 + erfl(x * 0.707106781186547524L));
    case ACTIVATION_RELU2: return x > 0 ? x * x : 0;
    default: return x > 0 ? 0.8L * x * x + 0.5L * x : 0.7L * (expm1l(x < -1e-6L ? x : -1e-6L) - x) + 0.5L * x;
    }
}

/* SiLU: exp's 2 ulp, an addition and a division. GELU by tanh: the exponent's own rounding times its size.
   GELU: erf within 1.5e-7, and a float's rounding. xIELU: sums of terms as large as x². */
static long double allowed(enum ActivationFunction function, long double x)
{
    long double value = fabsl(true_value(function, x)), size = fabsl(x);
    switch (function) {
    case ACTIVATION_SILU: return 5 * 0x1p-23L * value + 1e-34L;
    case ACTIVATION_GELU_TANH: return (5 + 2 * (1.6L * size + 0.072L * size * size * size)) * 0x1p-23L * value + 1e-33L;
    case ACTIVATION_GELU: return 2.5e-7L * size;
    case ACTIVATION_RELU2: return 0x1p-24L * value + 0x1p-149L;
    default: return 4 * 0x1p-24L * (1 + size + (x > 0 ? size * size : 0));
    }
}

void test_activations(void)
{
    static const float amplitudes[] = { 1e-6f, 1.0f, 10.0f, 120.0f };
    enum { N = 96 };
    for (int32_t i = 0; i < 400; i++) {
        struct Random random = random_named("activation", i);
        enum ActivationFunction function = (enum ActivationFunction)(i % 5);
        float x[N], up[N], portable[N], out[N];
        random_floats(&random, amplitudes[i / 5 % 4], x, N);
        random_floats(&random, 3.0f, up, N);
        x[0] = 0.0f, x[1] = -x[2];
        kernels_activate(isas[0], function)(x, NULL, N, xielu_parameters, portable);
        hash_bits(portable, sizeof portable);
        for (int32_t c = 0; c < N; c++)
            CHECK(fabsl(portable[c] - true_value(function, x[c])) <= allowed(function, x[c]), "function %d of %a is %a",
                  function, x[c], portable[c]);
        FOR_EACH_ISA(kernels) {
            activate_fn *activate = kernels_activate(kernels, function);
            activate(x, NULL, N, xielu_parameters, out);
            CHECK(all_same_bits(out, portable, N), "%s: function %d", kernels->isa, function);
            activate(x, up, N, xielu_parameters, out);
            for (int32_t c = 0; c < N; c++)
                CHECK(same_bits(out[c], portable[c] * up[c]), "%s: function %d of %a · %a is %a", kernels->isa,
                      function, x[c], up[c], out[c]);
        }
    }
}

void test_sums(void)
{
    enum { N = 192 };
    for (int32_t i = 0; i < 60; i++) {
        struct Random random = random_named("sums", i);
        float *x = line_alloc(N * sizeof *x), *y = line_alloc(N * sizeof *y), *out = line_alloc(N * sizeof *out);
        float cap = i % 2 ? 30.0f : 1.0f, *portable = line_alloc(N * sizeof *portable);
        long double sum = 0;
        random_floats(&random, i % 3 ? 5.0f : 500.0f, x, N);
        random_floats(&random, 5.0f, y, N);
        for (int32_t c = 0; c < N; c++)
            sum += x[c];
        memcpy(portable, x, N * sizeof *x);
        isas[0]->softcap(portable, N, cap);
        hash_bits(portable, N * sizeof *portable);
        for (int32_t c = 0; c < N; c++)
            CHECK(fabsl(portable[c] - cap * tanhl((long double)x[c] / cap)) <= cap * 3 * 0x1p-23L, "%a capped is %a",
                  x[c], portable[c]);
        FOR_EACH_ISA(kernels) {
            memcpy(out, x, N * sizeof *x);
            kernels->softcap(out, N, cap);
            CHECK(all_same_bits(out, portable, N), "%s: a cap of %g", kernels->isa, cap);
            memcpy(out, x, N * sizeof *x);
            kernels->add(out, y, N);
            for (int32_t c = 0; c < N; c++)
                CHECK(same_bits(out[c], x[c] + y[c]), "%s: %a + %a = %a", kernels->isa, x[c], y[c], out[c]);
            CHECK(same_bits(kernels->read_sum(x, N), isas[0]->read_sum(x, N)), "%s: read_sum", kernels->isa);
            CHECK(fabsl(kernels->read_sum(x, N) - sum) <= N * 500 * 0x1p-24L, "%s: %a", kernels->isa,
                  kernels->read_sum(x, N));
        }
        free(x), free(y), free(out), free(portable);
    }
}
