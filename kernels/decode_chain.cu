/* decode_chain.cu - all layers of a decode step of one row in one launch (decode_chain.h).
 *
 * Why      A layer of a model of some 100 MB is 5 launches that wait for each other, 2.8 us each, whatever they read. Here all
 *          layers run in one cluster of 16 blocks, whose dependencies are stores to each other's shared memory and barriers
 *          there, 0.4 us each. A cluster is placed as a whole, so its blocks may wait for each other.
 * Roles    Each block owns 1/16 of the rows of every weight. One producer thread streams its slices of all layers in order
 *          through a ring (TMA boxes of whole rows, 128-byte swizzle), and runs ahead of the dependencies; one warp brings
 *          pages to L2 a layer ahead. 12 consumer warps: a warp takes the 64-column block of its number of every tile, sums
 *          are added in order through shared memory.
 * Layer    norm, q k v -> all blocks; parts of attention -> the block that owns those columns; its sum -> all; x + attn_out
 *          -> all; norm, gate and up -> all; x + ffn_out -> all. A block sends its columns with st.async; the receiver's
 *          barrier counts bytes. Between two uses of a buffer lies at least one exchange that needs every block, so no
 *          buffer is written while a slow block still reads it.
 * Attention  parts (split, KV head) are dealt to the blocks, and in a block to 3 groups of 4 warps, each as a block of
 *          paged_decode; the newest token comes from q k v and not from its page.
 * Numerics The same multiplications and sums in the same order as skinny_gemm and paged_decode: bit for bit.
 * Limits   Local memory has next to no L1 beside so much shared memory: one spilled register in a phase costs more than the
 *          phase (an earlier version with 200 bytes of them took 540 us a step, one with 136 bytes 437 us, launches 420 us).
 *          So there is one row, one part and one group of 32 tokens to a warp, and the compiler must report no spills.
 * Floor    weights and pages through 16 SMs: 76 GB/s each, 1.2 TB/s in all, measured (one cluster of 16, H200): 183 us for
 *          the 212 MB of SmolLM2-135M's layers.
 * Measured see docs/profiling.md; the device measures both ways when it compiles and takes what is faster. */
#include "common/activation.cuh"
#include "common/cluster_send.cuh"
#include "common/tensor_map.h"
#include "common/wgmma.cuh"
#include "decode_chain.cuh"
#include "kv_layout.h"

