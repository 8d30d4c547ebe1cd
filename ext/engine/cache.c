/* Pages of 256 positions, taken when first reached and kept until the cache goes. */
#include "cache.h"

#include <stdlib.h>
#include <string.h>

static size_t element_bytes(enum KvFormat format) { return format == KV_F32 ? 4 : format == KV_F16 ? 2 : 1; }

size_t kv_block_bytes(enum KvFormat format, int32_t head_width)
{
    size_t scales = format == KV_Q8 ? sizeof(float) : 0;
    return (size_t)2 * BLOCK_POSITIONS * ((size_t)head_width * element_bytes(format) + scales);
}

enum Status cache_create(struct Cache **created, const struct Plan *plan, enum KvFormat format, int32_t context)
{
    if (context < 1 || format < 0 || format >= N_KV_FORMATS)
        return STATUS_BAD_ARGUMENT;
    struct Cache *cache = calloc(1, sizeof *cache);
    if (!cache)
        return STATUS_NO_MEMORY;
    cache->format = format;
    cache->n_layers = plan->n_layers;
    cache->n_kv_heads = plan->n_kv_heads;
    cache->head_width = (plan->head_dim + LANES - 1) / LANES * LANES;
    cache->context = context;
    cache->ropes = plan->ropes;
    cache->block_bytes = kv_block_bytes(format, cache->head_width);
    cache->page_bytes = cache->block_bytes * PAGE_BLOCKS * cache->n_kv_heads * cache->n_layers;
    cache->pages = calloc((size_t)context / PAGE_POSITIONS + 1, sizeof *cache->pages);
    if (!cache->pages) {
        free(cache);
        return STATUS_NO_MEMORY;
    }
    *created = cache;
    return STATUS_OK;
}

void cache_destroy(struct Cache *cache)
{
    if (!cache)
        return;
    for (int32_t i = 0; i < cache->n_pages; i++)
        arena_unmap(&cache->pages[i]);
    free(cache->pages);
    free(cache);
}

int32_t cache_length(const struct Cache *cache) { return cache->length; }

void cache_set_ropes(struct Cache *cache, const struct Rope *ropes) { cache->ropes = ropes; }

size_t cache_bytes(const struct Cache *cache) { return cache->page_bytes * (size_t)cache->n_pages; }

enum Status cache_rewind(struct Cache *cache, int32_t length)
{
    if (length < 0 || length > cache->length)
        return STATUS_BAD_POSITION;
    cache->length = length;
    return STATUS_OK;
}

enum Status cache_commit(struct Cache *cache, const int32_t *path, int32_t n)
{
    (void)cache, (void)path;
    return n == 0 ? STATUS_OK : STATUS_UNSUPPORTED;   /* forward takes no DRAFT rows yet */
}

enum Status cache_reserve(struct Cache *cache, int32_t n_positions)
{
    while (cache->n_pages * PAGE_POSITIONS < n_positions) {
        enum Status status = arena_map(&cache->pages[cache->n_pages], cache->page_bytes);
        if (status != STATUS_OK)
            return status;
        cache->n_pages++;
    }
    return STATUS_OK;
}

/* One slot at a time, K by dimension and V by position, as store_kv lays them. */
void cache_fill_unseen(struct Cache *cache, uint8_t byte)
{
    size_t element = element_bytes(cache->format), width = (size_t)cache->head_width;
    for (int32_t position = cache->length; position < cache->n_pages * PAGE_POSITIONS; position++)
        for (int32_t layer = 0; layer < cache->n_layers; layer++)
            for (int32_t head = 0; head < cache->n_kv_heads; head++) {
                uint8_t *block = cache_block(cache, layer, head, position / BLOCK_POSITIONS);
                size_t slot = (size_t)position % BLOCK_POSITIONS;
                for (size_t d = 0; d < width; d++)
                    memset(block + ((slot / LANES * width + d) * LANES + slot % LANES) * element, byte, element);
                memset(block + (BLOCK_POSITIONS + slot) * width * element, byte, width * element);
                float *scales = (float *)(block + 2 * BLOCK_POSITIONS * width * element);
                if (cache->format == KV_Q8) {
                    memset(scales + slot, byte, sizeof *scales);
                    memset(scales + BLOCK_POSITIONS + slot, byte, sizeof *scales);
                }
            }
}
