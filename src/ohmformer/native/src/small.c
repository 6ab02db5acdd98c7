/* Inverses of small graphs by Chebyshev cubing, graph by graph, so that all of a molecule's matrices are in the first caches.
 *
 * A matrix is stored by rows, each padded with zeros to whole vectors of floats; the number of rows is padded to a multiple of
 * four.
 */
#include "kernel.h"

#include <math.h>

#define NODES SMALL_NODES
#define EDGES SMALL_EDGES
#define LAYERS SMALL_LAYERS
#define DEGREE SMALL_DEGREE /* 3^STEPPED */
#define STEPPED 2           /* layers that are computed by steps */
#define SPARSE 4            /* use steps if at most one in so many entries is nonzero */
#define ROWS 4              /* rows that a product computes at a time */
#define SHARE 8             /* graphs that a thread processes at a time */

typedef struct { /* as cubing.Plan */
    float start, layers, squarings, omega[DEGREE], offset[LAYERS];
} Plan;

typedef struct { /* of N = D^-1/2 L D^-1/2, by rows, with separate entries for parallel edges */
    int first[NODES + 1], column[NODES + 2 * EDGES];
    double value[NODES + 2 * EDGES];
} Entries;

typedef struct { /* one graph */
    int nodes, n, width;  /* n rows and `width` columns, padding included */
    const double *degree; /* of every node */
    const double *root;   /* one over the square root of the degree, or zero */
    const double *null;   /* spans the null space of N on every component */
    const int64_t *label; /* component of every node */
} Graph;

typedef struct { /* scratch memory of one thread */
    Entries entries;
    double onto[NODES * NODES], sum[NODES * NODES];
    float matrices[5 * (NODES * NODES + LANES)];
} Workspace;

/* Matrices are packed with small gaps: at aligned addresses they would compete for the same places in the cache. */
static float *matrix(Workspace *work, const Graph *g, int number) { return work->matrices + number * (g->n * g->width + LANES); }

/* Number of vectors of columns to process together: three, but four as two and two */
static int at_once(int columns) { return columns == 4 * LANES ? 2 : columns < 3 * LANES ? columns / LANES : 3; }

/* Compute ROWS rows and some vectors of columns of by a b */
INLINE void tile(int n, int width, const int columns, const float *a, const float *b, float *out, float by) {
    Vector sum[ROWS][3] = {0}, row[3];
    for (int k = 0; k < n; k++) {
        for (int c = 0; c < columns; c++) row[c] = *(const Vector *)(b + k * width + c * LANES);
        for (int i = 0; i < ROWS; i++)
            for (int c = 0; c < columns; c++) sum[i][c] += a[i * width + k] * row[c];
    }
    for (int i = 0; i < ROWS; i++)
        for (int c = 0; c < columns; c++) *(Vector *)(out + i * width + c * LANES) = by * sum[i][c];
}

/* out <- by a b */
static void multiply(int n, int width, const float *a, const float *b, float *out, float by) {
    for (int c = 0, columns; c < width; c += columns * LANES) {
        columns = at_once(width - c);
        for (int i = 0; i < n; i += ROWS) {
            const float *rows = a + i * width, *from = b + c;
            float *to = out + i * width + c;
            if (columns == 3) tile(n, width, 3, rows, from, to, by);
            if (columns == 2) tile(n, width, 2, rows, from, to, by);
            if (columns == 1) tile(n, width, 1, rows, from, to, by);
        }
    }
}

static void add_diagonal(int n, int width, float *a, float x) {
    for (int i = 0; i < n; i++) a[i * width + i] += x;
}

/* onto <- P, which is I minus the projection onto the null space */
static void project(const Graph *g, double *onto) {
    for (int c = 0; c < g->n * g->width; c++) onto[c] = 0;
    for (int i = 0; i < g->nodes; i++) {
        double *row = onto + i * g->width;
        for (int j = 0; j < g->nodes; j++) row[j] = g->label[i] == g->label[j] ? -g->null[i] * g->null[j] : 0;
        row[i] += g->degree[i] > 0;
    }
}

/* Find the entries of N, from the edges between nodes that are numbered from `node` on */
static void find_entries(const Graph *g, int64_t node, int64_t edges, const int64_t *tail, const int64_t *head,
                         const double *resistance, Entries *entries) {
    int count[NODES] = {0}, found = 0;
    for (int i = 0; i < g->nodes; i++) count[i] = g->degree[i] > 0;
    for (int64_t e = 0; e < edges; e++) count[tail[e] - node]++, count[head[e] - node]++;
    for (int i = 0; i < g->n; i++) {
        entries->first[i] = found;
        if (i < g->nodes && g->degree[i] > 0) entries->column[found] = i, entries->value[found] = 1;
        found += count[i];
        count[i] = entries->first[i] + (i < g->nodes && g->degree[i] > 0);
    }
    entries->first[g->n] = found;
    for (int64_t e = 0; e < edges; e++) {
        const int u = tail[e] - node, v = head[e] - node, uv = count[u]++, vu = count[v]++;
        entries->column[uv] = v, entries->column[vu] = u;
        entries->value[uv] = entries->value[vu] = -g->root[u] * g->root[v] / resistance[e];
    }
}

