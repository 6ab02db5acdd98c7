/* Repeat the calls that record.py has written, and compare what they leave with what was left there.
 *
 *     driver FILE [THREADS]
 *
 * Numbers may differ by rounding: by so much of the largest of their array (see `allowed`). Bytes of directions are rounded numbers, of which
 * one in a hundred may have gone the other way. Whole numbers are the same.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHOLE, REAL, NONE, SINGLES, DOUBLES, LONGS, INTS, BYTES };
enum { TOL = 2, INVERSE = 16, RESIDUAL = 17 }; /* arguments of ohm_invert */
#define MOST 32

typedef struct {
    int64_t kind, size, whole;
    double real;
    void *now, *then; /* what the kernel works on; what was left */
} Argument;

/* As kernels.py has them */
int ohm_invert(int64_t, int64_t, int64_t, double, void *, void *, void *, void *, void *, void *, void *, void *, void *,
               void *, void *, void *, void *, void *, void *, void *);
int ohm_all_pairs(int64_t, int64_t, void *, void *, void *, void *, void *, void *, void *);
int ohm_direction(int64_t, int64_t, int64_t, float, void *, void *, void *, void *, void *, void *, void *);
int ohm_residual(int64_t, int64_t, int64_t, int64_t, void *, void *, void *, void *, void *, void *);
int ohm_rows(int64_t, int64_t, int64_t, void *, void *, void *, void *, void *, void *, void *, void *);
int ohm_distances(int64_t, int64_t, void *, void *, void *, void *);
int ohm_eliminate(int64_t, int64_t, int64_t, int64_t, int64_t, void *, void *, void *, void *, void *, void *, void *, void *,
                  void *, void *);
int ohm_conjugate(int64_t, int64_t, int64_t, int64_t, int64_t, void *, void *, void *, void *, void *, void *, void *, void *,
                  void *, void *, void *, void *, void *, void *, void *, void *);
int ohm_order(int64_t, int64_t, double, void *, void *, void *, void *, void *);
int ohm_pattern(int64_t, int64_t, int64_t, int64_t, void *, void *, void *, void *, void *, void *, void *, void *);
int ohm_factorise(int64_t, int64_t, int64_t, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *,
                  void *, void *);
int ohm_measure(int64_t, int64_t, int64_t, void *, void *, void *, void *, void *, void *, void *, void *);
int ohm_sweep(int64_t, int64_t, int64_t, void *, void *, void *, void *, void *, void *, void *, void *);
int ohm_select(int64_t, int64_t, int64_t, void *, void *, void *, void *, void *, void *, void *, void *, void *);
int ohm_encode(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, void *, void *, void *, void *, void *, void
               *, void *);
int ohm_on_spectrum(int64_t, int64_t, int64_t, int64_t, int64_t, void *, void *, void *, void *, void *);
int ohm_on_spectrum_backward(int64_t, int64_t, int64_t, int64_t, int64_t, void *, void *, void *, void *, void *, void *);

#define W(i) a[i].whole
#define R(i) a[i].real
#define A(i) a[i].now

static int call(const char *name, int64_t threads, const Argument *a) {
    if (!strcmp(name, "ohm_invert")) return ohm_invert(threads, W(0), W(1), R(2), A(3), A(4), A(5), A(6), A(7), A(8), A(9),
        A(10), A(11), A(12), A(13), A(14), A(15), A(16), A(17), A(18));
    if (!strcmp(name, "ohm_all_pairs")) return ohm_all_pairs(threads, W(0), A(1), A(2), A(3), A(4), A(5), A(6), A(7));
    if (!strcmp(name, "ohm_direction")) return ohm_direction(threads, W(0), W(1), R(2), A(3), A(4), A(5), A(6), A(7), A(8),
        A(9));
    if (!strcmp(name, "ohm_residual")) return ohm_residual(threads, W(0), W(1), W(2), A(3), A(4), A(5), A(6), A(7), A(8));
    if (!strcmp(name, "ohm_rows")) return ohm_rows(threads, W(0), W(1), A(2), A(3), A(4), A(5), A(6), A(7), A(8), A(9));
    if (!strcmp(name, "ohm_distances")) return ohm_distances(threads, W(0), A(1), A(2), A(3), A(4));
    if (!strcmp(name, "ohm_eliminate")) return ohm_eliminate(threads, W(0), W(1), W(2), W(3), A(4), A(5), A(6), A(7), A(8),
        A(9), A(10), A(11), A(12), A(13));
    if (!strcmp(name, "ohm_conjugate")) return ohm_conjugate(threads, W(0), W(1), W(2), W(3), A(4), A(5), A(6), A(7), A(8),
        A(9), A(10), A(11), A(12), A(13), A(14), A(15), A(16), A(17), A(18), A(19));
    if (!strcmp(name, "ohm_order")) return ohm_order(threads, W(0), R(1), A(2), A(3), A(4), A(5), A(6));
    if (!strcmp(name, "ohm_pattern")) return ohm_pattern(threads, W(0), W(1), W(2), A(3), A(4), A(5), A(6), A(7), A(8),
        A(9), A(10));
    if (!strcmp(name, "ohm_factorise")) return ohm_factorise(threads, W(0), W(1), A(2), A(3), A(4), A(5), A(6), A(7), A(8),
        A(9), A(10), A(11), A(12), A(13));
    if (!strcmp(name, "ohm_sweep")) return ohm_sweep(threads, W(0), W(1), A(2), A(3), A(4), A(5), A(6), A(7), A(8), A(9));
    if (!strcmp(name, "ohm_measure")) return ohm_measure(threads, W(0), W(1), A(2), A(3), A(4), A(5), A(6), A(7), A(8), A(9));
    if (!strcmp(name, "ohm_select")) return ohm_select(threads, W(0), W(1), A(2), A(3), A(4), A(5), A(6), A(7), A(8), A(9),
        A(10));
    if (!strcmp(name, "ohm_encode")) return ohm_encode(threads, W(0), W(1), W(2), W(3), W(4), W(5), A(6), A(7), A(8), A(9),
        A(10), A(11), A(12));
    if (!strcmp(name, "ohm_on_spectrum")) return ohm_on_spectrum(threads, W(0), W(1), W(2), W(3), A(4), A(5), A(6), A(7),
        A(8));
    if (!strcmp(name, "ohm_on_spectrum_backward")) return ohm_on_spectrum_backward(threads, W(0), W(1), W(2), W(3), A(4),
        A(5), A(6), A(7), A(8), A(9));
    fprintf(stderr, "expected a kernel that the driver knows, got %s\n", name);
    exit(2);
}

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
        if (now == then) {
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
        if (call(name, threads, a)) {
            fprintf(stderr, "%s: expected zero, got one\n", name);
            wrong++;
        }
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
