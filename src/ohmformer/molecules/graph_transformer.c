/* Layers of the Graph Transformer and their gradients: see compiled.py, which calls them one after the other.
 *
 * All arrays are float32 and lie row by row. Batch norms are not applied where they are computed: an array is kept as it was
 * before its norm, and whoever reads it multiplies by a scale and adds a shift, column by column; backwards likewise.
 * Threads take consecutive rows, so that sums depend on how many threads there are and on nothing else.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../vectors.h"

#define PANEL 32 /* columns that a product has in registers; widths are multiples of it */
#ifdef __AVX512F__
#define TILE 12 /* rows that a product has in registers */
#define TILE_T 8
#else
#define TILE 3
#define TILE_T 2
#endif
#define BLOCK 48 /* rows that stay in the second cache */

static float *memory(int64_t numbers) {
    void *found = NULL;
    return posix_memalign(&found, 64, (numbers > 0 ? numbers : 1) * sizeof(float)) ? NULL : found;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* the first row of a thread's share, in whole blocks */
static int64_t share(int64_t rows, int thread, int threads) {
    const int64_t blocks = (rows + BLOCK - 1) / BLOCK;
    return least(rows, blocks * thread / threads * BLOCK);
}

/* ------------------------------------------------------------------------------------------------ halves
 *
 * With half, what enters a product is rounded to bfloat16; sums and all else stay float32. Where the machine multiplies pairs
 * of bfloat16, a word is a pair of numbers that follow each other in the sum; elsewhere it is a rounded float32.
 */

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

/* how many numbers a word holds with half */
int ohm_pair(void) { return PAIR(1); }

/* ------------------------------------------------------------------------------------------------ products */

/* y = x w for some rows and one panel, in words; onto what y holds, or onto a row of biases */
INLINE void tile(const int half, const int rows, int64_t words, int64_t out, const float *x, const float *w,
                 const float *bias, float *y) {
    Vector sum[TILE][2];
    for (int i = 0; i < rows; i++) {
        const float *from = bias ? bias : y + i * out;
        sum[i][0] = IN(from), sum[i][1] = IN(from + LANES);
    }
    for (int64_t k = 0; k < words; k++) {
        const Vector left = IN(w + PANEL * k), right = IN(w + PANEL * k + LANES);
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) {
            sum[i][0] = add_product(half, sum[i][0], x[i * words + k], left);
            sum[i][1] = add_product(half, sum[i][1], x[i * words + k], right);
        }
    }
    for (int i = 0; i < rows; i++) AT(y + i * out) = sum[i][0], AT(y + i * out + LANES) = sum[i][1];
}

/* y = x w for rows of a block, or y += x w where there is no bias; x as words along rows, w as panels */
INLINE void product_of(const int half, int64_t rows, int64_t in, int64_t out, const float *x, const float *packed,
                       const float *bias, float *y) {
    const int64_t words = in / PAIR(half);
    for (int64_t j = 0; j < out; j += PANEL) {
        const float *w = packed + j * words, *b = bias ? bias + j : NULL;
        int64_t i = 0;
        for (; i + TILE <= rows; i += TILE) tile(half, TILE, words, out, x + i * words, w, b, y + i * out + j);
        for (; i < rows; i++) tile(half, 1, words, out, x + i * words, w, b, y + i * out + j);
    }
}

/* d (out, in) += g^T x over rows of a block; both as words across rows */
INLINE void product_of_columns_of(const int half, int64_t rows, int64_t in, int64_t out, const float *g, const float *x,
                                  float *d) {
    const int64_t words = (rows + PAIR(half) - 1) / PAIR(half);
    for (int64_t j = 0; j < in; j += PANEL)
        for (int64_t i = 0; i < out; i += TILE_T) {
            Vector sum[TILE_T][2];
            for (int t = 0; t < TILE_T; t++)
                for (int s = 0; s < 2; s++) sum[t][s] = IN(d + (i + t) * in + j + s * LANES);
            for (int64_t r = 0; r < words; r++) {
                const Vector left = IN(x + r * in + j), right = IN(x + r * in + j + LANES);
#pragma GCC unroll 8
                for (int t = 0; t < TILE_T; t++) {
                    sum[t][0] = add_product(half, sum[t][0], g[r * out + i + t], left);
                    sum[t][1] = add_product(half, sum[t][1], g[r * out + i + t], right);
                }
            }
            for (int t = 0; t < TILE_T; t++)
                for (int s = 0; s < 2; s++) AT(d + (i + t) * in + j + s * LANES) = sum[t][s];
        }
}

