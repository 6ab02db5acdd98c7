/* An order of elimination with little fill, minimum degree on the quotient graph, and the pattern of its factor.
 *
 * An eliminated node becomes an element, the list of nodes that its elimination connects; a node stores its elements and the
 * neighbours that no element contains. Indistinguishable nodes are merged into one weighted node, and degrees are the upper
 * bounds of Amestoy, Davis and Duff (1996). Nodes of very high degree come last.
 */
#include "kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int64_t nodes, used, room;
    int32_t *list;                    /* of a node: elements, then neighbours */
    int64_t *begin;                   /* offset of the list of a node */
    int32_t *elements, *neighbours;   /* number of each for a node */
    int32_t *weight;                  /* number of nodes merged into this one; negative in the current element, 0 if gone */
    int32_t *degree, *head, *next, *before; /* nodes by degree, in doubly linked lists */
    int32_t *member, *last;           /* nodes merged into one, as a linked list, and its end */
    int32_t *hash, *same;             /* nodes of the new element by hash, in linked lists */
    int64_t *mark;
    int32_t *pool;                    /* nodes of all elements */
    int64_t *at;                      /* offset of an element there */
    int32_t *size, *heavy;            /* number of its nodes, and their weight; size -1 if it was absorbed */
    int64_t *outside;                 /* weight of an element outside the new one, plus a stamp */
} State;

static void unlink_node(State *s, int32_t i) {
    if (s->before[i] >= 0) s->next[s->before[i]] = s->next[i];
    else s->head[s->degree[i]] = s->next[i];
    if (s->next[i] >= 0) s->before[s->next[i]] = s->before[i];
}

static void link_node(State *s, int32_t i) {
    const int32_t first = s->head[s->degree[i]];
    s->before[i] = -1, s->next[i] = first, s->head[s->degree[i]] = i;
    if (first >= 0) s->before[first] = i;
}

static void join_members(State *s, int32_t i, int32_t j) {
    s->member[s->last[i]] = j, s->last[i] = s->last[j];
}

static void take_into(State *s, int32_t i) {
    if (s->weight[i] <= 0) return;
    s->weight[i] = -s->weight[i];
    s->pool[s->used++] = i;
    unlink_node(s, i);
}

/* Build the element of p: the nodes of its elements, which it absorbs, and its neighbours. Returns nonzero if out of memory. */
static int make_element(State *s, int32_t p, int64_t left) {
    if (s->used + left > s->room) {
        const int64_t room = 2 * s->room + left;
        int32_t *pool = realloc(s->pool, room * sizeof *pool);
        if (!pool) return 1;
        s->pool = pool, s->room = room;
    }
    s->at[p] = s->used;
    const int32_t *list = s->list + s->begin[p];
    for (int32_t a = 0; a < s->elements[p]; a++) {
        const int32_t e = list[a];
        if (s->size[e] < 0) continue;
        for (int32_t b = 0; b < s->size[e]; b++) take_into(s, s->pool[s->at[e] + b]);
        s->size[e] = -1;
    }
    for (int32_t a = 0; a < s->neighbours[p]; a++) take_into(s, list[s->elements[p] + a]);
    s->size[p] = (int32_t)(s->used - s->at[p]);
    return 0;
}

/* Drop from the list of i what the new element p contains; return the degree without p. *hash <- the hash of the list. */
static int64_t shorten_list(State *s, int32_t i, int32_t p, int64_t stamp, uint64_t *hash) {
    int32_t *list = s->list + s->begin[i];
    const int32_t elements = s->elements[i], all = elements + s->neighbours[i];
    int64_t degree = 0;
    int32_t kept = 0, some;
    uint64_t sum = 0;
    for (int32_t a = 0; a < elements; a++) {
        const int32_t e = list[a];
        if (s->size[e] < 0) continue;
        const int64_t outside = s->outside[e] - stamp;
        if (outside <= 0) {
            s->size[e] = -1; /* a subset of p */
            continue;
        }
        degree += outside, sum += (uint64_t)e;
        list[kept++] = e;
    }
    some = kept;
    for (int32_t a = elements; a < all; a++) {
        const int32_t j = list[a];
        if (s->weight[j] <= 0) continue;
        degree += s->weight[j], sum += (uint64_t)j;
        list[kept++] = j;
    }
    if (kept) { /* there is room for p: it was a neighbour, or the list had an element that it absorbed */
        list[kept] = list[some], list[some] = list[0], list[0] = p;
        s->elements[i] = some + 1, s->neighbours[i] = kept - some;
    }
    *hash = sum;
    return degree;
}

