/* Tensors into panels and back: exact where the format is the file's own, within stated bounds where it is not. */
#include "tests.h"

#include <stdlib.h>

enum { N_ROWS = 21, N_PANELS = 2, COLUMNS_AT_MOST = 608 };

/* Row r of the source goes to panel row r + 11·(r > 4): a hole of padding rows as between heads. */
static const int32_t hole_start = 5, hole_rows = 11;
static int32_t panel_row(int32_t row) { return row < hole_start ? row : row + hole_rows; }

static uint8_t *pack(const struct Format *format, enum SourceKind kind, const void *source, int32_t n_columns)
{
    int32_t rows[N_PANELS * LANES];
    for (int32_t i = 0; i < N_PANELS * LANES; i++)
        rows[i] = -1;
    for (int32_t r = 0; r < N_ROWS; r++)
        rows[panel_row(r)] = r;
    size_t bytes = format_panel_bytes(format, n_columns);
    uint8_t *panels = line_alloc(bytes * N_PANELS);
    struct PackJob job = { format, kind, source, rows, n_columns, N_PANELS, panels, bytes };
    if (pack_panels(&job))
        return panels;
    free(panels);
    return NULL;
}

static void unpack(const struct Format *format, const uint8_t *panels, int32_t row, int32_t n_columns, float *out)
{
    row = panel_row(row);
    unpack_row(format, panels + (size_t)(row / LANES) * format_panel_bytes(format, n_columns), row % LANES, n_columns,
               out);
}

static bool padding_is_zero(const struct Format *format, const uint8_t *panels, int32_t n_columns)
{
    float values[COLUMNS_AT_MOST];
    for (int32_t row = hole_start; row < hole_start + hole_rows; row++) {
        unpack_row(format, panels, row, n_columns, values);
        for (int32_t c = 0; c < n_columns; c++)
            if (bits_of_f32(values[c]) != 0)
                return false;
    }
    return true;
}

/* ---- floats ---------------------------------------------------------------------------------------- */

/* Any finite number that the type holds, so that the way through a panel and back must be exact. */
static void random_source(struct Random *random, enum SourceKind kind, uint8_t *source, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = random_u32(random);
        uint16_t half = (uint16_t)bits;
        if (kind == SOURCE_F32) {
            float value = random_float(random, f32_of_bits((uint32_t)random_between(random, 1, 250) << 23));
            memcpy(source + 4 * i, &value, 4);
            continue;
        }
        if (kind == SOURCE_F16 && (half & 0x7c00) == 0x7c00)
            half &= 0x83ff;
        if (kind == SOURCE_BF16 && (half & 0x7f80) == 0x7f80)
            half &= 0x807f;
        memcpy(source + 2 * i, &half, 2);
    }
}

/* The nearest bfloat16, ties to even, in doubles: a multiple of the unit in its last place. */
static float nearest_bf16(float x)
{
    int exponent;
    frexp(x, &exponent);
    double unit = ldexp(1.0, (exponent < -125 ? -125 : exponent) - 8);
    return (float)(rint(x / unit) * unit);
}

void test_pack_floats(void)
{
    static const int32_t columns[] = { 1, 2, 31, 33, 40, 96, 577 };
    static const struct {
        enum FormatId format;
        enum SourceKind kind;
    } pairs[] = {
        { FORMAT_F32, SOURCE_F32 }, { FORMAT_F32, SOURCE_F16 },   { FORMAT_F32, SOURCE_BF16 },
        { FORMAT_F16, SOURCE_F16 }, { FORMAT_BF16, SOURCE_BF16 }, { FORMAT_BF16, SOURCE_F32 },
    };
    float expected[COLUMNS_AT_MOST], got[COLUMNS_AT_MOST];
    for (size_t p = 0; p < sizeof pairs / sizeof pairs[0]; p++)
        for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
            const struct Format *format = &formats[pairs[p].format];
            struct Random random = random_named(format->name, (int32_t)(p * 100 + i));
            int32_t n = columns[i];
            size_t row_bytes = source_row_bytes(pairs[p].kind, n);
            uint8_t *source = line_alloc(row_bytes * N_ROWS);
            random_source(&random, pairs[p].kind, source, (size_t)n * N_ROWS);
            uint8_t *panels = pack(format, pairs[p].kind, source, n);
            if (CHECK(panels != NULL, "%s %d", format->name, n)) {
                CHECK(padding_is_zero(format, panels, n), "%s %d", format->name, n);
                for (int32_t r = 0; r < N_ROWS; r++) {
                    source_to_f32(pairs[p].kind, source + (size_t)r * row_bytes, n, expected);
                    for (int32_t c = 0; format->id == FORMAT_BF16 && c < n; c++)
                        expected[c] = nearest_bf16(expected[c]);
                    unpack(format, panels, r, n, got);
                    for (int32_t c = 0; c < n; c++)
                        CHECK(same_bits(got[c], expected[c]), "%s %d: [%d, %d] %a became %a", format->name, n, r, c,
                              expected[c], got[c]);
                }
            }
            free(panels);
            free(source);
        }
}

