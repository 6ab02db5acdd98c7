/* What every kernel needs: the limits of the kernels, vectors of float32, and work shared out among threads.
 *
 * C11 with the vector extension that gcc and clang have on every processor; nothing of Python or torch.
 */
#ifndef OHMFORMER_KERNEL_H
#define OHMFORMER_KERNEL_H

#include <stdint.h>

/* The limits that kernels.py states for the callers; a test compares the two. */
#define SMALL_NODES 64   /* nodes of a graph in ohm_invert and ohm_all_pairs */
#define SMALL_EDGES 2048 /* edges of a graph in ohm_invert */
#define SMALL_LAYERS 12  /* layers of cubing in ohm_invert */
#define SMALL_DEGREE 9   /* degree of the polynomial that its first layers make */
#define ENCODE_CHANNELS 8
#define ENCODE_NODES 64 /* nodes of a graph whose B evolves, in ohm_encode */
#define SPECTRUM_CHANNELS 16
#define EIGEN_NODES 64 /* nodes of a graph in ohm_eigen and ohm_spectrum */
#define CONDUCTANCE_NODES 64 /* nodes of a graph in ohm_conductances */
#define LOCAL_DEGREE 64 /* of polynomials in ohm_local */

/* Vectors are as wide as a register: gcc works on wider ones in memory, which is several times slower. */
#if defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4)));

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

/* A number of the caller, nonzero once a long kernel is to end; each thread has its own, NULL if nobody will stop it. */
extern _Thread_local const volatile int32_t *stop_flag;
#define STOPPED (stop_flag && *stop_flag)
#define WAS_STOPPED 2 /* what a kernel returns then; what it has written is worth nothing */

/* Items first to last - 1 of a job, done by one thread; returns nonzero if there is no memory. */
typedef int (*Work)(const void *arguments, int64_t first, int64_t last);

/* Do `work` on items 0 to count - 1, `share` at a time, on up to `threads` threads. Returns nonzero if any share did. */
int share_out(int64_t threads, int64_t count, int64_t share, Work work, const void *arguments);

#endif
