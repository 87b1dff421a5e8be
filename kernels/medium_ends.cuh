/* medium_ends.cuh - what happens to the sums of medium_wgmma.cu: 1 / rms, bias, then one of enum medium_epilogue.
 *
 * A thread has its sums as wgmma leaves them (common/wgmma.cuh): of 8 columns two neighbours, n and n + 1, in two rows, m and m + 8. Such
 * a `four` is finished where it is, in registers: the rows of W are laid so that neighbours are what belongs together (gate and
 * up, the two numbers that RoPE turns). A block comes here once or a few times, so the code is short rather than general: one kernel
 * for each end. */
#pragma once

#include "common/activation.cuh"
#include "common/types.cuh"
#include "kv_layout.h"
#include "medium_gemm.h"

struct medium_params {
    uint32_t M, N, rows8, tiles, groups, splits, share, stages; /* groups: of `share` tiles */
    uint32_t sharers; /* ranks of the blocks that x is brought for at once, of split 0 */
    uint16_t k_begin[CLUSTER_MAX + 1];    /* of each split, in 64 columns */
    uint8_t first_group[CLUSTER_MAX + 1]; /* of 16 rows, that each split finishes */
    const float *norm_sums;
    uint32_t norm_tiles;
    float norm_scale, norm_eps; /* norm_scale: 1 / columns */
    const float *bias;
    int act;
    float scale, softcap;
    void *y;
    uint64_t y_stride;
    const float *next_gain;
    void *h;
    uint64_t h_stride;
    float *sums;
    struct skinny_qkv qkv;
};

/* Of a row of a step: where its K and V go and how far they are turned. */
struct medium_place {
    int32_t position, slot;
};

/* What rows end with, for all of them in shared memory. */
struct medium_rows {
    float factors[MEDIUM_ROWS_MAX]; /* 1 / rms, or 1 */
    medium_place places[MEDIUM_ROWS_MAX];
};

/* What a four wants of memory: the residual stream, or cosine and sine; first row in x, y. */
struct medium_beside {
    float4 old;
    float2 bias, gain;
};

__device__ __forceinline__ float2 turn_at(const medium_params &p, uint32_t n,
                                          const medium_place &place)
{
    const struct skinny_qkv &a = p.qkv;
    const uint32_t e = n % a.head_dim;

    if (n >= (a.heads + a.kv_heads) * a.head_dim || e >= a.rope_dim || place.position < 0)
        return make_float2(1.f, 0.f);
    return __ldg(a.rope + (uint64_t)place.position * (a.rope_dim / 2) + e / 2);
}

/* n < N; rows from M on are not asked for. */
template <int END>
__device__ __forceinline__ medium_beside fetch_beside(const medium_params &p, uint32_t m,
                                                      uint32_t n, const medium_rows &rows)
{
    medium_beside b = {};

    if (p.bias) b.bias = __ldg((const float2 *)(p.bias + n));
    if (END == MEDIUM_RESIDUAL) {
        const float *y = (const float *)p.y + n;
        if (p.next_gain) b.gain = __ldg((const float2 *)(p.next_gain + n));
        const float2 first =
            m < p.M ? __ldcg((const float2 *)(y + m * p.y_stride)) : make_float2(0.f, 0.f);
        const float2 second = m + 8 < p.M ? __ldcg((const float2 *)(y + (m + 8) * p.y_stride))
                                          : make_float2(0.f, 0.f);
        b.old = make_float4(first.x, first.y, second.x, second.y);
    }
    if (END == MEDIUM_QKV) {
        const float2 first = turn_at(p, n, rows.places[m]),
                     second = turn_at(p, n, rows.places[m + 8]);
        b.old = make_float4(first.x, first.y, second.x, second.y);
    }
    return b;
}

/* Two neighbours of a row of q, k or v. */
template <typename T>
__device__ __forceinline__ void write_qkv(const medium_params &p, uint32_t m, uint32_t n, float2 v,
                                          float2 turn, const medium_place &at)
{
    const struct skinny_qkv &a = p.qkv;
    const uint32_t D = a.head_dim, head = n / D, e = n % D;
    const float2 turned = make_float2(products_sum(v.x, turn.x, v.y, -turn.y),
                                      products_sum(v.y, turn.x, v.x, turn.y));

    if (m >= p.M) return;
    if (head < a.heads) {
        *(uint32_t *)((T *)p.y + m * p.y_stride + n) = pack2<T>(turned.x, turned.y);
        return;
    }
    if (at.slot < 0) return;
    const bool is_v = head >= a.heads + a.kv_heads;
    const uint32_t kv_head = head - a.heads - (is_v ? a.kv_heads : 0),
                   token = at.slot % KV_BLOCK_TOKENS;
    T *record = (T *)a.kv + ((uint64_t)(at.slot / KV_BLOCK_TOKENS) * a.kv_heads + kv_head) *
                                (2ull * KV_BLOCK_TOKENS * D);
    if (!is_v) {
        *(uint32_t *)(record + token * D + e) = pack2<T>(turned.x, turned.y);
        return;
    }
    T *to = record + KV_BLOCK_TOKENS * D + ((token / 8) * D + e) * 8 + token % 8;
    to[0] = from_float<T>(turned.x), to[8] = from_float<T>(turned.y);
}

