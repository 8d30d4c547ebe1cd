/* One token from logits, filters in the order of Hugging Face: temperature, top-k, top-p, then the draw. */
#include <stdlib.h>

#include "../rillm.h"
#include "../runtime/floats.h"

struct Candidate {
    float logit;
    int32_t token;
};

struct Best {
    float score;
    int32_t token;
};

static void compete(struct Best *best, float scaled, uint32_t word, int32_t token)
{
    float score = scaled + noise_of_word(word);
    if (score > best->score || (score == best->score && token < best->token))
        *best = (struct Best){ score, token };
}

/* Noise is at most −log v ≤ (leading zeros + 1)·ln 2: that rules out nearly every token without a logarithm. */
static float noise_bound(uint32_t word)
{
    return (word ? (float)__builtin_clz(word) + 1.0f : 33.0f) * 0.6931472f + 0.001f;
}

static int32_t draw(const float *logits, int32_t n, float largest, float temperature, const struct NoiseKey *key)
{
    struct Best best = { -FLT_MAX, n };
    uint32_t words[4];
    for (int32_t i = 0; i < n; i++) {
        if (i % 4 == 0)
            noise_words(key, (uint32_t)i / 4, words);
        float scaled = (logits[i] - largest) / temperature;
        if (scaled + noise_bound(words[i % 4]) >= best.score)
            compete(&best, scaled, words[i % 4], i);
    }
    return best.token;
}

/* Larger logit first, then lower id: a strict order, so what is kept on a tie is defined. */
static int by_rank(const void *a, const void *b)
{
    const struct Candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

static double weight(float logit, float largest, float temperature)
{
    double x = ((double)logit - largest) / temperature;
    if (x < -700.0)
        return 0.0;
    double n = (x * 1.4426950408889634 + 6755399441055744.0) - 6755399441055744.0;
    double r = x - n * 0.6931471803691238 - n * 1.9082149292705877e-10, series = 1.0;
    for (int k = 13; k >= 1; k--)
        series = 1.0 + series * r / k;
    return series * f64_of_bits((uint64_t)(int64_t)(n + 1023.0) << 52);
}

/* The best candidates in rank order, at least `least` of them or all: those above a falling bar. */
static int32_t collect_above(const float *logits, int32_t n, float bar, struct Candidate *out)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++)
        if (logits[i] >= bar)
            out[count++] = (struct Candidate){ logits[i], i };
    qsort(out, (size_t)count, sizeof *out, by_rank);
    return count;
}

/* How many of the ranked are kept: k of them at most, and the fewest whose share of the mass reaches p.
   Probabilities are known to float32, hence the slack of 2⁻²⁰. Returns 0 when the ranked do not suffice. */
static int32_t count_kept(const struct Candidate *ranked, int32_t count, const float *logits, int32_t n,
                          float temperature, int32_t top_k, double top_p)
{
    bool all = count == n;
    if (top_k > 0 && count < top_k && !all)
        return 0;
    int32_t limit = top_k > 0 && top_k < count ? top_k : count;
    if (top_p >= 1.0)
        return limit;
    double total = 0.0, sum = 0.0;
    if (top_k > 0)
        for (int32_t i = 0; i < limit; i++)
            total += weight(ranked[i].logit, ranked[0].logit, temperature);
    else
        for (int32_t i = 0; i < n; i++)
            total += weight(logits[i], ranked[0].logit, temperature);
    for (int32_t i = 0; i < limit; i++) {
        sum += weight(ranked[i].logit, ranked[0].logit, temperature);
        if (sum >= (top_p - 0x1p-20) * total)
            return i + 1;
    }
    return top_k > 0 || all ? limit : 0;
}

static enum Status draw_filtered(const float *logits, int32_t n, float largest, float temperature, int32_t top_k,
                                 double top_p, const struct NoiseKey *key, int32_t *token)
{
    struct Candidate *ranked = malloc((size_t)n * sizeof *ranked);
    if (!ranked)
        return STATUS_NO_MEMORY;
    int32_t kept = 0;
    for (float width = 4.0f * temperature; kept == 0; width *= 2.0f) {
        float bar = width < FLT_MAX ? largest - width : -FLT_MAX * 2.0f;
        int32_t count = collect_above(logits, n, bar, ranked);
        kept = count_kept(ranked, count, logits, n, temperature, top_k, top_p);
    }
    struct Best best = { -FLT_MAX, n };
    for (int32_t i = 0; i < kept; i++) {
        uint32_t words[4];
        noise_words(key, (uint32_t)ranked[i].token / 4, words);
        compete(&best, (ranked[i].logit - largest) / temperature, words[ranked[i].token % 4], ranked[i].token);
    }
    *token = best.token;
    free(ranked);
    return STATUS_OK;
}

enum Status sample_token(const float *logits, int32_t n, float temperature, int32_t top_k, double top_p,
                         const struct NoiseKey *key, int32_t *token)
{
    struct FloatEnvironment previous = floats_enter();
    enum Status status = STATUS_OK;
    int32_t first = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!(logits[i] <= FLT_MAX))
            status = STATUS_BAD_LOGITS;  /* NaN or +inf */
        if (logits[i] > logits[first])
            first = i;
    }
    float largest = logits[first];
    *token = first;
    if (!(largest >= -FLT_MAX))
        status = STATUS_BAD_LOGITS;
    else if (status == STATUS_OK && temperature > 0.0f && (top_k > 0 || top_p < 1.0))
        status = draw_filtered(logits, n, largest, temperature, top_k, top_p, key, token);
    else if (status == STATUS_OK && temperature > 0.0f)
        *token = draw(logits, n, largest, temperature, key);
    floats_leave(previous);
    return status;
}
