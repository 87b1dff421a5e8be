/* decode_chain_attention.cuh - attention of a decode chain: a cluster has a KV head and the query heads of its group, a block of it
 * one split of 128 tokens, which four warps take as a block of paged_decode does. */
#pragma once

#include "decode_chain_block.cuh"
#include "kv_layout.h"

namespace
{

enum { GROUP_TOKENS = 32 };
struct
    part { /* what a warp of the last four works on, a group of tokens; the same for every layer */
    uint32_t k_at, v_at; /* this lane's keys and values in the pool of a layer, in 16 bytes */
    int newest; /* which of the group the newest token is; GROUP_TOKENS: of another group */
    bool mine;  /* there is a group */
};
struct turn { /* of an output of q k v */
    float cos, sin;
    char *page; /* where it goes in the pool of layer 0, or NULL */
};

template <typename T, class S> struct attention : block<T, S> {
    using base = block<T, S>;
    using base::await, base::bar, base::floats, base::numbers, base::late_factor;
    using base::cluster, base::lane, base::p, base::q, base::r, base::rank, base::s, base::t,
        base::warp;
    using typename base::at;

    /* --- q k v: by the first warps --- */

    static_assert(base::template FINISHERS<ATTN_IN> < FIRST, "warps that do not attend");
    /* Row n of the block: of head n / 4 of the cluster. */
    __device__ __forceinline__ turn turn_of() const
    {
        const uint32_t n = t, head = n / S::HEAD_ROWS, e = rank * S::HEAD_ROWS + n % S::HEAD_ROWS;
        turn v = {1.f, 0.f, NULL};

        if (n >= S::W[ATTN_IN].rows) return v;
        if (head <= S::GROUP && e < p.rope_dim && s.row.pos >= 0) {
            const float2 by = p.rope[(uint64_t)s.row.pos * (p.rope_dim / 2) + e / 2];
            v.cos = by.x, v.sin = by.y;
        }
        const int32_t kv_slot = load_fresh(p.kv_slot);
        if (head < S::GROUP || kv_slot < 0) return v;
        const bool is_k = head == S::GROUP;
        const uint32_t token = kv_slot % KV_BLOCK_TOKENS;
        v.page =
            p.kv +
            (((uint64_t)(kv_slot / KV_BLOCK_TOKENS) * S::KV + cluster) * (2 * KV_BLOCK_TOKENS * D) +
             (is_k ? token * D + e : KV_BLOCK_TOKENS * D + ((token / 8) * D + e) * 8 + token % 8)) *
                sizeof(T);
        return v;
    }
    __device__ __forceinline__ void send_qkv(uint32_t layer, const turn &by)
    {
        constexpr uint32_t ROWS = S::W[ATTN_IN].rows;
        const uint32_t n = t;
        const bool mine = n < ROWS;

        if (warp >= base::template FINISHERS<ATTN_IN>) return;
        float v = mine ? base::template sum_of<ATTN_IN>(n) * late_factor() : 0.f;
        v += 0.f;
        const float partner = __shfl_xor_sync(~0u, v, 1);
        v = products_sum(v, by.cos, partner, t & 1 ? by.sin : -by.sin);
        const uint32_t out = pack2<T>(v, 0.f); /* as a pair: the short conversion */
        /* four columns to all blocks, by four lanes */
        const uint32_t other = __shfl_xor_sync(~0u, out, 1);
        const uint32_t pair = lane & 1 ? other | out << 16 : out | other << 16;
        const uint32_t beside = __shfl_xor_sync(~0u, pair, 2);
        if (!mine) return;
        const uint32_t dst =
            smem_addr(numbers(at::QKV) + n / S::HEAD_ROWS * D + rank * S::HEAD_ROWS);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            cluster_send8(dst, bar(QKV_ROWS), (lane & 3) * 4 + k, lane & 2 ? beside : pair,
                          lane & 2 ? pair : beside);
        if (by.page) *(uint16_t *)(by.page + layer * p.kv_layer_bytes) = (uint16_t)out;
    }

    /* --- a split: by the last four warps, whose keys and values come while others multiply --- */

    __device__ __forceinline__ uint32_t
    warp_of_quad() const /* the first is one that multiplies least */
    {
        return (warp - FIRST + 3) % 4;
    }
    static constexpr uint32_t RECORD = 2 * KV_BLOCK_TOKENS * D / 8; /* 16-byte pieces */
    __device__ __forceinline__ part find_part() const
    {
        const int pos = s.row.pos, last = pos / KV_BLOCK_TOKENS,
                  group = (int)(rank * SPLIT_GROUPS + warp_of_quad());
        part w = {0, 0, GROUP_TOKENS, pos >= 0 && warp >= FIRST && group < s.row.groups};

        if (!w.mine) return w;
        if (pos / GROUP_TOKENS == group) w.newest = pos % GROUP_TOKENS;
        const uint32_t k_block = load_fresh(s.row.table + min(group * 2 + (int)(r >> 2), last)),
                       v_block = load_fresh(s.row.table + min(group * 2 + (int)(q >> 1), last));
        w.k_at = (k_block * S::KV + cluster) * RECORD +
                 (((r >> 1) * 8 % KV_BLOCK_TOKENS + (r & 1)) * D + q * 8) / 8;
        w.v_at = (v_block * S::KV + cluster) * RECORD +
                 (KV_BLOCK_TOKENS * D + ((q & 1) * D + r) * 8) / 8;
        return w;
    }
    /* From one address: else the compiler has one for each load. */
    __device__ __forceinline__ const uint4 *pages(uint32_t at, uint32_t layer) const
    {
        const uint4 *from = (const uint4 *)(p.kv + layer * p.kv_layer_bytes) + at;

        asm volatile("" : "+l"(from));
        return from;
    }
    __device__ __forceinline__ void load_k(uint4 (&k)[4][2], const part &w, uint32_t layer) const
    {
        const uint4 *from = pages(w.k_at, layer);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                k[i][j] = w.mine ? load_stream_coherent(from + (i * 2 * D + j * 32) / 8)
                                 : make_uint4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void load_v(uint4 (&v)[8], const part &w, uint32_t layer) const
    {
        const uint4 *from = pages(w.v_at, layer);
        /* 0 * NaN: what lies past the end must not reach the sum */
        const bool there = w.mine && (int)q * 8 <= w.newest;
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = there ? load_stream_coherent(from + i * 8) : make_uint4(0, 0, 0, 0);
    }
    /* The newest token, whose page another block may still be writing. */
    __device__ __forceinline__ void put_newest_k(uint4 (&k)[4][2], const T *qkv, int token) const
    {
        const T *from = qkv + S::GROUP * D + q * 8;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (token == (int)((r >> 1) * 8 + (r & 1)) + i * 2) {
                k[i][0] = *(const uint4 *)from;
                k[i][1] = *(const uint4 *)(from + 32);
            }
    }
    /* Of the group with the newest token: its place and those behind it become zero (0 * NaN), while q k v is under way. */
    __device__ __forceinline__ void clear_newest_v(uint4 (&v)[8], int token) const
    {
        const int before = token - (int)q * 8; /* of this lane's eight tokens: what stays */
        uint32_t kept[4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            kept[i] = before >= 2 * i + 2 ? ~0u : before == 2 * i + 1 ? 0xffffu : 0;
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i].x &= kept[0], v[i].y &= kept[1], v[i].z &= kept[2], v[i].w &= kept[3];
    }
    template <int WORD>
    __device__ __forceinline__ void put_newest_word(uint4 (&v)[8], const T *from, int token) const
    {
        const uint32_t half = token & 1 ? 0x10000u : 1;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint16_t bits;
            memcpy(&bits, from + i * 8, 2);
            (&v[i].x)[WORD] += bits * half; /* which is zero there */
        }
    }
    __device__ __forceinline__ void put_newest_v(uint4 (&v)[8], const T *qkv, int token) const
    {
        const T *from = qkv + (S::GROUP + 1) * D + r;

        if (token >> 3 != (int)q) return;
        switch (token >> 1 & 3) {
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
        const bool newest = w.newest < GROUP_TOKENS;
        float c[4][2]; /* c[i][e]: token q*8 + i*2 + e of the group */
        uint32_t Q[4][2];

#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint4 x = make_uint4(0, 0, 0, 0);
            if (r < S::GROUP) x = *(const uint4 *)(qkv + r * D + j * 32 + q * 8);
            Q[2 * j][0] = x.x, Q[2 * j][1] = x.y, Q[2 * j + 1][0] = x.z, Q[2 * j + 1][1] = x.w;
        }
        if (newest) put_newest_k(k, qkv, w.newest);
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
            put_newest_v(v, qkv, w.newest); /* while the scores are on their way */
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if ((int)q * 8 + i * 2 + e > w.newest) c[i][e] = MASKED;
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
            const float p0 = exp2_fast(fmaf(c[i][0], to_log2, -a.m)),
                        p1 = exp2_fast(fmaf(c[i][1], to_log2, -a.m));
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
    __device__ __forceinline__ void put_state(const state &a)
    {
        const uint32_t w4 = warp_of_quad();
        float *o = floats(at::SCRATCH), *om = o + 4 * S::GROUP * at::STATE_STRIDE, *ol = om + 32;

        if (r < S::GROUP)
#pragma unroll
            for (int d = 0; d < 8; d++)
                *(float2 *)&o[(w4 * S::GROUP + r) * at::STATE_STRIDE + d * 8 + 2 * q] =
                    make_float2(a.o[d][0], a.o[d][1]);
        if (q == 0) om[w4 * 8 + r] = a.m, ol[w4 * 8 + r] = a.l;
    }
    /* The four warps' states are merged and sent to all blocks: by all warps, each piece by several threads, which share the blocks. */
    __device__ __forceinline__ void send_part()
    {
        constexpr uint32_t GROUP = S::GROUP, PIECES = GROUP * (D / 4), COPIES = THREADS / PIECES;
        const float *o = floats(at::SCRATCH), *om = o + 4 * GROUP * at::STATE_STRIDE, *ol = om + 32;
        const uint32_t e = t % PIECES, h = e / (D / 4), d = e % (D / 4) * 4;

        if (t >= COPIES * PIECES) return;
        const float most = fmaxf(fmaxf(om[h], om[8 + h]), fmaxf(om[16 + h], om[24 + h]));
        float4 acc = make_float4(0.f, 0.f, 0.f, 0.f);
        float L = 0.f;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const float f = exp2_fast(om[i * 8 + h] - most);
            const float4 x = *(const float4 *)&o[(i * GROUP + h) * at::STATE_STRIDE + d];
            acc.x += f * x.x, acc.y += f * x.y, acc.z += f * x.z, acc.w += f * x.w;
            L += f * ol[i * 8 + h];
        }
        float *to = floats(at::PARTS) + rank * at::PART;
#pragma unroll 2
        for (uint32_t b = t / PIECES; b < CTAS; b += COPIES) {
            cluster_send16(smem_addr(to + e * 4), bar(PARTS), b,
                           make_uint4(__float_as_uint(acc.x), __float_as_uint(acc.y),
                                      __float_as_uint(acc.z), __float_as_uint(acc.w)));
            if (d == 0)
                cluster_send8(smem_addr(to + GROUP * D + h * 2), bar(PARTS), b,
                              __float_as_uint(most), __float_as_uint(L));
        }
    }
    __device__ __forceinline__ void attend_split(uint4 (&k)[4][2], uint4 (&v)[8], const part &w)
    {
        state a;

        if (w.mine) {
            attend(a, k, v, w, numbers(at::QKV));
        } else {
            a.m = MASKED, a.l = 0.f;
#pragma unroll
            for (int d = 0; d < 8; d++)
                a.o[d][0] = a.o[d][1] = 0.f;
        }
        a.l = lanes_sum<4>(a.l);
        put_state(a);
    }
    /* The sum of the parts, in order: a warp has a head, a lane two columns of it. */
    __device__ __forceinline__ void merge_parts()
    {
        static_assert(SPLITS == 16, "half a warp, twice");
        const uint32_t splits = s.row.splits, mine = lane % SPLITS;
        const float *from = floats(at::PARTS) + warp * D + lane * 2;
        float2 ml = make_float2(MASKED, 0.f), acc = make_float2(0.f, 0.f);
        uint32_t out;

        if (mine < splits)
            ml = *(const float2 *)(floats(at::PARTS) + mine * at::PART + S::GROUP * D + warp * 2);
        const float most = lanes_max<SPLITS>(ml.x);
        const float f = exp2_fast(ml.x - most);
        const float L = lanes_sum<SPLITS>(f * ml.y); /* 0 where there is no split */
        if (splits == 1) {
            acc = *(const float2 *)from;
            out = pack2<T>(acc.x / L, acc.y / L);
        } else {
#pragma unroll 4
            for (uint32_t i = 0; i < splits; i++) {
                const float2 x = *(const float2 *)(from + i * at::PART);
                const float by = __shfl_sync(~0u, f, i);
                acc.x += by * x.x, acc.y += by * x.y;
            }
            const float inv = 1.f / L;
            out = pack2<T>(acc.x * inv, acc.y * inv);
        }
        *(uint32_t *)(numbers(at::XS) + x_place(warp * D + lane * 2)) = out;
    }
    /* This block's pages to L2; a lane has one. */
    __device__ __forceinline__ void prefetch_pages(uint32_t layer) const
    {
        constexpr uint32_t BYTES = RECORD * 16, BLOCKS = QUAD / KV_BLOCK_TOKENS;
        const int page = rank * BLOCKS + lane;

        if (layer >= p.layers || lane >= BLOCKS || s.row.pos < 0 ||
            page > s.row.pos / KV_BLOCK_TOKENS)
            return;
        bulk_prefetch(p.kv + layer * p.kv_layer_bytes +
                          ((uint64_t)load_fresh(s.row.table + page) * S::KV + cluster) * BYTES,
                      BYTES);
    }
    /* The product of q k v with the normed x, and attention of this block's split; to PARTS of all blocks. */
    __device__ __forceinline__ void make_parts(uint32_t layer, const turn &by, const part &w,
                                               typename base::template wide_tiles<ATTN_IN> &in)
    {
        const bool has_split = (int)rank < s.row.splits;

        base::wide_product(in);
        base::template hand_over<ATTN_IN>();
        if (warp < FIRST) {
            send_qkv(layer, by);
            base::template load_next<ATTN_IN, FIRST - 1>(layer);
        } else {
            uint4 k[4][2], v[8];
            load_k(k, w, layer);
            load_v(v, w, layer);
            if (w.newest < GROUP_TOKENS) clear_newest_v(v, w.newest);
            await(QKV_ROWS, layer & 1);
            if (has_split) attend_split(k, v, w);
        }
        if (has_split) {
            __syncthreads();
            send_part();
        }
    }
    /* What was attended to, in every block. */
    __device__ __forceinline__ void gather_parts(uint32_t layer)
    {
        if (s.row.pos >= 0) { /* an exchange of no bytes would be over before it is waited for */
            await(PARTS, layer & 1);
            if (warp < S::GROUP) merge_parts();
        }
        __syncthreads();
        base::template load_next<ATTN_OUT>(layer);
    }
};

} // namespace
