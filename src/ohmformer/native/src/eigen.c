/* Eigenvalues and eigenvectors of many small symmetric matrices, several side by side in the lanes of a vector.
 *
 * Householder reflections make a matrix tridiagonal, then QL steps with implicit shifts make it diagonal (the algorithms of
 * EISPACK's tred2 and tql2). All lanes take the same steps; a lane that has finished applies identity rotations.
 */
#include "kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#define WIDE 8
#elif defined(__AVX__)
#define WIDE 4
#else
#define WIDE 2
#endif
#define STEPS 60 /* maximum number of QL steps per eigenvalue; two or three are usual */
#define EPSILON 2.3e-16
#define NOTHING 1e-100 /* of the largest entry: smaller ones are rounding errors, squares of larger ones far from underflow */

typedef double Wide __attribute__((vector_size(8 * WIDE)));
typedef int64_t Mask __attribute__((vector_size(8 * WIDE)));

typedef struct {
    int64_t graphs;
    const int64_t *order;       /* graphs by size */
    const int64_t *start, *edge_start;
    const int64_t *u, *v;       /* nodes of every pair, in the order of the graphs */
    const double *off, *diagonal;
    float *values, *vectors;
    const int64_t *place;       /* offset of the eigenvectors of every graph */
} Eigen;

INLINE Wide wide(double x) { return (Wide){0} + x; }
INLINE Wide choose(Mask m, Wide a, Wide b) { return (Wide)(((Mask)a & m) | ((Mask)b & ~m)); }
INLINE Wide size_of(Wide x) { return choose(x < 0, -x, x); }
INLINE Wide root(Wide x) {
    for (int i = 0; i < WIDE; i++) x[i] = sqrt(x[i]);
    return x;
}
INLINE int any(Mask m) {
    int64_t found = 0;
    for (int i = 0; i < WIDE; i++) found |= m[i];
    return found != 0;
}

/* threshold below which an entry of a matrix counts as zero; only the lower half is read */
static Wide negligible(int n, const Wide *a) {
    Wide largest = wide(1e-50);
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++) largest = choose(size_of(a[i * n + j]) > largest, size_of(a[i * n + j]), largest);
    return NOTHING * largest;
}

/* Replace a (n, n), of which the lower half is read, by Q with Q^T a Q tridiagonal: d is its diagonal, e[i] is
 * between d[i - 1] and d[i] */
static void tridiagonal(int n, Wide *a, Wide *d, Wide *e, Wide nothing) {
    for (int i = n - 1; i > 0; i--) {
        Wide *row = a + i * n, h = wide(0), f = row[i - 1], sum = wide(0);
        for (int k = 0; k < i; k++) h += row[k] * row[k];
        const Mask real = h > nothing * nothing;
        const Wide g = choose(f >= 0, -root(h), root(h));
        e[i] = choose(real, g, wide(0));
        h -= f * g;
        row[i - 1] = f - g;
        const Wide over = choose(real, 1 / choose(real, h, wide(1)), wide(0));
        for (int j = 0; j < i; j++) {
            Wide x = wide(0);
            for (int k = 0; k <= j; k++) x += a[j * n + k] * row[k];
            for (int k = j + 1; k < i; k++) x += a[k * n + j] * row[k];
            a[j * n + i] = row[j] * over;
            e[j] = x * over;
            sum += e[j] * row[j];
        }
        const Wide half = 0.5 * sum * over;
        for (int j = 0; j < i; j++) {
            const Wide x = row[j], y = e[j] - half * x;
            e[j] = y;
            for (int k = 0; k <= j; k++) a[j * n + k] -= x * e[k] + y * row[k];
        }
    }
    e[0] = wide(0);
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < i; j++) {
            Wide g = wide(0);
            for (int k = 0; k < i; k++) g += a[i * n + k] * a[k * n + j];
            for (int k = 0; k < i; k++) a[k * n + j] -= g * a[k * n + i];
        }
        d[i] = a[i * n + i];
        a[i * n + i] = wide(1);
        for (int j = 0; j < i; j++) a[j * n + i] = a[i * n + j] = wide(0);
    }
}

