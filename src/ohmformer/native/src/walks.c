/* What estimates of resistances are made of: weights of short walks, and random demands.
 *
 * Weights of walks between given pairs of nodes are entries of the powers of a symmetric sparse matrix A. Rows of A^2, walks of two
 * steps, are computed first. Weights of longer walks are scattered into an array over all nodes, for one node u at a time, and
 * combined with rows of the other ends: with y = A^k e_u, (A^(k + 2))_uv is the sum of y over row v of A^2.
 */
#include "kernel.h"

#include <stdlib.h>
#include <string.h>

#define FETCH(p) __builtin_prefetch(p, 0, 2)

typedef struct {
    int64_t nodes, reach;
    const int32_t *start, *column; /* A by rows */
    const double *value;
    const int64_t *begin; /* offsets of the rows of A^2, with room for every walk */
    int32_t *count, *end;
    float *weight;
    const int32_t *first, *other; /* the pairs of node u are u and other[first[u]] to other[first[u + 1] - 1] */
    double *own, *between;
} Walks;

static int square(const void *arguments, int64_t from, int64_t to) {
    const Walks *a = arguments;
    int32_t *place = calloc(a->nodes, sizeof *place); /* position of a node in the row, counted from one */
    if (!place) return 1;
    for (int64_t u = from; u < to; u++) {
        int32_t *end = a->end + a->begin[u], count = 0;
        float *weight = a->weight + a->begin[u];
        if (u + 2 < to)
            for (int64_t e = a->start[u + 2]; e < a->start[u + 3]; e++) {
                FETCH(a->column + a->start[a->column[e]]);
                FETCH(a->value + a->start[a->column[e]]);
            }
        for (int64_t e = a->start[u]; e < a->start[u + 1]; e++) {
            const int64_t w = a->column[e];
            for (int64_t f = a->start[w]; f < a->start[w + 1]; f++) {
                const int32_t v = a->column[f];
                if (!place[v]) end[count] = v, weight[count] = 0, place[v] = ++count;
                weight[place[v] - 1] += (float)(a->value[e] * a->value[f]);
            }
        }
        for (int32_t s = 0; s < count; s++) place[end[s]] = 0;
        a->count[u] = count;
    }
    free(place);
    return 0;
}

/* Compute the rows of A^2: row u is count[u] nodes and weights from begin[u] on, with room for all walks of two steps from u. */
EXPORT int ohm_square(int64_t threads, int64_t nodes, const int32_t *start, const int32_t *column, const double *value,
                      const int64_t *begin, int32_t *count, int32_t *end, float *weight) {
    const Walks a = {.nodes = nodes, .start = start, .column = column, .value = value, .begin = begin, .count = count, .end = end,
                     .weight = weight};
    return share_out(threads, nodes, nodes / (8 * threads) + 1, square, &a);
}

typedef struct {
    float two, three; /* weights of the walks of two and of three steps from u */
} Reached;

/* Sum walks of four and of five steps from u to v: two steps from v meet the ends of two and of three steps from u. */
static inline void meet(const Walks *a, int64_t v, const Reached *y, double *sums) {
    const int32_t *end = a->end + a->begin[v], count = a->count[v];
    const float *weight = a->weight + a->begin[v];
    double four = 0, five = 0;
    for (int32_t s = 0; s < count; s++) four += weight[s] * y[end[s]].two, five += weight[s] * y[end[s]].three;
    sums[0] = four, sums[1] = five;
}

