/* Each filter as what it keeps: a border in the order of logits, or of how near they are to a typical one. */
#include <stdlib.h>

#include "set.h"

/* Probabilities are known to float32: one that equals a threshold, or a sum that equals one, counts as reaching it. */
static const double SLACK = 1.0 - 0x1p-20;

static double exp_f64(double x)
{
    if (!(x >= -700.0)) /* a limit that is not a number keeps everything */
        return 0.0;
    x = x < 700.0 ? x : 700.0;
    double n = (x * 1.4426950408889634 + 6755399441055744.0) - 6755399441055744.0;
    double r = x - n * 0.6931471803691238 - n * 1.9082149292705877e-10, series = 1.0;
    for (int k = 13; k >= 1; k--)
        series = 1.0 + series * r / k;
    return series * f64_of_bits((uint64_t)(int64_t)(n + 1023.0) << 52);
}

static double square_root(double x) { return x > 0.0 ? exp_f64(0.5 * log_f64(x)) : 0.0; }

static double entropy(struct Moments moments) /* in nats */
{
    return log_f64(moments.weight) - moments.weighted / moments.weight;
}

static float finite(double logit) { return logit > -FLT_MAX ? (float)logit : -FLT_MAX; }

/* The logit whose probability is `share` of `total`, both in weights. */
static float logit_of_share(const struct Set *set, double share, double total)
{
    double weight = share * SLACK * total;
    return weight < 0x1p-1000 ? -FLT_MAX : finite(set->largest + set->temperature * log_f64(weight));
}

static enum Status keep_mass(struct Set *set, double goal, int32_t least)
{
    struct Border border;
    enum Status status = set_border(set, set->logits, 4.0f * set->temperature, goal, least, &border);
    return status ? status : set_narrow(set, set->logits, border);
}

static enum Status keep_best(struct Set *set, int32_t count)
{
    struct Border border;
    enum Status status = set_border(set, set->logits, 1.0f, 0.0, count, &border);
    return status ? status : set_narrow(set, set->logits, border);
}

static enum Status keep_from(struct Set *set, float bar, int32_t min_keep)
{
    if (set_count(set, bar) < min_keep)
        return min_keep == 1 ? set_keep_largest(set) : keep_best(set, min_keep);
    return set_narrow(set, set->logits, (struct Border){ bar, set->n });
}

/* Between temperature ± range by how near the entropy is to its greatest value. */
static double dynamic_temperature(const struct Set *set, double temperature, double range, double exponent)
{
    int32_t n = set_count(set, -FLT_MAX);
    if (range <= 0.0 || n < 2)
        return temperature;
    double low = temperature > range ? temperature - range : 0.0, high = temperature + range;
    double share = entropy(set_moments(set)) / log_f64(n);
    if (share < 0x1p-100)
        return exponent > 0.0 ? low : high;
    return low + (high - low) * exp_f64(exponent * log_f64(share < 1.0 ? share : 1.0));
}

static enum Status heat(struct Set *set, double temperature)
{
    float product = (float)(set->temperature * temperature);
    if (!(product > 0.0f))
        return set_keep_largest(set);
    set->temperature = product < FLT_MAX ? product : FLT_MAX;
    return STATUS_OK;
}

/* The tokens whose surprise is nearest to the expected one (Meister et al., arXiv 2202.00666). */
static enum Status keep_typical(struct Set *set, double mass, int32_t min_keep)
{
    struct Moments moments = set_moments(set);
    float typical = (float)(set->largest + set->temperature * moments.weighted / moments.weight);
    float *nearness = malloc((size_t)set->n * sizeof *nearness);
    if (!nearness)
        return STATUS_NO_MEMORY;
    for (int32_t i = 0; i < set->n; i++) {
        float distance = set->logits[i] - typical;
        nearness[i] = distance < 0.0f ? distance : -distance;
    }
    struct Border border;
    enum Status status =
        set_border(set, nearness, 4.0f * set->temperature, mass * SLACK * moments.weight, min_keep, &border);
    if (!status)
        status = set_narrow(set, nearness, border);
    free(nearness);
    return status;
}

