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
    int64_t width, depth, restore;
    const float *first, *later; /* eigenvalues that the first layer sees, and the others; width of every graph */
    const int64_t *sizes;
    const Row *weights; /* (depth, ROWS) */
    Row *out;           /* (graphs, width) */
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
    const int64_t size = a->sizes[graph];
    Row scale = all(sqrtf((float)size));
    for (int64_t i = 0; i < size; i++) p[i] = all(1 / sqrtf((float)size));
    for (int64_t l = 0; l < a->depth; l++) {
        const Row *w = a->weights + l * ROWS;
        const float *values = (l ? a->later : a->first) + graph * a->width;
        Row square = all(TINY), norm, over;
        for (int64_t i = 0; i < size; i++) {
            const Row seen = times(p[i], p[i]), m = plus_rows(plus_scaled(w[CHANNELS + 1], values[i], w[CHANNELS]), &seen, w);
            if (before) before[l * a->width + i] = p[i], factor[l * a->width + i] = m;
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
        Row *p = a->out + g * a->width;
        const Row scale = forward(a, g, p, NULL, NULL, NULL);
        for (int64_t i = 0; i < a->width; i++) p[i] = i < a->sizes[g] ? times(p[i], scale) : all(0);
    }
    return 0;
}

/* out (graphs, width, CHANNELS): p on every eigenvalue, zero on padding */
EXPORT int ohm_on_spectrum(int64_t threads, int64_t graphs, int64_t width, int64_t depth, int64_t restore, const float *first,
                           const float *later, const int64_t *sizes, const void *weights, void *out) {
    const Layers a = {width, depth, restore, first, later, sizes, weights, out};
    return share_out(threads, graphs, SHARE, run_forward, &a);
}

typedef struct {
    Layers layers;
    int64_t graphs, parts;
    const Row *g_out;
    const Row *turned; /* weights of squares, by columns */
    Row *sums;         /* d_weights of every part of the graphs */
} Backward;

/* Add what one graph gives to d_weights; p, g, before, factor and inverse are what it works in */
static void backward_one(const Backward *b, int64_t graph, Row *d, Row *p, Row *g, Row *before, Row *factor, Row *inverse) {
    const Layers *a = &b->layers;
    const int64_t size = a->sizes[graph], width = a->width;
    const Row scale = forward(a, graph, p, before, factor, inverse);
    Row norms = all(0); /* what every norm gets from being restored */
    for (int64_t i = 0; i < size; i++) {
        g[i] = times(scale, b->g_out[graph * width + i]);
        if (a->restore) norms = plus(norms, g[i], p[i]);
    }
    for (int64_t l = a->depth - 1; l >= 0; l--) {
        const float *values = (l ? a->later : a->first) + graph * width;
        Row *to = d + l * ROWS, along = norms;
        for (int64_t i = 0; i < size; i++)
            for (int v = 0; v < PARTS; v++) along.part[v] -= g[i].part[v] * p[i].part[v];
        for (int64_t i = 0; i < size; i++) {
            const Row old = before[l * width + i], seen = times(old, old);
            const Row of_q = times(plus(g[i], p[i], along), inverse[l]), of_m = times(of_q, old);
#pragma GCC unroll 16
            for (int c = 0; c < CHANNELS; c++) to[c] = plus_scaled(to[c], lane(&seen, c), of_m);
            to[CHANNELS] = plus_scaled(to[CHANNELS], values[i], of_m);
            to[CHANNELS + 1] = plus_scaled(to[CHANNELS + 1], 1, of_m);
            const Row of_seen = plus_rows(all(0), &of_m, b->turned + l * CHANNELS);
            g[i] = plus(times(of_q, factor[l * width + i]), plus_scaled(old, 1, old), of_seen);
            p[i] = old;
        }
    }
}

static int run_backward(const void *arguments, int64_t first_part, int64_t last_part) {
    const Backward *b = arguments;
    const int64_t width = b->layers.width, depth = b->layers.depth;
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
EXPORT int ohm_on_spectrum_backward(int64_t threads, int64_t graphs, int64_t width, int64_t depth, int64_t restore,
                                    const float *first, const float *later, const int64_t *sizes, const void *weights,
                                    const void *g_out, void *d_weights) {
    const int64_t size = depth * ROWS, parts = graphs < SUMS ? graphs : SUMS;
    const Row *w = weights;
    Row *sums = memory(parts * size + depth * CHANNELS + 1), *turned = sums + parts * size, *d = d_weights;
    if (!sums) return 1;
    memset(sums, 0, parts * size * sizeof(Row));
    for (int64_t l = 0; l < depth; l++)
        for (int r = 0; r < CHANNELS; r++)
            for (int c = 0; c < CHANNELS; c++) ((float *)(turned + l * CHANNELS + c))[r] = lane(w + l * ROWS + r, c);
    const Backward b = {{width, depth, restore, first, later, sizes, w, NULL}, graphs, parts, g_out, turned, sums};
    const int failed = share_out(threads, parts, 1, run_backward, &b);
    for (int64_t i = 0; i < size; i++) {
        d[i] = all(0);
        for (int64_t part = 0; part < parts; part++) d[i] = plus_scaled(d[i], 1, sums[part * size + i]);
    }
    free(sums);
    return failed;
}
