/* Waiting for a word to change: pause for tens of µs, yield for about a ms, then sleep in the kernel. */
#ifndef RILLM_PARK_H
#define RILLM_PARK_H

#include <stdatomic.h>
#include <stdint.h>

struct Word {
    _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
};

void word_wait_change(struct Word *word, uint32_t old);  /* returns once value ≠ old */
void word_advance(struct Word *word);                    /* value + 1, seen by every waiter */

#endif
