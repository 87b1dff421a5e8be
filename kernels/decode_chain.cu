/* decode_chain.cu - all layers of a decode step of 1..8 rows in one launch (decode_chain.h).
 *
 * Why      A layer of a model of some 100 MB is 5 launches that wait for each other, 2.9 us each, whatever they read. Here all
 *          layers run in one cluster of 16 blocks, whose dependencies are stores to each other's shared memory and barriers
 *          there, 0.4 us each. A cluster is placed as a whole, so its blocks may wait for each other.
 * Roles    Each block owns 1/16 of the rows of every weight. One producer thread streams its slices of all layers in order
 *          through a ring (TMA boxes of whole rows, 128-byte swizzle), and runs ahead of the dependencies. 12 consumer
 *          warps: in attn_in, attn_out and ffn_out a warp takes the 64-column block of its number of every tile, sums are
 *          added in order through shared memory; in ffn_in a warp takes whole tiles.
 * Layer    norm, q k v -> all blocks; parts of attention -> the block that owns those columns; its sum -> all; x + attn_out
 *          -> all; norm, gate and up -> all; x + ffn_out -> all. A block sends its columns with st.async; the receiver's
 *          barrier counts bytes. Between two uses of a buffer lies at least one exchange that needs every block.
 * Attention  parts (split, KV head) are dealt to the blocks, and in a block to 3 groups of 4 warps, each as a block of
 *          paged_decode; pages are fetched to L2 a layer ahead by the producer's warp, the newest token comes from q k v.
 * Numerics The same multiplications and sums in the same order as skinny_gemm and paged_decode: bit for bit.
 * Floor    weights and pages through 16 SMs: 76 GB/s each, 1.2 TB/s, measured (one cluster of 16, H200). */
#include "common/launch.cuh"
#include "common/tensor_map.h"
#include "common/wgmma.cuh"
#include "decode_chain.h"
#include "kv_layout.h"