/* Replace d and the columns z (n, n), stored contiguously, by eigenvalues and eigenvectors; e[i] is between d[i] and d[i + 1] */
static void diagonal(int n, Wide *d, Wide *e, Wide *z, Wide nothing) {
    for (int l = 0; l < n; l++)
        for (int step = 0; step < STEPS; step++) {
            Wide last = wide(n - 1), at = d[n - 1];
            Mask open = last >= 0;
            for (int m = l; m < n - 1; m++) { /* find the end of the unreduced block that begins at l */
                const Mask ends = open & (size_of(e[m]) <= EPSILON * (size_of(d[m]) + size_of(d[m + 1])) + nothing);
                last = choose(ends, wide(m), last), at = choose(ends, d[m], at);
                open &= ~ends;
                if (!any(open)) break;
            }
            Mask alive = last > l;
            if (!any(alive)) break;
            int top = l;
            for (int i = 0; i < WIDE; i++) top = last[i] > top ? (int)last[i] : top;
            const Wide beside = choose(alive, e[l], wide(1)), q = (d[l + 1] - d[l]) / (2 * beside), r = root(q * q + 1);
            Wide g = at - d[l] + beside / (q + choose(q >= 0, r, -r)), s = wide(1), c = wide(1), p = wide(0);
            for (int i = top - 1; i >= l; i--) {
                const Mask turns = alive & (wide(i) < last);
                const Wide f = s * e[i], b = c * e[i], length = root(f * f + g * g);
                e[i + 1] = choose(turns, length, e[i + 1]);
                const Mask stops = turns & (length == 0), goes = turns & ~stops;
                d[i + 1] = choose(stops, d[i + 1] - p, d[i + 1]);
                alive &= ~stops;
                const Wide over = 1 / choose(goes, length, wide(1));
                s = choose(goes, f * over, s), c = choose(goes, g * over, c);
                const Wide lower = d[i + 1] - p, w = (d[i] - lower) * s + 2 * c * b, old = p;
                p = choose(goes, s * w, old);
                d[i + 1] = choose(goes, lower + p, d[i + 1]);
                g = choose(goes, c * w - b, g);
                const Wide sine = choose(goes, s, wide(0)), cosine = choose(goes, c, wide(1));
                Wide *x = z + i * n, *y = x + n;
                for (int k = 0; k < n; k++) {
                    const Wide t = y[k];
                    y[k] = sine * x[k] + cosine * t;
                    x[k] = cosine * x[k] - sine * t;
                }
            }
            d[l] = choose(alive, d[l] - p, d[l]);
            e[l] = choose(alive, g, e[l]);
            for (int m = l + 1; m <= top; m++) e[m] = choose(last == wide(m), wide(0), e[m]);
        }
}

/* Allocate the workspace for WIDE graphs; NULL if out of memory */
static Wide *workspace(void) {
    void *memory = NULL;
    return posix_memalign(&memory, 64, (2 * EIGEN_NODES * EIGEN_NODES + 2 * EIGEN_NODES) * sizeof(Wide)) ? NULL : memory;
}

/* Compute the eigenvalues d of matrices (n, n) at the beginning of a workspace; return their eigenvectors, stored contiguously */
static const Wide *solve(int n, Wide *matrix, Wide **d) {
    Wide *z = matrix + EIGEN_NODES * EIGEN_NODES, *e = z + EIGEN_NODES * EIGEN_NODES + EIGEN_NODES;
    *d = e - EIGEN_NODES;
    const Wide nothing = negligible(n, matrix);
    tridiagonal(n, matrix, *d, e, nothing);
    for (int i = 1; i < n; i++) e[i - 1] = e[i];
    e[n - 1] = wide(0);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) z[j * n + i] = matrix[i * n + j];
    diagonal(n, *d, e, z, nothing);
    return z;
}

/* Write the spectrum of one lane, a graph with `nodes` nodes, with ascending eigenvalues */
static void write_lane(int lane, int n, int64_t nodes, const Wide *d, const Wide *z, float *values, float *vectors) {
    int ascending[EIGEN_NODES];
    for (int j = 0; j < nodes; j++) {
        int at = j;
        for (; at > 0 && d[ascending[at - 1]][lane] > d[j][lane]; at--) ascending[at] = ascending[at - 1];
        ascending[at] = j;
    }
    for (int64_t j = 0; j < nodes; j++) {
        const Wide *column = z + ascending[j] * n;
        values[j] = (float)d[ascending[j]][lane];
        for (int64_t k = 0; k < nodes; k++) vectors[k * nodes + j] = (float)column[k][lane];
    }
}