static void product(int half, int64_t rows, int64_t in, int64_t out, const float *x, const float *packed, const float *bias,
                    float *y) {
    if (half)
        product_of(1, rows, in, out, x, packed, bias, y);
    else
        product_of(0, rows, in, out, x, packed, bias, y);
}

static void product_of_columns(int half, int64_t rows, int64_t in, int64_t out, const float *g, const float *x, float *d) {
    if (half)
        product_of_columns_of(1, rows, in, out, g, x, d);
    else
        product_of_columns_of(0, rows, in, out, g, x, d);
}

/* some columns of a row of a matrix, or of its transpose */
INLINE Vector columns(const int transposed, const float *matrix, int64_t stride, int64_t row, int64_t first) {
    if (!transposed) return IN(matrix + row * stride + first);
    Vector some;
    for (int c = 0; c < LANES; c++) some[c] = matrix[(first + c) * stride + row];
    return some;
}

/* one panel of a matrix, or of its transpose, with so many rows */
INLINE void pack(const int transposed, int half, int64_t rows, int64_t panel, const float *matrix, int64_t stride,
                 float *packed) {
    float *to = packed + panel * PANEL * (rows / PAIR(half));
    for (int64_t k = 0; k < rows; k += PAIR(half), to += PANEL)
        for (int s = 0; s < PANEL; s += LANES) {
            const Vector here = columns(transposed, matrix, stride, k, panel * PANEL + s);
#ifdef __AVX512BF16__
            if (half) {
                AT(to + s) = paired(here, columns(transposed, matrix, stride, k + 1, panel * PANEL + s));
                continue;
            }
#endif
            put(half, to, s, here);
        }
}

/* ------------------------------------------------------------------------------------------------ rows and columns */

INLINE Vector normed(Vector x, const float *scale, const float *shift, int64_t c) {
    return scale ? x * IN(scale + c) + IN(shift + c) : x;
}

/* an array that is kept as words along rows, as words across rows; its sums over rows are added to sums if there are any */
static const float *across_of_along(int half, int64_t rows, int64_t width, const float *words, float *to, float *sums) {
    for (int64_t c = 0; (sums || PAIR(half) == 2) && c < width; c += LANES) {
        Vector sum = {0};
        for (int64_t i = 0; i < rows; i += PAIR(half)) {
            const Vector first = get(half, words, i * width + c);
            sum += first;
#ifdef __AVX512BF16__
            if (!half) continue;
            const Vector second = i + 1 < rows ? get(half, words, (i + 1) * width + c) : (Vector){0};
            sum += second;
            AT(to + i / 2 * width + c) = paired(first, second);
#endif
        }
        if (sums) AT(sums + c) += sum;
    }
    return PAIR(half) == 2 ? to : words;
}

/* x scale + shift + bias */
static void plus_bias(int64_t rows, int64_t width, const float *x, const float *scale, const float *shift, const float *bias,
                      float *to) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < width; c += LANES)
            AT(to + i * width + c) = normed(IN(x + i * width + c), scale, shift, c) + IN(bias + c);
}

/* x scale + shift, or x itself where there is no scale, as words along rows */
static const float *along_rows(int half, int64_t rows, int64_t width, const float *x, const float *scale, const float *shift,
                               float *to) {
    if (!scale && !half) return x;
#ifdef __AVX512BF16__
    if (half) {
        for (int64_t i = 0; i < rows; i++)
            for (int64_t c = 0; c < width; c += 2 * LANES) {
                const Vector first = normed(IN(x + i * width + c), scale, shift, c);
                const Vector second = normed(IN(x + i * width + c + LANES), scale, shift, c + LANES);
                AT(to + (i * width + c) / 2) = joined(first, second);
            }
        return to;
    }
#endif
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < width; c += LANES) {
            const Vector here = normed(IN(x + i * width + c), scale, shift, c);
            put(half, to, i * width + c, here);
        }
    return to;
}

/* the same as words across rows; what is missing from the last is zero */
static const float *across_rows(int half, int64_t rows, int64_t width, const float *x, const float *scale,
                                const float *shift, float *to) {
#ifdef __AVX512BF16__
    if (half) {
        for (int64_t i = 0; i < rows; i += 2)
            for (int64_t c = 0; c < width; c += LANES) {
                const Vector first = normed(IN(x + i * width + c), scale, shift, c);
                const Vector second = i + 1 < rows ? normed(IN(x + (i + 1) * width + c), scale, shift, c) : (Vector){0};
                AT(to + i / 2 * width + c) = paired(first, second);
            }
        return to;
    }
#endif
    return along_rows(half, rows, width, x, scale, shift, to);
}