namespace
{

/* As in skinny_gemm: lane (r = m % 8, q) of the mma wants columns q*16 + j*8 .. +7 of a block of 64 as one read. */
__device__ __forceinline__ uint32_t x_place(uint32_t k)
{
    const uint32_t kb = k >> 6, q = (k >> 4) & 3, j = (k >> 3) & 1;
    return ((kb * 2 + j) * 4 + q) * 8 + (k & 7);
}

__device__ __forceinline__ void consumers_sync()
{
    asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
}

__device__ __forceinline__ void quad_sync(int quad)
{
    asm volatile("bar.sync %0, 128;" ::"r"(2 + quad) : "memory");
}

/* Parts (split, KV head) are dealt to the blocks, then to their groups of four warps. */
__device__ __forceinline__ uint32_t part_of(uint32_t rank, uint32_t quad)
{
    return rank + quad * CTAS;
}

/* --- warps behind the consumers --- */

/* One warp: this block's pages to L2, a layer ahead; a lane has one. */
template <class S>
__device__ __forceinline__ void prefetch_pages(const params &p, const statics &s, uint32_t rank,
                                               uint32_t lane)
{
    constexpr uint32_t RECORD = 2 * KV_BLOCK_TOKENS * D * 2, BLOCKS = 128 / KV_BLOCK_TOKENS;
    const uint32_t part = part_of(rank, lane / BLOCKS), split = part / S::KV;
    const int block = split * BLOCKS + lane % BLOCKS;
    const bool mine =
        lane / BLOCKS < QUADS && s.row.pos >= 0 && block <= s.row.pos / KV_BLOCK_TOKENS;
    const uint64_t at = mine ? ((uint64_t)s.row.table[block] * S::KV + part % S::KV) * RECORD : 0;

    for (uint32_t layer = 0; layer < p.layers; layer++) {
        while (*(const volatile uint32_t *)&s.layer + 1 < layer)
            __nanosleep(200);
        if (mine) bulk_prefetch(p.kv + layer * p.kv_layer_bytes + at, RECORD);
    }
}

/* One thread: a slice of a weight, stage by stage; the first brings the gain of the norm in front, where there is one. */
template <class S, weight_name I>
__device__ __forceinline__ void produce_slice(const params &p, const maps &maps,
                                              unsigned char *ring, statics &s, uint32_t rank,
                                              uint32_t layer, uint32_t &slot, uint32_t &phase)
{
    using at = places<S>;
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

template <class S>
__device__ __forceinline__ void produce(const params &p, const maps &maps, unsigned char *ring,
                                        statics &s, uint32_t rank)
{
    uint32_t slot = 0, phase = 1;

#pragma unroll 1
    for (uint32_t layer = 0; layer < p.layers; layer++) {
        produce_slice<S, ATTN_IN>(p, maps, ring, s, rank, layer, slot, phase);
        produce_slice<S, ATTN_OUT>(p, maps, ring, s, rank, layer, slot, phase);
        produce_slice<S, FFN_IN>(p, maps, ring, s, rank, layer, slot, phase);
        produce_slice<S, FFN_OUT>(p, maps, ring, s, rank, layer, slot, phase);
    }
}

/* --- the consumers --- */

struct part { /* what a group of four warps works on, and this warp of it */
    uint32_t split, head;
    int group;           /* of 32 tokens */
    uint32_t k_at, v_at; /* this lane's keys and values in the pool of a layer, in 16 bytes */
    bool any, mine;      /* there is a part; there is a group */
};
struct turn { /* of an output of q k v */
    float cos, sin;
    char *page; /* where it goes in the pool of layer 0, or NULL */
};

template <typename T, class S> struct consumer {
    using at = places<S>;
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
        switch (e) {
        case X_ROWS: return S::HIDDEN * 4;
        case QKV_ROWS: return S::QKV * 2;
        case PARTS: return s.row.splits * (S::COLUMNS * 4 + head_count() * 8);
        case ATTENDED: return S::HEADS * D * 2;
        default: return S::FFN * 2;
        }
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

    /* 1 / rms by a warp: sums over pieces of 128 columns, then over the pieces. */
    __device__ __forceinline__ void find_factor(float eps)
    {
        const float *x = place<float>(at::X);
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
        if (lane == 0) s.factor = rsqrtf(sum / (float)S::HIDDEN + eps);
    }
    /* bf16 keeps its precision at any scale, so 1 / rms waits for the output; f16 is scaled first. The first stage of the
     * weight behind brings the gain. */
    __device__ __forceinline__ void norm(uint32_t layer, uint32_t which)
    {
        const float *gain = place<float>(at::GAIN) + ((layer & 1) * 2 + which) * S::HIDDEN;
        const position first = which ? first_stage<FFN_IN>(layer) : first_stage<ATTN_IN>(layer);
        const uint32_t k = t * 4;

        if (warp == WARPS - 1) find_factor(p.eps[which]);
        if (!is_bf16<T>()) consumers_sync();
        mbarrier_wait(&s.full[first.slot], first.phase);
        if (k < S::HIDDEN) {
            const float4 v = *(const float4 *)(place<float>(at::X) + k);
            const float4 g = *(const float4 *)(gain + k);
            const float f = is_bf16<T>() ? 1.f : s.factor;
            *(uint2 *)(place<T>(at::XS) + x_place(k)) = {pack2<T>(v.x * f * g.x, v.y * f * g.y),
                                                         pack2<T>(v.z * f * g.z, v.w * f * g.w)};
        }
        consumers_sync();
    }
    __device__ __forceinline__ float late_factor() const
    {
        return is_bf16<T>() ? s.factor : 1.f;
    }

    /* --- products --- */

    struct tile_rows {
        uint4 lo[2], hi[2];
    };
    __device__ __forceinline__ void load_x(const T *xs, uint32_t kb, uint4 (&x)[2]) const
    {
#pragma unroll
        for (int j = 0; j < 2; j++)
            x[j] =
                r == 0 ? *(const uint4 *)(xs + ((kb * 2 + j) * 4 + q) * 8) : make_uint4(0, 0, 0, 0);
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
    /* c += this warp's block of each of the next N stages, tiles of TILE rows. */
    template <int TILE, int N>
    __device__ __forceinline__ void split_stages(position &from, const T *xs, uint32_t kb,
                                                 uint32_t kblocks, uint32_t arrivals,
                                                 float (&c)[N][4])
    {
        tile_rows w[N];
        uint4 x[1][2];

        load_x(xs, kb < kblocks ? kb : 0, x[0]);
#pragma unroll
        for (int i = 0; i < N; i++) {
            mbarrier_wait(&s.full[from.slot], from.phase);
            load_tile<TILE>(stage(from) + warp * TILE * 128, w[i]);
            __syncwarp();
            if (lane == 0) mbarrier_arrive_many(&s.empty[from.slot], arrivals);
            from.next();
        }
        if (kb < kblocks) multiply<N, 0>(w, x, c);
    }
    /* To shared memory: [warp][row]. Only column 0 of the mma's is a row of x. */
    template <int TILE, int N>
    __device__ __forceinline__ void put_sums(const float (&c)[N][4], uint32_t rows, uint32_t tile)
    {
        float *to = place<float>(at::SCRATCH) + warp * rows + tile * TILE + r;

        if (q) return;
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (TILE >= 8 || r < TILE) to[i * TILE] = c[i][0];
            if (TILE == 16 || r + 8 < TILE) to[i * TILE + 8] = c[i][2];
        }
    }
    /* Every warp's sums over its block, of all tiles. */
    template <weight_name I>
    __device__ __forceinline__ void split_product(uint32_t layer, const T *xs)
    {
        constexpr struct slice W = S::W[I];
        constexpr int N = W.tiles <= 4 ? W.tiles : W.tiles % 4 == 0 ? 4 : W.tiles % 3 == 0 ? 3 : 1;
        static_assert(W.chunks == 1, "a block each");
        position from = first_stage<I>(layer);

        if (warp < W.blocks)
#pragma unroll 1
            for (uint32_t tile = 0; tile < W.tiles; tile += N) {
                float c[N][4] = {};
                split_stages<W.tile, N>(from, xs, warp, W.kblocks, warp ? 1 : WARPS + 1 - W.blocks,
                                        c);
                put_sums<W.tile, N>(c, W.rows, tile);
            }
        consumers_sync();
    }
    __device__ __forceinline__ float warps_sum(uint32_t rows, uint32_t blocks, uint32_t n) const
    {
        const float *from = place<float>(at::SCRATCH) + n;
        float v[WARPS], sum = 0.f;
#pragma unroll
        for (uint32_t i = 0; i < WARPS; i++)
            v[i] = i < blocks ? from[i * rows] : 0.f;
#pragma unroll
        for (uint32_t i = 0; i < WARPS; i++)
            sum += v[i];
        return sum;
    }

    /* --- q k v --- */

    __device__ __forceinline__ turn turn_of() const
    {
        constexpr struct slice W = S::W[ATTN_IN];
        const uint32_t n = rank * W.rows + t, head = n / D, e = n % D;
        turn v = {1.f, 0.f, NULL};

        if (t >= W.rows) return v;
        if (head < S::HEADS + S::KV && e < p.rope_dim && s.row.pos >= 0) {
            const float2 by = p.rope[(uint64_t)s.row.pos * (p.rope_dim / 2) + e / 2];
            v.cos = by.x, v.sin = by.y;
        }
        const int32_t kv_slot = *p.kv_slot;
        if (head < S::HEADS || kv_slot < 0) return v;
        const bool is_k = head < S::HEADS + S::KV;
        const uint32_t token = kv_slot % KV_BLOCK_TOKENS,
                       kv_head = head - S::HEADS - (is_k ? 0 : S::KV);
        v.page =
            p.kv +
            (((uint64_t)(kv_slot / KV_BLOCK_TOKENS) * S::KV + kv_head) * (2 * KV_BLOCK_TOKENS * D) +
             (is_k ? token * D + e : KV_BLOCK_TOKENS * D + ((token / 8) * D + e) * 8 + token % 8)) *
                sizeof(T);
        return v;
    }
    __device__ __forceinline__ void send_qkv(uint32_t layer, const turn &by)
    {
        constexpr struct slice W = S::W[ATTN_IN];
        const bool mine = t < W.rows;

        if (warp * 32 >= W.rows) return;
        float v = mine ? warps_sum(W.rows, W.blocks, t) * late_factor() : 0.f;
        v += 0.f;
        const float partner = __shfl_xor_sync(~0u, v, 1);
        v = (t & 1) ? v * by.cos + partner * by.sin : v * by.cos - partner * by.sin;
        const T out = from_float<T>(v);
        /* four columns to all blocks, by four lanes */
        uint16_t bits;
        memcpy(&bits, &out, 2);
        const uint32_t other = __shfl_xor_sync(~0u, (uint32_t)bits, 1);
        const uint32_t pair = lane & 1 ? other | (uint32_t)bits << 16 : bits | other << 16;
        const uint32_t beside = __shfl_xor_sync(~0u, pair, 2);
        if (!mine) return;
        const uint32_t dst = smem_addr(place<T>(at::QKV) + rank * W.rows + (t & ~3u));
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            cluster_send8(dst, bar(QKV_ROWS), (lane & 3) * 4 + k, lane & 2 ? beside : pair,
                          lane & 2 ? pair : beside);
        if (by.page) *(T *)(by.page + layer * p.kv_layer_bytes) = out;
    }

    /* --- attention --- */

    static constexpr uint32_t RECORD = 2 * KV_BLOCK_TOKENS * D / 8; /* 16-byte pieces */
    /* The same for every layer. */
    __device__ __forceinline__ part find_part() const
    {
        const uint32_t u = part_of(rank, warp / 4);
        const int last = s.row.pos / KV_BLOCK_TOKENS;
        part w = {u / S::KV, u % S::KV, (int)(u / S::KV * SPLIT_GROUPS + warp % 4)};

        w.any = s.row.pos >= 0 && (int)w.split < s.row.splits;
        w.mine = w.any && w.group < s.row.groups;
        if (!w.mine) return w;
        const uint32_t k_block = s.row.table[min(w.group * 2 + (int)(r >> 2), last)],
                       v_block = s.row.table[min(w.group * 2 + (int)(q >> 1), last)];
        w.k_at = (k_block * S::KV + w.head) * RECORD +
                 (((r >> 1) * 8 % KV_BLOCK_TOKENS + (r & 1)) * D + q * 8) / 8;
        w.v_at =
            (v_block * S::KV + w.head) * RECORD + (KV_BLOCK_TOKENS * D + ((q & 1) * D + r) * 8) / 8;
        return w;
    }
    __device__ __forceinline__ void load_k(uint4 (&k)[4][2], const part &w, uint32_t layer) const
    {
        const uint4 *from = (const uint4 *)(p.kv + layer * p.kv_layer_bytes) + w.k_at;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                k[i][j] = w.mine ? load_stream_coherent(
                                       from + (((i >> 1) * 4 + (i & 1) * 2) * D + j * 32) / 8)
                                 : make_uint4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void load_v(uint4 (&v)[8], const part &w, uint32_t layer) const
    {
        const uint4 *from = (const uint4 *)(p.kv + layer * p.kv_layer_bytes) + w.v_at;
        /* 0 * NaN: what lies past the end must not reach the sum */
        const bool there = w.mine && w.group * 32 + (int)q * 8 <= s.row.pos;
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = there ? load_stream_coherent(from + i * 8) : make_uint4(0, 0, 0, 0);
    }
    /* The newest token, whose page another block may still be writing. */
    __device__ __forceinline__ void put_newest_k(uint4 (&k)[4][2], const T *qkv, uint32_t head,
                                                 int token) const
    {
        const T *from = qkv + (S::HEADS + head) * D + q * 8;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (token == (int)((r >> 1) * 8 + (r & 1)) + i * 2) {
                k[i][0] = *(const uint4 *)from;
                k[i][1] = *(const uint4 *)(from + 32);
            }
    }
    template <int WORD>
    __device__ __forceinline__ void put_newest_word(uint4 (&v)[8], const T *from, int token) const
    {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint16_t bits;
            memcpy(&bits, from + i * 8, 2);
            uint32_t &word = (&v[i].x)[WORD];
            word = token & 1 ? (word & 0xffffu) | (uint32_t)bits << 16 : bits;
#pragma unroll
            for (int past = WORD + 1; past < 4; past++)
                (&v[i].x)[past] = 0;
        }
    }
    __device__ __forceinline__ void put_newest_v(uint4 (&v)[8], const T *qkv, uint32_t head,
                                                 int token) const
    {
        const T *from = qkv + (S::HEADS + S::KV + head) * D + r;

        if (token / 8 != (int)q) return;
        switch (token % 8 / 2) {
        case 0: put_newest_word<0>(v, from, token); break;
        case 1: put_newest_word<1>(v, from, token); break;
        case 2: put_newest_word<2>(v, from, token); break;
        default: put_newest_word<3>(v, from, token);
        }
    }
    struct state {
        float o[8][2], m, l;
    };
    /* Of 32 tokens: k and v as they were loaded. */
    __device__ __forceinline__ void attend(state &a, uint4 (&k)[4][2], uint4 (&v)[8], const part &w,
                                           const T *qkv) const
    {
        const float to_log2 = p.scale * LOG2E;
        const int tb = w.group * 32, pos = s.row.pos;
        const bool newest = pos / 32 == w.group;
        float c[4][2]; /* c[i][e]: token tb + q*8 + i*2 + e */
        uint32_t Q[4][2];

#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint4 x = make_uint4(0, 0, 0, 0);
            if (r < S::GROUP)
                x = *(const uint4 *)(qkv + (w.head * S::GROUP + r) * D + j * 32 + q * 8);
            Q[2 * j][0] = x.x, Q[2 * j][1] = x.y, Q[2 * j + 1][0] = x.z, Q[2 * j + 1][1] = x.w;
        }
        if (newest) put_newest_k(k, qkv, w.head, pos % 32);
#pragma unroll
        for (int i = 0; i < 4; i += 2) { /* two sums that do not wait for each other */
            float d[2][4] = {};
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const uint4 &b = k[i + e][j / 2];
                    mma_16816<T>(d[e], Q[j][0], 0, Q[j][1], 0, j & 1 ? b.z : b.x,
                                 j & 1 ? b.w : b.y);
                }
            c[i][0] = d[0][0], c[i][1] = d[0][1], c[i + 1][0] = d[1][0], c[i + 1][1] = d[1][1];
        }
        if (newest) {
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (tb + (int)q * 8 + i * 2 + e > pos) c[i][e] = MASKED;
            put_newest_v(v, qkv, w.head, pos % 32);
        }
        float mx = MASKED;
#pragma unroll
        for (int i = 0; i < 4; i++)
            mx = fmaxf(mx, fmaxf(c[i][0], c[i][1]));
        a.m = fmaxf(MASKED, lanes_max<4>(mx) * to_log2);
        a.l = 0.f;
        uint32_t A[2][2];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float p0 = exp2_fast(c[i][0] * to_log2 - a.m),
                        p1 = exp2_fast(c[i][1] * to_log2 - a.m);
            a.l += p0 + p1;
            A[i >> 1][i & 1] = pack2<T>(p0, p1);
        }
#pragma unroll
        for (int d = 0; d < 8; d += 2) {
            float o[2][4] = {};
#pragma unroll
            for (int i = 0; i < 2; i++)
                mma_16816<T>(o[i], A[0][0], 0, A[0][1], 0, v[d + i].x, v[d + i].y);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                mma_16816<T>(o[i], A[1][0], 0, A[1][1], 0, v[d + i].z, v[d + i].w);
                a.o[d + i][0] = o[i][0], a.o[d + i][1] = o[i][1];
            }
        }
    }
    /* The four warps' states of a part are merged and sent to the blocks that own its columns. */
    __device__ __forceinline__ void send_part(const state &a, const part &w)
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
        for (uint32_t e = t % 128; e < GROUP * (D / 4); e += 128) { /* once, for up to 8 heads */
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
            const uint32_t head = w.head * GROUP + h, column = head * D + d,
                           owner = column / S::COLUMNS;
            float *to = place<float>(at::PARTS) + w.split * S::PART;
            cluster_send16(smem_addr(to + (column - owner * S::COLUMNS)), bar(PARTS), owner,
                           make_uint4(__float_as_uint(acc.x), __float_as_uint(acc.y),
                                      __float_as_uint(acc.z), __float_as_uint(acc.w)));
            if (d == 0)
                for (uint32_t b = owner; b <= (column + D - 1) / S::COLUMNS; b++)
                    cluster_send8(smem_addr(to + S::COLUMNS + (head - b * S::COLUMNS / D) * 2),
                                  bar(PARTS), b, __float_as_uint(most), __float_as_uint(L));
        }
    }
    __device__ __forceinline__ void attention(uint32_t layer, const part &w)
    {
        uint4 k[4][2], v[8];
        state a;

        load_k(k, w, layer);
        load_v(v, w, layer);
        await(QKV_ROWS, layer & 1);
        if (!w.any) return;
        if (w.mine) {
            attend(a, k, v, w, place<T>(at::QKV));
        } else {
            a.m = MASKED, a.l = 0.f;
#pragma unroll
            for (int d = 0; d < 8; d++)
                a.o[d][0] = a.o[d][1] = 0.f;
        }
        a.l = lanes_sum<4>(a.l);
        send_part(a, w);
    }
    /* The sum of the parts, in order, of this block's columns, to all blocks. */
    __device__ __forceinline__ void merge_parts(uint32_t layer)
    {
        const uint32_t splits = s.row.splits, head = first_head() + warp;

        if (s.row.pos < 0)
            return; /* an exchange of no bytes would be over before it is waited for */
        await(PARTS, layer & 1);
        if (warp < head_count()) {
            const uint32_t begin = max(head * D, rank * S::COLUMNS),
                           packets = (min((head + 1) * D, (rank + 1) * S::COLUMNS) - begin) / 4;
            const float *from = place<float>(at::PARTS);
            float2 ml = make_float2(MASKED, 0.f);
            if (lane < splits)
                ml = *(const float2 *)(from + lane * S::PART + S::COLUMNS + warp * 2);
            const float most = lanes_max<32>(ml.x);
            const float f = exp2_fast(ml.x - most);
            const float L = lanes_sum<32>(lane < splits ? f * ml.y : 0.f);
            from += (begin - rank * S::COLUMNS) + min(lane, packets - 1) * 4;
            float4 acc = make_float4(0.f, 0.f, 0.f, 0.f);
            uint2 out;
            if (splits == 1) {
                acc = *(const float4 *)from;
                out = make_uint2(pack2<T>(acc.x / L, acc.y / L), pack2<T>(acc.z / L, acc.w / L));
            } else {
#pragma unroll 4
                for (uint32_t i = 0; i < splits; i++) {
                    const float4 x = *(const float4 *)(from + i * S::PART);
                    const float by = __shfl_sync(~0u, f, i);
                    acc.x += by * x.x, acc.y += by * x.y, acc.z += by * x.z, acc.w += by * x.w;
                }
                const float inv = 1.f / L;
                out = make_uint2(pack2<T>(acc.x * inv, acc.y * inv),
                                 pack2<T>(acc.z * inv, acc.w * inv));
            }
            /* half a warp sends a packet to the 16 blocks */
#pragma unroll 1
            for (uint32_t i = 0; i < packets; i += 2) {
                const uint32_t packet = i + lane / CTAS;
                const uint32_t a = __shfl_sync(~0u, out.x, packet & 31),
                               b = __shfl_sync(~0u, out.y, packet & 31);
                if (packet < packets)
                    cluster_send8(smem_addr(place<T>(at::XS) + x_place(begin + packet * 4)),
                                  bar(ATTENDED), lane % CTAS, a, b);
            }
        }
        await(ATTENDED, layer & 1);
    }

    /* --- products onto x; x: this thread's output --- */

    /* Of attn_out and ffn_out, by one code: what runs once a layer waits for its instructions. */
    __device__ __forceinline__ void add_product(uint32_t layer, uint32_t which, float &x)
    {
        constexpr struct slice A = S::W[ATTN_OUT], F = S::W[FFN_OUT];
        static_assert(A.rows == F.rows && A.tiles == F.tiles && A.tiles <= 4, "");
        const uint32_t blocks = which ? F.blocks : A.blocks, chunks = which ? F.chunks : A.chunks,
                       kblocks = which ? F.kblocks : A.kblocks;
        const T *xs = place<T>(which ? at::ACTS : at::XS);
        position from = which ? first_stage<FFN_OUT>(layer) : first_stage<ATTN_OUT>(layer);
        const uint32_t column = rank * A.rows + t;

        if (warp < blocks) {
            float c[A.tiles][4] = {};
#pragma unroll 1
            for (uint32_t chunk = 0; chunk < chunks; chunk++)
                split_stages<A.tile, A.tiles>(from, xs, chunk * blocks + warp, kblocks,
                                              warp ? 1 : WARPS + 1 - blocks, c);
            put_sums<A.tile, A.tiles>(c, A.rows, 0);
        }
        consumers_sync();
        if (warp * 32 >= A.rows) return;
        if (t < A.rows) {
            float v = warps_sum(A.rows, blocks, t);
            v += 0.f + x;
            x = v;
        }
        if (which && layer + 1 == p.layers) {
            if (t < A.rows) p.x[column] = x;
            return;
        }
        uint4 four;
        const int group = lane & ~3;
        four.x = __float_as_uint(__shfl_sync(~0u, x, group));
        four.y = __float_as_uint(__shfl_sync(~0u, x, group + 1));
        four.z = __float_as_uint(__shfl_sync(~0u, x, group + 2));
        four.w = __float_as_uint(__shfl_sync(~0u, x, group + 3));
        if (t >= A.rows) return;
        const uint32_t dst = smem_addr(place<float>(at::X) + (column & ~3u));
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            cluster_send16(dst, bar(X_ROWS), (lane & 3) * 4 + k, four);
    }

    /* --- gate and up: rows 2i, 2i + 1 --- */

    __device__ __forceinline__ void ffn_in(uint32_t layer)
    {
        constexpr struct slice W = S::W[FFN_IN];

        split_product<FFN_IN>(layer, place<T>(at::XS));
        if (warp * 32 < W.rows) {
            float y = warps_sum(W.rows, W.blocks, t) * late_factor();
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
            const uint32_t k = (rank * W.rows + (t & ~7u)) / 2;
            const uint32_t dst = smem_addr(place<T>(at::ACTS) + x_place(k));
#pragma unroll
            for (uint32_t j = 0; j < 2; j++)
                cluster_send8(dst, bar(ACTS), (lane & 7) * 2 + j, a | b << 16, c | d << 16);
        }
        await(ACTS, layer & 1);
    }

    __device__ __forceinline__ void run()
    {
        constexpr uint32_t COLUMNS_OF_X = S::W[ATTN_OUT].rows;
        const turn by = turn_of();
        const part w = find_part();
        float x = 0.f;

        pdl_wait();
        if (t < COLUMNS_OF_X) x = ((volatile float *)p.x)[rank * COLUMNS_OF_X + t];
        if (t < S::HIDDEN / 4)
            *(uint4 *)(place<float>(at::X) + t * 4) = load_shared_state(p.x + t * 4);
        consumers_sync();
#pragma unroll 1
        for (uint32_t layer = 0; layer < p.layers; layer++) {
            if (t == 0) *(volatile uint32_t *)&s.layer = layer;
#pragma unroll 1
            for (uint32_t which = 0; which < 2; which++) {
                forget();
                if (layer + which) await(X_ROWS, which ? 0 : 1);
                norm(layer, which);
                forget();
                if (which) {
                    ffn_in(layer);
                } else {
                    split_product<ATTN_IN>(layer, place<T>(at::XS));
                    forget();
                    send_qkv(layer, by);
                    attention(layer, w);
                    forget();
                    merge_parts(layer);
                }
                forget();
                add_product(layer, which, x);
            }
        }
    }
};

