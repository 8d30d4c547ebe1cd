/* How far ahead of itself a kernel asks for memory. The prefetchers of most hardware stop at every page, and a processor
   sees no further than some hundred instructions: few lines, where several rows or the unpacking of codes take many for
   each. One row of bytes with AVX-512 takes so few that the lines of scales are enough, to lead the hardware from page to
   page: without them such a step was up to 8 % slower, or not, as its loop happened to lie in memory. */
#ifndef RILLM_AHEAD_H
#define RILLM_AHEAD_H

#include <stdbool.h>
#include <stddef.h>

enum {
    BYTES_AHEAD = 8192, /* of all panels that are read side by side */
    TILES_AHEAD = 4, /* of 16 keys or values, in attention */
    CODES_AHEAD = 24576, /* of each of two in matmul_k whose codes are unpacked, a long time for a line */
};

/* Whether this processor is asked at all while one row reads its stream of panels (runtime/cpu.c). */
extern bool one_row_asks;

static inline bool asks_ahead(int n_rows) { return n_rows > 1 || one_row_asks; }

/* From byte `at` of a panel to what is asked for, a distance ahead in each: near its end that is in the next panels, after
   the others beside it. 0, which asks for what is being read, where nothing is to be asked for. */
static inline size_t bytes_ahead(int n_rows, size_t distance, size_t at, size_t stride_bytes, int n_panels)
{
    if (!asks_ahead(n_rows))
        return 0;
    return distance + (at + distance >= stride_bytes ? (size_t)(n_panels - 1) * stride_bytes : 0);
}

#endif
