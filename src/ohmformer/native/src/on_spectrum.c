/* Layers on eigenvalues and the gradient of their weights, graph by graph.
 *
 * Channels are the lanes of a vector, padded with channels whose weights are zero. A layer's weights are LANES + 2 rows: of
 * the squares of p, of lambda, of one.
 */
#include "kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LANES SPECTRUM_CHANNELS
#define ROWS (LANES + 2)
#define TINY 1e-12f
#define SHARE 16 /* graphs that a thread takes at a time */
#define PARTS 32 /* sums of gradients, each over its own graphs, at most: the same ones however many threads there are */

typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4)));

typedef struct {
    int64_t width, depth, restore;
    const float *first, *later;  /* eigenvalues that the first layer sees, and the others; width of every graph */
    const int64_t *sizes;
    const float *weights;        /* (depth, ROWS, LANES) */
    float *out;                  /* (graphs, width, LANES) */
} Layers;

INLINE Vector root(Vector x) {
    for (int c = 0; c < LANES; c++) x[c] = sqrtf(x[c]);
    return x;
}

/* p after all layers, and its scale; before every layer p, its factor m and one over its norm, if they are to be kept */
static Vector forward(const Layers *a, int64_t graph, Vector *p, Vector *before, Vector *factor, Vector *inverse) {
    const int64_t size = a->sizes[graph];
    Vector scale = (Vector){0} + sqrtf((float)size);
    for (int64_t i = 0; i < size; i++) p[i] = 1 / scale;
    for (int64_t l = 0; l < a->depth; l++) {
        const Vector *w = (const Vector *)(a->weights + l * ROWS * LANES);
        const float *values = (l ? a->later : a->first) + graph * a->width;
        Vector square = {0};
        for (int64_t i = 0; i < size; i++) {
            const Vector seen = p[i] * p[i];
            Vector m = values[i] * w[LANES] + w[LANES + 1], odd = {0};
#pragma GCC unroll 16
            for (int c = 0; c < LANES; c += 2) m += seen[c] * w[c], odd += seen[c + 1] * w[c + 1];
            m += odd;
            if (before) before[l * a->width + i] = p[i], factor[l * a->width + i] = m;
            p[i] *= m;
            square += p[i] * p[i];
        }
        const Vector norm = root(square + TINY), over = 1 / norm;
        for (int64_t i = 0; i < size; i++) p[i] *= over;
        if (inverse) inverse[l] = over;
        if (a->restore) scale *= norm;
    }
    return scale;
}

static Vector *memory(int64_t vectors) {
    void *found = NULL;
    return posix_memalign(&found, 64, vectors * sizeof(Vector)) ? NULL : found;
}

static int run_forward(const void *arguments, int64_t first, int64_t last) {
    const Layers *a = arguments;
    for (int64_t g = first; g < last; g++) {
        Vector *p = (Vector *)(a->out + g * a->width * LANES);
        const Vector scale = forward(a, g, p, NULL, NULL, NULL);
        for (int64_t i = 0; i < a->width; i++) p[i] = i < a->sizes[g] ? p[i] * scale : (Vector){0};
    }
    return 0;
}

/* out (graphs, width, LANES): p on every eigenvalue, zero on padding */
EXPORT int ohm_on_spectrum(int64_t threads, int64_t graphs, int64_t width, int64_t depth, int64_t restore, const float *first,
                           const float *later, const int64_t *sizes, const float *weights, float *out) {
    const Layers a = {width, depth, restore, first, later, sizes, weights, out};
    return share_out(threads, graphs, SHARE, run_forward, &a);
}

typedef struct {
    Layers layers;
    int64_t graphs, parts;
    const float *g_out;
    const Vector *turned; /* weights of squares, by columns */
    Vector *sums;         /* d_weights of every part */
} Backward;

