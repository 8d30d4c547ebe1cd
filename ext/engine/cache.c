/* A ring of pages for all layers that look equally far back. A page is taken when its first position is reached, shared
   by whoever holds the same text, and copied before a sharer writes; its slot is used again once nobody looks back. */
#include "cache.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static size_t element_bytes(enum KvFormat format) { return format == KV_F32 ? 4 : format == KV_F16 ? 2 : 1; }

size_t kv_block_bytes(enum KvFormat format, int32_t head_width)
{
    size_t scales = format == KV_Q8 ? sizeof(float) : 0;
    return (size_t)2 * BLOCK_POSITIONS * ((size_t)head_width * element_bytes(format) + scales);
}

/* ---- pages ---------------------------------------------------------------------------------------------- */

enum Status page_create(struct Page **created, size_t n_bytes)
{
    struct Page *page = calloc(1, sizeof *page);
    if (!page)
        return STATUS_NO_MEMORY;
    enum Status status = arena_map(&page->arena, n_bytes);
    if (status != STATUS_OK) {
        free(page);
        return status;
    }
    page->n_owners = 1;
    *created = page;
    return STATUS_OK;
}

struct Page *page_retain(struct Page *page)
{
    atomic_fetch_add(&page->n_owners, 1);
    return page;
}

void page_release(struct Page *page)
{
    if (!page || atomic_fetch_sub(&page->n_owners, 1) > 1)
        return;
    arena_unmap(&page->arena);
    free(page);
}

uint8_t *page_data(struct Page *page) { return page->arena.base; }

static bool is_shared(struct Page *page) { return atomic_load(&page->n_owners) > 1; }

/* ---- rings ---------------------------------------------------------------------------------------------- */

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

static int32_t pages_of(int32_t n_positions)
{
    return n_positions / PAGE_POSITIONS + (n_positions % PAGE_POSITIONS != 0);
}

static bool holds(const struct Ring *ring, int32_t page)
{
    return ring_slot(ring, page)->page && ring_slot(ring, page)->number == page;
}

/* Between two rows of a step lie up to MAX_ROWS positions, and the first of them still looks back. */
static void ring_measure(struct Ring *ring, const struct Context *context)
{
    const bool sees_all = ring->window == 0 || ring->window > context->length;
    ring->slides = sees_all && context->policy != CONTEXT_STOP;
    ring->reach = sees_all ? context->length - context->n_keep : ring->window;
    ring->n_kept = ring->slides ? pages_of(context->n_keep) : 0;
    ring->n_slots = ring->n_kept + (int32_t)(((int64_t)ring->reach + MAX_ROWS - 2) / PAGE_POSITIONS) + 2;
    ring->n_slots = least(ring->n_slots, pages_of(context->limit));
}

static int32_t ring_of(struct Cache *cache, int32_t window)
{
    for (int32_t i = 0; i < cache->n_rings; i++)
        if (cache->rings[i].window == window)
            return i;
    cache->rings[cache->n_rings].window = window;
    return cache->n_rings++;
}

enum Status cache_create(struct Cache **created, const struct Plan *plan, enum KvFormat format,
                         const struct Context *wanted)
{
    struct Context context = *wanted;
    const bool stops = context.policy == CONTEXT_STOP;
    if (context.limit == 0)
        context.limit = stops ? context.length : POSITIONS_AT_MOST;
    if (context.length < 1 || format < 0 || format >= N_KV_FORMATS || context.n_keep < 0
        || context.n_keep >= context.length || context.limit < context.length || context.limit > POSITIONS_AT_MOST
        || (stops && context.n_keep > 0))
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
    cache->rings = calloc((size_t)plan->n_layers + 1, sizeof *cache->rings);
    cache->places = calloc((size_t)plan->n_layers + 1, sizeof *cache->places);
    bool has_memory = cache->rings && cache->places;
    for (int32_t l = 0; has_memory && l < plan->n_layers; l++) {
        cache->places[l].ring = ring_of(cache, plan->layers[l].window);
        cache->places[l].index = cache->rings[cache->places[l].ring].n_layers++;
    }
    for (int32_t i = 0; has_memory && i < cache->n_rings; i++) {
        struct Ring *ring = &cache->rings[i];
        ring_measure(ring, &context);
        ring->page_bytes = cache->block_bytes * PAGE_BLOCKS * (size_t)(cache->n_kv_heads * ring->n_layers);
        ring->slots = calloc((size_t)ring->n_slots, sizeof *ring->slots);
        has_memory = ring->slots != NULL;
    }
    if (!has_memory) {
        cache_destroy(cache);
        return STATUS_NO_MEMORY;
    }
    *created = cache;
    return STATUS_OK;
}

