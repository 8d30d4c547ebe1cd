/* Before and between steps: kernels bound to segments, buffers sized. */
#include "engine.h"

#include <stdlib.h>

static void bind_matrix(struct Matrix *matrix, const struct Kernels *kernels)
{
    matrix->n_bytes = 0;
    matrix->reads_integers = false;
    for (int32_t s = 0; s < matrix->n_segments; s++) {
        struct Segment *segment = &matrix->segments[s];
        segment->multiply = kernels_matmul(kernels, segment->format->id);
        matrix->n_bytes += segment->panel_bytes * (size_t)segment->n_panels;
        matrix->reads_integers |= segment->format->group != 0;
    }
}

void plan_bind(struct Plan *plan, const struct Kernels *kernels)
{
    bind_matrix(&plan->embedding, kernels);
    bind_matrix(&plan->head, kernels);
    plan->activate = kernels_activate(kernels, plan->activation);
    for (int32_t l = 0; l < plan->n_layers; l++) {
        struct Layer *layer = &plan->layers[l];
        bind_matrix(&layer->qkv, kernels);
        bind_matrix(&layer->output, kernels);
        bind_matrix(&layer->gate, kernels);
        bind_matrix(&layer->up, kernels);
        bind_matrix(&layer->down, kernels);
        layer->up.reads_integers |= layer->gate.reads_integers;   /* they read one activation */
    }
}

/* ---- buffers: one arena, carved twice: once to measure, once to place ---------------------------------- */

struct Carver {
    uint8_t *base;
    size_t used;
};

static void *carve(struct Carver *carver, size_t n_bytes)
{
    void *place = carver->base ? carver->base + carver->used : NULL;
    carver->used += (n_bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    return place;
}

static float *carve_floats(struct Carver *carver, int32_t n, int32_t stride)
{
    return carve(carver, (size_t)n * (size_t)stride * sizeof(float));
}

static struct Activation carve_activation(struct Carver *carver, int32_t n_rows, int32_t stride, int32_t n_planes)
{
    struct Activation x = { .stride = stride, .n_planes = n_planes };
    const int32_t n = n_rows * n_planes;
    x.values = carve_floats(carver, n_rows, stride);
    x.q = carve(carver, (size_t)n * (size_t)stride);
    x.scales = carve_floats(carver, n, stride / GROUP);
    x.minus_sums = carve(carver, (size_t)n * (size_t)(stride / GROUP) * sizeof(int32_t));
    return x;
}

static size_t carve_buffers(struct Engine *engine, uint8_t *base, int32_t n_rows, int32_t n_tasks)
{
    struct Carver carver = { base, 0 };
    int32_t partial = engine->group * (LANES + engine->head_width);
    struct Activation *own = carve(&carver, (size_t)engine->n_threads * sizeof *own);
    for (int32_t i = 0; i < engine->n_threads; i++) {
        struct Activation x = carve_activation(&carver, TILE_ROWS, engine->activation_stride, engine->n_planes);
        if (own)
            own[i] = x;
    }
    engine->buffers = (struct Buffers){
        .own = own,
        .x = carve_floats(&carver, n_rows, engine->dim_stride),
        .projected = carve_floats(&carver, n_rows, engine->projected_stride),
        .queries = carve_floats(&carver, 2 * n_rows, engine->plan->n_heads * engine->head_width),
        .normed = carve_floats(&carver, engine->n_threads, engine->projected_stride),
        .residues = carve_floats(&carver, engine->n_threads, engine->activation_stride),
        .hidden = carve_floats(&carver, n_rows, engine->hidden_stride),
        .attended = carve_floats(&carver, n_rows, engine->attended_stride),
        .cosines = carve_floats(&carver, 2 * n_rows, engine->plan->n_ropes * engine->rope_stride),
        .sines = carve_floats(&carver, 2 * n_rows, engine->plan->n_ropes * engine->rope_stride),
        .partials = carve_floats(&carver, n_tasks, partial),
        .claims = carve(&carver, (size_t)engine->n_threads * sizeof(struct Claim)),
        .accumulators = carve_floats(&carver, engine->n_threads * 2 * ROWS_TOGETHER, partial),
        .shared =
            carve_activation(&carver, n_rows > TILE_ROWS ? n_rows : 0, engine->activation_stride, engine->n_planes),
    };
    return carver.used;
}

enum Status buffers_reserve(struct Engine *engine, int32_t n_rows, int32_t n_tasks)
{
    if (n_rows <= engine->n_rows_capacity && n_tasks <= engine->n_tasks_capacity)
        return STATUS_OK;
    n_rows = n_rows > engine->n_rows_capacity ? round_up(n_rows, TILE_ROWS) : engine->n_rows_capacity;
    n_tasks = n_tasks > engine->n_tasks_capacity ? 2 * n_tasks : engine->n_tasks_capacity;
    arena_unmap(&engine->arena);
    engine->n_rows_capacity = engine->n_tasks_capacity = 0;
    enum Status status = arena_map(&engine->arena, carve_buffers(engine, NULL, n_rows, n_tasks));
    if (status != STATUS_OK)
        return status;
    carve_buffers(engine, engine->arena.base, n_rows, n_tasks);
    engine->n_rows_capacity = n_rows;
    engine->n_tasks_capacity = n_tasks;
    return STATUS_OK;
}

static int32_t largest(int32_t a, int32_t b) { return a > b ? a : b; }

enum Status engine_create(struct Engine **created, struct Plan *plan, const struct Kernels *kernels, int32_t n_threads)
{
    if (plan->activation_planes < 1 || plan->activation_planes > 2)
        return STATUS_BAD_ARGUMENT;
    struct Engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        return STATUS_NO_MEMORY;
    engine->plan = plan;
    engine->kernels = kernels;
    engine->n_threads = n_threads;
    engine->n_planes = plan->activation_planes;
    engine->head_width = round_up(plan->head_dim, LANES);
    engine->head_panels = engine->head_width / LANES;
    engine->group = plan->n_heads / plan->n_kv_heads;
    engine->dim_stride = round_up(plan->dim, 64);
    engine->hidden_stride = round_up(plan->ffn_dim, 64);
    engine->attended_stride = round_up(plan->n_heads * plan->head_dim, 64);
    engine->projected_stride =
        largest(engine->dim_stride, round_up((plan->n_heads + 2 * plan->n_kv_heads) * engine->head_width, 64));
    engine->rope_stride = round_up(plan->head_dim / 2, LANES);
    engine->activation_stride = largest(engine->dim_stride, largest(engine->hidden_stride, engine->attended_stride));
    plan_bind(plan, kernels);
    for (int32_t l = 0; l < plan->n_layers; l++) {
        const struct Layer *layer = &plan->layers[l];
        engine->layer_bytes +=
            (layer->qkv.n_bytes + layer->output.n_bytes + layer->gate.n_bytes + layer->up.n_bytes + layer->down.n_bytes)
            / (size_t)plan->n_layers;
    }
    enum Status status = pool_create(&engine->pool, n_threads);
    if (status != STATUS_OK) {
        free(engine);
        return status;
    }
    *created = engine;
    return STATUS_OK;
}

void engine_destroy(struct Engine *engine)
{
    if (!engine)
        return;
    pool_destroy(engine->pool);
    arena_unmap(&engine->arena);
    free(engine);
}
