/* A worker goes through its share from the front, so that memory comes as one stream. One that is through and has waited
   a while takes what is left at the back of others' shares: a core that is slower, or wanted elsewhere, holds up less.
   Not at once: on equal cores the line of a claim would then go to and fro for panels that their owner has sooner. */
#include "deal.h"

enum {
    UNIT_BYTES = 32768,
    UNITS_PARTED = 16,
    COUNT_BITS = 20,
    COUNT_MASK = (1 << COUNT_BITS) - 1,
    ROUND_SHIFT = 2 * COUNT_BITS
};

/* A claim: the round, units taken from the front, units taken from the back. One of an earlier round means nothing yet. */
static uint64_t untouched(uint32_t round) { return (uint64_t)round << ROUND_SHIFT; }

void claims_reset(struct Claim *claims, int32_t n_workers, uint32_t round)
{
    for (int32_t i = 0; i < n_workers; i++)
        atomic_store_explicit(&claims[i].taken, untouched(round), memory_order_relaxed);
}

/* The panel at which a share of the bytes ends. */
static int32_t panel_at(const struct Matrix *matrix, size_t n_bytes)
{
    int32_t panel = 0;
    for (int32_t s = 0; s < matrix->n_segments; s++) {
        const struct Segment *segment = &matrix->segments[s];
        size_t segment_bytes = segment->panel_bytes * (size_t)segment->n_panels;
        if (n_bytes < segment_bytes)
            return panel + (int32_t)(n_bytes / segment->panel_bytes);
        n_bytes -= segment_bytes;
        panel += segment->n_panels;
    }
    return panel;
}

static int32_t border(const struct Deal *deal, int32_t i)
{
    if (i == 0 || i == deal->n_workers)
        return i == 0 ? 0 : deal->n;
    int32_t item = deal->matrix ? panel_at(deal->matrix, deal->matrix->n_bytes * (size_t)i / (size_t)deal->n_workers)
                                : (int32_t)((int64_t)deal->n * i / deal->n_workers);
    return deal->whole == 1 ? item : (item + deal->whole / 2) / deal->whole * deal->whole;
}

/* A share is kept for its owner alone, and its tail is whoever's comes first; of a small share all is kept. */
static void part(const struct Deal *deal, int32_t worker, struct Range *kept, struct Range *tail)
{
    const int32_t first = border(deal, worker), last = border(deal, worker + 1);
    const int32_t n_units = (last - first) / deal->unit;
    const bool is_parted = deal->n_workers > 1 && n_units >= UNITS_PARTED;
    const int32_t middle = is_parted ? first + (n_units + 1) / 2 * deal->unit : last;
    *kept = (struct Range){ first, middle };
    *tail = (struct Range){ middle, last };
}

static struct Deal begin(struct Deal deal, struct Pool *pool, struct Claim *claims, int32_t worker)
{
    deal.pool = pool;
    deal.claims = claims;
    deal.round = pool_phase(pool);
    deal.worker = worker;
    deal.n_workers = pool_workers(pool);
    part(&deal, worker, &deal.kept, &deal.tail);
    return deal;
}

struct Deal deal_panels(const struct Matrix *matrix, int32_t whole, struct Pool *pool, struct Claim *claims,
                        int32_t worker)
{
    const int32_t unit = (int32_t)(UNIT_BYTES * (size_t)matrix->n_panels / matrix->n_bytes);
    return begin((struct Deal){ .matrix = matrix,
                                .n = matrix->n_panels,
                                .whole = whole,
                                .unit = unit <= whole ? whole : round_up(unit, whole) },
                 pool, claims, worker);
}

struct Deal deal_tasks(int32_t n, struct Pool *pool, struct Claim *claims, int32_t worker)
{
    return begin((struct Deal){ .n = n, .whole = 1, .unit = n / COUNT_MASK + 1 }, pool, claims, worker);
}

int32_t deal_first(const struct Matrix *matrix, int32_t n_workers, int32_t worker)
{
    return border(&(struct Deal){ .matrix = matrix, .n = matrix->n_panels, .whole = 1, .n_workers = n_workers },
                  worker);
}

/* The next of a worker's tail: half of what is left, from its front for itself, from its back for others. */
static bool take(const struct Deal *deal, int32_t owner, struct Range tail, struct Range *piece)
{
    const int32_t n = (tail.last - tail.first + deal->unit - 1) / deal->unit;
    const bool is_own = owner == deal->worker;
    struct Claim *claim = &deal->claims[owner];
    uint64_t seen = atomic_load_explicit(&claim->taken, memory_order_relaxed), next;
    int32_t front, back, taken;
    do {
        uint64_t now = seen >> ROUND_SHIFT == untouched(deal->round) >> ROUND_SHIFT ? seen : untouched(deal->round);
        front = (int32_t)(now >> COUNT_BITS & COUNT_MASK), back = (int32_t)(now & COUNT_MASK);
        taken = (n - front - back + 1) / 2;
        if (taken <= 0)
            return false;
        next = now + ((uint64_t)taken << (is_own ? COUNT_BITS : 0));
    } while (
        !atomic_compare_exchange_weak_explicit(&claim->taken, &seen, next, memory_order_relaxed, memory_order_relaxed));
    piece->first = tail.first + (is_own ? front : n - back - taken) * deal->unit;
    piece->last = piece->first + taken * deal->unit;
    if (piece->last > tail.last)
        piece->last = tail.last;
    return true;
}

bool deal_next(struct Deal *deal, struct Range *piece)
{
    if (deal->kept.first < deal->kept.last) {
        *piece = deal->kept;
        deal->kept.first = deal->kept.last;
        return true;
    }
    if (take(deal, deal->worker, deal->tail, piece))
        return true;
    if (pool_barrier_soon(deal->pool))
        return false;
    for (int32_t i = 1; i < deal->n_workers; i++) {
        const int32_t owner = (deal->worker + i) % deal->n_workers;
        struct Range kept, tail;
        part(deal, owner, &kept, &tail);
        if (take(deal, owner, tail, piece))
            return true;
    }
    pool_barrier(deal->pool);
    return false;
}
