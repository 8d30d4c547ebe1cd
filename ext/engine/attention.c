/* Heads: projected, normed, turned, stored; then attended, block by block. A worker has whole heads, or heads of its
   rows. */
#include "engine.h"

#include <string.h>

#include "../runtime/floats.h"

static void clip(float *x, int32_t n, float limit)
{
    for (int32_t i = 0; limit > 0.0f && i < n; i++)
        x[i] = x[i] < -limit ? -limit : x[i] > limit ? limit : x[i];
}

static void scale_by_position(const struct Plan *plan, int32_t position, float *query, int32_t n)
{
    if (plan->position_scale == 0.0f)
        return;
    float turns = (float)(position / plan->position_scale_context);
    float factor = 1.0f + plan->position_scale * (float)log_f64(1.0 + turns);
    for (int32_t i = 0; i < n; i++)
        query[i] *= factor;
}

/* `turned` is a row of the cosines: r itself, or n_rows + r for where a sink policy puts it. */
static void turn(struct Worker worker, const struct Layer *layer, int32_t turned, float *head)
{
    struct Engine *engine = worker.engine;
    if (layer->rope < 0)
        return;
    int32_t row = turned * engine->plan->n_ropes + layer->rope;
    engine->kernels->rope_half(head, row_of(engine->buffers.cosines, row, engine->rope_stride),
                               row_of(engine->buffers.sines, row, engine->rope_stride),
                               engine->plan->ropes[layer->rope].n_pairs);
}

/* A head of q or k: projected → normed and turned, in the order the layer asks for. */
static void finish_head(struct Worker worker, const struct Layer *layer, int32_t turned, int32_t h,
                        const float *projected, float *out)
{
    struct Engine *engine = worker.engine;
    const struct Plan *plan = engine->plan;
    const int32_t width = engine->head_width, n_heads = h < plan->n_heads ? plan->n_heads : plan->n_kv_heads;
    const int32_t own = h < plan->n_heads ? h : h - plan->n_heads;
    struct Norm norm = h < plan->n_heads ? layer->q_norm : layer->k_norm;
    if (norm.kind == NORM_NONE) {
        memcpy(out, projected + h * width, (size_t)width * sizeof *out);
        turn(worker, layer, turned, out);
    } else if (layer->norms_whole_qk) {
        float *whole = row_of(engine->buffers.normed, worker.index, engine->projected_stride);
        apply_norm(worker, &norm, projected + (h - own) * width, n_heads * width, n_heads * plan->head_dim, whole);
        memcpy(out, whole + own * width, (size_t)width * sizeof *out);
        turn(worker, layer, turned, out);
    } else {
        float head[MAX_HEAD_DIM];
        norm.weight += own * width;
        norm.bias = norm.bias ? norm.bias + own * width : NULL;
        memcpy(head, projected + h * width, (size_t)width * sizeof *head);
        if (layer->norms_after_rope)
            turn(worker, layer, turned, head);
        apply_norm(worker, &norm, head, width, plan->head_dim, out);
        if (!layer->norms_after_rope)
            turn(worker, layer, turned, out);
    }
}

/* Of a kv head's group, then those of the next row. */
static float *queries_of(const struct Engine *engine, int32_t turned, int32_t kv_head)
{
    return engine->buffers.queries
        + ((size_t)kv_head * 2 * (size_t)engine->step.n_rows + (size_t)turned)
        * (size_t)(engine->group * engine->head_width);
}

static void finish_query(struct Worker worker, const struct Layer *layer, int32_t r, int32_t turned, int32_t h,
                         int32_t position)
{
    struct Engine *engine = worker.engine;
    const int32_t width = engine->head_width;
    float *query = queries_of(engine, turned, h / engine->group) + h % engine->group * width;
    finish_head(worker, layer, turned, h, row_of(engine->buffers.projected, r, engine->projected_stride), query);
    scale_by_position(engine->plan, position, query, width);
}

