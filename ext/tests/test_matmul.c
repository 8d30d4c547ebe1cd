/* Panels times rows against exact integers and the stated order: a group's dot, then one fma with the scales. */
#include "tests.h"

#include <stdlib.h>

#include "../kernels/ahead.h"

enum { N_STRAY = 16 };   /* floats between rows of the output, which nobody may touch */

struct Case {
    const struct Format *format;
    int32_t n_panels, n_columns, first_row, n_rows;
    size_t stride_bytes, out_stride;
    uint8_t *panels;
    struct Activation x;
    float *out, *expected;
};

/* Where values and scales lie, told again from the comment in rillm.h that defines a panel. */
struct Stretch {
    int32_t columns, halves, subs;
    size_t scale_bytes, bytes;
}; /* halves and bytes of scales of a row */

static struct Stretch stretch_of(const struct Format *format)
{
    const bool is_two_level = format->scale >= SCALE_U8_F16;
    struct Stretch s = { is_two_level          ? 256
                             : format->minimum ? format->group
                                               : 2 * format->group,
                         is_two_level || format->minimum ? 1 : 2, is_two_level ? 256 / format->group : 0, 0, 0 };
    const int32_t sub_bytes = format->scale == SCALE_U6_F16 ? s.subs * 6 / 8 : s.subs;
    s.scale_bytes = (size_t)((s.halves * 2 + sub_bytes) * 16 * (format->minimum ? 2 : 1) + 63) / 64 * 64;
    s.bytes = s.scale_bytes + (size_t)(s.columns * 16 * format->bits / 8);
    return s;
}

static int32_t code_at(const struct Case *t, const uint8_t *panel, int32_t row, int32_t column)
{
    const struct Stretch s = stretch_of(t->format);
    const uint8_t *values = panel + (size_t)(column / s.columns) * s.bytes + s.scale_bytes;
    int32_t bits = t->format->bits, at = row * 4 + column % 4;
    column %= s.columns;
    if (bits == 8)
        return (int8_t)values[column / 4 * LINE_BYTES + at];
    const uint8_t *group = values + column / GROUP * bits * LINE_BYTES;
    uint8_t byte = group[column % GROUP / 8 * LINE_BYTES + at];
    int32_t code = column % 8 < 4 ? byte & 15 : byte >> 4;
    int32_t place = column % GROUP / 4 * (bits - 4); /* of the upper bits, in the run of a row's bytes */
    if (bits > 4)
        code += (group[(4 + place / 8) * LINE_BYTES + at] >> place % 8) % (1 << (bits - 4)) * 16;
    return code - t->format->zero;
}

/* The lower level of a group's scale, or of its minimum; of six bits four lie in [8, 16] bytes, two in [4, 16]. */
static int32_t sub_at(enum ScaleType type, const uint8_t *subs, int32_t n, int32_t row, int32_t group, bool is_minimum)
{
    const uint8_t byte = subs[(is_minimum * n + group) * 16 + row];
    if (type == SCALE_I8_F16)
        return (int8_t)byte;
    if (type == SCALE_U8_F16)
        return byte;
    const int32_t lower = subs[group * 16 + row], upper = subs[(8 + group % 4) * 16 + row];
    return (is_minimum ? lower / 16 : lower % 16) + (upper >> (group / 4 * 4 + is_minimum * 2)) % 4 * 16;
}

/* Of a row's group at a column: its scale, or its minimum, which stands behind all scales of its size in the stretch. */
static float group_scale(const struct Case *t, const uint8_t *panel, int32_t row, int32_t column, bool is_minimum)
{
    const struct Stretch s = stretch_of(t->format);
    const int32_t in_stretch = column % s.columns / t->format->group;
    const uint8_t *halves = panel + (size_t)(column / s.columns) * s.bytes;
    const uint8_t *subs = halves + (t->format->minimum ? 2 : 1) * s.halves * 32;
    const enum ScaleType type = is_minimum ? t->format->minimum : t->format->scale;
    const int32_t half = is_minimum * s.halves + (s.subs ? 0 : in_stretch);
    uint16_t bits;
    memcpy(&bits, halves + (half * 16 + row) * 2, 2);
    float scale = type == SCALE_BF16 ? f32_of_bf16(bits) : f32_from_f16(bits);
    if (s.subs) /* an exact product: 11 bits times 8 */
        scale *= (float)sub_at(type, subs, s.subs, row, in_stretch, is_minimum);
    return is_minimum && s.subs ? -scale : scale;
}

