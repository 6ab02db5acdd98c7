/* Layers on eigenvalues and the gradient of their weights, graph by graph.
 *
 * There are sixteen channels, those that are not used with weights of zero. A layer multiplies p by m = one + lambda seen + s pulled with
 * s the sum of squares p^2 summed; its weights are these four rows of channels: seen, pulled, one, summed.
 */
#include "kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHANNELS SPECTRUM_CHANNELS
#define PARTS (CHANNELS / LANES) /* vectors of a row of channels */
#define TINY 1e-12f
#define SHARE 16 /* graphs that a thread takes at a time */
#define SUMS 32  /* sums of gradients, each over its own graphs, at most: the same ones however many threads there are */

typedef struct {
    Vector part[PARTS];
} Row;

typedef float Half __attribute__((vector_size(2 * LANES), aligned(4))); /* of a vector */
typedef float Quarter __attribute__((vector_size(LANES), aligned(4)));

typedef struct {
    Row seen, pulled, one, summed;
} Layer;

typedef struct {
    int64_t depth, restore;
    const float *first, *later; /* eigenvalues that the first layer sees, and the others; all graphs side by side */
    const int64_t *start;       /* where those of every graph begin; graphs + 1 */
    const Layer *weights;
    Row *out;
} Layers;

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

INLINE Vector root(Vector x) {
    float y[LANES];
    memcpy(y, &x, sizeof y);
    for (int c = 0; c < LANES; c++) y[c] = sqrtf(y[c]);
    memcpy(&x, y, sizeof y);
    return x;
}

/* the sum over all channels of a b */
INLINE float total(Row a, Row b) {
    Vector sum = a.part[0] * b.part[0];
    for (int v = 1; v < PARTS; v++) sum += a.part[v] * b.part[v];
    Half half[2];
    Quarter quarter[2];
    memcpy(half, &sum, sizeof half);
    half[0] += half[1];
    memcpy(quarter, half, sizeof quarter);
    quarter[0] += quarter[1];
    return LANES == 4 ? quarter[0][0] : quarter[0][0] + quarter[0][LANES / 4 - 1];
}

/* what a layer multiplies p by, where s is the sum of its squares */
INLINE Row factor(const Layer *w, float lambda, float s) { return plus_scaled(plus_scaled(w->one, lambda, w->seen), s, w->pulled); }

/* p after all layers, and its scale; before every layer p, s, and one over the norm after it, if they are to be kept */
static Row forward(const Layers *a, int64_t graph, Row *p, Row *before, float *sums, Row *inverse) {
    const int64_t from = a->start[graph], size = a->start[graph + 1] - from;
    Row scale = all(sqrtf((float)size)), over = all(1 / sqrtf((float)size)), norm;
    for (int64_t i = 0; i < size; i++) p[i] = all(1);
    for (int64_t l = 0; l < a->depth; l++) {
        const Layer w = a->weights[l];
        const float *values = (l ? a->later : a->first) + from;
        Row even = all(TINY), odd = all(0); /* squares of norms: one sum would wait for itself */
        for (int64_t i = 0; i < size; i++) {
            const Row old = times(p[i], over);
            const float s = total(times(old, old), w.summed);
            if (before) before[l * size + i] = old, sums[l * size + i] = s;
            p[i] = times(old, factor(&w, values[i], s));
        }
        for (int64_t i = 0; i + 1 < size; i += 2) even = plus(even, p[i], p[i]), odd = plus(odd, p[i + 1], p[i + 1]);
        if (size % 2) even = plus(even, p[size - 1], p[size - 1]);
        for (int v = 0; v < PARTS; v++) {
            norm.part[v] = root(even.part[v] + odd.part[v]);
            over.part[v] = 1 / norm.part[v];
        }
        if (inverse) inverse[l] = over;
        if (a->restore) scale = times(scale, norm);
    }
    for (int64_t i = 0; i < size; i++) p[i] = times(p[i], over);
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
    Layer *sums; /* d_weights of every part of the graphs */
} Backward;

/* Add what one graph gives to d_weights; p, g, before, sums and inverse are what it works in */
static void backward_one(const Backward *b, int64_t graph, Layer *d, Row *p, Row *g, Row *before, Row *inverse, float *sums) {
    const Layers *a = &b->layers;
    const int64_t from = a->start[graph], size = a->start[graph + 1] - from;
    const Row scale = forward(a, graph, p, before, sums, inverse);
    Row norms = all(0); /* what every norm gets from being restored */
    for (int64_t i = 0; i < size; i++) {
        g[i] = times(scale, b->g_out[from + i]);
        if (a->restore) norms = plus(norms, g[i], p[i]);
    }
    for (int64_t l = a->depth - 1; l >= 0; l--) {
        const Layer w = a->weights[l];
        const float *values = (l ? a->later : a->first) + from;
        Layer to = d[l];
        Row along = norms;
        for (int64_t i = 0; i < size; i++)
            for (int v = 0; v < PARTS; v++) along.part[v] -= g[i].part[v] * p[i].part[v];
        for (int64_t i = 0; i < size; i++) {
            const Row old = before[l * size + i], of_q = times(plus(g[i], p[i], along), inverse[l]), of_m = times(of_q, old);
            const float s = sums[l * size + i], of_s = total(of_m, w.pulled);
            to.seen = plus_scaled(to.seen, values[i], of_m);
            to.pulled = plus_scaled(to.pulled, s, of_m);
            to.one = plus_scaled(to.one, 1, of_m);
            to.summed = plus_scaled(to.summed, of_s, times(old, old));
            g[i] = plus(times(of_q, factor(&w, values[i], s)), times(all(2 * of_s), old), w.summed);
            p[i] = old;
        }
        d[l] = to;
    }
}