/* Add what one graph gives to d_weights; p, g, before, factor and inverse are what it works in */
static void backward_one(const Backward *b, int64_t graph, Vector *d, Vector *p, Vector *g, Vector *before, Vector *factor,
                         Vector *inverse) {
    const Layers *a = &b->layers;
    const int64_t size = a->sizes[graph], width = a->width;
    const Vector scale = forward(a, graph, p, before, factor, inverse);
    Vector norms = {0}; /* what every norm gets from being restored */
    for (int64_t i = 0; i < size; i++) {
        g[i] = scale * *(const Vector *)(b->g_out + (graph * width + i) * LANES);
        if (a->restore) norms += g[i] * p[i];
    }
    for (int64_t l = a->depth - 1; l >= 0; l--) {
        const Vector *by_columns = b->turned + l * LANES;
        const float *values = (l ? a->later : a->first) + graph * width;
        Vector *to = d + l * ROWS, along = norms;
        for (int64_t i = 0; i < size; i++) along -= g[i] * p[i];
        for (int64_t i = 0; i < size; i++) {
            const Vector old = before[l * width + i], seen = old * old;
            const Vector of_q = (g[i] + p[i] * along) * inverse[l], of_m = of_q * old;
            Vector of_seen = {0}, odd = {0};
#pragma GCC unroll 16
            for (int c = 0; c < LANES; c++) to[c] += seen[c] * of_m;
            to[LANES] += values[i] * of_m;
            to[LANES + 1] += of_m;
#pragma GCC unroll 16
            for (int c = 0; c < LANES; c += 2)
                of_seen += of_m[c] * by_columns[c], odd += of_m[c + 1] * by_columns[c + 1];
            g[i] = of_q * factor[l * width + i] + 2 * old * (of_seen + odd);
            p[i] = old;
        }
    }
}

static int run_backward(const void *arguments, int64_t first_part, int64_t last_part) {
    const Backward *b = arguments;
    const int64_t width = b->layers.width, depth = b->layers.depth;
    Vector *p = memory((2 + 2 * depth) * width + depth);
    if (!p) return 1;
    Vector *g = p + width, *before = g + width, *factor = before + depth * width, *inverse = factor + depth * width;
    for (int64_t part = first_part; part < last_part; part++) {
        const int64_t first = b->graphs * part / b->parts, last = b->graphs * (part + 1) / b->parts;
        Vector *d = b->sums + part * depth * ROWS;
        for (int64_t graph = first; graph < last; graph++) backward_one(b, graph, d, p, g, before, factor, inverse);
    }
    free(p);
    return 0;
}

/* d_weights (depth, ROWS, LANES) from the gradient of out. Returns one if there is no memory. */
EXPORT int ohm_on_spectrum_backward(int64_t threads, int64_t graphs, int64_t width, int64_t depth, int64_t restore,
                                    const float *first, const float *later, const int64_t *sizes, const float *weights,
                                    const float *g_out, float *d_weights) {
    const int64_t size = depth * ROWS, parts = graphs < PARTS ? graphs : PARTS;
    Vector *sums = memory(parts * size + depth * LANES), *turned = sums + parts * size;
    if (!sums) return 1;
    memset(sums, 0, parts * size * sizeof(Vector));
    for (int64_t l = 0; l < depth; l++)
        for (int r = 0; r < LANES; r++)
            for (int c = 0; c < LANES; c++) ((float *)(turned + l * LANES + c))[r] = weights[(l * ROWS + r) * LANES + c];
    const Backward b = {{width, depth, restore, first, later, sizes, weights, NULL}, graphs, parts, g_out, turned, sums};
    const int failed = share_out(threads, parts, 1, run_backward, &b);
    memset(d_weights, 0, size * sizeof(Vector));
    for (int64_t part = 0; part < parts; part++)
        for (int64_t i = 0; i < size; i++) ((Vector *)d_weights)[i] += sums[part * size + i];
    free(sums);
    return failed;
}
