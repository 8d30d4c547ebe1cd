/* A row of an integer format before it is laid into a panel: codes with their group scales. */
#ifndef RILLM_QUANTIZE_H
#define RILLM_QUANTIZE_H

#include "../rillm.h"

struct Codes {
    uint16_t *scales, *minima;  /* [n_groups], f16 */
    uint8_t *q;                 /* [n_groups · 32], as stored: int8 for 8 bits, 0..15 for 4 */
};
/* Encodes floats; false when a value is not finite or a scale does not fit f16. */
bool quantize_row(const struct Format *format, const float *x, int32_t n_columns, struct Codes codes);
/* Takes the codes of GGUF blocks over as they are: Q8_0 to q8, Q4_0 to q4, Q4_1 to q4m. */
void repack_row(enum SourceKind kind, const uint8_t *blocks, int32_t n_columns, struct Codes codes);
bool is_lossless(const struct Format *format, enum SourceKind kind);

#endif
