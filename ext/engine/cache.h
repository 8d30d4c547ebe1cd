/* Keys and values by position: slots are addresses, and arithmetic never sees them. */
#ifndef RILLM_CACHE_H
#define RILLM_CACHE_H

#include "../rillm.h"

struct Slot {
    struct Page *page;        /* kept for the next page that falls here */
    int32_t number;           /* which page of the text it holds: positions from number · PAGE_POSITIONS; -1: none */
};

/* Layers that look equally far back share a ring of pages. The first n_kept pages stay where they are. */
struct Ring {
    int32_t window;           /* of its layers: positions seen, one's own included; 0: all */
    int32_t reach;            /* the most positions that are seen in a run, one's own included */
    bool slides;              /* by the session's policy, beyond its context */
    int32_t n_layers, n_kept, n_slots;
    size_t page_bytes;
    struct Slot *slots;       /* [n_slots] */
};

struct Place { int32_t ring, index; /* of a layer: which ring, and where in its pages */ };

struct Cache {
    enum KvFormat format;
    int32_t n_layers, n_kv_heads, head_width;  /* head_width: head_dim padded to 16 */
    struct Context context;
    int32_t length, n_drafted;                 /* drafts lie past the length */
    int32_t n_rings;
    struct Ring *rings;                        /* [n_rings] */
    struct Place *places;                      /* [n_layers] */
    size_t block_bytes;
    const struct Rope *ropes;                  /* [n_ropes]: the plan's, or its own */
    int32_t next_position, last_row, n_rows_drafted; /* of the step being checked */
};

/* Slots for the positions from the length to `end`, and nobody else's pages among them. */
enum Status cache_reserve(struct Cache *cache, int32_t end);

/* What a row at `position` sees: [0, kept) and [first, position]. */
struct Sight { int32_t kept, first; };
static inline struct Sight ring_sight(const struct Cache *cache, const struct Ring *ring, int32_t position)
{
    if (ring->slides && position >= cache->context.length)
        return (struct Sight){ cache->context.n_keep, position - ring->reach + 1 };
    return (struct Sight){ 0, ring->window && position >= ring->window ? position - ring->window + 1 : 0 };
}

static inline struct Sight cache_sight(const struct Cache *cache, int32_t layer, int32_t position)
{
    return ring_sight(cache, &cache->rings[cache->places[layer].ring], position);
}

static inline int32_t sight_kept_blocks(struct Sight sight)
{
    return (sight.kept + BLOCK_POSITIONS - 1) / BLOCK_POSITIONS;
}

static inline int32_t sight_blocks(struct Sight sight, int32_t position)
{
    return sight_kept_blocks(sight) + position / BLOCK_POSITIONS + 1 - sight.first / BLOCK_POSITIONS;
}

/* Where a row is to those it keeps, if their distance is not that of their positions; else -1. */
static inline int32_t cache_nearer_position(const struct Cache *cache, int32_t position)
{
    bool is_nearer = cache->context.policy == CONTEXT_SINK && position >= cache->context.length;
    return is_nearer ? cache->context.length - 1 : -1;
}

int32_t cache_blocks_at_most(const struct Cache *cache, int32_t position);

static inline struct Slot *ring_slot(const struct Ring *ring, int32_t page)
{
    return &ring->slots[page < ring->n_slots ? page
                                             : ring->n_kept + (page - ring->n_kept) % (ring->n_slots - ring->n_kept)];
}

struct Page {
    _Atomic int32_t n_owners;
    struct Arena arena;
};

/* Of a page [layer of the ring][head][block]: K then V of BLOCK_POSITIONS positions of one head. */
static inline uint8_t *cache_block(const struct Cache *cache, int32_t layer, int32_t head, int32_t block)
{
    struct Place place = cache->places[layer];
    size_t in_page = ((size_t)place.index * cache->n_kv_heads + head) * PAGE_BLOCKS + block % PAGE_BLOCKS;
    return ring_slot(&cache->rings[place.ring], block / PAGE_BLOCKS)->page->arena.base + in_page * cache->block_bytes;
}

#endif
