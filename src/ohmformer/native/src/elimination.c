/* Sampled elimination of large graphs (an approximate Cholesky factor), and conjugate gradients that use it.
 *
 * Exact elimination of a node of conductance W with neighbours of conductances w_j connects every two of them by w_j w_k / W. Here
 * the neighbours are sorted by ascending conductance, and each but the last is connected by w_j S_j / W to one later neighbour,
 * drawn with probability proportional to conductance; S_j is the sum of all later conductances. The expectation is the same, with
 * one edge fewer than before, so edges are modified in place and there is no fill-in besides the factor itself.
 */
#include "kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------ rows and distances */

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

/* ------------------------------------------------------------------------------------------------ the factor */

#define EXACT 64    /* degrees with a bucket of their own; above, there are eight buckets per power of two */
#define BUCKETS 264

/* One of the two half-edges of an edge, 2 e and 2 e + 1, in the list of the node at its end */
typedef struct {
    int32_t target, next;
    double weight; /* zero once the edge is removed */
} End;

typedef struct {
    int32_t first, degree; /* of its half-edges, parallel edges included */
    int32_t bucket, before, after;
    int32_t seen; /* its position among the neighbours of the node being eliminated, or -1 */
} Node;

typedef struct {
    double weight, after; /* after: the sum of the weights of all later neighbours */
    int32_t target, end;
} Neighbour;

typedef struct {
    Node *node;
    int32_t first[BUCKETS]; /* for every bucket the node that was inserted last and is removed first */
    int lowest;
} Queue;

static int bucket_of(int32_t degree) {
    if (degree < EXACT) return degree;
    const int bits = 32 - __builtin_clz(degree);
    return EXACT + 8 * (bits - 7) + (degree >> (bits - 4) & 7);
}

static void leave(Queue *q, int32_t i) {
    const Node *n = q->node + i;
    if (n->before >= 0) q->node[n->before].after = n->after;
    else q->first[n->bucket] = n->after;
    if (n->after >= 0) q->node[n->after].before = n->before;
}

static void enter(Queue *q, int32_t i) {
    Node *n = q->node + i;
    const int b = n->bucket = bucket_of(n->degree);
    n->before = -1, n->after = q->first[b];
    if (n->after >= 0) q->node[n->after].before = i;
    q->first[b] = i;
    if (b < q->lowest) q->lowest = b;
}

static int32_t take(Queue *q) {
    while (q->first[q->lowest] < 0) q->lowest++;
    const int32_t i = q->first[q->lowest];
    leave(q, i);
    return i;
}

static int smaller(const Neighbour *a, const Neighbour *b) {
    return a->weight < b->weight || (a->weight == b->weight && a->target < b->target);
}

static int compare(const void *a, const void *b) { return smaller(b, a) - smaller(a, b); }

static void sort(Neighbour *list, int32_t count) {
    if (count > 32) {
        qsort(list, count, sizeof *list, compare);
        return;
    }
    for (int32_t i = 1; i < count; i++) {
        const Neighbour one = list[i];
        int32_t at = i;
        for (; at > 0 && smaller(&one, list + at - 1); at--) list[at] = list[at - 1];
        list[at] = one;
    }
}

