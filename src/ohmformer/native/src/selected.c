/* The factor of a Laplacian by elimination without subtractions, and effective resistances out of it.
 *
 * Nodes are numbered in the order of elimination. Eliminating j joins its later neighbours: i keeps the fraction f_ij = c_ij / D_j
 * of j's conductance D_j, the sum of its c_ij, and two of them get f_ij c_kj more between them. The last node of a component has
 * no later neighbour and stays as its ground. Nothing is ever subtracted, so that fractions and conductances are
 * right to rounding whatever the range of resistances. A tangent, where one is given, is carried along by the rules of differentiation.
 * Nodes from `eliminated` on, if there are any, are kept: the conductances between them that the others leave are in their columns.
 */
#include "kernel.h"

#include <stdlib.h>
#include <string.h>

/* parent[k] is the first row of column k of the factor below its diagonal, -1 if there is none. */
static int tree(int64_t nodes, int64_t eliminated, const int32_t *start, const int32_t *column, int32_t *parent) {
    int32_t *root = malloc((nodes + 1) * sizeof *root);
    if (!root) return 1;
    for (int64_t i = 0; i < nodes; i++) {
        parent[i] = root[i] = -1;
        for (int64_t e = start[i]; e < start[i + 1]; e++) {
            for (int32_t k = column[e], up; k < i && k < eliminated && k >= 0; k = up) {
                up = root[k];
                root[k] = (int32_t)i;
                if (up < 0) parent[k] = (int32_t)i;
                if (up == i) break;
            }
        }
    }
    free(root);
    return 0;
}

/* start and column: neighbours of every node, by rows. count[k] <- rows of column k of the factor, none if k is kept; total <-
 * their sum and the sum of their squares. With `first`, where columns begin, rows are written too. Gives up above `most` entries. */
EXPORT int ohm_pattern(int64_t threads, int64_t nodes, int64_t eliminated, int64_t most, const int32_t *start,
                       const int32_t *column, int32_t *count, double *total, const int64_t *first, int32_t *row) {
    (void)threads;
    int32_t *parent = malloc((2 * nodes + 1) * sizeof *parent), *seen = parent + nodes;
    if (!parent || tree(nodes, eliminated, start, column, parent)) {
        free(parent);
        return 1;
    }
    memset(count, 0, nodes * sizeof *count);
    int64_t entries = 0;
    for (int64_t i = 0; i < nodes && entries <= most && !STOPPED; i++) {
        seen[i] = (int32_t)i;
        for (int64_t e = start[i]; e < start[i + 1]; e++) {
            if (column[e] >= i) continue;
            for (int32_t k = column[e]; k < eliminated && seen[k] != i; k = parent[k]) {
                if (first) row[first[k] + count[k]] = (int32_t)i;
                count[k]++, entries++;
                seen[k] = (int32_t)i;
            }
        }
    }
    total[0] = (double)entries, total[1] = 0;
    for (int64_t k = 0; k < nodes; k++) total[1] += (double)count[k] * count[k];
    free(parent);
    return STOPPED ? WAS_STOPPED : 0;
}

/* ------------------------------------------------------------------------------------------------ the factor */

typedef struct {
    int64_t nodes, eliminated;
    const int32_t *start, *column; /* conductances by rows, nodes in the order of elimination */
    const double *value, *tangent;
    const int64_t *first;
    const int32_t *row;
    double *fraction, *d_fraction, *pivot, *d_pivot;
} Factor;

/* Whether columns k and k + 1 belong to one block: both are eliminated, and they have the same rows from k + 2 on. */
static inline int continues(int64_t eliminated, const int64_t *first, const int32_t *row, int64_t k) {
    const int64_t count = first[k + 1] - first[k];
    return count > 0 && k + 1 < eliminated && row[first[k]] == k + 1 && first[k + 2] - first[k + 1] == count - 1;
}

