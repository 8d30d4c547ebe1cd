/* The stages of a step. A worker computes whole panels or whole heads: who computes cannot change a bit. */
#include "engine.h"

#include <string.h>

#include "../runtime/floats.h"

static int32_t round_up(int32_t n, int32_t multiple) { return (n + multiple - 1) / multiple * multiple; }
static float *row_of(float *base, int32_t row, int32_t stride) { return base + (size_t)row * (size_t)stride; }

/* ---- what a matrix reads: few rows each worker prepares for itself, many are dealt out ------------ */

typedef void fill_fn(struct Worker worker, int32_t row, const float *argument, float *values);

static const struct Activation *prepare(struct Worker worker, const struct Matrix *reader, int32_t n_rows,
                                        fill_fn *fill, const float *argument)
{
    struct Engine *engine = worker.engine;
    const bool few = n_rows <= TILE_ROWS;
    struct Activation *x = few ? &engine->buffers.own[worker.index] : &engine->buffers.shared;
    int32_t n = reader->n_columns, whole = round_up(n, GROUP), n_groups = x->stride / GROUP;
    for (int32_t r = few ? 0 : worker.index; r < n_rows; r += few ? 1 : engine->n_threads) {
        float *values = row_of(x->values, r, x->stride);
        fill(worker, r, argument, values);
        memset(values + n, 0, (size_t)(whole - n) * sizeof *values);
        if (reader->reads_integers)
            engine->kernels->quantize(values, whole, x->q + (size_t)r * x->stride,
                                      row_of(x->scales, r, n_groups), x->minus_sums + (size_t)r * n_groups);
    }
    if (!few)
        pool_barrier(engine->pool);
    return x;
}

static void fill_norm(struct Worker worker, int32_t row, const float *weight, float *values)
{
    struct Engine *engine = worker.engine;
    engine->kernels->rmsnorm(row_of(engine->buffers.x, row, engine->dim_stride), weight, engine->plan->dim,
                             engine->plan->norm_eps, values);
}

static void fill_norm_wanted(struct Worker worker, int32_t row, const float *weight, float *values)
{
    fill_norm(worker, worker.engine->step.wanted[row], weight, values);
}

static void fill_hidden(struct Worker worker, int32_t row, const float *unused, float *values)
{
    struct Engine *engine = worker.engine;
    (void)unused;
    memcpy(values, row_of(engine->buffers.hidden, row, engine->hidden_stride),
           (size_t)engine->plan->ffn_dim * sizeof *values);
}

const struct Activation *stage_norm(struct Worker worker, const float *weight, const struct Matrix *reader)
{
    return prepare(worker, reader, worker.engine->step.n_rows, fill_norm, weight);
}

const struct Activation *stage_norm_wanted(struct Worker worker)
{
    const struct Plan *plan = worker.engine->plan;
    return prepare(worker, &plan->head, worker.engine->step.n_wanted, fill_norm_wanted, plan->final_norm);
}

const struct Activation *stage_hidden(struct Worker worker, const struct Matrix *reader)
{
    return prepare(worker, reader, worker.engine->step.n_rows, fill_hidden, NULL);
}

/* ---- panels times rows ------------------------------------------------------------------------------ */

/* out[r][i] for the rows of panels first ≤ p < last; many rows take each panel in turn, while it is near. */
static void project(const struct Matrix *matrix, const struct Activation *x, int32_t n_rows, int32_t first,
                    int32_t last, float *out, size_t out_stride)
{
    int32_t start = 0;
    for (int32_t s = 0; s < matrix->n_segments; start += matrix->segments[s++].n_panels) {
        const struct Segment *segment = &matrix->segments[s];
        int32_t from = first > start ? first - start : 0;
        int32_t to = last - start < segment->n_panels ? last - start : segment->n_panels;
        int32_t at_once = n_rows <= TILE_ROWS ? to - from : 1;
        for (int32_t p = from; p < to; p += at_once)
            for (int32_t r = 0; r < n_rows; r += TILE_ROWS)
                segment->multiply(segment->panels + (size_t)p * segment->stride_bytes, segment->stride_bytes, at_once,
                                  matrix->n_columns, x, r, n_rows - r < TILE_ROWS ? n_rows - r : TILE_ROWS,
                                  out + (size_t)r * out_stride + (size_t)(start + p) * LANES, out_stride);
    }
    for (int32_t r = 0; matrix->bias && r < n_rows; r++)
        for (int32_t i = first * LANES; i < last * LANES; i++)
            out[(size_t)r * out_stride + i] += matrix->bias[i];
}

