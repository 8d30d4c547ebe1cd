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

static bool is_two_level(const struct Format *format) { return format->scale >= SCALE_U8_F16; }

int32_t format_scale_columns(const struct Format *format) { return is_two_level(format) ? SUPER : format->group; }

int32_t format_columns(const struct Format *format, int32_t n_columns)
{
    const int32_t whole = format->group ? format_scale_columns(format) : format_stretch_columns(format);
    return (int32_t)round_up((size_t)n_columns, (size_t)whole);
}

int32_t format_stretch_columns(const struct Format *format)
{
    if (!format->group)
        return LINE_BYTES * 8 / LANES / format->bits;
    return is_two_level(format) ? SUPER : format->minimum ? format->group : 2 * format->group;
}

/* Before the bytes of two-level scales: the f16 of a stretch. */
static size_t half_bytes(const struct Format *format)
{
    return (size_t)(format_stretch_columns(format) / format_scale_columns(format)) * LANES * sizeof(uint16_t);
}

size_t format_scale_bytes(const struct Format *format)
{
    if (!format->group)
        return 0;
    const size_t sub_bits = format->scale == SCALE_U6_F16 ? 6 : is_two_level(format) ? 8 : 0;
    const size_t bytes = half_bytes(format) + (size_t)(SUPER / format->group * LANES) * sub_bits / 8;
    return round_up(format->minimum ? 2 * bytes : bytes, LINE_BYTES);
}

static size_t value_bytes(const struct Format *format, int32_t n_columns)
{
    return (size_t)n_columns * LANES * format->bits / 8;
}

struct PanelPlace format_place(const struct Format *format, int32_t column)
{
    const int32_t columns = format_stretch_columns(format), within = column % columns;
    const size_t start = (size_t)(column / columns) * (format_scale_bytes(format) + value_bytes(format, columns));
    const size_t halves = half_bytes(format);
    struct PanelPlace place;
    place.scales = start + (size_t)(within / format_scale_columns(format)) * LANES * sizeof(uint16_t);
    place.minima = place.scales + halves;
    place.subs = start + halves * (format->minimum ? 2 : 1);
    place.lines = start + format_scale_bytes(format) + value_bytes(format, within / GROUP * GROUP);
    return place;
}

size_t format_panel_bytes(const struct Format *format, int32_t n_columns)
{
    const int32_t columns = format_columns(format, n_columns), stretch = format_stretch_columns(format);
    return (size_t)((columns + stretch - 1) / stretch) * format_scale_bytes(format) + value_bytes(format, columns);
}

bool format_takes_floats(const struct Format *format)
{
    return !format->group || (format->scale == SCALE_F16 && (format->bits == 8 || format->bits == 4));
}
