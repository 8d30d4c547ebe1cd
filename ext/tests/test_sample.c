/* Sampling, every table: what filters keep against double and libm, what is drawn against the plainest loop. */
#include "tests.h"

#include <stdlib.h>

enum { N_MOST = 1200 };

/* Tokens that are left, and their logits over the temperature. */
struct Law {
    int32_t n, token[N_MOST];
    double x[N_MOST], p[N_MOST], key[N_MOST]; /* key: what the next filter ranks by */
};
static const struct Law *ranked; /* of by_key: qsort hands it places only */

static int by_key(const void *a, const void *b)
{
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    return ranked->key[i] != ranked->key[j] ? (ranked->key[i] > ranked->key[j] ? -1 : 1) : i - j;
}

static void set_law(struct Law *law)
{
    double largest = -INFINITY, total = 0.0;
    for (int32_t i = 0; i < law->n; i++)
        largest = law->x[i] > largest ? law->x[i] : largest;
    for (int32_t i = 0; i < law->n; i++)
        total += law->p[i] = exp(law->x[i] - largest);
    for (int32_t i = 0; i < law->n; i++)
        law->p[i] /= total;
}

static double standard_deviation(const struct Law *law)
{
    double mean = 0.0, variance = 0.0;
    for (int32_t i = 0; i < law->n; i++)
        mean += law->x[i] / law->n;
    for (int32_t i = 0; i < law->n; i++)
        variance += (law->x[i] - mean) * (law->x[i] - mean) / law->n;
    return sqrt(variance);
}

/* One filter, as its definition reads; probabilities are known to float32, so 1e-6 of one decides nothing. */
static void filter(struct Law *law, enum SamplerKind kind, double value, int32_t min_keep)
{
    int32_t order[N_MOST], n = 0;
    bool stays[N_MOST] = { false };
    double sum = 0.0, entropy = 0.0, largest, deviation = standard_deviation(law);
    set_law(law);
    for (int32_t i = 0; i < law->n; i++)
        entropy -= law->p[i] > 0.0 ? law->p[i] * log(law->p[i]) : 0.0;
    for (int32_t i = 0; i < law->n; i++) {
        order[i] = i;
        law->key[i] = kind == SAMPLER_TYPICAL_P ? -fabs(-log(law->p[i]) - entropy) : law->x[i];
    }
    ranked = law;
    qsort(order, (size_t)law->n, sizeof *order, by_key);
    largest = law->p[order[0]];
    for (int32_t i = 0; i < law->n; i++) {
        double p = law->p[order[i]], bar = p * (1.0 + 1e-6);
        bool keeps = i < min_keep;
        switch (kind) {
        case SAMPLER_TEMPERATURE: keeps = value > 0.0 || i == 0; break;
        case SAMPLER_TOP_K: keeps |= i < value; break;
        case SAMPLER_TOP_P: keeps |= i == 0 || sum < value - 1e-6; break;
        case SAMPLER_TYPICAL_P: keeps |= i == 0 || sum < value * (1.0 - 1e-6); break;
        case SAMPLER_MIN_P: keeps |= bar >= value * largest; break;
        case SAMPLER_EPSILON_CUTOFF: keeps |= bar >= value; break;
        case SAMPLER_MIROSTAT: keeps |= bar >= exp2(-value); break;
        case SAMPLER_TOP_N_SIGMA: keeps |= law->x[order[i]] >= law->x[order[0]] - value * deviation; break;
        default: abort();
        }
        sum += p;
        stays[order[i]] = keeps;
    }
    for (int32_t i = 0; i < law->n; i++)
        if (stays[i]) {
            law->token[n] = law->token[i];
            law->x[n++] = kind == SAMPLER_TEMPERATURE && value > 0.0 ? law->x[i] / value : law->x[i];
        }
    law->n = n;
    set_law(law);
}

static struct NoiseKey random_key(struct Random *random)
{
    struct NoiseKey key = { random_u32(random), 0, 0, NOISE_GUMBEL };
    key.seed |= (uint64_t)random_u32(random) << 32;
    key.index = random_u32(random);
    key.completion = random_u32(random) % 3;
    return key;
}

