/* Builds a plan by the front door's rules: heads padded to 16 rows, gate and up alternating, segments in order. */
#include "model.h"

#include <stdlib.h>

#define ALL(f) { f, f, f, f, f, f, f, f, f }
#define MIXED                                                                                                          \
    { FORMAT_Q4M, FORMAT_Q8, FORMAT_F16, FORMAT_Q4, FORMAT_F32, FORMAT_Q8, FORMAT_BF16, FORMAT_Q4M, FORMAT_Q8 }
#define BLOCKS                                                                                                         \
    { FORMAT_Q4K, FORMAT_Q5K, FORMAT_Q6K, FORMAT_Q8K, FORMAT_Q5, FORMAT_Q4K16, FORMAT_Q5M, FORMAT_Q5B, FORMAT_Q6K }
/* clang-format off */
const struct Shape shapes[N_SHAPES] = {
    { "f32", 72, 2, 4, 2, 16, 88, 70, ALL(FORMAT_F32), KV_F32, 140, .n_ropes = 1 },
    { "f16", 48, 2, 3, 3, 24, 40, 33, ALL(FORMAT_F16), KV_F16, 80, .n_ropes = 1, .has_biases = true },
    { "bf16", 40, 2, 6, 2, 16, 56, 50, ALL(FORMAT_BF16), KV_F32, 80, .n_ropes = 1 },
    { "q8", 96, 2, 9, 3, 64, 72, 100, ALL(FORMAT_Q8), KV_F16, 140, .n_ropes = 1 },
    { "q4", 72, 2, 2, 1, 24, 120, 48, ALL(FORMAT_Q4), KV_F16, 80, .n_ropes = 1, .has_biases = true },
    { "q4m", 80, 2, 5, 1, 16, 88, 64, ALL(FORMAT_Q4M), KV_F16, 80, .n_ropes = 1 },
    { "mixed", 72, 2, 6, 2, 24, 88, 70, MIXED, KV_F16, 140, .n_ropes = 1, .has_biases = true },
    { "pages", 33, 1, 2, 1, 16, 34, 17, ALL(FORMAT_Q8), KV_F32, 300, .n_ropes = 1, .has_biases = true },
    /* as in Gemma 2: windows, caps, norms before and after and of each head */
    { "window", 64, 3, 4, 2, 80, 48, 40, ALL(FORMAT_Q8), KV_F16, 140, .n_ropes = 2, .window = 21, .softcap = 3.0f,
      .has_post_norms = true, .has_qk_norms = true, .activation = ACTIVATION_GELU_TANH, .scale = 1.25f },
    /* as in GPT-NeoX: attention and MLP side by side, layer norms (of heads too, after turning a part), no gate */
    { "parallel", 48, 2, 3, 3, 24, 40, 33, ALL(FORMAT_Q4), KV_F32, 80, .n_ropes = 1, .n_pairs = 4, .norm = NORM_LAYER,
      .is_parallel = true, .has_qk_norms = true, .norms_after_rope = true, .has_no_gate = true, .has_biases = true,
      .activation = ACTIVATION_GELU },
    /* as in OLMo 2: norms after only, one over all heads, q, k, v clipped */
    { "whole", 72, 2, 4, 2, 24, 56, 50, ALL(FORMAT_F16), KV_F16, 80, .n_ropes = 1, .has_no_pre_norms = true,
      .has_post_norms = true, .has_qk_norms = true, .norms_whole_qk = true, .clip = 1.5f,
      .activation = ACTIVATION_XIELU },
    /* as in GPT-2: learned positions and none turned */
    { "learned", 40, 2, 2, 2, 32, 48, 30, ALL(FORMAT_Q8), KV_F16, 80, .norm = NORM_LAYER, .has_learned_positions = true,
      .has_no_gate = true, .has_biases = true, .activation = ACTIVATION_RELU2 },
    { "blocks", 256, 1, 4, 1, 64, 256, 40, BLOCKS, KV_F16, 40, .n_ropes = 1 },
    { "planes", 72, 2, 6, 2, 24, 88, 600, MIXED, KV_F16, 80, .n_ropes = 1, .has_biases = true, .planes = 2 },
    { "planes_of_blocks", 256, 1, 4, 1, 64, 256, 40, BLOCKS, KV_F16, 40, .n_ropes = 1, .planes = 2 },
};
/* clang-format on */