void cache_destroy(struct Cache *cache)
{
    if (!cache)
        return;
    for (int32_t i = 0; i < cache->n_rings; i++) {
        for (int32_t s = 0; cache->rings[i].slots && s < cache->rings[i].n_slots; s++)
            page_release(cache->rings[i].slots[s].page);
        free(cache->rings[i].slots);
    }
    free(cache->rings);
    free(cache->places);
    free(cache);
}

int32_t cache_length(const struct Cache *cache) { return cache->length; }

void cache_set_ropes(struct Cache *cache, const struct Rope *ropes) { cache->ropes = ropes; }

size_t cache_bytes(const struct Cache *cache, bool shared_only)
{
    size_t n_bytes = 0;
    for (int32_t i = 0; i < cache->n_rings; i++)
        for (int32_t s = 0; s < cache->rings[i].n_slots; s++) {
            struct Page *page = cache->rings[i].slots[s].page;
            n_bytes += page && (is_shared(page) || !shared_only) ? cache->rings[i].page_bytes : 0;
        }
    return n_bytes;
}

int32_t cache_blocks_at_most(const struct Cache *cache, int32_t position)
{
    int32_t most = 0;
    for (int32_t i = 0; i < cache->n_rings; i++) {
        int32_t n = sight_blocks(ring_sight(cache, &cache->rings[i], position), position);
        most = n > most ? n : most;
    }
    return most;
}

static enum Status ring_reserve(struct Ring *ring, int32_t page)
{
    struct Slot *slot = ring_slot(ring, page);
    const bool is_held = holds(ring, page);
    if (slot->page && !is_shared(slot->page)) {
        slot->number = page;
        return STATUS_OK;
    }
    struct Page *fresh = NULL;
    enum Status status = page_create(&fresh, ring->page_bytes);
    if (status != STATUS_OK)
        return status;
    if (is_held)
        memcpy(fresh->arena.base, slot->page->arena.base, ring->page_bytes);
    page_release(slot->page);
    *slot = (struct Slot){ fresh, page };
    return STATUS_OK;
}

enum Status cache_reserve(struct Cache *cache, int32_t end)
{
    for (int32_t i = 0; i < cache->n_rings; i++)
        for (int32_t page = cache->length / PAGE_POSITIONS; page < pages_of(end); page++) {
            enum Status status = ring_reserve(&cache->rings[i], page);
            if (status != STATUS_OK)
                return status;
        }
    return STATUS_OK;
}

/* ---- going back, and going on elsewhere ------------------------------------------------------------------- */

bool cache_needs(const struct Cache *cache, int32_t ring, int32_t length, int32_t page)
{
    struct Sight sight = ring_sight(cache, &cache->rings[ring], length);
    return page < pages_of(length) && (page < pages_of(sight.kept) || page >= sight.first / PAGE_POSITIONS);
}

static bool is_held_to(const struct Cache *cache, int32_t length)
{
    for (int32_t i = 0; i < cache->n_rings; i++)
        for (int32_t page = 0; page < pages_of(length); page++)
            if (cache_needs(cache, i, length, page) && !holds(&cache->rings[i], page))
                return false;
    return true;
}

int32_t cache_earliest(const struct Cache *cache)
{
    int64_t earliest = 0;
    for (int32_t i = 0; i < cache->n_rings; i++) {
        const struct Ring *ring = &cache->rings[i];
        int32_t page = pages_of(cache->length);
        while (page > 0 && holds(ring, page - 1))
            page--;
        int64_t from = page ? (int64_t)page * PAGE_POSITIONS + ring->reach - 1 : 0;
        earliest = from > earliest ? from : earliest;
    }
    return earliest < cache->length ? (int32_t)earliest : cache->length;
}

