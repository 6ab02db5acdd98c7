/* Effective resistances on the pattern of the factor of a large Laplacian (factor.c says what it is).
 *
 * Node j is connected to its later neighbours with fractions f_k, so for any other later node i
 *
 *     R_ij = 1 / D_j + s_i - q,   s_i = sum_k f_k R_ik,   q = sum_i f_i s_i / 2,
 *
 * which is Takahashi's recurrence for resistances instead of entries of an inverse: if i is the only later neighbour of j, s_i and q
 * vanish, and R_ij is accurate to rounding at any distance from the ground. Rows of column j are among those of the columns of its rows.
 */
#include "factor.h"
#include "kernel.h"

#include <stdlib.h>

typedef struct {
    int64_t nodes, eliminated;
    const int64_t *first;
    const int32_t *row;
    const double *fraction, *d_fraction, *pivot, *d_pivot;
    double *resistance, *d_resistance, *ground;
} Selected;

/* Compute column j from the resistances between its rows, given in a matrix (and their tangents in a second one), and add a row and
 * a column for j. `place` maps the rows of the factor to rows of the matrix. */
INLINE void select_column(const int dual, const Selected *a, int64_t j, int64_t stride, const int32_t *place, double *matrix,
                          double *d_matrix, double *sum, double *d_sum) {
    const int64_t begin = a->first[j], count = a->first[j + 1] - begin;
    const double *f = a->fraction + begin, *d_f = dual ? a->d_fraction + begin : f;
    for (int64_t x = 0; x < count; x++) sum[x] = d_sum[x] = 0;
    for (int64_t e = 0; e < count; e++) {
        const double own = f[e], *r = matrix + stride * place[e];
        for (int64_t x = 0; x < count; x++) sum[x] += own * r[x];
        if (!dual) continue;
        const double d_own = d_f[e], *d_r = d_matrix + stride * place[e];
        for (int64_t x = 0; x < count; x++) d_sum[x] += own * d_r[x] + d_own * r[x];
    }
    double q = 0, d_q = 0, far = 0;
    for (int64_t e = 0; e < count; e++) {
        q += f[e] * sum[place[e]] / 2, far += f[e] * a->ground[a->row[begin + e]];
        if (dual) d_q += (f[e] * d_sum[place[e]] + d_f[e] * sum[place[e]]) / 2;
    }
    const double hop = 1 / a->pivot[j], d_hop = dual ? -hop * hop * a->d_pivot[j] : 0;
    a->ground[j] = hop + far - q;
    for (int64_t e = 0; e < count; e++) {
        const int64_t x = place[e];
        const double r = a->resistance[begin + e] = hop + (sum[x] - q);
        matrix[stride * count + x] = matrix[stride * x + count] = r;
        if (!dual) continue;
        const double d_r = a->d_resistance[begin + e] = d_hop + (d_sum[x] - d_q);
        d_matrix[stride * count + x] = d_matrix[stride * x + count] = d_r;
    }
    matrix[(stride + 1) * count] = 0;
    if (dual) d_matrix[(stride + 1) * count] = 0;
}

/* Process blocks of columns with the same rows, so that resistances between these are looked up once per block. */
INLINE int select_all(const int dual, const Selected a) {
    const int64_t n = a.nodes;
    int64_t most = 1;
    for (int64_t j = 0; j < n; j++) most = a.first[j + 1] - a.first[j] + 1 > most ? a.first[j + 1] - a.first[j] + 1 : most;
    int32_t *number = calloc(n + most, sizeof *number), *place = number + n;
    double *matrix = malloc((most * most * (dual ? 2 : 1) + 2 * most) * sizeof *matrix), *sum = matrix, *d_sum = matrix + most;
    if (!number || !matrix) {
        free(number), free(matrix);
        return 1;
    }
    double *r = matrix + 2 * most, *d_r = dual ? r + most * most : r;
    for (int64_t j = a.eliminated; j < n; j++) a.ground[j] = 0;
    for (int64_t b = a.eliminated, begin; b > 0 && !STOPPED; b = begin) {
        for (begin = b - 1; begin > 0 && continues(a.eliminated, a.first, a.row, begin - 1);) begin--;
        const int32_t *rows = a.row + a.first[b - 1];
        const int64_t shared = a.first[b] - a.first[b - 1], stride = shared + b - begin;
        for (int64_t x = 0; x < shared; x++) number[rows[x]] = (int32_t)x + 1;
        for (int64_t x = 0; x < shared; x++) {
            r[(stride + 1) * x] = d_r[(stride + 1) * x] = 0;
            for (int64_t h = a.first[rows[x]]; h < a.first[rows[x] + 1]; h++) {
                const int64_t y = number[a.row[h]] - 1;
                if (y < 0) continue;
                r[stride * x + y] = r[stride * y + x] = a.resistance[h];
                if (dual) d_r[stride * x + y] = d_r[stride * y + x] = a.d_resistance[h];
            }
        }
        for (int64_t x = 0; x < shared; x++) number[rows[x]] = 0;
        for (int64_t j = b - 1; j >= begin; j--) {
            const int64_t later = b - 1 - j; /* later columns of the block; the last one was processed first */
            for (int64_t e = 0; e < later + shared; e++) place[e] = (int32_t)(e < later ? shared + later - 1 - e : e - later);
            a.ground[j] = 0;
            if (later + shared) select_column(dual, &a, j, stride, place, r, d_r, sum, d_sum);
            else r[0] = d_r[0] = 0;
        }
    }
    free(number), free(matrix);
    return STOPPED ? WAS_STOPPED : 0;
}

/* resistance <- effective resistances on the pattern of the factor, with their tangents if those of the factor are given;
 * ground <- the effective resistance between every node and the ground of its component. Those between kept nodes are inputs. */
EXPORT int ohm_select(int64_t threads, int64_t nodes, int64_t eliminated, const int64_t *first, const int32_t *row,
                      const double *fraction, const double *d_fraction, const double *pivot, const double *d_pivot, double *resistance,
                      double *d_resistance, double *ground) {
    (void)threads;
    const Selected a = {nodes, eliminated, first, row, fraction, d_fraction, pivot, d_pivot, resistance, d_resistance, ground};
    return d_fraction ? select_all(1, a) : select_all(0, a);
}