/* r <- r - N move, for some vectors of columns */
INLINE void take_off(const Graph *g, const Entries *entries, const int columns, const float *move, float *r) {
    for (int i = 0; i < g->n; i++) {
        Vector *row = (Vector *)(r + i * g->width), left[3];
        for (int c = 0; c < columns; c++) left[c] = row[c];
        for (int e = entries->first[i]; e < entries->first[i + 1]; e++) {
            const Vector *other = (const Vector *)(move + entries->column[e] * g->width);
            for (int c = 0; c < columns; c++) left[c] -= (float)entries->value[e] * other[c];
        }
        for (int c = 0; c < columns; c++) row[c] = left[c];
    }
}

/* A step of the Chebyshev semi-iteration: move <- (omega - 1) move + omega gamma r; x <- x + move; r <- r - N move */
static void step(const Graph *g, const Entries *entries, float omega, float gamma, float *move, float *x, float *r) {
    for (int c = 0; c < g->n * g->width; c += LANES) {
        Vector *next = (Vector *)(move + c);
        *next = (omega - 1) * *next + omega * gamma * *(const Vector *)(r + c);
        *(Vector *)(x + c) += *next;
    }
    for (int c = 0, columns; c < g->width; c += columns * LANES) {
        columns = at_once(g->width - c);
        if (columns == 3) take_off(g, entries, 3, move + c, r + c);
        if (columns == 2) take_off(g, entries, 2, move + c, r + c);
        if (columns == 1) take_off(g, entries, 1, move + c, r + c);
    }
}

/* Evaluate the polynomial of ChebyshevCubing in N, as cubing._cube, in one of the first two matrices of the workspace. If N is
 * sparse its first layers are replaced by steps: cubing the polynomial of degree m gives that of degree 3 m, and so do 2 m steps. */
static float *cube(const Graph *g, Workspace *work, const Plan *plan) {
    const Entries *entries = &work->entries;
    const int n = g->n, width = g->width, size = n * width, layers = plan->layers;
    float *x = matrix(work, g, 0), *next_x = matrix(work, g, 1), *other;
    float *r = matrix(work, g, 2), *next = matrix(work, g, 3), *square = matrix(work, g, 4);
    int done = 0, degree = 1;
    for (int c = 0; c < size; c++) x[c] = next[c] = 0, r[c] = work->onto[c];
    step(g, entries, plan->omega[0], plan->start, next, x, r);
    if (entries->first[n] * SPARSE <= n * n)
        for (; done < layers && done < STEPPED; done++)
            for (const int next_degree = 3 * degree; degree < next_degree; degree++)
                step(g, entries, plan->omega[degree], plan->start, next, x, r);
    for (; done < layers; done++) {
        const float u = plan->offset[done], by = 1 / (1 - u);
        multiply(n, width, r, r, square, 1);
        add_diagonal(n, width, square, -u);
        if (done + 1 < layers) multiply(n, width, square, r, next, by);
        for (int c = 0; c < size; c++) square[c] += r[c];
        add_diagonal(n, width, square, 1);
        multiply(n, width, square, x, next_x, by);
        other = x, x = next_x, next_x = other;
        other = r, r = next, next = other;
    }
    return x;
}

/* left <- P - N sum; return the largest column norm of D^1/2 (P - N sum) D^-1/2 */
static double take_left(const Graph *g, const Workspace *work, float *left) {
    const int n = g->n, width = g->width;
    const Entries *entries = &work->entries;
    double squares[NODES] = {0}, row[NODES], longest = 0;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < width; j++) row[j] = work->onto[i * width + j];
        for (int e = entries->first[i]; e < entries->first[i + 1]; e++) {
            const double *other = work->sum + entries->column[e] * width;
            for (int j = 0; j < width; j++) row[j] -= entries->value[e] * other[j];
        }
        const double degree = i < g->nodes ? g->degree[i] : 0;
        for (int j = 0; j < width; j++) {
            squares[j] += degree * row[j] * row[j];
            left[i * width + j] = row[j];
        }
    }
    for (int j = 0; j < g->nodes; j++) {
        const double length = sqrt(squares[j]) * g->root[j];
        longest = length <= longest ? longest : length; /* NaN is kept */
    }
    return longest;
}

typedef struct {
    int64_t most;
    double tol;
    const int64_t *first_node, *first_edge, *tail, *head;
    const double *resistance, *degree, *root, *null;
    const int64_t *label;
    const Plan *plans;
    const int64_t *plan_of, *base, *stride;
    double *out, *residual;
    int64_t *squared;
} Inversion;