void *keep(struct Model *model, void *memory)
{
    if (model->n_allocations == ALLOCATIONS_AT_MOST)
        abort();
    return model->allocations[model->n_allocations++] = memory;
}

static struct Random random_of(const struct Model *model)
{
    return random_named(model->shape->name, model->n_allocations);
}

/* Floats about `middle`, zeros after the first n. */
static float *vector(struct Model *model, int32_t n, float middle, float amplitude)
{
    struct Random random = random_of(model);
    int32_t whole = (n + LANES - 1) / LANES * LANES;
    float *values = keep(model, line_alloc((size_t)whole * sizeof *values));
    for (int32_t i = 0; i < whole; i++)
        values[i] = i < n ? middle + random_float(&random, amplitude) : 0.0f;
    return values;
}

/* Floats, or blocks of a kind of file for a format that no floats are encoded in. */
static enum SourceKind random_source(struct Random *random, const struct Format *format, int32_t n_columns,
                                     size_t n_rows, uint8_t **source)
{
    float amplitude = 1.0f;
    while (amplitude * amplitude * (float)n_columns > 6.0f)
        amplitude *= 0.5f;
    enum SourceKind kind = format_takes_floats(format) ? SOURCE_F32 : SOURCE_Q5_0;
    while (kind != SOURCE_F32 && block_kinds[kind].format != format->id)
        kind++;
    size_t row_bytes = source_row_bytes(kind, n_columns);
    *source = line_alloc(n_rows * row_bytes);
    if (kind == SOURCE_F32)
        random_floats(random, amplitude, (float *)*source, n_rows * (size_t)n_columns);
    else
        random_blocks(random, kind, amplitude * 0.5f, *source, n_rows * row_bytes / (size_t)block_kinds[kind].n_bytes);
    return kind;
}

static void pack_random(struct Model *model, const struct Format *format, const int32_t *rows, int32_t n_rows,
                        int32_t n_columns, int32_t n_panels, uint8_t *panels, size_t stride_bytes)
{
    struct Random random = random_of(model);
    uint8_t *source;
    enum SourceKind kind = random_source(&random, format, n_columns, (size_t)n_rows, &source);
    struct PackJob job = { format, kind, source, rows, n_columns, n_panels, panels, stride_bytes };
    if (!pack_panels(&job))
        abort();
    free(source);
}

/* n_heads heads of head_dim rows, each padded to whole panels; one head of n rows is a plain matrix. */
static int32_t panel_rows(int32_t n_heads, int32_t head_dim, int32_t **rows)
{
    int32_t width = (head_dim + LANES - 1) / LANES * LANES;
    *rows = malloc((size_t)(n_heads * width) * sizeof **rows);
    for (int32_t i = 0; i < n_heads * width; i++)
        (*rows)[i] = i % width < head_dim ? i / width * head_dim + i % width : -1;
    return n_heads * width / LANES;
}

static void add_segment(struct Model *model, struct Matrix *matrix, enum FormatId id, int32_t n_heads, int32_t head_dim,
                        uint8_t *panels, size_t stride_bytes)
{
    int32_t *rows, n_panels = panel_rows(n_heads, head_dim, &rows);
    size_t panel_bytes = format_panel_bytes(&formats[id], matrix->n_columns);
    if (!panels)
        panels = keep(model, line_alloc((size_t)n_panels * panel_bytes));
    stride_bytes = stride_bytes ? stride_bytes : panel_bytes;
    pack_random(model, &formats[id], rows, n_heads * head_dim, matrix->n_columns, n_panels, panels, stride_bytes);
    matrix->segments[matrix->n_segments++] =
        (struct Segment){ &formats[id], panels, stride_bytes, panel_bytes, n_panels, NULL };
    matrix->n_panels += n_panels;
    free(rows);
}

static struct Matrix matrix_of(struct Model *model, int32_t n_columns, int32_t n_segments)
{
    return (struct Matrix){ .n_columns = n_columns,
                            .segments = keep(model, calloc((size_t)n_segments, sizeof(struct Segment))) };
}

