/* Which of the instruction sets that libraries are built for this processor has. */
#include "kernel.h"

/* Bit 0: the architecture's baseline; bit 1: AVX2 and FMA; bit 2: AVX-512 F, VL, BW and DQ. */
EXPORT int64_t processor_sets(void) {
    int64_t found = 1;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        found |= 2;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq"))
            found |= 4;
    }
#endif
    return found;
}