static int invert(const void *arguments, int64_t first, int64_t last) {
    const Inversion *a = arguments;
    Workspace work;
    for (int64_t number = first; number < last; number++) {
        const int64_t node = a->first_node[number], edge = a->first_edge[number], nodes = a->first_node[number + 1] - node;
        const int64_t stride = a->stride[number];
        const int n = (nodes + ROWS - 1) / ROWS * ROWS, width = (nodes + LANES - 1) / LANES * LANES, size = n * width;
        const Graph g = {nodes, n, width, a->degree + node, a->root + node, a->null + node, a->label + node};
        const Plan *plan = a->plans + a->plan_of[number];
        project(&g, work.onto);
        find_entries(&g, node, a->first_edge[number + 1] - edge, a->tail + edge, a->head + edge, a->resistance + edge,
                     &work.entries);

        float *x = cube(&g, &work, plan), *more = matrix(&work, &g, 2), *left = matrix(&work, &g, 3);
        for (int c = 0; c < size; c++) work.sum[c] = x[c];
        double before = INFINITY, now = take_left(&g, &work, left);
        int64_t done = 0;
        while (done < plan->squarings || (now > a->tol && done < a->most && now < before / 2)) {
            before = now;
            for (int c = 0; c < size; c++) x[c] = work.sum[c];
            multiply(n, width, x, left, more, 1);
            for (int c = 0; c < size; c++) work.sum[c] += more[c];
            now = take_left(&g, &work, left);
            done++;
        }
        a->residual[number] = now, a->squared[number] = done;

        for (int64_t i = 0; i < stride; i++) {
            double *row = a->out + a->base[number] + i * stride;
            for (int64_t j = 0; j < stride; j++) row[j] = 0;
            if (i < nodes)
                for (int64_t j = 0; j < nodes; j++)
                    row[j] = 0.5 * g.root[i] * g.root[j] * (work.sum[i * width + j] + work.sum[j * width + i]);
        }
    }
    return 0;
}

/* out <- D^-1/2 N^+ D^-1/2 of every graph, in matrices of `stride` columns that begin at `base`, padded with zeros. residual and
 * squared <- for every graph its residual and the number of squarings: at least as many as its plan has, and at most `most` while
 * the residual exceeds tol and every squaring halves it. Edges are in the order of their graphs. */
EXPORT int ohm_invert(int64_t threads, int64_t graphs, int64_t most, double tol, const int64_t *first_node,
                      const int64_t *first_edge, const int64_t *tail, const int64_t *head, const double *resistance,
                      const double *degree, const double *root, const double *null, const int64_t *label, const Plan *plans,
                      const int64_t *plan_of, const int64_t *base, const int64_t *stride, double *out, double *residual,
                      int64_t *squared) {
    const Inversion a = {most, tol,   first_node, first_edge, tail, head,   resistance, degree,   root,
                         null, label, plans,      plan_of,    base, stride, out,        residual, squared};
    return share_out(threads, graphs, SHARE, invert, &a);
}

typedef struct {
    const int64_t *first_node, *label, *base, *stride;
    const double *inverse;
    const int64_t *out_base;
    double *out;
} Pairs;

static int all_pairs(const void *arguments, int64_t first, int64_t last) {
    const Pairs *a = arguments;
    for (int64_t number = first; number < last; number++) {
        const int64_t node = a->first_node[number], nodes = a->first_node[number + 1] - node, stride = a->stride[number];
        const double *x = a->inverse + a->base[number];
        double diagonal[NODES];
        for (int64_t i = 0; i < nodes; i++) diagonal[i] = x[i * stride + i];
        for (int64_t i = 0; i < nodes; i++) {
            double *row = a->out + a->out_base[number] + i * nodes;
            for (int64_t j = 0; j < nodes; j++) {
                const double between = diagonal[i] + diagonal[j] - 2 * x[i * stride + j];
                row[j] = between < 0 ? 0 : between; /* NaN is kept */
            }
            if (a->label)
                for (int64_t j = 0; j < nodes; j++)
                    if (a->label[node + i] != a->label[node + j]) row[j] = INFINITY;
        }
    }
    return 0;
}

/* out <- X_uu + X_vv - 2 X_uv of every graph, in a matrix that begins at `out_base`: infinite between components; `label`
 * is NULL if every graph is connected. */
EXPORT int ohm_all_pairs(int64_t threads, int64_t graphs, const int64_t *first_node, const int64_t *label,
                         const int64_t *base, const int64_t *stride, const double *inverse, const int64_t *out_base,
                         double *out) {
    const Pairs a = {first_node, label, base, stride, inverse, out_base, out};
    return share_out(threads, graphs, SHARE, all_pairs, &a);
}