/* Some are alike, some −inf; the first is neither. */
static void random_logits(struct Random *random, float *logits, int32_t n)
{
    static const float amplitudes[] = { 0.0f, 0.1f, 1.0f, 4.0f, 20.0f };
    float amplitude = amplitudes[random_below(random, 5)];
    bool has_ties = random_below(random, 3) == 0, has_none = random_below(random, 3) == 0;
    for (int32_t i = 0; i < n; i++) {
        float x = random_float(random, amplitude) + random_float(random, amplitude);
        x = has_ties ? rintf(x) : x;
        logits[i] = has_none && i && random_below(random, 4) == 0 ? -INFINITY : x;
    }
}

static void open_law(struct Law *law, const float *logits, int32_t n)
{
    law->n = 0;
    for (int32_t i = 0; i < n; i++)
        if (logits[i] >= -FLT_MAX) {
            law->token[law->n] = i;
            law->x[law->n++] = logits[i];
        }
    set_law(law);
}

static int32_t random_steps(struct Random *random, struct SamplerStep *steps)
{
    static const enum SamplerKind kinds[] = { SAMPLER_TEMPERATURE, SAMPLER_TOP_K,       SAMPLER_TOP_P,
                                              SAMPLER_MIN_P,       SAMPLER_TYPICAL_P,   SAMPLER_EPSILON_CUTOFF,
                                              SAMPLER_MIROSTAT,    SAMPLER_TOP_N_SIGMA, SAMPLER_TEMPERATURE };
    int32_t n = random_below(random, 4);
    for (int32_t i = 0; i < n; i++) {
        double share = (random_u32(random) + 0.5) * 0x1p-32, value = share;
        enum SamplerKind kind = kinds[random_below(random, 9)];
        if (kind == SAMPLER_TEMPERATURE)
            value = random_below(random, 20) ? 0.25 + 2.0 * share : 0.0;
        if (kind == SAMPLER_TOP_K)
            value = random_between(random, 1, 80);
        if (kind == SAMPLER_EPSILON_CUTOFF || kind == SAMPLER_MIN_P)
            value = share * share * share;
        if (kind == SAMPLER_MIROSTAT || kind == SAMPLER_TOP_N_SIGMA)
            value = 4.0 * share;
        steps[i] = (struct SamplerStep){ kind, { value, 0.0, 0.0 } };
    }
    return n;
}

/* The best sum of x and noise over the law, by libm; the chosen may be another only where two are within 1e-4. */
static void check_choice(const struct Law *law, const struct NoiseKey *key, const struct Choice *choice)
{
    double largest = -INFINITY, best = -INFINITY, own = -INFINITY;
    for (int32_t i = 0; i < law->n; i++)
        largest = law->x[i] > largest ? law->x[i] : largest;
    for (int32_t i = 0; i < law->n; i++) {
        uint32_t words[4];
        noise_words(key, (uint32_t)law->token[i] / 4, words);
        double v = (words[law->token[i] % 4] + 0.5) * 0x1p-32, score = law->x[i] - largest - log(-log1p(-v));
        best = score > best ? score : best;
        own = law->token[i] == choice->token ? score : own;
    }
    CHECK(own > best - 1e-4, "token %d has %.9g, the best %.9g", choice->token, own, best);
    CHECK(fabs(choice->score - own) < 1e-4, "token %d: %.9g, expected %.9g", choice->token, choice->score, own);
}