static int walks(const void *arguments, int64_t from, int64_t to) {
    const Walks *a = arguments;
    const int64_t n = a->nodes, most = 2 * a->reach;
    const int far = a->reach > 2;
    Reached *y = calloc(n, sizeof *y);
    int32_t *seen = malloc(n * sizeof *seen); /* ends of walks of three steps */
    if (!y || !seen) {
        free(y), free(seen);
        return 1;
    }
    for (int64_t u = from; u < to; u++) {
        const int32_t *end = a->end + a->begin[u], count = a->count[u];
        const float *weight = a->weight + a->begin[u];
        double own[7] = {1}, sums[2];
        int64_t ends = 0;
        for (int64_t e = a->start[u + 1]; far && u + 1 < to && e < a->start[u + 2]; e++) { /* prefetch rows for the next node */
            const int64_t at = a->begin[a->column[e]];
            for (int64_t line = 0; line < 6; line++) FETCH(a->end + at + 16 * line), FETCH(a->weight + at + 16 * line);
        }
        for (int32_t s = 0; s < count; s++) y[end[s]].two = weight[s];
        own[2] = y[u].two;
        for (int64_t e = a->start[u]; e < a->start[u + 1]; e++) {
            const int64_t w = a->column[e], begin = a->begin[w];
            const float x = (float)a->value[e];
            own[3] += x * y[w].two;
            for (int32_t s = 0; far && s < a->count[w]; s++) {
                const int32_t z = a->end[begin + s];
                if (y[z].three == 0) seen[ends++] = z;
                y[z].three += x * a->weight[begin + s];
            }
        }
        meet(a, u, y, own + 4);
        for (int64_t s = 0; s < ends; s++) own[6] += y[seen[s]].three * y[seen[s]].three;
        memcpy(a->own + (most + 1) * u, own, (most + 1) * sizeof *own);
        for (int64_t p = a->first[u]; p < a->first[u + 1]; p++) {
            const int64_t v = a->other[p];
            double *between = a->between + most * p;
            between[0] = u == v, between[1] = between[3] = 0, between[2] = y[v].two;
            for (int64_t e = a->start[v]; e < a->start[v + 1]; e++) {
                if (a->column[e] == u) between[1] = a->value[e];
                between[3] += a->value[e] * y[a->column[e]].two;
            }
            if (far) meet(a, v, y, sums), between[4] = sums[0], between[5] = sums[1];
        }
        for (int32_t s = 0; s < count; s++) y[end[s]].two = 0;
        for (int64_t s = 0; s < ends; s++) y[seen[s]].three = 0;
    }
    free(y), free(seen);
    return 0;
}

/* own <- (A^k)_uu of every node, k from 0 to 2 reach; between <- (A^k)_uv of every pair, k from 0 to 2 reach - 1; reach is 2 or 3 */
EXPORT int ohm_walks(int64_t threads, int64_t nodes, int64_t reach, const int32_t *start, const int32_t *column,
                     const double *value, const int64_t *begin, int32_t *count, int32_t *end, float *weight,
                     const int32_t *first, const int32_t *other, double *own, double *between) {
    const Walks a = {nodes, reach, start, column, value, begin, count, end, weight, first, other, own, between};
    return share_out(threads, nodes, nodes / (8 * threads) + 1, walks, &a);
}

/* ------------------------------------------------------------------------------------------------ random demands */

typedef struct {
    int64_t columns, before;
    uint64_t seed;
    const int32_t *start;
    const int64_t *edge;
    const double *value;
    const float *quantile;
    double *demand;
} Noise;

/* The finaliser of Steele, Lea and Flood's splitmix64: 64 random bits out of a counter. */
static inline uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static int noise(const void *arguments, int64_t from, int64_t to) {
    const Noise *a = arguments;
    for (int64_t i = from; i < to; i++) {
        double *row = a->demand + a->columns * i;
        memset(row, 0, a->columns * sizeof *row);
        for (int64_t e = a->start[i]; e < a->start[i + 1]; e++) {
            const uint64_t key = mixed(a->seed + (uint64_t)a->edge[e] * 0x9e3779b97f4a7c15u);
            for (int64_t c = 0; c < a->columns; c += 4) {
                const uint64_t bits = mixed(key + (uint64_t)((a->before + c) / 4 + 1) * 0x9e3779b97f4a7c15u);
                for (int b = 0; b < 4; b++) row[c + b] += a->value[e] * a->quantile[bits >> 16 * b & 0xffff];
            }
        }
    }
    return 0;
}

/* demand <- the matrix times `columns` Gaussian columns, a multiple of four, from number `before` on; every Gaussian number is a
 * quantile of 16 bits that are determined by edge, column and seed */
EXPORT int ohm_noise(int64_t threads, int64_t nodes, int64_t columns, int64_t before, int64_t seed, const int32_t *start,
                     const int64_t *edge, const double *value, const float *quantile, double *demand) {
    const Noise a = {columns, before, (uint64_t)seed, start, edge, value, quantile, demand};
    return share_out(threads, nodes, 1024, noise, &a);
}
