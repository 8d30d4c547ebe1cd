/* libFuzzer on everything that reads the bytes of a tensor: any bytes of any kind, any shape, into any format. Sanitizers
   see what is read and written; what must hold besides is checked here. build.sh makes it of MAIN=ext/tests/fuzz/blocks.c.

   Input: kind, format, rows, which of them a panel leaves out, then blocks until the end. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../kernels/kernels.h"
#include "../../pack/codes.h"
#include "../../runtime/floats.h"

enum { HEAD_BYTES = 4, ROWS_AT_MOST = 2 * LANES };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

struct Tensor {
    enum SourceKind kind;
    int32_t n_rows, n_columns;
    size_t row_bytes;
    uint8_t *bytes; /* [n_rows, row_bytes] and not one more */
};

static void *allocated(size_t n_bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, LINE_BYTES, n_bytes ? n_bytes : 1) != 0)
        abort();
    return memset(memory, 0xa5, n_bytes);
}

static void must(bool holds, const char *what, const struct Tensor *t, const struct Format *format)
{
    if (holds)
        return;
    fprintf(stderr, "%s: kind %d [%d, %d] in %s\n", what, (int)t->kind, t->n_rows, t->n_columns, format->name);
    abort();
}

/* A finite source comes back from its own format bit for bit; from others finite. */
static void unpack(const struct Tensor *t, const struct Format *format, bool is_own, const int32_t *rows,
                   const uint8_t *panels, int32_t n_panels)
{
    size_t panel_bytes = format_panel_bytes(format, t->n_columns), row_floats = (size_t)t->n_columns * sizeof(float);
    float *expected = allocated(row_floats), *got = allocated(row_floats);
    for (int32_t i = 0; i < n_panels * LANES; i++) {
        unpack_row(format, panels + (size_t)(i / LANES) * panel_bytes, i % LANES, t->n_columns, got);
        if (rows[i] >= 0)
            source_to_f32(t->kind, t->bytes + (size_t)rows[i] * t->row_bytes, t->n_columns, expected);
        for (int32_t c = 0; c < t->n_columns; c++) {
            must(got[c] - got[c] == 0.0f, "not finite", t, format);
            must(rows[i] >= 0 || bits_of_f32(got[c]) == 0, "padding is not zero", t, format);
            must(rows[i] < 0 || !is_own || bits_of_f32(got[c]) == bits_of_f32(expected[c]), "other bits", t, format);
        }
    }
    free(expected), free(got);
}

/* Every table gives the bits of portable; the vector is made of the tensor's own bytes. */
static void multiply(const struct Tensor *t, const struct Format *format, const uint8_t *panels, int32_t n_panels)
{
    enum { N_ROWS = 3 };
    int32_t stride = (t->n_columns + 63) / 64 * 64, n_groups = stride / GROUP;
    size_t n = (size_t)(N_ROWS * stride), out_bytes = (size_t)(N_ROWS * n_panels * LANES) * sizeof(float);
    struct Activation x = { allocated(n * sizeof(float)),           allocated(n), allocated(n / GROUP * sizeof(float)),
                            allocated(n / GROUP * sizeof(int32_t)), stride,       1 };
    float *expected = allocated(out_bytes), *got = allocated(out_bytes);
    for (int32_t r = 0; r < N_ROWS; r++) {
        for (int32_t c = 0; c < stride; c++)
            x.values[r * stride + c] =
                c < t->n_columns ? (float)(t->bytes[(size_t)(c * 7 + r) % t->row_bytes] - 128) : 0;
        kernels_for(ISA_PORTABLE)
            ->quantize(x.values + r * stride, stride, x.q + r * stride, x.scales + r * n_groups,
                       x.minus_sums + r * n_groups);
    }
    static int is_here[N_ISAS]; /* cpuid is slow on virtual machines */
    for (int isa = 0; isa < N_ISAS; isa++) {
        if (!is_here[isa])
            is_here[isa] = isa_available((enum Isa)isa) ? 1 : -1;
        if (is_here[isa] < 0)
            continue;
        kernels_matmul(kernels_for((enum Isa)isa), format->id)(panels, format_panel_bytes(format, t->n_columns),
                                                               n_panels, t->n_columns, &x, 0, N_ROWS,
                                                               isa ? got : expected, (size_t)(n_panels * LANES));
        for (size_t i = 0; isa && i < out_bytes / sizeof(float); i++)
            must(bits_of_f32(got[i]) == bits_of_f32(expected[i]) || (got[i] != got[i] && expected[i] != expected[i]),
                 isa_names[isa], t, format);
    }
    free(x.values), free(x.q), free(x.scales), free(x.minus_sums), free(expected), free(got);
}

static void pack(const struct Tensor *t, const struct Format *format, bool is_own, uint8_t left_out)
{
    int32_t rows[ROWS_AT_MOST], n_panels = (t->n_rows + LANES - 1) / LANES;
    for (int32_t i = 0; i < n_panels * LANES; i++)
        rows[i] = i < t->n_rows && (left_out == 0 || i % left_out) ? i : -1;
    size_t panel_bytes = format_panel_bytes(format, t->n_columns);
    uint8_t *panels = allocated(panel_bytes * (size_t)n_panels);
    struct PackJob job = { format, t->kind, t->bytes, rows, t->n_columns, n_panels, panels, panel_bytes };
    if (pack_panels(&job)) {
        unpack(t, format, is_own, rows, panels, n_panels);
        multiply(t, format, panels, n_panels);
    }
    free(panels);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    if (n_bytes < HEAD_BYTES)
        return 0;
    struct Tensor t = { data[0] % N_SOURCES, data[2] % ROWS_AT_MOST + 1, 0, 0, NULL };
    const struct Format *format = &formats[data[1] % N_FORMATS], *own = source_format(t.kind);
    own = own ? own : &formats[(int)t.kind]; /* F32, F16 and BF16 come first in both lists */
    int32_t unit = 1;
    while (source_row_bytes(t.kind, unit) == 0)
        unit *= 2;
    t.n_columns = (int32_t)((n_bytes - HEAD_BYTES) / (size_t)t.n_rows / source_row_bytes(t.kind, unit)) * unit;
    t.row_bytes = source_row_bytes(t.kind, t.n_columns);
    if (t.n_columns == 0)
        return 0;
    size_t used = (size_t)t.n_rows * t.row_bytes;
    t.bytes = allocated(used);
    memcpy(t.bytes, data + HEAD_BYTES, used);
    pack(&t, own, true, data[3] % LANES);
    if (format != own)
        pack(&t, format, false, data[3] % LANES);
    free(t.bytes);
    return 0;
}