static int is_same(const State *s, int32_t i, int32_t j, int64_t stamp) {
    if (s->elements[i] != s->elements[j] || s->neighbours[i] != s->neighbours[j]) return 0;
    const int32_t *list = s->list + s->begin[j];
    for (int32_t a = 0; a < s->elements[j] + s->neighbours[j]; a++)
        if (s->mark[list[a]] != stamp) return 0;
    return 1;
}

/* Merge indistinguishable nodes of element p, which have the same list. */
static void merge_same(State *s, int32_t p, int64_t *stamp) {
    for (int32_t b = 0; b < s->size[p]; b++) {
        const int32_t h = s->pool[s->at[p] + b];
        if (s->weight[h] == 0) continue;
        const int32_t bucket = s->next[h]; /* valid while a node is in no degree list */
        if (s->hash[bucket] < 0) continue;
        int32_t i = s->hash[bucket];
        s->hash[bucket] = -1;
        for (; i >= 0; i = s->same[i]) {
            if (s->same[i] < 0) break;
            ++*stamp;
            const int32_t *list = s->list + s->begin[i];
            for (int32_t a = 0; a < s->elements[i] + s->neighbours[i]; a++) s->mark[list[a]] = *stamp;
            for (int32_t last = i, j = s->same[i]; j >= 0; j = s->same[j]) {
                if (is_same(s, i, j, *stamp)) {
                    s->weight[i] += s->weight[j], s->weight[j] = 0;
                    join_members(s, i, j);
                    s->same[last] = s->same[j];
                } else {
                    last = j;
                }
            }
        }
    }
}

static int eliminate(State *s, int64_t dense, double most, int32_t *order, double *work) {
    const int64_t n = s->nodes;
    int64_t left = n - dense, done = 0, lowest = 0, stamp = 1, marks = n;
    while (left > 0) {
        if (STOPPED) return WAS_STOPPED;
        while (s->head[lowest] < 0) lowest++;
        if (*work + (double)left * lowest * lowest / 4 > most) { /* the remaining columns have at least left * lowest / 2 entries */
            *work += (double)left * lowest * lowest / 4;
            return 0;
        }
        const int32_t p = s->head[lowest];
        unlink_node(s, p);
        int64_t own = s->weight[p], joined = 0;
        s->weight[p] = 0;
        if (make_element(s, p, left)) return 1;
        const int32_t *nodes = s->pool + s->at[p];
        stamp += n + 1;
        for (int32_t b = 0; b < s->size[p]; b++) {
            const int32_t i = nodes[b], *list = s->list + s->begin[i];
            joined -= s->weight[i];
            for (int32_t a = 0; a < s->elements[i]; a++) {
                const int32_t e = list[a];
                if (s->size[e] < 0) continue;
                if (s->outside[e] < stamp) s->outside[e] = s->heavy[e] + stamp;
                s->outside[e] += s->weight[i]; /* the weight is negative */
            }
        }
        for (int32_t b = 0; b < s->size[p]; b++) {
            const int32_t i = nodes[b];
            uint64_t hash;
            const int64_t degree = shorten_list(s, i, p, stamp, &hash);
            if (degree == 0) { /* nothing outside p: it is eliminated with p */
                own -= s->weight[i], joined += s->weight[i], s->weight[i] = 0;
                join_members(s, p, i);
                continue;
            }
            if (degree < s->degree[i]) s->degree[i] = (int32_t)degree;
            const int32_t bucket = (int32_t)(hash % (uint64_t)n);
            s->same[i] = s->hash[bucket], s->hash[bucket] = i, s->next[i] = bucket;
        }
        merge_same(s, p, &marks);
        left -= own;
        int32_t kept = 0;
        for (int32_t b = 0; b < s->size[p]; b++) {
            const int32_t i = s->pool[s->at[p] + b];
            if (s->weight[i] == 0) continue;
            s->weight[i] = -s->weight[i];
            int64_t degree = s->degree[i] + joined - s->weight[i];
            if (degree > left - s->weight[i]) degree = left - s->weight[i];
            s->degree[i] = (int32_t)degree;
            link_node(s, i);
            if (degree < lowest) lowest = degree;
            s->pool[s->at[p] + kept++] = i;
        }
        s->size[p] = kept, s->heavy[p] = (int32_t)joined, s->used = s->at[p] + kept;
        for (int32_t i = p; i >= 0; i = s->member[i]) order[done++] = i;
        for (int64_t a = 0; a < own; a++) *work += (double)(joined + a) * (joined + a);
        if (*work > most) return 0;
    }
    return 0;
}

