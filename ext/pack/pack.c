/* Rows of a file's tensor into panels of a format, and back: conversions here, arithmetic in quantize.c. */
#include <stdlib.h>

#include "quantize.h"
#include "../runtime/floats.h"

static float code_value(const struct Format *format, uint8_t code)
{
    return format->bits == 8 ? (float)(int8_t)code : (float)((int)code - format->zero);
}

static const struct Format *native_format(enum SourceKind kind)
{
    switch (kind) {
    case SOURCE_Q8_0: return &formats[FORMAT_Q8];
    case SOURCE_Q4_0: return &formats[FORMAT_Q4];
    case SOURCE_Q4_1: return &formats[FORMAT_Q4M];
    default: return NULL;
    }
}

void source_to_f32(enum SourceKind kind, const uint8_t *source, int32_t n_columns, float *out)
{
    if (kind == SOURCE_F32) {
        memcpy(out, source, (size_t)n_columns * sizeof *out);
    } else if (!native_format(kind)) {
        for (int32_t c = 0; c < n_columns; c++) {
            uint16_t half;
            memcpy(&half, source + 2 * (size_t)c, 2);
            out[c] = kind == SOURCE_F16 ? f32_from_f16(half) : f32_of_bf16(half);
        }
    } else {
        size_t block_bytes = source_row_bytes(kind, GROUP);
        for (int32_t start = 0; start < n_columns; start += GROUP, source += block_bytes) {
            uint16_t scale, minimum;
            uint8_t q[GROUP];
            repack_row(kind, source, GROUP, (struct Codes){ &scale, &minimum, q });
            for (int i = 0; i < GROUP; i++)
                out[start + i] = code_value(native_format(kind), q[i]) * f32_from_f16(scale) + f32_from_f16(minimum);
        }
    }
}

static uint16_t bf16_from_f32(float value)
{
    uint32_t bits = bits_of_f32(value);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static bool float_row_to_panel(const struct Format *format, const float *x, int32_t n_columns, uint8_t *panel, int row)
{
    for (int32_t c = 0; c < n_columns; c++) {
        size_t at = (size_t)c * LANES + (size_t)row;
        if (!(x[c] - x[c] == 0.0f))
            return false;
        if (format->id == FORMAT_F32) {
            ((float *)panel)[at] = x[c];
            continue;
        }
        uint16_t half = format->id == FORMAT_F16 ? f16_from_f32(x[c]) : bf16_from_f32(x[c]);
        float stored = format->id == FORMAT_F16 ? f32_from_f16(half) : f32_of_bf16(half);
        if (!(stored - stored == 0.0f))
            return false;
        ((uint16_t *)panel)[at] = half;
    }
    return true;
}

static void codes_to_panel(const struct Format *format, struct Codes codes, int32_t n_columns, uint8_t *panel, int row)
{
    int32_t n_groups = format_columns(format, n_columns) / GROUP;
    uint16_t *scales = (uint16_t *)panel, *minima = scales + n_groups * LANES;
    uint8_t *values = panel + format_values_offset(format, n_columns);
    for (int32_t g = 0; g < n_groups; g++) {
        scales[g * LANES + row] = codes.scales[g];
        if (format->minimum)
            minima[g * LANES + row] = codes.minima[g];
    }
    if (format->bits == 8) {
        for (int32_t c = 0; c < n_groups * GROUP; c++)
            values[(size_t)(c / 4) * LINE_BYTES + (size_t)row * 4 + c % 4] = codes.q[c];
    } else {
        for (int32_t c = 0; c < n_groups * GROUP; c += 8)
            for (int k = 0; k < 4; k++)
                values[(size_t)(c / 8) * LINE_BYTES + (size_t)row * 4 + k] =
                    (uint8_t)(codes.q[c + k] | codes.q[c + k + 4] << 4);
    }
}

static bool pack_row(const struct PackJob *job, const uint8_t *source, float *floats, struct Codes codes,
                     uint8_t *panel, int row)
{
    const struct Format *format = job->format;
    if (is_lossless(format, job->kind)) {
        repack_row(job->kind, source, job->n_columns, codes);
        for (int32_t g = 0; g < job->n_columns / GROUP; g++)
            if ((codes.scales[g] & 0x7c00) == 0x7c00 || (codes.minima[g] & 0x7c00) == 0x7c00)
                return false;
    } else {
        source_to_f32(job->kind, source, job->n_columns, floats);
        if (!format->group)
            return float_row_to_panel(format, floats, job->n_columns, panel, row);
        if (!quantize_row(format, floats, job->n_columns, codes))
            return false;
    }
    codes_to_panel(format, codes, job->n_columns, panel, row);
    return true;
}

bool pack_panels(const struct PackJob *job)
{
    size_t columns = (size_t)(job->n_columns + GROUP - 1) / GROUP * GROUP, n_groups = columns / GROUP;
    size_t panel_bytes = format_panel_bytes(job->format, job->n_columns);
    size_t row_bytes = source_row_bytes(job->kind, job->n_columns);
    uint8_t *scratch = malloc(columns * (sizeof(float) + 1) + n_groups * 2 * sizeof(uint16_t));
    if (!scratch)
        return false;
    float *floats = (float *)scratch;
    uint16_t *scales = (uint16_t *)(floats + columns);
    struct Codes codes = { scales, scales + n_groups, (uint8_t *)(scales + 2 * n_groups) };
    struct FloatEnvironment previous = floats_enter();
    bool fits = true;
    for (int32_t p = 0; p < job->n_panels && fits; p++) {
        uint8_t *panel = job->panels + (size_t)p * job->stride_bytes;
        memset(panel, 0, panel_bytes);
        for (int row = 0; row < LANES && fits; row++) {
            int32_t source_row = job->rows[p * LANES + row];
            if (source_row >= 0)
                fits = pack_row(job, job->source + (size_t)source_row * row_bytes, floats, codes, panel, row);
        }
    }
    floats_leave(previous);
    free(scratch);
    return fits;
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
    int32_t n_groups = format_columns(format, n_columns) / GROUP;
    const uint16_t *scales = (const uint16_t *)panel, *minima = scales + n_groups * LANES;
    const uint8_t *values = panel + format_values_offset(format, n_columns);
    for (int32_t c = 0; c < n_columns; c++) {
        float scale = f32_from_f16(scales[c / GROUP * LANES + row]);
        float minimum = format->minimum ? f32_from_f16(minima[c / GROUP * LANES + row]) : 0.0f;
        uint8_t code;
        if (format->bits == 8)
            code = values[(size_t)(c / 4) * LINE_BYTES + (size_t)row * 4 + c % 4];
        else
            code = values[(size_t)(c / 8) * LINE_BYTES + (size_t)row * 4 + c % 4] >> (c % 8 < 4 ? 0 : 4) & 15;
        out[c] = code_value(format, code) * scale + minimum;
    }
}
