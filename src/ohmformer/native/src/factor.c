/* The factor of a large Laplacian by elimination without subtractions, block by block.
 *
 * Conductances c_ij connect nodes in elimination order. Eliminating j connects its later neighbours: neighbour i gets the fraction
 * f_ij = c_ij / D_j of j's conductance D_j, the sum of its c_ij, and the conductance between i and k increases by f_ij c_kj. The
 * last node of a component has no later neighbour and is its ground. There are no subtractions, so fractions and conductances are
 * accurate to rounding for any range of resistances. A tangent, if one is given, is propagated by the rules of
 * differentiation.
 *
 * The algorithm is multifrontal: columns with the same rows (a block) are eliminated together in a small dense matrix, their front;
 * its update of later nodes is kept on a stack until the front of the parent block in the elimination tree adds it. Nodes are in
 * postorder of that tree, so the updates that a front needs are on top of the stack. Nodes from `eliminated` on, if any, are kept:
 * the conductances between them after elimination of the others are in their columns.
 */
#include "factor.h"
#include "kernel.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------ the factor */

#define WIDE (LANES / 2) /* float64 numbers per register */
#define TALL (3 * WIDE)  /* rows and */
#define BROAD 4          /* columns whose sums are kept in registers */
#define AT_ONCE 32       /* columns that are eliminated before the remaining columns are updated */
#define SHARED (1 << 20) /* number of products above which they are shared among threads */

typedef double Doubles __attribute__((vector_size(4 * LANES), aligned(8)));

/* to[i + stride j] += sum_k f[i + stride k] c[j + stride k] for columns `from` <= j < size and rows i > j; entries above the
 * diagonal may be overwritten. */
typedef struct {
    int64_t from, size, stride, rank;
    const double *f, *c;
    double *to;
} Product;

static int add_products(const void *arguments, int64_t first, int64_t last) {
    const Product *a = arguments;
    for (int64_t tile = first; tile < last; tile++) {
        const int64_t i = a->from + TALL * tile, rows = a->size - i < TALL ? a->size - i : TALL;
        Doubles f[AT_ONCE][3] = {{{0}}};
        for (int64_t k = 0; k < a->rank; k++) memcpy(f[k], a->f + i + a->stride * k, rows * sizeof(double));
        for (int64_t j = a->from; j < i + rows; j += BROAD) {
            const int64_t columns = a->size - j < BROAD ? a->size - j : BROAD;
            Doubles sum[BROAD][3] = {{{0}}};
            const double *c = a->c + j;
            for (int64_t k = 0; k < a->rank; k++, c += a->stride)
                for (int b = 0; b < BROAD; b++)
                    for (int v = 0; v < 3; v++) sum[b][v] += f[k][v] * c[b];
            for (int64_t b = 0; b < columns; b++) {
                double *to = a->to + i + a->stride * (j + b);
                if (rows == TALL)
                    for (int v = 0; v < 3; v++) ((Doubles *)to)[v] += sum[b][v];
                else
                    for (int64_t r = 0; r < rows; r++) to[r] += ((double *)sum[b])[r];
            }
        }
    }
    return 0;
}

static void update(int64_t threads, const Product a) {
    const int64_t rows = a.size - a.from;
    if (rows < TALL || a.rank == 1) {
        for (int64_t k = 0; k < a.rank; k++)
            for (int64_t j = a.from; j < a.size; j++) {
                const double c = a.c[j + a.stride * k], *f = a.f + a.stride * k;
                for (int64_t i = j + 1; i < a.size; i++) a.to[i + a.stride * j] += f[i] * c;
            }
        return;
    }
    share_out(a.rank * rows * rows > SHARED ? threads : 1, (rows + TALL - 1) / TALL, 4, add_products, &a);
}