static float expect_integers(const struct Case *t, const uint8_t *panel, int32_t row, int32_t r)
{
    const int32_t group = t->format->group < GROUP ? t->format->group : GROUP; /* activations have a scale for 32 */
    float sum = 0.0f;
    for (int32_t g = 0; g * group < t->n_columns; g++) {
        int64_t dot = 0, sum_q = 0;
        for (int32_t c = g * group; c < (g + 1) * group; c++) {
            int64_t q = t->x.q[(size_t)r * t->x.stride + c];
            dot += code_at(t, panel, row, c) * q;
            sum_q += q;
        }
        float x_scale = t->x.scales[r * (t->x.stride / GROUP) + g * group / GROUP];
        sum = fmaf((float)dot, group_scale(t, panel, row, g * group, false) * x_scale, sum);
        if (t->format->minimum)
            sum = fmaf(group_scale(t, panel, row, g * group, true), (float)sum_q * x_scale, sum);
    }
    return sum;
}

static float expect_floats(const struct Case *t, const uint8_t *panel, int32_t row, int32_t r)
{
    float sum = 0.0f;
    for (int32_t c = 0; c < t->n_columns; c++) {
        size_t at = (size_t)c * LANES + (size_t)row;
        float weight = t->format->id == FORMAT_F32 ? ((const float *)panel)[at]
            : t->format->id == FORMAT_F16          ? f32_from_f16(((const uint16_t *)panel)[at])
                                                   : f32_of_bf16(((const uint16_t *)panel)[at]);
        sum = fmaf(weight, t->x.values[(size_t)r * t->x.stride + c], sum);
    }
    return sum;
}

static uint16_t small_scale(const struct Format *format, struct Random *random)
{
    float scale = random_float(random, 0.01f);
    return format->scale == SCALE_BF16 ? (uint16_t)(bits_of_f32(scale) >> 16) : f16_from_f32(scale);
}

/* Random bytes are every code and every byte of scales there is, −128 too; 16-bit scales and floats are small. */
static void fill_panels(struct Case *t, struct Random *random)
{
    const struct Stretch s = stretch_of(t->format);
    const int32_t n_halves = s.halves * (t->format->minimum ? 2 : 1) * LANES;
    for (int32_t p = 0; p < t->n_panels; p++) {
        uint8_t *panel = t->panels + (size_t)p * t->stride_bytes;
        for (size_t i = 0; i < format_panel_bytes(t->format, t->n_columns); i++)
            panel[i] = (uint8_t)random_u32(random);
        for (int32_t c = 0; t->format->group && c < t->n_columns; c += s.columns)
            for (int32_t i = 0; i < n_halves; i++)
                memcpy(panel + (size_t)(c / s.columns) * s.bytes + 2 * i,
                       (uint16_t[1]){ small_scale(t->format, random) }, 2);
        for (size_t i = 0; !t->format->group && i < (size_t)(t->n_columns * LANES); i++) {
            float value = random_float(random, 1.0f);
            uint16_t half = t->format->id == FORMAT_F16 ? f16_from_f32(value) : (uint16_t)(bits_of_f32(value) >> 16);
            memcpy(panel + i * t->format->bits / 8, t->format->id == FORMAT_F32 ? (void *)&value : (void *)&half,
                   t->format->bits / 8);
        }
    }
}

static void fill_activation(struct Case *t, struct Random *random)
{
    int32_t n = t->first_row + t->n_rows, n_groups = t->x.stride / GROUP;
    for (int32_t r = 0; r < n; r++)
        for (int32_t g = 0; g < n_groups; g++) {
            int32_t sum = 0;
            for (int32_t c = g * GROUP; c < (g + 1) * GROUP; c++) {
                bool is_seen = c < t->n_columns;
                int32_t q = is_seen ? random_between(random, -127, 127) : 0;
                t->x.q[r * t->x.stride + c] = (int8_t)q;
                t->x.values[r * t->x.stride + c] = is_seen ? random_float(random, 4.0f) : 0.0f;
                sum += q;
            }
            t->x.scales[r * n_groups + g] = random_float(random, 0.1f);
            t->x.minus_sums[r * n_groups + g] = -sum;
        }
}