namespace
{

constexpr int WARPS = 12, QUADS = WARPS / 4, CONSUMERS = WARPS * 32;
constexpr int THREADS = CONSUMERS + 128; /* registers are dealt to groups of four warps */
constexpr int D = 64; /* head_dim */
constexpr uint32_t CTAS = 16, ROWS = DECODE_CHAIN_ROWS_MAX, PIECES_MAX = 6;
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
    static constexpr struct slice W[WEIGHTS] = {slice_of(QKV, H), slice_of(H, HEADS * D),
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
    static_assert(W[ATTN_OUT].rows % 4 == 0 && PIECES <= PIECES_MAX, "");
};

template <class S, int WEIGHT> struct before { /* in a layer */
    static constexpr uint32_t STAGES = S::stages_before(WEIGHT);
};

/* Places in shared memory behind the ring, bytes. */
template <class S, uint32_t M> struct places {
    static constexpr uint32_t X = 0;
    static constexpr uint32_t GAIN = X + round_up(M * S::HIDDEN * 4, 128); /* two layers, two norms */
    static constexpr uint32_t XS = GAIN + round_up(4 * S::HIDDEN * 4, 128);
    static constexpr uint32_t SCRATCH =
        XS + round_up(M * max_of(S::HIDDEN, S::HEADS * D) * 2, 128);
    /* sums of the warps of a product, or states of the warps of attention */
    static constexpr uint32_t SUMS =
        4 * M *
        max_of(max_of(S::W[ATTN_IN].blocks * S::W[ATTN_IN].rows,
                      M <= 2 ? S::W[FFN_IN].blocks * S::W[FFN_IN].rows : 0),
               max_of(S::W[ATTN_OUT].blocks, S::W[FFN_OUT].blocks) * S::W[FFN_OUT].rows);
    static constexpr uint32_t QUAD_FLOATS = 4 * S::GROUP * (D + 4) + 64;
    static constexpr uint32_t ACT_OUT =
        SCRATCH + round_up(max_of(SUMS, QUADS * QUAD_FLOATS * 4), 128);
    static constexpr uint32_t ACTS = ACT_OUT + round_up(WARPS * M * 16, 128);
    static constexpr uint32_t QKV = ACTS; /* activations are there when these are not */
    static constexpr uint32_t PARTS = QKV + round_up(M * S::QKV * 2, 128);
    static constexpr uint32_t TOTAL =
        max_of(ACTS + round_up(M * S::FFN * 2, 128),
               PARTS + round_up(M * DECODE_CHAIN_SPLITS_MAX * S::PART * 4, 128));
    static constexpr uint32_t STAGE_BYTES = S::stage_bytes();
    static constexpr uint32_t ROOM = (SHARED_MAX - TOTAL) / STAGE_BYTES;
    /* gains have room for two layers: the ring must not reach farther */
    static constexpr uint32_t STAGES =
        ROOM < S::stages_before(WEIGHTS) ? ROOM : S::stages_before(WEIGHTS) - 1;
    static constexpr uint32_t BYTES = STAGES * STAGE_BYTES + TOTAL;
    static constexpr uint32_t OUTS = (M * S::W[ATTN_IN].rows + CONSUMERS - 1) / CONSUMERS;
    static_assert(STAGES >= RING_MIN && STAGES <= RING_MAX, "room for the ring");
    static_assert(M * S::W[ATTN_OUT].rows <= CONSUMERS, "one output each");
};

struct params {
    uint32_t rows, layers, rope_dim, splits_max;
    float eps[2], scale;
    int act;
    float *x;
    uint64_t x_stride;
    const char *gain[2];
    uint64_t gain_stride;
    char *kv;
    uint64_t kv_layer_bytes;
    const float2 *rope;
    const int32_t *positions, *kv_slots, *slots, *tables;
    uint32_t table_stride;
};

struct maps {
    CUtensorMap w[WEIGHTS];
};

struct row { /* of the step */
    int pos, groups, splits, per;
    const int32_t *table;
};

struct statics {
    uint64_t full[RING_MAX], empty[RING_MAX], come[EXCHANGES];
    struct row rows[ROWS];
    float factor[ROWS];
    uint32_t layer; /* that the consumers are in */
};

__device__ __forceinline__ float activate(float v, int act)
{
    if (act == 0) return v / (1.f + __expf(-v));
    const float u = 0.7978845608f * (v + 0.044715f * v * v * v);
    return 0.5f * v * (1.f + tanhf(u));
}

/* As in skinny_gemm: lane (r = m % 8, q) of the mma wants columns q*16 + j*8 .. +7 of a block of 64 as one read. */
template <uint32_t M> __device__ __forceinline__ uint32_t x_place(uint32_t k, uint32_t m)
{
    const uint32_t kb = k >> 6, q = (k >> 4) & 3, j = (k >> 3) & 1;
    return (((kb * 2 + j) * M + m) * 4 + q) * 8 + (k & 7);
}

__device__ __forceinline__ void consumers_sync()
{
    asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
}

__device__ __forceinline__ void quad_sync(int quad)
{
    asm volatile("bar.sync %0, 128;" ::"r"(2 + quad) : "memory");
}

/* The parts (split, KV head) of all rows that a block works on, in order. */
template <class S, uint32_t M> struct part_list {
    const struct row *rows;
    uint32_t rank, m, u;

    __device__ __forceinline__ part_list(const struct row *rows, uint32_t rank)
        : rows(rows), rank(rank), m(0), u(rank)
    {
    }
    /* A row begins with another block than the row before, so that the blocks have alike much to do. */
    __device__ __forceinline__ bool next(uint32_t &row, uint32_t &split, uint32_t &head)
    {
        for (; m < M; m++, u = (rank - 5 * m) % CTAS)
            if (rows[m].pos >= 0 && u < rows[m].splits * S::KV) {
                row = m, split = u / S::KV, head = u % S::KV;
                u += CTAS;
                return true;
            }
        return false;
    }
};

/* --- warps behind the consumers --- */

/* One warp: this block's pages to L2, a layer ahead. */
template <class S, uint32_t M>
__device__ __forceinline__ void prefetch_pages(const params &p, const statics &s, uint32_t rank,
                                               uint32_t lane)
{
    constexpr uint32_t RECORD = 2 * KV_BLOCK_TOKENS * D * 2;

    for (uint32_t layer = 0; layer < p.layers; layer++) {
        const char *pool = p.kv + layer * p.kv_layer_bytes;
        part_list<S, M> parts(s.rows, rank);
        uint32_t m, split, head;
        while (*(const volatile uint32_t *)&s.layer + 1 < layer)
            __nanosleep(200);
        while (parts.next(m, split, head)) {
            const struct row &row = s.rows[m];
            const int first = split * row.per * 2,
                      end = min((int)(split + 1) * row.per * 2, row.pos / KV_BLOCK_TOKENS + 1);
            for (int b = first + lane; b < end; b += 32)
                bulk_prefetch(pool + ((uint64_t)row.table[b] * S::KV + head) * RECORD, RECORD);
        }
    }
}

/* One thread: a slice of a weight, stage by stage; the first brings the gain of the norm in front, where there is one. */
template <class S, uint32_t M, weight_name I>
__device__ __forceinline__ void produce_slice(const params &p, const maps &maps,
                                              unsigned char *ring, statics &s, uint32_t rank,
                                              uint32_t layer, uint32_t &slot, uint32_t &phase)
{
    using at = places<S, M>;
    constexpr struct slice W = S::W[I];
    constexpr bool GAIN = I == ATTN_IN || I == FFN_IN;
    constexpr uint32_t BYTES = W.tile * W.blocks * 128, GAIN_BYTES = S::HIDDEN * 4;

#pragma unroll 1
    for (uint32_t n = 0; n < W.tiles * W.chunks; n++) {
        mbarrier_wait(&s.empty[slot], phase);
        mbarrier_expect(&s.full[slot], BYTES + (GAIN && n == 0 ? GAIN_BYTES : 0));
        tma_load_4d(ring + slot * at::STAGE_BYTES, &maps.w[I], &s.full[slot], 0,
                    rank * W.rows + n % W.tiles * W.tile, n / W.tiles * W.blocks, layer);
        if (GAIN && n == 0)
            bulk_load(ring + at::STAGES * at::STAGE_BYTES + at::GAIN +
                          ((layer & 1) * 2 + (I == FFN_IN)) * GAIN_BYTES,
                      p.gain[I == FFN_IN] + layer * p.gain_stride, GAIN_BYTES, &s.full[slot]);
        if (++slot == at::STAGES) {
            slot = 0;
            phase ^= 1;
        }
    }
}

template <class S, uint32_t M>
__device__ __forceinline__ void produce(const params &p, const maps &maps, unsigned char *ring,
                                        statics &s, uint32_t rank)
{
    uint32_t slot = 0, phase = 1;

#pragma unroll 1
    for (uint32_t layer = 0; layer < p.layers; layer++) {
        produce_slice<S, M, ATTN_IN>(p, maps, ring, s, rank, layer, slot, phase);
        produce_slice<S, M, ATTN_OUT>(p, maps, ring, s, rank, layer, slot, phase);
        produce_slice<S, M, FFN_IN>(p, maps, ring, s, rank, layer, slot, phase);
        produce_slice<S, M, FFN_OUT>(p, maps, ring, s, rank, layer, slot, phase);
    }
}

/* --- the consumers --- */

struct state {
    float o[8][2], m, l;
};
struct part { /* what a group of four warps works on */
    uint32_t m, split, head;
    int group, end;    /* of this warp's tokens, 32 in a group */
    uint32_t k_at, v_at; /* this lane's keys and values of the group, in the pool of a layer, 16 bytes */
    bool any;
};
struct kv_group { /* as in paged_decode */
    uint4 k[4][2], v[8];
};

template <typename T, class S, uint32_t M> struct consumer {
    using at = places<S, M>;
    const params &p;
    statics &s;
    unsigned char *ring;
    uint32_t t, warp, lane, r, q, rank;

    template <typename U> __device__ __forceinline__ U *place(uint32_t offset) const
    {
        return (U *)(ring + at::STAGES * at::STAGE_BYTES + offset);
    }

    /* What is computed of these is computed again from here on: kept over all phases of a layer it would take the registers
     * that attention needs, and local memory has next to no L1 beside so much shared memory. */
    __device__ __forceinline__ void forget()
    {
        asm volatile("" : "+r"(t), "+r"(rank));
        warp = t >> 5, lane = t & 31, r = lane >> 2, q = lane & 3;
    }

    /* --- ring --- */

    struct position {
        uint32_t slot, phase;

        __device__ __forceinline__ void next(uint32_t n = 1)
        {
            slot += n; /* at most one round */
            if (slot >= at::STAGES) slot -= at::STAGES, phase ^= 1;
        }
    };
    template <weight_name I> __device__ __forceinline__ position first_stage(uint32_t layer) const
    {
        const uint32_t n = layer * before<S, WEIGHTS>::STAGES + before<S, I>::STAGES;
        return {n % at::STAGES, n / at::STAGES & 1};
    }
    __device__ __forceinline__ const unsigned char *stage(const position &at_stage) const
    {
        return ring + at_stage.slot * at::STAGE_BYTES;
    }

    /* --- exchanges --- */

    __device__ __forceinline__ uint32_t first_head() const
    {
        return rank * S::COLUMNS / D;
    }
    __device__ __forceinline__ uint32_t head_count() const
    {
        return ((rank + 1) * S::COLUMNS - 1) / D - first_head() + 1;
    }
    __device__ __forceinline__ uint32_t bytes_of(exchange e) const
    {
        uint32_t bytes = 0;

        if (e == X_ROWS) return M * S::HIDDEN * 4;
        if (e == QKV_ROWS) return M * S::QKV * 2;
        if (e == ACTS) return M * S::FFN * 2;
#pragma unroll
        for (uint32_t m = 0; m < M; m++)
            if (s.rows[m].pos >= 0)
                bytes += e == ATTENDED ? S::HEADS * D * 2
                                       : s.rows[m].splits * (S::COLUMNS * 4 + head_count() * 8);
        return bytes;
    }
    __device__ __forceinline__ void await(exchange e, uint32_t parity)
    {
        mbarrier_wait(&s.come[e], parity);
        if (t == 0) mbarrier_expect(&s.come[e], bytes_of(e)); /* the next */
    }
    __device__ __forceinline__ uint32_t bar(exchange e) const
    {
        return smem_addr(&s.come[e]);
    }

    /* --- norm --- */

    __device__ __forceinline__ void write_normed(const float *gain)
    {
        const float *x = place<float>(at::X);
#pragma unroll
        for (uint32_t i = 0; i < (M * S::PIECES + WARPS - 1) / WARPS; i++) {
            const uint32_t u = warp + i * WARPS, m = u / S::PIECES,
                           k = u % S::PIECES * 128 + lane * 4;
            if (m >= M || k >= S::HIDDEN) continue;
            const float4 v = *(const float4 *)(x + m * S::HIDDEN + k);
            const float4 g = *(const float4 *)(gain + k);
            const float f = is_bf16<T>() ? 1.f : s.factor[m];
            *(uint2 *)(place<T>(at::XS) + x_place<M>(k, m)) = {
                pack2<T>(v.x * f * g.x, v.y * f * g.y), pack2<T>(v.z * f * g.z, v.w * f * g.w)};
        }
    }
    /* 1 / rms of a row by a warp: sums over pieces of 128 columns, then over the pieces. */
    __device__ __forceinline__ void find_factor(uint32_t m, float eps)
    {
        const float *x = place<float>(at::X) + m * S::HIDDEN;
        float ss[S::PIECES], sum = 0.f;
#pragma unroll
        for (uint32_t i = 0; i < S::PIECES; i++) {
            float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
            if (i * 128 + lane * 4 < S::HIDDEN) v = *(const float4 *)(x + i * 128 + lane * 4);
            ss[i] = (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
        }
#pragma unroll
        for (int o = 16; o; o >>= 1)
#pragma unroll
            for (uint32_t i = 0; i < S::PIECES; i++)
                ss[i] += __shfl_xor_sync(~0u, ss[i], o);
#pragma unroll
        for (uint32_t i = 0; i < S::PIECES; i++)
            sum += ss[i];
        if (lane == 0) s.factor[m] = rsqrtf(sum / (float)S::HIDDEN + eps);
    }
    /* bf16 keeps its precision at any scale, so 1 / rms waits for the output; f16 is scaled first. The first stage of the
     * weight behind brings the gain. */
    template <weight_name W> __device__ __forceinline__ void norm(uint32_t layer)
    {
        constexpr int which = W == FFN_IN;
        const float *gain = place<float>(at::GAIN) + ((layer & 1) * 2 + which) * S::HIDDEN;

        if (warp >= WARPS - M) find_factor(WARPS - 1 - warp, p.eps[which]);
        const position first = first_stage<W>(layer);
        if (!is_bf16<T>()) consumers_sync();
        mbarrier_wait(&s.full[first.slot], first.phase);
        write_normed(gain);
        consumers_sync();
    }
    __device__ __forceinline__ float late_factor(uint32_t m) const
    {
        return is_bf16<T>() && m < M ? s.factor[m] : 1.f;
    }

    /* --- products --- */

    struct tile_rows {
        uint4 lo[2], hi[2];
    };
    __device__ __forceinline__ void load_x(const T *xs, uint32_t kb, uint4 (&x)[2]) const
    {
#pragma unroll
        for (int j = 0; j < 2; j++)
            x[j] = r < M ? *(const uint4 *)(xs + (((kb * 2 + j) * M + r) * 4 + q) * 8)
                         : make_uint4(0, 0, 0, 0);
    }
    /* This lane's share of ROWS rows of a block of 64 columns; the swizzle goes by the address. */
    template <uint32_t TILE>
    __device__ __forceinline__ void load_tile(const unsigned char *a, tile_rows &w) const
    {
        const unsigned char *row = a + r * 128;
        const uint32_t swizzle = (smem_addr(row) >> 7) & 7;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint32_t u = ((q * 2 + j) ^ swizzle) * 16;
            w.lo[j] = w.hi[j] = make_uint4(0, 0, 0, 0);
            if (TILE >= 8 || r < TILE) w.lo[j] = *(const uint4 *)(row + u);
            if (TILE == 16 || r + 8 < TILE) w.hi[j] = *(const uint4 *)(row + 1024 + u);
        }
    }
    /* N tiles or blocks, each c[i] += w[i] x[i * X]: their sums do not wait for each other. */
    template <int N, int X>
    __device__ __forceinline__ void multiply(const tile_rows (&w)[N], const uint4 (*x)[2],
                                             float (&c)[N][4]) const
    {
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
            for (int i = 0; i < N; i++)
                mma_16816<T>(c[i], w[i].lo[j].x, w[i].hi[j].x, w[i].lo[j].y, w[i].hi[j].y,
                             x[i * X][j].x, x[i * X][j].y);
#pragma unroll
            for (int i = 0; i < N; i++)
                mma_16816<T>(c[i], w[i].lo[j].z, w[i].hi[j].z, w[i].lo[j].w, w[i].hi[j].w,
                             x[i * X][j].z, x[i * X][j].w);
        }
    }
    /* Every warp's sums over its blocks, of N tiles from the first, to shared memory: [warp][m][row]. */
    template <weight_name I, int N>
    __device__ __forceinline__ void split_tiles(position &from, const T *xs, uint32_t tile)
    {
        constexpr struct slice W = S::W[I];
        float c[N][4] = {};

#pragma unroll
        for (uint32_t chunk = 0; chunk < W.chunks; chunk++) {
            const uint32_t kb = chunk * W.blocks + warp;
            tile_rows w[N];
            uint4 x[1][2];
            load_x(xs, kb < W.kblocks ? kb : 0, x[0]);
#pragma unroll
            for (int i = 0; i < N; i++) {
                mbarrier_wait(&s.full[from.slot], from.phase);
                load_tile<W.tile>(stage(from) + warp * W.tile * 128, w[i]);
                __syncwarp();
                if (lane == 0)
                    mbarrier_arrive_many(&s.empty[from.slot], warp ? 1 : WARPS + 1 - W.blocks);
                from.next();
            }
            if (W.kblocks % W.blocks == 0 || kb < W.kblocks) multiply<N, 0>(w, x, c);
        }
        float *to = place<float>(at::SCRATCH) + warp * M * W.rows + tile * W.tile;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t m = 2 * q + (e & 1), n = r + (e >> 1) * 8;
            if (m < M && n < W.tile)
#pragma unroll
                for (int i = 0; i < N; i++)
                    to[m * W.rows + i * W.tile + n] = c[i][e];
        }
    }
    template <weight_name I>
    __device__ __forceinline__ void split_product(uint32_t layer, const T *xs)
    {
        constexpr struct slice W = S::W[I];
        constexpr int N = W.tiles <= 4 ? W.tiles : W.tiles % 4 == 0 ? 4 : W.tiles % 3 == 0 ? 3 : 1;
        static_assert(W.chunks == 1 || N == W.tiles, "stages come chunk by chunk");
        position from = first_stage<I>(layer);

        if (warp < W.blocks)
#pragma unroll 1
            for (uint32_t tile = 0; tile < W.tiles; tile += N)
                split_tiles<I, N>(from, xs, tile);
        consumers_sync();
    }
    template <weight_name I>
    __device__ __forceinline__ float warps_sum(uint32_t m, uint32_t n) const
    {
        constexpr struct slice W = S::W[I];
        const float *from = place<float>(at::SCRATCH) + m * W.rows + n;
        float v[W.blocks], sum = 0.f;
#pragma unroll
        for (uint32_t i = 0; i < W.blocks; i++)
            v[i] = from[i * M * W.rows];
#pragma unroll
        for (uint32_t i = 0; i < W.blocks; i++)
            sum += v[i];
        return sum;
    }

    /* --- q k v --- */

    struct turn { /* of an output */
        float2 by;  /* cos, sin */
        T *page;    /* where it goes in the pool of layer 0, or NULL */
    };
    __device__ __forceinline__ turn turn_of(uint32_t idx) const
    {
        constexpr struct slice W = S::W[ATTN_IN];
        const uint32_t m = idx / W.rows, n = rank * W.rows + idx % W.rows, head = n / D, e = n % D;
        turn v = {{1.f, 0.f}, NULL};

        if (m >= p.rows) return v;
        if (head < S::HEADS + S::KV && e < p.rope_dim && s.rows[m].pos >= 0)
            v.by = p.rope[(uint64_t)s.rows[m].pos * (p.rope_dim / 2) + e / 2];
        const int32_t kv_slot = p.kv_slots[m];
        if (head < S::HEADS || kv_slot < 0) return v;
        const bool is_k = head < S::HEADS + S::KV;
        const uint32_t token = kv_slot % KV_BLOCK_TOKENS,
                       kv_head = head - S::HEADS - (is_k ? 0 : S::KV);
        v.page = (T *)p.kv +
                 ((uint64_t)(kv_slot / KV_BLOCK_TOKENS) * S::KV + kv_head) *
                     (2 * KV_BLOCK_TOKENS * D) +
                 (is_k ? token * D + e : KV_BLOCK_TOKENS * D + ((token / 8) * D + e) * 8 + token % 8);
        return v;
    }
    __device__ __forceinline__ void send_qkv(uint32_t layer, const turn (&turns)[at::OUTS])
    {
        constexpr struct slice W = S::W[ATTN_IN];

#pragma unroll
        for (uint32_t i = 0; i < at::OUTS; i++) {
            const uint32_t idx = t + i * CONSUMERS, m = idx / W.rows, n = idx % W.rows;
            if (warp * 32 + i * CONSUMERS >= M * W.rows) break;
            float v = m < M ? warps_sum<ATTN_IN>(m, n) * late_factor(m) : 0.f;
            v += 0.f;
            const float partner = __shfl_xor_sync(~0u, v, 1);
            v = (n & 1) ? v * turns[i].by.x + partner * turns[i].by.y
                        : v * turns[i].by.x - partner * turns[i].by.y;
            const T out = from_float<T>(v);
            /* four columns to all blocks, by four lanes */
            uint16_t bits;
            memcpy(&bits, &out, 2);
            const uint32_t other = __shfl_xor_sync(~0u, (uint32_t)bits, 1);
            const uint32_t pair = lane & 1 ? other | (uint32_t)bits << 16 : bits | other << 16;
            const uint32_t beside = __shfl_xor_sync(~0u, pair, 2);
            if (m >= M) continue;
            const uint32_t dst =
                smem_addr(place<T>(at::QKV) + m * S::QKV + rank * W.rows + (n & ~3u));
#pragma unroll
            for (uint32_t k = 0; k < 4; k++)
                cluster_send8(dst, bar(QKV_ROWS), (lane & 3) * 4 + k, lane & 2 ? beside : pair,
                              lane & 2 ? pair : beside);
            if (turns[i].page)
                *(T *)((char *)turns[i].page + layer * p.kv_layer_bytes) = out;
        }
    }

    /* --- attention --- */

    static constexpr uint32_t RECORD = 2 * KV_BLOCK_TOKENS * D / 8; /* 16-byte pieces */
    __device__ __forceinline__ void find_group(part &w) const
    {
        const struct row &row = s.rows[w.m];
        const int last = row.pos / KV_BLOCK_TOKENS;
        const uint32_t k_block = row.table[min(w.group * 2 + (int)(r >> 2), last)],
                       v_block = row.table[min(w.group * 2 + (int)(q >> 1), last)];
        w.k_at = (k_block * S::KV + w.head) * RECORD +
                 (((r >> 1) * 8 % KV_BLOCK_TOKENS + (r & 1)) * D + q * 8) / 8;
        w.v_at = (v_block * S::KV + w.head) * RECORD +
                 (KV_BLOCK_TOKENS * D + ((q & 1) * D + r) * 8) / 8;
    }
    __device__ __forceinline__ void load_group(kv_group &g, const part &w, uint32_t layer) const
    {
        const uint4 *pool = (const uint4 *)(p.kv + layer * p.kv_layer_bytes);
        const uint4 *k = pool + w.k_at, *v = pool + w.v_at;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                g.k[i][j] = load_stream_coherent(k + (((i >> 1) * 4 + (i & 1) * 2) * D + j * 32) / 8);
#pragma unroll
        for (int i = 0; i < 8; i++)
            g.v[i] = load_stream_coherent(v + i * 8);
    }
    __device__ __forceinline__ void load_group_or_zero(kv_group &g, const part &w,
                                                       uint32_t layer) const
    {
        if (w.group < w.end)
            load_group(g, w, layer);
        else /* a value on every path, or the registers are taken throughout */
            g = {};
    }
    /* The next part of this warp's group of four. */
    __device__ __forceinline__ void next_part(part_list<S, M> &parts, uint32_t &count, part &w) const
    {
        w = {};
        while ((w.any = parts.next(w.m, w.split, w.head)) && count++ % QUADS != warp / 4)
            ;
        if (!w.any) return;
        const struct row &row = s.rows[w.m];
        w.group = w.split * row.per + warp % 4;
        w.end = min(row.groups, (int)(w.split + 1) * row.per);
        if (w.group < w.end) find_group(w);
    }
    /* The newest token, whose page another block may still be writing. */
    __device__ __forceinline__ void put_newest_k(kv_group &g, const T *qkv, uint32_t head,
                                                 int token) const
    {
        const T *k = qkv + (S::HEADS + head) * D + q * 8;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (token == (int)((r >> 1) * 8 + (r & 1)) + i * 2) {
                g.k[i][0] = *(const uint4 *)k;
                g.k[i][1] = *(const uint4 *)(k + 32);
            }
    }
    __device__ __forceinline__ void put_newest_v(uint4 (&v)[8], const T *qkv, uint32_t head,
                                                 int token) const
    {
        const T *from = qkv + (S::HEADS + S::KV + head) * D + r;
        uint32_t mask[4]; /* of its 16 bits in a lane's 8 tokens of one dim */
#pragma unroll
        for (int word = 0; word < 4; word++)
            mask[word] = token / 2 != (int)q * 4 + word ? 0 : token & 1 ? 0xffff0000u : 0xffffu;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint16_t bits;
            memcpy(&bits, from + i * 8, 2);
            const uint32_t both = bits | (uint32_t)bits << 16;
            v[i].x = (v[i].x & ~mask[0]) | (both & mask[0]);
            v[i].y = (v[i].y & ~mask[1]) | (both & mask[1]);
            v[i].z = (v[i].z & ~mask[2]) | (both & mask[2]);
            v[i].w = (v[i].w & ~mask[3]) | (both & mask[3]);
        }
    }
    __device__ __forceinline__ void attend_group(state &a, kv_group &g, const part &w,
                                                 const uint32_t (&Q)[4][2], const T *qkv,
                                                 int pos) const
    {
        const float to_log2 = p.scale * LOG2E;
        const int tb = w.group * 32;
        const bool newest = pos / 32 == w.group;
        float c[4][2]; /* c[i][e]: token tb + q*8 + i*2 + e */

        if (newest) put_newest_k(g, qkv, w.head, pos % 32);
#pragma unroll
        for (int i = 0; i < 4; i += 2) { /* two sums that do not wait for each other */
            float d[2][4] = {};
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const uint4 &b = g.k[i + k][j / 2];
                    mma_16816<T>(d[k], Q[j][0], 0, Q[j][1], 0, j & 1 ? b.z : b.x,
                                 j & 1 ? b.w : b.y);
                }
            c[i][0] = d[0][0], c[i][1] = d[0][1], c[i + 1][0] = d[1][0], c[i + 1][1] = d[1][1];
        }
        if (newest)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (tb + (int)q * 8 + i * 2 + e > pos) c[i][e] = MASKED;
        float mx = MASKED;
