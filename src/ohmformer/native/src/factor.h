/* How a factor of a Laplacian is stored: for every node, in the order of elimination, its later neighbours by ascending rows. */
#ifndef OHMFORMER_FACTOR_H
#define OHMFORMER_FACTOR_H

#include <stdint.h>

/* Whether columns k and k + 1 belong to one block: both are eliminated, and their rows from k + 2 on are the same. */
static inline int continues(int64_t eliminated, const int64_t *first, const int32_t *row, int64_t k) {
    const int64_t count = first[k + 1] - first[k];
    return count > 0 && k + 1 < eliminated && row[first[k]] == k + 1 && first[k + 2] - first[k + 1] == count - 1;
}

/* The end of the block that begins with column k, limited to a number of columns */
static inline int64_t end_of_block(int64_t eliminated, const int64_t *first, const int32_t *row, int64_t k, int64_t most) {
    int64_t end = k + 1;
    while (end - k < most && continues(eliminated, first, row, end - 1)) end++;
    return end;
}

#endif