/* The 16 outputs of one panel for up to TILE_ROWS rows. */
static void project_tile(const struct Matrix *matrix, int32_t panel, const struct Activation *x, int32_t first_row,
                         int32_t n_rows, float out[TILE_ROWS][LANES])
{
    const struct Segment *segment = matrix->segments;
    segment->multiply(segment->panels + (size_t)panel * segment->stride_bytes, segment->stride_bytes, 1,
                      matrix->n_columns, x, first_row, n_rows, out[0], LANES);
    for (int32_t r = 0; matrix->bias && r < n_rows; r++)
        for (int32_t i = 0; i < LANES; i++)
            out[r][i] += matrix->bias[panel * LANES + i];
}

void stage_add(struct Worker worker, const struct Matrix *matrix, const struct Activation *x)
{
    struct Engine *engine = worker.engine;
    const struct Buffers *buffers = &engine->buffers;
    int32_t first, last;
    matrix_share(matrix, 1, worker.index, engine->n_threads, &first, &last);
    project(matrix, x, engine->step.n_rows, first, last, buffers->projected, (size_t)engine->projected_stride);
    for (int32_t r = 0; r < engine->step.n_rows; r++)
        engine->kernels->add(row_of(buffers->x, r, engine->dim_stride) + first * LANES,
                             row_of(buffers->projected, r, engine->projected_stride) + first * LANES,
                             (last - first) * LANES);
}

void stage_gate_up(struct Worker worker, const struct Layer *layer, const struct Activation *x)
{
    struct Engine *engine = worker.engine;
    int32_t first, last, n_rows = engine->step.n_rows;
    float gate[TILE_ROWS][LANES], up[TILE_ROWS][LANES];
    matrix_share(&layer->gate, 1, worker.index, engine->n_threads, &first, &last);
    for (int32_t p = first; p < last; p++)
        for (int32_t r = 0; r < n_rows; r += TILE_ROWS) {
            int32_t n = n_rows - r < TILE_ROWS ? n_rows - r : TILE_ROWS;
            project_tile(&layer->gate, p, x, r, n, gate);
            project_tile(&layer->up, p, x, r, n, up);
            for (int32_t i = 0; i < n; i++)
                engine->kernels->silu_multiply(gate[i], up[i], LANES,
                                               row_of(engine->buffers.hidden, r + i, engine->hidden_stride) + p * LANES);
        }
}

void stage_logits(struct Worker worker, const struct Activation *x)
{
    struct Engine *engine = worker.engine;
    const struct Matrix *head = &engine->plan->head;
    int32_t first, last;
    matrix_share(head, 1, worker.index, engine->n_threads, &first, &last);
    project(head, x, engine->step.n_wanted, first, last, engine->step.logits, (size_t)head->n_panels * LANES);
}

/* ---- tokens to vectors, heads, attention -------------------------------------------------------------- */

void stage_embed(struct Worker worker)
{
    struct Engine *engine = worker.engine;
    const struct Plan *plan = engine->plan;
    const struct Buffers *buffers = &engine->buffers;
    const struct Segment *embedding = &plan->embedding.segments[0];
    for (int32_t r = worker.index; r < engine->step.n_rows; r += engine->n_threads) {
        const struct Row *row = &engine->step.rows[r];
        unpack_row(embedding->format, embedding->panels + (size_t)(row->token / LANES) * embedding->stride_bytes,
                   row->token % LANES, plan->dim, row_of(buffers->x, r, engine->dim_stride));
        for (int32_t i = 0; i < plan->head_dim / 2; i++) {
            float angle = (float)row->position * plan->inverse_frequencies[i];
            row_of(buffers->cosines, r, engine->rope_stride)[i] = (float)exact_cos(angle);
            row_of(buffers->sines, r, engine->rope_stride)[i] = (float)exact_sin(angle);
        }
    }
}

/* Projects whole heads, so that the worker that has one can turn it and store it at once. */
void stage_heads(struct Worker worker, int32_t l, const struct Activation *x)
{
    struct Engine *engine = worker.engine;
    const struct Plan *plan = engine->plan;
    const struct Kernels *kernels = engine->kernels;
    const struct Buffers *buffers = &engine->buffers;
    int32_t first, last, width = engine->head_width;
    matrix_share(&plan->layers[l].qkv, engine->head_panels, worker.index, engine->n_threads, &first, &last);
    project(&plan->layers[l].qkv, x, engine->step.n_rows, first, last, buffers->projected,
            (size_t)engine->projected_stride);
    for (int32_t h = first / engine->head_panels; h < last / engine->head_panels; h++)
        for (int32_t r = 0; r < engine->step.n_rows; r++) {
            const struct Row *row = &engine->step.rows[r];
            float *head = row_of(buffers->projected, r, engine->projected_stride) + h * width;
            if (h < plan->n_heads + plan->n_kv_heads)
                kernels->rope_half(head, row_of(buffers->cosines, r, engine->rope_stride),
                                   row_of(buffers->sines, r, engine->rope_stride), plan->head_dim / 2);
            if (h >= plan->n_heads) {
                bool is_key = h < plan->n_heads + plan->n_kv_heads;
                int32_t kv_head = (h - plan->n_heads) % plan->n_kv_heads;
                store_kv_fn *store = row->cache->format == KV_F32 ? kernels->store_kv_f32 : kernels->store_kv_f16;
                store(is_key ? head : NULL, is_key ? NULL : head, width, row->position % BLOCK_POSITIONS,
                      cache_block(row->cache, l, kv_head, row->position / BLOCK_POSITIONS));
            }
        }
}

