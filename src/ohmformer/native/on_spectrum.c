/* Layers on eigenvalues and the gradient of their weights, graph by graph: see on_spectrum.py.
 *
 * Channels are the lanes of a vector, padded with channels whose weights are zero. A layer's weights are LANES + 2 rows: of
 * the squares of p, of lambda, of one.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "vectors.h"

#define ROWS (LANES + 2)
#define TINY 1e-12f

typedef struct {
    int64_t width, depth, restore;
    const float *first, *later;  /* eigenvalues that the first layer sees, and the others; width of every graph */
    const int64_t *sizes;
    const float *weights;        /* (depth, ROWS, LANES) */
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
#pragma GCC unroll 8
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

/* out (graphs, width, LANES): p on every eigenvalue, zero on padding. Returns 1 if there is no memory. */
int ohm_on_spectrum(int64_t threads, int64_t graphs, int64_t width, int64_t depth, int64_t restore, const float *first,
                    const float *later, const int64_t *sizes, const float *weights, float *out) {
    const Layers a = {width, depth, restore, first, later, sizes, weights};
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t g = 0; g < graphs; g++) {
        Vector *p = (Vector *)(out + g * width * LANES);
        const Vector scale = forward(&a, g, p, NULL, NULL, NULL);
        for (int64_t i = 0; i < width; i++) p[i] = i < sizes[g] ? p[i] * scale : (Vector){0};
    }
    return 0;
}

/* d_weights (depth, ROWS, LANES) from the gradient of out */
int ohm_on_spectrum_backward(int64_t threads, int64_t graphs, int64_t width, int64_t depth, int64_t restore,
                             const float *first, const float *later, const int64_t *sizes, const float *weights,
                             const float *g_out, float *d_weights) {
    const Layers a = {width, depth, restore, first, later, sizes, weights};
    const int64_t sums = depth * ROWS, own = sums + (2 + 2 * depth) * width + depth;
    Vector *all = memory(threads * own + depth * LANES);
    if (!all) return 1;
    Vector *turned = all + threads * own; /* weights of squares, by columns */
    for (int64_t l = 0; l < depth; l++)
        for (int r = 0; r < LANES; r++)
            for (int c = 0; c < LANES; c++) ((float *)(turned + l * LANES + c))[r] = weights[(l * ROWS + r) * LANES + c];
    int used = 1; /* threads that there are, which may be fewer */
#pragma omp parallel num_threads(threads)
    {
        if (THREAD == 0) used = THREADS;
        Vector *d = all + THREAD * own, *p = d + sums, *g = p + width, *before = g + width, *factor = before + depth * width;
        Vector *inverse = factor + depth * width;
        memset(d, 0, sums * sizeof(Vector));
#pragma omp for schedule(static)
        for (int64_t graph = 0; graph < graphs; graph++) {
            const int64_t size = sizes[graph];
            const Vector scale = forward(&a, graph, p, before, factor, inverse);
            Vector norms = {0}; /* what every norm gets from being restored */
            for (int64_t i = 0; i < size; i++) {
                g[i] = scale * IN(g_out + (graph * width + i) * LANES);
                if (restore) norms += g[i] * p[i];
            }
            for (int64_t l = depth - 1; l >= 0; l--) {
                const Vector *by_columns = turned + l * LANES;
                const float *values = (l ? later : first) + graph * width;
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
#pragma GCC unroll 8
                    for (int c = 0; c < LANES; c += 2)
                        of_seen += of_m[c] * by_columns[c], odd += of_m[c + 1] * by_columns[c + 1];
                    g[i] = of_q * factor[l * width + i] + 2 * old * (of_seen + odd);
                    p[i] = old;
                }
            }
        }
    }
    memset(d_weights, 0, sums * sizeof(Vector));
    for (int t = 0; t < used; t++)
        for (int64_t i = 0; i < sums; i++) AT(d_weights + i * LANES) += all[t * own + i];
    free(all);
    return 0;
}