INLINE Vector positive(Vector x) { return (Vector)((Mask)x & (x > 0)); }

/* what is positive of x, zero elsewhere, as words along rows and as words across rows */
static void cut_forms(int half, int64_t rows, int64_t width, const float *x, float *along, float *across) {
#ifdef __AVX512BF16__
    if (half) {
        for (int64_t i = 0; i < rows; i += 2)
            for (int64_t c = 0; c < width; c += 2 * LANES) {
                Vector of[2][2] = {{{0}}};
                for (int j = 0; j < 2 && i + j < rows; j++) {
                    const int64_t at = (i + j) * width + c;
                    for (int k = 0; k < 2; k++) of[j][k] = positive(IN(x + at + k * LANES));
                    AT(along + at / 2) = joined(of[j][0], of[j][1]);
                }
                AT(across + i / 2 * width + c) = paired(of[0][0], of[1][0]);
                AT(across + i / 2 * width + c + LANES) = paired(of[0][1], of[1][1]);
            }
        return;
    }
#endif
    for (int64_t i = 0; i < rows * width; i += LANES) {
        const Vector of = positive(IN(x + i));
        put(half, along, i, of);
        put(half, across, i, of);
    }
}

/* g where u, words across rows, is not zero, and zero elsewhere */
static void cut_across(int half, int64_t rows, int64_t width, const float *u, float *g) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < width; c += LANES) {
            Mask bits = *(const Mask *)(u + i / PAIR(half) * width + c);
            if (PAIR(half) == 2) bits = i % 2 ? bits >> 16 : bits << 16;
            AT(g + i * width + c) = (Vector)((Mask)IN(g + i * width + c) & (bits != 0));
        }
}

/* sums over rows of y - center and of its square; the center is the first row that a thread sees */
static void add_moments(int64_t rows, int64_t width, const float *y, int first, float *center, float *sums) {
    if (first) {
        memcpy(center, y, width * sizeof(float));
        memset(sums, 0, 2 * width * sizeof(float));
    }
    for (int64_t c = 0; c < width; c += 2 * LANES) {
        const Vector left = IN(center + c), right = IN(center + c + LANES);
        Vector sum[2] = {{0}, {0}}, square[2] = {{0}, {0}};
        for (int64_t i = 0; i < rows; i++) {
            const Vector d = IN(y + i * width + c) - left, e = IN(y + i * width + c + LANES) - right;
            sum[0] += d, square[0] += d * d, sum[1] += e, square[1] += e * e;
        }
        AT(sums + c) += sum[0], AT(sums + width + c) += square[0];
        AT(sums + c + LANES) += sum[1], AT(sums + width + c + LANES) += square[1];
    }
}

/* mean and squared deviations of all rows from the moments of the threads' shares, which lie own numbers apart */
static void join_moments(int threads, int64_t rows, int64_t width, const float *moments, int64_t own, float *mean,
                         float *squares) {
    memset(mean, 0, width * sizeof(float));
    memset(squares, 0, width * sizeof(float));
    for (int t = 0; t < threads; t++, moments += own) {
        const int64_t first = share(rows, t, threads), count = share(rows, t + 1, threads) - first;
        if (count == 0) continue;
        const float *center = moments, *sums = moments + width, part = (float)count / (first + count);
        for (int64_t c = 0; c < width; c++) {
            const float apart = center[c] + sums[c] / count - mean[c];
            mean[c] += part * apart;
            squares[c] += sums[width + c] - sums[c] * sums[c] / count + (float)first * part * apart * apart;
        }
    }
}

/* A gradient g in the forms that products need it in: as it is, as words along rows, as words across rows; its sums over rows
 * are added to sums. With a scale, g is first taken back before a norm that was given z: g scale + z slope + shift. */
typedef struct {
    const float *z, *scale, *slope, *shift;
} Norm;

INLINE Vector before_norm(Vector g, const Norm *norm, int64_t at, int64_t c) {
    return norm->scale ? g * IN(norm->scale + c) + IN(norm->z + at) * IN(norm->slope + c) + IN(norm->shift + c) : g;
}

