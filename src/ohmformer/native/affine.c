/* Affine maps and norms of the Graph Transformer and their gradients: see compiled.py, which calls them one by one.
 *
 * All arrays lie row by row. Batch norms are not applied where they are measured: an array is kept as it was before its
 * norm, and whoever reads it multiplies by a scale and adds a shift, column by column; backwards likewise. Threads take
 * consecutive rows, so that sums depend on how many threads there are and on nothing else.
 */
#include <math.h>

#include "products.h"

/* how many numbers a word holds with half */
int ohm_pair(void) { return PAIR(1); }

/* ------------------------------------------------------------------------------------------------ norms */

/* scale and shift of a norm, and one over the spread, from mean and squared deviations of so many rows; running statistics
 * go towards those of the rows by momentum */
void ohm_norm(int64_t threads, int64_t width, float count, float eps, float momentum, const float *mean,
              const float *squares, const float *weight, const float *bias, float *running_mean, float *running_variance,
              float *scale, float *shift, float *inverse) {
    (void)threads;
    for (int64_t c = 0; c < width; c++) {
        const float variance = squares[c] / count;
        inverse[c] = 1 / sqrtf(variance + eps);
        scale[c] = weight[c] * inverse[c];
        shift[c] = bias[c] - mean[c] * scale[c];
        if (momentum > 0) {
            running_mean[c] += momentum * (mean[c] - running_mean[c]);
            running_variance[c] += momentum * (variance * (count / (count - 1)) - running_variance[c]);
        }
    }
}

/* The gradient of a norm's weights, and by what rows are multiplied and what is added to have the gradient before it,
 * scale (g - mean g - z inverse mean(g z inverse)) with z = y - mean: linear in g and y. The sums are of g and of g z, own
 * those of this process; a count of zero means fixed statistics, through which nothing flows. */
void ohm_norm_backward(int64_t threads, int64_t width, float count, const float *own, const float *sums, const float *scale,
                       const float *inverse, const float *mean, float *g_weight, float *slope, float *shift) {
    (void)threads;
    for (int64_t c = 0; c < width; c++) {
        const float part = count > 0 ? scale[c] / count : 0;
        g_weight[c] = own[width + c] * inverse[c];
        slope[c] = -part * sums[width + c] * inverse[c] * inverse[c];
        shift[c] = -part * sums[c] - slope[c] * mean[c];
    }
}

/* ------------------------------------------------------------------------------------------------ affine maps
 *
 * There are two kinds. One, into attention: y = norm(x) W^T + b, with y kept as words along rows. The other, out of it:
 * y = norm(r) + x W^T + b, with x kept as words along rows, and a norm that follows. The gradients of what is kept as words
 * are so too.
 */

/* y; and mean and squared deviations of its columns if asked for. Returns 1 if there is no memory. */
int ohm_affine(int64_t threads, int64_t rows, int64_t in, int64_t out, int64_t half, const float *x, const float *x_scale,
               const float *x_shift, const float *weight, const float *bias, const float *r, const float *r_scale,
               const float *r_shift, float *y, float *mean, float *squares) {
    const int64_t own = BLOCK * (in + out) + 3 * out;
    float *packed = memory(in * out + threads * own);
    if (!packed) return 1;
    int used = 1; /* threads that there are, which may be fewer */
#pragma omp parallel num_threads(threads)
    {
        if (THREAD == 0) used = THREADS;
        float *words = packed + in * out + THREAD * own, *plain = words + BLOCK * in, *moments = plain + BLOCK * out;
#pragma omp for schedule(static)
        for (int64_t panel = 0; panel < out / PANEL; panel++) pack(1, half, in, panel, weight, in, packed);
        const int64_t first = share(rows, THREAD, THREADS), last = share(rows, THREAD + 1, THREADS);
        for (int64_t i = first; i < last; i += BLOCK) {
            const int64_t here = least(BLOCK, last - i), next = i + here, then = least(BLOCK, last - next);
            const int64_t parts = BLOCK / TILE * (out / PANEL);
            Ahead ahead = {0};
            soon(&ahead, x + next * in / (r ? PAIR(half) : 1), then * in / (r ? PAIR(half) : 1), parts);
            soon(&ahead, y + next * out / (r ? 1 : PAIR(half)), then * out / (r ? 1 : PAIR(half)), parts);
            soon(&ahead, r ? r + next * out : NULL, then * out, parts);
            if (r) {
                float *to = y + i * out;
                plus_bias(here, out, r + i * out, r_scale, r_shift, bias, to);
                product(half, here, in, out, x + i * in / PAIR(half), packed, to, out, to, &ahead);
                if (mean) add_moments(here, out, to, i == first, moments, moments + out);
            } else {
                float *to = half ? plain : y + i * out;
                const float *from = along_rows(half, here, in, x + i * in, x_scale, x_shift, words);
                product(half, here, in, out, from, packed, bias, 0, to, &ahead);
                if (half) along_rows(half, here, out, to, NULL, NULL, y + i * out / PAIR(half));
            }
        }
    }
    if (mean) join_moments(used, rows, out, packed + in * out + BLOCK * (in + out), own, mean, squares);
    free(packed);
    return 0;
}

