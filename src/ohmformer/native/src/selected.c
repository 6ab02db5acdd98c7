/* The factor of a Laplacian by elimination without subtractions, and effective resistances out of it.
 *
 * Nodes are numbered in the order of elimination. Eliminating j joins its later neighbours: i keeps the fraction f_ij = c_ij / D_j
 * of j's conductance D_j, the sum of its c_ij, and two of them get f_ij c_kj more between them. The last node of a component has
 * no later neighbour and stays as its ground. Nothing is ever subtracted, so that fractions and conductances are
 * right to rounding whatever the range of resistances. A tangent, where one is given, is carried along by the rules of differentiation.
 */
#include "kernel.h"

#include <stdlib.h>
#include <string.h>

/* parent[k] is the first row of column k of the factor below its diagonal, -1 if there is none. */
static int tree(int64_t nodes, const int32_t *start, const int32_t *column, int32_t *parent) {
    int32_t *root = malloc((nodes + 1) * sizeof *root);
    if (!root) return 1;
    for (int64_t i = 0; i < nodes; i++) {
        parent[i] = root[i] = -1;
        for (int64_t e = start[i]; e < start[i + 1]; e++) {
            for (int32_t k = column[e], up; k < i && k >= 0; k = up) {
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

/* start and column: neighbours of every node, by rows. count[k] <- rows of column k of the factor; total <- their sum and the
 * sum of their squares. With `first`, where columns begin, rows are written too. Gives up above `most` entries. */
EXPORT int ohm_pattern(int64_t threads, int64_t nodes, int64_t most, const int32_t *start, const int32_t *column, int32_t *count,
                       double *total, const int64_t *first, int32_t *row) {
    (void)threads;
    int32_t *parent = malloc((2 * nodes + 1) * sizeof *parent), *seen = parent + nodes;
    if (!parent || tree(nodes, start, column, parent)) {
        free(parent);
        return 1;
    }
    memset(count, 0, nodes * sizeof *count);
    int64_t entries = 0;
    for (int64_t i = 0; i < nodes && entries <= most; i++) {
        seen[i] = (int32_t)i;
        for (int64_t e = start[i]; e < start[i + 1]; e++) {
            if (column[e] >= i) continue;
            for (int32_t k = column[e]; seen[k] != i; k = parent[k]) {
                if (first) row[first[k] + count[k]] = (int32_t)i;
                count[k]++, entries++;
                seen[k] = (int32_t)i;
            }
        }
    }
    total[0] = (double)entries, total[1] = 0;
    for (int64_t k = 0; k < nodes; k++) total[1] += (double)count[k] * count[k];
    free(parent);
    return 0;
}

/* ------------------------------------------------------------------------------------------------ the factor */

typedef struct {
    int64_t nodes;
    const int32_t *start, *column; /* conductances by rows, nodes in the order of elimination */
    const double *value, *tangent;
    const int64_t *first;
    const int32_t *row;
    double *fraction, *d_fraction, *pivot, *d_pivot;
} Factor;

/* Column by column, each from those before it that have a row in common. */
INLINE int factorise(const int dual, const Factor a) {
    const int64_t n = a.nodes;
    int32_t *head = malloc((2 * n + 1) * sizeof *head), *link = head + n;
    int64_t *at = malloc((n + 1) * sizeof *at);
    double *sum = calloc(2 * n + 1, sizeof *sum), *d_sum = sum + n;
    if (!head || !at || !sum) {
        free(head), free(at), free(sum);
        return 1;
    }
    for (int64_t j = 0; j < n; j++) head[j] = -1;
    for (int64_t j = 0; j < n; j++) {
        for (int64_t e = a.start[j]; e < a.start[j + 1]; e++) {
            if (a.column[e] <= j) continue;
            sum[a.column[e]] = a.value[e];
            if (dual) d_sum[a.column[e]] = a.tangent[e];
        }
        for (int32_t k = head[j], next; k >= 0; k = next) {
            next = link[k];
            const int64_t here = at[k]++, end = a.first[k + 1];
            const double c = a.fraction[here] * a.pivot[k];
            const double d_c = dual ? a.d_fraction[here] * a.pivot[k] + a.fraction[here] * a.d_pivot[k] : 0;
            for (int64_t e = here + 1; e < end; e++) {
                sum[a.row[e]] += c * a.fraction[e];
                if (dual) d_sum[a.row[e]] += c * a.d_fraction[e] + d_c * a.fraction[e];
            }
            if (here + 1 < end) link[k] = head[a.row[here + 1]], head[a.row[here + 1]] = k;
        }
        const int64_t begin = a.first[j], end = a.first[j + 1];
        double pivot = 0, d_pivot = 0;
        for (int64_t e = begin; e < end; e++) {
            pivot += sum[a.row[e]];
            if (dual) d_pivot += d_sum[a.row[e]];
        }
        a.pivot[j] = pivot;
        if (dual) a.d_pivot[j] = d_pivot;
        for (int64_t e = begin; e < end; e++) {
            const int32_t i = a.row[e];
            a.fraction[e] = sum[i] / pivot;
            if (dual) a.d_fraction[e] = (d_sum[i] - a.fraction[e] * d_pivot) / pivot, d_sum[i] = 0;
            sum[i] = 0;
        }
        at[j] = begin;
        if (begin < end) link[j] = head[a.row[begin]], head[a.row[begin]] = (int32_t)j;
    }
    free(head), free(at), free(sum);
    return 0;
}

/* fraction and pivot <- the factor, on the pattern of ohm_pattern; with tangents of both if there is one of the conductances. */
EXPORT int ohm_factorise(int64_t threads, int64_t nodes, const int32_t *start, const int32_t *column, const double *value,
                         const double *tangent, const int64_t *first, const int32_t *row, double *fraction, double *d_fraction,
                         double *pivot, double *d_pivot) {
    (void)threads;
    const Factor a = {nodes, start, column, value, tangent, first, row, fraction, d_fraction, pivot, d_pivot};
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
    int64_t nodes;
    const int64_t *first;
    const int32_t *row;
    const double *fraction, *d_fraction, *pivot, *d_pivot;
    double *resistance, *d_resistance, *ground;
} Selected;

INLINE int select_all(const int dual, const Selected a) {
    const int64_t n = a.nodes;
    double *f = calloc(4 * n + 1, sizeof *f), *d_f = f + n, *sum = f + 2 * n, *d_sum = f + 3 * n;
    if (!f) return 1;
    for (int64_t j = n - 1; j >= 0; j--) {
        const int64_t begin = a.first[j], end = a.first[j + 1];
        a.ground[j] = 0;
        if (begin == end) continue;
        for (int64_t e = begin; e < end; e++) {
            const int32_t i = a.row[e];
            f[i] = a.fraction[e], sum[i] = 0;
            if (dual) d_f[i] = a.d_fraction[e], d_sum[i] = 0;
        }
        for (int64_t e = begin; e < end; e++) {
            const int32_t k = a.row[e];
            const double own = a.fraction[e], d_own = dual ? a.d_fraction[e] : 0;
            double mine = 0, d_mine = 0;
            for (int64_t h = a.first[k]; h < a.first[k + 1]; h++) { /* rows outside column j have a fraction of zero */
                const int32_t i = a.row[h];
                const double r = a.resistance[h];
                mine += f[i] * r, sum[i] += own * r;
                if (dual) {
                    const double d_r = a.d_resistance[h];
                    d_mine += f[i] * d_r + d_f[i] * r, d_sum[i] += own * d_r + d_own * r;
                }
            }
            sum[k] += mine;
            if (dual) d_sum[k] += d_mine;
        }
        double q = 0, d_q = 0, far = 0;
        for (int64_t e = begin; e < end; e++) {
            const int32_t i = a.row[e];
            q += f[i] * sum[i] / 2, far += f[i] * a.ground[i];
            if (dual) d_q += (f[i] * d_sum[i] + d_f[i] * sum[i]) / 2;
        }
        const double hop = 1 / a.pivot[j], d_hop = dual ? -hop * hop * a.d_pivot[j] : 0;
        a.ground[j] = hop + far - q;
        for (int64_t e = begin; e < end; e++) {
            const int32_t i = a.row[e];
            a.resistance[e] = hop + (sum[i] - q);
            f[i] = 0;
            if (dual) a.d_resistance[e] = d_hop + (d_sum[i] - d_q), d_f[i] = 0;
        }
    }
    free(f);
    return 0;
}

/* resistance <- effective resistances on the pattern of the factor, with their tangents if those of the factor are given;
 * ground <- the effective resistance of every node and the ground of its component */
EXPORT int ohm_select(int64_t threads, int64_t nodes, const int64_t *first, const int32_t *row, const double *fraction,
                      const double *d_fraction, const double *pivot, const double *d_pivot, double *resistance,
                      double *d_resistance, double *ground) {
    (void)threads;
    const Selected a = {nodes, first, row, fraction, d_fraction, pivot, d_pivot, resistance, d_resistance, ground};
    return d_fraction ? select_all(1, a) : select_all(0, a);
}
