/* Codes as values: those of a file's blocks, and those of a panel. */
#include "codes.h"
#include "../runtime/floats.h"

static float scale_value(enum ScaleType type, uint16_t scale, uint8_t sub)
{
    switch (type) {
    case SCALE_F16: return f32_from_f16(scale);
    case SCALE_BF16: return f32_of_bf16(scale);
    case SCALE_U8_F16: return f32_from_f16(scale) * (float)sub;
    case SCALE_I8_F16: return f32_from_f16(scale) * (float)(int8_t)sub;
    default: return 0.0f;
    }
}

/* n columns that share a 16-bit scale. Products are exact, so that only the addition of a minimum rounds. */
static void codes_to_f32(const struct Format *format, struct Codes codes, int n, float *out)
{
    for (int c = 0, g = 0; c < n; g++) {
        float scale = scale_value(format->scale, codes.scales[0], codes.sub_scales[g]);
        float minimum = scale_value(format->minimum, codes.minima[0], codes.sub_minima[g]);
        if (format->minimum == SCALE_U8_F16)
            minimum = -minimum;
        for (int end = c + format->group; c < end; c++) {
            int code = format->bits == 8 ? (int8_t)codes.q[c] : codes.q[c] - format->zero;
            out[c] = (float)code * scale + minimum;
        }
    }
}

/* The codes of columns that share a 16-bit scale. */
struct Room {
    uint16_t scale, minimum;
    uint8_t sub_scales[SUPER / 16], sub_minima[SUPER / 16], q[SUPER];
};

static struct Codes codes_in(struct Room *room)
{
    return (struct Codes){ &room->scale, &room->minimum, room->sub_scales, room->sub_minima, room->q };
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
            out[c] = kind == SOURCE_F16 ? f32_from_f16(half) : f32_of_bf16(half);
        }
    } else {
        struct Room room = { 0 };
        int32_t columns = format_scale_columns(format);
        size_t block_bytes = source_row_bytes(kind, columns);
        for (int32_t start = 0; start < n_columns; start += columns, source += block_bytes) {
            parse_blocks(kind, source, columns, codes_in(&room));
            codes_to_f32(format, codes_in(&room), columns, out + start);
        }
    }
}

/* The codes of columns start .. start + n of a row, n that share a 16-bit scale. */
static void panel_to_codes(const struct Format *format, const uint8_t *panel, int row, struct PanelLayout at,
                           int32_t start, int n, struct Codes codes)
{
    const uint16_t *scales = (const uint16_t *)panel, *minima = (const uint16_t *)(panel + at.minima);
    codes.scales[0] = scales[start / n * LANES + row];
    codes.minima[0] = format->minimum ? minima[start / n * LANES + row] : 0;
    for (int32_t g = 0; at.n_sub_scales && g < n / format->group; g++) {
        size_t i = (size_t)((start / format->group + g) * LANES + row);
        codes.sub_scales[g] = panel[at.sub_scales + i];
        codes.sub_minima[g] = format->minimum ? panel[at.sub_minima + i] : 0;
    }
    const uint8_t *lines = panel + at.values + (size_t)(start / GROUP * format->bits * LINE_BYTES + row * 4);
    for (int c = 0; c < n; c++)
        codes.q[c] = (uint8_t)code_at(format->bits, lines + c / GROUP * format->bits * LINE_BYTES, c % GROUP);
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
    struct PanelLayout at = format_layout(format, n_columns);
    struct Room room = { 0 };
    int32_t columns = format_scale_columns(format);
    for (int32_t start = 0; start < n_columns; start += columns) {
        float values[SUPER];
        panel_to_codes(format, panel, row, at, start, columns, codes_in(&room));
        codes_to_f32(format, codes_in(&room), columns, values);
        memcpy(out + start, values, (size_t)(n_columns - start < columns ? n_columns - start : columns) * sizeof *out);
    }
}