static struct Matrix plain_matrix(struct Model *model, int tensor, int32_t n_rows, int32_t n_columns, bool has_bias)
{
    struct Matrix matrix = matrix_of(model, n_columns, 1);
    add_segment(model, &matrix, model->shape->formats[tensor], 1, n_rows, NULL, 0);
    matrix.bias = has_bias ? vector(model, n_rows, 0.0f, 0.5f) : NULL;
    return matrix;
}

static struct Matrix qkv_matrix(struct Model *model)
{
    const struct Shape *s = model->shape;
    int32_t width = (s->head_dim + LANES - 1) / LANES * LANES, n_heads = s->n_heads + 2 * s->n_kv_heads;
    struct Matrix matrix = matrix_of(model, s->dim, 3);
    add_segment(model, &matrix, s->formats[TENSOR_Q], s->n_heads, s->head_dim, NULL, 0);
    add_segment(model, &matrix, s->formats[TENSOR_K], s->n_kv_heads, s->head_dim, NULL, 0);
    add_segment(model, &matrix, s->formats[TENSOR_V], s->n_kv_heads, s->head_dim, NULL, 0);
    if (s->has_biases) {
        float *bias = vector(model, n_heads * width, 0.0f, 0.5f);
        for (int32_t i = 0; i < n_heads * width; i++)
            bias[i] = i % width < s->head_dim ? bias[i] : 0.0f;
        matrix.bias = bias;
    }
    return matrix;
}

/* Both in one run of memory, panel by panel; or up alone. */
static void gate_and_up(struct Model *model, struct Layer *layer)
{
    const struct Shape *s = model->shape;
    int32_t n_panels = (s->ffn_dim + LANES - 1) / LANES;
    if (s->has_no_gate) {
        layer->up = plain_matrix(model, TENSOR_UP, s->ffn_dim, s->dim, s->has_biases);
        return;
    }
    size_t gate_bytes = format_panel_bytes(&formats[s->formats[TENSOR_GATE]], s->dim);
    size_t stride_bytes = gate_bytes + format_panel_bytes(&formats[s->formats[TENSOR_UP]], s->dim);
    uint8_t *panels = keep(model, line_alloc(stride_bytes * (size_t)n_panels));
    layer->gate = matrix_of(model, s->dim, 1);
    layer->up = matrix_of(model, s->dim, 1);
    add_segment(model, &layer->gate, s->formats[TENSOR_GATE], 1, s->ffn_dim, panels, stride_bytes);
    add_segment(model, &layer->up, s->formats[TENSOR_UP], 1, s->ffn_dim, panels + gate_bytes, stride_bytes);
    if (s->has_biases) {
        layer->gate.bias = vector(model, s->ffn_dim, 0.0f, 0.5f);
        layer->up.bias = vector(model, s->ffn_dim, 0.0f, 0.5f);
    }
}

/* Weights about 1 of n_heads heads of n numbers, each padded to 16; a vector of dim is one head. */
static struct Norm norm_of(struct Model *model, bool is_there, int32_t n_heads, int32_t n)
{
    enum NormKind kind = model->shape->norm == NORM_LAYER ? NORM_LAYER : NORM_RMS;
    int32_t width = (n + LANES - 1) / LANES * LANES;
    struct Norm norm = { is_there ? kind : NORM_NONE, 1e-5f, NULL, NULL };
    if (!is_there)
        return norm;
    float *weight = vector(model, n_heads * width, 1.0f, 0.5f), *bias = vector(model, n_heads * width, 0.0f, 0.5f);
    for (int32_t i = 0; i < n_heads * width; i++)
        if (i % width >= n)
            weight[i] = bias[i] = 0.0f;
    norm.weight = weight;
    norm.bias = kind == NORM_LAYER ? bias : NULL;
    return norm;
}

