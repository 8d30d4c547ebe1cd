/* Sixteen floats in two ymm (AVX2, FMA, F16C). */
#include <immintrin.h>

#include "../runtime/floats.h"
#include "../rillm.h"

typedef struct { __m256 low, high; } f32x16;
enum { HEAD_SUMS = 4 }; /* of attention, side by side, two registers each */
enum { FLOAT_SUMS = 4 }; /* of float matrices, side by side, two registers each */

#define BOTH(expression_low, expression_high) (f32x16){ (expression_low), (expression_high) }
static inline f32x16 vec_set(float x) { return BOTH(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
static inline f32x16 vec_load(const float *p) { return BOTH(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
static inline void vec_store(float *p, f32x16 a)
{
    _mm256_storeu_ps(p, a.low);
    _mm256_storeu_ps(p + 8, a.high);
}
static inline f32x16 vec_add(f32x16 a, f32x16 b) { return BOTH(_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)); }
static inline f32x16 vec_sub(f32x16 a, f32x16 b) { return BOTH(_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)); }
static inline f32x16 vec_mul(f32x16 a, f32x16 b) { return BOTH(_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)); }
static inline f32x16 vec_div(f32x16 a, f32x16 b) { return BOTH(_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)); }
static inline f32x16 vec_min(f32x16 a, f32x16 b) { return BOTH(_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)); }
static inline f32x16 vec_max(f32x16 a, f32x16 b) { return BOTH(_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)); }
static inline f32x16 vec_abs(f32x16 a)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return BOTH(_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high));
}
static inline f32x16 vec_fma(f32x16 a, f32x16 b, f32x16 c)
{
    return BOTH(_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high));
}
static inline f32x16 vec_load_f16(const uint16_t *p)
{
    return BOTH(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}
static inline void vec_store_f16(uint16_t *p, f32x16 a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(a.high, _MM_FROUND_TO_NEAREST_INT));
}
static inline __m256 widen_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
static inline f32x16 vec_load_bf16(const uint16_t *p) { return BOTH(widen_bf16(p), widen_bf16(p + 8)); }
static inline __m256 widen_i8(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
static inline f32x16 vec_load_i8(const int8_t *p) { return BOTH(widen_i8(p), widen_i8(p + 8)); }
static inline __m256 pow2_of_magic(__m256 t)
{
    __m256i shifted = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(shifted, _mm256_set1_epi32(0x3f800000)));
}
static inline f32x16 vec_pow2_of_magic(f32x16 t) { return BOTH(pow2_of_magic(t.low), pow2_of_magic(t.high)); }
static inline void vec_store_low_bytes(int8_t *p, f32x16 t)
{
    const __m256i low_bytes = _mm256_set1_epi32(0xff);
    __m256i words = _mm256_packus_epi32(_mm256_and_si256(_mm256_castps_si256(t.low), low_bytes),
                                        _mm256_and_si256(_mm256_castps_si256(t.high), low_bytes));
    words = _mm256_permute4x64_epi64(words, 0xd8);
    _mm_storeu_si128((__m128i *)p, _mm_packus_epi16(_mm256_castsi256_si128(words),
                                                    _mm256_extracti128_si256(words, 1)));
}
static inline f32x16 vec_where_less(f32x16 x, f32x16 limit, f32x16 yes, f32x16 no)
{
    return BOTH(_mm256_blendv_ps(no.low, yes.low, _mm256_cmp_ps(x.low, limit.low, _CMP_LT_OQ)),
                _mm256_blendv_ps(no.high, yes.high, _mm256_cmp_ps(x.high, limit.high, _CMP_LT_OQ)));
}
static inline __m256 lanes_between(int first, int last, int offset)
{
    __m256i lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(offset));
    return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(first), lane),
                                                   _mm256_cmpgt_epi32(_mm256_set1_epi32(last), lane)));
}
static inline f32x16 vec_lanes(int first, int last, f32x16 a, f32x16 b)
{
    return BOTH(_mm256_blendv_ps(b.low, a.low, lanes_between(first, last, 0)),
                _mm256_blendv_ps(b.high, a.high, lanes_between(first, last, 8)));
}

/* Eight lanes of 64 bits, of which the low 32 count: see noise.inc. */
typedef struct { __m256i low, high; } u64x8;
typedef __m256i u32x8;
enum { NOISE_TILES = 1 };

#define BOTH64(expression_low, expression_high) (u64x8){ (expression_low), (expression_high) }
static inline u64x8 u64_set(uint32_t x) { return BOTH64(_mm256_set1_epi64x(x), _mm256_set1_epi64x(x)); }
static inline u64x8 u64_count_from(uint32_t first)
{
    __m256i all = _mm256_set1_epi64x(first);
    return BOTH64(_mm256_add_epi64(all, _mm256_setr_epi64x(0, 1, 2, 3)),
                  _mm256_add_epi64(all, _mm256_setr_epi64x(4, 5, 6, 7)));
}
static inline u64x8 u64_mul_low(u64x8 a, u64x8 b)
{
    return BOTH64(_mm256_mul_epu32(a.low, b.low), _mm256_mul_epu32(a.high, b.high));
}
static inline u64x8 u64_high(u64x8 a) { return BOTH64(_mm256_srli_epi64(a.low, 32), _mm256_srli_epi64(a.high, 32)); }
static inline u64x8 u64_xor(u64x8 a, u64x8 b, u64x8 c)
{
    return BOTH64(_mm256_xor_si256(_mm256_xor_si256(a.low, b.low), c.low),
                  _mm256_xor_si256(_mm256_xor_si256(a.high, b.high), c.high));
}
static inline u32x8 u64_low(u64x8 a)
{
    __m256 words = _mm256_shuffle_ps(_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high), 0x88);
    return _mm256_permute4x64_epi64(_mm256_castps_si256(words), 0xd8);
}
static inline void u32_store(uint32_t *p, u32x8 a) { _mm256_storeu_si256((__m256i *)p, a); }
static inline u32x8 u32_min(u32x8 a, u32x8 b) { return _mm256_min_epu32(a, b); }
static inline __m256 halves_low(f32x16 a) { return a.low; }
static inline __m256 halves_high(f32x16 a) { return a.high; }
#include "reduce_x86.h"