/* What the gradient of y gives to x and the weights. Of the first kind, g is the gradient of y, as words; that of norm(x) is
 * g W plus what comes from elsewhere, g_more, and its sums over rows, as they are and times x - x_mean, go to sums, if x has
 * a norm. Of the second, g is the gradient behind the norm of y, and what it is before it goes to g_kept. */
int ohm_affine_backward(int64_t threads, int64_t rows, int64_t in, int64_t out, int64_t half, const float *g, const float *y,
                        const float *y_scale, const float *y_slope, const float *y_shift, const float *x,
                        const float *x_scale, const float *x_shift, const float *x_mean, const float *weight,
                        const float *g_more, float *g_kept, float *g_x, float *g_weight, float *g_bias, float *sums) {
    const int64_t buffers = BLOCK * (2 * in + 2 * out) + in, own = buffers + in * out + out + 2 * in;
    float *packed = memory(in * out + threads * own);
    if (!packed) return 1;
    int used = 1;
#pragma omp parallel num_threads(threads)
    {
        if (THREAD == 0) used = THREADS;
        float *words = packed + in * out + THREAD * own, *across = words + BLOCK * out, *words_of_x = across + BLOCK * out;
        float *plain = words_of_x + BLOCK * in, *zero = plain + BLOCK * in;
        float *d = zero + in, *d_bias = d + in * out, *d_sums = d_bias + out;
        memset(zero, 0, (in + own - buffers) * sizeof(float));
#pragma omp for schedule(static)
        for (int64_t panel = 0; panel < in / PANEL; panel++) pack(0, half, out, panel, weight, in, packed);
        const int64_t first = share(rows, THREAD, THREADS), last = share(rows, THREAD + 1, THREADS);
        for (int64_t i = first; i < last; i += BLOCK) {
            const int64_t here = least(BLOCK, last - i), next = i + here, then = least(BLOCK, last - next);
            const int64_t parts = BLOCK / TILE * (in / PANEL);
            const int64_t whole = y_scale ? 1 : PAIR(half), kept = y_scale ? PAIR(half) : 1;
            Ahead ahead = {0};
            soon(&ahead, g + next * out / whole, then * out / whole, parts);
            soon(&ahead, x + next * in / kept, then * in / kept, parts);
            soon(&ahead, g_x + next * in / kept, then * in / kept, parts);
            soon(&ahead, y_scale ? y + next * out : NULL, then * out, parts);
            soon(&ahead, g_kept ? g_kept + next * out : NULL, then * out, parts);
            soon(&ahead, g_more ? g_more + next * in : NULL, then * in, parts);
            const float *along = words, *of_y = across, *of_x;
            float *to = g_x + i * in;
            if (y_scale) {
                const Norm norm = {y + i * out, y_scale, y_slope, y_shift};
                forms(half, here, out, g + i * out, norm, g_kept + i * out, words, across, d_bias);
                of_x = across_of_along(half, here, in, x + i * in / PAIR(half), words_of_x, NULL);
                to = half ? plain : to;
            } else {
                along = g + i * out / PAIR(half);
                of_y = across_of_along(half, here, out, along, across, d_bias);
                of_x = across_rows(half, here, in, x + i * in, x_scale, x_shift, words_of_x);
            }
            product_of_columns(half, here, in, out, of_y, of_x, d);
            product(half, here, out, in, along, packed, g_more ? g_more + i * in : zero, g_more ? in : 0, to, &ahead);
            if (sums) add_slopes(here, in, to, x + i * in, x_mean, d_sums);
            if (to == plain) along_rows(half, here, in, to, NULL, NULL, g_x + i * in / PAIR(half));
        }
    }
    const float *found = packed + in * out + buffers;
    join(used, in * out, found, own, g_weight);
    join(used, out, found + in * out, own, g_bias);
    if (sums) join(used, 2 * in, found + in * out + out, own, sums);
    free(packed);
    return 0;
}

/* ------------------------------------------------------------------------------------------------ two layers with a cut
 *
 * y = x + D u + d with u = max(0, U x + c) and x = norm(z), all of one width. What is kept of u is words across rows.
 */

