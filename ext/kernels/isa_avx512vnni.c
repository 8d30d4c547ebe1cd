/* The table of AVX-512 (F, BW, DQ, VL) with VNNI. */
#include "kernels.h"
#include "vec_avx512.h"
#define ISA avx512vnni
#include "common.inc"
#include "matmul_avx512vnni.inc"
#include "matmul_k_avx512vnni.inc"

void kernels_fill_avx512vnni(struct Kernels *kernels);
void kernels_fill_avx512vnni(struct Kernels *kernels)
{
#define KERNEL(name, type) kernels->name = NAME(name);
#include "kernels.inc"
#undef KERNEL
}