void test_kept(void)
{
    static const int32_t sizes[] = { 1, 2, 5, 17, 64, 255, 256, 300, N_MOST };
    static struct Law law;
    for (int32_t i = 0; i < 900; i++) {
        struct Random random = random_named("kept", i);
        int32_t n = sizes[i % 9], min_keep = random_below(&random, 4) ? 1 : random_between(&random, 2, 6);
        struct SamplerStep steps[4];
        struct Sampler sampler = { steps, NULL, random_steps(&random, steps), min_keep, true };
        struct NoiseKey key = random_key(&random);
        float *logits = line_alloc((size_t)n * 4), *probabilities = line_alloc((size_t)n * 4);
        int32_t *tokens = line_alloc((size_t)n * 4), many[3], n_kept;
        random_logits(&random, logits, n);
        open_law(&law, logits, n);
        for (int32_t s = 0; s < sampler.n_steps; s++)
            filter(&law, steps[s].kind, steps[s].parameters[0], min_keep);
        struct Choice first = { 0 };
        FOR_EACH_ISA(kernels) {
            struct Choice choice, next;
            sampler.kernels = kernels;
            CHECK(sample_kept(logits, n, &sampler, &key, tokens, probabilities, &n_kept) == STATUS_OK, "case %d", i);
            bool equal = n_kept == law.n;
            for (int32_t k = 0; equal && k < n_kept; k++)
                equal = tokens[k] == law.token[k] && fabs(probabilities[k] - law.p[k]) < 3e-6;
            CHECK(equal, "%s, case %d: %d kept of %d, expected %d", kernels->isa, i, n_kept, n, law.n);
            CHECK(sample_token(logits, n, &sampler, &key, &choice) == STATUS_OK, "case %d", i);
            if (kernels == isas[0]) {
                first = choice;
                check_choice(&law, &key, &choice);
            }
            CHECK(choice.token == first.token && same_bits(choice.score, first.score)
                      && bits_of_f64(choice.surprise) == bits_of_f64(first.surprise),
                  "%s, case %d: token %d, expected %d", kernels->isa, i, choice.token, first.token);
            CHECK(sample_many(logits, n, &sampler, &key, many, 3) == STATUS_OK, "case %d", i);
            struct NoiseKey later = key;
            later.index += 2;
            CHECK(sample_token(logits, n, &sampler, &later, &next) == STATUS_OK, "case %d", i);
            CHECK(many[0] == choice.token && many[2] == next.token, "%s, case %d", kernels->isa, i);
        }
        hash_bits(tokens, (size_t)n_kept * sizeof *tokens);
        hash_bits(probabilities, (size_t)n_kept * sizeof *probabilities);
        hash_bits(&first.score, sizeof first.score);
        hash_bits(&first.surprise, sizeof first.surprise);
        hash_bits(many, sizeof many);
        free(logits), free(probabilities), free(tokens);
    }
}

void test_rank(void)
{
    static struct Law law;
    for (int32_t i = 0; i < 200; i++) {
        struct Random random = random_named("rank", i);
        int32_t n = random_between(&random, 1, N_MOST), order[N_MOST], best[N_MOST];
        float logits[N_MOST];
        random_logits(&random, logits, n);
        open_law(&law, logits, n);
        double total = 0.0, log_total;
        for (int32_t k = 0; k < law.n; k++) {
            total += exp(law.x[k]);
            law.key[order[k] = k] = law.x[k];
        }
        ranked = &law;
        qsort(order, (size_t)law.n, sizeof *order, by_key);
        int32_t asked = i % 3 ? random_below(&random, 40) : n, n_best = asked;
        FOR_EACH_ISA(kernels) {
            n_best = asked;
            CHECK(rank_tokens(kernels, logits, n, &n_best, best, &log_total) == STATUS_OK, "case %d", i);
            CHECK(n_best == (asked < law.n ? asked : law.n), "%d of %d, asked for %d", n_best, law.n, asked);
            CHECK(fabs(log_total - log(total)) < 2e-6, "%.9g, expected %.9g", log_total, log(total));
            for (int32_t k = 0; k < n_best; k++)
                CHECK(best[k] == law.token[order[k]], "%s, case %d, rank %d: %d", kernels->isa, i, k, best[k]);
        }
        hash_bits(&log_total, sizeof log_total);
        hash_bits(best, (size_t)n_best * sizeof *best);
    }
}

