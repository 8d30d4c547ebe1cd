/* Reductions of sixteen lanes in the fixed order i + (i + 8), + 4, + 2, + 1, for both x86 vector sizes. */
static inline float vec_sum(f32x16 a)
{
    __m256 eight = _mm256_add_ps(halves_low(a), halves_high(a));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
static inline float vec_largest(f32x16 a)
{
    __m256 eight = _mm256_max_ps(halves_low(a), halves_high(a));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
