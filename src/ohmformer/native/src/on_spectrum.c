/* Layers on eigenvalues and the gradient of their weights, graph by graph.
 *
 * There are sixteen channels; unused ones have zero weights. A layer multiplies p by m = one + lambda seen + s pulled, with
 * s the sum of squares p^2 summed; its weights are these four rows of channels: seen, pulled, one, summed.
 */
#include "kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHANNELS SPECTRUM_CHANNELS
#define PARTS (CHANNELS / LANES) /* vectors of a row of channels */
#define TINY 1e-12f
#define SHARE 16 /* graphs that a thread processes at a time */
#define SUMS 32  /* maximum number of partial sums of gradients, each over fixed graphs, whatever the number of threads */

typedef struct {
    Vector part[PARTS];
} Row;

typedef float Half __attribute__((vector_size(2 * LANES), aligned(4))); /* half a vector */
typedef float Quarter __attribute__((vector_size(LANES), aligned(4)));

typedef struct {
    Row seen, pulled, one, summed;
} Layer;

typedef struct {
    int64_t depth, restore;
    const float *first, *later; /* eigenvalues that the first layer uses, and those of the others; all graphs concatenated */
    const int64_t *start;       /* offsets of the eigenvalues of every graph; graphs + 1 */
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

/* Return the factor by which a layer multiplies p, where s is the sum of its squares */
INLINE Row factor(const Layer *w, float lambda, float s) { return plus_scaled(plus_scaled(w->one, lambda, w->seen), s, w->pulled); }

/* Compute p after all layers and return its scale; store p and s before and the inverse norm after every layer, unless NULL */
static Row forward(const Layers *a, int64_t graph, Row *p, Row *before, float *sums, Row *inverse) {
    const int64_t from = a->start[graph], size = a->start[graph + 1] - from;
    Row scale = all(sqrtf((float)size)), over = all(1 / sqrtf((float)size)), norm;
    for (int64_t i = 0; i < size; i++) p[i] = all(1);
    for (int64_t l = 0; l < a->depth; l++) {
        const Layer w = a->weights[l];
        const float *values = (l ? a->later : a->first) + from;
        Row even = all(TINY), odd = all(0); /* squares of norms, in two sums to shorten the chain of dependent additions */
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

/* out (eigenvalues, CHANNELS) <- p at every eigenvalue */
EXPORT int ohm_on_spectrum(int64_t threads, int64_t graphs, int64_t depth, int64_t restore, const float *first, const float *later,
                           const int64_t *start, const void *weights, void *out) {
    const Layers a = {depth, restore, first, later, start, weights, out};
    return share_out(threads, graphs, SHARE, run_forward, &a);
}

/* Where functions of N are evaluated: at nodes, and at edges grouped by graph. */
typedef struct {
    int64_t graphs, width;                            /* width: nodes of the largest graph */
    int64_t *start, *edge_start, *place;              /* of every graph: first node, first edge and offset of its eigenvectors */
    const int64_t *u, *v;
    const float *vectors;
} Points;

typedef struct {
    Layers layers;
    int64_t graphs, parts, width;
    const Row *g_out;       /* gradient of p, or NULL if gradients at points are given */
    const Points *points;
    const Row *g_nodes, *g_edges;
    Layer *sums; /* d_weights of every part of the graphs */
} Backward;

/* d[j] += the sum over pairs (u, v) of x_uj x_vj g, with x the eigenvectors (size, size) of a graph; four pairs at a time */
static void add_gradient(int64_t size, const float *x, int64_t pairs, const int64_t *u, const int64_t *v, int64_t from, const Row *g,
                         Row *d) {
    for (int64_t r = 0; r < pairs; r += 4) {
        const float *a[4], *b[4];
        Row of[4];
        for (int k = 0; k < 4; k++) {
            const int64_t row = r + k < pairs ? r + k : r;
            a[k] = x + size * (u ? u[row] - from : row), b[k] = x + size * (v ? v[row] - from : row);
            of[k] = r + k < pairs ? g[row] : all(0);
        }
        for (int64_t j = 0; j < size; j++) {
            Row sum = d[j];
            for (int k = 0; k < 4; k++) sum = plus_scaled(sum, a[k][j] * b[k][j], of[k]);
            d[j] = sum;
        }
    }
}

/* Add the contribution of one graph to d_weights; g_out is the gradient of its rows; p, g, before, sums and inverse are scratch */
static void backward_one(const Layers *a, int64_t graph, const Row *g_out, Layer *d, Row *p, Row *g, Row *before, Row *inverse,
                         float *sums) {
    const int64_t from = a->start[graph], size = a->start[graph + 1] - from;
    const Row scale = forward(a, graph, p, before, sums, inverse);
    Row norms = all(0); /* gradient of every norm from restoring it */
    for (int64_t i = 0; i < size; i++) {
        g[i] = times(scale, g_out[i]);
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
    const Points *o = b->points;
    const int64_t width = b->width, depth = b->layers.depth;
    Row *p = memory((3 + depth) * width + depth + (depth * width + CHANNELS - 1) / CHANNELS);
    if (!p) return 1;
    Row *g = p + width, *read = g + width, *before = read + width, *inverse = before + depth * width;
    for (int64_t part = first_part; part < last_part; part++) {
        const int64_t first = b->graphs * part / b->parts, last = b->graphs * (part + 1) / b->parts;
        for (int64_t graph = first; graph < last; graph++) {
            const int64_t from = b->layers.start[graph], size = b->layers.start[graph + 1] - from;
            const Row *g_out = b->g_out ? b->g_out + from : read;
            if (!b->g_out) {
                const float *x = o->vectors + o->place[graph];
                const int64_t edge = o->edge_start[graph], edges = o->edge_start[graph + 1] - edge;
                memset(read, 0, size * sizeof(Row));
                if (b->g_nodes) add_gradient(size, x, size, NULL, NULL, from, b->g_nodes + from, read);
                if (b->g_edges) add_gradient(size, x, edges, o->u + edge, o->v + edge, from, b->g_edges + edge, read);
            }
            backward_one(&b->layers, graph, g_out, b->sums + part * depth, p, g, before, inverse, (float *)(inverse + depth));
        }
    }
    free(p);
    return 0;
}

/* Compute d_weights (depth, 4, CHANNELS), summed in the same order for any number of threads. Returns 1 if out of memory. */
static int run_all_backward(int64_t threads, Backward *b, Row *d) {
    const int64_t size = 4 * b->layers.depth, parts = b->graphs < SUMS ? b->graphs : SUMS;
    Row *sums = memory(parts * size + 1);
    if (!sums) return 1;
    memset(sums, 0, parts * size * sizeof(Row));
    b->parts = parts, b->sums = (Layer *)sums;
    const int failed = share_out(threads, parts, 1, run_backward, b);
    for (int64_t i = 0; i < size; i++) {
        d[i] = all(0);
        for (int64_t part = 0; part < parts; part++) d[i] = plus_scaled(d[i], 1, sums[part * size + i]);
    }
    free(sums);
    return failed;
}

/* d_weights (depth, 4, CHANNELS) <- from the gradient of out. Returns 1 if out of memory. */
EXPORT int ohm_on_spectrum_backward(int64_t threads, int64_t graphs, int64_t depth, int64_t restore, const float *first,
                                    const float *later, const int64_t *start, const void *weights, const void *g_out,
                                    void *d_weights) {
    Backward b = {.layers = {depth, restore, first, later, start, weights, NULL}, .graphs = graphs, .g_out = g_out};
    for (int64_t g = 0; g < graphs; g++) b.width = start[g + 1] - start[g] > b.width ? start[g + 1] - start[g] : b.width;
    return run_all_backward(threads, &b, d_weights);
}

typedef double Double __attribute__((vector_size(4 * LANES), aligned(8)));
#define DOUBLES (2 * PARTS) /* double vectors of a row of channels */

/* out <- shift + the sum over j of x_j y_j p_j, in float64: a norm may amplify rounding errors by 100 */
static void read_row(int64_t size, const float *x, const float *y, const double *p, double *product, const float *shift, int64_t columns,
                     float *out) {
    Double even[DOUBLES], odd[DOUBLES];
    for (int v = 0; v < DOUBLES; v++) even[v] = odd[v] = (Double){0};
    if (shift)
        for (int c = 0; c < CHANNELS; c++) ((double *)even)[c] = shift[c];
    for (int64_t j = 0; j < size; j++) product[j] = (double)x[j] * y[j];
    const Double *row = (const Double *)p;
    int64_t j = 0;
    for (; j + 1 < size; j += 2, row += 2 * DOUBLES)
        for (int v = 0; v < DOUBLES; v++) even[v] += product[j] * row[v], odd[v] += product[j + 1] * row[DOUBLES + v];
    if (j < size)
        for (int v = 0; v < DOUBLES; v++) even[v] += product[j] * row[v];
    for (int v = 0; v < DOUBLES; v++) even[v] += odd[v];
    if (columns == CHANNELS)
        for (int c = 0; c < CHANNELS; c++) out[c] = (float)((double *)even)[c];
    else
        for (int c = 0; c < columns; c++) out[c] = (float)((double *)even)[c];
}

typedef struct {
    const float *vectors;
    const int64_t *offset, *first, *size; /* of every node: offset of its eigenvector row, first eigenvalue and size of its graph */
    const int64_t *u, *v;                 /* pairs of nodes of one graph */
    const float *in, *shift;
    float *out;
} Reading;

static int run_read(const void *arguments, int64_t begin, int64_t end) {
    const Reading *a = arguments;
    int64_t graph = -1, most = 0;
    double *p = NULL, *product = NULL; /* p of the current graph, and the product of two rows of its eigenvectors */
    for (int64_t r = begin; r < end; r++) {
        const int64_t from = a->first[a->u[r]], size = a->size[a->u[r]];
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
        const float *x = a->vectors + a->offset[a->u[r]], *y = a->vectors + a->offset[a->v[r]];
        read_row(size, x, y, p, product, a->shift, CHANNELS, a->out + CHANNELS * r);
    }
    free(p);
    return 0;
}

/* out (rows, CHANNELS) <- V diag(p) V^T of every channel at pairs (u, v) of nodes, plus shift */
EXPORT int ohm_read_pairs(int64_t threads, int64_t rows, const float *vectors, const int64_t *offset, const int64_t *first,
                          const int64_t *size, const int64_t *u, const int64_t *v, const float *p, const float *shift, float *out) {
    const Reading a = {vectors, offset, first, size, u, v, p, shift, out};
    return share_out(threads, rows, 512, run_read, &a);
}

/* d_p (eigenvalues, CHANNELS), initially zero: add the gradient of out, one pair at a time, on one thread */
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

static void forget(Points *o) { free(o->start); }

/* Compute all offsets. Returns 1 if out of memory, 2 if graphs are not in order, if an edge connects two graphs, or if the
 * number of eigenvector entries is wrong. */
static int arrange(Points *o, int64_t nodes, int64_t pairs, int64_t entries, const int64_t *batch) {
    o->start = calloc(3 * (o->graphs + 1), sizeof(int64_t));
    if (!o->start) return 1;
    o->edge_start = o->start + o->graphs + 1, o->place = o->edge_start + o->graphs + 1;
    for (int64_t i = 0; i < nodes; i++) {
        const int64_t g = batch ? batch[i] : 0;
        if (g < 0 || g >= o->graphs || (i && batch && g < batch[i - 1])) return 2;
        o->start[g + 1]++;
    }
    for (int64_t g = 0; g < o->graphs; g++) {
        const int64_t size = o->start[g + 1];
        o->width = size > o->width ? size : o->width;
        o->place[g + 1] = o->place[g] + size * size;
        o->start[g + 1] += o->start[g];
    }
    if (o->place[o->graphs] != entries) return 2;
    int64_t g = 0;
    for (int64_t k = 0; k < pairs; k++) {
        const int64_t u = o->u[k], v = o->v[k];
        if (u < 0 || u >= nodes) return 2;
        for (; u >= o->start[g + 1]; g++) o->edge_start[g + 1] = k;
        if (u < o->start[g] || v < o->start[g] || v >= o->start[g + 1]) return 2;
    }
    for (; g < o->graphs; g++) o->edge_start[g + 1] = pairs;
    return 0;
}

/* A number of size 0.5 to 1 and either sign for every whole number: its bits, mixed; see spectra._scattered. */
static double scattered(uint64_t k) {
    const uint64_t low = 0x7FFFFFFF;
    uint64_t x = (k * 0x9E3779B1 + 0x7F4A7C15) & low;
    x = ((x ^ (x >> 15)) * 0x2C1B3C6D) & low;
    x = ((x ^ (x >> 12)) * 0x297A2D39) & low;
    x ^= x >> 15;
    return (0.5 + (double)x * 0x1p-32) * (x & 1 ? -1 : 1);
}

/* Whether the numbers that identify graphs match these edges and weights; see spectra.fingerprint. */
static int fits(const Points *o, const float *weight, int64_t combinatorial, const float *check) {
    double *f = malloc((o->width + 1) * sizeof *f);
    int same = f != NULL;
    for (int64_t k = 0; same && k < o->width; k++) f[k] = scattered((uint64_t)k);
    for (int64_t g = 0; same && g < o->graphs; g++) {
        double mean = 0, total = 0;
        for (int64_t k = o->edge_start[g]; k < o->edge_start[g + 1]; k++) {
            const double w = weight ? weight[k] : 1;
            total += w, mean += w * f[o->u[k] - o->start[g]] * f[o->v[k] - o->start[g]];
        }
        same = fabs(mean / (total > 0 ? total : 1) + (combinatorial ? 2 : 0) - check[g]) < 3e-7; /* spectra.SAME */
    }
    free(f);
    return same;
}

typedef struct {
    Layers layers;
    const Points *points;
    int64_t columns;
    const float *turn[2]; /* (CHANNELS + 1, CHANNELS): matrices for nodes and for edges, with the bias as last row, or NULL */
    float *out[2];        /* (nodes, columns) and (edges, columns), or NULL */
} Functions;

static int run_functions(const void *arguments, int64_t first, int64_t last) {
    const Functions *a = arguments;
    const Points *o = a->points;
    const int64_t width = o->width;
    Row *p = memory((1 + 2) * width + (2 * width + CHANNELS - 1) / CHANNELS + 1);
    if (!p) return 1;
    double *values = (double *)(p + width), *product = values + CHANNELS * width;
    for (int64_t g = first; g < last; g++) {
        const int64_t from = o->start[g], size = o->start[g + 1] - from, edge = o->edge_start[g];
        const float *x = o->vectors + o->place[g];
        const Row scale = forward(&a->layers, g, p, NULL, NULL, NULL);
        for (int64_t i = 0; i < size; i++) p[i] = times(p[i], scale);
        for (int what = 0; what < 2; what++) {
            const Row *turn = (const Row *)a->turn[what];
            const float *shift = turn ? (const float *)(turn + CHANNELS) : NULL;
            float *out = a->out[what];
            if (!out) continue;
            for (int64_t i = 0; i < size; i++) {
                Row row = p[i];
                if (turn) {
                    const float *of = (const float *)(p + i);
                    row = all(0);
                    for (int c = 0; c < CHANNELS; c++) row = plus_scaled(row, of[c], turn[c]);
                }
                for (int c = 0; c < CHANNELS; c++) values[CHANNELS * i + c] = ((const float *)&row)[c];
            }
            const int64_t begin = what ? edge : from, rows = what ? o->edge_start[g + 1] - edge : size;
            for (int64_t r = 0; r < rows; r++) {
                const int64_t i = what ? o->u[edge + r] - from : r, j = what ? o->v[edge + r] - from : r;
                read_row(size, x + size * i, x + size * j, values, product, shift, a->columns, out + a->columns * (begin + r));
            }
        }
    }
    free(p);
    return 0;
}

/* Evaluate functions of N, given by the weights of layers, at all nodes and edges of graphs with known spectra; see Functions.
 * taken <- whether graphs, edges and spectra match, otherwise nothing is written; check: numbers to verify this by, or NULL. */
EXPORT int ohm_functions(int64_t threads, int64_t graphs, int64_t nodes, int64_t pairs, int64_t entries, int64_t depth, int64_t restore,
                         int64_t columns, int64_t combinatorial, const int64_t *batch, const int64_t *u, const int64_t *v,
                         const float *weight, const float *check, const float *values, const float *vectors, const void *weights,
                         const float *node_turn, float *at_nodes, const float *edge_turn, float *at_edges, int64_t *taken) {
    Points o = {.graphs = graphs, .u = u, .v = v, .vectors = vectors};
    int failed = arrange(&o, nodes, pairs, entries, batch);
    *taken = !failed && (!check || fits(&o, weight, combinatorial, check));
    if (*taken) {
        const Functions a = {{depth, restore, values, values, o.start, weights, NULL}, &o, columns, {node_turn, edge_turn},
                             {at_nodes, at_edges}};
        failed = share_out(threads, graphs, SHARE, run_functions, &a);
    }
    forget(&o);
    return failed == 1;
}

/* d_weights (depth, 4, CHANNELS) <- from the gradients of the values at nodes and at edges, each NULL if there is none. */
EXPORT int ohm_functions_backward(int64_t threads, int64_t graphs, int64_t nodes, int64_t pairs, int64_t entries, int64_t depth,
                                  int64_t restore, const int64_t *batch, const int64_t *u, const int64_t *v, const float *values,
                                  const float *vectors, const void *weights, const void *g_nodes, const void *g_edges, void *d_weights) {
    Points o = {.graphs = graphs, .u = u, .v = v, .vectors = vectors};
    int failed = arrange(&o, nodes, pairs, entries, batch);
    Backward b = {.layers = {depth, restore, values, values, o.start, weights, NULL}, .graphs = graphs, .width = o.width, .points = &o,
                  .g_nodes = g_nodes, .g_edges = g_edges};
    if (!failed) failed = run_all_backward(threads, &b, d_weights);
    forget(&o);
    return failed != 0;
}
