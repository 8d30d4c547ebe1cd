/* Keys and values by position: slots are addresses, and arithmetic never sees them. */
#ifndef RILLM_CACHE_H
#define RILLM_CACHE_H

#include "../rillm.h"

struct Cache {
    enum KvFormat format;
    int32_t n_layers, n_kv_heads, head_width;  /* head_width: head_dim padded to 16 */
    int32_t context, length;
    int32_t n_pages;
    size_t block_bytes, page_bytes;
    struct Arena *pages;                       /* [⌈context / PAGE_POSITIONS⌉], mapped as they are reached */
    const struct Rope *ropes;                  /* [n_ropes]: the plan's, or its own */
    int32_t next_position, last_row;           /* of the step being checked */
};

enum Status cache_reserve(struct Cache *cache, int32_t n_positions);

/* [page][layer][head][block]: K then V of BLOCK_POSITIONS positions of one head. */
static inline uint8_t *cache_block(const struct Cache *cache, int32_t layer, int32_t head, int32_t block)
{
    size_t in_page = ((size_t)layer * cache->n_kv_heads + head) * PAGE_BLOCKS + block % PAGE_BLOCKS;
    return cache->pages[block / PAGE_BLOCKS].base + in_page * cache->block_bytes;
}

#endif
