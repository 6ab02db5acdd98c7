/* The conductances of one small graph as a matrix, from its edges as PyG lists them: all in both directions or all once, in any order.
 *
 * Only lists that are clearly valid are accepted. All others are left to the caller, which checks them or reports an error.
 */
#include "kernel.h"

#include <math.h>
#include <string.h>

#define NODES CONDUCTANCE_NODES
#define LEAST 1e-250 /* products of conductances outside these limits may lose digits */
#define MOST 1e250

/* conductance (nodes, nodes) <- the sum over all edges between two nodes, each counted once, without self-loops; weight: one per
 * pair, or NULL for ones; taken <- whether the list is clearly valid: node numbers, finite weights, equal ones in both directions */
EXPORT int ohm_conductances(int64_t threads, int64_t nodes, int64_t pairs, const int64_t *u, const int64_t *v, const double *weight,
                            double *conductance, int64_t *taken) {
    (void)threads;
    int32_t count[NODES][NODES];
    int up = 0, down = 0, both = 1, once = 1, parallel = 0;
    *taken = 0;
    if (nodes > NODES) return 0;
    for (int64_t i = 0; i < nodes; i++) memset(count[i], 0, nodes * sizeof **count);
    memset(conductance, 0, nodes * nodes * sizeof *conductance);
    for (int64_t k = 0; k < pairs; k++) {
        const double w = weight ? weight[k] : 1;
        if (u[k] < 0 || v[k] < 0 || u[k] >= nodes || v[k] >= nodes || !(w >= 0 && (!w || (w > LEAST && w < MOST)))) return 0;
        if (u[k] == v[k]) continue;
        up |= u[k] < v[k], down |= u[k] > v[k];
        parallel |= count[u[k]][v[k]]++;
        conductance[u[k] * nodes + v[k]] += w;
    }
    for (int64_t i = 0; i < nodes; i++)
        for (int64_t j = 0; j < i; j++) {
            const double there = conductance[i * nodes + j], back = conductance[j * nodes + i];
            both &= count[i][j] == count[j][i] && there == back;
            once &= !count[i][j] || !count[j][i];
        }
    both &= up && down;
    if (!(both || once) || (both && weight && parallel)) return 0;
    if (!both)
        for (int64_t i = 0; i < nodes; i++)
            for (int64_t j = 0; j < i; j++) conductance[i * nodes + j] = conductance[j * nodes + i] += conductance[i * nodes + j];
    *taken = 1;
    return 0;
}
