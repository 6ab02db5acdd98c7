/* The layers of the learned encoding for inference in float32, graph by graph, so that all of a molecule is in the first cache.
 *
 * A row of Phi is one vector of eight channels. If B evolves, a row of N is WIDTH / 8 such vectors, padded with zeros.
 */
#include "kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define K ENCODE_CHANNELS
#define WIDTH ENCODE_NODES /* maximum nodes of a graph whose B evolves */
#define SHARE 16           /* graphs that a thread processes at a time */
#define ROW (WIDTH / K)
#define TINY 1e-12f
#define SEARCHED 16 /* number of last entries of a row that are searched for an entry of the same column */

typedef float Channels __attribute__((vector_size(4 * K), aligned(4)));
typedef Channels Matrix[WIDTH][ROW];

#define AT(row, j) (*(Vector *)((float *)(row) + (j))) /* a vector within a row of a matrix */

typedef struct { /* one layer, as dynamics.Layer */
    Channels value, product;
    float b_skip, b_gram, b_phi, skip, gram, phi, unused[2];
} Layer;

static Channels all(float x) { return (Channels){x, x, x, x, x, x, x, x}; }

/* gram += Phi^T Phi, four rows at a time in registers */
static void add_gram(int n, const Channels *phi, Channels *gram) {
    for (int a = 0; a < K; a += 4) {
        Channels s0 = gram[a], s1 = gram[a + 1], s2 = gram[a + 2], s3 = gram[a + 3];
        for (int i = 0; i < n; i++) {
            Channels row = phi[i];
            s0 += row[a] * row, s1 += row[a + 1] * row, s2 += row[a + 2] * row, s3 += row[a + 3] * row;
        }
        gram[a] = s0, gram[a + 1] = s1, gram[a + 2] = s2, gram[a + 3] = s3;
    }
}

/* One over the norm of every channel, by which Phi has yet to be multiplied */
static Channels scale_of(const Channels *gram) {
    Channels scale;
    for (int c = 0; c < K; c++) scale[c] = 1.0f / sqrtf(gram[c][c] + TINY);
    return scale;
}

/* Compute the update of a layer on scaled columns, as dynamics.mixing: Phi <- N Phi diag(turn) + Phi mix. Sets gram to zero. */
static Channels mixing(const Layer *layer, Channels scale, Channels *gram, Channels *mix) {
    Channels value = scale * layer->value, pull = scale * scale * layer->product * layer->phi;
    for (int a = 0; a < K; a++) {
        mix[a] = gram[a] * value * pull[a];
        mix[a][a] += layer->skip * scale[a];
        gram[a] = all(0);
    }
    return layer->gram * value;
}

static Channels mixed(Channels row, const Channels *mix) {
    Channels even = all(0), odd = even;
    for (int a = 0; a < K; a += 2) even += row[a] * mix[a], odd += row[a + 1] * mix[a + 1];
    return even + odd;
}

/* ------------------------------------------------------------------------------------------------ B fixed */

typedef struct { /* row i of N: entries first[i] .. end[i], and the diagonal */
    int *first, *end, *other;
    float *diagonal, *entry;
} Rows;

/* Add x to entry (i, j). Pairs listed in both directions share an entry where possible, which only affects speed. */
static void add(const Rows *rows, int i, int j, float x) {
    int end = rows->end[i], e = end - rows->first[i] > SEARCHED ? end - SEARCHED : rows->first[i];
    while (e < end && rows->other[e] != j) e++;
    if (e == end) rows->other[e] = j, rows->entry[e] = 0, rows->end[i]++;
    rows->entry[e] += x;
}

/* next is a buffer for another Phi; rows are processed in tiles, so that their Gram matrix is computed from the first cache */
static void fixed(int n, const Rows *rows, Channels *phi, Channels *next, const Layer *layers, int depth, int unit_start) {
    Channels gram[K] = {all(0)}, mix[K], *out = phi;
    add_gram(n, phi, gram);
    for (int l = 0; l < depth; l++) {
        Channels turn = mixing(&layers[l], l || unit_start ? scale_of(gram) : all(1), gram, mix);
        for (int tile = 0; tile < n; tile += WIDTH) {
            int stop = tile + WIDTH < n ? tile + WIDTH : n;
            for (int i = tile; i < stop; i++) {
                Channels sum = rows->diagonal[i] * phi[i];
                for (int e = rows->first[i]; e < rows->end[i]; e++) sum += rows->entry[e] * phi[rows->other[e]];
                next[i] = turn * sum + mixed(phi[i], mix);
            }
            add_gram(stop - tile, next + tile, gram);
        }
        Channels *last = phi;
        phi = next, next = last;
    }
    Channels scale = scale_of(gram);
    for (int i = 0; i < n; i++) out[i] = phi[i] * scale;
}