/* parent[k] <- the first row of column k of the factor below its diagonal, -1 if there is none. */
static int tree(int64_t nodes, int64_t eliminated, const int32_t *start, const int32_t *column, const int32_t *order,
                const int32_t *rank, int32_t *parent) {
    int32_t *root = malloc((nodes + 1) * sizeof *root);
    if (!root) return 1;
    for (int64_t i = 0; i < nodes; i++) {
        parent[i] = root[i] = -1;
        for (int64_t e = start[order[i]]; e < start[order[i] + 1]; e++) {
            for (int32_t k = rank[column[e]], up; k < i && k < eliminated && k >= 0; k = up) {
                up = root[k];
                root[k] = (int32_t)i;
                if (up < 0) parent[k] = (int32_t)i;
                if (up == i) break;
            }
        }
    }
    free(root);
    return 0;
}

/* Renumber the nodes of the same factor in postorder of the elimination tree: every node follows directly after its descendants. */
static int sort_by_tree(int64_t nodes, const int32_t *start, const int32_t *column, int32_t *order, int32_t *rank) {
    int32_t *parent = malloc((4 * nodes + 1) * sizeof *parent), *child = parent + nodes, *next = child + nodes + 1, *before = next + nodes;
    if (!parent || tree(nodes, nodes, start, column, order, rank, parent)) {
        free(parent);
        return 1;
    }
    memcpy(before, order, nodes * sizeof *before);
    for (int64_t i = 0; i <= nodes; i++) child[i] = -1;
    for (int64_t i = nodes - 1; i >= 0; i--) {
        if (parent[i] < 0) parent[i] = (int32_t)nodes; /* roots become children of an additional node */
        next[i] = child[parent[i]], child[parent[i]] = (int32_t)i;
    }
    for (int64_t count = 0, at = nodes; count < nodes;) { /* descend to a node without children, which is next, then ascend */
        while (child[at] >= 0) {
            const int32_t down = child[at];
            child[at] = next[down], at = down;
        }
        rank[before[at]] = (int32_t)count, order[count++] = before[at];
        at = parent[at];
    }
    free(parent);
    return 0;
}

/* order <- the nodes in elimination order, rank <- its inverse; work[0] <- the sum of squared column counts, without the nodes that
 * come last because of their high degree. Stops as soon as that is above `most`. */
