/* Sampled elimination of large graphs (an approximate Cholesky factor).
 *
 * Exact elimination of a node of conductance W with neighbours of conductances w_j connects every two of them by w_j w_k / W. Here
 * the neighbours are sorted by ascending conductance, and each but the last is connected by w_j S_j / W to one later neighbour,
 * drawn with probability proportional to conductance; S_j is the sum of all later conductances. The expectation is the same, with
 * one edge fewer than before, so edges are modified in place and there is no fill-in besides the factor itself.
 *
 * The nodes come in parts. Those without a neighbour in another part are eliminated first, part by part: this changes nothing in
 * other parts, so that several threads can do it, and so can they later with the sweeps of the factor. Then follow the nodes
 * between the parts. Parts and random numbers do not depend on the number of threads, nor does the factor.
 */
#include "kernel.h"

#include <stdlib.h>
#include <string.h>

#define EXACT 64    /* degrees with a bucket of their own; above, there are eight buckets per power of two */
#define BUCKETS 264

/* One of the two half-edges of an edge, 2 e and 2 e + 1, in the list of the node at its end */
typedef struct {
    int32_t target, next;
    double weight; /* zero once the edge is removed */
} End;

typedef struct {
    int32_t first, degree; /* of its half-edges, parallel edges included */
    int32_t bucket, before, after; /* bucket: -1 while it is in no queue */
    int32_t seen; /* its position among the neighbours of the node being eliminated, or -1 */
} Node;

typedef struct {
    double weight, after; /* after: the sum of the weights of all later neighbours */
    int32_t target, end;
} Neighbour;

typedef struct {
    Node *node;
    int32_t first[BUCKETS]; /* for every bucket the node that was inserted last and is removed first */
    int lowest;
} Queue;

static int bucket_of(int32_t degree) {
    if (degree < EXACT) return degree;
    const int bits = 32 - __builtin_clz(degree);
    return EXACT + 8 * (bits - 7) + (degree >> (bits - 4) & 7);
}

static void leave(Queue *q, int32_t i) {
    const Node *n = q->node + i;
    if (n->before >= 0) q->node[n->before].after = n->after;
    else q->first[n->bucket] = n->after;
    if (n->after >= 0) q->node[n->after].before = n->before;
}

static void enter(Queue *q, int32_t i) {
    Node *n = q->node + i;
    const int b = n->bucket = bucket_of(n->degree);
    n->before = -1, n->after = q->first[b];
    if (n->after >= 0) q->node[n->after].before = i;
    q->first[b] = i;
    if (b < q->lowest) q->lowest = b;
}

static int32_t take(Queue *q) {
    while (q->first[q->lowest] < 0) q->lowest++;
    const int32_t i = q->first[q->lowest];
    leave(q, i);
    return i;
}

static int smaller(const Neighbour *a, const Neighbour *b) {
    return a->weight < b->weight || (a->weight == b->weight && a->target < b->target);
}

static int compare(const void *a, const void *b) { return smaller(b, a) - smaller(a, b); }

static void sort(Neighbour *list, int32_t count) {
    if (count > 32) {
        qsort(list, count, sizeof *list, compare);
        return;
    }
    for (int32_t i = 1; i < count; i++) {
        const Neighbour one = list[i];
        int32_t at = i;
        for (; at > 0 && smaller(&one, list + at - 1); at--) list[at] = list[at - 1];
        list[at] = one;
    }
}