/* ------------------------------------------------------------------------------------------------ B evolving */

/* out = a b, n rows of w vectors; eight rows at a time, whose sums are kept in registers */
static void multiply(int n, int w, const Matrix a, const Matrix b, Matrix out) {
    for (int i = 0; i < n; i += 8) {
        const float *rows = (const float *)a[i];
        for (int c = 0; c < w * K; c += LANES) {
            Vector sum[8] = {{0}};
            for (int j = 0; j < n; j++)
                for (int r = 0; r < 8; r++) sum[r] += rows[r * WIDTH + j] * AT(b[j], c);
            for (int r = 0; r < 8; r++) AT(out[i + r], c) = sum[r];
        }
    }
}

/* N and D^1/2, as dynamics.GramState: with A = b_skip I + b_gram N + b_phi K and C = A D^1/2, N <- C N C^T, diagonal scaled */
static void move(int n, int w, const Layer *layer, Channels scale, const Channels *phi, Matrix seen, Channels *root) {
    static _Thread_local Matrix c, turned, left;
    static _Thread_local Channels across[K][ROW]; /* Phi^T */
    for (int i = 0; i < w * K; i++) /* phi is zero on padding */
        for (int k = 0; k < K; k++) ((float *)across[k])[i] = phi[i][k];
    Channels pull = scale * scale * layer->product * layer->b_phi;
    for (int i = 0; i < n; i++) {
        Channels weighted = phi[i] * pull;
        float own = ((float *)root)[i];
        for (int j = 0; j < w * K; j += LANES) {
            Vector a = layer->b_gram * AT(seen[i], j);
            for (int k = 0; k < K; k++) a += weighted[k] * AT(across[k], j);
            if (i / LANES * LANES == j) a[i % LANES] += layer->b_skip;
            AT(c[i], j) = a * AT(root, j);
            AT(turned[i], j) = a * own; /* A is symmetric */
        }
    }
    multiply(n, w, (const Channels(*)[ROW])c, (const Channels(*)[ROW])seen, left);
    multiply(n, w, (const Channels(*)[ROW])left, (const Channels(*)[ROW])turned, seen);
    float total = TINY;
    Channels down[ROW] = {all(0)};
    for (int i = 0; i < n; i++) total += ((float *)seen[i])[i];
    for (int i = 0; i < n; i++) {
        float share = ((float *)seen[i])[i] / total;
        ((float *)down)[i] = share > TINY ? 1.0f / sqrtf(share) : 0.0f;
        ((float *)root)[i] = share * ((float *)down)[i];
    }
    for (int i = 0; i < n; i++) {
        float own = ((float *)down)[i] / total, *row = (float *)seen[i];
        for (int j = 0; j < w * K; j++) {
            float x = row[j] * own * ((float *)down)[j];
            row[j] = x > 1 ? 1 : x < -1 ? -1 : x;
        }
    }
}

static void moving(int n, Matrix seen, Channels *root, Channels *out, const Layer *layers, int depth, int unit_start) {
    Channels phi[WIDTH] = {all(0)}, image[WIDTH], gram[K] = {all(0)}, mix[K];
    int w = (n + K - 1) / K;
    memcpy(phi, out, sizeof(Channels) * n);
    add_gram(n, phi, gram);
    for (int l = 0; l < depth; l++) {
        for (int i = 0; i < n; i++) {
            Channels even = all(0), odd = even;
            const float *row = (const float *)seen[i];
            for (int j = 0; j < w * K; j += 2) even += row[j] * phi[j], odd += row[j + 1] * phi[j + 1];
            image[i] = even + odd;
        }
        Channels scale = l || unit_start ? scale_of(gram) : all(1), turn = mixing(&layers[l], scale, gram, mix);
        if (l + 1 < depth) move(n, w, &layers[l], scale, phi, seen, root);
        for (int i = 0; i < n; i++) phi[i] = turn * image[i] + mixed(phi[i], mix);
        add_gram(n, phi, gram);
    }
    Channels scale = scale_of(gram);
    for (int i = 0; i < n; i++) out[i] = phi[i] * scale;
}

