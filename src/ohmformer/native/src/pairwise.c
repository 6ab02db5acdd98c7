/* Effective resistances of all pairs of nodes of small graphs by elimination without subtractions.
 *
 * Eliminating node k connects its neighbours i and j by c_ki c_kj / D_k, with D_k the sum of its conductances; between the last
 * two nodes the resistance is 1 / c. The nodes are divided into quarters; for every two of them the others are eliminated, which
 * leaves a graph of half the size. The total work is O(n^3), as 6 < 8. A step changes conductances by at most four rounding errors,
 * and resistances no more than conductances, so the error of a resistance is at most 4 n rounding errors for any range.
 */
#include "kernel.h"

#include <stdlib.h>
#include <string.h>

/* Sum `count` numbers, accurate to rounding. */
static double sum_of(int64_t count, const double *x) {
    double sum = 0, rest = 0;
    for (int64_t i = 0; i < count; i++) {
        const double s = sum + x[i], part = s - sum;
        rest += (sum - (s - part)) + (x[i] - part);
        sum = s;
    }
    return sum + rest;
}

/* Write the resistances between nodes number[0..n-1], with the n x n matrix c of conductances, to their positions in `out`. */
static void between(int64_t n, const double *c, const int64_t *number, double *memory, int64_t *names, int64_t width, double *out) {
    if (n == 2) out[width * number[0] + number[1]] = out[width * number[1] + number[0]] = 1 / c[1];
    if (n <= 2) return;
    int64_t *order = names, *kept = names + n;
    for (int first = 0; first < 4; first++)
        for (int second = first + 1; second < 4; second++) {
            int64_t gone = 0, left = n;
            for (int64_t i = n; i-- > 0;) { /* first the nodes to be eliminated, then those that are kept */
                const int64_t quarter = 4 * i / n;
                if (quarter == first || quarter == second) order[--left] = i;
            }
            for (int64_t i = 0; i < n; i++) {
                const int64_t quarter = 4 * i / n;
                if (quarter != first && quarter != second) order[gone++] = i;
            }
            double *m = memory;
            for (int64_t i = 0; i < n; i++)
                for (int64_t j = 0; j < n; j++) m[n * i + j] = c[n * order[i] + order[j]];
            for (int64_t k = 0; k < gone; k++) {
                const double *own = m + n * k, pivot = sum_of(n - k - 1, own + k + 1);
                if (!(pivot > 0)) continue;
                for (int64_t i = k + 1; i < n; i++) {
                    double *row = m + n * i;
                    const double share = own[i] / pivot, diagonal = row[i];
                    for (int64_t j = k + 1; j < n; j++) row[j] += share * own[j];
                    row[i] = diagonal;
                }
            }
            const int64_t half = n - gone;
            for (int64_t i = 0; i < half; i++) {
                kept[i] = number[order[gone + i]];
                memmove(m + half * i, m + n * (gone + i) + gone, half * sizeof *m);
            }
            between(half, m, kept, memory + half * half, names + n + half, width, out);
        }
}

typedef struct {
    const int64_t *size, *start;
    const double *conductance;
    double *resistance;
} Pairs;

static int some(const void *arguments, int64_t first, int64_t last) {
    const Pairs *a = arguments;
    for (int64_t g = first; g < last; g++) {
        const int64_t n = a->size[g];
        double *memory = malloc((2 * n * n + 1) * sizeof *memory);
        int64_t *names = malloc((5 * n + 9) * sizeof *names);
        if (!memory || !names) {
            free(memory), free(names);
            return 1;
        }
        for (int64_t i = 0; i < n; i++) names[i] = i, a->resistance[a->start[g] + (n + 1) * i] = 0;
        between(n, a->conductance + a->start[g], names, memory, names + n, n, a->resistance + a->start[g]);
        free(memory), free(names);
    }
    return 0;
}

/* resistance <- effective resistances of all pairs of every graph, inf between components; conductance: those of its edges, zero
 * elsewhere; start: offsets of the matrices, stored by rows */
EXPORT int ohm_pairwise(int64_t threads, int64_t graphs, const int64_t *size, const int64_t *start, const double *conductance,
                        double *resistance) {
    const Pairs a = {size, start, conductance, resistance};
    return share_out(threads, graphs, 1, some, &a);
}
