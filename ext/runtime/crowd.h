/* How many workers take part in a step: fewer where they are kept from running and so wait for one another. */
#ifndef RILLM_CROWD_H
#define RILLM_CROWD_H

#include <stdint.h>

struct Crowd {
    int32_t n_most, n;      /* workers there are; that take part */
    int32_t n_calm;         /* steps since the number changed */
    int32_t patience;       /* steps before more are tried again */
    double waiting;         /* share of the workers' time, over the last few steps */
};

void crowd_init(struct Crowd *crowd, int32_t n_most);
/* After a step that lasted so long, and in which all workers together waited so much longer than a short pause. */
void crowd_note(struct Crowd *crowd, int64_t waited_nanoseconds, int64_t lasted_nanoseconds);

#endif
