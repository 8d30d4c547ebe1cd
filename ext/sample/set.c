/* Sums over a set and cuts through it: nothing is sorted, a border is found byte by byte of its key. */
#include <stdlib.h>

#include "set.h"

enum { BLOCK = 256 };

/* x = (logit − largest) / temperature, at least −87, so that −inf weighs 1e-38; compared as integers, because a
   compiler makes no vectors of comparisons that may trap. */
static inline float scaled(const struct Set *set, float logit)
{
    int32_t bits = (int32_t)bits_of_f32((set->largest - logit) / set->temperature), most = 0x42ae0000;
    return -f32_of_bits((uint32_t)(bits < most ? bits : most));
}

/* For −87 ≤ x ≤ 0, within 2 ulp; without branches, so that a compiler makes vectors of it. */
static inline float exp_f32(float x)
{
    float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
    float series = 1.0f / 5040.0f;
    series = series * r + 1.0f / 720.0f;
    series = series * r + 1.0f / 120.0f;
    series = series * r + 1.0f / 24.0f;
    series = series * r + 1.0f / 6.0f;
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    return series * f32_of_bits((uint32_t)((int32_t)n + 127) << 23);
}

bool set_open(struct Set *set, const struct Kernels *kernels, const float *logits, int32_t n)
{
    struct Extremes found = { INT32_MAX, INT32_MIN };
    int32_t *greatest = malloc((size_t)(n / NOISE_TOKENS + 1) * sizeof *greatest);
    for (int32_t i = 0; i < n; i += NOISE_TOKENS) {
        struct Extremes tile = kernels->extremes(logits + i, n - i < NOISE_TOKENS ? n - i : NOISE_TOKENS);
        found.least = tile.least < found.least ? tile.least : found.least;
        found.greatest = tile.greatest > found.greatest ? tile.greatest : found.greatest;
        if (greatest)
            greatest[i / NOISE_TOKENS] = tile.greatest;
    }
    float largest = f32_of_order(found.greatest);
    *set = (struct Set){
        .kernels = kernels, .logits = logits, .n = n, .largest = largest, .temperature = 1.0f, .greatest = greatest
    };
    bool has_nan = found.least < order_of_bits(0xff800000) || found.greatest > order_of_bits(0x7f800000);
    return !has_nan && largest >= -FLT_MAX && largest <= FLT_MAX;
}

void set_close(struct Set *set)
{
    free(set->own_logits);
    free(set->own_tokens);
    free(set->greatest);
}

float set_weight(const struct Set *set, float logit) { return exp_f32(scaled(set, logit)); }

/* Sixteen lanes a block of 256, blocks in order: the same sum whatever the compiler makes of it. */
struct Moments set_moments(const struct Set *set)
{
    struct Moments sum = { 0.0, 0.0 };
    for (int32_t begin = 0; begin < set->n; begin += BLOCK) {
        float weight[LANES] = { 0 }, weighted[LANES] = { 0 };
        int32_t n = set->n - begin < BLOCK ? set->n - begin : BLOCK, i = 0;
        const float *logits = set->logits + begin;
        for (; i + LANES <= n; i += LANES)
            for (int32_t lane = 0; lane < LANES; lane++) {
                float x = scaled(set, logits[i + lane]), w = exp_f32(x);
                weight[lane] += w;
                weighted[lane] += w * x;
            }
        for (; i < n; i++) {
            float x = scaled(set, logits[i]), w = exp_f32(x);
            weight[i % LANES] += w;
            weighted[i % LANES] += w * x;
        }
        for (int32_t lane = 0; lane < LANES; lane++) {
            sum.weight += weight[lane];
            sum.weighted += weighted[lane];
        }
    }
    return sum;
}

static int32_t count_from(const float *values, int32_t n, float bar)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++)
        count += values[i] >= bar;
    return count;
}

int32_t set_count(const struct Set *set, float bar) { return count_from(set->logits, set->n, bar); }

struct Entry {
    uint32_t order;
    int32_t place;
    float weight;
};
static const uint32_t TOP = 0x80000000; /* from signed to unsigned order */

/* Whether a vector's worth of places can be passed over. */
static bool all_below(const float *key, int32_t begin, int32_t n, float bar)
{
    return begin % LANES == 0 && begin + LANES <= n && count_from(key + begin, LANES, bar) == 0;
}