static void forms(int half, int64_t rows, int64_t width, const float *g, Norm norm, float *plain, float *along, float *across,
                  float *sums) {
#ifdef __AVX512BF16__
    if (half) {
        for (int64_t c = 0; c < width; c += 2 * LANES) {
            Vector sum[2] = {IN(sums + c), IN(sums + c + LANES)};
            for (int64_t i = 0; i < rows; i += 2) {
                Vector of[2][2] = {{{0}}};
                for (int j = 0; j < 2 && i + j < rows; j++) {
                    const int64_t at = (i + j) * width + c;
                    for (int k = 0; k < 2; k++) {
                        of[j][k] = before_norm(IN(g + at + k * LANES), &norm, at + k * LANES, c + k * LANES);
                        if (plain) AT(plain + at + k * LANES) = of[j][k];
                        sum[k] += of[j][k];
                    }
                    AT(along + at / 2) = joined(of[j][0], of[j][1]);
                }
                AT(across + i / 2 * width + c) = paired(of[0][0], of[1][0]);
                AT(across + i / 2 * width + c + LANES) = paired(of[0][1], of[1][1]);
            }
            AT(sums + c) = sum[0], AT(sums + c + LANES) = sum[1];
        }
        return;
    }
#endif
    for (int64_t c = 0; c < width; c += LANES) {
        Vector sum = IN(sums + c);
        for (int64_t i = 0; i < rows; i++) {
            const int64_t at = i * width + c;
            const Vector of = before_norm(IN(g + at), &norm, at, c);
            if (plain) AT(plain + at) = of;
            put(half, along, at, of);
            put(half, across, at, of);
            sum += of;
        }
        AT(sums + c) = sum;
    }
}

/* sums of g and of g (z - mean) */
static void add_slopes(int64_t rows, int64_t width, const float *g, const float *z, const float *mean, float *sums) {
    for (int64_t c = 0; c < width; c += LANES) {
        Vector sum = IN(sums + c), slope = IN(sums + width + c);
        for (int64_t i = 0; i < rows; i++) {
            sum += IN(g + i * width + c);
            slope += IN(g + i * width + c) * (IN(z + i * width + c) - IN(mean + c));
        }
        AT(sums + c) = sum, AT(sums + width + c) = slope;
    }
}

/* the sum of what threads have, own numbers apart; numbers are a multiple of LANES */
static void join(int threads, int64_t numbers, const float *from, int64_t own, float *to) {
#pragma omp parallel for schedule(static) num_threads(threads) if (numbers > 4096)
    for (int64_t i = 0; i < numbers; i += LANES) {
        Vector sum = IN(from + i);
        for (int t = 1; t < threads; t++) sum += IN(from + t * own + i);
        AT(to + i) = sum;
    }
}

/* ------------------------------------------------------------------------------------------------ norms */

/* scale and shift of a norm, and one over the spread, from mean and squared deviations of so many rows; running statistics
 * go towards those of the rows by momentum */
void ohm_norm(int64_t threads, int64_t width, float count, float eps, float momentum, const float *mean,
              const float *squares, const float *weight, const float *bias, float *running_mean, float *running_variance,
              float *scale, float *shift, float *inverse) {
    (void)threads;
    for (int64_t c = 0; c < width; c++) {
        const float variance = squares[c] / count;
        inverse[c] = 1 / sqrtf(variance + eps);
        scale[c] = weight[c] * inverse[c];
        shift[c] = bias[c] - mean[c] * scale[c];
        if (momentum > 0) {
            running_mean[c] += momentum * (mean[c] - running_mean[c]);
            running_variance[c] += momentum * (variance * (count / (count - 1)) - running_variance[c]);
        }
    }
}

/* The gradient of a norm's weights, and by what rows are multiplied and what is added to have the gradient before it,
 * scale (g - mean g - z inverse mean(g z inverse)) with z = y - mean: linear in g and y. The sums are of g and of g z, own those
 * of this process; a count of zero means fixed statistics, through which nothing flows. */
void ohm_norm_backward(int64_t threads, int64_t width, float count, const float *own, const float *sums, const float *scale,
                       const float *inverse, const float *mean, float *g_weight, float *slope, float *shift) {
    (void)threads;
    for (int64_t c = 0; c < width; c++) {
        const float part = count > 0 ? scale[c] / count : 0;
        g_weight[c] = own[width + c] * inverse[c];
        slope[c] = -part * sums[width + c] * inverse[c] * inverse[c];
        shift[c] = -part * sums[c] - slope[c] * mean[c];
    }
}

/* ------------------------------------------------------------------------------------------------ affine maps
 *
 * There are two kinds. One, into attention: y = norm(x) W^T + b, with y kept as words along rows. The other, out of it:
 * y = norm(r) + x W^T + b, with x kept as words along rows, and a norm that follows. The gradients of what is kept as words
 * are so too.
 */

