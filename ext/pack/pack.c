/* Rows of a file's tensor into panels of a format: codes where the format is the file's own, else by way of floats. */
#include <stdlib.h>

#include "codes.h"
#include "../runtime/floats.h"

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

static void put(uint8_t *lines, uint32_t word) { memcpy(lines, &word, sizeof word); }

/* A group of one row, four columns a word, into the row's word of each line; code_at finds them again. */
static void group_to_lines(int bits, const uint8_t *q, uint8_t *lines)
{
    const uint32_t nibble = 0x0f0f0f0f;
    uint32_t words[GROUP / 4];
    memcpy(words, q, GROUP);
    if (bits == 8) {
        for (int i = 0; i < GROUP / 4; i++, lines += LINE_BYTES)
            put(lines, words[i]);
        return;
    }
    for (int i = 0; i < GROUP / 4; i += 2, lines += LINE_BYTES)
        put(lines, (words[i] & nibble) | (words[i + 1] & nibble) << 4);
    const int n_upper = bits - 4;
    for (int i = 0; n_upper && i < GROUP / 4; lines += LINE_BYTES) {
        uint32_t upper = 0;
        for (int bit = 0; bit < 8; bit += n_upper)
            upper |= (words[i++] >> 4 & nibble) << bit;
        put(lines, upper);
    }
}

static void codes_to_panel(const struct Format *format, struct Codes codes, int32_t n_columns, uint8_t *panel, int row)
{
    struct PanelLayout at = format_layout(format, n_columns);
    uint16_t *scales = (uint16_t *)panel, *minima = (uint16_t *)(panel + at.minima);
    for (int32_t i = 0; i < at.n_scales; i++) {
        scales[i * LANES + row] = codes.scales[i];
        if (format->minimum)
            minima[i * LANES + row] = codes.minima[i];
    }
    for (int32_t g = 0; g < at.n_sub_scales; g++) {
        panel[at.sub_scales + (size_t)(g * LANES + row)] = codes.sub_scales[g];
        if (format->minimum)
            panel[at.sub_minima + (size_t)(g * LANES + row)] = codes.sub_minima[g];
    }
    uint8_t *lines = panel + at.values + row * 4;
    for (int32_t g = 0; g < format_columns(format, n_columns) / GROUP; g++, lines += format->bits * LINE_BYTES)
        group_to_lines(format->bits, codes.q + g * GROUP, lines);
}

static bool scales_are_finite(const struct Format *format, struct Codes codes, int32_t n_scales)
{
    const uint16_t infinity = format->scale == SCALE_BF16 ? 0x7f80 : 0x7c00;
    for (int32_t i = 0; i < n_scales; i++)
        if ((codes.scales[i] & infinity) == infinity || (format->minimum && (codes.minima[i] & infinity) == infinity))
            return false;
    return true;
}

static bool pack_row(const struct PackJob *job, const uint8_t *source, float *floats, struct Codes codes,
                     uint8_t *panel, int row)
{
    const struct Format *format = job->format;
    if (source_format(job->kind) == format) {
        parse_blocks(job->kind, source, job->n_columns, codes);
        if (!scales_are_finite(format, codes, job->n_columns / format_scale_columns(format)))
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

/* Floats and q8, q4, q4m are made of any source; other formats only of the blocks that they hold. */
static bool is_made_of(const struct Format *format, enum SourceKind kind)
{
    return format->id <= FORMAT_Q4M || source_format(kind) == format;
}

bool pack_panels(const struct PackJob *job)
{
    if (!is_made_of(job->format, job->kind))
        return false;
    const size_t columns = (size_t)(job->n_columns + GROUP - 1) / GROUP * GROUP;
    const size_t n_scales = columns / GROUP, n_groups = columns / 16;   /* at most */
    size_t panel_bytes = format_panel_bytes(job->format, job->n_columns);
    size_t row_bytes = source_row_bytes(job->kind, job->n_columns);
    float *floats = malloc(columns * (sizeof(float) + 1) + 2 * n_scales * sizeof(uint16_t) + 2 * n_groups);
    if (!floats)
        return false;
    uint16_t *scales = (uint16_t *)(floats + columns);
    uint8_t *subs = (uint8_t *)(scales + 2 * n_scales);
    struct Codes codes = { scales, scales + n_scales, subs, subs + n_groups, subs + 2 * n_groups };
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
    free(floats);
    return fits;
}
