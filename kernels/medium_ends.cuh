/* medium_ends.cuh - what happens to the sums of medium_wgmma.cu: 1 / rms, bias, then one of enum medium_epilogue.
 *
 * A thread has its sums as wgmma leaves them (common/wgmma.cuh): of 8 columns two neighbours, n and n + 1, in two rows, m and m + 8. Such
 * a `four` is finished where it is, in registers: the rows of W are laid so that neighbours are what belongs together (gate and
 * up, the two numbers that RoPE turns). A block comes here once or a few times, and memory has nothing to do meanwhile: one kernel
 * for each end, and several fours side by side. */
#pragma once

#include "common/activation.cuh"
#include "common/types.cuh"
#include "kv_layout.h"
#include "medium_gemm.h"

struct medium_params {
    uint32_t M, N, rows8, tiles, groups, splits, share, stages; /* groups: of `share` tiles */
    uint32_t deep;    /* blocks of 64 columns in a stage */
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
    uint32_t per_head; /* 2^32 / head_dim, rounded up: MEDIUM_QKV */
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

/* Where a lane's fours of one group of rows begin: column n of rows m and m + 8. What is done to them takes COUNT at once, STEP columns
 * apart: what depends on the row is made once, the rest is an offset that the compiler knows. An end takes as long as its instructions one
 * behind the other, for a scheduler has only two warps to choose from. */
struct medium_fours {
    uint32_t m, n, end; /* end: columns from there on are not its own */
    bool first, second; /* row m is one of x's, row m + 8 is */
};
__device__ __forceinline__ medium_fours fours_at(const medium_params &p, uint32_t m, uint32_t n,
                                                 uint32_t end)
{
    return {m, n, min(end, p.N), m < p.M, m + 8 < p.M};
}

/* Of a column: head and place in it. */
struct medium_column {
    uint32_t head, e;
};
__device__ __forceinline__ medium_column column_of(const medium_params &p, uint32_t n)
{
    const uint32_t head = __umulhi(n, p.per_head);

    return {head, n - head * p.qkv.head_dim};
}

template <int COUNT, int STEP>
__device__ __forceinline__ void fetch_turns(const medium_params &p, const medium_fours &at,
                                            const medium_rows &rows, medium_beside (&out)[COUNT])
{
    const struct skinny_qkv &a = p.qkv;
    const int32_t first = rows.places[at.m].position, second = rows.places[at.m + 8].position;
    const float2 *const rope = a.rope + (uint64_t)max(first, 0) * (a.rope_dim / 2),
                        *const rope_second = a.rope + (uint64_t)max(second, 0) * (a.rope_dim / 2);

#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        const uint32_t n = at.n + j * STEP;
        const medium_column c = column_of(p, n);
        const bool turns = c.head < a.heads + a.kv_heads && c.e < a.rope_dim;
        const float2 none = make_float2(1.f, 0.f),
                     x = turns && first >= 0 ? __ldg(rope + c.e / 2) : none,
                     y = turns && second >= 0 ? __ldg(rope_second + c.e / 2) : none;
        out[j].old = make_float4(x.x, x.y, y.x, y.y);
    }
}

template <int END, int COUNT, int STEP>
__device__ __forceinline__ void fetch_beside(const medium_params &p, const medium_fours &at,
                                             const medium_rows &rows, medium_beside (&out)[COUNT])
{
    const float2 none = make_float2(0.f, 0.f);

#pragma unroll
    for (int j = 0; j < COUNT; j++)
        out[j].bias = out[j].gain = none;
    if (p.bias)
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            if (at.n + j * STEP < at.end)
                out[j].bias = __ldg((const float2 *)(p.bias + at.n) + j * STEP / 2);
    if (END == MEDIUM_QKV) fetch_turns<COUNT, STEP>(p, at, rows, out);
    if (END != MEDIUM_RESIDUAL) return;
    const float2 *const y = (const float2 *)((const float *)p.y + at.m * p.y_stride + at.n),
                        *const second = y + 4 * p.y_stride;
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        const bool is = at.n + j * STEP < at.end;
        const float2 u = is && at.first ? __ldcg(y + j * STEP / 2) : none,
                     v = is && at.second ? __ldcg(second + j * STEP / 2) : none;
        out[j].old = make_float4(u.x, u.y, v.x, v.y);
    }
    if (p.next_gain)
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            if (at.n + j * STEP < at.end)
                out[j].gain = __ldg((const float2 *)(p.next_gain + at.n) + j * STEP / 2);
}

