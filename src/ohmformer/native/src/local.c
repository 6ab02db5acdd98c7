/* Polynomials of a large sparse symmetric matrix A at its nodes and edges.
 *
 * Columns q_k(A) e_u follow from q_(k + 1) = (A - a_k) q_k c_k - b_k q_(k - 1). Sixteen columns of nearby nodes are advanced
 * together, on the nodes that walks can reach and return from: q_k(A)_uv depends on walks of k steps from u to v, which do
 * not leave the ball of radius k / 2 around u.
 */
#include "kernel.h"

#include <stdlib.h>
#include <string.h>

#define COLUMNS 16 /* processed together if balls overlap, one at a time otherwise */
#define PARTS (COLUMNS / LANES)
#define SAMPLES 1024 /* number of nodes whose balls are used to estimate the total work */
#define RADIUS (LOCAL_DEGREE / 2 + 1)

typedef struct {
    int64_t nodes, degree, edges; /* edges: whether entries at edges are computed as well */
    const int32_t *start, *column;
    const float *value, *diagonal, *recurrence; /* A by rows without its diagonal; a_k, b_k, c_k of every step */
    const int32_t *order;                       /* nodes, grouped by panel */
    float *own, *between;                       /* (nodes, degree + 1), (entries, degree + 1) */
} Local;

/* The ball around the nodes of a panel, its nodes by distance, and A restricted to it. */
typedef struct {
    int32_t *place, *node, *start, *column; /* place: position of a node in the ball, -1 outside */
    float *value;
    int64_t end[RADIUS]; /* end of the nodes of every distance */
} Ball;

static int64_t reach_of(const Local *a, int64_t step) {
    const int64_t back = a->degree + a->edges - step;
    return step < back ? step : back;
}

static int64_t radius_of(const Local *a) { return (a->degree + a->edges) / 2; }

/* Collect the ball of a panel; return the number of its nodes. */
static int64_t collect(const Local *a, int64_t panel, int64_t columns, Ball *ball) {
    int64_t count = 0, from = 0;
    for (int64_t i = panel * columns; i < (panel + 1) * columns && i < a->nodes; i++)
        ball->place[a->order[i]] = (int32_t)count, ball->node[count++] = a->order[i];
    ball->end[0] = count;
    for (int64_t d = 1; d <= radius_of(a); d++) {
        const int64_t to = count;
        for (; from < to; from++)
            for (int64_t e = a->start[ball->node[from]]; e < a->start[ball->node[from] + 1]; e++)
                if (ball->place[a->column[e]] < 0) ball->place[a->column[e]] = (int32_t)count, ball->node[count++] = a->column[e];
        ball->end[d] = count;
    }
    return count;
}

static void clear(Ball *ball, int64_t count) {
    for (int64_t i = 0; i < count; i++) ball->place[ball->node[i]] = -1;
}

static void discard(Ball *ball) {
    free(ball->place), free(ball->node), free(ball->start), free(ball->column), free(ball->value);
}

static int prepare(const Local *a, Ball *ball) {
    const int64_t n = a->nodes, entries = a->start[n];
    *ball = (Ball){malloc(n * sizeof(int32_t)), malloc(n * sizeof(int32_t)), malloc((n + 1) * sizeof(int32_t)),
                   malloc((entries + 1) * sizeof(int32_t)), malloc((entries + 1) * sizeof(float)), {0}};
    if (!ball->place || !ball->node || !ball->start || !ball->column || !ball->value) {
        discard(ball);
        return 1;
    }
    memset(ball->place, -1, n * sizeof(int32_t));
    return 0;
}

/* Return the number of nodes whose neighbours are read. Walks of even length use no edges between two outermost nodes. */
static int64_t inner_of(const Local *a, const Ball *ball, int64_t count) {
    return (a->degree + a->edges) % 2 || !radius_of(a) ? count : ball->end[radius_of(a) - 1];
}

/* Build the rows of the outermost nodes from the `entries` entries of the inner rows: A is symmetric. */
static void turn_outer(Ball *ball, int64_t inner, int64_t count, int64_t entries) {
    int32_t *start = ball->start, total = (int32_t)entries;
    if (inner < count) start[inner] = total; /* in the loops below the last inner row ends here */
    for (int64_t j = inner + 1; j <= count; j++) start[j] = 0;
    for (int64_t e = 0; e < entries; e++)
        if (ball->column[e] >= inner) start[ball->column[e] + 1]++;
    for (int64_t j = inner; j < count; j++) start[j + 1] += start[j];
    for (int64_t i = 0; i < inner; i++)
        for (int64_t e = start[i]; e < (i + 1 < inner ? start[i + 1] : total); e++)
            if (ball->column[e] >= inner) {
                const int32_t at = start[ball->column[e]]++;
                ball->column[at] = (int32_t)i, ball->value[at] = ball->value[e];
            }
    for (int64_t j = count; j > inner; j--) start[j] = start[j - 1];
    start[inner] = total;
}