/* ---- blocks of GGUF: value = scale · (q − zero) + minimum, nibbles i and i + 16 in a byte -------------- */

static uint16_t finite_half(struct Random *random)
{
    uint16_t half = (uint16_t)random_u32(random);
    return (half & 0x7c00) == 0x7c00 ? half & 0x83ff : half;
}

void test_pack_blocks(void)
{
    static const struct {
        enum FormatId format;
        enum SourceKind kind;
    } pairs[] = {
        { FORMAT_Q8, SOURCE_Q8_0 },
        { FORMAT_Q4, SOURCE_Q4_0 },
        { FORMAT_Q4M, SOURCE_Q4_1 },
    };
    float expected[COLUMNS_AT_MOST], got[COLUMNS_AT_MOST], widened[COLUMNS_AT_MOST];
    for (size_t p = 0; p < 3; p++)
        for (int32_t n = GROUP; n <= COLUMNS_AT_MOST; n += 96) {
            const struct Format *format = &formats[pairs[p].format];
            struct Random random = random_named(format->name, n);
            size_t row_bytes = source_row_bytes(pairs[p].kind, n);
            uint8_t *source = line_alloc(row_bytes * N_ROWS);
            for (size_t i = 0; i < row_bytes * N_ROWS; i++)
                source[i] = (uint8_t)random_u32(&random);
            size_t head = p == 2 ? 4 : 2, block_bytes = row_bytes / (size_t)(n / GROUP);
            for (size_t at = 0; at < row_bytes * N_ROWS; at += block_bytes)
                for (size_t half = 0; half < head; half += 2)
                    memcpy(source + at + half, (uint16_t[1]){ finite_half(&random) }, 2);
            uint8_t *panels = pack(format, pairs[p].kind, source, n);
            if (CHECK(panels != NULL, "%s %d", format->name, n)) {
                CHECK(padding_is_zero(format, panels, n), "%s %d", format->name, n);
                for (int32_t r = 0; r < N_ROWS; r++) {
                    for (int32_t c = 0; c < n; c++) {
                        const uint8_t *block = source + (size_t)r * row_bytes + (size_t)(c / GROUP) * block_bytes;
                        const uint8_t *codes = block + head;
                        uint16_t scale, minimum = 0;
                        memcpy(&scale, block, 2);
                        if (p == 2)
                            memcpy(&minimum, block + 2, 2);
                        int32_t i = c % GROUP, nibble = codes[i % 16] >> (i < 16 ? 0 : 4) & 15;
                        int32_t q = p == 0 ? (int8_t)codes[i] : p == 1 ? nibble - 8 : nibble;
                        expected[c] = (float)q * f32_from_f16(scale) + f32_from_f16(minimum);
                    }
                    source_to_f32(pairs[p].kind, source + (size_t)r * row_bytes, n, widened);
                    unpack(format, panels, r, n, got);
                    CHECK(all_same_bits(widened, expected, (size_t)n), "%s %d: row %d of the source", format->name, n,
                          r);
                    CHECK(all_same_bits(got, expected, (size_t)n), "%s %d: row %d", format->name, n, r);
                }
            }
            free(panels);
            free(source);
        }
    CHECK(source_row_bytes(SOURCE_Q8_0, 33) == 0 && source_row_bytes(SOURCE_Q4_1, 48) == 0, "not whole blocks");
}

/* ---- floats to groups of integers ------------------------------------------------------------------- */

static double square_error(const float *x, const float *y, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
    return sum;
}

