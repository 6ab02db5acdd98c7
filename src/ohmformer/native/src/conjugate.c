/* Conjugate gradients on panels of 1, 2, 4 or 8 demands, preconditioned by a factor from sampled elimination, or by degrees.
 *
 * Panels are shared out among threads. If there are fewer of them than threads, so are the parts of the graph: the rows of a
 * part have neighbours in no other part, but for those between parts, which come last. Sums are taken part by part, so that no
 * number depends on the number of threads.
 */
#include "kernel.h"

#include <string.h>

#define AHEAD 24 /* distance of prefetches, in entries */
#define FETCH(p) __builtin_prefetch(p, 0, 2)
#define WIDEST 8 /* demands of a panel: a row of them is one cache line */

typedef struct {
    int64_t threads, nodes, parts, width, steps;
    const int64_t *first; /* the first row of every part; those between parts are the last part */
    const int32_t *start, *column;
    const double *value, *diagonal;
    const int64_t *begin;
    const int32_t *neighbour;
    const double *share, *inverse, *goal;
    double *x, *r, *p, *q, *size, *product;
    int64_t *done;
    double *alpha, *beta;
} Solve;

/* One panel: its vectors, the coefficients of a step, and the sums of every part */
typedef struct {
    const Solve *solve;
    double *x, *r, *p, *q, factor[WIDEST], sum[CONJUGATE_PARTS + 1][WIDEST];
} Panel;

/* q <- r, then the forward sweep over the rows of a part */
INLINE void forward(Panel *b, const int width, int64_t part) {
    const Solve *a = b->solve;
    const int64_t from = a->first[part], to = a->first[part + 1], entries = a->begin[to];
    double *q = b->q;
    if (part < a->parts) memcpy(q + width * from, b->r + width * from, width * (to - from) * sizeof *q);
    for (int64_t s = from; s < to; s++) {
        double own[WIDEST];
        for (int c = 0; c < width; c++) own[c] = q[width * s + c];
        for (int64_t e = a->begin[s]; e < a->begin[s + 1]; e++) {
            double *other = q + (int64_t)width * a->neighbour[e];
            FETCH(q + (int64_t)width * a->neighbour[e + AHEAD < entries ? e + AHEAD : e]);
            for (int c = 0; c < width; c++) other[c] += a->share[e] * own[c];
        }
        for (int c = 0; c < width; c++) q[width * s + c] = a->inverse[s] * own[c];
    }
}

/* The backward sweep over the rows of a part, after which q is the approximate solution; sum <- r . q */
INLINE void backward(Panel *b, const int width, int64_t part) {
    const Solve *a = b->solve;
    const int64_t from = a->first[part], entries = a->begin[from];
    double *q = b->q, dot[WIDEST] = {0};
    for (int64_t s = a->first[part + 1] - 1; s >= from; s--) {
        double own[WIDEST];
        for (int c = 0; c < width; c++) own[c] = q[width * s + c];
        for (int64_t e = a->begin[s]; e < a->begin[s + 1]; e++) {
            const double *other = q + (int64_t)width * a->neighbour[e];
            FETCH(q + (int64_t)width * a->neighbour[e >= entries + AHEAD ? e - AHEAD : e]);
            for (int c = 0; c < width; c++) own[c] += a->share[e] * other[c];
        }
        for (int c = 0; c < width; c++) q[width * s + c] = own[c], dot[c] += b->r[width * s + c] * own[c];
    }
    for (int c = 0; c < width; c++) b->sum[part][c] = dot[c];
}

/* p <- q + factor p */
INLINE void turn(Panel *b, const int width, int64_t part) {
    const int64_t from = width * b->solve->first[part], to = width * b->solve->first[part + 1];
    for (int64_t i = from; i < to; i += width)
        for (int c = 0; c < width; c++) b->p[i + c] = b->q[i + c] + b->factor[c] * b->p[i + c];
}

/* q <- L p; sum <- p . q */
INLINE void multiply(Panel *b, const int width, int64_t part) {
    const Solve *a = b->solve;
    const int64_t to = a->first[part + 1], entries = a->start[to];
    const double *p = b->p;
    double dot[WIDEST] = {0};
    for (int64_t i = a->first[part]; i < to; i++) {
        double sum[WIDEST];
        for (int c = 0; c < width; c++) sum[c] = a->diagonal[i] * p[width * i + c];
        for (int32_t e = a->start[i]; e < a->start[i + 1]; e++) {
            const double *other = p + (int64_t)width * a->column[e];
            FETCH(p + (int64_t)width * a->column[e + AHEAD < entries ? e + AHEAD : e]);
            for (int c = 0; c < width; c++) sum[c] -= a->value[e] * other[c];
        }
        for (int c = 0; c < width; c++) b->q[width * i + c] = sum[c], dot[c] += p[width * i + c] * sum[c];
    }
    for (int c = 0; c < width; c++) b->sum[part][c] = dot[c];
}

