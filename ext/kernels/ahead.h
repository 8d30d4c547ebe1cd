/* How far ahead of itself a kernel asks for memory. The hardware's own prefetchers stop at every page, and a processor
   sees no further than some hundred instructions: few lines, where several rows or the unpacking of codes take many for
   each. A row of bytes takes so few that it does better without. */
#ifndef RILLM_AHEAD_H
#define RILLM_AHEAD_H

#include <stddef.h>

enum { AHEAD_OF_ONE_ROW = 1536, AHEAD_OF_ROWS = 3072 }; /* bytes */

/* From byte `at` of a panel to what is wanted next: near its end that is in the next panels, after the others that are
   read side by side with it. */
static inline size_t bytes_ahead(int n_rows, size_t at, size_t stride_bytes, int n_panels)
{
    const size_t ahead = n_rows == 1 ? AHEAD_OF_ONE_ROW : AHEAD_OF_ROWS;
    return ahead + (at + ahead >= stride_bytes ? (size_t)(n_panels - 1) * stride_bytes : 0);
}

#endif
