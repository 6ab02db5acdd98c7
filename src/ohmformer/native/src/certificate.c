/* What certificates are made of: residuals summed without loss, and energies. */
#include "kernel.h"

#include <string.h>

#define AHEAD 16 /* distance of prefetches, in entries */
#define CHUNK 16 /* demands whose sums are kept in registers */
#define SUMS 3

typedef struct {
    int64_t demands, entries;
    const int64_t *begin;
    const int32_t *start, *column;
    const double *value, *phi, *psi;
    double *left, *sums;
} Measure;

/* Compute the residual and the sums of one row, for `width` demands */
INLINE void measure_row(const int width, const Measure *a, int64_t i, int64_t at, double *sums) {
    const int64_t demands = a->demands;
    const double *psi = a->psi + demands * i + at, *phi = a->phi + at;
    double own[CHUNK], sum[CHUNK], rest[CHUNK] = {0}, energy[CHUNK] = {0};
    for (int c = 0; c < width; c++) own[c] = phi[demands * i + c], sum[c] = psi[c];
    for (int64_t e = a->start[i]; e < a->start[i + 1]; e++) {
        const double value = a->value[e], *other = phi + demands * a->column[e];
        if (at == 0) { /* prefetch the whole row, some entries ahead */
            const char *soon = (const char *)(phi + demands * a->column[e + AHEAD < a->entries ? e + AHEAD : e]);
            for (int64_t line = 0; line < 8 * demands; line += 64) __builtin_prefetch(soon + line, 0, 2);
        }
        for (int c = 0; c < width; c++) { /* sum + rest is exact up to eps^2: rest collects the rounding errors */
            const double drop = own[c] - other[c], flow = value * drop, s = sum[c] - flow, part = s - sum[c];
            rest[c] += (sum[c] - (s - part)) + (-flow - part);
            sum[c] = s;
            energy[c] += drop * flow;
        }
    }
    for (int c = 0; c < width; c++) {
        const double left = sum[c] + rest[c];
        a->left[demands * i + at + c] = left;
        sums[at + c] += left * left;
        sums[demands + at + c] += energy[c] / 2; /* every edge is visited from both ends */
        sums[2 * demands + at + c] += psi[c] * psi[c];
    }
}

static int measure(const void *arguments, int64_t first, int64_t last) {
    const Measure *a = arguments;
    for (int64_t b = first; b < last; b++) {
        double *sums = a->sums + SUMS * a->demands * b;
        memset(sums, 0, SUMS * a->demands * sizeof *sums);
        for (int64_t i = a->begin[b]; i < a->begin[b + 1]; i++) {
            int64_t c = 0;
            for (; c + CHUNK <= a->demands; c += CHUNK) measure_row(CHUNK, a, i, c, sums);
            for (; c + 4 <= a->demands; c += 4) measure_row(4, a, i, c, sums);
            for (; c < a->demands; c++) measure_row(1, a, i, c, sums);
        }
    }
    return 0;
}

/* left <- psi - L phi, with conductances stored by rows. For blocks of nodes that begin at `begin`, sums <- for every demand the
 * squared norm of left, the energy of phi and the squared norm of psi. Rows have `demands` entries, stored contiguously. */
EXPORT int ohm_measure(int64_t threads, int64_t blocks, int64_t demands, const int64_t *begin, const int32_t *start,
                       const int32_t *column, const double *value, const double *phi, const double *psi, double *left,
                       double *sums) {
    const Measure a = {demands, start[begin[blocks]], begin, start, column, value, phi, psi, left, sums};
    return share_out(threads, blocks, 1, measure, &a);
}
