/* One token from logits: the filters in the order asked for, then argmax of (logit − max) / temperature + noise. */
#include <stdlib.h>

#include "set.h"

static const float LEAST_NOISE = -3.14f;   /* −log(−log(2⁻³³)), rounded down */
static const float LARGEST_NOISE = 22.88f; /* −log(2⁻³³), rounded up */

struct Best {
    float score;
    int32_t place, token;
};

/* Noise is at most −log v, and log2 of 2^e·(1 + m) is e + m at least, which are the bits of a float: that rules out nearly
   every token without a logarithm. It falls as words grow. */
static float noise_bound(uint32_t word)
{
    const float exponent = (float)bits_of_f32((float)word + 0.5f) * 0x1p-23f - 127.0f;
    return (32.0f - exponent) * 0.6931472f + 0.001f;
}

/* Words above it have a bound below `noise`: 0.001 more than noise_bound has covers what rounds on the way. */
static uint32_t largest_word(float noise)
{
    const float exponent = 32.0f - (noise - 0.002f) * 1.442695f;
    if (exponent < 0.0f || exponent >= 31.99f)
        return exponent < 0.0f ? 1 : UINT32_MAX;
    return (uint32_t)f32_of_bits((uint32_t)((exponent + 127.0f) * 0x1p23f)) + 1;
}

static float scaled(const struct Set *set, float logit) { return (logit - set->largest) / set->temperature; }

static void try_word(const struct Set *set, int32_t place, int32_t token, uint32_t word, struct Best *best)
{
    float x = scaled(set, set->logits[place]);
    if (x + noise_bound(word) < best->score)
        return;
    float score = x + noise_of_word(word);
    if (score > best->score || (score == best->score && token < best->token))
        *best = (struct Best){ score, place, token };
}

/* A tile is NOISE_TOKENS tokens of the whole vocabulary, their place being their id. What its largest logit would need
   rules out most words, nearly always the least of them all. */
static void try_tile(const struct Set *set, const struct NoiseKey *key, int32_t tile, struct Best *best)
{
    const int32_t first = tile * NOISE_TOKENS;
    const float x = scaled(set, f32_of_order(set->greatest[tile]));
    if (x + LARGEST_NOISE < best->score)
        return;
    struct Noise noise;
    set->kernels->noise(key, (uint32_t)first / 4, &noise);
    const uint32_t limit = largest_word(best->score - x);
    for (int32_t lane = 0; lane < NOISE_LANES; lane++)
        for (int32_t b = lane; noise.least[lane] <= limit && b < NOISE_BLOCKS; b += NOISE_LANES)
            for (int32_t j = 0; j < 4; j++)
                if (noise.words[j][b] <= limit)
                    try_word(set, first + 4 * b + j, first + 4 * b + j, noise.words[j][b], best);
}

/* The whole tiles of a vocabulary; first the one with the largest logit, whose score rules out most of the others. */
static int32_t try_tiles(const struct Set *set, const struct NoiseKey *key, struct Best *best)
{
    const int32_t n = set->tokens || !set->greatest ? 0 : set->n / NOISE_TOKENS;
    int32_t likely = 0;
    for (int32_t tile = 1; tile < n; tile++)
        if (set->greatest[tile] > set->greatest[likely])
            likely = tile;
    if (n)
        try_tile(set, key, likely, best);
    for (int32_t tile = 0; tile < n; tile++)
        if (tile != likely)
            try_tile(set, key, tile, best);
    return n * NOISE_TOKENS;
}

/* The largest logit scores LEAST_NOISE or more: that rules out most tokens before their noise is known. */
static struct Best draw(const struct Set *set, const struct NoiseKey *key)
{
    struct Best best = { LEAST_NOISE, -1, -1 };
    uint32_t words[4], block = UINT32_MAX;
    for (int32_t i = try_tiles(set, key, &best); i < set->n; i++) {
        if (scaled(set, set->logits[i]) + LARGEST_NOISE < best.score)
            continue;
        int32_t token = set->tokens ? set->tokens[i] : i;
        if ((uint32_t)token / 4 != block)
            noise_words(key, block = (uint32_t)token / 4, words);
        try_word(set, i, token, words[token % 4], &best);
    }
    return best;
}