static enum Status keep_within_sigmas(struct Set *set, double n_sigmas, int32_t min_keep)
{
    double sum = 0.0, squares = 0.0;
    int32_t n = 0;
    for (int32_t i = 0; i < set->n; i++)
        if (set->logits[i] >= -FLT_MAX) {
            sum += (double)set->logits[i] - set->largest;
            n++;
        }
    for (int32_t i = 0; i < set->n; i++)
        if (set->logits[i] >= -FLT_MAX) {
            double off = (double)set->logits[i] - set->largest - sum / n;
            squares += off * off;
        }
    return keep_from(set, finite(set->largest - n_sigmas * square_root(squares / n)), min_keep);
}

/* Of the tokens that reach the threshold only the least likely stay. */
static enum Status exclude_top(struct Set *set, double threshold, int32_t min_keep)
{
    float bar = logit_of_share(set, threshold, set_moments(set).weight), least = FLT_MAX;
    int32_t n_stay = 0;
    for (int32_t i = 0; i < set->n; i++)
        if (set->logits[i] >= bar && set->logits[i] < least)
            least = set->logits[i];
    for (int32_t i = 0; i < set->n; i++)
        n_stay += set->logits[i] <= least && set->logits[i] >= -FLT_MAX;
    if (least >= set->largest || n_stay < min_keep)
        return STATUS_OK;
    float *minus = malloc((size_t)set->n * sizeof *minus);
    if (!minus)
        return STATUS_NO_MEMORY;
    for (int32_t i = 0; i < set->n; i++)
        minus[i] = -set->logits[i];
    enum Status status = set_narrow(set, minus, (struct Border){ -least, set->n });
    free(minus);
    return status;
}

static bool coin(const struct NoiseKey *key, double probability)
{
    struct NoiseKey own = *key;
    uint32_t words[4];
    own.purpose = NOISE_XTC;
    noise_words(&own, 0, words);
    return ((double)words[0] + 0.5) * 0x1p-32 < probability;
}

enum Status set_filter(struct Set *set, const struct SamplerStep *step, int32_t min_keep, const struct NoiseKey *key)
{
    double value = step->parameters[0], weight, epsilon;
    struct Moments moments;
    int32_t least;
    switch (step->kind) {
    case SAMPLER_TEMPERATURE:
        return heat(set, dynamic_temperature(set, value, step->parameters[1], step->parameters[2]));
    case SAMPLER_TOP_K:
        least = value < set->n ? (int32_t)value : set->n;
        least = least > min_keep ? least : min_keep;
        return least >= set->n ? STATUS_OK : keep_best(set, least);
    case SAMPLER_TOP_P:
        weight = set_moments(set).weight;
        return keep_mass(set, (value - (1.0 - SLACK)) * weight, min_keep);
    case SAMPLER_MIN_P: return keep_from(set, logit_of_share(set, value, 1.0), min_keep);
    case SAMPLER_TYPICAL_P: return keep_typical(set, value, min_keep);
    case SAMPLER_EPSILON_CUTOFF: return keep_from(set, logit_of_share(set, value, set_moments(set).weight), min_keep);
    case SAMPLER_ETA_CUTOFF:
        moments = set_moments(set);
        epsilon = square_root(value) * exp_f64(-entropy(moments));
        return keep_from(set, logit_of_share(set, value < epsilon ? value : epsilon, moments.weight), min_keep);
    case SAMPLER_TOP_N_SIGMA: return keep_within_sigmas(set, value, min_keep);
    case SAMPLER_XTC: return coin(key, value) ? exclude_top(set, step->parameters[1], min_keep) : STATUS_OK;
    case SAMPLER_MIROSTAT:
        return keep_from(set, logit_of_share(set, exp_f64(-value * 0.6931471805599453), set_moments(set).weight),
                         min_keep);
    }
    return STATUS_BAD_ARGUMENT;
}
