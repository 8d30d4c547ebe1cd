/* The blocks of GGUF files: what each kind holds, taken apart into codes without arithmetic on values. */
#include <string.h>

#include "codes.h"

static const int8_t iq4_values[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
static const int8_t mxfp4_values[16] = {
    16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4
}; /* of zero 16 */

static uint16_t u16_at(const uint8_t *p)
{
    uint16_t value;
    memcpy(&value, p, 2);
    return value;
}

/* n bytes hold 2n columns: low nibbles, then high ones. */
static void nibbles(const uint8_t *bytes, int n, uint8_t *q)
{
    for (int i = 0; i < n; i++) {
        q[i] = bytes[i] & 15;
        q[i + n] = bytes[i] >> 4;
    }
}

/* A group whose nibbles are places in a table. */
static void nibble_values(const uint8_t *bytes, const int8_t *values, uint8_t *q)
{
    for (int i = 0; i < GROUP / 2; i++) {
        q[i] = (uint8_t)values[bytes[i] & 15];
        q[i + GROUP / 2] = (uint8_t)values[bytes[i] >> 4];
    }
}

/* Four columns at a time: a product puts bit i of four into byte i. */
static void fifth_bits(const uint8_t *bits, uint8_t *q)
{
    for (int i = 0; i < GROUP; i += 4) {
        uint32_t word, four = bits[i / 8] >> i % 8 & 15;
        memcpy(&word, q + i, 4);
        word |= (four * 0x00204081 & 0x01010101) << 4;
        memcpy(q + i, &word, 4);
    }
}

static void parse_q8_0(const uint8_t *bytes, struct Block *block)
{
    block->scale = u16_at(bytes);
    memcpy(block->q, bytes + 2, GROUP);
}

static void parse_q4_0(const uint8_t *bytes, struct Block *block)
{
    block->scale = u16_at(bytes);
    nibbles(bytes + 2, 16, block->q);
}

static void parse_q4_1(const uint8_t *bytes, struct Block *block)
{
    block->scale = u16_at(bytes);
    block->minimum = u16_at(bytes + 2);
    nibbles(bytes + 4, 16, block->q);
}

static void parse_q5_0(const uint8_t *bytes, struct Block *block)
{
    block->scale = u16_at(bytes);
    nibbles(bytes + 6, 16, block->q);
    fifth_bits(bytes + 2, block->q);
}

static void parse_q5_1(const uint8_t *bytes, struct Block *block)
{
    block->scale = u16_at(bytes);
    block->minimum = u16_at(bytes + 2);
    nibbles(bytes + 8, 16, block->q);
    fifth_bits(bytes + 4, block->q);
}

static void parse_iq4_nl(const uint8_t *bytes, struct Block *block)
{
    block->scale = u16_at(bytes);
    nibble_values(bytes + 2, iq4_values, block->q);
}

/* The scale is 2^(e − 128), a bfloat16; from e = 253 on, 12 times it is no float32, and 255 means NaN. */
static void parse_mxfp4(const uint8_t *bytes, struct Block *block)
{
    uint8_t e = bytes[0];
    block->scale = (uint16_t)(e > 252 ? 0x7f80 : e < 2 ? 0x20 << e : (e - 1) << 7);
    nibble_values(bytes + 1, mxfp4_values, block->q);
}

/* Twelve bytes hold eight scales and eight minima of six bits. */
static void parse_k_scales(const uint8_t *bytes, struct Block *block)
{
    for (int g = 0; g < 4; g++) {
        block->sub_scales[g] = bytes[g] & 63;
        block->sub_minima[g] = bytes[g + 4] & 63;
        block->sub_scales[g + 4] = (uint8_t)((bytes[g + 8] & 15) | bytes[g] >> 6 << 4);
        block->sub_minima[g + 4] = (uint8_t)(bytes[g + 8] >> 4 | bytes[g + 4] >> 6 << 4);
    }
}

static void parse_q4_k(const uint8_t *bytes, struct Block *block)
{
    block->scale = u16_at(bytes);
    block->minimum = u16_at(bytes + 2);
    parse_k_scales(bytes + 4, block);
    for (int i = 0; i < 4; i++)
        nibbles(bytes + 16 + 32 * i, 32, block->q + 64 * i);
}

static void parse_q5_k(const uint8_t *bytes, struct Block *block)
{
    block->scale = u16_at(bytes);
    block->minimum = u16_at(bytes + 2);
    parse_k_scales(bytes + 4, block);
    for (int i = 0; i < 4; i++)
        nibbles(bytes + 48 + 32 * i, 32, block->q + 64 * i);
    for (int g = 0; g < 8; g++)
        for (int i = 0; i < 32; i++)
            block->q[32 * g + i] |= (bytes[16 + i] >> g & 1) << 4;
}

static void parse_q6_k(const uint8_t *bytes, struct Block *block)
{
    memcpy(block->sub_scales, bytes + 192, 16);
    block->scale = u16_at(bytes + 208);
    for (int half = 0; half < 2; half++) {
        const uint8_t *upper = bytes + 128 + 32 * half;
        uint8_t *q = block->q + 128 * half;
        nibbles(bytes + 64 * half, 64, q);
        for (int k = 0; k < 4; k++)
            for (int i = 0; i < 32; i++)
                q[32 * k + i] |= (upper[i] >> 2 * k & 3) << 4;
    }
}

static void parse_q2_k(const uint8_t *bytes, struct Block *block)
{
    for (int g = 0; g < 16; g++) {
        block->sub_scales[g] = bytes[g] & 15;
        block->sub_minima[g] = bytes[g] >> 4;
    }
    block->scale = u16_at(bytes + 80);
    block->minimum = u16_at(bytes + 82);
    for (int g = 0; g < 8; g++)
        for (int i = 0; i < 32; i++)
            block->q[32 * g + i] = bytes[16 + g / 4 * 32 + i] >> g % 4 * 2 & 3;
}

/* Two bits, and a third of weight −4 where the mask has a zero; q6k's zero point makes it 28 + 0..7. */
static void parse_q3_k(const uint8_t *bytes, struct Block *block)
{
    const uint8_t *scales = bytes + 96;
    for (int g = 0; g < 16; g++) {
        int low = scales[g % 8] >> g / 8 * 4 & 15, high = scales[8 + g % 4] >> g / 4 * 2 & 3;
        block->sub_scales[g] = (uint8_t)((low | high << 4) - 32);
    }
    block->scale = u16_at(bytes + 108);
    for (int g = 0; g < 8; g++)
        for (int i = 0; i < 32; i++) {
            int low = bytes[32 + g / 4 * 32 + i] >> g % 4 * 2 & 3, high = bytes[i] >> g & 1;
            block->q[32 * g + i] = (uint8_t)(28 + low + 4 * high);
        }
}

static void parse_iq4_xs(const uint8_t *bytes, struct Block *block)
{
    block->scale = u16_at(bytes);
    uint16_t highs = u16_at(bytes + 2);
    for (int g = 0; g < 8; g++) {
        int low = bytes[4 + g / 2] >> g % 2 * 4 & 15, high = highs >> 2 * g & 3;
        block->sub_scales[g] = (uint8_t)((low | high << 4) - 32);
        nibble_values(bytes + 8 + 16 * g, iq4_values, block->q + 32 * g);
    }
}

static const struct {
    uint16_t columns, bytes;
    enum FormatId format;
    void (*parse)(const uint8_t *bytes, struct Block *block);
} kinds[N_SOURCES] = {
    [SOURCE_F32] = { 1, 4, FORMAT_F32, NULL },
    [SOURCE_F16] = { 1, 2, FORMAT_F16, NULL },
    [SOURCE_BF16] = { 1, 2, FORMAT_BF16, NULL },
    [SOURCE_Q8_0] = { 32, 34, FORMAT_Q8, parse_q8_0 },
    [SOURCE_Q4_0] = { 32, 18, FORMAT_Q4, parse_q4_0 },
    [SOURCE_Q4_1] = { 32, 20, FORMAT_Q4M, parse_q4_1 },
    [SOURCE_Q5_0] = { 32, 22, FORMAT_Q5, parse_q5_0 },
    [SOURCE_Q5_1] = { 32, 24, FORMAT_Q5M, parse_q5_1 },
    [SOURCE_Q2_K] = { 256, 84, FORMAT_Q4K16, parse_q2_k },
    [SOURCE_Q3_K] = { 256, 110, FORMAT_Q6K, parse_q3_k },
    [SOURCE_Q4_K] = { 256, 144, FORMAT_Q4K, parse_q4_k },
    [SOURCE_Q5_K] = { 256, 176, FORMAT_Q5K, parse_q5_k },
    [SOURCE_Q6_K] = { 256, 210, FORMAT_Q6K, parse_q6_k },
    [SOURCE_IQ4_NL] = { 32, 18, FORMAT_Q8, parse_iq4_nl },
    [SOURCE_IQ4_XS] = { 256, 136, FORMAT_Q8K, parse_iq4_xs },
    [SOURCE_MXFP4] = { 32, 17, FORMAT_Q5B, parse_mxfp4 },
};

size_t source_row_bytes(enum SourceKind kind, int32_t n_columns)
{
    return n_columns % kinds[kind].columns ? 0 : (size_t)n_columns / kinds[kind].columns * kinds[kind].bytes;
}

const struct Format *source_format(enum SourceKind kind)
{
    return kinds[kind].parse ? &formats[kinds[kind].format] : NULL;
}

void parse_block(enum SourceKind kind, const uint8_t *bytes, struct Block *block) { kinds[kind].parse(bytes, block); }