#pragma unroll
        for (int i = 0; i < 4; i++)
            mx = fmaxf(mx, fmaxf(c[i][0], c[i][1]));
        mx = lanes_max<4>(mx) * to_log2;
        const float m_new = fmaxf(a.m, mx);
        if (__any_sync(~0u, m_new > a.m)) {
            const float alpha = exp2_fast(a.m - m_new);
            a.l *= alpha;
#pragma unroll
            for (int d = 0; d < 8; d++)
                a.o[d][0] *= alpha, a.o[d][1] *= alpha;
            a.m = m_new;
        }
        uint32_t A[2][2];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float p0 = exp2_fast(c[i][0] * to_log2 - a.m),
                        p1 = exp2_fast(c[i][1] * to_log2 - a.m);
            a.l += p0 + p1;
            A[i >> 1][i & 1] = pack2<T>(p0, p1);
        }
        if (newest) {
            put_newest_v(g.v, qkv, w.head, pos % 32);
            /* 0 * NaN: what lies past the end must not reach the sum */
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int left = pos - (tb + (int)q * 8 + i * 2); /* of two tokens in a word */
                const uint32_t keep = left < 0 ? 0 : left < 1 ? 0xffffu : ~0u;
#pragma unroll
                for (int d = 0; d < 8; d++)
                    (&g.v[d].x)[i] &= keep;
            }
        }