static struct Case case_create(enum FormatId id, int32_t n_columns, int32_t n_panels, int32_t first_row, int32_t n_rows,
                               size_t gap_bytes)
{
    struct Case t = { &formats[id], n_panels, n_columns, first_row, n_rows, 0, 0, NULL, { 0 }, NULL, NULL };
    size_t bytes = format_panel_bytes(t.format, n_columns), rows = (size_t)(first_row + n_rows);
    t.stride_bytes = bytes + gap_bytes;
    t.out_stride = (size_t)n_panels * LANES + N_STRAY;
    t.panels = line_alloc(t.stride_bytes * (size_t)(n_panels - 1) + bytes);
    t.x.stride = (n_columns + 63) / 64 * 64;
    size_t n = rows * (size_t)t.x.stride;
    t.x.values = line_alloc(n * sizeof(float));
    t.x.q = line_alloc(n);
    t.x.scales = line_alloc(n / GROUP * sizeof(float));
    t.x.minus_sums = line_alloc(n / GROUP * sizeof(int32_t));
    t.out = line_alloc((size_t)n_rows * t.out_stride * sizeof(float));
    t.expected = line_alloc((size_t)n_rows * t.out_stride * sizeof(float));
    return t;
}

static void case_destroy(struct Case *t)
{
    free(t->panels), free(t->x.values), free(t->x.q), free(t->x.scales), free(t->x.minus_sums);
    free(t->out), free(t->expected);
}

/* Every table gives the expected bits and leaves the floats between rows alone, whatever is asked for ahead. */
static void check_case(struct Case *t)
{
    size_t bytes = (size_t)t->n_rows * t->out_stride * sizeof(float);
    for (int32_t r = 0; r < t->n_rows; r++)
        for (int32_t i = 0; i < t->n_panels * LANES; i++) {
            const uint8_t *panel = t->panels + (size_t)(i / LANES) * t->stride_bytes;
            t->expected[(size_t)r * t->out_stride + (size_t)i] =
                (t->format->group ? expect_integers : expect_floats)(t, panel, i % LANES, t->first_row + r);
        }
    const bool leads = hardware_leads;
    FOR_EACH_ISA(kernels)
        for (int led = 0; led < 2; led++) {
            hardware_leads = led;
            memset(t->out, 0xa5, bytes);
            kernels_matmul(kernels, t->format->id)(t->panels, t->stride_bytes, t->n_panels, t->n_columns, &t->x,
                                                   t->first_row, t->n_rows, t->out, t->out_stride);
            for (size_t i = 0; i < bytes / sizeof(float); i++)
                CHECK(bits_of_f32(t->out[i]) == bits_of_f32(t->expected[i]),
                      "%s %s: %d panels of %d columns, row %zu of %d from %d, output %zu is %a, expected %a",
                      t->format->name, kernels->isa, t->n_panels, t->n_columns, i / t->out_stride, t->n_rows,
                      t->first_row, i % t->out_stride, t->out[i], t->expected[i]);
        }
    hardware_leads = leads;
}

static void matmul(enum FormatId first, enum FormatId last)
{
    static const int32_t columns[] = { 1, 31, 32, 33, 40, 96, 576 };
    static const int32_t super_columns[] = { 256, 512, 768, 1024, 1280, 1536, 2304 }; /* for two-level scales */
    for (enum FormatId id = first; id <= last; id++)
        for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++)
            for (int32_t n_rows = 1; n_rows <= TILE_ROWS; n_rows++) {
                int32_t n = formats[id].scale >= SCALE_U8_F16 ? super_columns[i] : columns[i];
                struct Random random = random_named(formats[id].name, n * 10 + n_rows);
                struct Case t = case_create(id, n, n_rows < 3 ? 5 + n_rows : n_rows % 5 + 1, n_rows % 3, n_rows,
                                            n_rows % 2 * LINE_BYTES);
                fill_panels(&t, &random);
                fill_activation(&t, &random);
                check_case(&t);
                hash_bits(t.expected, (size_t)n_rows * t.out_stride * sizeof(float));
                case_destroy(&t);
            }
}

void test_matmul_integers(void) { matmul(FORMAT_Q8, N_FORMATS - 1); }
void test_matmul_floats(void) { matmul(FORMAT_F32, FORMAT_BF16); }

/* Every code times every activation in all four columns of a dot, and the extremes of neighbours against each
   other: where vpmaddubsw saturates (microsoft/onnxruntime#6004) and vpsignb wraps (ggml-org/ggml#1393). */