/* Return number `count` of a random sequence (splitmix64), in [0, 1) */
static double draw(uint64_t seed, uint64_t count) {
    uint64_t z = seed + (count + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return ((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* Collect the neighbours of a node, with parallel edges merged */
static int32_t gather(int32_t i, Node *node, End *end, Neighbour *list) {
    int32_t count = 0;
    for (int32_t h = node[i].first; h >= 0; h = end[h].next) {
        if (end[h].weight == 0) continue;
        Node *other = node + end[h].target;
        if (other->seen >= 0) {
            list[other->seen].weight += end[h].weight;
            end[h ^ 1].weight = 0;
            other->degree--;
        } else {
            other->seen = count;
            list[count++] = (Neighbour){end[h].weight, 0, end[h].target, h};
        }
    }
    return count;
}

/* Connect sorted neighbours, given the sum of their weights */
static uint64_t join(Node *node, End *end, const Neighbour *list, int32_t count, double total, uint64_t seed, uint64_t drawn) {
    for (int32_t j = 0; j < count - 1; j++) {
        const double at = draw(seed, drawn++) * list[j].after;
        int32_t low = j + 1, high = count - 1; /* the first neighbour with at most `at` after it */
        while (low < high) {
            const int32_t middle = low + (high - low) / 2;
            if (list[middle].after <= at) high = middle;
            else low = middle + 1;
        }
        const int32_t h = list[j].end, other = list[low].target;
        double weight = list[j].weight * (list[j].after / total);
        if (weight < 1e-300) weight = 1e-300; /* zero would disconnect the graph */
        end[h ^ 1].target = other, end[h ^ 1].weight = weight;
        end[h] = (End){list[j].target, node[other].first, weight};
        node[other].first = h;
        node[other].degree++;
    }
    const Neighbour *last = list + count - 1;
    end[last->end ^ 1].weight = 0;
    node[last->target].degree--;
    return drawn;
}

/* Eliminate all nodes, those of low degree first. Row s of the factor is the s-th eliminated node, order[s]: the rows of its
 * neighbours, their fractions of its conductance, and the inverse of that, zero for the last node of a component. found[0] <-
 * the number of entries, or -1 if there is not enough room for them. */
EXPORT int ohm_eliminate(int64_t threads, int64_t nodes, int64_t edges, int64_t seed, int64_t room, const int64_t *tail,
                         const int64_t *head, const double *conductance, int32_t *order, int32_t *place, int64_t *begin,
                         int32_t *neighbour, double *share, double *inverse, int64_t *found) {
    (void)threads;
    Node *node = malloc((nodes + 1) * sizeof *node);
    End *end = malloc((2 * edges + 1) * sizeof *end);
    Neighbour *list = malloc((nodes + 1) * sizeof *list);
    if (!node || !end || !list) {
        free(node), free(end), free(list);
        return 1;
    }
    Queue queue = {node, {0}, BUCKETS - 1};
    for (int b = 0; b < BUCKETS; b++) queue.first[b] = -1;
    for (int64_t i = 0; i < nodes; i++) node[i] = (Node){-1, 0, 0, -1, -1, -1};
    for (int64_t e = 0; e < edges; e++) {
        const int32_t a = tail[e], b = head[e];
        end[2 * e] = (End){b, node[a].first, conductance[e]};
        end[2 * e + 1] = (End){a, node[b].first, conductance[e]};
        node[a].first = 2 * e, node[b].first = 2 * e + 1;
        node[a].degree++, node[b].degree++;
    }
    for (int64_t i = 0; i < nodes; i++) enter(&queue, i);
    int64_t entries = 0;
    uint64_t drawn = 0;
    begin[0] = 0;
    for (int64_t s = 0; s < nodes && !STOPPED; s++) {
        const int32_t i = take(&queue), count = gather(i, node, end, list);
        if (entries + count > room) {
            entries = -1;
            break;
        }
        sort(list, count);
        double total = 0;
        for (int32_t j = count - 1; j >= 0; j--) list[j].after = total, total += list[j].weight;
        for (int32_t j = 0; j < count; j++) {
            neighbour[entries + j] = list[j].target;
            share[entries + j] = list[j].weight / total;
        }
        if (count) drawn = join(node, end, list, count, total, seed, drawn);
        for (int32_t j = 0; j < count; j++) {
            const int32_t other = list[j].target;
            node[other].seen = -1;
            if (bucket_of(node[other].degree) != node[other].bucket) leave(&queue, other), enter(&queue, other);
        }
        entries += count;
        order[s] = i, place[i] = s;
        inverse[s] = count ? 1 / total : 0;
        begin[s + 1] = entries;
    }
    free(node), free(end), free(list);
    if (STOPPED) return WAS_STOPPED;
    for (int64_t e = 0; e < entries; e++) neighbour[e] = place[neighbour[e]];
    found[0] = entries;
    return 0;
}

/* ------------------------------------------------------------------------------------------------ conjugate gradients */

#define AHEAD 24 /* distance of prefetches, in entries */
#define FETCH(p) __builtin_prefetch(p, 0, 2)
#define WIDEST 8 /* demands of a panel: a row of them is one cache line */

typedef struct {
    int64_t nodes, width, steps;
    const int32_t *start, *column;
    const double *value, *diagonal;
    const int64_t *begin;
    const int32_t *neighbour;
    const double *share, *inverse, *goal;
    double *x, *r, *p, *q, *size, *product;
    int64_t *done;
    double *alpha, *beta;
} Solve;

/* q <- (factor)^+ r, and r . q: a forward and a backward sweep */
INLINE void sweep(const Solve *a, const int width, const double *r, double *q, double *dot) {
    const int64_t nodes = a->nodes, entries = a->begin[nodes];
    memcpy(q, r, nodes * width * sizeof *q);
    for (int64_t s = 0; s < nodes; s++) {
        double own[WIDEST];
        for (int c = 0; c < width; c++) own[c] = q[width * s + c];
        for (int64_t e = a->begin[s]; e < a->begin[s + 1]; e++) {
            double *other = q + (int64_t)width * a->neighbour[e];
            FETCH(q + (int64_t)width * a->neighbour[e + AHEAD < entries ? e + AHEAD : e]);
            for (int c = 0; c < width; c++) other[c] += a->share[e] * own[c];
        }
        for (int c = 0; c < width; c++) q[width * s + c] = a->inverse[s] * own[c];
    }
    for (int c = 0; c < width; c++) dot[c] = 0;
    for (int64_t s = nodes - 1; s >= 0; s--) {
        double own[WIDEST];
        for (int c = 0; c < width; c++) own[c] = q[width * s + c];
        for (int64_t e = a->begin[s]; e < a->begin[s + 1]; e++) {
            const double *other = q + (int64_t)width * a->neighbour[e];
            FETCH(q + (int64_t)width * a->neighbour[e > AHEAD ? e - AHEAD : e]);
            for (int c = 0; c < width; c++) own[c] += a->share[e] * other[c];
        }
        for (int c = 0; c < width; c++) q[width * s + c] = own[c], dot[c] += r[width * s + c] * own[c];
    }
}

/* q <- L p, and p . q */
INLINE void multiply(const Solve *a, const int width, const double *p, double *q, double *dot) {
    const int64_t entries = a->start[a->nodes];
    for (int c = 0; c < width; c++) dot[c] = 0;
    for (int64_t i = 0; i < a->nodes; i++) {
        double sum[WIDEST];
        for (int c = 0; c < width; c++) sum[c] = a->diagonal[i] * p[width * i + c];
        for (int32_t e = a->start[i]; e < a->start[i + 1]; e++) {
            const double *other = p + (int64_t)width * a->column[e];
            FETCH(p + (int64_t)width * a->column[e + AHEAD < entries ? e + AHEAD : e]);
            for (int c = 0; c < width; c++) sum[c] -= a->value[e] * other[c];
        }
        for (int c = 0; c < width; c++) q[width * i + c] = sum[c], dot[c] += p[width * i + c] * sum[c];
    }
}

INLINE void iterate(const Solve *a, const int width, int64_t panel) {
    const int64_t numbers = a->nodes * width;
    double *x = a->x + numbers * panel, *r = a->r + numbers * panel, *p = a->p + numbers * panel, *q = a->q + numbers * panel;
    double *size = a->size + width * panel, *product = a->product + width * panel;
    double *alpha = a->alpha + a->steps * width * panel, *beta = a->beta + a->steps * width * panel;
    const double *goal = a->goal + width * panel;
    int64_t step = 0;
    for (; step < a->steps && !STOPPED; step++) {
        int open = 0;
        for (int c = 0; c < width; c++) open |= size[c] > goal[c];
        if (!open) break;
        double dot[WIDEST], factor[WIDEST];
        sweep(a, width, r, q, dot);
        for (int c = 0; c < width; c++) {
            beta[width * step + c] = factor[c] = product[c] > 0 ? dot[c] / product[c] : 0;
            product[c] = dot[c];
        }
        for (int64_t i = 0; i < numbers; i += width)
            for (int c = 0; c < width; c++) p[i + c] = q[i + c] + factor[c] * p[i + c];
        multiply(a, width, p, q, dot);
        for (int c = 0; c < width; c++) {
            /* demands that have converged are not changed */
            alpha[width * step + c] = factor[c] = size[c] > goal[c] && dot[c] > 0 ? product[c] / dot[c] : 0;
            size[c] = 0;
        }
        double sum[WIDEST] = {0};
        for (int64_t i = 0; i < numbers; i += width)
            for (int c = 0; c < width; c++) {
                x[i + c] += factor[c] * p[i + c];
                r[i + c] -= factor[c] * q[i + c];
                sum[c] += r[i + c] * r[i + c];
            }
        for (int c = 0; c < width; c++) size[c] = sum[c];
    }
    a->done[panel] = step;
}

static int conjugate(const void *arguments, int64_t first, int64_t last) {
    const Solve *a = arguments;
    for (int64_t panel = first; panel < last; panel++) {
        if (a->width == 1) iterate(a, 1, panel);
        if (a->width == 2) iterate(a, 2, panel);
        if (a->width == 4) iterate(a, 4, panel);
        if (a->width == 8) iterate(a, 8, panel);
    }
    return 0;
}

/* Up to `steps` steps of conjugate gradients on panels of 1, 2, 4 or 8 demands, with separate coefficients for each demand, until
 * the squared norms of all residuals are at most `goal`. Before the first call x and p are zero, r is the demands, size their
 * squared norms, and product zero; q is scratch. done[panel] <- the number of steps; alpha and beta <- rows of `width`
 * coefficients per step, those of the residual and of the direction. */
EXPORT int ohm_conjugate(int64_t threads, int64_t nodes, int64_t panels, int64_t width, int64_t steps, const int32_t *start,
                         const int32_t *column, const double *value, const double *diagonal, const int64_t *begin,
                         const int32_t *neighbour, const double *share, const double *inverse, const double *goal, double *x,
                         double *r, double *p, double *q, double *size, double *product, int64_t *done,
                         double *alpha, double *beta) {
    const Solve a = {nodes, width, steps, start, column, value, diagonal, begin, neighbour, share, inverse, goal,
                     x, r, p, q, size, product, done, alpha, beta};
    return share_out(threads, panels, 1, conjugate, &a) ? 1 : STOPPED ? WAS_STOPPED : 0;
}