static int run_backward(const void *arguments, int64_t first_part, int64_t last_part) {
    const Backward *b = arguments;
    const int64_t width = b->width, depth = b->layers.depth;
    Row *p = memory((2 + depth) * width + depth + (depth * width + CHANNELS - 1) / CHANNELS);
    if (!p) return 1;
    Row *g = p + width, *before = g + width, *inverse = before + depth * width;
    for (int64_t part = first_part; part < last_part; part++) {
        const int64_t first = b->graphs * part / b->parts, last = b->graphs * (part + 1) / b->parts;
        for (int64_t graph = first; graph < last; graph++)
            backward_one(b, graph, b->sums + part * depth, p, g, before, inverse, (float *)(inverse + depth));
    }
    free(p);
    return 0;
}

/* d_weights (depth, 4, CHANNELS) from the gradient of out. Returns one if there is no memory. */
EXPORT int ohm_on_spectrum_backward(int64_t threads, int64_t graphs, int64_t depth, int64_t restore, const float *first,
                                    const float *later, const int64_t *start, const void *weights, const void *g_out,
                                    void *d_weights) {
    const int64_t size = 4 * depth, parts = graphs < SUMS ? graphs : SUMS;
    int64_t width = 0;
    for (int64_t g = 0; g < graphs; g++) width = start[g + 1] - start[g] > width ? start[g + 1] - start[g] : width;
    Row *sums = memory(parts * size + 1), *d = d_weights;
    if (!sums) return 1;
    memset(sums, 0, parts * size * sizeof(Row));
    const Backward b = {{depth, restore, first, later, start, weights, NULL}, graphs, parts, width, g_out, (Layer *)sums};
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
    const float *in, *shift;
    float *out;
} Reading;

typedef double Double __attribute__((vector_size(4 * LANES), aligned(8)));
#define DOUBLES (2 * PARTS) /* of a row of channels */

/* sums in float64: a norm may multiply what is rounded away by 100 */
static int run_read(const void *arguments, int64_t begin, int64_t end) {
    const Reading *a = arguments;
    int64_t graph = -1, most = 0;
    double *p = NULL, *product = NULL; /* of the graph that was read last, and of two rows of its eigenvectors */
    for (int64_t r = begin; r < end; r++) {
        const int64_t from = a->first[a->u[r]], size = a->size[a->u[r]];
        const float *x = a->vectors + a->offset[a->u[r]], *y = a->vectors + a->offset[a->v[r]];
        if (from != graph) {
            if (size > most) {
                free(p);
                p = malloc((CHANNELS + 1) * size * sizeof(double));
                if (!p) return 1;
                most = size, product = p + CHANNELS * size;
            }
            for (int64_t j = 0; j < CHANNELS * size; j++) p[j] = a->in[CHANNELS * from + j];
            graph = from;
        }
        Double even[DOUBLES], odd[DOUBLES];
        for (int v = 0; v < DOUBLES; v++) even[v] = odd[v] = (Double){0};
        for (int c = 0; c < CHANNELS; c++) ((double *)even)[c] = a->shift[c];
        for (int64_t j = 0; j < size; j++) product[j] = (double)x[j] * y[j];
        const Double *row = (const Double *)p;
        int64_t j = 0;
        for (; j + 1 < size; j += 2, row += 2 * DOUBLES)
            for (int v = 0; v < DOUBLES; v++) even[v] += product[j] * row[v], odd[v] += product[j + 1] * row[DOUBLES + v];
        if (j < size)
            for (int v = 0; v < DOUBLES; v++) even[v] += product[j] * row[v];
        for (int v = 0; v < DOUBLES; v++) even[v] += odd[v];
        for (int c = 0; c < CHANNELS; c++) a->out[CHANNELS * r + c] = (float)((double *)even)[c];
    }
    free(p);
    return 0;
}

/* out (rows, CHANNELS): V diag(p) V^T of every channel at pairs (u, v) of nodes, and shift */
EXPORT int ohm_read_pairs(int64_t threads, int64_t rows, const float *vectors, const int64_t *offset, const int64_t *first,
                          const int64_t *size, const int64_t *u, const int64_t *v, const float *p, const float *shift, float *out) {
    const Reading a = {vectors, offset, first, size, u, v, p, shift, out};
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
