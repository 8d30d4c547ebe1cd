/* Codes as values: those of a file's blocks, and those of a panel. */
#include "codes.h"
#include "../runtime/floats.h"

static float scale_value(enum ScaleType type, uint16_t scale, uint8_t sub)
{
    switch (type) {
    case SCALE_F16: return f32_from_f16(scale);
    case SCALE_BF16: return f32_of_bf16(scale);
    case SCALE_U6_F16:
    case SCALE_U8_F16: return f32_from_f16(scale) * (float)sub;
    case SCALE_I8_F16: return f32_from_f16(scale) * (float)(int8_t)sub;
    default: return 0.0f;
    }
}

/* Products are exact, so that only the addition of a minimum rounds. */
static void block_to_f32(const struct Format *format, const struct Block *block, float *out)
{
    int32_t n = format_scale_columns(format);
    for (int c = 0, g = 0; c < n; g++) {
        float scale = scale_value(format->scale, block->scale, block->sub_scales[g]);
        float minimum = scale_value(format->minimum, block->minimum, block->sub_minima[g]);
        if (format->minimum >= SCALE_U8_F16)
            minimum = -minimum;
        for (int end = c + format->group; c < end; c++) {
            int code = format->bits == 8 ? (int8_t)block->q[c] : block->q[c] - format->zero;
            out[c] = (float)code * scale + minimum;
        }
    }
}

void source_to_f32(enum SourceKind kind, const uint8_t *source, int32_t n_columns, float *out)
{
    const struct Format *format = source_format(kind);
    if (kind == SOURCE_F32) {
        memcpy(out, source, (size_t)n_columns * sizeof *out);
    } else if (!format) {
        for (int32_t c = 0; c < n_columns; c++) {
            uint16_t half;
            memcpy(&half, source + 2 * (size_t)c, 2);
            out[c] = kind == SOURCE_F16 ? f32_of_f16(half) : f32_of_bf16(half);
        }
    } else {
        struct Block block = { 0 };
        int32_t columns = format_scale_columns(format);
        size_t block_bytes = source_row_bytes(kind, columns);
        for (int32_t start = 0; start < n_columns; start += columns, source += block_bytes) {
            parse_block(kind, source, &block);
            block_to_f32(format, &block, out + start);
        }
    }
}

/* The codes of a row's columns from start on that share a 16-bit scale. */
static void panel_to_block(const struct Format *format, const uint8_t *panel, int row, int32_t start,
                           struct Block *block)
{
    const int n = format_scale_columns(format);
    const struct PanelPlace at = format_place(format, start);
    block->scale = ((const uint16_t *)(panel + at.scales))[row];
    block->minimum = format->minimum ? ((const uint16_t *)(panel + at.minima))[row] : 0;
    uint8_t bytes[2 * SIX_BIT_GROUPS * LANES];
    const uint8_t *subs = sub_bytes(format->scale, panel + at.subs, bytes);
    const int n_subs = n == SUPER ? n / format->group : 0;
    for (int g = 0; g < n_subs; g++) {
        block->sub_scales[g] = subs[g * LANES + row];
        block->sub_minima[g] = format->minimum ? subs[(n_subs + g) * LANES + row] : 0;
    }
    const uint8_t *lines = panel + at.lines + row * 4;
    for (int c = 0; c < n; c++)
        block->q[c] = (uint8_t)code_at(format->bits, lines + c / GROUP * format->bits * LINE_BYTES, c % GROUP);
}

void unpack_row(const struct Format *format, const uint8_t *panel, int32_t row, int32_t n_columns, float *out)
{
    if (!format->group) {
        for (int32_t c = 0; c < n_columns; c++) {
            size_t at = (size_t)c * LANES + (size_t)row;
            out[c] = format->id == FORMAT_F32 ? ((const float *)panel)[at]
                : format->id == FORMAT_F16    ? f32_from_f16(((const uint16_t *)panel)[at])
                                              : f32_of_bf16(((const uint16_t *)panel)[at]);
        }
        return;
    }
    struct Block block = { 0 };
    int32_t columns = format_scale_columns(format);
    for (int32_t start = 0; start < n_columns; start += columns) {
        float values[SUPER];
        panel_to_block(format, panel, row, start, &block);
        block_to_f32(format, &block, values);
        memcpy(out + start, values, (size_t)(n_columns - start < columns ? n_columns - start : columns) * sizeof *out);
    }
}
