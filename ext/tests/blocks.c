/* Random blocks of every kind that GGUF files hold: any codes and bytes of scales, 16-bit scales as asked. */
#include "tests.h"

/* clang-format off */
const struct BlockKind block_kinds[N_SOURCES] = {
    [SOURCE_Q8_0] = { FORMAT_Q8, 32, 34, 0, -1, 74.0f, 0 },
    [SOURCE_Q4_0] = { FORMAT_Q4, 32, 18, 0, -1, 4.6f, 0 },
    [SOURCE_Q4_1] = { FORMAT_Q4M, 32, 20, 0, 2, 4.6f, -7.5f },
    [SOURCE_Q5_0] = { FORMAT_Q5, 32, 22, 0, -1, 9.2f, 0 },
    [SOURCE_Q5_1] = { FORMAT_Q5M, 32, 24, 0, 2, 9.2f, -15.5f },
    [SOURCE_Q2_K] = { FORMAT_Q4K16, 256, 84, 80, 82, 14.0f, 1.5f },
    [SOURCE_Q3_K] = { FORMAT_Q6K, 256, 110, 108, -1, 42.0f, 0 },
    [SOURCE_Q4_K] = { FORMAT_Q4K, 256, 144, 0, 2, 258.0f, 7.5f },
    [SOURCE_Q5_K] = { FORMAT_Q5K, 256, 176, 0, 2, 526.0f, 15.5f },
    [SOURCE_Q6_K] = { FORMAT_Q6K, 256, 210, 208, -1, 1366.0f, 0 },
    [SOURCE_IQ4_NL] = { FORMAT_Q8, 32, 18, 0, -1, 70.0f, 0 },
    [SOURCE_IQ4_XS] = { FORMAT_Q8K, 256, 136, 0, -1, 1300.0f, 0 },
    [SOURCE_MXFP4] = { FORMAT_Q5B, 32, 17, -1, -1, 5.8f, 0 },
};
/* clang-format on */

static uint16_t finite_half(struct Random *random)
{
    uint16_t half = (uint16_t)random_u32(random);
    return (half & 0x7c00) == 0x7c00 ? half & 0x83ff : half;
}

static void put_half(uint8_t *block, int32_t at, uint16_t half)
{
    if (at >= 0)
        memcpy(block + at, &half, 2);
}

void random_blocks(struct Random *random, enum SourceKind kind, float deviation, uint8_t *blocks, size_t n_blocks)
{
    const struct BlockKind *k = &block_kinds[kind];
    int exponent;
    frexpf(deviation / k->spread, &exponent);
    for (uint8_t *block = blocks; block < blocks + n_blocks * (size_t)k->n_bytes; block += k->n_bytes) {
        for (int32_t i = 0; i < k->n_bytes; i++)
            block[i] = (uint8_t)random_u32(random);
        float scale = deviation / k->spread * (1.0f + random_float(random, 0.5f));
        put_half(block, k->scale, deviation > 0 ? f16_from_f32(scale) : finite_half(random));
        put_half(block, k->minimum, deviation > 0 ? f16_from_f32(scale * k->centre) : finite_half(random));
        if (k->scale < 0)   /* 2^(byte − 128) */
            block[0] = (uint8_t)(deviation > 0 ? 128 + exponent - random_below(random, 2) : random_below(random, 253));
    }
}