static int32_t n_blocks(const struct Row *row) { return row->position / BLOCK_POSITIONS + 1; }

static void attend_block(struct Worker worker, int32_t l, int32_t r, int32_t kv_head, int32_t block, float *partials)
{
    struct Engine *engine = worker.engine;
    const struct Row *row = &engine->step.rows[r];
    int32_t group = engine->group, seen = row->position + 1 - block * BLOCK_POSITIONS;
    attend_block_fn *attend =
        row->cache->format == KV_F32 ? engine->kernels->attend_block_f32 : engine->kernels->attend_block_f16;
    attend(row_of(engine->buffers.projected, r, engine->projected_stride) + kv_head * group * engine->head_width, group,
           engine->head_width, cache_block(row->cache, l, kv_head, block), 0,
           seen < BLOCK_POSITIONS ? seen : BLOCK_POSITIONS, engine->plan->attention_scale, partials);
}

static void merge(struct Worker worker, float *into, const float *partials)
{
    int32_t size = LANES + worker.engine->head_width;
    for (int32_t h = 0; h < worker.engine->group; h++)
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

/* Few rows: every (row, kv head, block) is a task and the merge waits for the barrier. Many rows: a task is
   (row, kv head), and its worker merges block after block. The same merges in the same order either way. */
void stage_attend(struct Worker worker, int32_t l)
{
    struct Engine *engine = worker.engine;
    const struct Step *step = &engine->step;
    const int32_t n_kv_heads = engine->plan->n_kv_heads, n_threads = engine->n_threads;
    const size_t size = (size_t)engine->group * (size_t)(LANES + engine->head_width);
    if (step->n_rows <= TILE_ROWS) {
        int32_t n_tasks = 0, task = 0;
        for (int32_t r = 0; r < step->n_rows; r++)
            n_tasks += n_blocks(&step->rows[r]) * n_kv_heads;
        int32_t first = (int32_t)((int64_t)n_tasks * worker.index / n_threads);
        int32_t last = (int32_t)((int64_t)n_tasks * (worker.index + 1) / n_threads);
        for (int32_t r = 0; r < step->n_rows; r++)
            for (int32_t h = 0; h < n_kv_heads; h++)
                for (int32_t b = 0; b < n_blocks(&step->rows[r]); b++, task++)
                    if (task >= first && task < last)
                        attend_block(worker, l, r, h, b, engine->buffers.partials + (size_t)task * size);
        return;
    }
    float *sum = engine->buffers.accumulators + (size_t)worker.index * 2 * size, *partials = sum + size;
    for (int32_t task = worker.index; task < step->n_rows * n_kv_heads; task += n_threads) {
        int32_t r = task / n_kv_heads, h = task % n_kv_heads;
        attend_block(worker, l, r, h, 0, sum);
        for (int32_t b = 1; b < n_blocks(&step->rows[r]); b++) {
            attend_block(worker, l, r, h, b, partials);
            merge(worker, sum, partials);
        }
        finish(worker, sum, h, row_of(engine->buffers.attended, r, engine->attended_stride));
    }
}

static void fill_attended(struct Worker worker, int32_t row, const float *unused, float *values)
{
    struct Engine *engine = worker.engine;
    const struct Step *step = &engine->step;
    const size_t size = (size_t)engine->group * (size_t)(LANES + engine->head_width);
    (void)unused;
    if (step->n_rows > TILE_ROWS) {
        memcpy(values, row_of(engine->buffers.attended, row, engine->attended_stride),
               (size_t)(engine->plan->n_heads * engine->plan->head_dim) * sizeof *values);
        return;
    }
    float *sum = engine->buffers.accumulators + (size_t)worker.index * 2 * size, *partials = engine->buffers.partials;
    for (int32_t r = 0; r < row; r++)
        partials += (size_t)(n_blocks(&step->rows[r]) * engine->plan->n_kv_heads) * size;
    for (int32_t h = 0; h < engine->plan->n_kv_heads; h++) {
        memcpy(sum, partials, size * sizeof *sum);
        for (int32_t b = 1; b < n_blocks(&step->rows[row]); b++)
            merge(worker, sum, partials + (size_t)b * size);
        partials += (size_t)n_blocks(&step->rows[row]) * size;
        finish(worker, sum, h, values);
    }
}

const struct Activation *stage_attended(struct Worker worker, const struct Matrix *reader)
{
    return prepare(worker, reader, worker.engine->step.n_rows, fill_attended, NULL);
}
