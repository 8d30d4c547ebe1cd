/* The table of AVX2 with FMA and F16C. */
#include "kernels.h"
#include "vec_avx2.h"
#define ISA avx2
#include "common.inc"
#include "matmul_avx2.inc"
#include "matmul_k_avx2.inc"

void kernels_fill_avx2(struct Kernels *kernels);
void kernels_fill_avx2(struct Kernels *kernels)
{
#define KERNEL(name, type) kernels->name = NAME(name);
#include "kernels.inc"
#undef KERNEL
}
