/* The formula: one token's way through the transformer, as every worker walks it. */
#include "engine.h"

#include <stdlib.h>

#include "../runtime/floats.h"
#include "../runtime/park.h"

static void note_time(struct Engine *engine, enum Stage stage)
{
    if (!engine->clock)
        return;
    int64_t now = now_nanoseconds();
    engine->clock[stage] += now - engine->stage_began;
    engine->stage_began = now;
}

/* All workers are done with it. */
static void end(struct Worker worker, enum Stage stage)
{
    if (worker.index == 0)
        note_time(worker.engine, stage);
}

static void mlp(struct Worker worker, const struct Layer *layer)
{
    stage_gate_up(worker, layer, stage_norm(worker, &layer->mlp_norm, &layer->up));
    end(worker, STAGE_GATE_UP);                                       /* h = act(G · norm(x)) ∘ (U · norm(x)) */
}

void forward(struct Worker worker)
{
    const struct Plan *plan = worker.engine->plan;

    stage_embed(worker);                                              /* x = embedding[token] */
    end(worker, STAGE_EMBED);
    for (int32_t l = 0; l < plan->n_layers; l++) {
        const struct Layer *layer = &plan->layers[l];
        stage_heads(worker, l, stage_norm(worker, &layer->attention_norm, &layer->qkv));
        end(worker, STAGE_HEADS);                                     /* q, k, v = rope(QKV · norm(x)) */
        stage_attend(worker, l);
        end(worker, STAGE_ATTEND);                                    /* a = softmax(q · K / √d) · V */
        if (layer->is_parallel)
            mlp(worker, layer);
        stage_add(worker, &layer->output, stage_attended(worker, layer), &layer->attention_post_norm);
        end(worker, STAGE_OUTPUT);                                    /* x += norm(O · a) */
        if (!layer->is_parallel)
            mlp(worker, layer);
        stage_add(worker, &layer->down, stage_hidden(worker, &layer->down), &layer->mlp_post_norm);
        end(worker, STAGE_DOWN);                                      /* x += norm(D · h) */
    }
    if (worker.engine->step.n_wanted)
        stage_logits(worker, stage_norm_wanted(worker));              /* logits = head · norm(x) */
}

static void forward_worker(void *engine, int32_t index)
{
    struct FloatEnvironment previous = floats_enter();
    forward((struct Worker){ engine, index });
    floats_leave(previous);
}

/* Rows of a cache must continue it one by one, drafts last; what only later versions do is refused here, once. */
static enum Status check_rows(struct Engine *engine, const struct Row *rows, int32_t n_rows)
{
    struct Step *step = &engine->step;
    step->n_wanted = 0;
    for (int32_t r = 0; r < n_rows; r++) {
        rows[r].cache->next_position = rows[r].cache->length;
        rows[r].cache->last_row = -1;
        rows[r].cache->n_rows_drafted = 0;
    }
    for (int32_t r = 0; r < n_rows; r++) {
        const struct Row *row = &rows[r];
        struct Cache *cache = row->cache;
        const bool is_draft = row->flags & DRAFT;
        if (row->input || row->adapter || (row->flags & ~(WANTS_LOGITS | DRAFT)) || row->parent != cache->last_row
            || (cache->n_rows_drafted && !is_draft))
            return STATUS_UNSUPPORTED;
        if (row->token < 0 || row->token >= engine->plan->vocab_size)
            return STATUS_BAD_TOKEN;
        if (row->position != cache->next_position)
            return STATUS_BAD_POSITION;
        if (row->position >= cache->context.limit)
            return STATUS_CONTEXT_FULL;
        cache->next_position++;
        cache->last_row = r;
        cache->n_rows_drafted += is_draft;
        if (row->flags & WANTS_LOGITS)
            step->wanted[step->n_wanted++] = r;
    }
    return STATUS_OK;
}

/* Where panels are shared out, what a row is on its way through a layer is written by one core and read by another, which
   takes as long as memory where they have no cache in common. Where rows are, each core reads all weights. */
static bool deals_rows(const struct Engine *engine, int32_t n_rows)
{
    const int32_t n_workers = engine->step.n_workers;
    const size_t row_bytes =
        sizeof(float) * (size_t)(3 * engine->dim_stride + engine->projected_stride + engine->hidden_stride);
    return n_workers > 1 && n_rows >= ROWS_DEALT * n_workers
        && engine->layer_bytes <= WEIGHTS_READ_AGAIN * (size_t)n_rows * row_bytes;
}

static enum Status take_step(struct Engine *engine, const struct Row *rows, int32_t n_rows, float *logits)
{
    int32_t n_tasks = 0;
    enum Status status = check_rows(engine, rows, n_rows);
    for (int32_t r = 0; r < n_rows && status == STATUS_OK; r++) {
        status = cache_reserve(rows[r].cache, rows[r].position + 1);
        if (n_rows <= TILE_ROWS)
            n_tasks += cache_blocks_at_most(rows[r].cache, rows[r].position) * engine->plan->n_kv_heads;
    }
    if (status == STATUS_OK)
        status = buffers_reserve(engine, n_rows, n_tasks);
    if (status != STATUS_OK)
        return status;
    engine->step.rows = rows;
    engine->step.n_rows = n_rows;
    engine->step.n_workers = pool_workers(engine->pool);
    engine->step.deals_rows = deals_rows(engine, n_rows);
    engine->step.logits = logits;
    claims_reset(engine->buffers.claims, engine->step.n_workers, pool_phase(engine->pool));
    engine->stage_began = engine->clock ? now_nanoseconds() : 0;
    status = pool_run(engine->pool, forward_worker, engine);
    note_time(engine, STAGE_LOGITS);
    for (int32_t r = 0; r < n_rows && status == STATUS_OK; r++) {
        struct Cache *cache = rows[r].cache;
        cache->length = cache->next_position - cache->n_rows_drafted;
        cache->n_drafted = cache->n_rows_drafted;
    }
    return status;
}

void engine_clock(struct Engine *engine, int64_t *nanoseconds)
{
    pool_take_turn(engine->pool);
    engine->clock = nanoseconds;
    pool_end_turn(engine->pool);
}

enum Status engine_forward(struct Engine *engine, const struct Row *rows, int32_t n_rows, float *logits)
{
    if (n_rows < 1 || n_rows > MAX_ROWS)
        return STATUS_BAD_ARGUMENT;
    pool_take_turn(engine->pool);
    enum Status status = take_step(engine, rows, n_rows, logits);
    pool_end_turn(engine->pool);
    return status;
}