int ohm_mlp(int64_t threads, int64_t rows, int64_t width, int64_t half, const float *z, const float *z_scale,
            const float *z_shift, const float *up, const float *up_bias, const float *down, const float *down_bias, float *u,
            float *y, float *mean, float *squares) {
    const int64_t square = width * width, own = 2 * BLOCK * width + 3 * width;
    float *packed = memory(2 * square + threads * own), *packed_down = packed + square;
    if (!packed) return 1;
    int used = 1;
#pragma omp parallel num_threads(threads)
    {
        if (THREAD == 0) used = THREADS;
        float *words = packed + 2 * square + THREAD * own, *inner = words + BLOCK * width, *moments = inner + BLOCK * width;
#pragma omp for schedule(static)
        for (int64_t panel = 0; panel < width / PANEL; panel++) {
            pack(1, half, width, panel, up, width, packed);
            pack(1, half, width, panel, down, width, packed_down);
        }
        const int64_t first = share(rows, THREAD, THREADS), last = share(rows, THREAD + 1, THREADS);
        for (int64_t i = first; i < last; i += BLOCK) {
            const int64_t here = least(BLOCK, last - i), next = i + here, then = least(BLOCK, last - next);
            const int64_t parts = 2 * BLOCK / TILE * (width / PANEL);
            Ahead ahead = {0};
            soon(&ahead, z + next * width, then * width, parts);
            soon(&ahead, y + next * width, then * width, parts);
            soon(&ahead, u + next / PAIR(half) * width, then / PAIR(half) * width, parts);
            const float *x = z + i * width;
            float *to = y + i * width;
            const float *from = along_rows(half, here, width, x, z_scale, z_shift, words);
            product(half, here, width, width, from, packed, up_bias, 0, inner, &ahead);
            cut_forms(half, here, width, inner, words, u + i / PAIR(half) * width);
            plus_bias(here, width, x, z_scale, z_shift, down_bias, to);
            product(half, here, width, width, words, packed_down, to, width, to, &ahead);
            if (mean) add_moments(here, width, to, i == first, moments, moments + width);
        }
    }
    if (mean) join_moments(used, rows, width, packed + 2 * square + 2 * BLOCK * width, own, mean, squares);
    free(packed);
    return 0;
}

/* g is the gradient behind the norm of y, g_x that of x, whose sums are as above; d holds the gradients of U, D, c, d, in
 * this order, and the sums */
int ohm_mlp_backward(int64_t threads, int64_t rows, int64_t width, int64_t half, const float *g, const float *y,
                     const float *y_scale, const float *y_slope, const float *y_shift, const float *u, const float *z,
                     const float *z_scale, const float *z_shift, const float *z_mean, const float *up, const float *down,
                     float *g_x, float *d) {
    const int64_t square = width * width, results = 2 * square + 4 * width;
    const int64_t buffers = (4 * BLOCK + 1) * width, own = buffers + results;
    float *packed = memory(2 * square + threads * own), *packed_down = packed + square;
    if (!packed) return 1;
    int used = 1;
#pragma omp parallel num_threads(threads)
    {
        if (THREAD == 0) used = THREADS;
        float *along = packed + 2 * square + THREAD * own, *across = along + BLOCK * width, *inner = across + BLOCK * width;
        float *words_of_x = inner + BLOCK * width, *zero = words_of_x + BLOCK * width;
        float *d_up = zero + width, *d_down = d_up + square, *d_bias = d_down + square;
        memset(zero, 0, (width + results) * sizeof(float));
#pragma omp for schedule(static)
        for (int64_t panel = 0; panel < width / PANEL; panel++) {
            pack(0, half, width, panel, up, width, packed);
            pack(0, half, width, panel, down, width, packed_down);
        }
        const int64_t first = share(rows, THREAD, THREADS), last = share(rows, THREAD + 1, THREADS);
        for (int64_t i = first; i < last; i += BLOCK) {
            const int64_t here = least(BLOCK, last - i), next = i + here, then = least(BLOCK, last - next);
            const int64_t parts = 2 * BLOCK / TILE * (width / PANEL);
            Ahead ahead = {0};
            soon(&ahead, g + next * width, then * width, parts);
            soon(&ahead, y + next * width, then * width, parts);
            soon(&ahead, z + next * width, then * width, parts);
            soon(&ahead, g_x + next * width, then * width, parts);
            soon(&ahead, u + next / PAIR(half) * width, then / PAIR(half) * width, parts);
            const float *x = z + i * width, *of_u = u + i / PAIR(half) * width;
            float *to = g_x + i * width;
            const Norm norm = {y + i * width, y_scale, y_slope, y_shift}, none = {0};
            forms(half, here, width, g + i * width, norm, to, along, across, d_bias + width);
            product_of_columns(half, here, width, width, across, of_u, d_down);
            product(half, here, width, width, along, packed_down, zero, 0, inner, &ahead);
            cut_across(half, here, width, of_u, inner);
            forms(half, here, width, inner, none, NULL, along, across, d_bias);
            const float *of_x = across_rows(half, here, width, x, z_scale, z_shift, words_of_x);
            product_of_columns(half, here, width, width, across, of_x, d_up);
            product(half, here, width, width, along, packed, to, width, to, &ahead);
            add_slopes(here, width, to, x, z_mean, d_bias + 2 * width);
        }
    }
    join(used, results, packed + 2 * square + buffers, own, d);
    free(packed);
    return 0;
}