/* Where K and V of a row go: of a block of the pool, and the token in it. */
template <typename T> struct medium_record {
    T *at;
    uint32_t token;

    __device__ __forceinline__ medium_record(const struct skinny_qkv &a, int32_t slot)
    {
        const uint32_t s = (uint32_t)max(slot, 0);

        at = slot < 0 ? nullptr
                      : (T *)a.kv + (uint64_t)(s / KV_BLOCK_TOKENS) * a.kv_heads *
                                        (2 * KV_BLOCK_TOKENS * a.head_dim);
        token = s % KV_BLOCK_TOKENS;
    }
};

/* Two neighbours of a row of q, k or v. y: of the row. */
template <typename T>
__device__ __forceinline__ void write_qkv(const struct skinny_qkv &a, uint32_t n,
                                          const medium_column &c, float2 v, float2 turn, T *y,
                                          const medium_record<T> &record)
{
    const uint32_t D = a.head_dim;
    const float2 turned = make_float2(products_sum(v.x, turn.x, v.y, -turn.y),
                                      products_sum(v.y, turn.x, v.x, turn.y));

    if (c.head < a.heads) {
        *(uint32_t *)(y + n) = pack2<T>(turned.x, turned.y);
        return;
    }
    if (!record.at) return;
    const bool is_v = c.head >= a.heads + a.kv_heads;
    const uint32_t kv_head = c.head - a.heads - (is_v ? a.kv_heads : 0), token = record.token;
    T *const to = record.at + kv_head * (2 * KV_BLOCK_TOKENS * D);
    if (!is_v) {
        *(uint32_t *)(to + token * D + c.e) = pack2<T>(turned.x, turned.y);
        return;
    }
    T *const pair = to + KV_BLOCK_TOKENS * D + ((token / 8) * D + c.e) * 8 + token % 8;
    pair[0] = from_float<T>(turned.x), pair[8] = from_float<T>(turned.y);
}

template <typename T, int COUNT, int STEP>
__device__ __forceinline__ void write_qkvs(const medium_params &p, const medium_fours &at,
                                           const float4 (&v)[COUNT],
                                           const medium_beside (&b)[COUNT], const medium_rows &rows)
{
    T *const y = (T *)p.y + at.m * p.y_stride;
    const medium_record<T> first(p.qkv, rows.places[at.m].slot),
        second(p.qkv, rows.places[at.m + 8].slot);

#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        const uint32_t n = at.n + j * STEP;
        const medium_column c = column_of(p, n);
        if (n >= at.end) continue;
        if (at.first)
            write_qkv<T>(p.qkv, n, c, make_float2(v[j].x, v[j].y),
                         make_float2(b[j].old.x, b[j].old.y), y, first);
        if (at.second)
            write_qkv<T>(p.qkv, n, c, make_float2(v[j].z, v[j].w),
                         make_float2(b[j].old.z, b[j].old.w), y + 8 * p.y_stride, second);
    }
}

/* act(gate) * up. Neighbouring lanes swap a row's number for the other's, so that each writes two of one row. */
template <typename T, int COUNT, int STEP>
__device__ __forceinline__ void write_glus(const medium_params &p, const medium_fours &at,
                                           const float4 (&v)[COUNT])
{
    const bool odd = threadIdx.x & 1, writes = odd ? at.second : at.first;
    T *const y = (T *)p.y + (at.m + (odd ? 8 : 0)) * p.y_stride + (at.n / 2 - odd);
    float first[COUNT], second[COUNT], other[COUNT];

    if (p.act == 0) {
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            first[j] = activate(v[j].x, 0) * v[j].y, second[j] = activate(v[j].z, 0) * v[j].w;
    } else {
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            first[j] = activate(v[j].x, 1) * v[j].y, second[j] = activate(v[j].z, 1) * v[j].w;
    }
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        other[j] = __shfl_xor_sync(~0u, odd ? first[j] : second[j], 1);
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        const uint32_t pair = pack2<T>(odd ? other[j] : first[j], odd ? second[j] : other[j]);
        if (writes && at.n + j * STEP < at.end) *(uint32_t *)(y + j * STEP / 2) = pair;
    }
}

__device__ __forceinline__ float capped(const medium_params &p, float v)
{
    return p.softcap * tanh_fast(__fdividef(v, p.softcap));
}