/* Return number `count` of a random sequence (splitmix64), in [0, 1) */
static double draw(uint64_t seed, uint64_t count) {
    uint64_t z = seed + (count + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return ((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* Collect the neighbours of a node, with parallel edges merged */
static int32_t gather(int32_t i, Node *node, End *end, Neighbour *list) {
    int32_t count = 0;
    for (int32_t h = node[i].first; h >= 0; h = end[h].next) {
        if (end[h].weight == 0) continue;
        Node *other = node + end[h].target;
        if (other->seen >= 0) {
            list[other->seen].weight += end[h].weight;
            end[h ^ 1].weight = 0;
            other->degree--;
        } else {
            other->seen = count;
            list[count++] = (Neighbour){end[h].weight, 0, end[h].target, h};
        }
    }
    return count;
}

/* Connect sorted neighbours, given the sum of their weights */
static uint64_t join(Node *node, End *end, const Neighbour *list, int32_t count, double total, uint64_t seed, uint64_t drawn) {
    for (int32_t j = 0; j < count - 1; j++) {
        const double at = draw(seed, drawn++) * list[j].after;
        int32_t low = j + 1, high = count - 1; /* the first neighbour with at most `at` after it */
        while (low < high) {
            const int32_t middle = low + (high - low) / 2;
            if (list[middle].after <= at) high = middle;
            else low = middle + 1;
        }
        const int32_t h = list[j].end, other = list[low].target;
        double weight = list[j].weight * (list[j].after / total);
        if (weight < 1e-300) weight = 1e-300; /* zero would disconnect the graph */
        end[h ^ 1].target = other, end[h ^ 1].weight = weight;
        end[h] = (End){list[j].target, node[other].first, weight};
        node[other].first = h;
        node[other].degree++;
    }
    const Neighbour *last = list + count - 1;
    end[last->end ^ 1].weight = 0;
    node[last->target].degree--;
    return drawn;
}

typedef struct {
    int64_t nodes;
    uint64_t seed;
    Node *node;
    End *end;
    const int64_t *first, *room; /* the first row of every part, and its first entry */
    int64_t *entries;            /* found in every part, or -1 if there is not enough room for them */
    int32_t *order, *place, *neighbour;
    int64_t *begin;
    double *share, *inverse;
} Elimination;

/* Eliminate the nodes of a part, those of low degree first; before, `order` lists them at its rows */
static int eliminate_part(const Elimination *a, int64_t part) {
    Node *node = a->node;
    Neighbour *list = malloc((a->nodes + 1) * sizeof *list);
    if (!list) return 1;
    Queue queue = {node, {0}, BUCKETS - 1};
    for (int b = 0; b < BUCKETS; b++) queue.first[b] = -1;
    for (int64_t s = a->first[part]; s < a->first[part + 1]; s++) enter(&queue, a->order[s]);
    int64_t entries = a->room[part];
    uint64_t drawn = (uint64_t)part << 40;
    for (int64_t s = a->first[part]; s < a->first[part + 1] && !STOPPED; s++) {
        const int32_t i = take(&queue), count = gather(i, node, a->end, list);
        if (entries + count > a->room[part + 1]) {
            a->entries[part] = -1;
            free(list);
            return 0;
        }
        sort(list, count);
        double total = 0;
        for (int32_t j = count - 1; j >= 0; j--) list[j].after = total, total += list[j].weight;
        a->begin[s] = entries;
        for (int32_t j = 0; j < count; j++, entries++) {
            a->neighbour[entries] = list[j].target;
            a->share[entries] = list[j].weight / total;
        }
        if (count) drawn = join(node, a->end, list, count, total, a->seed, drawn);
        for (int32_t j = 0; j < count; j++) {
            Node *other = node + list[j].target;
            other->seen = -1;
            if (other->bucket >= 0 && bucket_of(other->degree) != other->bucket)
                leave(&queue, list[j].target), enter(&queue, list[j].target);
        }
        a->order[s] = i, a->place[i] = s;
        a->inverse[s] = count ? 1 / total : 0;
    }
    a->entries[part] = entries - a->room[part];
    free(list);
    return 0;
}

static int eliminate_parts(const void *arguments, int64_t first, int64_t last) {
    for (int64_t part = first; part < last; part++)
        if (eliminate_part(arguments, part)) return 1;
    return 0;
}

/* Move the entries of all parts together; return their number */
static int64_t close_ranks(const Elimination *a, int64_t parts) {
    int64_t sum = 0;
    for (int64_t part = 0; part <= parts; part++) {
        const int64_t from = a->room[part], count = a->entries[part];
        if (count < 0) return -1;
        memmove(a->neighbour + sum, a->neighbour + from, count * sizeof *a->neighbour);
        memmove(a->share + sum, a->share + from, count * sizeof *a->share);
        for (int64_t s = a->first[part]; s < a->first[part + 1]; s++) a->begin[s] += sum - from;
        sum += count;
    }
    a->begin[a->nodes] = sum;
    return sum;
}

static int rename_neighbours(const void *arguments, int64_t first, int64_t last) {
    const Elimination *a = arguments;
    for (int64_t e = first; e < last; e++) a->neighbour[e] = a->place[a->neighbour[e]];
    return 0;
}

/* Eliminate all nodes. Row s of the factor is node order[s]: the rows of its neighbours, their fractions of its conductance, and
 * the inverse of that, zero for the last node of a component. first[p] <- the first row of part p; those of the nodes between
 * parts begin at first[parts]. There is memory for `times` entries for every node and both ends of every edge. found[0] <- the
 * number of entries, or -1 if there is not enough room for them. */
EXPORT int ohm_eliminate(int64_t threads, int64_t nodes, int64_t edges, int64_t parts, int64_t seed, int64_t times,
                         const int64_t *tail, const int64_t *head, const double *conductance, const int32_t *part,
                         int64_t *first, int32_t *order, int32_t *place, int64_t *begin, int32_t *neighbour, double *share,
                         double *inverse, int64_t *found) {
    Node *node = malloc((nodes + 1) * sizeof *node);
    End *end = malloc((2 * edges + 1) * sizeof *end);
    int32_t *owner = malloc((nodes + 1) * sizeof *owner);
    int64_t *room = calloc(2 * parts + 3, sizeof *room), *entries = room + parts + 2;
    const Elimination a = {nodes, seed, node, end, first, room, entries, order, place, neighbour, begin, share, inverse};
    int failed = !node || !end || !owner || !room;
    if (!failed) {
        for (int64_t i = 0; i < nodes; i++) node[i] = (Node){-1, 0, -1, -1, -1, -1}, owner[i] = part[i];
        for (int64_t e = 0; e < edges; e++) {
            const int32_t i = tail[e], j = head[e];
            end[2 * e] = (End){j, node[i].first, conductance[e]};
            end[2 * e + 1] = (End){i, node[j].first, conductance[e]};
            node[i].first = 2 * e, node[j].first = 2 * e + 1;
            node[i].degree++, node[j].degree++;
            if (part[i] != part[j]) owner[i] = owner[j] = (int32_t)parts;
        }
        for (int64_t p = 0; p <= parts + 1; p++) first[p] = 0;
        for (int64_t i = 0; i < nodes; i++) first[owner[i] + 1]++, room[owner[i] + 1] += times * (1 + node[i].degree);
        for (int64_t p = 0; p <= parts; p++) first[p + 1] += first[p], room[p + 1] += room[p];
        for (int64_t i = 0; i < nodes; i++) order[first[owner[i]]++] = (int32_t)i;
        for (int64_t p = parts; p > 0; p--) first[p] = first[p - 1];
        first[0] = 0;
        failed = share_out(threads, parts, 1, eliminate_parts, &a) || (!STOPPED && eliminate_part(&a, parts));
    }
    if (!failed && !STOPPED) {
        found[0] = close_ranks(&a, parts);
        share_out(threads, found[0], 1 << 16, rename_neighbours, &a);
    }
    free(node), free(end), free(owner), free(room);
    return failed ? 1 : STOPPED ? WAS_STOPPED : 0;
}
