/* Attention of the Graph Transformer along bonds, and its gradient: see compiled.py.
 *
 * A head has 4, 8 or 16 columns, so that it lies within a vector; whatever there is one of in a head stands in all its
 * lanes. All arrays are kept as words along rows.
 */
#include <string.h>

#include "halves.h"

#define CLAMP 5.0f

/* in every lane the sum over its head */
INLINE Vector over_head(Vector x, int64_t lanes) {
    x += __builtin_shuffle(x, (Mask){1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14});
    x += __builtin_shuffle(x, (Mask){2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
    if (lanes > 4) x += __builtin_shuffle(x, (Mask){4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11});
    if (lanes > 8) x += __builtin_shuffle(x, (Mask){8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
    return x;
}

INLINE Vector chosen(Mask where, Vector yes, Vector no) { return (Vector)((where & (Mask)yes) | (~where & (Mask)no)); }

/* exp(x) for |x| <= CLAMP: 2^n e^r with |r| <= ln 2 / 2, where a polynomial of degree 7 is exact to a rounding */
INLINE Vector exponential(Vector x) {
    const float near = 12582912.0f; /* 1.5 * 2^23, next to which float32 holds whole numbers only */
    const Vector n = (x * 1.44269504f + near) - near, r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Vector p = 1.98412698e-4f * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * (Vector)((__builtin_convertvector(n, Mask) + 127) << 23);
}

INLINE Vector clamped(Vector x) {
    const Vector most = (Vector){0} + CLAMP;
    x = chosen(x > most, most, x);
    return chosen(x < -most, -most, x);
}

/* vectors side by side, so that they need not wait for each other */
#define TWO for (int s = 0, at = 0; s < 2; s++, at += LANES)

/* mixed_v = sum_u a v_u and, unless null, w_e = k_u q_v seen_e; all arrays are kept as words along rows */
INLINE void attend(const int half, int64_t threads, int64_t nodes, int64_t width, int64_t lanes, float scale,
                   const int64_t *first_edge, const int64_t *source, const float *qkv, const float *seen, float *mixed,
                   float *w) {
    (void)threads;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t v = 0; v < nodes; v++)
        for (int64_t c = 0; c < width; c += 2 * LANES) {
            Vector q[2], total[2] = {{0}, {0}}, sum[2] = {{0}, {0}};
            TWO q[s] = get(half, qkv, 3 * width * v + c + at);
            for (int64_t e = first_edge[v]; e < first_edge[v + 1]; e++) {
                const int64_t of = 3 * width * source[e] + width + c;
                TWO {
                    const Vector product = q[s] * get(half, qkv, of + at) * get(half, seen, width * e + c + at);
                    if (w) put(half, w, width * e + c + at, product);
                    const Vector a = exponential(clamped(scale * over_head(product, lanes)));
                    total[s] += a;
                    sum[s] += a * get(half, qkv, of + width + at);
                }
            }
            TWO put(half, mixed, width * v + c + at, first_edge[v] < first_edge[v + 1] ? sum[s] / total[s] : sum[s]);
        }
}

void ohm_attend(int64_t threads, int64_t nodes, int64_t width, int64_t lanes, int64_t half, float scale,
                const int64_t *first_edge, const int64_t *source, const float *qkv, const float *seen, float *mixed,
                float *w) {
    if (half)
        attend(1, threads, nodes, width, lanes, scale, first_edge, source, qkv, seen, mixed, w);
    else
        attend(0, threads, nodes, width, lanes, scale, first_edge, source, qkv, seen, mixed, w);
}

/* what a node knows of an edge to it, by columns: exp of the score, zero if it was clamped, what the gradient says of it */
typedef struct {
    Vector a[2], open[2], change[2];
} Known;

/* gradients of queries, keys and values, and of what edges are seen as; g_w may be null. Sums of a molecule's nodes are made
 * in float32. */
INLINE int attend_backward(const int half, int64_t threads, int64_t molecules, int64_t width, int64_t lanes, float scale,
                           const int64_t *first_edge, const int64_t *source, const float *qkv, const float *seen,
                           const int64_t *first_node, const float *g_mixed, const float *g_w, float *g_qkv, float *g_seen) {
    int64_t nodes = 1, edges = 1; /* most of a molecule, most to a node */
    for (int64_t m = 0; m < molecules; m++) {
        if (nodes < first_node[m + 1] - first_node[m]) nodes = first_node[m + 1] - first_node[m];
        for (int64_t v = first_node[m]; v < first_node[m + 1]; v++)
            if (edges < first_edge[v + 1] - first_edge[v]) edges = first_edge[v + 1] - first_edge[v];
    }
    const int64_t known_numbers = edges * (int64_t)(sizeof(Known) / sizeof(float)), own = known_numbers + 3 * width * nodes;
    float *all = memory(threads * own);
    if (!all) return 1;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t m = 0; m < molecules; m++) {
        Known *known = (Known *)(all + THREAD * own);
        float *sums = all + THREAD * own + known_numbers;
        const int64_t first = first_node[m], numbers = 3 * width * (first_node[m + 1] - first);
        memset(sums, 0, numbers * sizeof(float));
        for (int64_t v = first; v < first_node[m + 1]; v++)
            for (int64_t c = 0; c < width; c += 2 * LANES) {
                const int64_t begin = first_edge[v], degree = first_edge[v + 1] - begin;
                Vector q[2], g[2], total[2] = {{0}, {0}}, mean[2] = {{0}, {0}}, of_q[2] = {{0}, {0}};
                TWO q[s] = get(half, qkv, 3 * width * v + c + at), g[s] = get(half, g_mixed, width * v + c + at);
                for (int64_t e = 0; e < degree; e++) {
                    const int64_t of = 3 * width * source[begin + e] + width + c, to = width * (begin + e) + c;
                    TWO {
                        const Vector product = q[s] * get(half, qkv, of + at) * get(half, seen, to + at);
                        const Vector score = scale * over_head(product, lanes), a = exponential(clamped(score));
                        const Vector change = over_head(g[s] * get(half, qkv, of + width + at), lanes);
                        known[e].a[s] = a, known[e].change[s] = change;
                        known[e].open[s] = (Vector)((Mask)a & (score <= CLAMP) & (score >= -CLAMP));
                        total[s] += a;
                        mean[s] += a * change;
                    }
                }
                TWO total[s] = 1 / total[s], mean[s] *= total[s];
                for (int64_t e = 0; e < degree; e++) {
                    const int64_t of = 3 * width * source[begin + e] + width + c, to = width * (begin + e) + c;
                    float *sum = sums + of - 3 * width * first;
                    TWO {
                        const Vector k = get(half, qkv, of + at);
                        Vector of_w = scale * total[s] * known[e].open[s] * (known[e].change[s] - mean[s]);
                        if (g_w) of_w += get(half, g_w, to + at);
                        put(half, g_seen, to + at, q[s] * k * of_w);
                        of_w *= get(half, seen, to + at);
                        of_q[s] += k * of_w;
                        AT(sum + at) += q[s] * of_w;
                        AT(sum + width + at) += total[s] * known[e].a[s] * g[s];
                    }
                }
                TWO AT(sums + 3 * width * (v - first) + c + at) = of_q[s];
            }
        for (int64_t i = 0; i < numbers; i += LANES) put(half, g_qkv, 3 * width * first + i, IN(sums + i));
    }
    free(all);
    return 0;
}

int ohm_attend_backward(int64_t threads, int64_t molecules, int64_t width, int64_t lanes, int64_t half, float scale,
                        const int64_t *first_edge, const int64_t *source, const float *qkv, const float *seen,
                        const int64_t *first_node, const float *g_mixed, const float *g_w, float *g_qkv, float *g_seen) {
    if (half)
        return attend_backward(1, threads, molecules, width, lanes, scale, first_edge, source, qkv, seen, first_node,
                               g_mixed, g_w, g_qkv, g_seen);
    return attend_backward(0, threads, molecules, width, lanes, scale, first_edge, source, qkv, seen, first_node, g_mixed,
                           g_w, g_qkv, g_seen);
}
