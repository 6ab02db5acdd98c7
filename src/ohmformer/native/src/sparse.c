/* A Chebyshev layer and the residual on large graphs. */
#include "kernel.h"

#include <string.h>

#define AHEAD 32 /* distance of prefetches, in entries of the matrix */
#define SHARE 1024 /* rows that a thread processes at a time: few enough that none waits for a delayed one */
#define FETCH(p) __builtin_prefetch(p, 0, 2) /* into the second-level cache, which supports more outstanding lines than the first */

/* ------------------------------------------------------------------------------------------------ a Chebyshev layer
 *
 * A row of a direction has a signed byte per demand. Demand 8 g + c is byte g % 4 of word 8 (g / 4) + c, so that shifts suffice to
 * extract it, and the same demands share a word for registers of four and of eight lanes. The bytes are multiplied by the row's
 * scale, which has a code of eight bits: they are the lowest bits of the first two lanes, whose demands are restricted to even
 * numbers. A separate array would cost one more fetch from main memory for every entry of the matrix.
 */

#define MOST (64 / LANES) /* vectors of a row */
#define PER (8 / LANES)   /* vectors of eight demands */
#define LEVELS 126.0f
#define ROUND 12582912.0f /* 1.5 * 2^23, near which float32 represents whole numbers only */
#define LOWEST 0x0101010101010101u

typedef int32_t Words __attribute__((vector_size(4 * LANES), aligned(4)));

static const Words CODE = {0x01010101, 0x01010101}; /* the bits of the code in the first word vector of a row */
#if LANES == 8
static const Vector COARSE = {2, 2, 1, 1, 1, 1, 1, 1}, FINE = {0.5f, 0.5f, 1, 1, 1, 1, 1, 1};
#else
static const Vector COARSE = {2, 2, 1, 1}, FINE = {0.5f, 0.5f, 1, 1};
#endif

typedef struct {
    int64_t demands, entries, first;
    float omega;
    const int32_t *start, *column; /* I - gamma N, by rows */
    const float *value;
    const Words *old; /* the previous direction */
    Words *new;
    Vector *residual;
    Vector *sum; /* of all directions; or NULL if this one and the previous one are to be added later */
} Arrays;