/* y; and mean and squared deviations of its columns if asked for. Returns 1 if there is no memory. */
int ohm_affine(int64_t threads, int64_t rows, int64_t in, int64_t out, int64_t half, const float *x, const float *x_scale,
               const float *x_shift, const float *weight, const float *bias, const float *r, const float *r_scale,
               const float *r_shift, float *y, float *mean, float *squares) {
    const int64_t own = BLOCK * (in + out) + 3 * out;
    float *packed = memory(in * out + threads * own);
    if (!packed) return 1;
    int used = 1; /* threads that there are, which may be fewer */
#pragma omp parallel num_threads(threads)
    {
        if (THREAD == 0) used = THREADS;
        float *words = packed + in * out + THREAD * own, *plain = words + BLOCK * in, *moments = plain + BLOCK * out;
#pragma omp for schedule(static)
        for (int64_t panel = 0; panel < out / PANEL; panel++) pack(1, half, in, panel, weight, in, packed);
        const int64_t first = share(rows, THREAD, THREADS), last = share(rows, THREAD + 1, THREADS);
        for (int64_t i = first; i < last; i += BLOCK) {
            const int64_t here = least(BLOCK, last - i);
            if (r) {
                float *to = y + i * out;
                plus_bias(here, out, r + i * out, r_scale, r_shift, bias, to);
                product(half, here, in, out, x + i * in / PAIR(half), packed, NULL, to);
                if (mean) add_moments(here, out, to, i == first, moments, moments + out);
            } else {
                float *to = half ? plain : y + i * out;
                product(half, here, in, out, along_rows(half, here, in, x + i * in, x_scale, x_shift, words), packed, bias, to);
                if (half) along_rows(half, here, out, to, NULL, NULL, y + i * out / PAIR(half));
            }
        }
    }
    if (mean) join_moments(used, rows, out, packed + in * out + BLOCK * (in + out), own, mean, squares);
    free(packed);
    return 0;
}

/* What the gradient of y gives to x and the weights. Of the first kind, g is the gradient of y, as words; that of norm(x) is
 * g W plus what comes from elsewhere, g_more, and its sums over rows, as they are and times x - x_mean, go to sums, if x has a
 * norm. Of the second, g is the gradient behind the norm of y, and what it is before it goes to g_kept. */
int ohm_affine_backward(int64_t threads, int64_t rows, int64_t in, int64_t out, int64_t half, const float *g, const float *y,
                        const float *y_scale, const float *y_slope, const float *y_shift, const float *x,
                        const float *x_scale, const float *x_shift, const float *x_mean, const float *weight,
                        const float *g_more, float *g_kept, float *g_x, float *g_weight, float *g_bias, float *sums) {
    const int64_t buffers = BLOCK * (2 * in + 2 * out), own = buffers + in * out + out + 2 * in;
    float *packed = memory(in * out + threads * own);
    if (!packed) return 1;
    int used = 1;
#pragma omp parallel num_threads(threads)
    {
        if (THREAD == 0) used = THREADS;
        float *words = packed + in * out + THREAD * own, *across = words + BLOCK * out, *words_of_x = across + BLOCK * out;
        float *plain = words_of_x + BLOCK * in, *d = words + buffers, *d_bias = d + in * out, *d_sums = d_bias + out;
        memset(d, 0, (own - buffers) * sizeof(float));
#pragma omp for schedule(static)
        for (int64_t panel = 0; panel < in / PANEL; panel++) pack(0, half, out, panel, weight, in, packed);
        const int64_t first = share(rows, THREAD, THREADS), last = share(rows, THREAD + 1, THREADS);
        for (int64_t i = first; i < last; i += BLOCK) {
            const int64_t here = least(BLOCK, last - i);
            const float *along = words, *of_y = across, *of_x;
            float *to = g_x + i * in;
            if (y_scale) {
                const Norm norm = {y + i * out, y_scale, y_slope, y_shift};
                forms(half, here, out, g + i * out, norm, g_kept + i * out, words, across, d_bias);
                of_x = across_of_along(half, here, in, x + i * in / PAIR(half), words_of_x, NULL);
                to = half ? plain : to;
            } else {
                along = g + i * out / PAIR(half);
                of_y = across_of_along(half, here, out, along, across, d_bias);
                of_x = across_rows(half, here, in, x + i * in, x_scale, x_shift, words_of_x);
            }
            product_of_columns(half, here, in, out, of_y, of_x, d);
            if (g_more)
                memcpy(to, g_more + i * in, here * in * sizeof(float));
            else
                memset(to, 0, here * in * sizeof(float));
            product(half, here, out, in, along, packed, NULL, to);
            if (sums) add_slopes(here, in, to, x + i * in, x_mean, d_sums);
            if (to == plain) along_rows(half, here, in, to, NULL, NULL, g_x + i * in / PAIR(half));
        }
    }
    const float *found = packed + in * out + buffers;
    join(used, in * out, found, own, g_weight);
    join(used, out, found + in * out, own, g_bias);
    if (sums) join(used, 2 * in, found + in * out + out, own, sums);
    free(packed);
    return 0;
}

