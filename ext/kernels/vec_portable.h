/* Sixteen floats in plain C: the definition that every other vec_<isa>.h repeats with instructions. */
#include "../runtime/floats.h"
#include "../rillm.h"

typedef struct { float lane[LANES]; } f32x16;
enum { HEAD_SUMS = 4 }; /* of attention, side by side: heads times tiles of keys or of values */
enum { FLOAT_SUMS = 4 }; /* of float matrices, side by side */

#define FOR_LANES for (int i = 0; i < LANES; i++)
static inline f32x16 vec_set(float x) { f32x16 r; FOR_LANES r.lane[i] = x; return r; }
static inline f32x16 vec_load(const float *p) { f32x16 r; memcpy(&r, p, sizeof r); return r; }
static inline void vec_store(float *p, f32x16 a) { memcpy(p, &a, sizeof a); }
static inline f32x16 vec_add(f32x16 a, f32x16 b) { FOR_LANES a.lane[i] += b.lane[i]; return a; }
static inline f32x16 vec_sub(f32x16 a, f32x16 b) { FOR_LANES a.lane[i] -= b.lane[i]; return a; }
static inline f32x16 vec_mul(f32x16 a, f32x16 b) { FOR_LANES a.lane[i] *= b.lane[i]; return a; }
static inline f32x16 vec_div(f32x16 a, f32x16 b) { FOR_LANES a.lane[i] /= b.lane[i]; return a; }
/* If either is NaN the second, as on x86. */
static inline f32x16 vec_min(f32x16 a, f32x16 b)
{
    FOR_LANES a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
    return a;
}
static inline f32x16 vec_max(f32x16 a, f32x16 b)
{
    FOR_LANES a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
    return a;
}
static inline f32x16 vec_abs(f32x16 a) { FOR_LANES a.lane[i] = f32_of_bits(bits_of_f32(a.lane[i]) & 0x7fffffff); return a; }
static inline f32x16 vec_fma(f32x16 a, f32x16 b, f32x16 c)
{
    FOR_LANES c.lane[i] = fma_f32(a.lane[i], b.lane[i], c.lane[i]);
    return c;
}
static inline f32x16 vec_load_f16(const uint16_t *p) { f32x16 r; FOR_LANES r.lane[i] = f32_from_f16(p[i]); return r; }
static inline void vec_store_f16(uint16_t *p, f32x16 a) { FOR_LANES p[i] = f16_from_f32(a.lane[i]); }
static inline f32x16 vec_load_bf16(const uint16_t *p) { f32x16 r; FOR_LANES r.lane[i] = f32_of_bf16(p[i]); return r; }
static inline f32x16 vec_load_i8(const int8_t *p) { f32x16 r; FOR_LANES r.lane[i] = (float)p[i]; return r; }
/* 2^n from t = n + 1.5·2^23. */
static inline f32x16 vec_pow2_of_magic(f32x16 t)
{
    FOR_LANES t.lane[i] = f32_of_bits((bits_of_f32(t.lane[i]) << 23) + 0x3f800000);
    return t;
}
/* The low byte of t = n + 1.5·2^23 is n in two's complement. */
static inline void vec_store_low_bytes(int8_t *p, f32x16 t) { FOR_LANES p[i] = (int8_t)bits_of_f32(t.lane[i]); }
static inline f32x16 vec_where_less(f32x16 x, f32x16 limit, f32x16 yes, f32x16 no)
{
    FOR_LANES no.lane[i] = x.lane[i] < limit.lane[i] ? yes.lane[i] : no.lane[i];
    return no;
}
/* Lanes first ≤ i < last of a, the others of b. */
static inline f32x16 vec_lanes(int first, int last, f32x16 a, f32x16 b)
{
    FOR_LANES b.lane[i] = i >= first && i < last ? a.lane[i] : b.lane[i];
    return b;
}
static inline float vec_sum(f32x16 a)
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            a.lane[i] += a.lane[i + half];
    return a.lane[0];
}
static inline float vec_largest(f32x16 a)
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            a.lane[i] = a.lane[i] > a.lane[i + half] ? a.lane[i] : a.lane[i + half];
    return a.lane[0];
}

/* Eight lanes of 64 bits, of which the low 32 count: see noise.inc. */
typedef struct { uint64_t lane[8]; } u64x8;
typedef struct { uint32_t lane[8]; } u32x8;
enum { NOISE_TILES = 1 };
#define FOR_LANES64 for (int i = 0; i < 8; i++)
static inline u64x8 u64_set(uint32_t x) { u64x8 r; FOR_LANES64 r.lane[i] = x; return r; }
static inline u64x8 u64_count_from(uint32_t first) { u64x8 r; FOR_LANES64 r.lane[i] = first + (uint32_t)i; return r; }
static inline u64x8 u64_mul_low(u64x8 a, u64x8 b)
{
    FOR_LANES64 a.lane[i] = (uint64_t)(uint32_t)a.lane[i] * (uint32_t)b.lane[i];
    return a;
}
static inline u64x8 u64_high(u64x8 a) { FOR_LANES64 a.lane[i] >>= 32; return a; }
static inline u64x8 u64_xor(u64x8 a, u64x8 b, u64x8 c) { FOR_LANES64 a.lane[i] ^= b.lane[i] ^ c.lane[i]; return a; }
static inline u32x8 u64_low(u64x8 a) { u32x8 r; FOR_LANES64 r.lane[i] = (uint32_t)a.lane[i]; return r; }
static inline void u32_store(uint32_t *p, u32x8 a) { memcpy(p, &a, sizeof a); }
static inline u32x8 u32_min(u32x8 a, u32x8 b)
{
    FOR_LANES64 a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
    return a;
}
