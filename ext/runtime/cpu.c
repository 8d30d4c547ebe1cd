/* CPU feature bits, believed only when the operating system saves the registers they need (XGETBV). */
#include "cpu.h"

#include "../kernels/ahead.h"

#if defined(__x86_64__)
#include <cpuid.h>

struct Registers { uint32_t eax, ebx, ecx, edx; };

static struct Registers cpuid(uint32_t leaf, uint32_t subleaf)
{
    struct Registers r = { 0, 0, 0, 0 };
    if ((uint32_t)__get_cpuid_max(leaf & 0x80000000, NULL) >= leaf)
        __cpuid_count(leaf, subleaf, r.eax, r.ebx, r.ecx, r.edx);
    return r;
}

static bool all_set(uint32_t value, uint32_t bits) { return (value & bits) == bits; }

bool hardware_leads = false;

/* Zen 4 leads itself from page to page: q8, floats and K kernels of one row were 1.1 to 1.25 times as fast unasked. Slower
   streams (ahead.h) are faster asked there too, on Zen 5 all (bench/c.sh stream shows both). */
__attribute__((constructor)) static void learn_what_leads(void)
{
    const bool is_amd = cpuid(0, 0).ebx == 0x68747541; /* "Auth", of AuthenticAMD */
    const uint32_t family = (cpuid(1, 0).eax >> 8 & 15) + (cpuid(1, 0).eax >> 20 & 255);
    hardware_leads = is_amd && family == 0x19 && cpu_has_isa(ISA_AVX512VNNI); /* Zen 3 has no AVX-512 */
}

bool cpu_has_isa(enum Isa isa)
{
    struct Registers basic = cpuid(1, 0), extended = cpuid(7, 0);
    uint32_t saved = 0;
    if (basic.ecx & 1u << 27) {  /* OSXSAVE */
        uint32_t high;
        __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    }
    const bool avx2 = all_set(saved, 0x6)                             /* xmm, ymm */
        && all_set(basic.ecx, 1u << 12 | 1u << 28 | 1u << 29)         /* FMA, AVX, F16C */
        && all_set(extended.ebx, 1u << 5 | 1u << 3 | 1u << 8);        /* AVX2, BMI1, BMI2 */
    const bool avx512vnni = avx2 && all_set(saved, 0xe6)              /* opmask, zmm */
        && all_set(extended.ebx, 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) /* F, DQ, BW, VL */
        && all_set(extended.ecx, 1u << 11);                           /* VNNI */
    const bool avxvnni = avx2 && all_set(cpuid(7, 1).eax, 1u << 4);
    switch (isa) {
    case ISA_PORTABLE: return true;
    case ISA_AVX2: return avx2;
    case ISA_AVXVNNI: return avxvnni;
    case ISA_AVX512VNNIVL:
    case ISA_AVX512VNNI: return avx512vnni;
    default: return false;
    }
}
#else
bool hardware_leads = false;
bool cpu_has_isa(enum Isa isa) { return isa == ISA_PORTABLE; }
#endif
