/* Noise that is a function of its name: Philox 4×32-10 (Salmon et al., SC 2011), no state, no order. */
#include "../rillm.h"
#include "../runtime/floats.h"

void philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t a = (uint64_t)PHILOX_FACTOR0 * c0, b = (uint64_t)PHILOX_FACTOR1 * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        k0 += PHILOX_STEP0;
        k1 += PHILOX_STEP1;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* g = −log(−log1p(−v)), v = (x + ½)·2⁻³² exact in double and so always below 1. For small v,
   −log1p(−v) = v + v²/2 + v³/3 + …, since 1 − v would lose v's low bits. */
float noise_of_word(uint32_t word)
{
    double v = ((double)word + 0.5) * 0x1p-32;
    double exponential =
        v < 0x1p-10 ? v * (1.0 + v * (1.0 / 2 + v * (1.0 / 3 + v * (1.0 / 4 + v * (1.0 / 5))))) : -log_f64(1.0 - v);
    return (float)-log_f64(exponential);
}

void noise_words(const struct NoiseKey *key, uint32_t block, uint32_t words[4])
{
    const uint32_t counter[4] = { block, key->index, key->completion, key->purpose };
    philox4x32_10(counter, (const uint32_t[2]){ (uint32_t)key->seed, (uint32_t)(key->seed >> 32) }, words);
}

float noise_gumbel(const struct NoiseKey *key, uint32_t token)
{
    uint32_t words[4];
    noise_words(key, token / 4, words);
    return noise_of_word(words[token % 4]);
}
