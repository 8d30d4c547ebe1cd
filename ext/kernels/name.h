/* NAME(kernel): the kernel's name in the instruction set that this file is compiled for. */
#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)
#define NAME(kernel) PASTE(kernel, ISA)
