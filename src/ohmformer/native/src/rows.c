/* A large graph by rows, its Laplacian, and distances in it. */
#include "kernel.h"

#include <math.h>
#include <string.h>

/* Neighbours and conductances by rows, and sums of the rows; node i is row place[i], or row i if place is NULL */
EXPORT int ohm_rows(int64_t threads, int64_t nodes, int64_t edges, const int64_t *tail, const int64_t *head,
                    const double *conductance, const int32_t *place, int32_t *start, int32_t *column, double *value,
                    double *diagonal) {
    (void)threads;
    memset(start, 0, (nodes + 1) * sizeof *start);
    memset(diagonal, 0, nodes * sizeof *diagonal);
    for (int64_t e = 0; e < edges; e++) {
        start[place ? place[tail[e]] : tail[e]]++;
        start[place ? place[head[e]] : head[e]]++;
    }
    int32_t sum = 0;
    for (int64_t i = 0; i <= nodes; i++) start[i] = sum += start[i]; /* ends of rows, which are moved to their beginnings below */
    for (int64_t e = edges - 1; e >= 0; e--) {
        const int32_t a = place ? place[tail[e]] : tail[e], b = place ? place[head[e]] : head[e];
        const int32_t of_a = --start[a], of_b = --start[b];
        column[of_a] = b, column[of_b] = a;
        value[of_a] = value[of_b] = conductance[e];
        diagonal[a] += conductance[e], diagonal[b] += conductance[e];
    }
    return 0;
}

/* The Laplacian in CSR from conductances by rows, diagonal first, and D^-1/2, with zero for isolated nodes */
EXPORT int ohm_laplacian(int64_t threads, int64_t nodes, const int32_t *start, const int32_t *column, const double *value,
                         const double *degree, int32_t *first, int32_t *other, double *entry, double *root) {
    (void)threads;
    for (int64_t i = 0; i < nodes; i++) {
        int64_t at = first[i] = start[i] + (int32_t)i;
        other[at] = (int32_t)i, entry[at++] = degree[i];
        root[i] = degree[i] > 0 ? 1 / sqrt(degree[i]) : 0;
        for (int32_t e = start[i]; e < start[i + 1]; e++, at++) other[at] = column[e], entry[at] = -value[e];
    }
    first[nodes] = start[nodes] + (int32_t)nodes;
    return 0;
}

/* Breadth-first search: nodes by their distance from `from`. Returns their number, or zero if the graph expands: an eighth of all
 * nodes is within a distance d with 4^d smaller than the number of nodes. */
static int64_t walk(int64_t from, int64_t nodes, const int32_t *start, const int32_t *column, int32_t *queue, int32_t *distance) {
    int64_t count = 1;
    queue[0] = from, distance[from] = 0;
    for (int64_t at = 0; at < count; at++) {
        const int32_t i = queue[at];
        if (count > nodes / 8 && distance[i] < 31 && (int64_t)1 << 2 * distance[i] < nodes) return 0;
        for (int32_t e = start[i]; e < start[i + 1]; e++)
            if (distance[column[e]] < 0) distance[column[e]] = distance[i] + 1, queue[count++] = column[e];
    }
    return count;
}

/* distance <- for every component, distances from a peripheral node; if the graph expands, the search stops early: -1 for nodes
   that it has not reached */
EXPORT int ohm_distances(int64_t threads, int64_t nodes, const int32_t *start, const int32_t *column, int32_t *queue,
                         int32_t *distance) {
    (void)threads;
    for (int64_t i = 0; i < nodes; i++) distance[i] = -1;
    int64_t done = 0;
    while (done < nodes) {
        int64_t from = 0;
        if (done) /* the next unvisited node; the first node of a component is its smallest */
            for (from = queue[done - 1]; distance[from] >= 0; from++) {}
        const int64_t count = walk(from, nodes, start, column, queue + done, distance);
        if (!count) return 0;
        const int32_t far = queue[done + count - 1];
        for (int64_t k = 0; k < count; k++) distance[queue[done + k]] = -1;
        if (!walk(far, nodes, start, column, queue + done, distance)) return 0;
        done += count;
        queue[done - 1] = from;
    }
    return 0;
}