static struct Rope *make_ropes(struct Model *model)
{
    const struct Shape *s = model->shape;
    struct Rope *ropes = keep(model, calloc((size_t)s->n_ropes + 1, sizeof *ropes));
    for (int32_t k = 0; k < s->n_ropes; k++) {
        int32_t n_pairs = s->n_pairs ? s->n_pairs : s->head_dim / 2;
        float *frequencies = vector(model, n_pairs, 0.0f, 0.0f);
        for (int32_t i = 0; i < n_pairs; i++)
            frequencies[i] = i ? frequencies[i - 1] * 0.5625f : k ? 0.25f : 1.0f;
        ropes[k] = (struct Rope){ frequencies, n_pairs, k ? 1.125f : 1.0f };
    }
    return ropes;
}

static void make_layer(struct Model *model, int32_t l, struct Layer *layer)
{
    static const float xielu[] = { 0.8f, 0.7f, 0.5f, -1e-6f };
    const struct Shape *s = model->shape;
    layer->attention_norm = norm_of(model, !s->has_no_pre_norms, 1, s->dim);
    layer->attention_post_norm = norm_of(model, s->has_post_norms, 1, s->dim);
    layer->mlp_norm = norm_of(model, !s->has_no_pre_norms, 1, s->dim);
    layer->mlp_post_norm = norm_of(model, s->has_post_norms, 1, s->dim);
    layer->q_norm = norm_of(model, s->has_qk_norms, s->n_heads, s->head_dim);
    layer->k_norm = norm_of(model, s->has_qk_norms, s->n_kv_heads, s->head_dim);
    layer->qkv = qkv_matrix(model);
    layer->output = plain_matrix(model, TENSOR_OUTPUT, s->dim, s->n_heads * s->head_dim, s->has_biases);
    gate_and_up(model, layer);
    layer->down = plain_matrix(model, TENSOR_DOWN, s->dim, s->ffn_dim, s->has_biases);
    layer->activation_parameters = xielu;
    layer->attention_scale = 1.0f / sqrtf((float)s->head_dim);
    layer->rope = s->n_ropes ? l % s->n_ropes : -1;
    layer->window = l % 2 == 0 ? s->window : 0;
    layer->is_parallel = s->is_parallel;
    layer->norms_whole_qk = s->norms_whole_qk;
    layer->norms_after_rope = s->norms_after_rope;
}

/* One after the other: an initialiser's order is the compiler's choice, and each vector's inputs follow from it. */
static void make_plan(struct Model *model)
{
    const struct Shape *s = model->shape;
    struct Plan *plan = &model->plan;
    const float scale = s->scale != 0.0f ? s->scale : 1.0f;
    *plan = (struct Plan){ s->dim,
                           s->n_layers,
                           s->n_heads,
                           s->n_kv_heads,
                           s->head_dim,
                           s->ffn_dim,
                           s->vocab_size,
                           s->n_ropes,
                           .activation = s->activation,
                           .activation_planes = s->planes == 2 ? 2 : 1,
                           .attention_softcap = s->softcap,
                           .logit_softcap = s->softcap * 4,
                           .embedding_scale = scale,
                           .residual_scale = scale,
                           .logit_scale = scale,
                           .qkv_clip = s->clip,
                           .position_scale = s->scale * 0.1f,
                           .position_scale_context = 16 };
    plan->ropes = make_ropes(model);
    plan->final_norm = norm_of(model, true, 1, s->dim);
    plan->embedding = plain_matrix(model, TENSOR_EMBEDDING, s->vocab_size, s->dim, false);
    plan->head = plain_matrix(model, TENSOR_HEAD, s->vocab_size, s->dim, false);
    if (s->has_learned_positions)
        plan->positions = plain_matrix(model, TENSOR_EMBEDDING, TOKENS_AT_MOST, s->dim, false);
    plan->layers = keep(model, calloc((size_t)s->n_layers, sizeof(struct Layer)));
    for (int32_t l = 0; l < s->n_layers; l++)
        make_layer(model, l, &plan->layers[l]);
}

struct Model *model_create(const struct Shape *shape)
{
    struct Model *model = calloc(1, sizeof *model);
    if (!model)
        abort();
    model->shape = shape;
    model->vocab_stride = (shape->vocab_size + LANES - 1) / LANES * LANES;
    make_plan(model);
    expect_texts(model);
    return model;
}

void model_destroy(struct Model *model)
{
    for (int32_t i = 0; i < model->n_allocations; i++)
        free(model->allocations[i]);
    free(model);
}