/* Compute one step of `columns` columns, sixteen or one, on the nodes from which walks can still return */
INLINE void step(const Local *a, const Ball *ball, int64_t k, const float *before, const float *now, float *next, int columns) {
    const float shift = a->recurrence[3 * k], back = a->recurrence[3 * k + 1], scale = a->recurrence[3 * k + 2];
    const int64_t count = ball->end[reach_of(a, k + 1)];
    for (int64_t i = 0; i < count; i++) {
        const float own = a->diagonal[ball->node[i]] - shift;
        const int64_t first = ball->start[i], last = ball->start[i + 1];
        if (columns == 1) {
            float sum = own * now[i];
            for (int64_t e = first; e < last; e++) sum += ball->value[e] * now[ball->column[e]];
            next[i] = scale * sum - back * before[i];
            continue;
        }
        const Vector *x = (const Vector *)(now + i * COLUMNS), *old = (const Vector *)(before + i * COLUMNS);
        Vector sum[PARTS], *to = (Vector *)(next + i * COLUMNS);
        for (int v = 0; v < PARTS; v++) sum[v] = own * x[v];
        for (int64_t e = first; e < last; e++) {
            const Vector *other = (const Vector *)(now + (int64_t)ball->column[e] * COLUMNS);
            for (int v = 0; v < PARTS; v++) sum[v] += ball->value[e] * other[v];
        }
        for (int v = 0; v < PARTS; v++) to[v] = scale * sum[v] - back * old[v];
    }
}

static void read_off(const Local *a, const Ball *ball, int64_t panel, int64_t k, const float *now, int columns) {
    for (int64_t c = 0; c < ball->end[0]; c++) {
        const int64_t u = a->order[panel * columns + c];
        a->own[u * (a->degree + 1) + k] = now[c * columns + c];
        for (int64_t e = a->start[u]; a->edges && e < a->start[u + 1]; e++)
            a->between[e * (a->degree + 1) + k] = now[ball->place[a->column[e]] * (int64_t)columns + c];
    }
}

INLINE int run(const Local *a, int64_t first, int64_t last, int columns) {
    Ball ball;
    float *rows = NULL;
    int64_t room = 0;
    if (prepare(a, &ball)) return 1;
    for (int64_t panel = first; panel < last && !STOPPED; panel++) {
        const int64_t count = collect(a, panel, columns, &ball), size = count * columns;
        int64_t entries = 0;
        if (3 * size > room) {
            free(rows);
            room = 4 * size;
            if (posix_memalign((void **)&rows, 64, room * sizeof(float))) {
                discard(&ball);
                return 1;
            }
        }
        for (int64_t i = 0; i < inner_of(a, &ball, count); i++) {
            ball.start[i] = (int32_t)entries;
            for (int64_t e = a->start[ball.node[i]]; e < a->start[ball.node[i] + 1]; e++)
                if (ball.place[a->column[e]] >= 0) ball.column[entries] = ball.place[a->column[e]], ball.value[entries++] = a->value[e];
        }
        turn_outer(&ball, inner_of(a, &ball, count), count, entries);
        memset(rows, 0, 3 * size * sizeof(float));
        float *before = rows, *now = rows + size, *next = rows + 2 * size;
        for (int64_t c = 0; c < ball.end[0]; c++) now[c * columns + c] = 1;
        for (int64_t k = 0;; k++) {
            read_off(a, &ball, panel, k, now, columns);
            if (k == a->degree) break;
            step(a, &ball, k, before, now, next, columns);
            float *old = before;
            before = now, now = next, next = old;
        }
        clear(&ball, count);
    }
    free(rows);
    discard(&ball);
    return 0;
}

static int run_panels(const void *arguments, int64_t first, int64_t last) { return run(arguments, first, last, COLUMNS); }
static int run_single(const void *arguments, int64_t first, int64_t last) { return run(arguments, first, last, 1); }

