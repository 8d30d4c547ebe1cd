/* The same 256-bit kernels in EVEX form, for AVX-512 VL with VNNI. */
#include "kernels.h"
#include "vec_avx2.h"
#define ISA avx512vnnivl
#include "name.h"
#define DPBUSD _mm256_dpbusd_epi32
#include "matmul_vnni256.inc"
#include "matmul_k_vnni256.inc"

void kernels_fill_avx512vnnivl(struct Kernels *kernels);
void kernels_fill_avx512vnnivl(struct Kernels *kernels)
{
    kernels->matmul_q8 = NAME(matmul_q8);
    kernels->matmul_q4 = NAME(matmul_q4);
    kernels->matmul_q4m = NAME(matmul_q4m);
#define FORMAT_K(name, ...) kernels->matmul_##name = NAME(matmul_##name);
#include "../pack/formats_k.inc"
#undef FORMAT_K
}
