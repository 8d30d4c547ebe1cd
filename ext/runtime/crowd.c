/* Workers that wait for more than half of their time do more with half as many. Later the others are tried again, ever
   less often while that fails. Whoever takes part, bits stay: panels and heads are only shared out otherwise. */
#include "crowd.h"

enum { PATIENCE_LEAST = 16, PATIENCE_MOST = 1024, STEPS_REMEMBERED = 4 };

void crowd_init(struct Crowd *crowd, int32_t n_most)
{
    *crowd = (struct Crowd){ .n_most = n_most, .n = n_most, .patience = PATIENCE_LEAST };
}

static void change(struct Crowd *crowd, int32_t n)
{
    crowd->n = n < crowd->n_most ? n : crowd->n_most;
    crowd->n_calm = 0;
    crowd->waiting = 0.0;
}

void crowd_note(struct Crowd *crowd, int64_t waited_nanoseconds, int64_t lasted_nanoseconds)
{
    double share = (double)waited_nanoseconds / ((double)lasted_nanoseconds * crowd->n + 1.0);
    crowd->waiting += (share - crowd->waiting) / STEPS_REMEMBERED;
    crowd->n_calm++;
    if (crowd->waiting > 0.5 && crowd->n > 1) {
        change(crowd, (crowd->n + 1) / 2);
        crowd->patience = crowd->patience < PATIENCE_MOST ? 2 * crowd->patience : PATIENCE_MOST;
    } else if (crowd->n < crowd->n_most && crowd->n_calm >= crowd->patience) {
        change(crowd, 2 * crowd->n);
    } else if (crowd->n == crowd->n_most && crowd->n_calm >= PATIENCE_MOST) {
        crowd->patience = PATIENCE_LEAST;
    }
}