/* Group sixteen nearby nodes per panel: breadth-first from the first node without a panel, through nodes without one. */
static void arrange(const Local *a, int32_t *order, uint8_t *taken) {
    int64_t count = 0, at = 0, seed = 0;
    while (count < a->nodes) {
        const int64_t full = count - count % COLUMNS + COLUMNS;
        if (at == count) {
            while (taken[seed]) seed++;
            taken[seed] = 1, order[count++] = (int32_t)seed;
        }
        for (int64_t e = a->start[order[at]]; e < a->start[order[at] + 1] && count < full; e++)
            if (!taken[a->column[e]]) taken[a->column[e]] = 1, order[count++] = a->column[e];
        at = count % COLUMNS ? at + 1 : count;
    }
}

/* Estimate the steps along entries, for one column or sixteen, of all panels; stop as soon as it exceeds `most` */
static double predict(const Local *a, Ball *ball, int64_t columns, double most) {
    const int64_t panels = (a->nodes + columns - 1) / columns, wanted = SAMPLES / columns;
    const int64_t samples = panels < wanted ? panels : wanted, radius = radius_of(a);
    double work = 0;
    for (int64_t s = 0; s < samples && work * panels / samples <= most; s++) {
        const int64_t count = collect(a, panels * s / samples, columns, ball);
        int64_t d = 0, entries[RADIUS] = {0}; /* of nodes up to every distance */
        for (int64_t i = 0; i < count; i++) {
            while (i >= ball->end[d]) d++, entries[d] = entries[d - 1];
            entries[d] += (i < inner_of(a, ball, count) ? a->start[ball->node[i] + 1] - a->start[ball->node[i]] : 1) + 4;
        }
        for (; d < radius; d++) entries[d + 1] = entries[d];
        for (int64_t k = 1; k <= a->degree; k++) work += (double)entries[reach_of(a, k)];
        work += 4.0 * entries[radius]; /* collecting the ball */
        clear(ball, count);
    }
    return work * panels / (samples ? samples : 1);
}

/* own (nodes, degree + 1) and, unless NULL, between (entries, degree + 1) <- q_k(A) at nodes and at the entries of A. The work is
 * estimated first and written to most[1]; if it is more than most[0] nothing else is done. */
EXPORT int ohm_local(int64_t threads, int64_t nodes, int64_t degree, const int32_t *start, const int32_t *column, const float *value,
                     const float *diagonal, const float *recurrence, double *most, float *own, float *between) {
    int32_t *order = malloc((nodes + 1) * sizeof *order);
    uint8_t *taken = calloc(nodes + 1, 1);
    Local a = {nodes, degree, between != NULL, start, column, value, diagonal, recurrence, order, own, between};
    Ball ball = {0};
    int failed = !order || !taken || prepare(&a, &ball);
    if (!failed) {
        arrange(&a, order, taken);
        const double side_by_side = predict(&a, &ball, COLUMNS, most[0]), single = predict(&a, &ball, 1, side_by_side);
        const int64_t columns = single < side_by_side ? 1 : COLUMNS, panels = (nodes + columns - 1) / columns;
        most[1] = single < side_by_side ? single : side_by_side;
        discard(&ball);
        if (most[1] <= most[0])
            failed = share_out(threads, panels, panels / (8 * threads) + 1, columns == 1 ? run_single : run_panels, &a);
    }
    free(order), free(taken);
    return failed ? 1 : STOPPED ? WAS_STOPPED : 0;
}

typedef struct {
    int64_t columns, width;
    const int32_t *start, *column;
    const float *x, *y;
    float *out;
    double scale;
} Meeting;

static int meet(const void *arguments, int64_t first, int64_t last) {
    const Meeting *a = arguments;
    for (int64_t u = first; u < last; u++)
        for (int64_t e = a->start[u]; e < a->start[u + 1]; e++) {
            const float *xu = a->x + a->columns * u, *yu = a->y + a->columns * u;
            const float *xv = a->x + a->columns * a->column[e], *yv = a->y + a->columns * a->column[e];
            Vector sum = {0};
            for (int64_t c = 0; c < a->columns; c += LANES)
                sum += *(const Vector *)(xu + c) * *(const Vector *)(yv + c) + *(const Vector *)(xv + c) * *(const Vector *)(yu + c);
            float total = 0;
            for (int l = 0; l < LANES; l++) total += sum[l];
            a->out[e * a->width] += (float)(a->scale * total);
        }
    return 0;
}

/* out[e * width] += scale (x_u y_v + x_v y_u), summed over columns, a multiple of eight, for every entry e = (u, v) of a matrix by rows */
EXPORT int ohm_meet(int64_t threads, int64_t nodes, int64_t columns, int64_t width, double scale, const int32_t *start,
                    const int32_t *column, const float *x, const float *y, float *out) {
    const Meeting a = {columns, width, start, column, x, y, out, scale};
    return share_out(threads, nodes, 4096, meet, &a);
}