#pragma unroll
        for (int d = 0; d < 8; d += 2) {
            float c[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                c[i][0] = a.o[d + i][0], c[i][1] = a.o[d + i][1], c[i][2] = c[i][3] = 0.f;
                mma_16816<T>(c[i], A[0][0], 0, A[0][1], 0, g.v[d + i].x, g.v[d + i].y);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                mma_16816<T>(c[i], A[1][0], 0, A[1][1], 0, g.v[d + i].z, g.v[d + i].w);
                a.o[d + i][0] = c[i][0], a.o[d + i][1] = c[i][1];
            }
        }
    }
    /* The four warps' states of a part are merged and sent to the blocks that own its columns. */
    __device__ __forceinline__ void send_part(const state &a, uint32_t m, uint32_t split,
                                              uint32_t kv_head)
    {
        constexpr uint32_t GROUP = S::GROUP, STRIDE = D + 4;
        const uint32_t quad = warp / 4, w4 = warp % 4;
        float *o = place<float>(at::SCRATCH) + quad * at::QUAD_FLOATS;
        float *om = o + 4 * GROUP * STRIDE, *ol = om + 32;

        if (r < GROUP)
#pragma unroll
            for (int d = 0; d < 8; d++)
                *(float2 *)&o[(w4 * GROUP + r) * STRIDE + d * 8 + 2 * q] =
                    make_float2(a.o[d][0], a.o[d][1]);
        if (q == 0) om[w4 * 8 + r] = a.m, ol[w4 * 8 + r] = a.l;
        quad_sync(quad);
        for (uint32_t e = t % 128; e < GROUP * (D / 4); e += 128) {
            const uint32_t h = e / (D / 4), d = e % (D / 4) * 4;
            const float most = fmaxf(fmaxf(om[h], om[8 + h]), fmaxf(om[16 + h], om[24 + h]));
            float4 acc = make_float4(0.f, 0.f, 0.f, 0.f);
            float L = 0.f;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float f = exp2_fast(om[i * 8 + h] - most);
                const float4 x = *(const float4 *)&o[(i * GROUP + h) * STRIDE + d];
                acc.x += f * x.x, acc.y += f * x.y, acc.z += f * x.z, acc.w += f * x.w;
                L += f * ol[i * 8 + h];
            }
            const uint32_t head = kv_head * GROUP + h, column = head * D + d,
                           owner = column / S::COLUMNS;
            float *to = place<float>(at::PARTS) + (m * p.splits_max + split) * S::PART;
            cluster_send16(smem_addr(to + (column - owner * S::COLUMNS)), bar(PARTS), owner,
                           make_uint4(__float_as_uint(acc.x), __float_as_uint(acc.y),
                                      __float_as_uint(acc.z), __float_as_uint(acc.w)));
            if (d == 0)
                for (uint32_t b = owner; b <= (column + D - 1) / S::COLUMNS; b++)
                    cluster_send8(smem_addr(to + S::COLUMNS + (head - b * S::COLUMNS / D) * 2),
                                  bar(PARTS), b, __float_as_uint(most), __float_as_uint(L));
        }
    }
    /* What every layer does alike. */
    struct attention_plan {
        part first;
        part_list<S, M> parts; /* behind it */
        uint32_t count;
        bool more; /* than the first */
    };
    __device__ __forceinline__ attention_plan plan_attention() const
    {
        attention_plan plan = {{}, part_list<S, M>(s.rows, rank), 0, false};
        next_part(plan.parts, plan.count, plan.first);
        attention_plan rest = plan;
        part second;
        next_part(rest.parts, rest.count, second);
        plan.more = second.any;
        return plan;
    }
    __device__ __forceinline__ void attention(uint32_t layer, const attention_plan &plan,
                                              kv_group &g)
    {
        part w = plan.first;
        part_list<S, M> parts = plan.parts;
        uint32_t count = plan.count;

        mbarrier_wait(&s.come[QKV_ROWS], layer & 1);
        while (w.any) {
            const T *qkv = place<T>(at::QKV) + w.m * S::QKV;
            const int pos = s.rows[w.m].pos;
            const uint32_t m = w.m, split = w.split, head = w.head;
            uint32_t Q[4][2];
            state a;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint4 v = make_uint4(0, 0, 0, 0);
                if (r < S::GROUP)
                    v = *(const uint4 *)(qkv + (w.head * S::GROUP + r) * D + j * 32 + q * 8);
                Q[2 * j][0] = v.x, Q[2 * j][1] = v.y, Q[2 * j + 1][0] = v.z, Q[2 * j + 1][1] = v.w;
            }
            a.m = MASKED, a.l = 0.f;
#pragma unroll
            for (int d = 0; d < 8; d++)
                a.o[d][0] = a.o[d][1] = 0.f;
            while (w.group < w.end) {
                attend_group(a, g, w, Q, qkv, pos);
                w.group += 4;
                if (w.group < w.end) {
                    find_group(w);
                    load_group(g, w, layer);
                }
            }
            a.l = lanes_sum<4>(a.l);
            w.any = false;
            if (plan.more) {
                next_part(parts, count, w);
                load_group_or_zero(g, w, layer);
            }
            send_part(a, m, split, head);
            if (w.any) quad_sync(warp / 4); /* the part has been sent */
        }
        await(QKV_ROWS, layer & 1);
    }
    __device__ __forceinline__ bool any_row() const
    {
        for (uint32_t m = 0; m < M; m++)
            if (s.rows[m].pos >= 0) return true;
        return false;
    }
    /* The sum of the parts, in order, of this block's columns, to all blocks. */
    __device__ __forceinline__ void merge_parts(uint32_t layer)
    {
        const uint32_t heads = head_count();

        if (!any_row()) return; /* an exchange of no bytes would be over before it is waited for */
        await(PARTS, layer & 1);
        for (uint32_t u = warp; u < M * heads; u += WARPS) {
            const uint32_t m = u / heads, lh = u % heads, head = first_head() + lh;
            if (s.rows[m].pos < 0) continue;
            const uint32_t splits = s.rows[m].splits;
            const uint32_t begin = max(head * D, rank * S::COLUMNS),
                           end = min((head + 1) * D, (rank + 1) * S::COLUMNS);
            const float *from = place<float>(at::PARTS) + m * p.splits_max * S::PART;
            float2 ml = make_float2(MASKED, 0.f);
            if (lane < splits) ml = *(const float2 *)(from + lane * S::PART + S::COLUMNS + lh * 2);
            const float most = lanes_max<32>(ml.x);
            const float f = exp2_fast(ml.x - most);
            const float L = lanes_sum<32>(lane < splits ? f * ml.y : 0.f);
            const uint32_t packets = (end - begin) / 4;
            from += (begin - rank * S::COLUMNS) + min(lane, packets - 1) * 4;
            float4 acc = make_float4(0.f, 0.f, 0.f, 0.f);
            uint2 out;
            if (splits == 1) {
                acc = *(const float4 *)from;
                out = make_uint2(pack2<T>(acc.x / L, acc.y / L), pack2<T>(acc.z / L, acc.w / L));
            } else {
#pragma unroll 1
                for (uint32_t i0 = 0; i0 < splits; i0 += 8) {
                    float4 x[8];
#pragma unroll
                    for (uint32_t i = 0; i < 8; i++)
                        if (i0 + i < splits) x[i] = *(const float4 *)(from + (i0 + i) * S::PART);
#pragma unroll
                    for (uint32_t i = 0; i < 8; i++) {
                        const float by = __shfl_sync(~0u, f, (i0 + i) & 31);
                        if (i0 + i >= splits) continue;
                        acc.x += by * x[i].x, acc.y += by * x[i].y, acc.z += by * x[i].z,
                            acc.w += by * x[i].w;
                    }
                }
                const float inv = 1.f / L;
                out = make_uint2(pack2<T>(acc.x * inv, acc.y * inv),
                                 pack2<T>(acc.z * inv, acc.w * inv));
            }
            /* half a warp sends a packet to the 16 blocks */
            for (uint32_t i = 0; i < packets; i += 2) {
                const uint32_t packet = i + lane / CTAS;
                const uint32_t a = __shfl_sync(~0u, out.x, packet & 31),
                               b = __shfl_sync(~0u, out.y, packet & 31);
                if (packet < packets)
                    cluster_send8(smem_addr(place<T>(at::XS) + x_place<M>(begin + packet * 4, m)),
                                  bar(ATTENDED), lane % CTAS, a, b);
            }
        }
        await(ATTENDED, layer & 1);
    }

    /* --- products onto x; x: this thread's output, t = m * rows + n --- */

    template <weight_name I>
    __device__ __forceinline__ void add_product(uint32_t layer, const T *xs, float &x)
    {
        constexpr struct slice W = S::W[I];
        const uint32_t m = t / W.rows, n = t % W.rows, column = rank * W.rows + n;

        split_product<I>(layer, xs);
        if (warp * 32 >= M * W.rows) return;
        if (m < M) {
            float v = warps_sum<I>(m, n);
            v += 0.f + x;
            x = v;
        }
        if (I == FFN_OUT && layer + 1 == p.layers) {
            if (m < p.rows) p.x[m * p.x_stride + column] = x;
            return;
        }
        uint4 four;
        const int group = lane & ~3;
        four.x = __float_as_uint(__shfl_sync(~0u, x, group));
        four.y = __float_as_uint(__shfl_sync(~0u, x, group + 1));
        four.z = __float_as_uint(__shfl_sync(~0u, x, group + 2));
        four.w = __float_as_uint(__shfl_sync(~0u, x, group + 3));
        if (m >= M) return;
        const uint32_t dst = smem_addr(place<float>(at::X) + m * S::HIDDEN + (column & ~3u));
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            cluster_send16(dst, bar(X_ROWS), (lane & 3) * 4 + k, four);
    }

    /* --- gate and up: rows 2i, 2i + 1; a warp has whole tiles --- */

    __device__ __forceinline__ void tile_product(const unsigned char *a, const T *xs,
                                                 float (&v)[4]) const
    {
        constexpr struct slice W = S::W[FFN_IN];
        constexpr int N = W.kblocks % 3 == 0 ? 3 : W.kblocks % 2 == 0 ? 2 : 1;
#pragma unroll
        for (uint32_t kb = 0; kb < W.kblocks; kb += N) {
            float c[N][4] = {};
            tile_rows w[N];
            uint4 x[N][2];
#pragma unroll
            for (int i = 0; i < N; i++) {
                load_x(xs, kb + i, x[i]);
                load_tile<16>(a + (kb + i) * 2048, w[i]);
            }
            multiply<N, 1>(w, x, c);
#pragma unroll
            for (int i = 0; i < N; i++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    v[e] += c[i][e];
        }
    }
    /* For few rows: tiles are done one after the other by all warps, so that their stages are free again early. */
    __device__ __forceinline__ void ffn_in_split(uint32_t layer)
    {
        constexpr struct slice W = S::W[FFN_IN];

        split_product<FFN_IN>(layer, place<T>(at::XS));
#pragma unroll
        for (uint32_t i = 0; i < (M * W.rows + CONSUMERS - 1) / CONSUMERS; i++) {
            const uint32_t idx = t + i * CONSUMERS, m = idx / W.rows, n = idx % W.rows;
            if (warp * 32 + i * CONSUMERS >= M * W.rows) break;
            float y = warps_sum<FFN_IN>(m, n) * late_factor(m);
            y += 0.f;
            const float up = __shfl_xor_sync(~0u, y, 1);
            const T out = from_float<T>(activate(y, p.act) * up); /* of even lanes */
            uint16_t bits;
            memcpy(&bits, &out, 2);
            const int eight = lane & ~7;
            const uint32_t a = __shfl_sync(~0u, (uint32_t)bits, eight),
                           b = __shfl_sync(~0u, (uint32_t)bits, eight + 2),
                           c = __shfl_sync(~0u, (uint32_t)bits, eight + 4),
                           d = __shfl_sync(~0u, (uint32_t)bits, eight + 6);
            const uint32_t k = rank * (W.rows / 2) + (n & ~7u) / 2;
            const uint32_t dst = smem_addr(place<T>(at::ACTS) + x_place<M>(k, m));
#pragma unroll
            for (uint32_t j = 0; j < 2; j++)
                cluster_send8(dst, bar(ACTS), (lane & 7) * 2 + j, a | b << 16, c | d << 16);
        }
    }
    static constexpr bool FFN_SPLIT = M <= 2 && M * S::W[FFN_IN].rows % 32 == 0;
    __device__ __forceinline__ void ffn_in_tiles(uint32_t layer)
    {
        constexpr struct slice W = S::W[FFN_IN];
        position from = first_stage<FFN_IN>(layer);
        T *mine = place<T>(at::ACT_OUT) + warp * M * 8;

        for (uint32_t i = 0; i < warp; i += RING_MIN)
            from.next(min(warp - i, RING_MIN));
#pragma unroll 1
        for (uint32_t tile = warp; tile < W.tiles; tile += WARPS) {
            float v[4] = {};
            mbarrier_wait(&s.full[from.slot], from.phase);
            tile_product(stage(from), place<T>(at::XS), v);
            __syncwarp();
            if (lane == 0) mbarrier_arrive_many(&s.empty[from.slot], WARPS);
            for (int i = 0; i < WARPS; i += RING_MIN)
                from.next(RING_MIN);
#pragma unroll
            for (int e = 0; e < 4; e++) { /* row r + (e / 2) * 8 of the tile, row 2q + e % 2 of x */
                const uint32_t m = 2 * q + (e & 1);
                float y = v[e] * late_factor(m);
                y += 0.f;
                const float up = __shfl_xor_sync(~0u, y, 4);
                if ((r & 1) == 0 && m < M)
                    mine[m * 8 + (e >> 1) * 4 + r / 2] = from_float<T>(activate(y, p.act) * up);
            }
            __syncwarp();
#pragma unroll
            for (uint32_t i = 0; i < (M * CTAS + 31) / 32; i++) {
                const uint32_t m = i * 2 + lane / CTAS,
                               k = rank * (W.rows / 2) + tile * 8;
                if (m < M)
                    cluster_send16(smem_addr(place<T>(at::ACTS) + x_place<M>(k, m)), bar(ACTS),
                                   lane % CTAS, *(const uint4 *)(mine + m * 8));
            }
            __syncwarp();
        }
    }

    __device__ __forceinline__ void run()
    {
        constexpr uint32_t ROWS_OF_X = S::W[ATTN_OUT].rows;
        turn turns[at::OUTS];
        float x = 0.f;

#pragma unroll
        for (uint32_t i = 0; i < at::OUTS; i++)
            turns[i] = turn_of(t + i * CONSUMERS);
        pdl_wait();
        if (t / ROWS_OF_X < p.rows)
            x = ((volatile float *)
                     p.x)[t / ROWS_OF_X * p.x_stride + rank * ROWS_OF_X + t % ROWS_OF_X];
        for (uint32_t i = t; i < M * S::HIDDEN / 4; i += CONSUMERS) {
            const uint32_t m = i / (S::HIDDEN / 4), k = i % (S::HIDDEN / 4) * 4;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (m < p.rows) v = load_shared_state(p.x + m * p.x_stride + k);
            *(uint4 *)(place<float>(at::X) + m * S::HIDDEN + k) = v;
        }
        const attention_plan plan = plan_attention();
        consumers_sync();
#pragma unroll 1
        for (uint32_t layer = 0; layer < p.layers; layer++) {
            kv_group g;
            if (t == 0) *(volatile uint32_t *)&s.layer = layer;
            if (layer) await(X_ROWS, 1);
            norm<ATTN_IN>(layer);
            forget();
            split_product<ATTN_IN>(layer, place<T>(at::XS));
            load_group_or_zero(g, plan.first, layer);
            send_qkv(layer, turns);
            attention(layer, plan, g);
            forget();
            merge_parts(layer);
            forget();
            add_product<ATTN_OUT>(layer, place<T>(at::XS), x);
            await(X_ROWS, 0);
            norm<FFN_IN>(layer);
            forget();
            if (FFN_SPLIT)
                ffn_in_split(layer);
            else
                ffn_in_tiles(layer);
            await(ACTS, layer & 1);
            forget();
            add_product<FFN_OUT>(layer, place<T>(at::ACTS), x);
            forget();
        }
    }
};