/* sum[row] += c f over so many rows, for a column of the factor and a number c that multiplies it. */
INLINE void add_columns(const int dual, int64_t columns, int64_t rows, const int32_t *row, const double *c, const double *d_c,
                        const double *const *f, const double *const *d_f, double *sum, double *d_sum) {
    for (int64_t k = 0; k < columns; k += 4) {
        if (columns - k >= 4) { /* four columns cost little more than one, as the rows are looked up once */
            const double c0 = c[k], c1 = c[k + 1], c2 = c[k + 2], c3 = c[k + 3];
            const double *f0 = f[k], *f1 = f[k + 1], *f2 = f[k + 2], *f3 = f[k + 3];
            for (int64_t e = 0; e < rows; e++) sum[row[e]] += c0 * f0[e] + c1 * f1[e] + c2 * f2[e] + c3 * f3[e];
        } else {
            for (int64_t l = k; l < columns; l++)
                for (int64_t e = 0; e < rows; e++) sum[row[e]] += c[l] * f[l][e];
        }
        for (int64_t l = k; dual && l < columns && l < k + 4; l++)
            for (int64_t e = 0; e < rows; e++) d_sum[row[e]] += c[l] * d_f[l][e] + d_c[l] * f[l][e];
    }
}

#define AT_ONCE 32

/* To column j what columns a to b - 1 of a block leave there, which share all rows from b on; `here` is the place of row j among
 * the rows of the last of them. */
INLINE void add_block(const int dual, const Factor *t, int64_t a, int64_t b, int64_t here, double *sum, double *d_sum) {
    double c[AT_ONCE], d_c[AT_ONCE];
    const double *f[AT_ONCE], *d_f[AT_ONCE];
    const int64_t rows = t->first[b] - t->first[b - 1] - here - 1;
    const int32_t *row = t->row + t->first[b - 1] + here + 1;
    for (int64_t k = a; k < b; k += AT_ONCE) {
        const int64_t columns = b - k < AT_ONCE ? b - k : AT_ONCE;
        for (int64_t l = 0; l < columns; l++) {
            const int64_t at = t->first[k + l] + (b - 1 - k - l) + here; /* of row j in that column */
            c[l] = t->fraction[at] * t->pivot[k + l], f[l] = t->fraction + at + 1;
            d_c[l] = dual ? t->d_fraction[at] * t->pivot[k + l] + t->fraction[at] * t->d_pivot[k + l] : 0;
            d_f[l] = dual ? t->d_fraction + at + 1 : f[l];
        }
        add_columns(dual, columns, rows, row, c, d_c, f, d_f, sum, d_sum);
    }
}

/* Column by column, each from the blocks of columns before it that have a row in common. */
INLINE int factorise(const int dual, const Factor a) {
    const int64_t n = a.nodes;
    int32_t *head = malloc((3 * n + 1) * sizeof *head), *link = head + n, *begins = head + 2 * n;
    int64_t *at = malloc((n + 1) * sizeof *at);
    double *sum = calloc(2 * n + 1, sizeof *sum), *d_sum = sum + n;
    if (!head || !at || !sum) {
        free(head), free(at), free(sum);
        return 1;
    }
    for (int64_t j = 0; j < n; j++) head[j] = -1;
    for (int64_t j = 0, block = 0; j < n && !STOPPED; j++) {
        if (j > 0 && !continues(a.eliminated, a.first, a.row, j - 1)) block = j;
        for (int64_t e = a.start[j]; e < a.start[j + 1]; e++) {
            if (a.column[e] <= j) continue;
            sum[a.column[e]] = a.value[e];
            if (dual) d_sum[a.column[e]] = a.tangent[e];
        }
        for (int32_t last = head[j], next; last >= 0; last = next) { /* the last column of a block stands for it */
            next = link[last];
            const int64_t here = at[last]++, rows = a.first[last + 1] - a.first[last];
            add_block(dual, &a, begins[last], last + 1, here, sum, d_sum);
            if (here + 1 < rows) {
                const int32_t then = a.row[a.first[last] + here + 1];
                link[last] = head[then], head[then] = last;
            }
        }
        const int64_t begin = a.first[j], end = a.first[j + 1];
        if (block < j) add_block(dual, &a, block, j, 0, sum, d_sum);
        double pivot = 0, d_pivot = 0;
        for (int64_t e = begin; e < end; e++) {
            pivot += sum[a.row[e]];
            if (dual) d_pivot += d_sum[a.row[e]];
        }
        a.pivot[j] = pivot;
        if (dual) a.d_pivot[j] = d_pivot;
        for (int64_t e = begin; e < end; e++) {
            const int32_t i = a.row[e];
            a.fraction[e] = j < a.eliminated ? sum[i] / pivot : sum[i];
            if (dual) a.d_fraction[e] = j < a.eliminated ? (d_sum[i] - a.fraction[e] * d_pivot) / pivot : d_sum[i], d_sum[i] = 0;
            sum[i] = 0;
        }
        if (begin < end && j < a.eliminated && !continues(a.eliminated, a.first, a.row, j)) {
            begins[j] = (int32_t)block, at[j] = 0;
            link[j] = head[a.row[begin]], head[a.row[begin]] = (int32_t)j;
        }
    }
    free(head), free(at), free(sum);
    return STOPPED ? WAS_STOPPED : 0;
}

