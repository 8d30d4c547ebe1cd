/* Tensors into panels and back: exact where the format is the file's own, within stated bounds where it is not. */
#include "tests.h"

#include <stdlib.h>

enum { N_ROWS = 21, N_PANELS = 2, COLUMNS_AT_MOST = 768 };

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

/* ---- blocks of GGUF --------------------------------------------------------------------------------- */

/* Of the three kinds that are written down in a line: value = scale · (q − zero) + minimum, nibbles i and i + 16 in
   a byte. What the other kinds mean is tested from Python, against the gguf package. */
static float value_at(enum SourceKind kind, const uint8_t *block, int32_t i)
{
    uint16_t scale, minimum = 0;
    memcpy(&scale, block, 2);
    if (kind == SOURCE_Q4_1)
        memcpy(&minimum, block + 2, 2);
    const uint8_t *codes = block + (kind == SOURCE_Q4_1 ? 4 : 2);
    int32_t nibble = codes[i % 16] >> (i < 16 ? 0 : 4) & 15;
    int32_t q = kind == SOURCE_Q8_0 ? (int8_t)codes[i] : kind == SOURCE_Q4_0 ? nibble - 8 : nibble;
    return (float)q * f32_from_f16(scale) + f32_from_f16(minimum);
}

static void check_blocks(enum SourceKind kind, int32_t n, const uint8_t *source)
{
    const struct BlockKind *k = &block_kinds[kind];
    const struct Format *format = &formats[k->format];
    float expected[COLUMNS_AT_MOST], got[COLUMNS_AT_MOST];
    size_t row_bytes = source_row_bytes(kind, n);
    uint8_t *panels = pack(format, kind, source, n);
    if (!CHECK(panels != NULL, "kind %d, %d columns", (int)kind, n))
        return;
    CHECK(padding_is_zero(format, panels, n), "kind %d, %d columns", (int)kind, n);
    hash_bits(panels, format_panel_bytes(format, n) * N_PANELS);
    for (int32_t r = 0; r < N_ROWS; r++) {
        const uint8_t *row = source + (size_t)r * row_bytes;
        source_to_f32(kind, row, n, expected);
        hash_bits(expected, (size_t)n * sizeof(float));
        for (int32_t c = 0; kind <= SOURCE_Q4_1 && c < n; c++)
            CHECK(same_bits(expected[c], value_at(kind, row + c / GROUP * k->n_bytes, c % GROUP)),
                  "kind %d: [%d, %d] of the source is %a", (int)kind, r, c, expected[c]);
        unpack(format, panels, r, n, got);
        CHECK(all_same_bits(got, expected, (size_t)n), "kind %d, %d columns: row %d", (int)kind, n, r);
    }
    free(panels);
}

/* Any scales there are, then those of a model. */
void test_pack_blocks(void)
{
    for (enum SourceKind kind = SOURCE_Q8_0; kind < N_SOURCES; kind++) {
        const struct BlockKind *k = &block_kinds[kind];
        for (int32_t n = k->n_columns; n <= COLUMNS_AT_MOST; n += k->n_columns == SUPER ? SUPER : 3 * GROUP) {
            struct Random random = random_named("blocks", (int32_t)kind * 10000 + n);
            size_t n_blocks = (size_t)(N_ROWS * n / k->n_columns);
            CHECK(source_row_bytes(kind, n) * N_ROWS == n_blocks * (size_t)k->n_bytes, "kind %d", (int)kind);
            CHECK(source_row_bytes(kind, n + k->n_columns / 2) == 0, "kind %d: not whole blocks", (int)kind);
            uint8_t *source = line_alloc(n_blocks * (size_t)k->n_bytes);
            for (int32_t round = 0; round < 2; round++) {
                random_blocks(&random, kind, round ? 0.1f : 0.0f, source, n_blocks);
                check_blocks(kind, n, source);
            }
            free(source);
        }
    }
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
    if (format->bits == 8) {
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
    for (enum FormatId id = FORMAT_Q8; id < N_FORMATS; id++)
        for (size_t a = 0; format_takes_floats(&formats[id]) && a < sizeof amplitudes / sizeof amplitudes[0]; a++)
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
                        for (int32_t c = 0; c < n; c += format->group)
                            check_group(format, x + r * n + c, got + c, n - c < format->group ? n - c : format->group);
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
    for (enum FormatId id = 0; id < N_FORMATS; id++) {   /* even where there are no rows to encode */
        if (format_takes_floats(&formats[id]))
            continue;
        static const int32_t none[LANES] = { -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1 };
        uint8_t *panel = line_alloc(format_panel_bytes(&formats[id], SUPER));
        struct PackJob job = { &formats[id], SOURCE_F32, (uint8_t *)x, none, 4, 1, panel, 0 };
        CHECK(!pack_panels(&job), "floats as %s", formats[id].name);
        free(panel);
    }
    for (enum SourceKind kind = SOURCE_Q8_0; kind < N_SOURCES; kind++) {   /* and in a file's own blocks */
        const struct BlockKind *k = &block_kinds[kind];
        const int32_t n = 2 * k->n_columns;
        for (int32_t i = 0; i < 6; i++) {
            const int32_t at = i % 2 ? k->minimum : k->scale;
            struct Random random = random_named("refused", (int32_t)kind);
            uint8_t *blocks = line_alloc((size_t)(2 * N_ROWS * k->n_bytes));
            random_blocks(&random, kind, 0.0f, blocks, 2 * N_ROWS);
            uint8_t *block = blocks + 15 * k->n_bytes;
            if (at >= 0)
                memcpy(block + at, (uint16_t[]){ f16_from_f32(bad[i / 2]) }, 2);
            else if (i % 2 == 0)
                block[0] = (uint8_t)(253 + i / 2);
            uint8_t *panels = pack(&formats[k->format], kind, blocks, n);
            CHECK((panels != NULL) == (at < 0 && i % 2), "kind %d with %g at %d", (int)kind, bad[i / 2], at);
            free(panels);
            free(blocks);
        }
    }
}
