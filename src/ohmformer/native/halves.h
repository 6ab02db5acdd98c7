/* Numbers of sixteen bits, where they are asked for.
 *
 * With half, what enters a product or attention is rounded to bfloat16; sums and all else stay float32. Where the machine
 * multiplies pairs of bfloat16, a word is a pair of numbers that follow each other in the sum; elsewhere it is a rounded
 * float32.
 */
#include <stdlib.h>

#include "vectors.h"

static float *memory(int64_t numbers) {
    void *found = NULL;
    return posix_memalign(&found, 64, (numbers > 0 ? numbers : 1) * sizeof(float)) ? NULL : found;
}

#ifdef __AVX512BF16__
#include <immintrin.h>
#define PAIR(half) ((half) ? 2 : 1) /* numbers in a word */

INLINE Vector add_product(const int half, Vector sum, float x, Vector y) {
    if (half) return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_ps(x), (__m512bh)y);
    return sum + x * y;
}

/* words of numbers of two vectors, lane by lane */
INLINE Vector paired(Vector first, Vector second) {
    const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)first));
    const __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)second));
    return (Vector)_mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/* words of numbers that follow each other in two vectors */
INLINE Vector joined(Vector first, Vector second) {
    return (Vector)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
}

/* numbers of an array that is kept as words along rows */
INLINE Vector get(const int half, const float *words, int64_t at) {
    if (!half) return IN(words + at);
    const __m256i some = _mm256_loadu_si256((const __m256i *)((const uint16_t *)words + at));
    return (Vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(some), 16);
}

INLINE void put(const int half, float *words, int64_t at, Vector x) {
    if (half)
        _mm256_storeu_si256((__m256i *)((uint16_t *)words + at), (__m256i)_mm512_cvtneps_pbh((__m512)x));
    else
        AT(words + at) = x;
}
#else
#define PAIR(half) ((void)(half), 1)

INLINE Vector add_product(const int half, Vector sum, float x, Vector y) {
    (void)half;
    return sum + x * y;
}

/* the nearest bfloat16, of two as near the even one */
INLINE Vector rounded(Vector x) {
    const Mask bits = (Mask)x;
    return (Vector)((bits + 0x7fff + ((bits >> 16) & 1)) & ~0xffff);
}

INLINE Vector get(const int half, const float *words, int64_t at) {
    (void)half;
    return IN(words + at);
}

INLINE void put(const int half, float *words, int64_t at, Vector x) { AT(words + at) = half ? rounded(x) : x; }
#endif
