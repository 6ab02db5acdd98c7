/* Clusters of the nodes of a graph, of which edges are seen once, some at a time. */
#include "kernel.h"

/* For every edge, move the end in the cluster of smaller volume (sum of degrees) to the other one, if that stays within `most`. */
EXPORT int ohm_cluster(int64_t threads, int64_t edges, int64_t most, const int64_t *tail, const int64_t *head,
                       const int64_t *degree, int64_t *cluster, int64_t *volume) {
    (void)threads;
    for (int64_t e = 0; e < edges; e++) {
        int64_t u = tail[e], a = cluster[u], b = cluster[head[e]];
        if (a == b) continue;
        if (volume[a] > volume[b]) {
            const int64_t swap = a;
            u = head[e], a = b, b = swap;
        }
        if (volume[b] + degree[u] > most) continue;
        volume[a] -= degree[u], volume[b] += degree[u], cluster[u] = b;
    }
    return 0;
}
