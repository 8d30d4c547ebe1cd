/* Deals: every item given out once, whatever the workers do; a late worker's tail is taken by others. */
#define _GNU_SOURCE
#include "tests.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../engine/deal.h"

enum { WORKERS_AT_MOST = 8, N_DEALS = 40, ITEMS_AT_MOST = 5000 };

struct Scene {
    struct Pool *pool;
    struct Claim *claims;
    const struct Matrix *matrix;      /* or NULL: n tasks */
    int32_t n, whole;
    bool is_uneven;                   /* workers rest now and then */
    int32_t times_given[ITEMS_AT_MOST]; /* plain: the barriers of the deals are what orders them */
    int32_t given_by[ITEMS_AT_MOST];
    _Atomic int32_t n_wrong, n_taken_of_late;
};

static struct Deal deal_of(const struct Scene *scene, int32_t worker)
{
    return scene->matrix ? deal_panels(scene->matrix, scene->whole, scene->pool, scene->claims, worker)
                         : deal_tasks(scene->n, scene->pool, scene->claims, worker);
}

/* Deal after deal; after each one, all items have been given out as often as there were deals. */
static void take_all(void *context, int32_t worker)
{
    struct Scene *scene = context;
    for (int32_t d = 0; d < N_DEALS; d++) {
        struct Deal deal = deal_of(scene, worker);
        for (struct Range piece; deal_next(&deal, &piece);) {
            scene->n_wrong += piece.first >= piece.last || piece.first % scene->whole
                || (piece.last % scene->whole && piece.last != scene->n);
            for (int32_t i = piece.first; i < piece.last; i++)
                scene->times_given[i]++;
            if (scene->is_uneven && (worker + d) % 3 == 0)
                usleep(30);
        }
        for (int32_t i = 0; i < scene->n; i++)
            scene->n_wrong += scene->times_given[i] != d + 1;
        pool_barrier(scene->pool);    /* all have looked */
    }
}

static void run(struct Scene *scene, work_fn *work, int32_t n_workers)
{
    if (!CHECK(pool_create(&scene->pool, n_workers) == STATUS_OK, "%d workers", n_workers))
        abort();
    scene->claims = line_alloc((size_t)n_workers * sizeof *scene->claims);
    claims_reset(scene->claims, pool_workers(scene->pool), pool_phase(scene->pool));
    CHECK(pool_run(scene->pool, work, scene) == STATUS_OK, "%d workers", n_workers);
    pool_destroy(scene->pool);
    free(scene->claims);
}

/* Panels of two formats, one after the other, as a GGUF layer may hold them. */
static struct Matrix matrix_of(struct Segment segments[2], int32_t n, size_t bytes, size_t other_bytes)
{
    segments[0] = (struct Segment){ .panel_bytes = bytes, .n_panels = n / 3 };
    segments[1] = (struct Segment){ .panel_bytes = other_bytes, .n_panels = n - n / 3 };
    return (struct Matrix){ .segments = segments,
                            .n_segments = 2,
                            .n_panels = n,
                            .n_bytes = (size_t)(n / 3) * bytes + (size_t)(n - n / 3) * other_bytes };
}

void test_deals(void)
{
    static const int32_t sizes[] = { 1, 2, 15, 63, 96, 1000, ITEMS_AT_MOST };
    static const size_t bytes[] = { 64, 9792, 34816, 1 << 20 };
    for (int32_t n_workers = 1; n_workers <= WORKERS_AT_MOST; n_workers = 2 * n_workers + (n_workers == 2))
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int32_t kind = 0; kind < 5; kind++) {
                struct Segment segments[2];
                struct Scene *scene = calloc(1, sizeof *scene);
                if (!scene)
                    abort();
                scene->n = sizes[s];
                scene->whole = kind == 4 || sizes[s] % 3 ? 1 : 3;
                struct Matrix matrix = matrix_of(segments, scene->n, bytes[kind % 4], bytes[(kind + 1) % 4]);
                scene->matrix = kind == 4 ? NULL : &matrix;
                scene->is_uneven = (kind + (int32_t)s) % 2;
                run(scene, take_all, n_workers);
                CHECK(scene->n_wrong == 0, "%d wrong: %d workers, %d items, kind %d", scene->n_wrong, n_workers,
                      scene->n, kind);
                free(scene);
            }
}

/* Worker 1 rests in its first piece until others have taken what it left unclaimed. */
static void come_late(void *context, int32_t worker)
{
    struct Scene *scene = context;
    struct Deal deal = deal_of(scene, worker);
    const int32_t n_workers = pool_workers(scene->pool), first = scene->n / n_workers, last = 2 * scene->n / n_workers;
    for (struct Range piece; deal_next(&deal, &piece);) {
        if (worker != 1 && piece.first >= first && piece.last <= last)
            scene->n_taken_of_late += piece.last - piece.first;
        for (int32_t i = piece.first; i < piece.last; i++)
            scene->given_by[i] = worker;
        for (int32_t waits = 0; worker == 1 && waits < 20000 && scene->n_taken_of_late < (last - first) / 3; waits++)
            usleep(1000);
    }
}

void test_late_worker(void)
{
    for (int32_t n_workers = 2; n_workers <= 4; n_workers++) {
        struct Scene *scene = calloc(1, sizeof *scene);
        if (!scene)
            abort();
        scene->n = 1000;
        scene->whole = 1;
        run(scene, come_late, n_workers);
        const int32_t first = scene->n / n_workers, last = 2 * scene->n / n_workers;
        int32_t n_own = 0;
        for (int32_t i = first; i < last; i++)
            n_own += scene->given_by[i] == 1;
        CHECK(n_own * 2 >= last - first && n_own * 3 <= 2 * (last - first), "%d of its %d by one of %d that came late",
              n_own, last - first, n_workers);
        free(scene);
    }
}