/* Heads of q, then k, then v: queries are kept for attention, keys and values go into the cache. */
static void finish_heads(struct Worker worker, int32_t l, struct Range heads, struct Range rows)
{
    struct Engine *engine = worker.engine;
    const struct Plan *plan = engine->plan;
    const struct Layer *layer = &plan->layers[l];
    const int32_t width = engine->head_width;
    for (int32_t h = heads.first; h < heads.last; h++)
        for (int32_t r = rows.first; r < rows.last; r++) {
            const struct Row *row = &engine->step.rows[r];
            const float *projected = row_of(engine->buffers.projected, r, engine->projected_stride);
            if (h < plan->n_heads) {
                int32_t nearer = cache_nearer_position(row->cache, row->position);
                finish_query(worker, layer, r, r, h, nearer < 0 ? row->position : nearer);
                if (nearer >= 0)
                    finish_query(worker, layer, r, engine->step.n_rows + r, h, nearer);
                continue;
            }
            const bool is_key = h < plan->n_heads + plan->n_kv_heads;
            float key[MAX_HEAD_DIM];
            if (is_key)
                finish_head(worker, layer, r, h, projected, key);
            int32_t kv_head = (h - plan->n_heads) % plan->n_kv_heads;
            store_kv_fn *store = kernels_store_kv(engine->kernels, row->cache->format);
            store(is_key ? key : NULL, is_key ? NULL : projected + h * width, width, row->position % BLOCK_POSITIONS,
                  cache_block(row->cache, l, kv_head, row->position / BLOCK_POSITIONS));
        }
}

void stage_heads(struct Worker worker, int32_t l, const struct Activation *x)
{
    struct Engine *engine = worker.engine;
    const struct Layer *layer = &engine->plan->layers[l];
    const int32_t size = engine->head_panels, stride = engine->projected_stride;
    /* A norm over all heads of a row, whose panels other workers have. */
    const bool needs_all = layer->norms_whole_qk && !engine->step.deals_rows;
    struct Deal deal = parts_of(worker, &layer->qkv, size);
    for (struct Range piece; deal_next(&deal, &piece);) {
        const struct Part part = part_of(worker, &deal, &layer->qkv, piece);
        project(&layer->qkv, x, part, engine->buffers.projected, (size_t)stride);
        for (int32_t r = part.rows.first; r < part.rows.last; r++)
            clip(row_of(engine->buffers.projected, r, stride) + part.panels.first * LANES,
                 (part.panels.last - part.panels.first) * LANES, engine->plan->qkv_clip);
        if (!needs_all)
            finish_heads(worker, l, (struct Range){ part.panels.first / size, part.panels.last / size }, part.rows);
    }
    if (!needs_all)
        return;
    deal = tasks_of(worker, layer->qkv.n_panels / size);
    for (struct Range heads; deal_next(&deal, &heads);)
        finish_heads(worker, l, heads, (struct Range){ 0, engine->step.n_rows });
}

/* ---- attention ------------------------------------------------------------------------------------------ */

static struct Sight sight_of(struct Worker worker, int32_t l, int32_t r)
{
    const struct Row *row = &worker.engine->step.rows[r];
    return cache_sight(row->cache, l, row->position);
}

static int32_t n_blocks(struct Worker worker, int32_t l, int32_t r)
{
    return sight_blocks(sight_of(worker, l, r), worker.engine->step.rows[r].position);
}

/* The number of a block among those the row sees: first the kept ones, then from its first to its own position. */
static int32_t seen_block(struct Sight sight, int32_t i)
{
    const int32_t n_kept = sight_kept_blocks(sight);
    return i < n_kept ? i : i - n_kept + sight.first / BLOCK_POSITIONS;
}

/* What a row sees of its i-th block, and whether as a sink policy brings it nearer. */
struct View {
    const struct Cache *cache;
    int32_t block, from, to;
    bool is_nearer;
};

