/* How a stage's work is shared out: panels, heads, blocks, rows. Who takes what cannot change a bit. */
#ifndef RILLM_DEAL_H
#define RILLM_DEAL_H

#include <stdatomic.h>

#include "../runtime/pool.h"

static inline int32_t round_up(int32_t n, int32_t multiple) { return (n + multiple - 1) / multiple * multiple; }

struct Range { int32_t first, last; };  /* first ≤ i < last */

struct Claim {                          /* of a worker's share: when, and what is taken from its front and its back */
    _Alignas(LINE_BYTES) _Atomic uint64_t taken;
};

/* As one worker sees it; all workers of a step set out the same. One deal lies between two barriers. */
struct Deal {
    const struct Matrix *matrix;        /* whose panels they are, shared out by bytes; or NULL: n alike */
    struct Pool *pool;
    struct Claim *claims;               /* [n_workers] */
    uint32_t round;                     /* the barriers passed, the same for all */
    int32_t n;                          /* panels or tasks */
    int32_t whole;                      /* so many of them stay together */
    int32_t unit;                       /* taken at least */
    int32_t worker, n_workers;
    struct Range kept, tail;            /* of the worker's share; kept is empty once it is given out */
};

void claims_reset(struct Claim *claims, int32_t n_workers, uint32_t round); /* by one thread, before a step */
struct Deal deal_panels(const struct Matrix *matrix, int32_t whole, struct Pool *pool, struct Claim *claims,
                        int32_t worker);
struct Deal deal_tasks(int32_t n, struct Pool *pool, struct Claim *claims, int32_t worker);
int32_t deal_first(const struct Matrix *matrix, int32_t n_workers, int32_t worker); /* where its share begins */
/* The next piece. False, once: all workers are done with all pieces, for it has met them at the barrier. */
bool deal_next(struct Deal *deal, struct Range *piece);

#endif