static double collect(const struct Set *set, const float *key, float bar, struct Entry *entries)
{
    double sum = 0.0;
    for (int32_t i = 0; i < set->n; i++) {
        if (all_below(key, i, set->n, bar))
            i += LANES - 1;
        else if (key[i] >= bar) {
            uint32_t order = (uint32_t)order_of_f32(key[i] + 0.0f) ^ TOP;
            *entries = (struct Entry){ order, i, set_weight(set, set->logits[i]) };
            sum += entries++->weight;
        }
    }
    return sum;
}

/* Each round fixes one more byte of the border's key, from the top: those above it are in, those below out. */
static struct Border find_border(struct Entry *entries, int32_t n, double goal, int32_t least)
{
    uint32_t order = 0;
    double sum = 0.0;
    int32_t count = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        double weights[256] = { 0 };
        int32_t counts[256] = { 0 }, left = 0;
        for (int32_t i = 0; i < n; i++) {
            weights[entries[i].order >> shift & 255] += entries[i].weight;
            counts[entries[i].order >> shift & 255]++;
        }
        uint32_t lowest = 0, byte = 255;
        while (counts[lowest] == 0)
            lowest++;
        while (byte > lowest && (sum + weights[byte] < goal || count + counts[byte] < least)) {
            sum += weights[byte];
            count += counts[byte--];
        }
        for (int32_t i = 0; i < n; i++)
            if ((entries[i].order >> shift & 255) == byte)
                entries[left++] = entries[i];
        n = left;
        order = order << 8 | byte;
    }
    int32_t last = 0; /* of those whose key is the border's */
    while (last < n - 1 && (sum + entries[last].weight < goal || count + 1 < least)) {
        sum += entries[last++].weight;
        count++;
    }
    return (struct Border){ f32_of_order((int32_t)(order ^ TOP)), entries[last].place };
}

static float largest_among(const struct Set *set, const float *key, int32_t n)
{
    return f32_of_order(set->kernels->extremes(key, n).greatest);
}

enum Status set_border(const struct Set *set, const float *key, float width, double goal, int32_t least,
                       struct Border *border)
{
    float largest = key == set->logits ? set->largest : largest_among(set, key, set->n);
    *border = (struct Border){ -FLT_MAX, set->n };
    if (count_from(key, set->n, -FLT_MAX) <= least)
        return STATUS_OK;
    for (width = width < 0x1p-10f ? 0x1p-10f : width;; width *= 2.0f) {
        float bar = largest - width >= -FLT_MAX ? largest - width : -FLT_MAX;
        int32_t n = count_from(key, set->n, bar);
        if (n < least && bar > -FLT_MAX)
            continue;
        struct Entry *entries = malloc((size_t)n * sizeof *entries);
        if (!entries)
            return STATUS_NO_MEMORY;
        bool enough = collect(set, key, bar, entries) >= goal && n >= least;
        if (enough)
            *border = find_border(entries, n, goal, least);
        free(entries);
        if (enough || bar == -FLT_MAX)
            return STATUS_OK;
    }
}

static bool has_room(struct Set *set, int32_t n)
{
    if (!set->own_logits) {
        set->own_logits = malloc((size_t)n * sizeof *set->own_logits);
        set->own_tokens = malloc((size_t)n * sizeof *set->own_tokens);
    }
    return set->own_logits && set->own_tokens;
}

static void keep(struct Set *set, int32_t n, int32_t place)
{
    set->own_logits[n] = set->logits[place];
    set->own_tokens[n] = set->tokens ? set->tokens[place] : place;
}

static void settle(struct Set *set, int32_t n)
{
    set->logits = set->own_logits;
    set->tokens = set->own_tokens;
    set->n = n;
    set->largest = largest_among(set, set->logits, n);
}

enum Status set_narrow(struct Set *set, const float *key, struct Border border)
{
    int32_t n = 0;
    if (!has_room(set, count_from(key, set->n, border.key)))
        return STATUS_NO_MEMORY;
    for (int32_t i = 0; i < set->n; i++) {
        if (all_below(key, i, set->n, border.key))
            i += LANES - 1;
        else if (key[i] > border.key || (key[i] == border.key && i <= border.place))
            keep(set, n++, i);
    }
    settle(set, n);
    return STATUS_OK;
}

enum Status set_keep_largest(struct Set *set)
{
    int32_t place = 0;
    while (set->n - place > BLOCK && largest_among(set, set->logits + place, BLOCK) < set->largest)
        place += BLOCK;
    while (set->logits[place] != set->largest)
        place++;
    if (!has_room(set, 1))
        return STATUS_NO_MEMORY;
    keep(set, 0, place);
    settle(set, 1);
    return STATUS_OK;
}