/* act(gate) * up. Neighbouring lanes swap a row's number for the other's, so that each writes two of one row. */
template <typename T>
__device__ __forceinline__ void write_glu(const medium_params &p, uint32_t m, uint32_t n, float4 v)
{
    const bool odd = threadIdx.x & 1;
    const float first = activate(v.x, p.act) * v.y, second = activate(v.z, p.act) * v.w;
    const float other = __shfl_xor_sync(~0u, odd ? first : second, 1);
    const uint32_t row = odd ? m + 8 : m;

    if (row < p.M)
        *(uint32_t *)((T *)p.y + row * p.y_stride + (n / 2 - odd)) =
            odd ? pack2<T>(other, second) : pack2<T>(first, other);
}

__device__ __forceinline__ float logit(const medium_params &p, float v)
{
    v *= p.scale;
    return p.softcap > 0.f ? p.softcap * tanh_fast(__fdividef(v, p.softcap)) : v;
}

template <typename T>
__device__ __forceinline__ float write_residual(const medium_params &p, uint32_t m, uint32_t n,
                                                float2 v, float2 gain)
{
    if (m >= p.M) return 0.f;
    *(float2 *)((float *)p.y + m * p.y_stride + n) = v;
    if (!p.next_gain) return 0.f;
    *(uint32_t *)((T *)p.h + m * p.h_stride + n) = pack2<T>(v.x * gain.x, v.y * gain.y);
    return products_sum(v.x, v.x, v.y, v.y);
}

/* All lanes of a warp. factors: of rows m and m + 8. Adds to `squares` what of both rows was written to the residual stream. */
template <typename T, int END>
__device__ __forceinline__ void finish_four(const medium_params &p, uint32_t m, uint32_t n,
                                            float4 v, float2 factors, const medium_beside &b,
                                            const medium_rows &rows, float2 &squares)
{
    v = make_float4(v.x * factors.x + b.bias.x, v.y * factors.x + b.bias.y,
                    v.z * factors.y + b.bias.x, v.w * factors.y + b.bias.y);
    if (END == MEDIUM_GLU) {
        write_glu<T>(p, m, n, v);
    } else if (END == MEDIUM_STORE) {
        T *y = (T *)p.y + m * p.y_stride + n;
        if (m < p.M) *(uint32_t *)y = pack2<T>(v.x, v.y);
        if (m + 8 < p.M) *(uint32_t *)(y + 8 * p.y_stride) = pack2<T>(v.z, v.w);
    } else if (END == MEDIUM_LOGITS) {
        float *y = (float *)p.y + m * p.y_stride + n;
        if (m < p.M) *(float2 *)y = make_float2(logit(p, v.x), logit(p, v.y));
        if (m + 8 < p.M)
            *(float2 *)(y + 8 * p.y_stride) = make_float2(logit(p, v.z), logit(p, v.w));
    } else if (END == MEDIUM_RESIDUAL) {
        squares.x += write_residual<T>(p, m, n, make_float2(v.x + b.old.x, v.y + b.old.y), b.gain);
        squares.y +=
            write_residual<T>(p, m + 8, n, make_float2(v.z + b.old.z, v.w + b.old.w), b.gain);
    } else {
        write_qkv<T>(p, m, n, make_float2(v.x, v.y), make_float2(b.old.x, b.old.y), rows.places[m]);
        write_qkv<T>(p, m + 8, n, make_float2(v.z, v.w), make_float2(b.old.z, b.old.w),
                     rows.places[m + 8]);
    }
}

/* Rows first .. end - 1, by one warp while the others multiply: many rows with one wait. */
template <int END>
__device__ __forceinline__ void fetch_rows(const medium_params &p, uint32_t first, uint32_t end,
                                           medium_rows &rows)
{
    constexpr int AT_ONCE = 16;
    const uint32_t lane = threadIdx.x & 31;

    for (uint32_t m = lane; END == MEDIUM_QKV && m < MEDIUM_ROWS_MAX; m += 32)
        rows.places[m] =
            m < p.M ? medium_place{p.qkv.positions[m], p.qkv.kv_slots[m]} : medium_place{-1, -1};
    if (!p.norm_sums) {
        rows.factors[lane] = rows.factors[lane + 32] = 1.f;
        return;
    }
#pragma unroll 1
    for (uint32_t m = first; m < end; m += AT_ONCE) {
        float s[AT_ONCE] = {};
#pragma unroll 1
        for (uint32_t i = lane; i < p.norm_tiles; i += 32)
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                if (m + j < end) s[j] += __ldcg(p.norm_sums + (m + j) * p.norm_tiles + i);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            s[j] = lanes_sum<32>(s[j]);
            if (lane == 0 && m + j < end)
                rows.factors[m + j] = rsqrtf(s[j] * p.norm_scale + p.norm_eps);
        }
    }
}
