/* The portable table: complete, for any C11 compiler, and the definition of every other table's bits. */
#include "kernels.h"
#include "vec_portable.h"
#define ISA portable
#include "common.inc"
#include "matmul_portable.inc"
#include "matmul_k_portable.inc"

void kernels_fill_portable(struct Kernels *kernels);
void kernels_fill_portable(struct Kernels *kernels)
{
#define KERNEL(name, type) kernels->name = NAME(name);
#include "kernels.inc"
#undef KERNEL
}