__device__ __forceinline__ struct row row_of(const params &p, uint32_t m)
{
    struct row row = {m < p.rows ? p.positions[m] : -1, 0, 0, 0, p.tables};

    if (row.pos < 0) return row;
    row.groups = row.pos / 32 + 1;
    row.table += (uint64_t)p.slots[m] * p.table_stride;
    row.splits = max(1, min((int)p.splits_max, (row.groups + 3) / 4));
    row.per = ((row.groups + row.splits - 1) / row.splits + 3) / 4 * 4;
    row.splits = (row.groups + row.per - 1) / row.per;
    return row;
}

template <typename T, class S, uint32_t M>
__global__ void __launch_bounds__(THREADS, 1)
    chain_kernel(const __grid_constant__ maps maps, const __grid_constant__ params p)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ __align__(8) statics s;
    const uint32_t t = threadIdx.x, warp = t >> 5, lane = t & 31, rank = cluster_rank();
    consumer<T, S, M> c = {p, s, shared, t, warp, lane, lane >> 2, lane & 3, rank};

    pdl_trigger();
    /* Positions and tables are those of the step: written before the kernel in front of this one began. */
    if (t < M) s.rows[t] = row_of(p, t);
    if (t == 0) {
        s.layer = 0;
        for (uint32_t i = 0; i < places<S, M>::STAGES; i++) {
            mbarrier_init(&s.full[i], 1);
            mbarrier_init(&s.empty[i], WARPS);
        }
        for (int i = 0; i < EXCHANGES; i++)
            mbarrier_init(&s.come[i], 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (t == 0)
        for (int i = 0; i < EXCHANGES; i++)
            mbarrier_expect(&s.come[i], c.bytes_of((exchange)i));
    __syncwarp();
    cluster_arrive(); /* nobody is sent anything before it is ready, */
    if (warp >= WARPS) {
        registers_shrink<24>();
        if (warp == WARPS && lane == 0) produce<S, M>(p, maps, shared, s, rank);
        if (warp == WARPS + 1) prefetch_pages<S, M>(p, s, rank, lane);
        __syncwarp();
        pdl_wait();
        cluster_wait();
    } else {
        registers_grow<160>();
        cluster_wait();
        c.run();
    }
    __syncwarp();
    cluster_arrive(); /* and nobody leaves while another may send */
    cluster_wait();
}

/* --- host --- */

using smollm2_like = model<576, 1536, 9, 3>;

template <typename T, class S, uint32_t M>
cudaError_t allow(void (**kernel)(const maps, const params), uint32_t *shared)
{
    *kernel = chain_kernel<T, S, M>;
    *shared = places<S, M>::BYTES;
    cudaError_t e =
        cudaFuncSetAttribute(*kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)*shared);
    if (!e)
        e = cudaFuncSetAttribute(*kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    return e;
}

template <typename T, class S>
cudaError_t allow_rows(uint32_t rows, void (**kernel)(const maps, const params), uint32_t *shared)
{
    if (rows < 1 || rows > ROWS) return cudaErrorInvalidValue;
    return rows == 1   ? allow<T, S, 1>(kernel, shared)
           : rows == 2 ? allow<T, S, 2>(kernel, shared)
           : rows <= 4 ? allow<T, S, 4>(kernel, shared)
                       : allow<T, S, 8>(kernel, shared);
}

template <class S> bool is_shape(const struct decode_chain_shape *s)
{
    return s->hidden == S::HIDDEN && s->ffn == S::FFN && s->heads == S::HEADS &&
           s->kv_heads == S::KV && s->head_dim == D && s->layers > 0 && s->rope_dim % 2 == 0 &&
           s->rope_dim <= D && s->splits_max >= 1 && s->splits_max <= DECODE_CHAIN_SPLITS_MAX;
}

template <typename T> bool can_place()
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute cluster;
    void (*kernel)(const maps, const params);
    uint32_t shared;
    int clusters = 0;

    if (allow_rows<T, smollm2_like>(1, &kernel, &shared)) return false;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = CTAS, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.gridDim = dim3(CTAS);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = SHARED_MAX;
    config.attrs = &cluster;
    config.numAttrs = 1;
    return !cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) && clusters > 0;
}

