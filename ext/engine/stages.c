/* The stages of a step but attention. A worker computes whole panels, heads or rows: who computes cannot
   change a bit. */
#include "engine.h"

#include <string.h>

#include "../kernels/ahead.h"
#include "../runtime/floats.h"

struct Deal tasks_of(struct Worker worker, int32_t n)
{
    return deal_tasks(n, worker.engine->pool, worker.engine->buffers.claims, worker.index);
}

static struct Deal panels_of(struct Worker worker, const struct Matrix *matrix, int32_t whole)
{
    return deal_panels(matrix, whole, worker.engine->pool, worker.engine->buffers.claims, worker.index);
}

struct Range share_of_rows(const struct Engine *engine, int32_t n_rows, int32_t share)
{
    const int32_t whole = engine->step.deals_rows ? TILE_ROWS : 1, n = (n_rows + whole - 1) / whole;
    const int32_t n_workers = engine->step.n_workers;
    return (struct Range){ least(n * share / n_workers * whole, n_rows),
                           least(n * (share + 1) / n_workers * whole, n_rows) };
}

struct Deal parts_of(struct Worker worker, const struct Matrix *matrix, int32_t whole)
{
    const struct Step *step = &worker.engine->step;
    return step->deals_rows ? tasks_of(worker, step->n_workers) : panels_of(worker, matrix, whole);
}

struct Part part_of(struct Worker worker, const struct Deal *deal, const struct Matrix *matrix, struct Range piece)
{
    const int32_t n_rows = worker.engine->step.n_rows;
    if (deal->matrix)
        return (struct Part){ { 0, n_rows }, piece };
    return (struct Part){ share_of_rows(worker.engine, n_rows, piece.first), { 0, matrix->n_panels } };
}

/* ---- what a matrix reads: few rows each worker prepares for itself, many are dealt out ------------ */

/* Asks for the start of a worker's panels while it prepares what they meet: a stage would else begin with memory idle.
   What lies further on the kernels ask for. Where hardware leads streams it gained nothing. */
static void foresee(struct Worker worker, const struct Matrix *matrix)
{
    int32_t first = deal_first(matrix, worker.engine->step.n_workers, worker.index), start = 0, s = 0;
    while (s + 1 < matrix->n_segments && first >= start + matrix->segments[s].n_panels)
        start += matrix->segments[s++].n_panels;
    const struct Segment *segment = &matrix->segments[s];
    const size_t gate_bytes = segment->stride_bytes - segment->panel_bytes; /* 0, but before a panel of up */
    const uint8_t *panel = segment->panels + (size_t)(first - start) * segment->stride_bytes - gate_bytes;
    for (int i = 0; i < BYTES_AHEAD; i += LINE_BYTES)
        __builtin_prefetch(panel + i);
}

static void quantize(struct Worker worker, const struct Activation *x, int32_t row, int32_t n_columns)
{
    const struct Engine *engine = worker.engine;
    const int32_t n_groups = x->stride / GROUP;
    const float *values = row_of(x->values, row, x->stride);
    float *residue = row_of(engine->buffers.residues, worker.index, x->stride);
    for (int32_t plane = row * x->n_planes; plane < (row + 1) * x->n_planes; plane++) {
        int8_t *q = x->q + (size_t)plane * (size_t)x->stride;
        float *scales = row_of(x->scales, plane, n_groups);
        engine->kernels->quantize(values, n_columns, q, scales, x->minus_sums + (size_t)plane * (size_t)n_groups);
        if (plane + 1 < (row + 1) * x->n_planes)
            engine->kernels->residue(values, n_columns, q, scales, residue);
        values = residue;
    }
}

const struct Activation *prepare(struct Worker worker, const struct Matrix *reader, int32_t n_rows, fill_fn *fill,
                                 const void *argument)
{
    struct Engine *engine = worker.engine;
    const bool few = n_rows <= TILE_ROWS;
    const struct Activation *x = few ? &engine->buffers.own[worker.index] : &engine->buffers.shared;
    if (few && !hardware_leads)
        foresee(worker, reader);
    const int32_t n = reader->n_columns, whole = round_up(n, GROUP);
    const struct Range rows = few ? (struct Range){ 0, n_rows } : share_of_rows(engine, n_rows, worker.index);
    for (int32_t r = rows.first; r < rows.last; r++) {
        float *values = row_of(x->values, r, x->stride);
        fill(worker, r, argument, values);
        memset(values + n, 0, (size_t)(whole - n) * sizeof *values);
        if (reader->reads_integers)
            quantize(worker, x, r, whole);
    }
    if (!few)
        pool_barrier(engine->pool);
    return x;
}