enum Status cache_rewind(struct Cache *cache, int32_t length)
{
    if (length < 0 || length > cache->length)
        return STATUS_BAD_POSITION;
    if (!is_held_to(cache, length))
        return STATUS_NOT_HELD;
    for (int32_t i = 0; i < cache->n_rings; i++)
        for (int32_t s = 0; s < cache->rings[i].n_slots; s++)
            if (cache->rings[i].slots[s].number >= pages_of(length))
                cache->rings[i].slots[s].number = -1;
    cache->length = length;
    cache->n_drafted = 0;
    return STATUS_OK;
}

/* A chain of drafts already lies where it belongs: in the slots past the length, which are nobody's. */
enum Status cache_commit(struct Cache *cache, const int32_t *path, int32_t n)
{
    if (n < 0 || n > cache->n_drafted)
        return STATUS_BAD_ARGUMENT;
    for (int32_t i = 0; i < n; i++)
        if (path[i] != i)
            return STATUS_BAD_ARGUMENT;
    cache->length += n;
    cache->n_drafted = 0;
    return STATUS_OK;
}

int32_t cache_rings(const struct Cache *cache) { return cache->n_rings; }

size_t cache_page_bytes(const struct Cache *cache, int32_t ring) { return cache->rings[ring].page_bytes; }

struct Page *cache_page(const struct Cache *cache, int32_t ring, int32_t page)
{
    bool is_held = page < pages_of(cache->length) && holds(&cache->rings[ring], page);
    return is_held ? ring_slot(&cache->rings[ring], page)->page : NULL;
}

void cache_adopt(struct Cache *cache, int32_t ring, int32_t number, struct Page *page)
{
    struct Slot *slot = ring_slot(&cache->rings[ring], number);
    struct Page *previous = slot->page;
    *slot = (struct Slot){ page_retain(page), number };
    page_release(previous);
}

enum Status cache_resume(struct Cache *cache, int32_t length)
{
    if (length < 0 || length > cache->context.limit)
        return STATUS_BAD_POSITION;
    if (!is_held_to(cache, length))
        return STATUS_NOT_HELD;
    cache->length = length;
    return STATUS_OK;
}

/* ---- slots past the length -------------------------------------------------------------------------------- */

/* One position of a head, K by dimension and V by position, as store_kv lays them. */
static void fill_position(const struct Cache *cache, uint8_t *block, size_t slot, uint8_t byte)
{
    size_t element = element_bytes(cache->format), width = (size_t)cache->head_width;
    for (size_t d = 0; d < width; d++)
        memset(block + ((slot / LANES * width + d) * LANES + slot % LANES) * element, byte, element);
    memset(block + (BLOCK_POSITIONS + slot) * width * element, byte, width * element);
    float *scales = (float *)(block + 2 * BLOCK_POSITIONS * width * element);
    if (cache->format == KV_Q8) {
        memset(scales + slot, byte, sizeof *scales);
        memset(scales + BLOCK_POSITIONS + slot, byte, sizeof *scales);
    }
}

static void fill_past_length(const struct Cache *cache, const struct Ring *ring, int32_t number, uint8_t *page,
                             uint8_t byte)
{
    int32_t seen = number < 0 ? 0 : cache->length - number * PAGE_POSITIONS;
    for (int32_t p = seen > 0 ? seen : 0; p < PAGE_POSITIONS; p++)
        for (int32_t b = 0; b < ring->n_layers * cache->n_kv_heads; b++)
            fill_position(cache, page + (size_t)(b * PAGE_BLOCKS + p / BLOCK_POSITIONS) * cache->block_bytes,
                          (size_t)p % BLOCK_POSITIONS, byte);
}

bool cache_copy_page(const struct Cache *cache, int32_t ring, int32_t number, uint8_t *out)
{
    const struct Page *page = cache_page(cache, ring, number);
    if (!page)
        return false;
    memcpy(out, page->arena.base, cache->rings[ring].page_bytes);
    fill_past_length(cache, &cache->rings[ring], number, out, 0);
    return true;
}

void cache_fill_unseen(struct Cache *cache, uint8_t byte)
{
    for (int32_t i = 0; i < cache->n_rings; i++)
        for (int32_t s = 0; s < cache->rings[i].n_slots; s++) {
            const struct Slot *slot = &cache->rings[i].slots[s];
            if (slot->page && !is_shared(slot->page))
                fill_past_length(cache, &cache->rings[i], slot->number, slot->page->arena.base, byte);
        }
}