/* ------------------------------------------------------------------------------------------------ two layers with a cut
 *
 * y = x + D u + d with u = max(0, U x + c) and x = norm(z), all of one width. What is kept of u is words across rows.
 */

int ohm_mlp(int64_t threads, int64_t rows, int64_t width, int64_t half, const float *z, const float *z_scale,
            const float *z_shift, const float *up, const float *up_bias, const float *down, const float *down_bias, float *u,
            float *y, float *mean, float *squares) {
    const int64_t square = width * width, own = 2 * BLOCK * width + 3 * width;
    float *packed = memory(2 * square + threads * own), *packed_down = packed + square;
    if (!packed) return 1;
    int used = 1;
#pragma omp parallel num_threads(threads)
    {
        if (THREAD == 0) used = THREADS;
        float *words = packed + 2 * square + THREAD * own, *inner = words + BLOCK * width, *moments = inner + BLOCK * width;
#pragma omp for schedule(static)
        for (int64_t panel = 0; panel < width / PANEL; panel++) {
            pack(1, half, width, panel, up, width, packed);
            pack(1, half, width, panel, down, width, packed_down);
        }
        const int64_t first = share(rows, THREAD, THREADS), last = share(rows, THREAD + 1, THREADS);
        for (int64_t i = first; i < last; i += BLOCK) {
            const int64_t here = least(BLOCK, last - i);
            const float *x = z + i * width;
            float *to = y + i * width;
            product(half, here, width, width, along_rows(half, here, width, x, z_scale, z_shift, words), packed, up_bias, inner);
            cut_forms(half, here, width, inner, words, u + i / PAIR(half) * width);
            plus_bias(here, width, x, z_scale, z_shift, down_bias, to);
            product(half, here, width, width, words, packed_down, NULL, to);
            if (mean) add_moments(here, width, to, i == first, moments, moments + width);
        }
    }
    if (mean) join_moments(used, rows, width, packed + 2 * square + 2 * BLOCK * width, own, mean, squares);
    free(packed);
    return 0;
}

/* g is the gradient behind the norm of y, g_x that of x, whose sums are as above; d holds the gradients of U, D, c, d, in this
 * order, and the sums */
int ohm_mlp_backward(int64_t threads, int64_t rows, int64_t width, int64_t half, const float *g, const float *y,
                     const float *y_scale, const float *y_slope, const float *y_shift, const float *u, const float *z,
                     const float *z_scale, const float *z_shift, const float *z_mean, const float *up, const float *down,
                     float *g_x, float *d) {
    const int64_t square = width * width, results = 2 * square + 4 * width, own = 4 * BLOCK * width + results;
    float *packed = memory(2 * square + threads * own), *packed_down = packed + square;
    if (!packed) return 1;
    int used = 1;
#pragma omp parallel num_threads(threads)
    {
        if (THREAD == 0) used = THREADS;
        float *along = packed + 2 * square + THREAD * own, *across = along + BLOCK * width, *inner = across + BLOCK * width;
        float *words_of_x = inner + BLOCK * width, *d_up = words_of_x + BLOCK * width, *d_down = d_up + square, *d_bias = d_down + square;
        memset(d_up, 0, results * sizeof(float));
#pragma omp for schedule(static)
        for (int64_t panel = 0; panel < width / PANEL; panel++) {
            pack(0, half, width, panel, up, width, packed);
            pack(0, half, width, panel, down, width, packed_down);
        }
        const int64_t first = share(rows, THREAD, THREADS), last = share(rows, THREAD + 1, THREADS);
        for (int64_t i = first; i < last; i += BLOCK) {
            const int64_t here = least(BLOCK, last - i);
            const float *x = z + i * width, *of_u = u + i / PAIR(half) * width;
            float *to = g_x + i * width;
            const Norm norm = {y + i * width, y_scale, y_slope, y_shift}, none = {0};
            forms(half, here, width, g + i * width, norm, to, along, across, d_bias + width);
            product_of_columns(half, here, width, width, across, of_u, d_down);
            memset(inner, 0, here * width * sizeof(float));
            product(half, here, width, width, along, packed_down, NULL, inner);
            cut_across(half, here, width, of_u, inner);
            forms(half, here, width, inner, none, NULL, along, across, d_bias);
            const float *of_x = across_rows(half, here, width, x, z_scale, z_shift, words_of_x);
            product_of_columns(half, here, width, width, across, of_x, d_up);
            product(half, here, width, width, along, packed, NULL, to);
            add_slopes(here, width, to, x, z_mean, d_bias + 2 * width);
        }
    }
    join(used, results, packed + 2 * square + 4 * BLOCK * width, own, d);
    free(packed);
    return 0;
}