template <int COUNT, int STEP>
__device__ __forceinline__ void write_logits(const medium_params &p, const medium_fours &at,
                                             float4 (&v)[COUNT])
{
    float2 *const y = (float2 *)((float *)p.y + at.m * p.y_stride + at.n);
    float2 *const second = y + 4 * p.y_stride;

#pragma unroll
    for (int j = 0; j < COUNT; j++)
        v[j] = make_float4(v[j].x * p.scale, v[j].y * p.scale, v[j].z * p.scale, v[j].w * p.scale);
    if (p.softcap > 0.f)
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            v[j] = make_float4(capped(p, v[j].x), capped(p, v[j].y), capped(p, v[j].z),
                               capped(p, v[j].w));
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        const bool is = at.n + j * STEP < at.end;
        if (is && at.first) y[j * STEP / 2] = make_float2(v[j].x, v[j].y);
        if (is && at.second) second[j * STEP / 2] = make_float2(v[j].z, v[j].w);
    }
}

template <typename T, int COUNT, int STEP>
__device__ __forceinline__ void write_stores(const medium_params &p, const medium_fours &at,
                                             const float4 (&v)[COUNT])
{
    T *const y = (T *)p.y + at.m * p.y_stride + at.n, *const second = y + 8 * p.y_stride;

#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        const bool is = at.n + j * STEP < at.end;
        const uint32_t u = pack2<T>(v[j].x, v[j].y), w = pack2<T>(v[j].z, v[j].w);
        if (is && at.first) *(uint32_t *)(y + j * STEP) = u;
        if (is && at.second) *(uint32_t *)(second + j * STEP) = w;
    }
}

/* Adds what of both rows was written to `squares`. */
template <typename T, int COUNT, int STEP>
__device__ __forceinline__ void write_residuals(const medium_params &p, const medium_fours &at,
                                                const float4 (&v)[COUNT],
                                                const medium_beside (&b)[COUNT], float2 &squares)
{
    float2 *const y = (float2 *)((float *)p.y + at.m * p.y_stride + at.n);
    float2 *const y_second = y + 4 * p.y_stride;
    T *const h = (T *)p.h + at.m * p.h_stride + at.n, *const h_second = h + 8 * p.h_stride;
    const bool prepares = p.next_gain;

#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        const float4 w = make_float4(v[j].x + b[j].old.x, v[j].y + b[j].old.y, v[j].z + b[j].old.z,
                                     v[j].w + b[j].old.w);
        const float2 gain = b[j].gain;
        const uint32_t u = pack2<T>(w.x * gain.x, w.y * gain.y),
                       t = pack2<T>(w.z * gain.x, w.w * gain.y);
        const bool is = at.n + j * STEP < at.end, first = is && at.first, second = is && at.second;
        if (first) y[j * STEP / 2] = make_float2(w.x, w.y);
        if (second) y_second[j * STEP / 2] = make_float2(w.z, w.w);
        if (first && prepares) *(uint32_t *)(h + j * STEP) = u;
        if (second && prepares) *(uint32_t *)(h_second + j * STEP) = t;
        squares.x += first ? products_sum(w.x, w.x, w.y, w.y) : 0.f;
        squares.y += second ? products_sum(w.z, w.z, w.w, w.w) : 0.f;
    }
}

/* All lanes of a warp. factors: of rows m and m + 8. Adds to `squares` what of both rows was written to the residual stream. */
template <typename T, int END, int COUNT, int STEP>
__device__ __forceinline__ void
finish_fours(const medium_params &p, const medium_fours &at, float4 (&v)[COUNT], float2 factors,
             const medium_beside (&b)[COUNT], const medium_rows &rows, float2 &squares)
{
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        v[j] = make_float4(v[j].x * factors.x + b[j].bias.x, v[j].y * factors.x + b[j].bias.y,
                           v[j].z * factors.y + b[j].bias.x, v[j].w * factors.y + b[j].bias.y);
    if (END == MEDIUM_GLU) write_glus<T, COUNT, STEP>(p, at, v);
    if (END == MEDIUM_STORE) write_stores<T, COUNT, STEP>(p, at, v);
    if (END == MEDIUM_LOGITS) write_logits<COUNT, STEP>(p, at, v);
    if (END == MEDIUM_RESIDUAL) write_residuals<T, COUNT, STEP>(p, at, v, b, squares);
    if (END == MEDIUM_QKV) write_qkvs<T, COUNT, STEP>(p, at, v, b, rows);
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
