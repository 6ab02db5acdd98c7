/* Potentials from the factor of a Laplacian, and what they are worth.
 *
 * Demands pass through the factor in panels, stored by rows in elimination order: in the forward sweep every node passes its demand
 * to later neighbours, in the backward sweep it computes its potential from theirs. Columns of the factor with the same rows are
 * processed together, a few rows and vectors of demands at a time in registers. A panel is centred and measured while it is there.
 */
#define _DEFAULT_SOURCE /* madvise */
#include "factor.h"
#include "kernel.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define WIDE (LANES / 2) /* float64 numbers per register */
#define SOME 4           /* registers of demands, and */
#define TALL 4           /* rows or columns whose sums are kept in registers */
#define PANEL 16         /* demands that are solved together */
#define AT_ONCE 32       /* columns of a block */
#define AHEAD 16         /* distance of prefetches, in rows */
#define SUMS 4

typedef double Doubles __attribute__((vector_size(4 * LANES), aligned(8)));

typedef struct {
    int64_t nodes, demands, graphs, components;
    const int64_t *first;
    const int32_t *row;
    const double *fraction, *pivot;
    const int32_t *order, *rank;      /* the nodes in elimination order, and its inverse */
    const int64_t *owner, *component; /* the graph and the component of every node */
    const int32_t *start, *column;    /* conductances by rows, NULL if nothing is measured */
    const double *value, *psi;
    double *phi, *sums;
    int64_t blocks;
    int32_t *end;                   /* ends of blocks of columns */
    int32_t *row_start, *neighbour; /* conductances by rows in elimination order */
    double *conductance, *size; /* and the number of nodes of every component */
} Sweep;

/* First use of memory takes as long as a sweep, less with huge pages. */
static double *in_huge_pages(int64_t numbers) {
    const int64_t page = 1 << 21, size = (numbers * sizeof(double) + page) / page * page;
    if (size <= 2 * page) return malloc(size);
    double *found = aligned_alloc(page, size);
#ifdef MADV_HUGEPAGE
    if (found) madvise(found, size, MADV_HUGEPAGE); /* only advice: results do not depend on it */
#endif
    return found;
}

INLINE void fetch(const double *from, int64_t count) {
    for (int64_t c = 0; c < count; c += 8) __builtin_prefetch(from + c, 0, 2);
}

/* x[row] += f own, for `tall` rows of a block */
INLINE void add_rows(const int count, const int tall, int64_t columns, const double *const *f, Doubles own[][SOME], int64_t e,
                     const int32_t *row, int64_t stride, double *x) {
    Doubles sum[TALL][SOME];
    for (int r = 0; r < tall; r++)
        for (int v = 0; v < count; v++) sum[r][v] = ((Doubles *)(x + stride * row[e + r]))[v];
    for (int64_t k = 0; k < columns; k++)
        for (int r = 0; r < tall; r++)
            for (int v = 0; v < count; v++) sum[r][v] += f[k][e + r] * own[k][v];
    for (int r = 0; r < tall; r++)
        for (int v = 0; v < count; v++) ((Doubles *)(x + stride * row[e + r]))[v] = sum[r][v];
}

/* Forward step for columns begin to end - 1, which have the same rows: pass their demands to later nodes. */
INLINE void hand_on(const int count, const Sweep *a, int64_t begin, int64_t end, int64_t stride, double *x) {
    const int64_t columns = end - begin, rows = a->first[end] - a->first[end - 1];
    const int32_t *row = a->row + a->first[end - 1];
    const double *f[AT_ONCE]; /* from the first shared row on */
    Doubles own[AT_ONCE][SOME];
    for (int64_t k = 0; k < columns; k++)
        for (int v = 0; v < count; v++) own[k][v] = ((Doubles *)(x + stride * (begin + k)))[v];
    for (int64_t k = 0; k < columns; k++) {
        const double *g = a->fraction + a->first[begin + k];
        f[k] = g + (columns - 1 - k);
        for (int64_t l = k + 1; l < columns; l++)
            for (int v = 0; v < count; v++) own[l][v] += g[l - k - 1] * own[k][v];
    }
    int64_t e = 0;
    for (; e + TALL <= rows; e += TALL) add_rows(count, TALL, columns, f, own, e, row, stride, x);
    for (; e < rows; e++) add_rows(count, 1, columns, f, own, e, row, stride, x);
    for (int64_t k = 0; k < columns; k++) {
        const double scale = a->first[begin + k] < a->first[begin + k + 1] ? 1 / a->pivot[begin + k] : 0;
        for (int v = 0; v < count; v++) ((Doubles *)(x + stride * (begin + k)))[v] = scale * own[k][v];
    }
}