void apply_norm(struct Worker worker, const struct Norm *norm, const float *x, int32_t width, int32_t n, float *out)
{
    const struct Kernels *kernels = worker.engine->kernels;
    if (norm->kind == NORM_NONE)
        memcpy(out, x, (size_t)width * sizeof *out);
    else
        (norm->kind == NORM_RMS ? kernels->norm_rms : kernels->norm_layer)(x, norm->weight, norm->bias, width, n,
                                                                           norm->epsilon, out);
}

static void fill_norm(struct Worker worker, int32_t row, const void *norm, float *values)
{
    struct Engine *engine = worker.engine;
    apply_norm(worker, norm, row_of(engine->buffers.x, row, engine->dim_stride), round_up(engine->plan->dim, LANES),
               engine->plan->dim, values);
}

static void fill_norm_wanted(struct Worker worker, int32_t row, const void *norm, float *values)
{
    fill_norm(worker, worker.engine->step.wanted[row], norm, values);
}

static void fill_hidden(struct Worker worker, int32_t row, const void *unused, float *values)
{
    struct Engine *engine = worker.engine;
    (void)unused;
    memcpy(values, row_of(engine->buffers.hidden, row, engine->hidden_stride),
           (size_t)engine->plan->ffn_dim * sizeof *values);
}

const struct Activation *stage_norm(struct Worker worker, const struct Norm *norm, const struct Matrix *reader)
{
    return prepare(worker, reader, worker.engine->step.n_rows, fill_norm, norm);
}

const struct Activation *stage_norm_wanted(struct Worker worker)
{
    const struct Plan *plan = worker.engine->plan;
    return prepare(worker, &plan->head, worker.engine->step.n_wanted, fill_norm_wanted, &plan->final_norm);
}

const struct Activation *stage_hidden(struct Worker worker, const struct Matrix *reader)
{
    return prepare(worker, reader, worker.engine->step.n_rows, fill_hidden, NULL);
}

/* ---- panels times rows ------------------------------------------------------------------------------ */

enum {
    PANELS_NEAR = 2, /* that many rows take in turn, while they are in the nearest cache */
    PANELS_SUMMED = 32, /* of which the planes' sums are added at once */
    TILE_PAIRS = 64, /* of panels of gate and up, times rows: memory idles while they are activated */
};

/* Rows that a kernel takes at once: to one of integers the planes of a row are rows. */
static int32_t rows_at_once(const struct Segment *segment, const struct Activation *x)
{
    return segment->format->group ? TILE_ROWS / x->n_planes : TILE_ROWS;
}

/* The sums of a row's two planes are added. */
static void multiply(const struct Segment *segment, const uint8_t *panels, size_t stride_bytes, int32_t n_panels,
                     int32_t n_columns, const struct Activation *x, int32_t first_row, int32_t n_rows, float *out,
                     size_t out_stride)
{
    if (rows_at_once(segment, x) == TILE_ROWS) {
        segment->multiply(panels, stride_bytes, n_panels, n_columns, x, first_row, n_rows, out, out_stride);
        return;
    }
    float sums[TILE_ROWS][PANELS_SUMMED * LANES];
    for (int32_t p = 0; p < n_panels; p += PANELS_SUMMED) {
        const int32_t n = least(n_panels - p, PANELS_SUMMED);
        segment->multiply(panels + (size_t)p * stride_bytes, stride_bytes, n, n_columns, x, 2 * first_row, 2 * n_rows,
                          sums[0], PANELS_SUMMED * LANES);
        for (int32_t r = 0; r < n_rows; r++)
            for (int32_t i = 0; i < n * LANES; i++)
                out[(size_t)r * out_stride + (size_t)(p * LANES + i)] = sums[2 * r][i] + sums[2 * r + 1][i];
    }
}

/* out[r][i] for the rows of those panels. */
void project(const struct Matrix *matrix, const struct Activation *x, struct Part part, float *out, size_t out_stride)
{
    const struct Range rows = part.rows;
    const int32_t first = part.panels.first, last = part.panels.last;
    int32_t start = 0;
    for (int32_t s = 0; s < matrix->n_segments; start += matrix->segments[s++].n_panels) {
        const struct Segment *segment = &matrix->segments[s];
        int32_t from = first > start ? first - start : 0;
        int32_t to = last - start < segment->n_panels ? last - start : segment->n_panels;
        const int32_t tile = rows_at_once(segment, x), at_once = rows.last <= tile ? to - from : PANELS_NEAR;
        for (int32_t p = from; p < to; p += at_once)
            for (int32_t r = rows.first; r < rows.last; r += tile)
                multiply(segment, segment->panels + (size_t)p * segment->stride_bytes, segment->stride_bytes,
                         least(at_once, to - p), matrix->n_columns, x, r, least(rows.last - r, tile),
                         out + (size_t)r * out_stride + (size_t)(start + p) * LANES, out_stride);
    }
    for (int32_t r = rows.first; matrix->bias && r < rows.last; r++)
        for (int32_t i = first * LANES; i < last * LANES; i++)
            out[(size_t)r * out_stride + i] += matrix->bias[i];
}

