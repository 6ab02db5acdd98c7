/* What every kernel needs: the limits of the kernels, vectors of float32, and work shared out among threads.
 *
 * C11 with the vector extension of gcc and clang, which works on every processor; independent of Python and torch.
 */
#ifndef OHMFORMER_KERNEL_H
#define OHMFORMER_KERNEL_H

#include <stdint.h>

/* The limits that kernels.py declares for callers; a test compares the two. */
#define SMALL_NODES 64   /* nodes of a graph in ohm_invert and ohm_all_pairs */
#define SMALL_EDGES 2048 /* edges of a graph in ohm_invert */
#define SMALL_LAYERS 12  /* layers of cubing in ohm_invert */
#define SMALL_DEGREE 9   /* degree of the polynomial that its first layers compute */
#define ENCODE_CHANNELS 8
#define ENCODE_NODES 64 /* nodes of a graph whose B evolves, in ohm_encode */
#define SPECTRUM_CHANNELS 16
#define EIGEN_NODES 64 /* nodes of a graph in ohm_eigen and ohm_spectrum */
#define CONDUCTANCE_NODES 64 /* nodes of a graph in ohm_conductances */
#define CONJUGATE_PARTS 64 /* of a graph in ohm_conjugate */
#define LOCAL_DEGREE 64 /* of polynomials in ohm_local */

/* Vectors are as wide as a register: gcc spills wider ones to memory, which is several times slower. */
#if defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4)));

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

/* Flag of the caller, nonzero to stop a long kernel; each thread has its own, NULL if it cannot be stopped. */
extern _Thread_local const volatile int32_t *stop_flag;
#define STOPPED (stop_flag && *stop_flag)
#define WAS_STOPPED 2 /* return value of a stopped kernel, whose output is invalid */

/* Process items first to last - 1 of a job on one thread; return nonzero if out of memory. */
typedef int (*Work)(const void *arguments, int64_t first, int64_t last);

/* Call `work` on items 0 to count - 1, `share` at a time, on up to `threads` threads. Returns nonzero if any call did. */
int share_out(int64_t threads, int64_t count, int64_t share, Work work, const void *arguments);

#endif
