/* Sixteen floats in one zmm (AVX-512 F, BW, DQ, VL). */
#include <immintrin.h>

#include "../runtime/floats.h"
#include "../rillm.h"

typedef __m512 f32x16;
enum { HEAD_SUMS = 16 }; /* of attention, side by side: heads times tiles of keys or of values */
enum { FLOAT_SUMS = 8 }; /* of float matrices, side by side: 4 would hide the latency of one fma a cycle, 8 hide that of two */

static inline f32x16 vec_set(float x) { return _mm512_set1_ps(x); }
static inline f32x16 vec_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vec_store(float *p, f32x16 a) { _mm512_storeu_ps(p, a); }
static inline f32x16 vec_add(f32x16 a, f32x16 b) { return _mm512_add_ps(a, b); }
static inline f32x16 vec_sub(f32x16 a, f32x16 b) { return _mm512_sub_ps(a, b); }
static inline f32x16 vec_mul(f32x16 a, f32x16 b) { return _mm512_mul_ps(a, b); }
static inline f32x16 vec_div(f32x16 a, f32x16 b) { return _mm512_div_ps(a, b); }
static inline f32x16 vec_min(f32x16 a, f32x16 b) { return _mm512_min_ps(a, b); }
static inline f32x16 vec_max(f32x16 a, f32x16 b) { return _mm512_max_ps(a, b); }
static inline f32x16 vec_abs(f32x16 a) { return _mm512_abs_ps(a); }
static inline f32x16 vec_fma(f32x16 a, f32x16 b, f32x16 c) { return _mm512_fmadd_ps(a, b, c); }
static inline f32x16 vec_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline void vec_store_f16(uint16_t *p, f32x16 a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline f32x16 vec_load_bf16(const uint16_t *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
static inline f32x16 vec_load_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
static inline f32x16 vec_pow2_of_magic(f32x16 t)
{
    __m512i shifted = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(shifted, _mm512_set1_epi32(0x3f800000)));
}
static inline void vec_store_low_bytes(int8_t *p, f32x16 t)
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_castps_si512(t)));
}
static inline f32x16 vec_where_less(f32x16 x, f32x16 limit, f32x16 yes, f32x16 no)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), no, yes);
}
static inline f32x16 vec_lanes(int first, int last, f32x16 a, f32x16 b)
{
    uint32_t below_last = (1u << last) - 1, below_first = (1u << first) - 1;
    return _mm512_mask_blend_ps((__mmask16)(below_last & ~below_first), b, a);
}

/* Eight lanes of 64 bits, of which the low 32 count: see noise.inc. */
typedef __m512i u64x8;
typedef __m256i u32x8;
enum { NOISE_TILES = 4 }; /* the latency of one's products is the other's time */
static inline u64x8 u64_set(uint32_t x) { return _mm512_set1_epi64(x); }
static inline u64x8 u64_count_from(uint32_t first)
{
    return _mm512_add_epi64(_mm512_set1_epi64(first), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline u64x8 u64_mul_low(u64x8 a, u64x8 b) { return _mm512_mul_epu32(a, b); }
static inline u64x8 u64_high(u64x8 a) { return _mm512_srli_epi64(a, 32); }
static inline u64x8 u64_xor(u64x8 a, u64x8 b, u64x8 c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
static inline u32x8 u64_low(u64x8 a) { return _mm512_cvtepi64_epi32(a); }
static inline void u32_store(uint32_t *p, u32x8 a) { _mm256_storeu_si256((__m256i *)p, a); }
static inline u32x8 u32_min(u32x8 a, u32x8 b) { return _mm256_min_epu32(a, b); }
static inline __m256 halves_low(f32x16 a) { return _mm512_castps512_ps256(a); }
static inline __m256 halves_high(f32x16 a) { return _mm512_extractf32x8_ps(a, 1); }
#include "reduce_x86.h"
