/* The price of exactness: our kernels beside the fastest that are free to round and to order sums as they like.

       bash bench/c.sh price

   Each runs on panels in the nearest caches, one core; GMAC/s, best of many turns about. What is free:
   bf16: vdpbf16ps, two columns at once, activations rounded to bf16. q8: two sums a row, groups dealt out in turn. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../ext/kernels/kernels.h"
#include "../ext/kernels/vec_avx512.h"

enum { N_COLUMNS = 1024, N_PANELS = 8, MOST_ROWS = 8, TURNS = 400 };

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Panels whose lines hold pairs of columns: lane = row, its two halves one after the other. */
static void free_bf16(const uint8_t *panels, size_t stride_bytes, int32_t n_panels, int32_t n_columns,
                      const struct Activation *x, int32_t first_row, int32_t n_rows, float *out, size_t out_stride)
{
    (void)first_row;
    static __m512bh rows[MOST_ROWS][N_COLUMNS / 32];   /* their rounding counts, as quantization does for q8 */
    for (int r = 0; r < n_rows; r++)
        for (int c = 0; c < n_columns; c += 32)
            rows[r][c / 32] = _mm512_cvtne2ps_pbh(vec_load(x->values + r * x->stride + c + 16),
                                                  vec_load(x->values + r * x->stride + c));
    for (int32_t p = 0; p < n_panels; p++) {
        const uint8_t *panel = panels + (size_t)p * stride_bytes;
        __m512 sums[MOST_ROWS] = { 0 };
        for (int32_t c = 0; c < n_columns; c += 2) {
            __m512i weights = _mm512_load_si512(panel + c * 32);
            for (int r = 0; r < n_rows; r++) {
                int32_t pair;
                memcpy(&pair, (const uint16_t *)rows[r] + c, sizeof pair);
                sums[r] = _mm512_dpbf16_ps(sums[r], (__m512bh)weights, (__m512bh)_mm512_set1_epi32(pair));
            }
        }
        for (int r = 0; r < n_rows; r++)
            vec_store(out + r * out_stride + p * LANES, sums[r]);
    }
}

/* One panel, one or four rows, as eight would not fit the registers; even and odd groups have sums of their own. */
static inline __attribute__((always_inline)) void free_q8_tile(const int n_rows, const uint8_t *panel,
                                                               int32_t n_columns, const struct Activation *x,
                                                               int32_t first, float *out, size_t out_stride)
{
    const int n_groups = n_columns / GROUP, x_groups = x->stride / GROUP;
    const uint8_t *line = panel, *scales = panel;
    f32x16 sums[MOST_ROWS][2] = { 0 };
    for (int g = 0; g < n_groups; g++) {
        __m512i dots[MOST_ROWS][2];
        scales += LANES * sizeof(uint16_t);
        if (g % 2 == 0)
            scales = line, line += LINE_BYTES;
        for (int r = 0; r < n_rows; r++) {
            dots[r][0] = _mm512_set1_epi32(x->minus_sums[(first + r) * x_groups + g] * 128);
            dots[r][1] = _mm512_setzero_si512();
        }
        for (int c = 0; c < GROUP; c += 4, line += 64) {
            __m512i weights = _mm512_xor_si512(_mm512_load_si512(line), _mm512_set1_epi8((char)0x80));
            for (int r = 0; r < n_rows; r++) {
                int32_t four;
                memcpy(&four, x->q + (size_t)(first + r) * (size_t)x->stride + g * GROUP + c, 4);
                dots[r][c / 4 & 1] = _mm512_dpbusd_epi32(dots[r][c / 4 & 1], weights, _mm512_set1_epi32(four));
            }
        }
        f32x16 scale = vec_load_f16((const uint16_t *)scales);
        for (int r = 0; r < n_rows; r++)
            sums[r][g & 1] = vec_fma(_mm512_cvtepi32_ps(_mm512_add_epi32(dots[r][0], dots[r][1])),
                                     vec_mul(scale, vec_set(x->scales[(first + r) * x_groups + g])), sums[r][g & 1]);
    }
    for (int r = 0; r < n_rows; r++)
        vec_store(out + r * out_stride, vec_add(sums[r][0], sums[r][1]));
}

static void free_q8(const uint8_t *panels, size_t stride_bytes, int32_t n_panels, int32_t n_columns,
                    const struct Activation *x, int32_t first_row, int32_t n_rows, float *out, size_t out_stride)
{
    (void)first_row;
    for (int32_t p = 0; p < n_panels; p++)
        if (n_rows == 1)
            free_q8_tile(1, panels + (size_t)p * stride_bytes, n_columns, x, 0, out + p * LANES, out_stride);
        else
            for (int r = 0; r < n_rows; r += 4)
                free_q8_tile(4, panels + (size_t)p * stride_bytes, n_columns, x, r,
                             out + (size_t)r * out_stride + p * LANES, out_stride);
}

int main(void)
{
    const struct {
        const char *name;
        enum FormatId format;
        matmul_fn *free;
    } works[] = { { "bf16", FORMAT_BF16, free_bf16 }, { "q8", FORMAT_Q8, free_q8 } };
    if (!isa_available(ISA_AVX512VNNI))
        return fprintf(stderr, "needs AVX-512 with VNNI and BF16\n"), 1;
    const struct Kernels *kernels = kernels_for(ISA_AVX512VNNI);
    static float values[MOST_ROWS * N_COLUMNS], scales[MOST_ROWS * N_COLUMNS / GROUP],
        out[MOST_ROWS * N_PANELS * LANES];
    static int8_t q[MOST_ROWS * N_COLUMNS];
    static int32_t minus_sums[MOST_ROWS * N_COLUMNS / GROUP];
    struct Activation x = { values, q, scales, minus_sums, N_COLUMNS, 1 };
    for (int w = 0; w < 2; w++) {
        size_t stride = format_panel_bytes(&formats[works[w].format], N_COLUMNS);
        uint8_t *panels = aligned_alloc(64, stride * N_PANELS);
        memset(panels, 0, stride * N_PANELS);
        matmul_fn *both[2] = { kernels_matmul(kernels, works[w].format), works[w].free };
        for (int n_rows = 1; n_rows <= MOST_ROWS; n_rows += 7) {
            double best[2] = { 1e9, 1e9 };
            for (int turn = 0; turn < TURNS; turn++)
                for (int which = 0; which < 2; which++) {
                    double begun = seconds();
                    for (int i = 0; i < 20; i++)
                        both[which](panels, stride, N_PANELS, N_COLUMNS, &x, 0, n_rows, out, N_PANELS * LANES);
                    double took = (seconds() - begun) / 20;
                    best[which] = took < best[which] ? took : best[which];
                }
            double macs = 1e-9 * n_rows * N_PANELS * LANES * N_COLUMNS;
            printf("%-5s %d rows: exact %6.1f, free %6.1f GMAC/s: %.2f x\n", works[w].name, n_rows, macs / best[0],
                   macs / best[1], best[0] / best[1]);
        }
        free(panels);
    }
    return 0;
}
