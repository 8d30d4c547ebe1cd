/* Rows of a file's tensor into panels of a format, 16 rows at a time and a few columns of each, so that a panel is
   written once and in order: codes where the format is the file's own, else by way of floats. */
#include "codes.h"
#include "../runtime/floats.h"

#define FOR_ROWS for (int r = 0; r < LANES; r++)

/* Where the rows of a panel start in the source; NULL: a row of zeros. */
struct Rows { const uint8_t *start[LANES]; };

/* 32 columns of 16 rows, from word `first` on, into their lines; code_at finds the codes again. */
static void words_to_lines(int bits, const struct Words *words, int first, uint8_t *lines)
{
    const uint32_t nibble = 0x0f0f0f0f;
    const uint32_t (*word)[LANES] = words->word + first;
    uint32_t line[LANES];
    if (bits == 8) {
        memcpy(lines, word, GROUP / 4 * sizeof *word);
        return;
    }
    for (int i = 0; i < GROUP / 4; i += 2, lines += LINE_BYTES) {
        FOR_ROWS line[r] = (word[i][r] & nibble) | (word[i + 1][r] & nibble) << 4;
        memcpy(lines, line, sizeof line);
    }
    const int n_upper = bits - 4;
    for (int i = 0; n_upper && i < GROUP / 4; lines += LINE_BYTES) {
        memset(line, 0, sizeof line);
        for (int bit = 0; bit < 8; bit += n_upper, i++)
            FOR_ROWS line[r] |= (word[i][r] >> 4 & nibble) << bit;
        memcpy(lines, line, sizeof line);
    }
}

/* The columns of group g of each block, turned from rows of bytes to columns of words. */
static void group_of_blocks(const struct Block *blocks /* [16] */, int g, struct Words *words)
{
    FOR_ROWS
    {
        uint32_t row[GROUP / 4];
        memcpy(row, blocks[r].q + g * GROUP, GROUP);
        for (int i = 0; i < GROUP / 4; i++)
            words->word[i][r] = row[i];
    }
}

static bool is_finite_scale(const struct Format *format, const struct Block *block)
{
    const uint16_t infinity = format->scale == SCALE_BF16 ? 0x7f80 : 0x7c00;
    return (block->scale & infinity) != infinity && !(format->minimum && (block->minimum & infinity) == infinity);
}

/* Bytes [n, 16] into the stretch's room for them. */
static void put_sub_scales(const struct Format *format, const uint8_t *scales, const uint8_t *minima, uint8_t *subs)
{
    const size_t n = format->scale >= SCALE_U8_F16 ? (size_t)(SUPER / format->group * LANES) : 0;
    if (format->scale != SCALE_U6_F16) {
        memcpy(subs, scales, n);
        memcpy(subs + n, minima, format->minimum ? n : 0);
        return;
    }
    for (int i = 0; i < 2 * 64; i++)
        subs[i] = (uint8_t)((scales[i] & 15) | minima[i] << 4);
    for (int i = 0; i < 64; i++) {
        const int of_group = scales[i] >> 4 | minima[i] >> 4 << 2,
                  of_fourth_next = scales[64 + i] >> 4 | minima[64 + i] >> 4 << 2;
        subs[2 * 64 + i] = (uint8_t)(of_group | of_fourth_next << 4);
    }
}

/* Block i of each row, and the lines of its groups. */
static void blocks_to_panel(const struct Format *format, const struct Block *blocks /* [16] */, int32_t i,
                            uint8_t *panel)
{
    const int n_columns = format_scale_columns(format), n_subs = n_columns == SUPER ? SUPER / format->group : 0;
    const struct PanelPlace at = format_place(format, i * n_columns);
    uint16_t *scales = (uint16_t *)(panel + at.scales), *minima = (uint16_t *)(panel + at.minima);
    FOR_ROWS scales[r] = blocks[r].scale;
    if (format->minimum)
        FOR_ROWS minima[r] = blocks[r].minimum;
    uint8_t sub_scales[SUPER / 16 * LANES], sub_minima[SUPER / 16 * LANES];
    for (int s = 0; s < n_subs; s++) {
        FOR_ROWS sub_scales[s * LANES + r] = blocks[r].sub_scales[s];
        FOR_ROWS sub_minima[s * LANES + r] = blocks[r].sub_minima[s];
    }
    put_sub_scales(format, sub_scales, sub_minima, panel + at.subs);
    uint8_t *lines = panel + at.lines;
    for (int g = 0; g < n_columns / GROUP; g++, lines += format->bits * LINE_BYTES) {
        struct Words words;
        group_of_blocks(blocks, g, &words);
        words_to_lines(format->bits, &words, 0, lines);
    }
}

static bool pack_codes(const struct PackJob *job, struct Rows rows, uint8_t *panel)
{
    struct Block blocks[LANES] = { 0 };
    const int32_t block_columns = format_scale_columns(job->format);
    const size_t block_bytes = source_row_bytes(job->kind, block_columns);
    for (int32_t i = 0; i * block_columns < job->n_columns; i++) {
        FOR_ROWS
        {
            if (!rows.start[r])
                continue;
            parse_block(job->kind, rows.start[r] + (size_t)i * block_bytes, &blocks[r]);
            if (!is_finite_scale(job->format, &blocks[r]))
                return false;
        }
        blocks_to_panel(job->format, blocks, i, panel);
    }
    return true;
}

