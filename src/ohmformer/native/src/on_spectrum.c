/* Layers on eigenvalues and the gradient of their weights, graph by graph.
 *
 * There are sixteen channels, those that are not used with weights of zero. A layer's weights are a row of channels for the square of
 * every channel of p, one for lambda, and one for one.
 */
#include "kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHANNELS SPECTRUM_CHANNELS
#define PARTS (CHANNELS / LANES) /* vectors of a row of channels */
#define ROWS (CHANNELS + 2)      /* of a layer's weights */
#define TINY 1e-12f
#define SHARE 16 /* graphs that a thread takes at a time */
#define SUMS 32  /* sums of gradients, each over its own graphs, at most: the same ones however many threads there are */

typedef struct {
    Vector part[PARTS];
} Row;

typedef struct {
    int64_t depth, restore;
    const float *first, *later; /* eigenvalues that the first layer sees, and the others; all graphs side by side */
    const int64_t *start;       /* where those of every graph begin; graphs + 1 */
    const Row *weights;         /* (depth, ROWS) */
    Row *out;
} Layers;

INLINE float lane(const Row *row, int c) { return ((const float *)row)[c]; }

INLINE Row all(float x) {
    Row row;
    for (int v = 0; v < PARTS; v++) row.part[v] = (Vector){0} + x;
    return row;
}

INLINE Row times(Row a, Row b) {
    for (int v = 0; v < PARTS; v++) a.part[v] *= b.part[v];
    return a;
}

/* sum + a b */
INLINE Row plus(Row sum, Row a, Row b) {
    for (int v = 0; v < PARTS; v++) sum.part[v] += a.part[v] * b.part[v];
    return sum;
}

/* sum + x b */
INLINE Row plus_scaled(Row sum, float x, Row b) {
    for (int v = 0; v < PARTS; v++) sum.part[v] += x * b.part[v];
    return sum;
}

/* sum + the rows of a matrix, each times one of x's channels */
INLINE Row plus_rows(Row sum, const Row *x, const Row *rows) {
    Row odd = all(0);
#pragma GCC unroll 8
    for (int c = 0; c < CHANNELS; c += 2)
        sum = plus_scaled(sum, lane(x, c), rows[c]), odd = plus_scaled(odd, lane(x, c + 1), rows[c + 1]);
    return plus_scaled(sum, 1, odd);
}

/* p after all layers, and its scale; before every layer p, its factor m and one over its norm, if they are to be kept */
static Row forward(const Layers *a, int64_t graph, Row *p, Row *before, Row *factor, Row *inverse) {
    const int64_t from = a->start[graph], size = a->start[graph + 1] - from;
    Row scale = all(sqrtf((float)size));
    for (int64_t i = 0; i < size; i++) p[i] = all(1 / sqrtf((float)size));
    for (int64_t l = 0; l < a->depth; l++) {
        const Row *w = a->weights + l * ROWS;
        const float *values = (l ? a->later : a->first) + from;
        Row square = all(TINY), norm, over;
        for (int64_t i = 0; i < size; i++) {
            const Row seen = times(p[i], p[i]), m = plus_rows(plus_scaled(w[CHANNELS + 1], values[i], w[CHANNELS]), &seen, w);
            if (before) before[l * size + i] = p[i], factor[l * size + i] = m;
            p[i] = times(p[i], m);
            square = plus(square, p[i], p[i]);
        }
        for (int c = 0; c < CHANNELS; c++) ((float *)&norm)[c] = sqrtf(lane(&square, c));
        for (int v = 0; v < PARTS; v++) over.part[v] = 1 / norm.part[v];
        for (int64_t i = 0; i < size; i++) p[i] = times(p[i], over);
        if (inverse) inverse[l] = over;
        if (a->restore) scale = times(scale, norm);
    }
    return scale;
}

static Row *memory(int64_t rows) {
    void *found = NULL;
    return posix_memalign(&found, 64, rows * sizeof(Row)) ? NULL : found;
}

static int run_forward(const void *arguments, int64_t first, int64_t last) {
    const Layers *a = arguments;
    for (int64_t g = first; g < last; g++) {
        Row *p = a->out + a->start[g];
        const Row scale = forward(a, g, p, NULL, NULL, NULL);
        for (int64_t i = 0; i < a->start[g + 1] - a->start[g]; i++) p[i] = times(p[i], scale);
    }
    return 0;
}

/* out (eigenvalues, CHANNELS): p on every eigenvalue */
EXPORT int ohm_on_spectrum(int64_t threads, int64_t graphs, int64_t depth, int64_t restore, const float *first, const float *later,
                           const int64_t *start, const void *weights, void *out) {
    const Layers a = {depth, restore, first, later, start, weights, out};
    return share_out(threads, graphs, SHARE, run_forward, &a);
}

typedef struct {
    Layers layers;
    int64_t graphs, parts, width; /* width: nodes of the largest graph */
    const Row *g_out;
    const Row *turned; /* weights of squares, by columns */
    Row *sums;         /* d_weights of every part of the graphs */
} Backward;

