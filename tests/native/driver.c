/* Repeat the calls that record.py has written, and compare what they leave with what was left there.
 *
 *     driver CALLS [THREADS]
 *
 * Numbers may differ by rounding: by so much of the largest of their array (see `allowed`). Bytes of directions are rounded numbers, of which
 * one in a hundred may have gone the other way. Whole numbers are the same. Of eigenvectors the matrices are compared that they belong to.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHOLE, REAL, NONE, SINGLES, DOUBLES, LONGS, INTS, BYTES };
enum { TOL = 2, INVERSE = 16, RESIDUAL = 17 };                         /* arguments of ohm_invert */
enum { GRAPHS = 0, START = 2, PLACE = 8, VALUES = 9, VECTORS = 10 }; /* arguments of ohm_eigen */
#define MOST 32

typedef struct {
    int64_t kind, size, whole;
    double real;
    void *now, *then; /* what the kernel works on; what was left */
} Argument;

/* int ohm_...(int64_t threads, ...) for every kernel, and static int call(name, threads, arguments): written by record.py */
#include "calls.h"

static void take(void *to, size_t size, FILE *file) {
    if (size && fread(to, size, 1, file) != 1) {
        fprintf(stderr, "expected a whole file of records, got its end within one\n");
        exit(2);
    }
}

static double number(const Argument *a, const void *from, int64_t i) {
    return a->kind == SINGLES ? ((const float *)from)[i] : ((const double *)from)[i];
}

/* By how much of the largest number, or of all bytes, an array is off; whole numbers by 0 or 1 */
static double difference(const Argument *a) {
    if (a->kind == BYTES) {
        int64_t other = 0;
        for (int64_t i = 0; i < a->size; i++) other += ((char *)a->now)[i] != ((char *)a->then)[i];
        return a->size ? (double)other / a->size : 0;
    }
    if (a->kind != SINGLES && a->kind != DOUBLES) return memcmp(a->now, a->then, a->size) != 0;
    const int64_t count = a->size / (a->kind == SINGLES ? 4 : 8);
    double largest = 0, off = 0;
    for (int64_t i = 0; i < count; i++) {
        const double now = number(a, a->now, i), then = number(a, a->then, i);
        if (now == then || !memcmp(&now, &then, sizeof now)) { /* NaN in memory that nobody wrote is the same, too */
            if (isfinite(then)) largest = fmax(largest, fabs(then));
            continue;
        }
        if (!isfinite(now) || !isfinite(then)) return INFINITY;
        largest = fmax(largest, fabs(then)), off = fmax(off, fabs(now - then));
    }
    return off > 0 ? off / largest : 0;
}

/* The residuals that ohm_invert leaves are rounding themselves: they keep the tolerance that they kept, and no more is asked */
static int is_kept(const Argument *residual, double tol) {
    int kept = 1;
    for (int64_t i = 0; i < residual->size / 8; i++)
        kept &= ((double *)residual->now)[i] <= fmax(tol, ((double *)residual->then)[i]);
    return kept;
}

/* Replace eigenvectors V (n, n) by V (values + 1) V^T, which does not depend on their signs, nor on a choice among equal values. */
static void multiply_out(int64_t n, const float *values, float *vectors) {
    float product[64 * 64];
    for (int64_t i = 0; i < n * n; i++) {
        double sum = 0;
        for (int64_t k = 0; k < n; k++) sum += vectors[i / n * n + k] * (values[k] + 1.0) * vectors[i % n * n + k];
        product[i] = (float)sum;
    }
    memcpy(vectors, product, n * n * sizeof *product);
}

static void multiply_all_out(const Argument *a, const float *values, float *vectors) {
    const int64_t *start = a[START].now, *place = a[PLACE].now;
    for (int64_t g = 0; g < a[GRAPHS].whole; g++) multiply_out(start[g + 1] - start[g], values + start[g], vectors + place[g]);
}

/* ohm_invert's inverses are known up to a constant added to a row or a column, which is rounded in float32 and which neither
 * residuals nor resistances see */
static double allowed(const char *name, int64_t i, int64_t kind) {
    if (!strcmp(name, "ohm_invert") && i == INVERSE) return 1e-6;
    return kind == BYTES ? 0.01 : kind == SINGLES ? 1e-4 : kind == DOUBLES ? 1e-7 : 0;
}

int main(int count, char **names) {
    FILE *file = count > 1 ? fopen(names[1], "rb") : NULL;
    const int64_t threads = count > 2 ? atoi(names[2]) : 1;
    if (!file) {
        fprintf(stderr, "expected a file of records, got none\n");
        return 2;
    }
    char name[33] = {0};
    int calls = 0, wrong = 0;
    while (fread(name, 32, 1, file) == 1) {
        Argument a[MOST] = {{0}};
        int64_t arguments;
        take(&arguments, 8, file);
        for (int64_t i = 0; i < arguments && i < MOST; i++) {
            take(&a[i].kind, 8, file);
            if (a[i].kind == WHOLE) take(&a[i].whole, 8, file);
            if (a[i].kind == REAL) take(&a[i].real, 8, file);
            if (a[i].kind < SINGLES) continue;
            take(&a[i].size, 8, file);
            a[i].now = malloc(a[i].size + 1), a[i].then = malloc(a[i].size + 1);
            take(a[i].now, a[i].size, file), take(a[i].then, a[i].size, file);
        }
        const int got = call(name, threads, a);
        if (got) {
            fprintf(stderr, "%s: expected zero, got %d\n", name, got);
            wrong++;
        }
        if (!strcmp(name, "ohm_eigen"))
            multiply_all_out(a, a[VALUES].now, a[VECTORS].now), multiply_all_out(a, a[VALUES].then, a[VECTORS].then);
        if (!strcmp(name, "ohm_spectrum"))
            multiply_out(a[0].whole, a[3].now, a[4].now), multiply_out(a[0].whole, a[3].then, a[4].then);
        double worst[BYTES + 1] = {0};
        for (int64_t i = 0; i < arguments; i++) {
            if (!strcmp(name, "ohm_invert") && i == RESIDUAL) {
                if (!is_kept(&a[i], a[TOL].real)) {
                    fprintf(stderr, "%s: expected residuals of at most %g, got larger ones\n", name, a[TOL].real);
                    wrong++;
                }
            } else if (a[i].kind >= SINGLES) {
                const double off = difference(&a[i]);
                worst[a[i].kind] = fmax(worst[a[i].kind], off);
                if (!(off <= allowed(name, i, a[i].kind))) {
                    fprintf(stderr, "%s: expected argument %d as recorded, it is off by %g\n", name, (int)i, off);
                    wrong++;
                }
            }
            free(a[i].now), free(a[i].then);
        }
        printf("%-25s float32 %.1e  float64 %.1e  bytes %.1e\n", name, worst[SINGLES], worst[DOUBLES], worst[BYTES]);
        calls++;
    }
    fclose(file);
    printf("%d calls, %d differences\n", calls, wrong);
    return !calls || wrong;
}
