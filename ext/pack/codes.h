/* Rows of an integer format before they are laid into a panel: codes with their scales. */
#ifndef RILLM_CODES_H
#define RILLM_CODES_H

#include "../rillm.h"

/* The columns of a row that share a 16-bit scale: format_scale_columns of them. */
struct Block {
    uint16_t scale, minimum;
    uint8_t sub_scales[SUPER / 16], sub_minima[SUPER / 16];  /* [n_groups], of two-level scales */
    uint8_t q[SUPER];                                        /* as stored: int8 for 8 bits, else 0 .. 2^bits − 1 */
};

enum { GROUP_AT_MOST = 64, SIX_BIT_GROUPS = SUPER / GROUP };

/* Sub-scales of six bits as those of eight lie: [8, 16] scales, then [8, 16] minima. */
static inline void six_bits_to_bytes(const uint8_t *six /* [192] */, uint8_t *bytes /* [256] */)
{
    for (int i = 0; i < 64; i++) {
        const uint8_t upper = six[128 + i];
        bytes[i] = (uint8_t)((six[i] & 15) | (upper << 4 & 48));
        bytes[64 + i] = (uint8_t)((six[64 + i] & 15) | (upper & 48));
        bytes[128 + i] = (uint8_t)(six[i] >> 4 | (upper << 2 & 48));
        bytes[192 + i] = (uint8_t)(six[64 + i] >> 4 | (upper >> 2 & 48));
    }
}

/* The sub-scales of a stretch in bytes, scales then minima: its own, or those of six bits in the room given. */
static inline const uint8_t *sub_bytes(enum ScaleType type, const uint8_t *subs,
                                       uint8_t *room /* [2, SIX_BIT_GROUPS, 16] */)
{
    if (type != SCALE_U6_F16)
        return subs;
    six_bits_to_bytes(subs, room);
    return room;
}

/* A group of 16 rows as codes: of word i and row r, a byte each, columns 4i .. 4i + 3. */
struct Words { uint32_t word[GROUP_AT_MOST / 4][LANES]; };

/* A group of 16 rows of floats, x[column][row]; columns from n_columns on are not read. */
struct FloatGroup {
    float x[GROUP_AT_MOST][LANES];
    int n_columns;
};
/* Encodes floats in a format that takes them, each row on its own; false when a value is not finite, a scale does not
   fit f16, or the format is another. */
bool quantize_group(const struct Format *format, const struct FloatGroup *group, uint16_t *scales /* [16] */,
                    uint16_t *minima /* [16] */, struct Words *words);
/* The format that holds a kind of block exactly, or NULL: it is floats. */
const struct Format *source_format(enum SourceKind kind);
/* Takes the codes of a block of a file over as they are, for that format. */
void parse_block(enum SourceKind kind, const uint8_t *bytes, struct Block *block);

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
