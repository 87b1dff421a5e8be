/* decode_chain.cuh - what decode_chain.cu is made for: shapes, how they are cut over clusters and blocks, and what lies where in a
 * block's shared memory. All of it is known to the compiler. */
#pragma once

#include <cuda.h>

#include "common/launch.cuh"
#include "decode_chain.h"

namespace
{

constexpr uint32_t WARPS = 12, THREADS = WARPS * 32; /* three a part of an SM: 168 registers each */
constexpr uint32_t QUAD = 128;                       /* threads that attend */
constexpr uint32_t D = 64;                           /* head_dim */
constexpr uint32_t CTAS = 16;                        /* of a cluster */
constexpr uint32_t SPLIT_GROUPS = 4, SPLITS = CTAS;  /* a block each */
constexpr uint32_t SHARED_MAX = 226 * 1024;          /* and `statics` */
constexpr float LOG2E = 1.4426950408889634f, MASKED = -1e30f;
static_assert(SPLITS * SPLIT_GROUPS * 32 == DECODE_CHAIN_TOKENS_MAX, "one split to a block");

enum weight_name { ATTN_IN, ATTN_OUT, FFN_IN, FFN_OUT, WEIGHTS };
enum exchange { QKV_ROWS, PARTS, ACTS, EXCHANGES }; /* within a cluster */

constexpr uint32_t ceil_div(uint32_t n, uint32_t by)
{
    return (n + by - 1) / by;
}
constexpr uint32_t round_up(uint32_t n, uint32_t to)
{
    return ceil_div(n, to) * to;
}
constexpr uint32_t max_of(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* A block's slice of a weight: `rows` rows of `blocks` 64-column blocks in each of `chunks` parts of K. skinny_gemm sums over the
 * same blocks: block i of all chunks by one warp, then warp by warp. */
struct slice {
    uint32_t rows, blocks, chunks;
    __host__ __device__ constexpr uint32_t bytes() const
    {
        return rows * blocks * chunks * 128;
    }
};

/* A shape that the code is made for: the path of one layer is some thousand instructions, and shapes known to the compiler
 * are a third of the time. A cluster has one KV head, the query heads of its group, and its share of the FFN's columns. */
template <uint32_t H, uint32_t F, uint32_t HEADS_, uint32_t KV_> struct model {
    static constexpr uint32_t HIDDEN = H, FFN = F, HEADS = HEADS_, KV = KV_;
    static constexpr uint32_t CLUSTERS = KV, GROUP = HEADS / KV;
    static constexpr uint32_t ROWS = H / CTAS; /* of attn_out and ffn_out: a block's columns of x */
    static constexpr uint32_t TILES = ceil_div(ROWS, 16);
    static constexpr uint32_t PACKETS =
        ceil_div(ROWS, 3); /* three columns each, to other clusters */
    static constexpr uint32_t PIECES = ceil_div(H, 128);

    /* q k v: HEAD_ROWS rows of each of the cluster's heads */
    static constexpr uint32_t HEADS_HERE = GROUP + 2, HEAD_ROWS = D / CTAS;
    /* FFN: as skinny_gemm cuts its K, chunks of K_BLOCKS blocks; a cluster has BLOCKS_HERE of each chunk, so that sums over
     * the same number of every chunk are whole */
    static constexpr uint32_t K_CHUNKS = ceil_div(F / 64, 16),
                              K_BLOCKS = ceil_div(F / 64, K_CHUNKS);
    static constexpr uint32_t BLOCKS_HERE = K_BLOCKS / CLUSTERS, FFN_HERE = F / CLUSTERS;
    static constexpr uint32_t FFN_COLUMNS = FFN_HERE / CTAS; /* of a block */

    static constexpr struct slice W[WEIGHTS] = {{HEADS_HERE * HEAD_ROWS, H / 64, 1},
                                                {ROWS, GROUP, 1},
                                                {2 * FFN_COLUMNS, H / 64, 1},
                                                {ROWS, BLOCKS_HERE, K_CHUNKS}};

    static_assert(HEADS % KV == 0 && GROUP <= 8 && HEAD_ROWS == 4, "attention");
    static_assert(H % 64 == 0 && F % 64 == 0 && H / 64 <= WARPS, "a block of K to a warp");
    static_assert((H / 64 + 15) / 16 == 1 && (HEADS * D / 64 + 15) / 16 == 1,
                  "skinny_gemm's chunks");
    static_assert(K_CHUNKS * K_BLOCKS * 64 == F && K_BLOCKS % CLUSTERS == 0, "chunks are whole");
    static_assert(FFN_HERE % CTAS == 0 && FFN_COLUMNS % 16 == 0 && FFN_COLUMNS <= THREADS / 2,
                  "FFN");
    static_assert(TILES * GROUP <= WARPS && TILES * BLOCKS_HERE <= WARPS,
                  "a tile of a block to a warp");
    static_assert(PACKETS * CTAS <= H / 64 * 32, "who has columns of x also has a block of K");
    static_assert(PACKETS * CTAS <= THREADS && PACKETS * BLOCKS_HERE <= THREADS, "columns of x");
    static_assert(GROUP <= WARPS && GROUP * D / 4 <= THREADS, "heads");
};

/* Places in a block's shared memory, bytes: the slices of a layer, each with a place of its own, then what is computed. */
template <class S> struct places {
    static constexpr uint32_t weight(int i)
    {
        return i ? weight(i - 1) + round_up(S::W[i - 1].bytes(), 1024) : 0;
    }
    static constexpr uint32_t WEIGHT[WEIGHTS] = {weight(0), weight(1), weight(2), weight(3)};
    static constexpr uint32_t X = weight(WEIGHTS);
    static constexpr uint32_t GAIN = X + round_up(S::HIDDEN * 4, 128); /* of the two norms */
    static constexpr uint32_t XS = GAIN + round_up(2 * S::HIDDEN * 4, 128);
    static constexpr uint32_t SCRATCH = XS + round_up(max_of(S::HIDDEN, S::GROUP *D) * 2, 128);
    /* sums of the warps of a product, or states of the warps of attention */
    static constexpr uint32_t SUMS =
        4 * max_of(max_of(S::W[ATTN_IN].blocks * S::W[ATTN_IN].rows,
                          S::W[FFN_IN].blocks *S::W[FFN_IN].rows),
                   max_of(S::W[ATTN_OUT].blocks, S::W[FFN_OUT].blocks) * S::ROWS);
    static constexpr uint32_t STATE_STRIDE = D + 4, STATES = 4 * S::GROUP * STATE_STRIDE + 64;
    static constexpr uint32_t ACTS = SCRATCH + round_up(max_of(SUMS, STATES * 4), 128);
    static constexpr uint32_t QKV = ACTS; /* activations are there when these are not */
    /* a split's outputs, then each head's maximum and sum */
    static constexpr uint32_t PART = S::GROUP * D + round_up(2 * S::GROUP, 4); /* floats */
    static constexpr uint32_t PARTS = QKV + round_up(S::HEADS_HERE * D * 2, 128);
    static constexpr uint32_t BYTES =
        max_of(ACTS + round_up(S::FFN_HERE * 2, 128), PARTS + round_up(SPLITS * PART * 4, 128));
    static_assert(BYTES <= SHARED_MAX, "a block's share of a layer is in shared memory");
};

/* What clusters send each other through L2 (decode_chain_link.cuh). */
template <class S> struct link_room {
    static constexpr uint32_t COLUMNS = S::PACKETS * CTAS; /* packets of all columns of x */
    /* Terms of a sum: the first cluster's blocks in one, those of its others one by one, to be added in the order of skinny_gemm. */
    static constexpr uint32_t terms(uint32_t blocks)
    {
        return 1 + (S::CLUSTERS - 1) * blocks;
    }
    static constexpr uint32_t TERMS = max_of(terms(S::GROUP), terms(S::BLOCKS_HERE));
    static constexpr uint32_t HALF = TERMS * COLUMNS * 16, BYTES = 128 + 2 * HALF;
    static_assert(BYTES <= DECODE_CHAIN_LINK_BYTES, "room");
};
template <class S, int WEIGHT> struct terms_of {
    static constexpr uint32_t COUNT = link_room<S>::terms(S::W[WEIGHT].blocks);
};

struct params {
    uint32_t layers, rope_dim;
    float eps[2], scale;
    int act;
    float *x;
    const char *gain[2];
    uint64_t gain_stride;
    char *kv;
    uint64_t kv_layer_bytes;
    const float2 *rope;
    const int32_t *position, *kv_slot, *slot, *tables;
    uint32_t table_stride;
    char *link;
};

struct maps {
    CUtensorMap w[WEIGHTS];
};

struct row { /* of the step; groups of 32 tokens, splits of 4 groups: as paged_decode cuts it */
    int pos, groups, splits;
    const int32_t *table;
};

struct statics {
    uint64_t full[WEIGHTS], come[EXCHANGES];
    struct row row;
    float factor;
};

} // namespace