/* Add the updates from columns `from` to j - 1, which have been eliminated, to column j of a front, four at a time. */
static void add_columns(int64_t from, int64_t j, int64_t size, int64_t stride, const double *f, const double *c, double *to) {
    int64_t k = from;
    for (; k + 4 <= j; k += 4) {
        const double *f0 = f + stride * k, *f1 = f0 + stride, *f2 = f1 + stride, *f3 = f2 + stride, *c0 = c + stride * (k - from) + j;
        const double a0 = c0[0], a1 = c0[stride], a2 = c0[2 * stride], a3 = c0[3 * stride];
        for (int64_t i = j + 1; i < size; i++) to[i] += a0 * f0[i] + a1 * f1[i] + a2 * f2[i] + a3 * f3[i];
    }
    for (; k < j; k++) {
        const double *own = f + stride * k, a = c[stride * (k - from) + j];
        for (int64_t i = j + 1; i < size; i++) to[i] += a * own[i];
    }
}

typedef struct {
    int64_t threads, nodes, eliminated;
    const int32_t *start, *column; /* conductances by rows */
    const double *value, *tangent;
    const int32_t *order, *rank; /* the nodes in elimination order, and its inverse */
    const int64_t *first;
    const int32_t *row;
    double *fraction, *d_fraction, *pivot, *d_pivot;
    double *front, *d_front, *c, *d_c, *stack, *d_stack;
} Factor;

/* Eliminate the first `columns` columns of a front with `size` rows; their conductances are written to `pivot`. */
INLINE void eliminate(const int dual, const Factor *t, int64_t columns, int64_t size, int64_t stride, double *pivot, double *d_pivot) {
    for (int64_t from = 0; from < columns; from += AT_ONCE) {
        const int64_t end = from + AT_ONCE < columns ? from + AT_ONCE : columns;
        for (int64_t j = from; j < end; j++) {
            double *own = t->front + stride * j, *d_own = dual ? t->d_front + stride * j : own;
            double *c = t->c + stride * (j - from), *d_c = dual ? t->d_c + stride * (j - from) : c, sum = 0, d_sum = 0;
            if (dual) add_columns(from, j, size, stride, t->front, t->d_c, d_own), add_columns(from, j, size, stride, t->d_front, t->c, d_own);
            add_columns(from, j, size, stride, t->front, t->c, own);
            for (int64_t i = j + 1; i < size; i++) sum += own[i];
            for (int64_t i = j + 1; dual && i < size; i++) d_sum += d_own[i];
            for (int64_t i = j + 1; i < size; i++) {
                c[i] = own[i], own[i] /= sum;
                if (dual) d_c[i] = d_own[i], d_own[i] = (d_own[i] - own[i] * d_sum) / sum;
            }
            pivot[j] = sum;
            if (dual) d_pivot[j] = d_sum;
        }
        const Product a = {end, size, stride, end - from, t->front + stride * from, t->c, t->front};
        update(t->threads, a);
        if (!dual) continue;
        Product b = a;
        b.to = t->d_front, b.c = t->d_c;
        update(t->threads, b);
        b.f = t->d_front + stride * from, b.c = t->c;
        update(t->threads, b);
    }
}

/* Add the update of a child block, between `count` nodes at positions `place` of the front, to the front. */
static void take_up(int64_t count, const int32_t *place, int64_t stride, const double *left, double *front) {
    for (int64_t j = 0; j < count; j++) {
        double *to = front + stride * place[j];
        for (int64_t i = j + 1; i < count; i++) to[place[i]] += *left++;
    }
}

#define STRIDE(size) ((size) | 1) /* odd, as rows a power of two apart would conflict in the cache */
#define BETWEEN(rows) ((rows) * ((rows) - 1) / 2)

/* Ends and child counts of blocks, and the memory required for fronts and stack */
typedef struct {
    int64_t blocks, largest, height;
    int32_t *end, *below; /* for every block its end, and the number of blocks whose updates it adds */
} Blocks;