static enum Status filter_all(struct Set *set, const struct Sampler *sampler, const struct NoiseKey *key)
{
    enum Status status = STATUS_OK;
    for (int32_t i = 0; i < sampler->n_steps && !status; i++)
        status = set_filter(set, &sampler->steps[i], sampler->min_keep, key);
    return status;
}

enum Status sample_token(const float *logits, int32_t n, const struct Sampler *sampler, const struct NoiseKey *key,
                         struct Choice *choice)
{
    struct FloatEnvironment previous = floats_enter();
    struct Set set;
    enum Status status =
        set_open(&set, sampler->kernels, logits, n) ? filter_all(&set, sampler, key) : STATUS_BAD_LOGITS;
    if (!status) {
        struct Best best = draw(&set, key);
        choice->token = best.token;
        choice->score = best.score;
        if (sampler->wants_surprise) {
            double x = ((double)set.largest - set.logits[best.place]) / set.temperature;
            choice->surprise = (x + log_f64(set_moments(&set).weight)) * 1.4426950408889634;
        }
    }
    set_close(&set);
    floats_leave(previous);
    return status;
}

enum Status sample_many(const float *logits, int32_t n, const struct Sampler *sampler, const struct NoiseKey *key,
                        int32_t *tokens, int32_t count)
{
    struct FloatEnvironment previous = floats_enter();
    struct NoiseKey own = *key;
    struct Set set = { 0 };
    enum Status status = STATUS_OK;
    bool tosses = false;
    for (int32_t i = 0; i < sampler->n_steps; i++)
        tosses |= sampler->steps[i].kind == SAMPLER_XTC;
    for (int32_t i = 0; i < count && !status; i++, own.index++) {
        if (i == 0 || tosses) {
            set_close(&set);
            status = set_open(&set, sampler->kernels, logits, n) ? filter_all(&set, sampler, &own) : STATUS_BAD_LOGITS;
        }
        if (!status)
            tokens[i] = draw(&set, &own).token;
    }
    set_close(&set);
    floats_leave(previous);
    return status;
}

enum Status sample_kept(const float *logits, int32_t n, const struct Sampler *sampler, const struct NoiseKey *key,
                        int32_t *tokens, float *probabilities, int32_t *n_kept)
{
    struct FloatEnvironment previous = floats_enter();
    struct Set set;
    enum Status status =
        set_open(&set, sampler->kernels, logits, n) ? filter_all(&set, sampler, key) : STATUS_BAD_LOGITS;
    *n_kept = 0;
    if (!status) {
        double total = set_moments(&set).weight;
        for (int32_t i = 0; i < set.n; i++)
            if (set.logits[i] >= -FLT_MAX) {
                tokens[*n_kept] = set.tokens ? set.tokens[i] : i;
                probabilities[(*n_kept)++] = (float)(set_weight(&set, set.logits[i]) / total);
            }
    }
    set_close(&set);
    floats_leave(previous);
    return status;
}

struct Ranked {
    float logit;
    int32_t token;
};

static int by_rank(const void *a, const void *b)
{
    const struct Ranked *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

enum Status rank_tokens(const struct Kernels *kernels, const float *logits, int32_t n, int32_t *n_best, int32_t *tokens,
                        double *log_total)
{
    struct FloatEnvironment previous = floats_enter();
    struct Set set;
    struct Ranked *ranked = NULL;
    enum Status status = set_open(&set, kernels, logits, n) ? STATUS_OK : STATUS_BAD_LOGITS;
    if (!status)
        *log_total = set.largest + log_f64(set_moments(&set).weight);
    if (!status && *n_best > 0) {
        const struct SamplerStep top = { SAMPLER_TOP_K, { *n_best } };
        status = set_filter(&set, &top, 1, NULL);
        ranked = malloc((size_t)set.n * sizeof *ranked);
        if (!status && !ranked)
            status = STATUS_NO_MEMORY;
    }
    if (!status && ranked) {
        int32_t n_finite = 0;
        for (int32_t i = 0; i < set.n; i++)
            if (set.logits[i] >= -FLT_MAX)
                ranked[n_finite++] = (struct Ranked){ set.logits[i], set.tokens ? set.tokens[i] : i };
        qsort(ranked, (size_t)n_finite, sizeof *ranked, by_rank);
        *n_best = *n_best < n_finite ? *n_best : n_finite;
        for (int32_t i = 0; i < *n_best; i++)
            tokens[i] = ranked[i].token;
    }
    set_close(&set);
    free(ranked);
    floats_leave(previous);
    return status;
}
