/* Products of many rows with a small matrix, and of the columns of two arrays of many rows; what goes along with them. */
#include <string.h>

#include "halves.h"

#define PANEL 32 /* columns that a product has in registers; widths are multiples of it */
#ifdef __AVX512F__
#define TILE 12 /* rows that a product has in registers */
#define TILE_T 8 /* and columns of a transposed one */
#else
#define TILE 3
#define TILE_T 2
#endif
#define BLOCK 48 /* rows that stay in the caches; even, and a multiple of TILE */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* the first row of a thread's share, in whole blocks */
static int64_t share(int64_t rows, int thread, int threads) {
    const int64_t blocks = (rows + BLOCK - 1) / BLOCK;
    return least(rows, blocks * thread / threads * BLOCK);
}

/* ------------------------------------------------------------------------------------------------ what comes next
 *
 * While a block is multiplied, the arrays of the next one are fetched, a little with every tile: otherwise main memory and
 * arithmetic would wait for each other in turns.
 */

#define LINE 64
#define STREAMS 6

typedef struct {
    const char *at[STREAMS], *end[STREAMS];
    int64_t step[STREAMS];
    int streams;
} Ahead;

/* so many numbers of an array are to be fetched, if there is one, in so many parts */
static void soon(Ahead *ahead, const float *from, int64_t numbers, int64_t parts) {
    if (!from || numbers <= 0) return;
    const int s = ahead->streams++;
    ahead->at[s] = (const char *)from;
    ahead->end[s] = (const char *)(from + numbers);
    ahead->step[s] = (numbers * (int64_t)sizeof(float) / parts + LINE - 1) / LINE * LINE;
}

/* the next part of every array */
INLINE void fetch(Ahead *ahead) {
    for (int s = 0; s < ahead->streams; s++) {
        const char *end = ahead->at[s] + ahead->step[s] < ahead->end[s] ? ahead->at[s] + ahead->step[s] : ahead->end[s];
        for (; ahead->at[s] < end; ahead->at[s] += LINE) __builtin_prefetch(ahead->at[s], 0, 2);
        ahead->at[s] = end;
    }
}

/* ------------------------------------------------------------------------------------------------ products */

/* y = start + x w for some rows and one panel, in words; start has a row for each of them, stride numbers apart */
INLINE void tile(const int half, const int rows, int64_t words, int64_t out, const float *x, const float *w,
                 const float *start, int64_t stride, float *y) {
    Vector sum[TILE][2];
    for (int i = 0; i < rows; i++) sum[i][0] = IN(start + i * stride), sum[i][1] = IN(start + i * stride + LANES);
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

/* y = start + x w for rows of a block; x as words along rows, w as panels, start with a stride of zero if it is one row */
INLINE void product_of(const int half, int64_t rows, int64_t in, int64_t out, const float *x, const float *packed,
                       const float *start, int64_t stride, float *y, Ahead *ahead) {
    const int64_t words = in / PAIR(half);
    for (int64_t j = 0; j < out; j += PANEL) {
        const float *w = packed + j * words, *from = start + j;
        float *to = y + j;
        int64_t i = 0;
        for (; i + TILE <= rows; i += TILE) {
            tile(half, TILE, words, out, x + i * words, w, from + i * stride, stride, to + i * out);
            fetch(ahead);
        }
        for (; i < rows; i++) tile(half, 1, words, out, x + i * words, w, from + i * stride, stride, to + i * out);
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

static void product(int half, int64_t rows, int64_t in, int64_t out, const float *x, const float *packed,
                    const float *start, int64_t stride, float *y, Ahead *ahead) {
    if (half)
        product_of(1, rows, in, out, x, packed, start, stride, y, ahead);
    else
        product_of(0, rows, in, out, x, packed, start, stride, y, ahead);
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

/* A gradient g in the forms that products need it in: as it is, as words along rows, as words across rows; its sums over
 * rows are added to sums. With a scale, g is first taken back before a norm that was given z: g scale + z slope + shift. */
typedef struct {
    const float *z, *scale, *slope, *shift;
} Norm;

INLINE Vector before_norm(Vector g, const Norm *norm, int64_t at, int64_t c) {
    return norm->scale ? g * IN(norm->scale + c) + IN(norm->z + at) * IN(norm->slope + c) + IN(norm->shift + c) : g;
}

static void forms(int half, int64_t rows, int64_t width, const float *g, Norm norm, float *plain, float *along,
                  float *across, float *sums) {
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