/* ------------------------------------------------------------------------------------------------ attention
 *
 * A head has 4, 8 or 16 columns, so that it lies within a vector; whatever there is one of in a head stands in all its lanes.
 */

#define CLAMP 5.0f

/* in every lane the sum over its head */
INLINE Vector over_head(Vector x, int64_t lanes) {
    x += __builtin_shuffle(x, (Mask){1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14});
    x += __builtin_shuffle(x, (Mask){2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
    if (lanes > 4) x += __builtin_shuffle(x, (Mask){4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11});
    if (lanes > 8) x += __builtin_shuffle(x, (Mask){8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
    return x;
}

INLINE Vector chosen(Mask where, Vector yes, Vector no) { return (Vector)((where & (Mask)yes) | (~where & (Mask)no)); }

/* exp(x) for |x| <= CLAMP: 2^n e^r with |r| <= ln 2 / 2, where a polynomial of degree 7 is exact to a rounding */
INLINE Vector exponential(Vector x) {
    const float near = 12582912.0f; /* 1.5 * 2^23, next to which float32 holds whole numbers only */
    const Vector n = (x * 1.44269504f + near) - near, r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Vector p = 1.98412698e-4f * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * (Vector)((__builtin_convertvector(n, Mask) + 127) << 23);
}

INLINE Vector clamped(Vector x) {
    const Vector most = (Vector){0} + CLAMP;
    x = chosen(x > most, most, x);
    return chosen(x < -most, -most, x);
}

#define TWO for (int s = 0, at = 0; s < 2; s++, at += LANES) /* vectors side by side, so that they need not wait for each other */

/* mixed_v = sum_u a v_u and, unless null, w_e = k_u q_v seen_e; all arrays are kept as words along rows */
INLINE void attend(const int half, int64_t threads, int64_t nodes, int64_t width, int64_t lanes, float scale,
                   const int64_t *first_edge, const int64_t *source, const float *qkv, const float *seen, float *mixed,
                   float *w) {
    (void)threads;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t v = 0; v < nodes; v++)
        for (int64_t c = 0; c < width; c += 2 * LANES) {
            Vector q[2], total[2] = {{0}, {0}}, sum[2] = {{0}, {0}};
            TWO q[s] = get(half, qkv, 3 * width * v + c + at);
            for (int64_t e = first_edge[v]; e < first_edge[v + 1]; e++) {
                const int64_t of = 3 * width * source[e] + width + c;
                TWO {
                    const Vector product = q[s] * get(half, qkv, of + at) * get(half, seen, width * e + c + at);
                    if (w) put(half, w, width * e + c + at, product);
                    const Vector a = exponential(clamped(scale * over_head(product, lanes)));
                    total[s] += a;
                    sum[s] += a * get(half, qkv, of + width + at);
                }
            }
            TWO put(half, mixed, width * v + c + at, first_edge[v] < first_edge[v + 1] ? sum[s] / total[s] : sum[s]);
        }
}

void ohm_attend(int64_t threads, int64_t nodes, int64_t width, int64_t lanes, int64_t half, float scale,
                const int64_t *first_edge, const int64_t *source, const float *qkv, const float *seen, float *mixed,
                float *w) {
    if (half)
        attend(1, threads, nodes, width, lanes, scale, first_edge, source, qkv, seen, mixed, w);
    else
        attend(0, threads, nodes, width, lanes, scale, first_edge, source, qkv, seen, mixed, w);
}

/* what a node knows of an edge to it, by columns: exp of the score, zero if it was clamped, what the gradient says of it */
typedef struct {
    Vector a[2], open[2], change[2];
} Known;

/* gradients of queries, keys and values, and of what edges are seen as; g_w may be null. Sums of a molecule's nodes are made
 * in float32. */
INLINE int attend_backward(const int half, int64_t threads, int64_t molecules, int64_t width, int64_t lanes, float scale,
                           const int64_t *first_edge, const int64_t *source, const float *qkv, const float *seen,
                           const int64_t *first_node, const float *g_mixed, const float *g_w, float *g_qkv, float *g_seen) {
    int64_t nodes = 1, edges = 1; /* most of a molecule, most to a node */
    for (int64_t m = 0; m < molecules; m++) {
        if (nodes < first_node[m + 1] - first_node[m]) nodes = first_node[m + 1] - first_node[m];
        for (int64_t v = first_node[m]; v < first_node[m + 1]; v++)
            if (edges < first_edge[v + 1] - first_edge[v]) edges = first_edge[v + 1] - first_edge[v];
    }
    const int64_t known_numbers = edges * (int64_t)(sizeof(Known) / sizeof(float)), own = known_numbers + 3 * width * nodes;
    float *all = memory(threads * own);
    if (!all) return 1;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t m = 0; m < molecules; m++) {
        Known *known = (Known *)(all + THREAD * own);
        float *sums = all + THREAD * own + known_numbers;
        const int64_t first = first_node[m], numbers = 3 * width * (first_node[m + 1] - first);
        memset(sums, 0, numbers * sizeof(float));
        for (int64_t v = first; v < first_node[m + 1]; v++)
            for (int64_t c = 0; c < width; c += 2 * LANES) {
                const int64_t begin = first_edge[v], degree = first_edge[v + 1] - begin;
                Vector q[2], g[2], total[2] = {{0}, {0}}, mean[2] = {{0}, {0}}, of_q[2] = {{0}, {0}};
                TWO q[s] = get(half, qkv, 3 * width * v + c + at), g[s] = get(half, g_mixed, width * v + c + at);
                for (int64_t e = 0; e < degree; e++) {
                    const int64_t of = 3 * width * source[begin + e] + width + c, to = width * (begin + e) + c;
                    TWO {
                        const Vector product = q[s] * get(half, qkv, of + at) * get(half, seen, to + at);
                        const Vector score = scale * over_head(product, lanes), a = exponential(clamped(score));
                        const Vector change = over_head(g[s] * get(half, qkv, of + width + at), lanes);
                        known[e].a[s] = a, known[e].change[s] = change;
                        known[e].open[s] = (Vector)((Mask)a & (score <= CLAMP) & (score >= -CLAMP));
                        total[s] += a;
                        mean[s] += a * change;
                    }
                }
                TWO total[s] = 1 / total[s], mean[s] *= total[s];
                for (int64_t e = 0; e < degree; e++) {
                    const int64_t of = 3 * width * source[begin + e] + width + c, to = width * (begin + e) + c;
                    float *sum = sums + of - 3 * width * first;
                    TWO {
                        const Vector k = get(half, qkv, of + at);
                        Vector of_w = scale * total[s] * known[e].open[s] * (known[e].change[s] - mean[s]);
                        if (g_w) of_w += get(half, g_w, to + at);
                        put(half, g_seen, to + at, q[s] * k * of_w);
                        of_w *= get(half, seen, to + at);
                        of_q[s] += k * of_w;
                        AT(sum + at) += q[s] * of_w;
                        AT(sum + width + at) += total[s] * known[e].a[s] * g[s];
                    }
                }
                TWO AT(sums + 3 * width * (v - first) + c + at) = of_q[s];
            }
        for (int64_t i = 0; i < numbers; i += LANES) put(half, g_qkv, 3 * width * first + i, IN(sums + i));
    }
    free(all);
    return 0;
}

int ohm_attend_backward(int64_t threads, int64_t molecules, int64_t width, int64_t lanes, int64_t half, float scale,
                        const int64_t *first_edge, const int64_t *source, const float *qkv, const float *seen,
                        const int64_t *first_node, const float *g_mixed, const float *g_w, float *g_qkv, float *g_seen) {
    if (half)
        return attend_backward(1, threads, molecules, width, lanes, scale, first_edge, source, qkv, seen, first_node,
                               g_mixed, g_w, g_qkv, g_seen);
    return attend_backward(0, threads, molecules, width, lanes, scale, first_edge, source, qkv, seen, first_node, g_mixed,
                           g_w, g_qkv, g_seen);
}
