/* What the stages of a step share: the engine's buffers, the step, and a worker's view of them. */
#ifndef RILLM_ENGINE_H
#define RILLM_ENGINE_H

#include "cache.h"
#include "deal.h"
#include "../kernels/kernels.h"
#include "../runtime/pool.h"

/* Of many: their heads meet a block of the cache at once, in fours whatever the group. */
enum { ROWS_TOGETHER = 4 };
/* So many rows a worker and more may be shared out instead of panels; for each byte of a row that then stays with a core
   so many of weights may be read again: 3 pay, 5 hardly, 7 no more. */
enum { ROWS_DEALT = 32, WEIGHTS_READ_AGAIN = 4 };
_Static_assert((int)ROWS_DEALT >= (int)TILE_ROWS, "dealt in whole tiles, no share of rows is empty");

struct Step {
    const struct Row *rows;   /* [n_rows] */
    int32_t n_rows, n_wanted;
    int32_t n_workers;        /* that share it out: as many as the pool lets take part */
    bool deals_rows;          /* they are shared out, not panels */
    int32_t wanted[MAX_ROWS]; /* [n_wanted]: rows that want logits */
    float *logits;            /* [n_wanted, logits_stride] */
};

struct Buffers {
    float *x;                 /* [n_rows, dim_stride]: the residual stream */
    float *projected;         /* [n_rows, projected_stride]: q, k, v of all heads; later what is added to x */
    float *queries;           /* [n_kv_heads, 2, n_rows, group, head_width]: normed and turned; then as those see them
                                 that a sink policy keeps, where it brings them nearer */
    float *normed;            /* [n_threads, projected_stride]: a vector on its way, each worker's own */
    float *residues;          /* [n_threads, activation_stride]: what the first plane of an activation leaves */
    float *hidden;            /* [n_rows, hidden_stride]: silu(gate) · up */
    float *attended;          /* [n_rows, attended_stride] */
    float *cosines, *sines;   /* [2, n_rows, n_ropes, rope_stride]: as queries */
    float *partials;          /* [n_tasks, group, LANES + head_width], in order of row, kv head, block */
    struct Claim *claims;     /* [n_threads] */
    float *accumulators;      /* [n_threads, 2, ROWS_TOGETHER, group, LANES + head_width] */
    struct Activation shared; /* [n_rows]: what a matrix reads, dealt out over the workers */
    struct Activation *own;   /* [n_threads] of [TILE_ROWS]: the same, each worker for itself */
};

struct Engine {
    struct Plan *plan;
    const struct Kernels *kernels;
    struct Pool *pool;
    int32_t n_threads, n_planes;
    int32_t head_width, head_panels, group;   /* head_dim padded to 16; its panels; query heads of a kv head */
    int32_t dim_stride, projected_stride, hidden_stride, attended_stride, rope_stride, activation_stride;
    int32_t n_rows_capacity, n_tasks_capacity;
    size_t layer_bytes;                       /* of matrices, the mean */
    struct Arena arena;                       /* the buffers */
    struct Buffers buffers;
    struct Step step;
    int64_t *clock, stage_began;              /* [N_STAGES] nanoseconds, or NULL */
};

struct Worker {
    struct Engine *engine;
    int32_t index;
};

/* plan.c */
void plan_bind(struct Plan *plan, const struct Kernels *kernels);
enum Status buffers_reserve(struct Engine *engine, int32_t n_rows, int32_t n_tasks);

/* stages.c, for attention.c */
static inline int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }
static inline float *row_of(float *base, int32_t row, int32_t stride) { return base + (size_t)row * (size_t)stride; }
typedef void fill_fn(struct Worker worker, int32_t row, const void *argument, float *values);
const struct Activation *prepare(struct Worker worker, const struct Matrix *reader, int32_t n_rows, fill_fn *fill,
                                 const void *argument);
struct Deal tasks_of(struct Worker worker, int32_t n);
/* What of a matrix and its rows a worker multiplies at a time: all rows, or all panels. */
struct Part { struct Range rows, panels; };
struct Deal parts_of(struct Worker worker, const struct Matrix *matrix, int32_t whole);
struct Part part_of(struct Worker worker, const struct Deal *deal, const struct Matrix *matrix, struct Range piece);
struct Range share_of_rows(const struct Engine *engine, int32_t n_rows, int32_t share);
void project(const struct Matrix *matrix, const struct Activation *x, struct Part part, float *out, size_t out_stride);
void apply_norm(struct Worker worker, const struct Norm *norm, const float *x, int32_t width, int32_t n, float *out);

/* forward.c, stages.c, attention.c: a stage returns when all workers are done with it */
void forward(struct Worker worker);
void stage_embed(struct Worker worker);
const struct Activation *stage_norm(struct Worker worker, const struct Norm *norm, const struct Matrix *reader);
const struct Activation *stage_norm_wanted(struct Worker worker);
const struct Activation *stage_attended(struct Worker worker, const struct Layer *layer);
const struct Activation *stage_hidden(struct Worker worker, const struct Matrix *reader);
void stage_heads(struct Worker worker, int32_t layer, const struct Activation *x);
void stage_attend(struct Worker worker, int32_t layer);
void stage_add(struct Worker worker, const struct Matrix *matrix, const struct Activation *x,
               const struct Norm *post_norm);
void stage_gate_up(struct Worker worker, const struct Layer *layer, const struct Activation *x);
void stage_logits(struct Worker worker, const struct Activation *x);

#endif