/* ------------------------------------------------------------------------------------------------ a batch */

typedef struct {
    int64_t most_nodes, most_edges, depth, evolve, unit_start;
    const int64_t *first_node, *first_edge, *u, *v;
    const float *weight;
    const Layer *layers;
    Channels *phi;
} Batch;

static void encode_one(const Batch *a, int64_t g, Channels *next, int *indices, float *numbers, Matrix seen) {
    const int64_t base = a->first_node[g], begin = a->first_edge[g], end = a->first_edge[g + 1];
    const int n = (int)(a->first_node[g + 1] - base);
    float *degree = numbers, *down = degree + n, total = 0;
    Rows rows = {indices, indices + n + 1, indices + 2 * n + 1, down + n, down + 2 * n};
    memset(degree, 0, sizeof(float) * n);
    memset(rows.first, 0, sizeof(int) * (n + 1));
    for (int64_t e = begin; e < end; e++) {
        int i = (int)(a->u[e] - base), j = (int)(a->v[e] - base);
        degree[i] += a->weight[e], degree[j] += a->weight[e], total += 2 * a->weight[e];
        rows.first[i + 1]++, rows.first[j + 1]++;
    }
    for (int i = 0; i < n; i++) {
        down[i] = degree[i] > 0 ? 1.0f / sqrtf(degree[i]) : 0.0f;
        rows.diagonal[i] = degree[i] > 0;
        rows.end[i] = rows.first[i], rows.first[i + 1] += rows.first[i];
    }
    if (a->evolve) {
        Channels root[ROW] = {all(0)};
        memset(seen, 0, sizeof(Channels) * ROW * n);
        for (int i = 0; i < n; i++) {
            ((float *)root)[i] = total > 0 ? sqrtf(degree[i] / total) : 0.0f;
            ((float *)seen[i])[i] = rows.diagonal[i];
        }
        for (int64_t e = begin; e < end; e++) {
            int i = (int)(a->u[e] - base), j = (int)(a->v[e] - base);
            float x = a->weight[e] * down[i] * down[j];
            ((float *)seen[i])[j] -= x, ((float *)seen[j])[i] -= x;
        }
        moving(n, seen, root, a->phi + base, a->layers, (int)a->depth, (int)a->unit_start);
    } else {
        for (int64_t e = begin; e < end; e++) {
            int i = (int)(a->u[e] - base), j = (int)(a->v[e] - base);
            float x = -a->weight[e] * down[i] * down[j];
            add(&rows, i, j, x), add(&rows, j, i, x);
        }
        fixed(n, &rows, a->phi + base, next, a->layers, (int)a->depth, (int)a->unit_start);
    }
}

static int encode(const void *arguments, int64_t first, int64_t last) {
    static _Thread_local Matrix seen;
    const Batch *a = arguments;
    Channels *next = malloc(sizeof(Channels) * (a->most_nodes + 1));
    int *indices = malloc(sizeof(int) * (2 * a->most_nodes + 2 * a->most_edges + 2));
    float *numbers = malloc(sizeof(float) * (3 * a->most_nodes + 2 * a->most_edges + 1));
    const int full = !next || !indices || !numbers;
    for (int64_t g = first; g < last && !full; g++) encode_one(a, g, next, indices, numbers, seen);
    free(next), free(indices), free(numbers);
    return full;
}

/* The edges (u, v) of graph g are first_edge[g] .. first_edge[g + 1]. phi is replaced by the result. most_nodes and most_edges
 * are maxima over all graphs. Returns 0, or 1 if out of memory. */
EXPORT int ohm_encode(int64_t threads, int64_t graphs, int64_t most_nodes, int64_t most_edges, int64_t depth, int64_t evolve,
                      int64_t unit_start, const int64_t *first_node, const int64_t *first_edge, const int64_t *u,
                      const int64_t *v, const float *weight, const void *layers, void *phi) {
    const Batch a = {most_nodes, most_edges, depth, evolve, unit_start, first_node, first_edge, u, v, weight, layers, phi};
    return share_out(threads, graphs, SHARE, encode, &a);
}