void test_matmul_saturation(void)
{
    static const int8_t edges[] = { -127, -1, 0, 1, 127 };
    static const uint8_t codes[] = { 0x80, 0x81, 0xff, 0x00, 0x01, 0x7f };
    const int32_t n = 4096;
    for (enum FormatId id = FORMAT_Q8; id < N_FORMATS; id++) {
        struct Case t = case_create(id, n, 1, 0, 1, 0);
        struct Random random = random_named("saturation", (int32_t)id);
        const struct Stretch s = stretch_of(t.format);
        const int32_t values_bytes = s.columns * LANES * t.format->bits / 8;
        fill_panels(&t, &random);
        for (int32_t round = 0; round < 256; round++) {
            fill_activation(&t, &random);
            for (uint8_t *values = t.panels + s.scale_bytes; values < t.panels + t.stride_bytes; values += s.bytes)
                for (int32_t i = 0; i < values_bytes; i++) /* rows 0-7: one code everywhere; 8-15: extremes at random */
                    values[i] = i / 4 % LANES < 8 ? (uint8_t)(round + i / 4 % LANES) : codes[random_below(&random, 6)];
            for (int32_t c = 0; c < n; c++)
                t.x.q[c] = round % 2 ? edges[c / 64 % 5] : (int8_t)(c / GROUP % 255 - 127);
            for (int32_t c = 0; round % 4 == 3 && c < n; c++)
                t.x.q[c] = edges[random_below(&random, 5)];
            for (int32_t g = 0; g < n / GROUP; g++) {
                t.x.minus_sums[g] = 0;
                for (int32_t c = g * GROUP; c < (g + 1) * GROUP; c++)
                    t.x.minus_sums[g] -= t.x.q[c];
            }
            check_case(&t);
        }
        case_destroy(&t);
    }
}

/* Every half and every bfloat16 as a weight times 1; −0 + 0 is +0, and a NaN's payload is nobody's promise. */
void test_widening(void)
{
    for (enum FormatId id = FORMAT_F16; id <= FORMAT_BF16; id++) {
        struct Case t = case_create(id, 1, 0x10000 / LANES, 0, 1, 0);
        for (int32_t i = 0; i < 0x10000; i++)
            memcpy(t.panels + (size_t)(i / LANES) * t.stride_bytes + (size_t)(i % LANES) * 2,
                   (uint16_t[1]){ (uint16_t)i }, 2);
        t.x.values[0] = 1.0f;
        FOR_EACH_ISA(kernels) {
            kernels_matmul(kernels, id)(t.panels, t.stride_bytes, t.n_panels, 1, &t.x, 0, 1, t.out, t.out_stride);
            for (int32_t i = 0; i < 0x10000; i++) {
                float expected = id == FORMAT_F16 ? f32_from_f16((uint16_t)i) : f32_of_bf16((uint16_t)i);
                CHECK(same_bits(t.out[i], expected + 0.0f), "%s %04x widened by %s to %a", t.format->name, (unsigned)i,
                      kernels->isa, t.out[i]);
            }
        }
        case_destroy(&t);
    }
}

/* Two columns are a·b + (c·1 + 0): the adversarial sums of test_fma, and neighbours of each in the other lanes,
   through each table's own fused multiply-add. */
void make_triple(struct Random *random, int32_t kind, float *a, float *b, float *c);

void test_fused(void)
{
    struct Random random = random_named("fused", 0);
    struct Case t = case_create(FORMAT_F32, 2, 1, 0, 1, 0);
    float *c = (float *)t.panels, *a = c + LANES, *x = t.x.values;
    x[0] = 1.0f;
    for (int32_t i = 0; i < 50000; i++) {
        make_triple(&random, i, &a[0], &x[1], &c[0]);
        for (uint32_t row = 1; row < LANES; row++) {
            a[row] = f32_of_bits(bits_of_f32(a[0]) ^ row % 4);
            c[row] = f32_of_bits(bits_of_f32(c[0]) + row - 8);
        }
        FOR_EACH_ISA(kernels) {
            kernels->matmul_f32(t.panels, t.stride_bytes, 1, 2, &t.x, 0, 1, t.out, t.out_stride);
            for (int32_t row = 0; row < LANES; row++) {
                float expected = fmaf(a[row], x[1], c[row] + 0.0f);
                CHECK(same_bits(t.out[row], expected), "%s: %a · %a + %a = %a, expected %a", kernels->isa, a[row], x[1],
                      c[row], t.out[row], expected);
            }
        }
    }
    case_destroy(&t);
}
