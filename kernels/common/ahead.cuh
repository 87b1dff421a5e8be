/* ahead.cuh - the first pieces of the next product's weights on their way to L2 while this kernel ends.
 *
 * Between two products memory has nothing to do for some microseconds: sums are brought together, rows written, blocks end and
 * others begin. A block that has asked for all of its own therefore asks for what blocks of the next product will ask for
 * first (medium_gemm.h). Nothing waits for it and nothing is written: it may be left out, or name too much. */
#pragma once

#include "common/ptx.cuh"
#include "medium_gemm.h"

/* By one thread. Block `block` of `blocks` takes every blocks-th block of the next product. */
__device__ __forceinline__ void weights_ahead(const struct medium_ahead &n, const void *map,
                                              uint32_t block, uint32_t blocks)
{
    const uint32_t size = n.splits * n.share;

#pragma unroll 1
    for (uint32_t b = block; b < n.blocks; b += blocks) {
        const uint32_t rank = b % size, split = rank % n.splits, member = rank / n.splits;
        const uint32_t row = (b / size * n.share + member) * n.tile;
        const uint32_t begin = n.kblocks * split / n.splits,
                       end = min(begin + n.depth, n.kblocks * (split + 1) / n.splits);
        if (row >= n.N) continue;
#pragma unroll 1
        for (uint32_t k = begin; k < end; k++)
            tma_prefetch_3d(map, 0, (int)row, (int)k);
    }
}
