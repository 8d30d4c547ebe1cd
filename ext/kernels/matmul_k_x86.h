/* What the x86 versions of matmul_k share: the rows and codes of a group, sums of sixteen activations. */
#include <immintrin.h>

#include "../pack/codes.h"
#include "ahead.h"

/* Where a group's scales are, for 16 rows of a panel. */
struct GroupScales {
    const uint16_t *scales, *minima;
    const uint8_t *sub_scales, *sub_minima; /* of two-level ones */
};

/* Of the 32 columns that hold a group, each row's activations, their scale, and −Σ of the group's own. */
struct GroupRows {
    const int8_t *q;           /* at q_stride */
    const float *scales;       /* at scale_stride */
    const int32_t *minus_sums; /* at sum_stride; −zero·Σ for groups of 16 that have a zero point */
    int32_t q_stride, scale_stride, sum_stride;
};

static inline int32_t four_columns(struct GroupRows x, int row, int column)
{
    int32_t bytes;
    memcpy(&bytes, x.q + (size_t)row * x.q_stride + column, 4);
    return bytes;
}

/* −factor·Σ q of four bytes: vpmaddubsw adds neighbours, whose first factor is unsigned; vpmaddwd the pairs. */
static inline __m256i minus_sums_of_4(const int8_t *q, int factor)
{
    __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8((char)factor), _mm256_loadu_si256((const __m256i *)q));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(-1));
}

/* −factor·Σ q of each 16 of SUPER columns, factor ≤ 127. Additions of neighbours within 128 bits leave the even
   sums low and the odd ones high. */
static inline void minus_sums_of_16(const int8_t *q, int factor, int32_t *sums /* [SUPER / 16] */)
{
    for (int c = 0; c < SUPER; c += 128, sums += 8) {
        __m256i low = _mm256_hadd_epi32(minus_sums_of_4(q + c, factor), minus_sums_of_4(q + c + 32, factor));
        __m256i high = _mm256_hadd_epi32(minus_sums_of_4(q + c + 64, factor), minus_sums_of_4(q + c + 96, factor));
        __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        _mm256_storeu_si256((__m256i *)sums, _mm256_permutevar8x32_epi32(_mm256_hadd_epi32(low, high), order));
    }
}

/* The codes of columns 4·word .. 4·word + 3 of a group, of eight rows of the panel: as stored. */
SPECIALIZED __m256i codes_of_word(const int bits, const uint8_t *lines, const int word)
{
    if (bits == 8)
        return _mm256_load_si256((const __m256i *)(lines + word * LINE_BYTES));
    __m256i pair = _mm256_load_si256((const __m256i *)(lines + word / 2 * LINE_BYTES));
    __m256i nibble = _mm256_and_si256(word % 2 ? _mm256_srli_epi16(pair, 4) : pair, _mm256_set1_epi8(15));
    if (bits == 4)
        return nibble;
    const int n_upper = bits - 4, bit = word * n_upper, at = bit % 8;
    __m256i upper = _mm256_load_si256((const __m256i *)(lines + (4 + bit / 8) * LINE_BYTES));
    upper = at < 4 ? _mm256_slli_epi16(upper, 4 - at) : _mm256_srli_epi16(upper, at - 4);
    return _mm256_or_si256(nibble, _mm256_and_si256(upper, _mm256_set1_epi8(((1 << n_upper) - 1) << 4)));
}