static int find_blocks(int64_t n, const int64_t *first, const int32_t *row, Blocks *b) { /* of the first n columns */
    int32_t *block_of = malloc((n + 1) * sizeof *block_of);
    b->end = malloc((n + 1) * sizeof *b->end), b->below = calloc(n + 1, sizeof *b->below);
    int64_t *top = malloc((n + 1) * sizeof *top);
    if (!block_of || !b->end || !b->below || !top) {
        free(block_of), free(top);
        return 1;
    }
    b->blocks = 0, b->largest = 1, b->height = 0;
    for (int64_t k = 0, end; k < n; k = end) {
        end = end_of_block(n, first, row, k, n);
        for (int64_t j = k; j < end; j++) block_of[j] = (int32_t)b->blocks;
        const int64_t size = first[k + 1] - first[k] + 1;
        if (size > b->largest) b->largest = size;
        b->end[b->blocks++] = (int32_t)end;
    }
    int64_t waiting = 0;
    top[0] = 0;
    for (int64_t at = 0; at < b->blocks; at++) {
        const int64_t last = b->end[at] - 1, rows = first[last + 1] - first[last];
        waiting -= b->below[at]; /* its children, which come before it */
        if (!rows || row[first[last]] >= n) continue; /* the last of its component, or of all eliminated nodes */
        b->below[block_of[row[first[last]]]]++;
        top[waiting + 1] = top[waiting] + BETWEEN(rows), waiting++;
        if (top[waiting] > b->height) b->height = top[waiting];
    }
    free(block_of), free(top);
    return 0;
}

/* Write the edges between kept nodes to their columns, before elimination */
static void keep(const Factor *t, const double *value, double *fraction, double *pivot) {
    for (int64_t j = t->eliminated; j < t->nodes; j++) {
        const int64_t begin = t->first[j], end = t->first[j + 1], node = t->order[j];
        memset(fraction + begin, 0, (end - begin) * sizeof *fraction);
        pivot[j] = 0;
        for (int64_t e = t->start[node]; e < t->start[node + 1]; e++) {
            const int32_t other = t->rank[t->column[e]];
            int64_t low = begin, high = end;
            while (other > j && low < high) { /* its position in the column */
                const int64_t middle = (low + high) / 2;
                if (t->row[middle] < other) low = middle + 1;
                else high = middle;
            }
            if (other > j) fraction[low] += value[e];
        }
    }
}

/* Add the update of the last block before kept nodes to the columns of these. */
static void leave_between_kept(const Factor *t, int64_t columns, int64_t size, int64_t stride, const int32_t *row,
                               const double *front, double *fraction) {
    for (int64_t j = columns; j < size; j++)
        for (int64_t i = j + 1, at = t->first[row[j - columns]]; i < size; i++) {
            while (t->row[at] < row[i - columns]) at++;
            fraction[at] += front[stride * j + i];
        }
}