/* The outputs of some panels for up to TILE_ROWS rows: the gate's, the up's, or both side by side. */
struct GateUp { float gate[LANES], up[LANES]; };

static void project_gate_up(const struct Layer *layer, int32_t panel, int32_t n_panels, const struct Activation *x,
                            int32_t first_row, int32_t n_rows, struct GateUp *out /* [n_rows][n_panels] */)
{
    const struct Segment *gate = layer->gate.segments, *up = layer->up.segments;
    const size_t stride = (size_t)n_panels * sizeof *out / sizeof(float);
    const int32_t n_columns = layer->up.n_columns;
    if (layer->gate.n_panels && gate->format == up->format) { /* they alternate in memory */
        multiply(gate, gate->panels + (size_t)panel * gate->stride_bytes, gate->panel_bytes, 2 * n_panels, n_columns, x,
                 first_row, n_rows, out->gate, stride);
    } else {
        for (int32_t p = 0; p < n_panels; p++) {
            if (layer->gate.n_panels)
                multiply(gate, gate->panels + (size_t)(panel + p) * gate->stride_bytes, 0, 1, n_columns, x, first_row,
                         n_rows, out[p].gate, stride);
            multiply(up, up->panels + (size_t)(panel + p) * up->stride_bytes, 0, 1, n_columns, x, first_row, n_rows,
                     out[p].up, stride);
        }
    }
    for (int32_t r = 0; r < n_rows; r++)
        for (int32_t p = 0; p < n_panels; p++) {
            for (int32_t i = 0; layer->gate.bias && i < LANES; i++)
                out[r * n_panels + p].gate[i] += layer->gate.bias[(panel + p) * LANES + i];
            for (int32_t i = 0; layer->up.bias && i < LANES; i++)
                out[r * n_panels + p].up[i] += layer->up.bias[(panel + p) * LANES + i];
        }
}

static void scale(float *x, int32_t n, float factor)
{
    for (int32_t i = 0; factor != 1.0f && i < n; i++)
        x[i] *= factor;
}

/* A norm of what is added needs all of it: then whole rows are dealt out after one more barrier. */
void stage_add(struct Worker worker, const struct Matrix *matrix, const struct Activation *x,
               const struct Norm *post_norm)
{
    struct Engine *engine = worker.engine;
    const struct Buffers *buffers = &engine->buffers;
    const float residual_scale = engine->plan->residual_scale;
    const bool is_normed = post_norm->kind != NORM_NONE;
    const int32_t width = round_up(engine->plan->dim, LANES), stride = engine->projected_stride;
    struct Deal deal = parts_of(worker, matrix, 1);
    for (struct Range piece; deal_next(&deal, &piece);) {
        const struct Part part = part_of(worker, &deal, matrix, piece);
        const int32_t first = part.panels.first * LANES, n = (part.panels.last - part.panels.first) * LANES;
        project(matrix, x, part, buffers->projected, (size_t)stride);
        for (int32_t r = part.rows.first; !is_normed && r < part.rows.last; r++) {
            float *added = row_of(buffers->projected, r, stride) + first;
            scale(added, n, residual_scale);
            engine->kernels->add(row_of(buffers->x, r, engine->dim_stride) + first, added, n);
        }
    }
    if (is_normed) {
        float *normed = row_of(buffers->normed, worker.index, stride);
        const struct Range rows = share_of_rows(engine, engine->step.n_rows, worker.index);
        for (int32_t r = rows.first; r < rows.last; r++) {
            apply_norm(worker, post_norm, row_of(buffers->projected, r, stride), width, engine->plan->dim, normed);
            scale(normed, width, residual_scale);
            engine->kernels->add(row_of(buffers->x, r, engine->dim_stride), normed, width);
        }
        pool_barrier(engine->pool);
    }
}

