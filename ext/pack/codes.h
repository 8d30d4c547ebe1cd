/* A row of an integer format before it is laid into a panel: codes with their scales. */
#ifndef RILLM_CODES_H
#define RILLM_CODES_H

#include "../rillm.h"

struct Codes {
    uint16_t *scales, *minima;         /* [n_scales] */
    uint8_t *sub_scales, *sub_minima;  /* [n_groups], of two-level scales */
    uint8_t *q;                        /* [n_columns], as stored: int8 for 8 bits, else 0 .. 2^bits − 1 */
};
/* Encodes floats as q8, q4 or q4m; false when a value is not finite, a scale does not fit f16, or the format is another. */
bool quantize_row(const struct Format *format, const float *x, int32_t n_columns, struct Codes codes);
/* The format that holds a kind of block exactly, or NULL: it is floats. */
const struct Format *source_format(enum SourceKind kind);
/* Takes the codes of whole blocks over as they are, for that format. */
void parse_blocks(enum SourceKind kind, const uint8_t *blocks, int32_t n_columns, struct Codes codes);

/* The code of a column 0..31 as stored, in the lines of its group; a row's bytes start at lines. */
static inline int code_at(int bits, const uint8_t *lines, int column)
{
    lines += column % 4;
    if (bits == 8)
        return (int8_t)lines[column / 4 * LINE_BYTES];
    int nibble = lines[column / 8 * LINE_BYTES] >> (column / 4 % 2 * 4) & 15;
    if (bits == 4)
        return nibble;
    int n_upper = bits - 4, bit = column / 4 * n_upper;
    int upper = lines[(4 + bit / 8) * LINE_BYTES] >> bit % 8 & ((1 << n_upper) - 1);
    return nibble | upper << 4;
}

#endif