/* Add what one graph gives to d_weights; p, g, before, factor and inverse are what it works in */
static void backward_one(const Backward *b, int64_t graph, Row *d, Row *p, Row *g, Row *before, Row *factor, Row *inverse) {
    const Layers *a = &b->layers;
    const int64_t from = a->start[graph], size = a->start[graph + 1] - from;
    const Row scale = forward(a, graph, p, before, factor, inverse);
    Row norms = all(0); /* what every norm gets from being restored */
    for (int64_t i = 0; i < size; i++) {
        g[i] = times(scale, b->g_out[from + i]);
        if (a->restore) norms = plus(norms, g[i], p[i]);
    }
    for (int64_t l = a->depth - 1; l >= 0; l--) {
        const float *values = (l ? a->later : a->first) + from;
        Row *to = d + l * ROWS, along = norms;
        for (int64_t i = 0; i < size; i++)
            for (int v = 0; v < PARTS; v++) along.part[v] -= g[i].part[v] * p[i].part[v];
        for (int64_t i = 0; i < size; i++) {
            const Row old = before[l * size + i], seen = times(old, old);
            const Row of_q = times(plus(g[i], p[i], along), inverse[l]), of_m = times(of_q, old);
#pragma GCC unroll 16
            for (int c = 0; c < CHANNELS; c++) to[c] = plus_scaled(to[c], lane(&seen, c), of_m);
            to[CHANNELS] = plus_scaled(to[CHANNELS], values[i], of_m);
            to[CHANNELS + 1] = plus_scaled(to[CHANNELS + 1], 1, of_m);
            const Row of_seen = plus_rows(all(0), &of_m, b->turned + l * CHANNELS);
            g[i] = plus(times(of_q, factor[l * size + i]), plus_scaled(old, 1, old), of_seen);
            p[i] = old;
        }
    }
}

static int run_backward(const void *arguments, int64_t first_part, int64_t last_part) {
    const Backward *b = arguments;
    const int64_t width = b->width, depth = b->layers.depth;
    Row *p = memory((2 + 2 * depth) * width + depth);
    if (!p) return 1;
    Row *g = p + width, *before = g + width, *factor = before + depth * width, *inverse = factor + depth * width;
    for (int64_t part = first_part; part < last_part; part++) {
        const int64_t first = b->graphs * part / b->parts, last = b->graphs * (part + 1) / b->parts;
        for (int64_t graph = first; graph < last; graph++)
            backward_one(b, graph, b->sums + part * depth * ROWS, p, g, before, factor, inverse);
    }
    free(p);
    return 0;
}

/* d_weights (depth, ROWS, CHANNELS) from the gradient of out. Returns one if there is no memory. */
EXPORT int ohm_on_spectrum_backward(int64_t threads, int64_t graphs, int64_t depth, int64_t restore, const float *first,
                                    const float *later, const int64_t *start, const void *weights, const void *g_out,
                                    void *d_weights) {
    const int64_t size = depth * ROWS, parts = graphs < SUMS ? graphs : SUMS;
    int64_t width = 0;
    for (int64_t g = 0; g < graphs; g++) width = start[g + 1] - start[g] > width ? start[g + 1] - start[g] : width;
    const Row *w = weights;
    Row *sums = memory(parts * size + depth * CHANNELS + 1), *turned = sums + parts * size, *d = d_weights;
    if (!sums) return 1;
    memset(sums, 0, parts * size * sizeof(Row));
    for (int64_t l = 0; l < depth; l++)
        for (int r = 0; r < CHANNELS; r++)
            for (int c = 0; c < CHANNELS; c++) ((float *)(turned + l * CHANNELS + c))[r] = lane(w + l * ROWS + r, c);
    const Backward b = {{depth, restore, first, later, start, w, NULL}, graphs, parts, width, g_out, turned, sums};
    const int failed = share_out(threads, parts, 1, run_backward, &b);
    for (int64_t i = 0; i < size; i++) {
        d[i] = all(0);
        for (int64_t part = 0; part < parts; part++) d[i] = plus_scaled(d[i], 1, sums[part * size + i]);
    }
    free(sums);
    return failed;
}

typedef struct {
    const float *vectors;
    const int64_t *offset, *first, *size; /* of every node: its row of eigenvectors, its graph's first eigenvalue and how many */
    const int64_t *u, *v;                 /* pairs of nodes of one graph */
    const Row *in;
    Row *out;
} Reading;

static int run_read(const void *arguments, int64_t begin, int64_t end) {
    const Reading *a = arguments;
    for (int64_t r = begin; r < end; r++) {
        const float *x = a->vectors + a->offset[a->u[r]], *y = a->vectors + a->offset[a->v[r]];
        const Row *p = a->in + a->first[a->u[r]];
        const int64_t size = a->size[a->u[r]];
        Row even = all(0), odd = all(0);
        int64_t j = 0;
        for (; j + 1 < size; j += 2)
            even = plus_scaled(even, x[j] * y[j], p[j]), odd = plus_scaled(odd, x[j + 1] * y[j + 1], p[j + 1]);
        if (j < size) even = plus_scaled(even, x[j] * y[j], p[j]);
        a->out[r] = plus_scaled(even, 1, odd);
    }
    return 0;
}

/* out (rows, CHANNELS): V diag(p) V^T of every channel at pairs (u, v) of nodes */
EXPORT int ohm_read_pairs(int64_t threads, int64_t rows, const float *vectors, const int64_t *offset, const int64_t *first,
                          const int64_t *size, const int64_t *u, const int64_t *v, const void *p, void *out) {
    const Reading a = {vectors, offset, first, size, u, v, p, out};
    return share_out(threads, rows, 512, run_read, &a);
}

/* d_p (eigenvalues, CHANNELS), zero at first: add the gradient of out, pair after pair, on one thread */
EXPORT int ohm_read_pairs_backward(int64_t threads, int64_t rows, const float *vectors, const int64_t *offset, const int64_t *first,
                                   const int64_t *size, const int64_t *u, const int64_t *v, const void *g_out, void *d_p) {
    const Row *g = g_out;
    (void)threads;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = vectors + offset[u[r]], *y = vectors + offset[v[r]];
        Row *d = (Row *)d_p + first[u[r]];
        for (int64_t j = 0; j < size[u[r]]; j++) d[j] = plus_scaled(d[j], x[j] * y[j], g[r]);
    }
    return 0;
}