static int run(const void *arguments, int64_t first, int64_t last) {
    const Eigen *a = arguments;
    Wide *matrix = workspace(), *d;
    if (!matrix) return 1;
    for (int64_t group = first; group < last; group++) {
        const int64_t *which = a->order + group * WIDE;
        const int count = a->graphs - group * WIDE < WIDE ? (int)(a->graphs - group * WIDE) : WIDE;
        int n = 0;
        for (int i = 0; i < count; i++) {
            const int nodes = (int)(a->start[which[i] + 1] - a->start[which[i]]);
            n = nodes > n ? nodes : n;
        }
        if (!n) continue;
        memset(matrix, 0, n * n * sizeof(Wide));
        for (int i = 0; i < count; i++) {
            const int64_t from = a->start[which[i]];
            for (int64_t k = from; k < a->start[which[i] + 1]; k++) matrix[(k - from) * (n + 1)][i] = a->diagonal[k];
            for (int64_t k = a->edge_start[which[i]]; k < a->edge_start[which[i] + 1]; k++) {
                const int64_t u = a->u[k] - from, v = a->v[k] - from;
                matrix[u * n + v][i] += a->off[k];
                matrix[v * n + u][i] += a->off[k];
            }
        }
        const Wide *z = solve(n, matrix, &d);
        for (int i = 0; i < count; i++) {
            const int64_t from = a->start[which[i]];
            write_lane(i, n, a->start[which[i] + 1] - from, d, z, a->values + from, a->vectors + a->place[which[i]]);
        }
    }
    free(matrix);
    return 0;
}

/* values (nodes) <- eigenvalues, ascending in every graph, and vectors <- eigenvectors (nodes x nodes of every graph, stored
 * contiguously) of matrices given by their diagonals and the symmetric contribution of every pair. Returns 1 if out of memory. */
EXPORT int ohm_eigen(int64_t threads, int64_t graphs, const int64_t *order, const int64_t *start, const int64_t *edge_start,
                     const int64_t *u, const int64_t *v, const double *off, const double *diagonal_entries, const int64_t *place,
                     float *values, float *vectors) {
    const Eigen a = {graphs, order, start, edge_start, u, v, off, diagonal_entries, values, vectors, place};
    return share_out(threads, (graphs + WIDE - 1) / WIDE, 4, run, &a);
}

/* Compute the spectrum of one graph with conductances (nodes, nodes): of N = D^-1/2 L D^-1/2, or of L divided by its largest
 * degree, which is written to `unit`. Returns 1 if out of memory. */
EXPORT int ohm_spectrum(int64_t threads, int64_t nodes, int64_t combinatorial, const double *conductance, float *values, float *vectors,
                        double *unit) {
    (void)threads;
    double degree[EIGEN_NODES], largest = 0;
    for (int64_t i = 0; i < nodes; i++) {
        degree[i] = 0;
        for (int64_t j = 0; j < nodes; j++) degree[i] += conductance[i * nodes + j];
        largest = degree[i] > largest ? degree[i] : largest;
    }
    Wide *matrix = workspace(), *d;
    if (!matrix) return 1;
    memset(matrix, 0, nodes * nodes * sizeof(Wide));
    for (int64_t i = 0; i < nodes; i++) {
        const double over = degree[i] > 0 ? 1 / sqrt(combinatorial ? largest : degree[i]) : 0;
        matrix[i * (nodes + 1)][0] = degree[i] > 0 ? (combinatorial ? degree[i] / largest : 1) : 0;
        for (int64_t j = 0; j < i; j++) {
            const double beside = degree[j] > 0 ? over / sqrt(combinatorial ? largest : degree[j]) : 0;
            matrix[i * nodes + j][0] = matrix[j * nodes + i][0] = -conductance[i * nodes + j] * beside;
        }
    }
    const Wide *z = nodes ? solve((int)nodes, matrix, &d) : NULL;
    if (nodes) write_lane(0, (int)nodes, nodes, d, z, values, vectors);
    *unit = combinatorial ? largest : 1;
    free(matrix);
    return 0;
}