__device__ __forceinline__ struct row row_of(const params &p)
{
    struct row row = {*p.position, 0, 0, p.tables};

    if (row.pos < 0) return row;
    row.groups = row.pos / 32 + 1;
    row.splits = (row.groups + 3) / SPLIT_GROUPS;
    row.table += (uint64_t)*p.slot * p.table_stride;
    return row;
}

template <typename T, class S>
__global__ void __launch_bounds__(THREADS, 1)
    chain_kernel(const __grid_constant__ maps maps, const __grid_constant__ params p)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ __align__(8) statics s;
    const uint32_t t = threadIdx.x, warp = t >> 5, lane = t & 31, rank = cluster_rank();
    consumer<T, S> c = {p, s, shared, t, warp, lane, lane >> 2, lane & 3, rank};

    pdl_trigger();
    /* Positions and tables are those of the step: written before the kernel in front of this one began. */
    if (t == 0) {
        s.row = row_of(p);
        s.layer = 0;
        for (uint32_t i = 0; i < places<S>::STAGES; i++) {
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
        if (warp == WARPS && lane == 0) produce<S>(p, maps, shared, s, rank);
        if (warp == WARPS + 1) prefetch_pages<S>(p, s, rank, lane);
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

template <typename T, class S> cudaError_t allow()
{
    cudaError_t e = cudaFuncSetAttribute(
        chain_kernel<T, S>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)places<S>::BYTES);
    if (!e)
        e = cudaFuncSetAttribute(chain_kernel<T, S>, cudaFuncAttributeNonPortableClusterSizeAllowed,
                                 1);
    return e;
}

template <class S> bool is_shape(const struct decode_chain_shape *s)
{
    return s->hidden == S::HIDDEN && s->ffn == S::FFN && s->heads == S::HEADS &&
           s->kv_heads == S::KV && s->head_dim == D && s->layers > 0 && s->rope_dim % 2 == 0 &&
           s->rope_dim <= D;
}

template <typename T, class S = smollm2_like> bool can_place()
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute cluster;
    int clusters = 0;

    if (allow<T, S>()) return false;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = CTAS, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.gridDim = dim3(CTAS);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = places<S>::BYTES;
    config.attrs = &cluster;
    config.numAttrs = 1;
    return !cudaOccupancyMaxActiveClusters(&clusters, chain_kernel<T, S>, &config) && clusters > 0;
}

