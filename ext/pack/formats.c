/* The table of weight formats and the geometry of a panel; every size in the house comes from here. */
#include "../rillm.h"

const struct Format formats[N_FORMATS] = {
    { "f32", FORMAT_F32, 32, 0, SCALE_NONE, SCALE_NONE, 0 },   { "f16", FORMAT_F16, 16, 0, SCALE_NONE, SCALE_NONE, 0 },
    { "bf16", FORMAT_BF16, 16, 0, SCALE_NONE, SCALE_NONE, 0 }, { "q8", FORMAT_Q8, 8, GROUP, SCALE_F16, SCALE_NONE, 0 },
    { "q4", FORMAT_Q4, 4, GROUP, SCALE_F16, SCALE_NONE, 8 },   { "q4m", FORMAT_Q4M, 4, GROUP, SCALE_F16, SCALE_F16, 0 },
};

static size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

int32_t format_columns(const struct Format *format, int32_t n_columns)
{
    size_t whole = format->group ? format->group : (size_t)LINE_BYTES * 8 / LANES / format->bits;
    return (int32_t)round_up((size_t)n_columns, whole);
}

size_t format_values_offset(const struct Format *format, int32_t n_columns)
{
    if (!format->group)
        return 0;
    size_t n_groups = (size_t)format_columns(format, n_columns) / format->group;
    size_t entries = (format->scale != SCALE_NONE) + (format->minimum != SCALE_NONE);
    return round_up(n_groups * LANES * sizeof(uint16_t) * entries, LINE_BYTES);
}

size_t format_panel_bytes(const struct Format *format, int32_t n_columns)
{
    size_t values = (size_t)format_columns(format, n_columns) * LANES * format->bits / 8;
    return format_values_offset(format, n_columns) + values;
}

size_t source_row_bytes(enum SourceKind kind, int32_t n_columns)
{
    static const struct {
        uint8_t columns, bytes;
    } blocks[N_SOURCES] = {
        { 1, 4 }, { 1, 2 }, { 1, 2 }, { 32, 34 }, { 32, 18 }, { 32, 20 },
    };
    return n_columns % blocks[kind].columns ? 0 : (size_t)n_columns / blocks[kind].columns * blocks[kind].bytes;
}