static struct View view_of(struct Worker worker, int32_t l, int32_t r, int32_t i)
{
    const struct Row *row = &worker.engine->step.rows[r];
    const struct Sight sight = sight_of(worker, l, r);
    const bool is_kept = i < sight_kept_blocks(sight);
    const int32_t block = seen_block(sight, i);
    const int32_t from = (is_kept ? 0 : sight.first) - block * BLOCK_POSITIONS;
    const int32_t to = (is_kept ? sight.kept : row->position + 1) - block * BLOCK_POSITIONS;
    return (struct View){ row->cache, block, from > 0 ? from : 0, to < BLOCK_POSITIONS ? to : BLOCK_POSITIONS,
                          is_kept && cache_nearer_position(row->cache, row->position) >= 0 };
}

static bool is_same_view(struct View a, struct View b)
{
    return a.cache == b.cache && a.block == b.block && a.from == b.from && a.to == b.to && a.is_nearer == b.is_nearer;
}

/* Rows from r on whose i-th block looks the same, as one; the next block is asked for meanwhile. */
static void attend_block(struct Worker worker, int32_t l, int32_t r, int32_t n_rows, int32_t kv_head, int32_t i,
                         float *partials)
{
    const struct Engine *engine = worker.engine;
    const struct Plan *plan = engine->plan;
    const struct View view = view_of(worker, l, r, i);
    const bool is_last = i + 1 == n_blocks(worker, l, r);
    attend_block_fn *attend = kernels_attend_block(engine->kernels, view.cache->format);
    attend(queries_of(engine, view.is_nearer ? engine->step.n_rows + r : r, kv_head), n_rows * engine->group,
           engine->head_width, cache_block(view.cache, l, kv_head, view.block),
           is_last ? NULL : cache_block(view.cache, l, kv_head, seen_block(sight_of(worker, l, r), i + 1)), view.from,
           view.to, plan->layers[l].attention_scale, plan->attention_softcap, partials);
}

static void merge(struct Worker worker, int32_t n_rows, float *into, const float *partials)
{
    int32_t size = LANES + worker.engine->head_width;
    for (int32_t h = 0; h < n_rows * worker.engine->group; h++)
        worker.engine->kernels->merge_partial(into + h * size, partials + h * size, worker.engine->head_width);
}

/* The group's outputs, without the padding of heads. */
static void finish(struct Worker worker, const float *partials, int32_t kv_head, float *attended)
{
    struct Engine *engine = worker.engine;
    float out[MAX_HEAD_DIM];
    for (int32_t h = 0; h < engine->group; h++) {
        engine->kernels->finish_partial(partials + h * (LANES + engine->head_width), engine->head_width, out);
        memcpy(attended + (kv_head * engine->group + h) * engine->plan->head_dim, out,
               (size_t)engine->plan->head_dim * sizeof *out);
    }
}

static size_t partials_size(const struct Engine *engine)
{
    return (size_t)engine->group * (size_t)(LANES + engine->head_width);
}

static float *accumulators_of(struct Worker worker)
{
    return worker.engine->buffers.accumulators
        + (size_t)worker.index * 2 * ROWS_TOGETHER * partials_size(worker.engine);
}

/* Some rows of one kv head, block after block: a whole block meets the heads of all rows of its cache at once. */
static void attend_rows(struct Worker worker, int32_t l, int32_t first, int32_t n_rows, int32_t kv_head)
{
    const struct Engine *engine = worker.engine;
    const size_t size = partials_size(engine);
    float *sums = accumulators_of(worker), *partials = sums + ROWS_TOGETHER * size;
    int32_t most = 0;
    for (int32_t r = first; r < first + n_rows; r++)
        most = n_blocks(worker, l, r) > most ? n_blocks(worker, l, r) : most;
    for (int32_t i = 0; i < most; i++)
        for (int32_t r = first, n; r < first + n_rows; r += n) {
            n = 1;
            if (i >= n_blocks(worker, l, r))
                continue;
            while (r + n < first + n_rows && i < n_blocks(worker, l, r + n)
                   && is_same_view(view_of(worker, l, r, i), view_of(worker, l, r + n, i)))
                n++;
            float *into = sums + (size_t)(r - first) * size;
            attend_block(worker, l, r, n, kv_head, i, i ? partials : into);
            if (i)
                merge(worker, n, into, partials);
        }
    for (int32_t r = 0; r < n_rows; r++)
        finish(worker, sums + (size_t)r * size, kv_head,
               row_of(engine->buffers.attended, first + r, engine->attended_stride));
}

