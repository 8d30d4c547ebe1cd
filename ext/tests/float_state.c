/* Changes the caller's rounding mode, flush-to-zero and denormals-are-zero, as a host library might have. */
#include "tests.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
static const uint64_t states[N_FLOAT_STATES] = { 0x1f80, 0x9fc0 /* FTZ, DAZ */, 0x3f80 /* down */, 0x5f80 /* up */,
                                                 0xffc0 /* to zero, FTZ, DAZ */ };
uint64_t float_state(void) { return _mm_getcsr() & ~0x3fu; /* without the sticky exception flags */ }
void set_float_state(int state) { _mm_setcsr((unsigned)states[state]); }
#elif defined(__aarch64__)
static const uint64_t states[N_FLOAT_STATES] = { 0, 1 << 24 /* FZ */, 2 << 22 /* down */, 1 << 22 /* up */,
                                                 3 << 22 | 1 << 24 /* to zero, FZ */ };
uint64_t float_state(void)
{
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return control;
}
void set_float_state(int state) { __asm__ volatile("msr fpcr, %0" : : "r"(states[state])); }
#else
uint64_t float_state(void) { return 0; }
void set_float_state(int state) { (void)state; }
#endif
