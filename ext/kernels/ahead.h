/* How far ahead of itself a kernel asks for memory. The hardware's own prefetchers stop at every page, and a processor
   sees no further than some hundred instructions: few lines, where several rows or the unpacking of codes take many for
   each. One row of bytes with AVX-512 takes so few that it does as well without. */
#ifndef RILLM_AHEAD_H
#define RILLM_AHEAD_H

#include <stddef.h>

enum { BYTES_AHEAD = 8192 }; /* of all panels that are read side by side */

/* From byte `at` of a panel to what is asked for: near its end that is in the next panels, after the others beside it. */
static inline size_t bytes_ahead(size_t at, size_t stride_bytes, int n_panels)
{
    const size_t ahead = BYTES_AHEAD / (size_t)n_panels;
    return ahead + (at + ahead >= stride_bytes ? (size_t)(n_panels - 1) * stride_bytes : 0);
}

#endif
