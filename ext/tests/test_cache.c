/* The cache alone, against a plain list: whatever is appended, drafted, taken back, shared or carried over, a row sees
   the positions that the formula says, with what was written there last. */
#include "tests.h"

#include <stdlib.h>

#include "../engine/cache.h"

enum { N_CACHES = 4, LENGTH_AT_MOST = 6000, N_LAYERS = 3, N_TURNS = 50 };

/* What a cache should hold: at every position the number of the write that put it there. */
struct Listed {
    struct Cache *cache;
    int32_t length;
    uint32_t *written;        /* [LENGTH_AT_MOST] */
};

struct Scene {
    struct Plan plan;
    struct Layer layers[N_LAYERS];
    struct Context context;
    struct Listed listed[N_CACHES];
    uint32_t n_written;
    struct Random random;
};

/* The element of one position, in the first column of K of every layer and head. */
static uint32_t *element(struct Cache *cache, int32_t layer, int32_t head, int32_t position)
{
    size_t slot = (size_t)position % BLOCK_POSITIONS;
    float *block = (float *)cache_block(cache, layer, head, position / BLOCK_POSITIONS);
    return (uint32_t *)(block + slot / LANES * LANES * (size_t)cache->head_width + slot % LANES);
}

static void write_positions(struct Scene *scene, struct Listed *listed, int32_t n)
{
    if (!CHECK(cache_reserve(listed->cache, listed->length + n) == STATUS_OK, "%d more", n))
        abort();
    for (int32_t p = listed->length; p < listed->length + n; p++) {
        listed->written[p] = ++scene->n_written;
        for (int32_t l = 0; l < N_LAYERS; l++)
            for (int32_t h = 0; h < scene->plan.n_kv_heads; h++)
                *element(listed->cache, l, h, p) = scene->n_written * 8 + (uint32_t)(l * 2 + h);
    }
}

static bool sees_right(struct Scene *scene, struct Listed *listed)
{
    const int32_t next = listed->length, own = scene->context.length - scene->context.n_keep;
    struct Cache *cache = listed->cache;
    if (next == 0)
        return CHECK(cache_length(cache) == 0, "empty");
    for (int32_t l = 0; l < N_LAYERS; l++)
        for (int32_t h = 0; h < scene->plan.n_kv_heads; h++)
            for (int32_t p = 0; p < next; p++) { /* as the row at `next` sees them */
                int32_t window = scene->layers[l].window, back = next - p;
                bool is_near = window == 0 || back < window;
                if (scene->context.policy != CONTEXT_STOP && next >= scene->context.length
                    && !(window && window <= scene->context.length))
                    is_near = p < scene->context.n_keep || back < own;
                uint32_t expected = listed->written[p] * 8 + (uint32_t)(l * 2 + h);
                struct Sight sight = cache_sight(cache, l, next);
                if (!CHECK(is_near == (p < sight.kept || p >= sight.first), "layer %d: row %d, position %d", l, next, p)
                    || (is_near
                        && !CHECK(*element(cache, l, h, p) == expected, "layer %d: row %d sees %u at %d, wanted %u", l,
                                  next, *element(cache, l, h, p), p, expected)))
                    return false;
            }
    return CHECK(cache_length(cache) == next, "length %d, wanted %d", cache_length(cache), next);
}

static struct Cache *cache_new(struct Scene *scene)
{
    struct Cache *cache = NULL;
    if (!CHECK(cache_create(&cache, &scene->plan, KV_F32, &scene->context) == STATUS_OK, "cache"))
        abort();
    return cache;
}

/* A cache that goes on where another is: with its pages, or with copies of them as from a file. */
static void carry_over(struct Scene *scene, const struct Listed *from, struct Listed *to, bool is_copied)
{
    cache_destroy(to->cache);
    to->cache = cache_new(scene);
    to->length = from->length;
    memcpy(to->written, from->written, (size_t)from->length * sizeof *to->written);
    for (int32_t r = 0; r < cache_rings(from->cache); r++)
        for (int32_t p = 0; p * PAGE_POSITIONS < from->length; p++) {
            struct Page *page = cache_page(from->cache, r, p);
            bool is_needed = cache_needs(from->cache, r, from->length, p);
            CHECK(page || !is_needed, "ring %d lacks page %d, needed at %d", r, p, from->length);
            if (page && is_copied && is_needed) {
                struct Page *copy = NULL;
                if (page_create(&copy, cache_page_bytes(from->cache, r)) != STATUS_OK)
                    abort();
                memcpy(page_data(copy), page_data(page), cache_page_bytes(from->cache, r));
                cache_adopt(to->cache, r, p, copy);
                page_release(copy);
            } else if (page && !is_copied) {
                cache_adopt(to->cache, r, p, page);
            }
        }
    CHECK(cache_resume(to->cache, from->length) == STATUS_OK, "resumed at %d", from->length);
}

static void rewind_somewhere(struct Scene *scene, struct Listed *listed)
{
    int32_t earliest = cache_earliest(listed->cache), before = listed->length;
    int32_t to = random_below(&scene->random, 3) ? random_between(&scene->random, earliest, before)
                                                 : random_between(&scene->random, 0, before);
    enum Status status = cache_rewind(listed->cache, to);
    CHECK(status == STATUS_OK || (status == STATUS_NOT_HELD && to < earliest && to > 0), "to %d of %d, earliest %d: %d",
          to, before, earliest, (int)status);
    if (status == STATUS_OK)
        listed->length = to;
}

