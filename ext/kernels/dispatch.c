/* Which instruction sets are here, and one full kernel table for each, filled from portable upward. */
#include "kernels.h"
#include "../runtime/cpu.h"

const char *const isa_names[N_ISAS] = { "portable", "avx2", "avxvnni", "avx512vnnivl", "avx512vnni" };

void kernels_fill_portable(struct Kernels *kernels);
void kernels_fill_avx2(struct Kernels *kernels);
void kernels_fill_avxvnni(struct Kernels *kernels);
void kernels_fill_avx512vnnivl(struct Kernels *kernels);
void kernels_fill_avx512vnni(struct Kernels *kernels);

static void (*const fill[N_ISAS])(struct Kernels *) = {
    kernels_fill_portable,
#if defined(__x86_64__)
    kernels_fill_avx2,     kernels_fill_avxvnni, kernels_fill_avx512vnnivl, kernels_fill_avx512vnni,
#endif
};

bool isa_compiled(enum Isa isa) { return fill[isa] != NULL; }
bool isa_available(enum Isa isa) { return isa_compiled(isa) && cpu_has_isa(isa); }

const struct Kernels *kernels_for(enum Isa isa)
{
    static struct Kernels tables[N_ISAS];
    static _Atomic bool is_filled[N_ISAS];   /* once, not while others compute by it */
    if (is_filled[isa])
        return &tables[isa];
    for (int i = 0; i <= (int)isa; i++)
        if (isa_compiled((enum Isa)i) && (i != ISA_AVXVNNI || isa == ISA_AVXVNNI))
            fill[i](&tables[isa]);   /* AVX-VNNI is below no other: a CPU with AVX-512 may lack it */
    tables[isa].isa = isa_names[isa];
    is_filled[isa] = true;
    return &tables[isa];
}