/* Codes represent scales of zero, 1.25 2^-63, 1.5 2^-63, 1.75 2^-63, 2^-62 and so on: float32 with a mantissa of two bits. */
static inline float scale_of(uint32_t code) {
    const uint32_t bits = code ? 0x20000000u + (code << 21) : 0;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

/* Return the code of the smallest scale that is at least `size`; of the largest scale if none is, and zero below all of them. */
static inline uint32_t code_of(float size) {
    uint32_t bits;
    memcpy(&bits, &size, sizeof bits);
    if (bits <= 0x20000000u) return 0;
    const uint32_t code = (bits - 0x20000000u + (1 << 21) - 1) >> 21;
    return code < 255 ? code : 255;
}

static inline uint32_t code_in(const Words *row) {
    const uint32_t *lane = (const uint32_t *)row;
    const uint64_t bytes = lane[0] | (uint64_t)lane[1] << 32;
    return (bytes & LOWEST) * 0x0102040810204080u >> 56; /* moves bit 8 t to bit 56 + t */
}

static inline Words bits_of(uint32_t code) {
    const uint64_t each = code * LOWEST & 0x8040201008040201u;        /* bit t of byte t */
    const uint64_t bits = (each + 0x00406070787c7e7fu) >> 7 & LOWEST; /* carried to the highest bit of its byte, and shifted down */
    return (Words){bits, bits >> 32};
}

/* Vector v of a row; PER vectors hold eight demands */
static inline Vector floats(const Words *row, int v) {
    const int g = v / PER, at = g / 4 * PER + v % PER;
    const Words word = at ? row[at] : row[0] & ~CODE;
    return __builtin_convertvector(word << (24 - 8 * (g % 4)) >> 24, Vector);
}

/* residual <- residual - gamma N old; new <- (omega - 1) old + omega residual, rounded to bytes; sum <- sum + old + new */
INLINE void rows(int64_t first, int64_t last, const int vectors, const Arrays a) {
    const int words = vectors / 4;
    const int64_t entries = a.entries;
    const float omega = a.omega;
    for (int64_t i = first; i < last; i++) {
        Vector left[MOST], own[MOST];
        const float own_scale = scale_of(code_in(a.old + words * i));
        for (int v = 0; v < vectors; v++) {
            own[v] = own_scale * floats(a.old + words * i, v);
            left[v] = a.residual[vectors * i + v] - own[v];
        }
        for (int64_t e = a.start[i]; e < a.start[i + 1]; e++) {
            const Words *row = a.old + words * (int64_t)a.column[e];
            FETCH(a.old + words * (int64_t)a.column[e + AHEAD < entries ? e + AHEAD : e]);
            const float weight = a.value[e] * scale_of(code_in(row));
            for (int v = 0; v < vectors; v++) left[v] += weight * floats(row, v);
        }
        Words largest = {0};
        for (int v = 0; v < vectors; v++) {
            a.residual[vectors * i + v] = left[v];
            left[v] = (omega - 1) * own[v] + omega * left[v];
            const Words size = (Words)left[v] & 0x7fffffff, larger = size > largest; /* bit patterns are ordered like magnitudes */
            largest = (size & larger) | (largest & ~larger);
        }
        float most = 0;
        for (int c = 0; c < LANES; c++) most = ((Vector)largest)[c] > most ? ((Vector)largest)[c] : most;
        const uint32_t code = code_of(most * (1 / LEVELS));
        const float scale = scale_of(code);
        float levels = code ? 1 / scale : 0;
        if (levels * most > LEVELS) levels = LEVELS / most; /* no scale is large enough: shorten the direction */
        for (int w = 0; w < words; w++) {
            Words bytes = w ? (Words){0} : bits_of(code);
            for (int byte = 0; byte < 4; byte++) {
                const int v = (4 * (w / PER) + byte) * PER + w % PER;
                const Vector number = levels * left[v];
                const Vector whole = w ? (number + ROUND) - ROUND : COARSE * ((FINE * number + ROUND) - ROUND);
                bytes |= (__builtin_convertvector(whole, Words) & 255) << 8 * byte;
                if (a.sum) a.sum[vectors * i + v] += own[v] + scale * whole;
            }
            a.new[words * i + w] = bytes;
        }
    }
}

static int direction(const void *arguments, int64_t first, int64_t last) {
    const Arrays *a = arguments;
    if (a->demands == 32) rows(a->first + first, a->first + last, 32 / LANES, *a);
    if (a->demands == 64) rows(a->first + first, a->first + last, 64 / LANES, *a);
    return 0;
}

/* Compute rows `first` to `last` - 1 of one layer for eight times `groups` demands, 32 or 64. */
EXPORT int ohm_direction(int64_t threads, int64_t first, int64_t last, int64_t groups, float omega, const int32_t *start,
                         const int32_t *column, const float *value, const void *old, void *new, void *residual, void *sum) {
    const Arrays a = {8 * groups, start[last], first, omega, start, column, value, old, new, residual, sum};
    return share_out(threads, last - first, SHARE, direction, &a);
}

/* ------------------------------------------------------------------------------------------------ the residual */

#define BLOCK 16 /* demands whose sums are kept in registers */

typedef double Quad __attribute__((vector_size(32), aligned(8)));

typedef struct {
    int64_t demands, stride, entries;
    const int32_t *start, *column;
    const double *value, *phi, *psi;
    double *left;
} Residual;

static int residual(const void *arguments, int64_t first, int64_t last) {
    const Residual *a = arguments;
    const int64_t demands = a->demands, stride = a->stride;
    for (int64_t i = first; demands == 1 && stride == 1 && i < last; i++) {
        double sum = a->psi[i];
        for (int64_t e = a->start[i]; e < a->start[i + 1]; e++) sum -= a->value[e] * a->phi[a->column[e]];
        a->left[i] = sum;
    }
    for (int64_t i = first; (demands > 1 || stride > 1) && i < last; i++) {
        for (int64_t b = 0; b < demands; b += BLOCK) {
            const int64_t wide = demands - b < BLOCK ? demands - b : BLOCK;
            Quad sum[BLOCK / 4] = {{0}};
            memcpy(sum, a->psi + stride * i + b, wide * sizeof(double));
            for (int64_t e = a->start[i]; e < a->start[i + 1]; e++) {
                const double value = a->value[e], *row = a->phi + stride * a->column[e] + b;
                if (b == 0) { /* prefetch the whole row, some entries ahead */
                    const char *soon = (const char *)(a->phi + stride * a->column[e + AHEAD < a->entries ? e + AHEAD : e]);
                    for (int64_t line = 0; line < 8 * demands; line += 64) FETCH(soon + line);
                }
                if (wide == BLOCK)
                    for (int q = 0; q < BLOCK / 4; q++) sum[q] -= value * ((const Quad *)row)[q];
                else
                    for (int64_t c = 0; c < wide; c++) ((double *)sum)[c] -= value * row[c];
            }
            memcpy(a->left + demands * i + b, sum, wide * sizeof(double));
        }
    }
    return 0;
}

/* left <- psi - L phi in float64, for `demands` demands; consecutive rows of phi and psi are `stride` numbers apart */
EXPORT int ohm_residual(int64_t threads, int64_t nodes, int64_t demands, int64_t stride, const int32_t *start,
                        const int32_t *column, const double *value, const double *phi, const double *psi, double *left) {
    const Residual a = {demands, stride, start[nodes], start, column, value, phi, psi, left};
    return share_out(threads, nodes, SHARE, residual, &a);
}
