/* decode_chain_block.cuh - a block of a decode chain: its weights on their way, exchanges within the cluster, the norm, and products
 * of its slices with x. */
#pragma once

#include "common/cluster_send.cuh"
#include "common/wgmma.cuh"
#include "decode_chain.cuh"

namespace
{

/* As in skinny_gemm: lane (r = m % 8, q) of the mma wants columns q*16 + j*8 .. +7 of a block of 64 as one read. */
__device__ __forceinline__ uint32_t x_place(uint32_t k)
{
    const uint32_t kb = k >> 6, q = (k >> 4) & 3, j = (k >> 3) & 1;
    return ((kb * 2 + j) * 4 + q) * 8 + (k & 7);
}

__device__ __forceinline__ int32_t load_fresh(const int32_t *p)
{
    return *(const volatile int32_t *)p;
}

/* Warps with work of their own while others multiply: products behind a norm are of fewer warps for most shapes. The last four attend. */
constexpr uint32_t FIRST = WARPS - QUAD / 32, PAGER = WARPS - 3, LOADER = WARPS - 2,
                   NORMER = WARPS - 1;
constexpr uint32_t ARMER = FIRST * 32; /* a thread that waits for every exchange */

template <typename T, class S> struct block {
    using at = places<S>;
    const params &p;
    const maps &m;
    statics &s;
    unsigned char *shared;
    uint32_t t, warp, lane, r, q;
    uint32_t rank, cluster;

    __device__ __forceinline__ float *floats(uint32_t offset) const
    {
        return (float *)(shared + offset);
    }
    __device__ __forceinline__ T *numbers(uint32_t offset) const
    {
        return (T *)(shared + offset);
    }

    /* What is computed of these is computed again from here on: kept over all phases of a layer it would take the registers
     * that attention needs, and local memory has next to no L1 beside so much shared memory. */
    __device__ __forceinline__ void forget()
    {
        asm volatile("" : "+r"(t), "+r"(rank));
        warp = t >> 5, lane = t & 31, r = lane >> 2, q = lane & 3;
    }

    /* --- weights: a slice has one place, which is filled again for the next layer once all warps have read it --- */

    __device__ __forceinline__ void load_box(unsigned char *to, weight_name i, uint32_t row,
                                             uint32_t kblock, uint32_t layer) const
    {
        tma_load_4d(to, &m.w[i], &s.full[i], 0, row, kblock, layer);
    }
    /* Of column c of the FFN's that the cluster has: where it is in all, by the blocks of ffn_out. */
    __device__ __forceinline__ uint32_t ffn_column(uint32_t c) const
    {
        const uint32_t b = c / 64;
        return (b / S::BLOCKS_HERE * S::K_BLOCKS + cluster * S::BLOCKS_HERE + b % S::BLOCKS_HERE) *
                   64 +
               c % 64;
    }
    template <weight_name I> __device__ __forceinline__ void load_boxes(uint32_t layer) const
    {
        constexpr struct slice W = S::W[I];
        constexpr uint32_t BOX = 128 * W.blocks *
                                 (I == ATTN_IN  ? S::HEAD_ROWS
                                  : I == FFN_IN ? 16
                                                : W.rows);
        unsigned char *to = shared + at::WEIGHT[I];

#pragma unroll 1
        for (uint32_t i = 0; i < W.bytes() / BOX; i++, to += BOX) {
            if (I == ATTN_IN) {
                const uint32_t head = i < S::GROUP    ? cluster * S::GROUP + i
                                      : i == S::GROUP ? S::HEADS + cluster
                                                      : S::HEADS + S::KV + cluster;
                load_box(to, I, head * D + rank * S::HEAD_ROWS, 0, layer);
            } else if (I == FFN_IN) {
                load_box(to, I, 2 * ffn_column(rank * S::FFN_COLUMNS + i * 8), 0, layer);
            } else if (I == ATTN_OUT) {
                load_box(to, I, rank * S::ROWS, cluster * S::GROUP, layer);
            } else {
                load_box(to, I, rank * S::ROWS, i * S::K_BLOCKS + cluster * S::BLOCKS_HERE, layer);
            }
        }
    }
    /* By one thread. A weight behind a norm brings its gain. */
    template <weight_name I> __device__ __forceinline__ void load_weight(uint32_t layer) const
    {
        constexpr bool HAS_GAIN = I == ATTN_IN || I == FFN_IN;
        constexpr uint32_t GAIN_BYTES = S::HIDDEN * 4;

        if (layer >= p.layers) return;
        mbarrier_expect(&s.full[I], S::W[I].bytes() + (HAS_GAIN ? GAIN_BYTES : 0));
        if (HAS_GAIN)
            bulk_load(shared + at::GAIN + (I == FFN_IN) * GAIN_BYTES,
                      p.gain[I == FFN_IN] + layer * p.gain_stride, GAIN_BYTES, &s.full[I]);
        load_boxes<I>(layer);
    }
    /* Behind a barrier that all warps reach after fetching weight I of `layer`: that of the next layer. */
    template <weight_name I, uint32_t BY = LOADER>
    __device__ __forceinline__ void load_next(uint32_t layer) const
    {
        if (warp == BY && lane == 0) load_weight<I>(layer + 1);
    }

    /* --- exchanges --- */

    __device__ __forceinline__ uint32_t bytes_of(exchange e) const
    {
        switch (e) {
        case QKV_ROWS: return S::HEADS_HERE * D * 2;
        case PARTS: return s.row.splits * (S::GROUP * D * 4 + S::GROUP * 8);
        default: return S::FFN_HERE * 2;
        }
    }
    __device__ __forceinline__ void await(exchange e, uint32_t parity)
    {
        mbarrier_wait(&s.come[e], parity);
        if (t == ARMER) mbarrier_expect(&s.come[e], bytes_of(e)); /* the next */
    }
    __device__ __forceinline__ uint32_t bar(exchange e) const
    {
        return smem_addr(&s.come[e]);
    }

    /* --- norm --- */

    /* 1 / rms by a warp: sums over pieces of 128 columns, then over the pieces. */
    __device__ __forceinline__ void find_factor(float eps)
    {
        const float *x = floats(at::X);
        float ss[S::PIECES], sum = 0.f;
#pragma unroll
        for (uint32_t i = 0; i < S::PIECES; i++) {
            float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
            if (i * 128 + lane * 4 < S::HIDDEN) v = *(const float4 *)(x + i * 128 + lane * 4);
            ss[i] = squares_sum(v.x, v.y, v.z, v.w);
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
    /* This lane's 32 bytes of a row of a block of 64 columns; the swizzle goes by the address. */
    __device__ __forceinline__ void load_row(const unsigned char *row, bool there,
                                             uint4 (&w)[2]) const
    {
        const uint32_t swizzle = (smem_addr(row) >> 7) & 7;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            w[j] = make_uint4(0, 0, 0, 0);
            if (there) w[j] = *(const uint4 *)(row + ((q * 2 + j) ^ swizzle) * 16);
        }
    }
    /* N tiles, each c[i] += w[i] x: their sums do not wait for each other. */
    template <uint32_t N>
    __device__ __forceinline__ void multiply(const tile_rows (&w)[N], const uint4 (&x)[2],
                                             float (&c)[N][4]) const
    {
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
            for (uint32_t i = 0; i < N; i++)
                mma_16816<T>(c[i], w[i].lo[j].x, w[i].hi[j].x, w[i].lo[j].y, w[i].hi[j].y, x[j].x,
                             x[j].y);
#pragma unroll
            for (uint32_t i = 0; i < N; i++)
                mma_16816<T>(c[i], w[i].lo[j].z, w[i].hi[j].z, w[i].lo[j].w, w[i].hi[j].w, x[j].z,
                             x[j].w);
        }
    }
    /* To shared memory, [block][row]: rows r and r + 8 of a tile that begins at `row`. Only column 0 of the mma's is a row of x. */
    __device__ __forceinline__ void put_sums(const float (&c)[4], uint32_t kb, uint32_t row,
                                             uint32_t rows)
    {
        float *to = floats(at::SCRATCH) + kb * rows + row + r;

        if (q) return;
        if (row + r < rows) to[0] = c[0];
        if (row + r + 8 < rows) to[8] = c[2];
    }
    /* The weights of a product come to registers while an exchange is under way in front of it: weights
     * do not wait for x. */
    /* (A warp without a part has zeros: what is not always written would be kept in registers all the time.) */
    template <weight_name I> struct wide_tiles {
        static constexpr uint32_t COUNT = ceil_div(S::W[I].rows, 16);
        static_assert(COUNT <= 4, "in registers");
        tile_rows w[COUNT];
    };
    template <weight_name I> struct deep_tiles {
        tile_rows w[S::W[I].chunks];
    };

    /* The block's rows of q k v or of gate and up: a warp has a block of K. */
    template <weight_name I> __device__ __forceinline__ void fetch_tiles(wide_tiles<I> &of) const
    {
        constexpr struct slice W = S::W[I];
        constexpr uint32_t BOX = S::HEAD_ROWS * W.blocks * 128; /* of a head of q k v */
        const unsigned char *a = shared + at::WEIGHT[I];

        a += I == ATTN_IN ? (r / 4) * BOX + (warp * 4 + r % 4) * 128 : (warp * 16 + r) * 128;
#pragma unroll
        for (uint32_t i = 0; i < of.COUNT; i++) {
            const uint32_t left = W.rows - i * 16;
            const unsigned char *row = a + i * 16 * W.blocks * 128;
            load_row(row, r < left, of.w[i].lo);
            load_row(row + (I == ATTN_IN ? 2 * BOX : 1024), r + 8 < left, of.w[i].hi);
        }
    }
    template <weight_name I> __device__ __forceinline__ void wide_product(const wide_tiles<I> &of)
    {
        constexpr struct slice W = S::W[I];
        float c[of.COUNT][4] = {};
        uint4 x[2];

        if (warp >= W.blocks) return;
        load_x(numbers(at::XS), warp, x);
        multiply<of.COUNT>(of.w, x, c);
#pragma unroll
        for (uint32_t i = 0; i < of.COUNT; i++)
            put_sums(c[i], warp, i * 16, W.rows);
    }
    /* Threads that finish a product behind a norm, one a row: the first warps. */
    template <weight_name I> static constexpr uint32_t FINISHERS = ceil_div(S::W[I].rows, 32);
    /* Behind wide_product(), by all warps: finishers wait until the sums, and the norm's factor, are there. The others go on: they write
     * x or sums again only behind the exchange for which the finishers send. */
    template <weight_name I> __device__ __forceinline__ void hand_over() const
    {
        constexpr uint32_t BLOCKS = S::W[I].blocks;
        constexpr uint32_t THERE = (BLOCKS + (NORMER >= BLOCKS)) * 32;
        static_assert(FINISHERS<I> <= BLOCKS, "who finishes multiplies too");

        if (warp < FINISHERS<I>)
            named_sync(1, THERE);
        else if (warp < BLOCKS || warp == NORMER)
            named_arrive(1, THERE);
    }
    /* The block's rows of attn_out or ffn_out, over the cluster's blocks of K: a warp has a tile of one block of each chunk. */
    template <weight_name I> __device__ __forceinline__ uint32_t deep_row() const
    {
        return warp / S::W[I].blocks * 16;
    }
    template <weight_name I>
    __device__ __forceinline__ void fetch_deep(deep_tiles<I> &of, uint32_t layer) const
    {
        constexpr struct slice W = S::W[I];
        const uint32_t row = deep_row<I>() + r;
        const unsigned char *a = shared + at::WEIGHT[I] + (warp % W.blocks * W.rows + row) * 128;

        if (warp >= W.blocks * S::TILES) {
            of = {};
            return;
        }
        mbarrier_wait(&s.full[I], layer & 1);
#pragma unroll
        for (uint32_t chunk = 0; chunk < W.chunks; chunk++, a += W.blocks * W.rows * 128) {
            load_row(a, row < W.rows, of.w[chunk].lo);
            load_row(a + 1024, row + 8 < W.rows, of.w[chunk].hi);
        }
    }
    template <weight_name I>
    __device__ __forceinline__ void deep_product(const deep_tiles<I> &of, const T *xs)
    {
        constexpr struct slice W = S::W[I];
        const uint32_t kb = warp % W.blocks;
        uint4 x[W.chunks][2];
        float c[1][4] = {};

        if (warp >= W.blocks * S::TILES) return;
#pragma unroll
        for (uint32_t chunk = 0; chunk < W.chunks; chunk++)
            load_x(xs, chunk * W.blocks + kb, x[chunk]);
#pragma unroll
        for (uint32_t chunk = 0; chunk < W.chunks; chunk++)
            multiply<1>((const tile_rows(&)[1])of.w[chunk], x[chunk], c);
        put_sums(c[0], kb, deep_row<I>(), W.rows);
    }
    /* The sum over blocks of row n, in order. */
    template <weight_name I> __device__ __forceinline__ float sum_of(uint32_t n) const
    {
        constexpr uint32_t BLOCKS = S::W[I].blocks, ROWS = S::W[I].rows;
        const float *from = floats(at::SCRATCH) + n;
        float v[BLOCKS], sum = 0.f;
#pragma unroll
        for (uint32_t i = 0; i < BLOCKS; i++)
            v[i] = from[i * ROWS];
#pragma unroll
        for (uint32_t i = 0; i < BLOCKS; i++)
            sum += v[i];
        return sum;
    }
};

} // namespace