/* fraction and pivot <- the factor, on the pattern of ohm_pattern; with tangents of both if there is one of the conductances. */
EXPORT int ohm_factorise(int64_t threads, int64_t nodes, int64_t eliminated, const int32_t *start, const int32_t *column,
                         const double *value, const double *tangent, const int64_t *first, const int32_t *row, double *fraction, double *d_fraction,
                         double *pivot, double *d_pivot) {
    (void)threads;
    const Factor a = {nodes, eliminated, start, column, value, tangent, first, row, fraction, d_fraction, pivot, d_pivot};
    return tangent ? factorise(1, a) : factorise(0, a);
}

/* x <- potentials of demands x that sum to zero on every component, zero at its ground; `demands` of them, rows side by side */
EXPORT int ohm_sweep(int64_t threads, int64_t nodes, int64_t demands, const int64_t *first, const int32_t *row,
                     const double *fraction, const double *pivot, double *x) {
    (void)threads;
    for (int64_t j = 0; j < nodes; j++) {
        double *own = x + demands * j;
        for (int64_t e = first[j]; e < first[j + 1]; e++) {
            double *other = x + demands * row[e];
            const double f = fraction[e];
            for (int64_t c = 0; c < demands; c++) other[c] += f * own[c];
        }
        const double scale = first[j] < first[j + 1] ? 1 / pivot[j] : 0;
        for (int64_t c = 0; c < demands; c++) own[c] *= scale;
    }
    for (int64_t j = nodes - 1; j >= 0; j--) {
        double *own = x + demands * j;
        for (int64_t e = first[j]; e < first[j + 1]; e++) {
            const double *other = x + demands * row[e], f = fraction[e];
            for (int64_t c = 0; c < demands; c++) own[c] += f * other[c];
        }
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------------ resistances
 *
 * j hangs on its later neighbours by the fractions f_k, so from any other later node i
 *
 *     R_ij = 1 / D_j + s_i - q,   s_i = sum_k f_k R_ik,   q = sum_i f_i s_i / 2,
 *
 * Takahashi's recurrence for resistances instead of entries of an inverse: where j has one later neighbour s and q vanish, and R_ij
 * is right to rounding however far away the ground is. Rows of column j are among those of the columns of its rows.
 */

typedef struct {
    int64_t nodes, eliminated;
    const int64_t *first;
    const int32_t *row;
    const double *fraction, *d_fraction, *pivot, *d_pivot;
    double *resistance, *d_resistance, *ground;
} Selected;

/* Column j, once resistances between its rows are in a matrix (and in a second one how they move), where j gets a row and a
 * column. `place` says which row of the matrix belongs to which row of the factor. */
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

/* Block by block of columns that share their rows, so that resistances between these are looked up once for all of them. */
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
            const int64_t later = b - 1 - j; /* columns of the block after j, the last of which came first */
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
 * ground <- the effective resistance of every node and the ground of its component. Between kept nodes resistances are given. */
EXPORT int ohm_select(int64_t threads, int64_t nodes, int64_t eliminated, const int64_t *first, const int32_t *row,
                      const double *fraction, const double *d_fraction, const double *pivot, const double *d_pivot, double *resistance,
                      double *d_resistance, double *ground) {
    (void)threads;
    const Selected a = {nodes, eliminated, first, row, fraction, d_fraction, pivot, d_pivot, resistance, d_resistance, ground};
    return d_fraction ? select_all(1, a) : select_all(0, a);
}