/* Columns from start on of each row, [16, SUPER], turned to a group's [column][row]. */
static void group_of_floats(const float (*floats)[SUPER], int start, int n_columns, struct FloatGroup *group)
{
    group->n_columns = n_columns;
    for (int c = 0; c < group->n_columns; c++)
        FOR_ROWS group->x[c][r] = floats[r][start + c];
}

static bool quantize_to_panel(const struct Format *format, const struct FloatGroup *group, const struct Rows *rows,
                              int32_t column, uint8_t *panel)
{
    const struct PanelPlace at = format_place(format, column);
    uint16_t scales[LANES], minima[LANES];
    struct Words words;
    if (!quantize_group(format, group, scales, minima, &words))
        return false;
    FOR_ROWS
    {
        if (rows->start[r])
            continue;
        scales[r] = minima[r] = 0;
        for (int i = 0; i < format->group / 4; i++)
            words.word[i][r] = 0;
    }
    memcpy(panel + at.scales, scales, sizeof scales);
    if (format->minimum)
        memcpy(panel + at.minima, minima, sizeof minima);
    for (int c = 0; c < format->group; c += GROUP)
        words_to_lines(format->bits, &words, c / 4, panel + at.lines + c / GROUP * format->bits * LINE_BYTES);
    return true;
}

/* Some formats are made of any source, the others only of the blocks that they hold. */
static bool is_made_of(const struct Format *format, enum SourceKind kind)
{
    return format_takes_floats(format) || source_format(kind) == format;
}

/* The columns of a group as halves; false if one became infinite. */
static bool halves_to_panel(const struct Format *format, const struct FloatGroup *group, uint16_t *column)
{
    const bool is_f16 = format->id == FORMAT_F16;
    const uint16_t infinity = is_f16 ? 0x7c00 : 0x7f80;
    uint16_t half[LANES], infinite[LANES] = { 0 }, any = 0;
    for (int c = 0; c < group->n_columns; c++, column += LANES) {
        const float *x = group->x[c];
        if (is_f16)
            FOR_ROWS half[r] = f16_of_f32(x[r]);
        else
            FOR_ROWS half[r] = bf16_of_f32(x[r]);
        FOR_ROWS infinite[r] |= (half[r] & infinity) == infinity;
        memcpy(column, half, sizeof half);
    }
    FOR_ROWS any |= infinite[r];
    return !any;
}

static bool floats_to_panel(const struct Format *format, const struct FloatGroup *group, int32_t column, uint8_t *panel)
{
    const size_t at = (size_t)column * LANES;
    float zero[LANES] = { 0 }, sum = 0.0f;
    for (int c = 0; c < group->n_columns; c++)
        FOR_ROWS zero[r] += group->x[c][r] - group->x[c][r];
    FOR_ROWS sum += zero[r];
    if (sum != 0.0f)
        return false;
    if (format->id != FORMAT_F32)
        return halves_to_panel(format, group, (uint16_t *)panel + at);
    memcpy((float *)panel + at, group->x, (size_t)group->n_columns * sizeof group->x[0]);
    return true;
}

static bool pack_floats(const struct PackJob *job, struct Rows rows, uint8_t *panel)
{
    float floats[LANES][SUPER] = { 0 };
    struct FloatGroup group;
    const int columns = job->format->group ? job->format->group : GROUP;
    bool fits = true;
    for (int32_t start = 0; start < job->n_columns && fits; start += SUPER) {
        int n = job->n_columns - start < SUPER ? job->n_columns - start : SUPER;
        FOR_ROWS if (rows.start[r])
        {
            source_to_f32(job->kind, rows.start[r], n, floats[r]);
            rows.start[r] += source_row_bytes(job->kind, n);
        }
        for (int c = 0; c < n && fits; c += columns) {
            group_of_floats(floats, c, n - c < columns ? n - c : columns, &group);
            fits = job->format->group ? quantize_to_panel(job->format, &group, &rows, start + c, panel)
                                      : floats_to_panel(job->format, &group, start + c, panel);
        }
    }
    return fits;
}

/* What no code and no float will fill: behind the scales of a stretch, and behind the last column. */
static void clear_padding(const struct Format *format, int32_t n_columns, uint8_t *panel)
{
    memset(panel + format_panel_bytes(format, n_columns) - LINE_BYTES, 0, LINE_BYTES);
    for (int32_t c = 0; format->group && c < n_columns; c += format_stretch_columns(format))
        memset(panel + format_place(format, c).scales, 0, format_scale_bytes(format));
}

bool pack_panels(const struct PackJob *job)
{
    if (!is_made_of(job->format, job->kind))
        return false;
    const size_t row_bytes = source_row_bytes(job->kind, job->n_columns);
    const bool keeps_codes = source_format(job->kind) == job->format;
    struct FloatEnvironment previous = floats_enter();
    bool fits = true;
    for (int32_t p = 0; p < job->n_panels && fits; p++) {
        uint8_t *panel = job->panels + (size_t)p * job->stride_bytes;
        struct Rows rows;
        FOR_ROWS
        {
            int32_t row = job->rows[p * LANES + r];
            rows.start[r] = row < 0 ? NULL : job->source + (size_t)row * row_bytes;
        }
        clear_padding(job->format, job->n_columns, panel);
        fits = keeps_codes ? pack_codes(job, rows, panel) : pack_floats(job, rows, panel);
    }
    floats_leave(previous);
    return fits;
}