EXPORT int ohm_order(int64_t threads, int64_t nodes, double most, const int32_t *start, const int32_t *column, int32_t *order,
                     int32_t *rank, double *work) {
    (void)threads;
    const int64_t n = nodes, entries = start[nodes], many = (int64_t)fmax(16, 10 * sqrt((double)n));
    work[0] = 0;
    if (n == 0) return 0;
    int32_t *ints = malloc((16 * n + entries) * sizeof *ints);
    int64_t *longs = malloc(4 * n * sizeof *longs);
    int32_t *pool = malloc((entries + n) * sizeof *pool);
    if (!ints || !longs || !pool) {
        free(ints), free(longs), free(pool);
        return 1;
    }
    State s = {.nodes = n, .room = entries + n, .pool = pool};
    int32_t **arrays[] = {&s.elements, &s.neighbours, &s.weight, &s.degree, &s.head, &s.next, &s.before, &s.member,
                          &s.last, &s.hash, &s.same, &s.size, &s.heavy};
    for (int a = 0; a < 13; a++) *arrays[a] = ints + a * n;
    s.list = ints + 13 * n;
    s.begin = longs, s.mark = longs + n, s.at = longs + 2 * n, s.outside = longs + 3 * n;
    memset(longs, 0, 4 * n * sizeof *longs);
    int64_t dense = 0, filled = 0;
    for (int64_t i = 0; i < n; i++) {
        s.head[i] = s.hash[i] = s.member[i] = -1, s.last[i] = (int32_t)i;
        s.size[i] = s.heavy[i] = s.elements[i] = 0;
        s.weight[i] = start[i + 1] - start[i] <= many;
        if (!s.weight[i]) order[n - ++dense] = (int32_t)i;
    }
    for (int64_t i = 0; i < n; i++) {
        s.begin[i] = filled;
        for (int64_t e = start[i]; e < start[i + 1]; e++) {
            const int32_t other = column[e];
            if (s.weight[other] && s.mark[other] != i + 1) s.list[filled++] = other, s.mark[other] = i + 1; /* no parallel edges */
        }
        s.neighbours[i] = s.degree[i] = (int32_t)(filled - s.begin[i]);
    }
    for (int64_t i = n - 1; i >= 0; i--)
        if (s.weight[i]) link_node(&s, (int32_t)i);
    const int failed = eliminate(&s, dense, most, order, work);
    const int given_up = failed || work[0] > most;
    for (int64_t i = 0; i < n && !given_up; i++) rank[order[i]] = (int32_t)i;
    free(ints), free(longs), free(s.pool);
    if (given_up) return failed;
    return sort_by_tree(n, start, column, order, rank);
}

/* count[k] <- rows of column k of the factor, zero from k = `eliminated` on, as such nodes are kept; total <- their sum and the
 * sum of their squares. With `first`, the offsets of columns, rows are written as well. Stops above `most` entries. */
EXPORT int ohm_pattern(int64_t threads, int64_t nodes, int64_t eliminated, int64_t most, const int32_t *start,
                       const int32_t *column, const int32_t *order, const int32_t *rank, int32_t *count, double *total,
                       const int64_t *first, int32_t *row) {
    (void)threads;
    int32_t *parent = malloc((2 * nodes + 1) * sizeof *parent), *seen = parent + nodes;
    if (!parent || tree(nodes, eliminated, start, column, order, rank, parent)) {
        free(parent);
        return 1;
    }
    memset(count, 0, nodes * sizeof *count);
    int64_t entries = 0;
    for (int64_t i = 0; i < nodes && entries <= most && !STOPPED; i++) {
        seen[i] = (int32_t)i;
        for (int64_t e = start[order[i]]; e < start[order[i] + 1]; e++) {
            if (rank[column[e]] >= i) continue;
            for (int32_t k = rank[column[e]]; k < eliminated && seen[k] != i; k = parent[k]) {
                if (first) row[first[k] + count[k]] = (int32_t)i;
                count[k]++, entries++;
                seen[k] = (int32_t)i;
            }
        }
    }
    total[0] = (double)entries, total[1] = 0;
    for (int64_t k = 0; k < nodes; k++) total[1] += (double)count[k] * count[k];
    free(parent);
    return STOPPED ? WAS_STOPPED : 0;
}