INLINE int factorise(const int dual, Factor a) {
    const int64_t n = a.nodes;
    Blocks b = {0};
    int failed = find_blocks(a.eliminated, a.first, a.row, &b);
    const int64_t most = failed ? 1 : STRIDE(b.largest), copies = dual ? 2 : 1;
    int32_t *place = malloc((n + most + 1) * sizeof *place), *places = place + n;
    int32_t *waiting = malloc((n + 1) * sizeof *waiting); /* the last columns of blocks whose updates are on the stack */
    double *memory = malloc((most * (most + AT_ONCE) + 2 * BROAD + b.height) * copies * sizeof *memory);
    if (failed || !place || !waiting || !memory) {
        free(b.end), free(b.below), free(place), free(waiting), free(memory);
        return 1;
    }
    a.front = memory, a.c = a.front + most * most, a.stack = a.c + most * AT_ONCE + BROAD; /* c is read slightly beyond its end */
    a.d_front = a.stack + b.height, a.d_c = a.d_front + most * most, a.d_stack = a.d_c + most * AT_ONCE + BROAD;
    int64_t count = 0, used = 0;
    keep(&a, a.value, a.fraction, a.pivot);
    if (dual) keep(&a, a.tangent, a.d_fraction, a.d_pivot);
    for (int64_t at = 0, begin = 0; at < b.blocks && !STOPPED; begin = b.end[at++]) {
        const int64_t end = b.end[at], columns = end - begin, rows = a.first[end] - a.first[end - 1], size = columns + rows;
        const int64_t stride = STRIDE(size);
        const int32_t *row = a.row + a.first[end - 1];
        for (int64_t k = 0; k < columns; k++) place[begin + k] = (int32_t)k;
        for (int64_t k = 0; k < rows; k++) place[row[k]] = (int32_t)(columns + k);
        memset(a.front, 0, stride * size * sizeof(double));
        if (dual) memset(a.d_front, 0, stride * size * sizeof(double));
        for (int64_t k = 0; k < columns; k++)
            for (int64_t node = a.order[begin + k], e = a.start[node]; e < a.start[node + 1]; e++) {
                const int32_t other = a.rank[a.column[e]];
                if (other <= begin + k) continue;
                a.front[stride * k + place[other]] += a.value[e];
                if (dual) a.d_front[stride * k + place[other]] += a.tangent[e];
            }
        for (int32_t below = b.below[at]; below > 0; below--) {
            const int32_t last = waiting[--count];
            const int64_t left = a.first[last + 1] - a.first[last];
            for (int64_t k = 0; k < left; k++) places[k] = place[a.row[a.first[last] + k]];
            used -= BETWEEN(left);
            take_up(left, places, stride, a.stack + used, a.front);
            if (dual) take_up(left, places, stride, a.d_stack + used, a.d_front);
        }
        eliminate(dual, &a, columns, size, stride, a.pivot + begin, dual ? a.d_pivot + begin : a.pivot);
        for (int64_t k = 0; k < columns; k++) {
            memcpy(a.fraction + a.first[begin + k], a.front + stride * k + k + 1, (size - k - 1) * sizeof(double));
            if (dual) memcpy(a.d_fraction + a.first[begin + k], a.d_front + stride * k + k + 1, (size - k - 1) * sizeof(double));
        }
        if (!rows) continue;
        if (row[0] >= a.eliminated) {
            leave_between_kept(&a, columns, size, stride, row, a.front, a.fraction);
            if (dual) leave_between_kept(&a, columns, size, stride, row, a.d_front, a.d_fraction);
            continue;
        }
        waiting[count++] = (int32_t)(end - 1);
        for (int64_t j = columns; j < size; used += size - ++j) {
            memcpy(a.stack + used, a.front + stride * j + j + 1, (size - j - 1) * sizeof(double));
            if (dual) memcpy(a.d_stack + used, a.d_front + stride * j + j + 1, (size - j - 1) * sizeof(double));
        }
    }
    free(b.end), free(b.below), free(place), free(waiting), free(memory);
    return STOPPED ? WAS_STOPPED : 0;
}

/* fraction and pivot <- the factor, on the pattern of ohm_pattern in postorder, and their tangents if a tangent of the conductances
 * is given. Parallel edges may be listed separately. */
EXPORT int ohm_factorise(int64_t threads, int64_t nodes, int64_t eliminated, const int32_t *start, const int32_t *column,
                         const double *value, const double *tangent, const int32_t *order, const int32_t *rank, const int64_t *first,
                         const int32_t *row, double *fraction, double *d_fraction, double *pivot, double *d_pivot) {
    const Factor a = {threads, nodes, eliminated, start, column, value, tangent, order, rank, first, row, fraction, d_fraction,
                      pivot, d_pivot, NULL, NULL, NULL, NULL, NULL, NULL};
    return tangent ? factorise(1, a) : factorise(0, a);
}
