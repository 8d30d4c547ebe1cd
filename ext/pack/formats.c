/* The table of weight formats and the geometry of a panel; every size in the house comes from here. */
#include "../rillm.h"

const struct Format formats[N_FORMATS] = {
    { "f32", FORMAT_F32, 32, 0, SCALE_NONE, SCALE_NONE, 0 },   { "f16", FORMAT_F16, 16, 0, SCALE_NONE, SCALE_NONE, 0 },
    { "bf16", FORMAT_BF16, 16, 0, SCALE_NONE, SCALE_NONE, 0 }, { "q8", FORMAT_Q8, 8, GROUP, SCALE_F16, SCALE_NONE, 0 },
    { "q4", FORMAT_Q4, 4, GROUP, SCALE_F16, SCALE_NONE, 8 },   { "q4m", FORMAT_Q4M, 4, GROUP, SCALE_F16, SCALE_F16, 0 },
#define FORMAT_K(name, id, bits, group, scale, minimum, zero) { #name, id, bits, group, scale, minimum, zero },
#include "formats_k.inc"
#undef FORMAT_K
};

static size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

int32_t format_scale_columns(const struct Format *format)
{
    return format->scale >= SCALE_U8_F16 ? SUPER : format->group;
}

int32_t format_columns(const struct Format *format, int32_t n_columns)
{
    size_t whole = format->group ? (size_t)format_scale_columns(format) : (size_t)LINE_BYTES * 8 / LANES / format->bits;
    return (int32_t)round_up((size_t)n_columns, whole);
}

struct PanelLayout format_layout(const struct Format *format, int32_t n_columns)
{
    struct PanelLayout at = { 0 };
    int32_t columns = format_columns(format, n_columns);
    if (format->group) {
        bool two_level = format->scale >= SCALE_U8_F16;
        at.n_scales = columns / format_scale_columns(format);
        at.n_sub_scales = two_level ? columns / format->group : 0;
        size_t scales = (size_t)at.n_scales * LANES * sizeof(uint16_t), sub_scales = (size_t)at.n_sub_scales * LANES;
        at.minima = scales;
        at.sub_scales = at.minima + (format->minimum ? scales : 0);
        at.sub_minima = at.sub_scales + sub_scales;
        at.values = round_up(at.sub_minima + (format->minimum ? sub_scales : 0), LINE_BYTES);
    }
    at.n_bytes = at.values + (size_t)columns * LANES * format->bits / 8;
    return at;
}

size_t format_values_offset(const struct Format *format, int32_t n_columns)
{
    return format_layout(format, n_columns).values;
}

size_t format_panel_bytes(const struct Format *format, int32_t n_columns)
{
    return format_layout(format, n_columns).n_bytes;
}
