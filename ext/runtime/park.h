/* Waiting for a word to change: pause for tens of µs, yield for about a ms, then sleep in the kernel. */
#ifndef RILLM_PARK_H
#define RILLM_PARK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct Word {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
};

int64_t now_nanoseconds(void);
/* Returns once value ≠ old: the nanoseconds that it took, or 0 if no more than a pause. */
int64_t word_wait_change(struct Word *word, uint32_t old);
bool word_changes_soon(struct Word *word, uint32_t old); /* within a few µs */
void word_advance(struct Word *word);                    /* value + 1, seen by every waiter */

#endif
