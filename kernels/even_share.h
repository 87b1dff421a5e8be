/* even_share.h - work dealt to blocks in equal shares, whatever its pieces: plain C, for kernels and for the test beside them.
 *
 * Blocks are at most as many as units. Rows r = 0, 1, ... of `pairs` pairs each; a pair of row r is first[r + 1] - first[r] units. Units are counted row by row, pair by
 * pair; block c of C has units [even_begin(c), even_begin(c + 1)). So each pair is done by blocks that follow each other, all but the
 * first and the last of its pairs a block does alone, and who has part of a pair is known to all without asking:
 *     of an unfinished pair, its first block has the beginning (place 1), every other block a piece from its own first unit on
 *     (place 0). No block has two pieces for one place. */
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define EVEN_FN __host__ __device__ __forceinline__
#else
#define EVEN_FN static inline
#endif

EVEN_FN uint32_t even_begin(uint32_t units, uint32_t blocks, uint32_t block)
{
    return (uint32_t)((uint64_t)units * block / blocks);
}
/* The block that has a unit. */
EVEN_FN uint32_t even_owner(uint32_t units, uint32_t blocks, uint32_t unit)
{
    return (uint32_t)((((uint64_t)unit + 1) * blocks - 1) / units);
}

/* What a block does next: units [begin, end) of a pair. */
struct even_piece {
    uint32_t row, pair, begin, end;
    uint32_t units; /* of the pair */
    uint32_t unit0; /* its first among all */
};
/* From unit `at` on, no further than `end`; first: [rows + 1], 0 first, never falling; at < pairs * first[rows]. */
EVEN_FN struct even_piece even_piece_at(const uint32_t *first, uint32_t rows, uint32_t pairs,
                                        uint32_t at, uint32_t end)
{
    struct even_piece p;
    uint32_t low = 0, high = rows; /* pairs * first[low] <= at < pairs * first[high] */

    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (pairs * first[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    p.row = low, p.units = first[low + 1] - first[low];
    const uint32_t inside = at - pairs * first[low];
    p.pair = inside / p.units, p.begin = inside % p.units;
    p.unit0 = at - p.begin;
    p.end = p.units - p.begin < end - at ? p.units : p.begin + (end - at);
    return p;
}