template <typename T, class S = smollm2_like>
cudaError_t launch_chain(const struct kernel_context *ctx, const struct decode_chain_args *a)
{
    const struct decode_chain *chain = a->chain;
    struct maps maps;
    params p = {chain->shape.layers, chain->shape.rope_dim};

    p.eps[0] = a->attn_eps, p.eps[1] = a->ffn_eps, p.scale = a->scale, p.act = a->act;
    p.x = a->x;
    p.gain[0] = chain->attn_gain, p.gain[1] = chain->ffn_gain, p.gain_stride = chain->gain_stride;
    p.kv = (char *)a->kv, p.kv_layer_bytes = a->kv_layer_bytes, p.rope = a->rope;
    p.position = a->position, p.kv_slot = a->kv_slot, p.slot = a->slot;
    p.tables = a->tables, p.table_stride = a->table_stride;
    memcpy(&maps, chain->maps, sizeof maps);
    cudaError_t e = allow<T, S>();
    return e ? e
             : launch_clusters(ctx, chain_kernel<T, S>, dim3(CTAS), dim3(THREADS), places<S>::BYTES,
                               CTAS, maps, p);
}

/* With a dim for the layers. */
cudaError_t map_slices(CUtensorMap *out, enum kernel_type type, const void *base,
                       const struct slice &w, uint32_t layers, uint64_t layer_bytes)
{
    const uint64_t dims[4] = {64, (uint64_t)w.rows * CTAS, w.kblocks, layers};
    const uint64_t strides[3] = {w.kblocks * 128ull, 128, layer_bytes};
    const uint32_t box[4] = {64, w.tile, w.blocks, 1};

    return tensor_map(out, type, base, 4, dims, strides, box, false);
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
        CUtensorMap map;
        cudaError_t e = map_slices(&map, type, base[i], smollm2_like::W[i], shape->layers,
                                   shape->layers > 1 ? weights->stride : 16);
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