/* Backward step: compute the potentials of column begin + k and of the `tall` - 1 before it from those of later nodes. */
INLINE void take_back(const int count, const int tall, const Sweep *a, int64_t begin, int64_t end, int64_t k, int64_t stride,
                      double *x) {
    const int64_t columns = end - begin, rows = a->first[end] - a->first[end - 1];
    const int32_t *row = a->row + a->first[end - 1];
    const double *f[TALL];
    Doubles sum[TALL][SOME];
    for (int t = 0; t < tall; t++) {
        f[t] = a->fraction + a->first[begin + k - t] + (columns - 1 - k + t);
        for (int v = 0; v < count; v++) sum[t][v] = ((Doubles *)(x + stride * (begin + k - t)))[v];
    }
    for (int64_t e = 0; e < rows; e++) {
        const Doubles *other = (Doubles *)(x + stride * row[e]);
        for (int t = 0; t < tall; t++)
            for (int v = 0; v < count; v++) sum[t][v] += f[t][e] * other[v];
    }
    for (int64_t l = k + 1; l < columns; l++) {
        const Doubles *other = (Doubles *)(x + stride * (begin + l));
        for (int t = 0; t < tall; t++)
            for (int v = 0; v < count; v++) sum[t][v] += f[t][l - columns] * other[v];
    }
    for (int t = 0; t < tall; t++) {
        for (int s = 0; s < t; s++)
            for (int v = 0; v < count; v++) sum[t][v] += f[t][k - s - columns] * sum[s][v];
        for (int v = 0; v < count; v++) ((Doubles *)(x + stride * (begin + k - t)))[v] = sum[t][v];
    }
}

INLINE void one_block(const int count, const int forwards, const Sweep *a, int64_t begin, int64_t end, int64_t stride, double *x) {
    if (forwards) {
        hand_on(count, a, begin, end, stride, x);
        return;
    }
    int64_t k = end - begin - 1;
    for (; k >= TALL - 1; k -= TALL) take_back(count, TALL, a, begin, end, k, stride, x);
    for (; k >= 1; k -= 2) take_back(count, 2, a, begin, end, k, stride, x);
    if (k == 0) take_back(count, 1, a, begin, end, k, stride, x);
}

/* Process all blocks, in forward or in reverse order */
INLINE void through_factor(const int forwards, const Sweep *a, int64_t stride, double *x) {
    for (int64_t at = 0; at < a->blocks; at++) {
        const int64_t b = forwards ? at : a->blocks - 1 - at, begin = b ? a->end[b - 1] : 0, end = a->end[b];
        int64_t c = 0;
        for (; c + SOME * WIDE <= stride; c += SOME * WIDE) one_block(SOME, forwards, a, begin, end, stride, x + c);
        for (; c < stride; c += WIDE) one_block(1, forwards, a, begin, end, stride, x + c);
    }
}

/* Subtract `mean`, one per component, unless it is NULL, and compute the means of the result. */
static void centre(const Sweep *a, int64_t stride, const double *mean, double *x, double *sum) {
    memset(sum, 0, a->components * stride * sizeof *sum);
    for (int64_t j = 0; j < a->nodes; j++) {
        const int64_t c = stride * a->component[a->order[j]];
        for (int64_t v = 0; v < stride; v += WIDE) {
            Doubles *own = (Doubles *)(x + stride * j + v);
            if (mean) *own -= *(Doubles *)(mean + c + v);
            *(Doubles *)(sum + c + v) += *own;
        }
    }
    for (int64_t c = 0; c < a->components; c++)
        for (int64_t v = 0; v < stride; v++) sum[stride * c + v] /= a->size[c];
}

