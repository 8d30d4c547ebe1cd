/* A small pool: one wake a step, barriers inside, and turns for callers. The caller is worker 0. */
#ifndef RILLM_POOL_H
#define RILLM_POOL_H

#include "../rillm.h"

struct Pool;
typedef void work_fn(void *context, int32_t worker);

enum Status pool_create(struct Pool **pool, int32_t n_threads);
void pool_destroy(struct Pool *pool);
/* Callers wait for their turn in order of arrival; work runs once on each of pool_workers, which may be fewer than there
   are and changes only between two runs. */
void pool_take_turn(struct Pool *pool);
void pool_end_turn(struct Pool *pool);
int32_t pool_workers(const struct Pool *pool);
enum Status pool_run(struct Pool *pool, work_fn *work, void *context);
uint32_t pool_phase(const struct Pool *pool); /* the barriers passed: between two, the same for all workers */
void pool_barrier(struct Pool *pool);
/* The same; but if others take more than a few µs, false: this worker has not come to the barrier after all. */
bool pool_barrier_soon(struct Pool *pool);

#endif
