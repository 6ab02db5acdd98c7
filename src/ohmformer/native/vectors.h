/* Vectors of sixteen float32, as gcc and clang have them on any machine, and threads where there is OpenMP. */
#include <stdint.h>

#ifdef _OPENMP
#include <omp.h>
#define THREAD omp_get_thread_num()
#define THREADS omp_get_num_threads()
#else
#define THREAD 0
#define THREADS 1
#endif

#define LANES 16

typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t Mask __attribute__((vector_size(4 * LANES), aligned(4)));

#define AT(p) (*(Vector *)(p))
#define IN(p) (*(const Vector *)(p))
#define INLINE static inline __attribute__((always_inline))