static void draft_and_commit(struct Scene *scene, struct Listed *listed, int32_t n)
{
    int32_t path[MAX_ROWS], n_true = random_between(&scene->random, 0, n);
    write_positions(scene, listed, n);
    listed->cache->n_drafted = n;
    for (int32_t i = 0; i < n; i++)
        path[i] = i;
    CHECK(cache_commit(listed->cache, path, n + 1) == STATUS_BAD_ARGUMENT, "more than there are");
    CHECK(n < 2 || cache_commit(listed->cache, path + 1, 1) == STATUS_BAD_ARGUMENT, "a gap");
    CHECK(cache_commit(listed->cache, path, n_true) == STATUS_OK, "%d of %d", n_true, n);
    CHECK(cache_commit(listed->cache, path, 1) == STATUS_BAD_ARGUMENT, "twice");
    listed->length += n_true;
}

static void take_turn(struct Scene *scene)
{
    struct Listed *listed = &scene->listed[random_below(&scene->random, N_CACHES)];
    struct Listed *other = &scene->listed[random_below(&scene->random, N_CACHES)];
    int32_t most = random_below(&scene->random, 4) ? 24 : MAX_ROWS;
    int32_t n = random_between(&scene->random, 1, most), what = random_below(&scene->random, 32);
    int32_t room = (scene->context.policy == CONTEXT_STOP ? scene->context.length : LENGTH_AT_MOST) - listed->length;
    n = n < room ? n : room;
    if (what < 16 && n > 0) {
        write_positions(scene, listed, n);
        listed->cache->length = listed->length += n;
    } else if (what < 22 && n > 0) {
        draft_and_commit(scene, listed, n);
    } else if (what < 27) {
        rewind_somewhere(scene, listed);
    } else if (what < 29 && other != listed) {
        carry_over(scene, listed, other, false);
    } else if (what < 31 && other != listed) {
        carry_over(scene, listed, other, true);
    } else if (what == 31) {
        CHECK(cache_rewind(listed->cache, 0) == STATUS_OK, "to the start");
        listed->length = 0;
    }
}

static void play(int32_t index)
{
    static const int32_t windows[] = { 0, 1, 7, 128, 300, 700, 2000 }, contexts[] = { 1, 8, 250, 513, 1000, 3000 };
    struct Scene scene = { .random = random_named("cache", index) };
    struct Random *random = &scene.random;
    scene.plan =
        (struct Plan){ .n_layers = N_LAYERS, .n_kv_heads = 1 + index % 2, .head_dim = 1, .layers = scene.layers };
    scene.context.length = contexts[random_below(random, 6)];
    scene.context.policy = (enum ContextPolicy)random_below(random, 3);
    if (scene.context.policy != CONTEXT_STOP)
        scene.context.n_keep = random_below(random, scene.context.length < 300 ? scene.context.length : 300);
    for (int32_t l = 0; l < N_LAYERS; l++)
        scene.layers[l].window = windows[random_below(random, 7)];
    for (int32_t i = 0; i < N_CACHES; i++) {
        scene.listed[i].cache = cache_new(&scene);
        scene.listed[i].written = calloc(LENGTH_AT_MOST, sizeof(uint32_t));
    }
    for (int32_t turn = 0; turn < N_TURNS; turn++) {
        take_turn(&scene);
        struct Listed *one = &scene.listed[turn % N_CACHES];
        if (!sees_right(&scene, one)) {
            CHECK(false, "scene %d, turn %d: windows %d %d %d, context %d, policy %d, keeps %d", index, turn,
                  scene.layers[0].window, scene.layers[1].window, scene.layers[2].window, scene.context.length,
                  (int)scene.context.policy, scene.context.n_keep);
            break;
        }
    }
    for (int32_t i = 0; i < N_CACHES; i++) {
        cache_destroy(scene.listed[i].cache);
        free(scene.listed[i].written);
    }
}

/* What a step may have brought can always be taken back, and a ring holds no more pages than it must. */
static void append_only(int32_t window, int32_t n)
{
    struct Scene scene = { .context = { .length = LENGTH_AT_MOST } };
    scene.plan = (struct Plan){ .n_layers = 1, .n_kv_heads = 1, .head_dim = 1, .layers = scene.layers };
    scene.layers[0].window = window;
    struct Cache *cache = cache_new(&scene);
    for (int32_t length = n; length <= LENGTH_AT_MOST; length += n) {
        CHECK(cache_reserve(cache, length) == STATUS_OK, "%d", length);
        cache->length = length;
        int32_t back = length - cache_earliest(cache);
        CHECK(back >= MAX_ROWS || back == length, "from %d only %d back", length, back);
    }
    size_t n_pages = cache_bytes(cache, false) / cache_page_bytes(cache, 0);
    CHECK((int32_t)n_pages * PAGE_POSITIONS <= window + MAX_ROWS + 2 * PAGE_POSITIONS, "window %d: %zu pages", window,
          n_pages);
    CHECK(cache_rewind(cache, cache_earliest(cache) - 1) == STATUS_NOT_HELD, "beyond the earliest");
    cache_destroy(cache);
}

/* RILLM_TEST_SEQUENCES=100000 plays for two minutes. */
void test_cache(void)
{
    const char *wish = getenv("RILLM_TEST_SEQUENCES");
    for (int32_t window = 1; window < 3000; window = window * 3 + 1)
        for (int32_t n = 1; n <= MAX_ROWS; n = n * 5 + 3)
            append_only(window, n);
    for (int32_t i = 0; i < (wish ? atoi(wish) : 1000); i++)
        play(i);
}