/* Every token's score, and the first of the largest. */
static struct Choice plain_draw(const float *logits, int32_t n, float temperature, const struct NoiseKey *key)
{
    float largest = -INFINITY;
    struct Choice best = { -1, -INFINITY, 0.0 };
    for (int32_t i = 0; i < n; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    for (int32_t i = 0; i < n; i++) {
        float x = (logits[i] - largest) / temperature, score = x + noise_gumbel(key, (uint32_t)i);
        if (score > best.score)
            best = (struct Choice){ i, score, 0.0 };
    }
    return best;
}

static void check_draw(const float *logits, int32_t n, float temperature, const struct NoiseKey *key)
{
    const struct SamplerStep step = { SAMPLER_TEMPERATURE, { temperature, 0.0, 0.0 } };
    struct Choice expected = plain_draw(logits, n, temperature, key), choice;
    FOR_EACH_ISA(kernels) {
        const struct Sampler sampler = { &step, kernels, 1, 1, false };
        enum Status status = sample_token(logits, n, &sampler, key, &choice);
        CHECK(status == STATUS_OK && choice.token == expected.token && same_bits(choice.score, expected.score),
              "%s: token %d of %d, score %a at temperature %a, expected %d, %a", kernels->isa, choice.token, n,
              choice.score, temperature, expected.token, expected.score);
    }
    hash_bits(&expected.token, sizeof expected.token);
    hash_bits(&expected.score, sizeof expected.score);
}

/* That most tokens are ruled out before their noise is computed changes no choice, whatever the logits. */
void test_draws(void)
{
    static const float temperatures[] = { 1.0f, 0.7f, 2.0f, 1e-3f, 1e-45f, 1e30f, FLT_MAX };
    static float logits[4 * NOISE_TOKENS + 3];
    for (int32_t i = 0; i < 12000; i++) {
        struct Random random = random_named("draws", i);
        int32_t n = random_between(&random, 1, 4 * NOISE_TOKENS + 3), n_odd = random_below(&random, 4);
        struct NoiseKey key = random_key(&random);
        random_logits(&random, logits, n);
        for (int32_t k = 0; k < n_odd; k++) {
            static const float odd[] = { -INFINITY, -FLT_MAX, -1e30f, -0.0f, 1e-45f, 30.0f, 1e30f, FLT_MAX };
            logits[random_below(&random, n)] = odd[random_below(&random, 8)];
        }
        if (n_odd == 3 && i % 2)
            logits[random_below(&random, n)] = 1.0f; /* at least one finite */
        else
            logits[0] = 0.0f;
        check_draw(logits, n, temperatures[i % 2 ? 0 : random_below(&random, 7)], &key);
    }
}

/* Two tokens whose scores are the same float: the first is taken. */
void test_tied_draws(void)
{
    int32_t n_ties = 0;
    static float logits[2 * NOISE_TOKENS];
    for (int32_t i = 0; i < 2000; i++) {
        struct Random random = random_named("tied draws", i);
        int32_t n = random_between(&random, 2, 2 * NOISE_TOKENS), first = random_below(&random, n - 1);
        int32_t second = random_between(&random, first + 1, n - 1);
        struct NoiseKey key = random_key(&random);
        float off = noise_gumbel(&key, (uint32_t)first) - noise_gumbel(&key, (uint32_t)second);
        for (int32_t k = 0; k < n; k++)
            logits[k] = -60.0f;
        logits[first] = off > 0.0f ? -off : 0.0f;
        logits[second] = off > 0.0f ? 0.0f : off;
        n_ties += same_bits(logits[first] + noise_gumbel(&key, (uint32_t)first),
                            logits[second] + noise_gumbel(&key, (uint32_t)second));
        check_draw(logits, n, 1.0f, &key);
    }
    CHECK(n_ties > 500, "%d ties", n_ties);
}

/* Words 0 and 2³²−1, found by search: the noise of the first is 22.87…, of the second −3.13…, and both are finite. */
void test_extreme_draws(void)
{
    static const struct {
        uint32_t index, token, word;
    } found[] = {
        { 33303201, 110, 0 },
        { 72290799, 256 + 65, 0 },
        { 49144387, 214, UINT32_MAX },
        { 115434, 256 + 254, UINT32_MAX },
    };
    static const int32_t sizes[] = { 350, 511, 512, 600 };
    float logits[600];
    for (int32_t i = 0; i < 4; i++) {
        struct NoiseKey key = { 7, found[i].index, 0, NOISE_GUMBEL };
        uint32_t words[4];
        noise_words(&key, found[i].token / 4, words);
        CHECK(words[found[i].token % 4] == found[i].word, "%08x", words[found[i].token % 4]);
        for (int32_t s = found[i].token > 350; s < 4; s++)
            for (float off = -24.0f; off <= 40.0f; off += 0.0625f) {
                for (int32_t k = 0; k < sizes[s]; k++) /* the winner's neighbours are far below the others */
                    logits[k] = (uint32_t)k / 256 == found[i].token / 256 ? -40.0f : 0.0f;
                logits[found[i].token] = off;
                check_draw(logits, sizes[s], 1.0f, &key);
            }
        for (int32_t k = 0; k < 600; k++)
            logits[k] = -60.0f;
        logits[found[i].token] = 0.0f; /* it wins with its noise alone */
        check_draw(logits, 600, 1.0f, &key);
    }
}

void test_noise_kernels(void)
{
    for (int32_t i = 0; i < 400; i++) {
        struct Random random = random_named("noise kernels", i);
        struct NoiseKey key = random_key(&random);
        key.purpose = i % 2 ? NOISE_XTC : NOISE_GUMBEL;
        uint32_t first = random_u32(&random) >> 4, expected[4];
        struct Noise noise;
        int32_t n = random_between(&random, 1, 70);
        float x[70];
        struct Extremes extremes = { INT32_MAX, INT32_MIN };
        for (int32_t k = 0; k < n; k++) {
            x[k] = f32_of_bits(random_below(&random, 9) ? random_u32(&random) : random_u32(&random) | 0x7f800000);
            int32_t order = order_of_f32(x[k]);
            extremes.least = order < extremes.least ? order : extremes.least;
            extremes.greatest = order > extremes.greatest ? order : extremes.greatest;
        }
        FOR_EACH_ISA(kernels) {
            uint32_t least[8];
            memset(least, 255, sizeof least);
            kernels->noise(&key, first, &noise);
            for (int32_t b = 0; b < NOISE_BLOCKS; b++) {
                noise_words(&key, first + (uint32_t)b, expected);
                for (int32_t j = 0; j < 4; j++) {
                    CHECK(noise.words[j][b] == expected[j], "%s: word %d of block %d", kernels->isa, j, b);
                    least[b % 8] = expected[j] < least[b % 8] ? expected[j] : least[b % 8];
                }
            }
            CHECK(memcmp(noise.least, least, sizeof least) == 0, "%s: least of eight", kernels->isa);
            struct Extremes got = kernels->extremes(x, n);
            CHECK(got.least == extremes.least && got.greatest == extremes.greatest, "%s: %d floats", kernels->isa, n);
        }
    }
}

void test_refused_logits(void)
{
    float logits[600];
    int32_t tokens[600], n_kept, n_best;
    float probabilities[600];
    double log_total;
    struct Choice choice;
    for (int32_t i = 0; i < 300; i++) {
        struct Random random = random_named("refused logits", i);
        static const float bad[] = { NAN, -NAN, INFINITY };
        const struct SamplerStep step = { SAMPLER_TEMPERATURE, { i % 2, 0.0, 0.0 } };
        struct NoiseKey key = { 1, (uint32_t)i, 0, NOISE_GUMBEL };
        int32_t n = random_between(&random, 1, 600);
        random_logits(&random, logits, n);
        logits[i % 5 == 0 ? 0 : i % 5 == 1 ? n - 1 : random_below(&random, n)] = bad[i % 3];
        if (i % 7 == 0)
            for (int32_t k = 0; k < n; k++)
                logits[k] = -INFINITY;
        FOR_EACH_ISA(kernels) {
            const struct Sampler sampler = { &step, kernels, 1, 1, false };
            n_best = 3;
            CHECK(sample_token(logits, n, &sampler, &key, &choice) == STATUS_BAD_LOGITS, "case %d", i);
            CHECK(sample_many(logits, n, &sampler, &key, tokens, 2) == STATUS_BAD_LOGITS, "case %d", i);
            CHECK(sample_kept(logits, n, &sampler, &key, tokens, probabilities, &n_kept) == STATUS_BAD_LOGITS, "%d", i);
            CHECK(rank_tokens(kernels, logits, n, &n_best, tokens, &log_total) == STATUS_BAD_LOGITS, "case %d", i);
        }
    }
}
