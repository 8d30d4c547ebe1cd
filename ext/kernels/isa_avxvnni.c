/* What AVX-VNNI does better than AVX2: the integer matrices. */
#include "kernels.h"
#include "vec_avx2.h"
#define ISA avxvnni
#include "name.h"
#define DPBUSD _mm256_dpbusd_avx_epi32
#include "matmul_vnni256.inc"
#include "matmul_k_vnni256.inc"

void kernels_fill_avxvnni(struct Kernels *kernels);
void kernels_fill_avxvnni(struct Kernels *kernels)
{
    kernels->matmul_q8 = NAME(matmul_q8);
    kernels->matmul_q4 = NAME(matmul_q4);
    kernels->matmul_q4m = NAME(matmul_q4m);
#define FORMAT_K(name, ...) kernels->matmul_##name = NAME(matmul_##name);
#include "../pack/formats_k.inc"
#undef FORMAT_K
}