template <typename T>
cudaError_t launch_chain(const struct kernel_context *ctx, const struct decode_chain_args *a)
{
    const struct decode_chain *chain = a->chain;
    struct maps maps;
    params p = {a->rows, chain->shape.layers, chain->shape.rope_dim, chain->shape.splits_max};
    void (*kernel)(const struct maps, const params);
    uint32_t shared;

    p.eps[0] = a->attn_eps, p.eps[1] = a->ffn_eps, p.scale = a->scale, p.act = a->act;
    p.x = a->x, p.x_stride = a->x_stride;
    p.gain[0] = chain->attn_gain, p.gain[1] = chain->ffn_gain, p.gain_stride = chain->gain_stride;
    p.kv = (char *)a->kv, p.kv_layer_bytes = a->kv_layer_bytes, p.rope = a->rope;
    p.positions = a->positions, p.kv_slots = a->kv_slots, p.slots = a->slots;
    p.tables = a->tables, p.table_stride = a->table_stride;
    memcpy(&maps, chain->maps, sizeof maps);
    cudaError_t e = allow_rows<T, smollm2_like>(a->rows, &kernel, &shared);
    return e ? e
             : launch_clusters(ctx, kernel, dim3(CTAS), dim3(THREADS), shared, CTAS, maps, p);
}

} // namespace