/* Q8: |error| ≤ 0.51·amax/127 + 127·2⁻²⁵ (half a step, and a scale no finer than f16's 2⁻²⁴).
   Q4 and Q4M choose by squared error: no worse than one step of amax/8, half one of range/15, in each value. */
static void check_group(const struct Format *format, const float *x, const float *y, int32_t n)
{
    float low = x[0], high = x[0];
    for (int32_t i = 0; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    double largest = fmax(-(double)low, high), bound;
    if (format->id == FORMAT_Q8) {
        for (int32_t i = 0; i < n; i++)
            CHECK(fabs((double)x[i] - y[i]) <= 0.51 * largest / 127 + 127 * 0x1p-25, "%a became %a", x[i], y[i]);
        return;
    }
    if (format->id == FORMAT_Q4)
        bound = largest / 8 * (1 + 0x1p-8) + 8 * 0x1p-25;
    else
        bound = ((double)high - low) / 30 * (1 + 0x1p-8) + largest * 0x1p-10 + 15 * 0x1p-25;
    CHECK(square_error(x, y, n) <= n * bound * bound, "%s: [%a, %a] misses by %g, bound %g", format->name, low, high,
          sqrt(square_error(x, y, n) / n), bound);
}

void test_quantized_rows(void)
{
    static const int32_t columns[] = { 1, 31, 32, 33, 40, 96, 576 };
    static const float amplitudes[] = { 0, 1e-45f, 1e-38f, 1e-30f, 1e-8f, 1e-3f, 1, 1e4f };
    float got[COLUMNS_AT_MOST];
    for (enum FormatId id = FORMAT_Q8; id <= FORMAT_Q4M; id++)
        for (size_t a = 0; a < sizeof amplitudes / sizeof amplitudes[0]; a++)
            for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
                const struct Format *format = &formats[id];
                struct Random random = random_named(format->name, (int32_t)(a * 100 + i));
                int32_t n = columns[i];
                float *x = line_alloc((size_t)(n * N_ROWS) * sizeof *x);
                random_floats(&random, amplitudes[a], x, (size_t)(n * N_ROWS));
                for (int32_t c = 0; c < n; c++)
                    x[c] = amplitudes[a] * (c % 2 ? 1.0f : 0.0f), x[n + c] = amplitudes[a];
                uint8_t *panels = pack(format, SOURCE_F32, x, n);
                if (CHECK(panels != NULL, "%s %d of %g", format->name, n, amplitudes[a])) {
                    CHECK(padding_is_zero(format, panels, n), "%s %d", format->name, n);
                    hash_bits(panels, format_panel_bytes(format, n) * N_PANELS);
                    for (int32_t r = 0; r < N_ROWS; r++) {
                        unpack(format, panels, r, n, got);
                        for (int32_t c = 0; c < n; c += GROUP)
                            check_group(format, x + r * n + c, got + c, n - c < GROUP ? n - c : GROUP);
                    }
                    set_float_state(4);  /* the caller's rounding is not ours */
                    uint8_t *again = pack(format, SOURCE_F32, x, n);
                    set_float_state(0);
                    CHECK(again && memcmp(again, panels, format_panel_bytes(format, n) * N_PANELS) == 0, "%s %d of %g",
                          format->name, n, amplitudes[a]);
                    free(again);
                }
                free(panels);
                free(x);
            }
}

void test_refused_values(void)
{
    static const float bad[] = { NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e7f };
    static float x[N_ROWS * 40];
    for (enum FormatId id = 0; id < N_FORMATS; id++)
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            bool is_held = (id == FORMAT_F32 || id == FORMAT_BF16) && i >= 3; /* finite and of f32's range */
            x[3 * 40 + 37] = bad[i];
            uint8_t *panels = pack(&formats[id], SOURCE_F32, x, 40);
            CHECK((panels != NULL) == is_held, "%s with %g", formats[id].name, bad[i]);
            free(panels);
        }
    x[3 * 40 + 37] = 0;
    static uint8_t blocks[N_ROWS * 34];
    memcpy(blocks + 34 * 7, (uint16_t[1]){ 0x7c00 }, 2);  /* an infinite scale in a file's own block */
    CHECK(pack(&formats[FORMAT_Q8], SOURCE_Q8_0, blocks, 32) == NULL, "an infinite scale");
}
