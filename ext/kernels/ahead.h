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
    CODES_AHEAD = 24576, /* of each of two in matmul_k whose codes are unpacked, a long time for a line */
};

/* Whether this processor leads a swift stream from page to page itself, into its second-level cache (runtime/cpu.c). What
   slower streams ask for goes there too: the few requests that the first level has under way at once would be the limit. */
extern bool hardware_leads;

/* A distance ahead, but 0, which asks for what is being read, for a stream that is led. Swift are those of few rows, with
   few instructions a line. */
static inline size_t unless_led(bool is_swift, size_t distance) { return is_swift && hardware_leads ? 0 : distance; }

/* Tiles of 16 keys or values, in attention: a whole block, or half of one. */
static inline int tiles_ahead(bool leads) { return leads ? 8 : 4; }

static inline void ask_for(const void *line, bool leads)
{
    if (leads)
        __builtin_prefetch(line, 0, 2);
    else
        __builtin_prefetch(line);
}

/* From byte `at` of a panel to what is asked for, a distance ahead in each: near its end that is in the next panels, after
   the others beside it. */
static inline size_t bytes_ahead(size_t distance, size_t at, size_t stride_bytes, int n_panels)
{
    return distance + (at + distance >= stride_bytes ? (size_t)(n_panels - 1) * stride_bytes : 0);
}

#endif