/* left <- left - L x by compensated summation; sums of every graph += squared norm of left, energy of x, squared
 * norm of the old left */
INLINE void measure(const int count, const Sweep *a, int64_t stride, const double *x, double *left, double *sums) {
    const int64_t entries = a->row_start[a->nodes], apart = stride / WIDE;
    for (int64_t j = 0; j < a->nodes; j++) {
        Doubles own[SOME], sum[SOME], rest[SOME] = {{0}}, energy[SOME] = {{0}}, *to = (Doubles *)(left + stride * j);
        Doubles *total = (Doubles *)(sums + SUMS * stride * a->owner[a->order[j]]);
        for (int v = 0; v < count; v++) own[v] = ((Doubles *)(x + stride * j))[v], sum[v] = to[v];
        for (int v = 0; v < count; v++) total[2 * apart + v] += sum[v] * sum[v];
        for (int64_t e = a->row_start[j]; e < a->row_start[j + 1]; e++) {
            const Doubles *other = (Doubles *)(x + stride * a->neighbour[e]);
            fetch(x + stride * a->neighbour[e + AHEAD < entries ? e + AHEAD : e], count * WIDE);
            for (int v = 0; v < count; v++) { /* sum + rest is exact up to eps^2: rest collects the rounding errors */
                const Doubles drop = own[v] - other[v], flow = a->conductance[e] * drop, s = sum[v] - flow, part = s - sum[v];
                rest[v] += (sum[v] - (s - part)) + (-flow - part);
                sum[v] = s;
                energy[v] += drop * flow;
            }
        }
        for (int v = 0; v < count; v++) {
            to[v] = sum[v] + rest[v];
            total[v] += to[v] * to[v];
            total[apart + v] += energy[v] / 2; /* every edge is visited from both ends */
        }
    }
}

/* Add squared potentials times conductances, after the forward sweep of a panel, to sums of every graph that are `apart` apart */
static void add_energy(const Sweep *a, int64_t stride, const double *x, double *sums, int64_t apart) {
    for (int64_t j = 0; j < a->nodes; j++) {
        double *energy = sums + apart * a->owner[a->order[j]];
        for (int64_t c = 0; c < stride; c++) energy[c] += a->pivot[j] * x[stride * j + c] * x[stride * j + c];
    }
}

/* Solve panels first to last - 1 of the demands, or only sweep them forward for their energies */
static int sweep(const void *arguments, int64_t first, int64_t last) {
    const Sweep *a = arguments;
    const int64_t widest = a->demands < PANEL ? (a->demands + WIDE - 1) / WIDE * WIDE : PANEL, measured = a->start != NULL;
    double *x = in_huge_pages(a->nodes * widest * (1 + measured)), *left = x + a->nodes * widest;
    double *mean = malloc(2 * (a->components + 1) * widest * sizeof *mean), *again = mean + a->components * widest;
    double *sums = malloc((a->graphs + 1) * SUMS * widest * sizeof *sums);
    const int failed = !x || !mean || !sums;
    for (int64_t from = PANEL * first; !failed && from < PANEL * last; from += PANEL) {
        const int64_t width = a->demands - from < PANEL ? a->demands - from : PANEL, stride = (width + WIDE - 1) / WIDE * WIDE;
        memset(sums, 0, a->graphs * SUMS * stride * sizeof *sums);
        for (int64_t j = 0; j < a->nodes; j++) {
            double *own = x + stride * j;
            fetch(a->psi + a->demands * a->order[j + AHEAD < a->nodes ? j + AHEAD : j] + from, width);
            for (int64_t c = width; c < stride; c++) own[c] = 0;
            memcpy(own, a->psi + a->demands * a->order[j] + from, width * sizeof *x);
            if (measured) memcpy(left + stride * j, own, stride * sizeof *x);
        }
        through_factor(1, a, stride, x);
        if (a->phi) through_factor(0, a, stride, x);
        if (measured) centre(a, stride, NULL, x, mean), centre(a, stride, mean, x, again); /* twice, as the first mean is rounded */
        for (int64_t j = 0; a->phi && j < a->nodes; j++) {
            for (int64_t c = 0; measured && c < stride; c++) x[stride * j + c] -= again[stride * a->component[a->order[j]] + c];
            memcpy(a->phi + a->demands * a->order[j] + from, x + stride * j, width * sizeof *x);
        }
        int64_t c = 0;
        for (; measured && c + SOME * WIDE <= stride; c += SOME * WIDE) measure(SOME, a, stride, x + c, left + c, sums + c);
        for (; measured && c < stride; c += WIDE) measure(1, a, stride, x + c, left + c, sums + c);
        if (measured) through_factor(1, a, stride, left);
        if (a->sums) add_energy(a, stride, measured ? left : x, sums + (SUMS - 1) * stride, SUMS * stride);
        for (int64_t s = 0; a->sums && s < SUMS * a->graphs; s++) memcpy(a->sums + a->demands * s + from, sums + stride * s, width * sizeof *x);
    }
    free(x), free(mean), free(sums);
    return failed;
}

