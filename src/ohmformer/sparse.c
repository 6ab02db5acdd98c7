/* What the sparse engine does on large graphs: see compiled.py, which calls it by rows from several threads.
 *
 * C with the vectors of gcc and clang, without torch's headers.
 */
#include <stdint.h>
#include <string.h>

#define AHEAD 32 /* entries of the matrix by which rows are asked for in advance */

/* ------------------------------------------------------------------------------------------------ a Chebyshev layer
 *
 * A row of a direction is a scale and a signed byte for every demand. Demand 8 g + c is byte g % 4 of lane c of word vector
 * g / 4, so that shifts are all it takes to find it.
 */

#define K 8    /* lanes of a vector */
#define MOST 8 /* groups of K demands */
#define LEVELS 127.0f
#define NEGLIGIBLE 1e-30f /* rows with nothing larger are taken as zero */
#define ROUND 12582912.0f /* 1.5 * 2^23, next to which float32 holds whole numbers only */

typedef float Vector __attribute__((vector_size(4 * K), aligned(4)));
typedef int32_t Words __attribute__((vector_size(4 * K), aligned(4)));

typedef struct {
    const int32_t *start, *column; /* I - gamma N, by rows */
    const float *value;
    const Words *old; /* the direction before, and the scales of its rows */
    const float *old_scale;
    Words *new;
    float *new_scale;
    Vector *residual;
    Vector *sum; /* of all directions; or null if this one and the one before are to be added later */
} Arrays;

static inline Vector floats(const Words *row, int g) {
    return __builtin_convertvector(row[g / 4] << (24 - 8 * (g % 4)) >> 24, Vector);
}

/* residual <- residual - gamma N old; new <- (omega - 1) old + omega residual, rounded to bytes; sum <- sum + old + new */
static inline __attribute__((always_inline)) void rows(int64_t first, int64_t last, int64_t entries, const int groups,
                                                       float omega, Arrays a) {
    const int words = groups / 4;
    for (int64_t i = first; i < last; i++) {
        Vector left[MOST], own[MOST];
        for (int g = 0; g < groups; g++) {
            own[g] = a.old_scale[i] * floats(a.old + words * i, g);
            left[g] = a.residual[groups * i + g] - own[g];
        }
        for (int64_t e = a.start[i]; e < a.start[i + 1]; e++) {
            const int64_t j = a.column[e], soon = a.column[e + AHEAD < entries ? e + AHEAD : e];
            const float weight = a.value[e] * a.old_scale[j];
            __builtin_prefetch(a.old + words * soon);
            __builtin_prefetch(a.old_scale + soon);
            for (int g = 0; g < groups; g++) left[g] += weight * floats(a.old + words * j, g);
        }
        Words largest = {0};
        for (int g = 0; g < groups; g++) {
            a.residual[groups * i + g] = left[g];
            left[g] = (omega - 1) * own[g] + omega * left[g];
            const Words size = (Words)left[g] & 0x7fffffff, larger = size > largest; /* bits of sizes are in their order */
            largest = (size & larger) | (largest & ~larger);
        }
        float most = NEGLIGIBLE;
        for (int c = 0; c < K; c++) most = ((Vector)largest)[c] > most ? ((Vector)largest)[c] : most;
        const float scale = most > NEGLIGIBLE ? most / LEVELS : 0, levels = LEVELS / most;
        a.new_scale[i] = scale;
        for (int w = 0; w < words; w++) {
            Words bytes = {0};
            for (int g = 4 * w; g < 4 * w + 4; g++) {
                const Vector whole = (levels * left[g] + ROUND) - ROUND;
                bytes |= (__builtin_convertvector(whole, Words) & 255) << 8 * (g % 4);
                if (a.sum) a.sum[groups * i + g] += own[g] + scale * whole;
            }
            a.new[words * i + w] = bytes;
        }
    }
}

void ohm_direction(int64_t first, int64_t last, int64_t entries, int64_t groups, float omega, const int32_t *start,
                   const int32_t *column, const float *value, const void *old, const float *old_scale, void *new,
                   float *new_scale, void *residual, void *sum) {
    const Arrays a = {start, column, value, old, old_scale, new, new_scale, residual, sum};
    if (groups == 4) rows(first, last, entries, 4, omega, a);
    if (groups == 8) rows(first, last, entries, 8, omega, a);
}

/* ------------------------------------------------------------------------------------------------ the residual */

#define BLOCK 16 /* demands of which sums are kept in registers */

typedef double Quad __attribute__((vector_size(32), aligned(8)));

/* left <- psi - L phi in float64, for so many demands; a row of phi and psi begins stride numbers after the one before */
void ohm_residual(int64_t first, int64_t last, int64_t entries, int64_t demands, int64_t stride, const int32_t *start,
                  const int32_t *column, const double *value, const double *phi, const double *psi, double *left) {
    for (int64_t i = first; i < last; i++) {
        for (int64_t b = 0; b < demands; b += BLOCK) {
            const int64_t wide = demands - b < BLOCK ? demands - b : BLOCK;
            Quad sum[BLOCK / 4] = {{0}};
            memcpy(sum, psi + stride * i + b, wide * sizeof(double));
            for (int64_t e = start[i]; e < start[i + 1]; e++) {
                const double *row = phi + stride * column[e] + b;
                if (b == 0) { /* the whole row, some entries ahead */
                    const char *soon = (const char *)(phi + stride * column[e + AHEAD < entries ? e + AHEAD : e]);
                    for (int64_t line = 0; line < 8 * demands; line += 64) __builtin_prefetch(soon + line);
                }
                if (wide == BLOCK)
                    for (int q = 0; q < BLOCK / 4; q++) sum[q] -= value[e] * ((const Quad *)row)[q];
                else
                    for (int64_t c = 0; c < wide; c++) ((double *)sum)[c] -= value[e] * row[c];
            }
            memcpy(left + demands * i + b, sum, wide * sizeof(double));
        }
    }
}
