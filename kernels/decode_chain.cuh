/* decode_chain.cuh - what decode_chain.cu is made for: shapes, how a block's share of a weight is cut, and what lies where in its
 * shared memory. All of it is known to the compiler. */
#pragma once

#include <cuda.h>

#include "common/launch.cuh"
#include "decode_chain.h"

namespace
{

constexpr int WARPS = 12, QUADS = WARPS / 4, CONSUMERS = WARPS * 32;
constexpr int THREADS = CONSUMERS + 128; /* registers are dealt to groups of four warps */
constexpr int D = 64;                    /* head_dim */
constexpr uint32_t CTAS = 16, SPLITS = DECODE_CHAIN_TOKENS_MAX / 128, SPLIT_GROUPS = 4;
constexpr uint32_t SHARED_MAX = 225 * 1024 /* and `statics` */, RING_MIN = 4, RING_MAX = 16;
constexpr float LOG2E = 1.4426950408889634f, MASKED = -1e30f;

enum weight_name { ATTN_IN, ATTN_OUT, FFN_IN, FFN_OUT, WEIGHTS };
enum exchange { X_ROWS, QKV_ROWS, PARTS, ATTENDED, ACTS, EXCHANGES };

/* A block's slice of a weight: `rows` rows in tiles of `tile`, each in `chunks` stages of `blocks` 64-column blocks: those of
 * skinny_gemm, whose sums are over the same blocks. */
struct slice {
    uint32_t rows, tile, tiles, kblocks, blocks, chunks;
};

constexpr struct slice slice_of(uint32_t N, uint32_t K)
{
    struct slice w = {};

    w.rows = N / CTAS;
    for (w.tile = 16; w.rows % w.tile; w.tile--)
        ;
    w.tiles = w.rows / w.tile;
    w.kblocks = K / 64;
    w.chunks = (w.kblocks + 15) / 16;
    w.blocks = (w.kblocks + w.chunks - 1) / w.chunks;
    return w;
}
constexpr uint32_t round_up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}
constexpr uint32_t max_of(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* A shape that the code is made for: the path of one layer is some thousand instructions, and shapes known to the compiler
 * are a third of the time. */
template <uint32_t H, uint32_t F, uint32_t HEADS_, uint32_t KV_> struct model {
    static constexpr uint32_t HIDDEN = H, FFN = F, HEADS = HEADS_, KV = KV_, GROUP = HEADS / KV;
    static constexpr uint32_t QKV = (HEADS + 2 * KV) * D, COLUMNS = HEADS * D / CTAS;
    static constexpr uint32_t PART = COLUMNS + 4; /* floats: and two heads' maximum and sum */
    static constexpr uint32_t PIECES = (HIDDEN + 127) / 128;
    static constexpr struct slice W[WEIGHTS] = {slice_of(QKV, H), slice_of(H, HEADS *D),
                                                slice_of(2 * F, H), slice_of(H, F)};

    static constexpr uint32_t stage_bytes()
    {
        uint32_t most = 0;
        for (int i = 0; i < WEIGHTS; i++)
            most = max_of(most, round_up(W[i].tile * W[i].blocks * 128, 1024));
        return most;
    }
    static constexpr uint32_t stages_before(int weight)
    {
        uint32_t n = 0;
        for (int i = 0; i < weight; i++)
            n += W[i].tiles * W[i].chunks;
        return n;
    }
    static_assert(HEADS % KV == 0 && GROUP <= 8 && COLUMNS <= D, "attention");
    static_assert(H % 64 == 0 && F % 128 == 0 && QKV % (CTAS * 4) == 0, "slices");
    static_assert(W[0].blocks <= WARPS && W[1].blocks <= WARPS && W[3].blocks <= WARPS, "warps");
    static_assert(W[FFN_IN].tile == 16 && W[FFN_IN].chunks == 1 && W[FFN_IN].blocks <= WARPS, "");
    static_assert(W[ATTN_OUT].rows % 4 == 0 && W[FFN_IN].rows % 32 == 0 && H <= CONSUMERS * 4, "");
};

template <class S, int WEIGHT> struct before { /* in a layer */
    static constexpr uint32_t STAGES = S::stages_before(WEIGHT);
};

/* Places in shared memory behind the ring, bytes. */
template <class S> struct places {
    static constexpr uint32_t X = 0;
    static constexpr uint32_t GAIN = X + round_up(S::HIDDEN * 4, 128); /* two layers, two norms */
    static constexpr uint32_t XS = GAIN + round_up(4 * S::HIDDEN * 4, 128);
    static constexpr uint32_t SCRATCH = XS + round_up(max_of(S::HIDDEN, S::HEADS *D) * 2, 128);
    /* sums of the warps of a product, or states of the warps of attention */
    static constexpr uint32_t SUMS =
        4 * max_of(max_of(S::W[ATTN_IN].blocks * S::W[ATTN_IN].rows,
                          S::W[FFN_IN].blocks *S::W[FFN_IN].rows),
                   max_of(S::W[ATTN_OUT].blocks, S::W[FFN_OUT].blocks) * S::W[FFN_OUT].rows);
    static constexpr uint32_t QUAD_FLOATS = 4 * S::GROUP * (D + 4) + 64;
    static constexpr uint32_t ACTS = SCRATCH + round_up(max_of(SUMS, QUADS *QUAD_FLOATS * 4), 128);
    static constexpr uint32_t QKV = ACTS; /* activations are there when these are not */
    static constexpr uint32_t PARTS = QKV + round_up(S::QKV * 2, 128);
    static constexpr uint32_t TOTAL =
        max_of(ACTS + round_up(S::FFN * 2, 128), PARTS + round_up(SPLITS * S::PART * 4, 128));
    static constexpr uint32_t STAGE_BYTES = S::stage_bytes();
    static constexpr uint32_t ROOM = (SHARED_MAX - TOTAL) / STAGE_BYTES;
    /* gains have room for two layers: the ring must not reach farther */
    static constexpr uint32_t STAGES =
        ROOM < S::stages_before(WEIGHTS) ? ROOM : S::stages_before(WEIGHTS) - 1;
    static constexpr uint32_t BYTES = STAGES * STAGE_BYTES + TOTAL;
    static_assert(STAGES >= RING_MIN && STAGES <= RING_MAX, "room for the ring");
    static_assert(S::W[ATTN_IN].rows <= CONSUMERS && S::W[FFN_IN].rows <= CONSUMERS, "");
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
};

struct maps {
    CUtensorMap w[WEIGHTS];
};

struct row { /* of the step; groups of 32 tokens, splits of 4 groups: as paged_decode cuts it */
    int pos, groups, splits;
    const int32_t *table;
};

struct statics {
    uint64_t full[RING_MAX], empty[RING_MAX], come[EXCHANGES];
    struct row row;
    float factor;
    uint32_t layer; /* that the consumers are in */
};

} // namespace