/* x <- x + factor p, r <- r - factor q; sum <- r . r */
INLINE void move(Panel *b, const int width, int64_t part) {
    const int64_t from = width * b->solve->first[part], to = width * b->solve->first[part + 1];
    double sum[WIDEST] = {0};
    for (int64_t i = from; i < to; i += width)
        for (int c = 0; c < width; c++) {
            b->x[i + c] += b->factor[c] * b->p[i + c];
            b->r[i + c] -= b->factor[c] * b->q[i + c];
            sum[c] += b->r[i + c] * b->r[i + c];
        }
    for (int c = 0; c < width; c++) b->sum[part][c] = sum[c];
}

#define BY_PARTS(name)                                                                                                           \
    static int name##_parts(const void *arguments, int64_t first, int64_t last) {                                                \
        Panel *b = (Panel *)arguments;                                                                                           \
        for (int64_t part = first; part < last; part++) {                                                                        \
            if (b->solve->width == 1) name(b, 1, part);                                                                          \
            if (b->solve->width == 2) name(b, 2, part);                                                                          \
            if (b->solve->width == 4) name(b, 4, part);                                                                          \
            if (b->solve->width == 8) name(b, 8, part);                                                                          \
        }                                                                                                                        \
        return 0;                                                                                                                \
    }
BY_PARTS(forward)
BY_PARTS(backward)
BY_PARTS(turn)
BY_PARTS(multiply)
BY_PARTS(move)

/* Do the work of the first `parts` parts, on all threads */
static void share(Panel *b, int64_t parts, Work work) { share_out(b->solve->threads, parts, 1, work, b); }

static void add_up(const Panel *b, double *sum) {
    for (int64_t c = 0; c < b->solve->width; c++) {
        sum[c] = 0;
        for (int64_t part = 0; part <= b->solve->parts; part++) sum[c] += b->sum[part][c];
    }
}

static void iterate(const Solve *a, int64_t panel) {
    const int64_t width = a->width, numbers = a->nodes * width, parts = a->parts, between = a->first[parts] * width;
    Panel b = {.solve = a, .x = a->x + numbers * panel, .r = a->r + numbers * panel, .p = a->p + numbers * panel,
               .q = a->q + numbers * panel};
    double *size = a->size + width * panel, *product = a->product + width * panel;
    double *alpha = a->alpha + a->steps * width * panel, *beta = a->beta + a->steps * width * panel;
    const double *goal = a->goal + width * panel;
    int64_t step = 0;
    for (; step < a->steps && !STOPPED; step++) {
        int open = 0;
        for (int64_t c = 0; c < width; c++) open |= size[c] > goal[c];
        if (!open) break;
        double dot[WIDEST];
        memcpy(b.q + between, b.r + between, (numbers - between) * sizeof *b.q);
        share(&b, parts, forward_parts);
        forward_parts(&b, parts, parts + 1);
        backward_parts(&b, parts, parts + 1);
        share(&b, parts, backward_parts);
        add_up(&b, dot);
        for (int64_t c = 0; c < width; c++) {
            beta[width * step + c] = b.factor[c] = product[c] > 0 ? dot[c] / product[c] : 0;
            product[c] = dot[c];
        }
        share(&b, parts + 1, turn_parts);
        share(&b, parts + 1, multiply_parts);
        add_up(&b, dot);
        for (int64_t c = 0; c < width; c++) /* demands that have converged are not changed */
            alpha[width * step + c] = b.factor[c] = size[c] > goal[c] && dot[c] > 0 ? product[c] / dot[c] : 0;
        share(&b, parts + 1, move_parts);
        add_up(&b, size);
    }
    a->done[panel] = step;
}

static int panels_of(const void *arguments, int64_t first, int64_t last) {
    for (int64_t panel = first; panel < last; panel++) iterate(arguments, panel);
    return 0;
}

/* Up to `steps` steps of conjugate gradients on panels of 1, 2, 4 or 8 demands, with separate coefficients for each demand, until
 * the squared norms of all residuals are at most `goal`. Before the first call x and p are zero, r is the demands, size their
 * squared norms, and product zero; q is scratch. done[panel] <- the number of steps; alpha and beta <- rows of `width`
 * coefficients per step, those of the residual and of the direction. */
EXPORT int ohm_conjugate(int64_t threads, int64_t nodes, int64_t parts, int64_t panels, int64_t width, int64_t steps,
                         const int64_t *first, const int32_t *start, const int32_t *column, const double *value,
                         const double *diagonal, const int64_t *begin, const int32_t *neighbour, const double *share,
                         const double *inverse, const double *goal, double *x, double *r, double *p, double *q, double *size,
                         double *product, int64_t *done, double *alpha, double *beta) {
    const Solve a = {threads, nodes, parts, width, steps, first, start, column, value, diagonal, begin, neighbour, share, inverse,
                     goal, x, r, p, q, size, product, done, alpha, beta};
    return share_out(threads, panels, 1, panels_of, &a) ? 1 : STOPPED ? WAS_STOPPED : 0;
}