extern "C" bool decode_chain_fits(const struct kernel_context *ctx,
                                  const struct decode_chain_shape *shape)
{
    if (ctx->capability < 90 || !is_shape<smollm2_like>(shape)) return false;
    DISPATCH(ctx, can_place<T>());
}

extern "C" cudaError_t decode_chain_init(struct decode_chain *out,
                                         const struct decode_chain_shape *shape,
                                         const struct decode_chain_weights *weights,
                                         enum kernel_type type)
{
    const void *base[WEIGHTS] = {weights->attn_in, weights->attn_out, weights->ffn_in,
                                 weights->ffn_out};

    if (!is_shape<smollm2_like>(shape) || weights->stride % 16) return cudaErrorInvalidValue;
    *out = {};
    out->shape = *shape;
    out->attn_gain = (const char *)weights->attn_gain;
    out->ffn_gain = (const char *)weights->ffn_gain;
    out->gain_stride = weights->stride;
    for (int i = 0; i < WEIGHTS; i++) {
        const struct slice &w = smollm2_like::W[i];
        const uint64_t dims[4] = {64, (uint64_t)w.rows * CTAS, w.kblocks, shape->layers};
        const uint64_t strides[3] = {(uint64_t)w.kblocks * 128, 128,
                                     shape->layers > 1 ? weights->stride : 16};
        const uint32_t box[4] = {64, w.tile, w.blocks, 1};
        CUtensorMap map;
        cudaError_t e = tensor_map_4d(&map, type, base[i], dims, strides, box);
        if (e) return e;
        memcpy(out->maps[i], &map, sizeof map);
    }
    return cudaSuccess;
}

extern "C" cudaError_t decode_chain_run(const struct kernel_context *ctx,
                                        const struct decode_chain_args *args)
{
    DISPATCH(ctx, launch_chain<T>(ctx, args));
}