/* Few rows: every (kv head, block, row) is a task, so that rows of one cache find a block near, and the merge waits for
   the barrier. Many rows: a task is some rows of a kv head, and its worker merges block after block. The same merges in
   the same order either way. */
void stage_attend(struct Worker worker, int32_t l)
{
    struct Engine *engine = worker.engine;
    const int32_t n_kv_heads = engine->plan->n_kv_heads, n_rows = engine->step.n_rows;
    if (n_rows <= TILE_ROWS) {
        int32_t n[TILE_ROWS], start[TILE_ROWS]; /* blocks of a row; its first partial */
        int32_t most = 0, n_tasks = 0;
        for (int32_t r = 0; r < n_rows; r++) {
            n[r] = n_blocks(worker, l, r);
            start[r] = n_tasks;
            most = n[r] > most ? n[r] : most;
            n_tasks += n[r] * n_kv_heads;
        }
        struct Deal deal = tasks_of(worker, n_kv_heads * most * n_rows);
        for (struct Range tasks; deal_next(&deal, &tasks);)
            for (int32_t task = tasks.first; task < tasks.last; task++) {
                const int32_t h = task / n_rows / most, b = task / n_rows % most, r = task % n_rows;
                if (b < n[r])
                    attend_block(worker, l, r, 1, h, b,
                                 engine->buffers.partials + (size_t)(start[r] + h * n[r] + b) * partials_size(engine));
            }
        return;
    }
    const int32_t n_tiles = (n_rows + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
    struct Deal deal = tasks_of(worker, n_kv_heads * n_tiles);
    for (struct Range tasks; deal_next(&deal, &tasks);)
        for (int32_t task = tasks.first; task < tasks.last; task++) {
            const int32_t i = task % n_tiles, tile = i % 2 ? n_tiles - 1 - i / 2 : i / 2; /* early rows see less */
            const int32_t first = tile * ROWS_TOGETHER;
            attend_rows(worker, l, first, least(n_rows - first, ROWS_TOGETHER), task / n_tiles);
        }
}

static void fill_attended(struct Worker worker, int32_t row, const void *of_layer, float *values)
{
    struct Engine *engine = worker.engine;
    const struct Step *step = &engine->step;
    const struct Layer *layer = of_layer;
    const int32_t l = (int32_t)(layer - engine->plan->layers);
    const size_t size = partials_size(engine);
    if (step->n_rows > TILE_ROWS) {
        memcpy(values, row_of(engine->buffers.attended, row, engine->attended_stride),
               (size_t)(engine->plan->n_heads * engine->plan->head_dim) * sizeof *values);
        return;
    }
    float *sum = accumulators_of(worker), *partials = engine->buffers.partials;
    for (int32_t r = 0; r < row; r++)
        partials += (size_t)(n_blocks(worker, l, r) * engine->plan->n_kv_heads) * size;
    for (int32_t h = 0; h < engine->plan->n_kv_heads; h++) {
        memcpy(sum, partials, size * sizeof *sum);
        for (int32_t b = 1; b < n_blocks(worker, l, row); b++)
            merge(worker, 1, sum, partials + (size_t)b * size);
        partials += (size_t)n_blocks(worker, l, row) * size;
        finish(worker, sum, h, values);
    }
}

const struct Activation *stage_attended(struct Worker worker, const struct Layer *layer)
{
    return prepare(worker, &layer->output, worker.engine->step.n_rows, fill_attended, layer);
}