/* Sort conductances by rows into elimination order */
static void sort_rows(const Sweep *a) {
    int32_t at = 0;
    for (int64_t j = 0; j < a->nodes; j++) {
        const int32_t node = a->order[j];
        a->row_start[j] = at;
        for (int32_t e = a->start[node]; e < a->start[node + 1]; e++, at++)
            a->neighbour[at] = a->rank[a->column[e]], a->conductance[at] = a->value[e];
    }
    a->row_start[a->nodes] = at;
    for (int64_t c = 0; c < a->components; c++) a->size[c] = 0;
    for (int64_t i = 0; i < a->nodes; i++) a->size[a->component[i]]++;
}

static int run(int64_t threads, Sweep a) {
    if (!a.demands) return 0;
    const int64_t panels = (a.demands + PANEL - 1) / PANEL, entries = a.start ? a.start[a.nodes] : 0;
    a.end = malloc((2 * a.nodes + entries + 2) * sizeof *a.end), a.row_start = a.end + a.nodes, a.neighbour = a.row_start + a.nodes + 1;
    a.conductance = malloc((entries + a.components + 1) * sizeof *a.conductance), a.size = a.conductance + entries;
    int failed = !a.end || !a.conductance;
    for (int64_t k = 0; !failed && k < a.nodes; k = a.end[a.blocks++])
        a.end[a.blocks] = (int32_t)end_of_block(a.nodes, a.first, a.row, k, AT_ONCE);
    if (!failed && a.start) sort_rows(&a);
    failed = failed || share_out(threads, panels, (panels + threads - 1) / threads, sweep, &a);
    free(a.end), free(a.conductance);
    return failed;
}

/* phi <- potentials of `demands` demands psi, stored by rows, which sum to zero on every component; phi is zero at its ground.
 * If phi is NULL, the last of the four sums of every graph, rows of `demands`, is the energy psi . L^+ psi, in half the time. */
EXPORT int ohm_sweep(int64_t threads, int64_t nodes, int64_t demands, int64_t graphs, const int64_t *first, const int32_t *row,
                     const double *fraction, const double *pivot, const int32_t *order, const int64_t *owner,
                     const double *psi, double *phi, double *sums) {
    return run(threads, (Sweep){.nodes = nodes, .demands = demands, .graphs = graphs, .first = first, .row = row, .fraction = fraction,
                                .pivot = pivot, .order = order, .owner = owner, .psi = psi, .phi = phi, .sums = sums});
}

/* The same with potentials centred on every component and measured, given conductances by rows: the sums of every graph are the
 * squared norm of the residual r, the energy of phi, the squared norm of psi, and the energy r . L^+ r. */
EXPORT int ohm_answer(int64_t threads, int64_t nodes, int64_t demands, int64_t graphs, int64_t components, const int64_t *first,
                      const int32_t *row, const double *fraction, const double *pivot, const int32_t *order, const int32_t *rank,
                      const int64_t *owner, const int64_t *component, const int32_t *start, const int32_t *column,
                      const double *value, const double *psi, double *phi, double *sums) {
    return run(threads, (Sweep){nodes, demands, graphs, components, first, row, fraction, pivot, order, rank, owner, component, start,
                                column, value, psi, phi, sums, 0, NULL, NULL, NULL, NULL, NULL});
}
