/* What certificates are made of: residuals summed without loss. */
#include "kernel.h"

/* sum + rest <- sum + rest + x, where rest takes what rounding would lose. */
INLINE void add(double *sum, double *rest, double x) {
    const double s = *sum + x, part = s - *sum;
    *rest += (*sum - (s - part)) + (x - part);
    *sum = s;
}

/* Of potentials phi: left, which holds the demands, <- what the flow leaves of them, psi - L phi, and energy <- its sum of r f^2
 * over the edges that begin at every node. rest is zero; rows of `demands` numbers lie side by side. */
EXPORT int ohm_measure(int64_t threads, int64_t nodes, int64_t edges, int64_t demands, const int64_t *tail, const int64_t *head,
                       const double *resistance, const double *phi, double *left, double *rest, double *energy) {
    (void)threads;
    for (int64_t e = 0; e < edges; e++) {
        const int64_t u = demands * tail[e], v = demands * head[e];
        for (int64_t c = 0; c < demands; c++) {
            const double drop = phi[u + c] - phi[v + c], flow = drop / resistance[e];
            add(left + u + c, rest + u + c, -flow);
            add(left + v + c, rest + v + c, flow);
            energy[u + c] += drop * flow;
        }
    }
    for (int64_t i = 0; i < nodes * demands; i++) left[i] += rest[i];
    return 0;
}