void stage_gate_up(struct Worker worker, const struct Layer *layer, const struct Activation *x)
{
    struct Engine *engine = worker.engine;
    const int32_t tile_rows = layer->up.reads_integers ? TILE_ROWS / x->n_planes : TILE_ROWS;
    const bool has_gate = layer->gate.n_panels > 0;
    struct GateUp tile[TILE_PAIRS];
    struct Deal deal = parts_of(worker, &layer->up, 1);
    for (struct Range piece; deal_next(&deal, &piece);) {
        const struct Part part = part_of(worker, &deal, &layer->up, piece);
        const int32_t at_once = part.rows.last <= tile_rows ? TILE_PAIRS / part.rows.last : PANELS_NEAR;
        for (int32_t panel = part.panels.first; panel < part.panels.last; panel += at_once)
            for (int32_t r = part.rows.first; r < part.rows.last; r += tile_rows) {
                const int32_t n = least(part.rows.last - r, tile_rows);
                const int32_t n_panels = least(part.panels.last - panel, at_once);
                project_gate_up(layer, panel, n_panels, x, r, n, tile);
                for (int32_t i = 0; i < n * n_panels; i++) {
                    const struct GateUp *both = &tile[i];
                    engine->plan->activate(has_gate ? both->gate : both->up, has_gate ? both->up : NULL, LANES,
                                           layer->activation_parameters,
                                           row_of(engine->buffers.hidden, r + i / n_panels, engine->hidden_stride)
                                               + (panel + i % n_panels) * LANES);
                }
            }
    }
}

void stage_logits(struct Worker worker, const struct Activation *x)
{
    struct Engine *engine = worker.engine;
    const struct Plan *plan = engine->plan;
    const int32_t stride = plan->head.n_panels * LANES;
    struct Deal deal = panels_of(worker, &plan->head, 1);
    for (struct Range panels; deal_next(&deal, &panels);) {
        const int32_t first = panels.first * LANES, n = (panels.last - panels.first) * LANES;
        project(&plan->head, x, (struct Part){ { 0, engine->step.n_wanted }, panels }, engine->step.logits,
                (size_t)stride);
        for (int32_t r = 0; r < engine->step.n_wanted; r++) {
            float *logits = row_of(engine->step.logits, r, stride) + first;
            scale(logits, n, plan->logit_scale);
            if (plan->logit_softcap > 0.0f)
                engine->kernels->softcap(logits, n, plan->logit_softcap);
        }
    }
}

/* ---- tokens and positions to vectors ---------------------------------------------------------------- */

static void table_row(const struct Matrix *table, int32_t row, float *out)
{
    const struct Segment *segment = table->segments;
    unpack_row(segment->format, segment->panels + (size_t)(row / LANES) * segment->stride_bytes, row % LANES,
               table->n_columns, out);
}

/* An angle is a float product, as transformers has it; but not where a sink policy goes on for ever: only differences
   count there, and floats would blur them. */
static void turn_table(struct Engine *engine, const struct Cache *cache, int32_t position, int32_t row)
{
    const bool is_endless = cache_nearer_position(cache, position) >= 0;
    for (int32_t k = 0; k < engine->plan->n_ropes; k++) {
        const struct Rope *rope = &cache->ropes[k];
        float *cosines = row_of(engine->buffers.cosines, row * engine->plan->n_ropes + k, engine->rope_stride);
        float *sines = row_of(engine->buffers.sines, row * engine->plan->n_ropes + k, engine->rope_stride);
        for (int32_t i = 0; i < rope->n_pairs; i++) {
            float product = (float)position * rope->inverse_frequencies[i];
            double angle = is_endless ? (double)position * (double)rope->inverse_frequencies[i] : product;
            cosines[i] = (float)exact_cos(angle) * rope->amplitude;
            sines[i] = (float)exact_sin(angle) * rope->amplitude;
        }
    }
}

void stage_embed(struct Worker worker)
{
    struct Engine *engine = worker.engine;
    const struct Plan *plan = engine->plan;
    const struct Buffers *buffers = &engine->buffers;
    float *learned = row_of(buffers->normed, worker.index, engine->projected_stride);
    const struct Range rows = share_of_rows(engine, engine->step.n_rows, worker.index);
    for (int32_t r = rows.first; r < rows.last; r++) {
        const struct Row *row = &engine->step.rows[r];
        float *x = row_of(buffers->x, r, engine->dim_stride);
        table_row(&plan->embedding, row->token, x);
        scale(x, plan->dim, plan->embedding_scale);
        if (plan->positions.n_panels) {
            memset(learned, 0, (size_t)engine->dim_stride * sizeof *learned);
            table_row(&plan->positions, row->position, learned);
            engine->kernels->add(x, learned, round_up(plan->dim, LANES));
        }
        int32_t nearer = cache_nearer_position(row->cache, row->position);
        turn_table(engine, row->cache, row->position, r);
        if (nearer >= 0)
            turn_table(engine, row->cache, nearer, engine->step.n_rows + r);
    }
    pool_barrier(engine->pool);
}
