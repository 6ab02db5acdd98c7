/* Connected components, and sums over them. */
#include "kernel.h"

#include <math.h>
#include <string.h>

static int64_t root_of(int64_t i, int64_t *above) {
    while (above[i] != i) i = above[i] = above[above[i]];
    return i;
}

/* label <- the component of every node; components are numbered by their first nodes */
EXPORT int ohm_components(int64_t threads, int64_t nodes, int64_t edges, const int64_t *tail, const int64_t *head, int64_t *label) {
    (void)threads;
    for (int64_t i = 0; i < nodes; i++) label[i] = i;
    for (int64_t e = 0; e < edges; e++) {
        const int64_t a = root_of(tail[e], label), b = root_of(head[e], label);
        if (a < b) label[b] = a;
        else label[a] = b;
    }
    int64_t count = 0;
    for (int64_t i = 0; i < nodes; i++) label[i] = label[i] == i ? count++ : label[label[i]]; /* which is smaller, so final */
    return 0;
}

#define CHUNK 16 /* columns that a thread sums at a time */

typedef struct {
    int64_t nodes, columns, components;
    const int64_t *component;
    const double *x;
    double *sums, *largest;
} Sums;

INLINE void add_up(const int width, const Sums *a, int64_t from) {
    double largest[CHUNK], sum[CHUNK], rest[CHUNK];
    for (int64_t i = 0; i < a->nodes;) { /* consecutive nodes of one component */
        const int64_t own = a->component[i];
        double *to = a->sums + a->columns * own + from, *lost = to + a->columns * a->components, *most = a->largest + a->columns * own + from;
        memcpy(sum, to, width * sizeof *sum), memcpy(rest, lost, width * sizeof *rest), memcpy(largest, most, width * sizeof *largest);
        for (; i < a->nodes && a->component[i] == own; i++) {
            const double *x = a->x + a->columns * i + from;
            for (int c = 0; c < width; c++) { /* sum + rest is exact up to eps^2 */
                const double s = sum[c] + x[c], part = s - sum[c];
                rest[c] += (sum[c] - (s - part)) + (x[c] - part);
                sum[c] = s;
                largest[c] = largest[c] < fabs(x[c]) ? fabs(x[c]) : largest[c];
            }
        }
        memcpy(to, sum, width * sizeof *sum), memcpy(lost, rest, width * sizeof *rest), memcpy(most, largest, width * sizeof *largest);
    }
}

static int add_columns(const void *arguments, int64_t first, int64_t last) {
    const Sums *a = arguments;
    for (int64_t from = CHUNK * first; from < CHUNK * last && from < a->columns; from += CHUNK) {
        int64_t c = from, end = from + CHUNK < a->columns ? from + CHUNK : a->columns;
        if (end - c == CHUNK) add_up(CHUNK, a, c), c = end;
        for (; c + 4 <= end; c += 4) add_up(4, a, c);
        for (; c < end; c++) add_up(1, a, c);
    }
    return 0;
}

/* sums <- the sum of every column over every component, and its rounding error; largest <- the largest absolute value of every
 * column on every component. */
EXPORT int ohm_sums(int64_t threads, int64_t nodes, int64_t columns, int64_t components, const int64_t *component, const double *x,
                    double *sums, double *largest) {
    const Sums a = {nodes, columns, components, component, x, sums, largest};
    memset(sums, 0, 2 * components * columns * sizeof *sums), memset(largest, 0, components * columns * sizeof *largest);
    return share_out(threads, (columns + CHUNK - 1) / CHUNK, 1, add_columns, &a);
}
