/* paged_decode.cuh - what both ways of paged_decode share: how rows are cut into parts, the online softmax of 32 tokens in a
 * warp, and how the sums of warps and of parts come together.
 *
 * Operands The heads of a group are rows 0..7 of the A operand, 8 tokens the columns of B: a lane's 16 bytes of a K row, and 16
 *          bytes of interleaved V, are B operands as they come. Lane (r = lane / 4, q = lane % 4) has of 32 tokens K of
 *          (r / 2) * 8 + t * 2 + r % 2 for t = 0..3, and V of q * 8 .. + 7. With this order the scores in the accumulators, of
 *          tokens q * 8 + t * 2 + e, are the A operand of p v. */
#pragma once

#include "attention.h"
#include "common/launch.cuh"
#include "kv_layout.h"

namespace
{

constexpr int WARPS = 4, GROUP_TOKENS = 32;
constexpr int LEAST = 32; /* groups that are worth a block, of many rows */
constexpr float LOG2E = 1.4426950408889634f, MASKED = -1e30f;

template <int D> struct decode {
    static constexpr int KJ = (D + 31) / 32; /* 16-byte pieces of a K row per lane */
    static constexpr int VN = D / 8;         /* 8-wide column tiles of V */
};

/* --- what there is to do --- */

/* A part of a row for some heads of one KV head: what a block does at once. */
struct part {
    int z, row, slot;              /* z: its place among the rows asked for */
    int pos, lo;                   /* the newest token, the first that is seen */
    int split, splits, begin, end; /* groups [begin, end) of 32 tokens */
    int kv_head, head0, heads;     /* at most eight */
};

/* Parts of heads of a KV head. */
static inline uint32_t pairs_of(const attention_args &a)
{
    return a.kv_heads * ((a.heads / a.kv_heads + 7) / 8);
}

/* Tokens that a row sees: from `lo` on, in groups of 32 from `first` on. */
struct span {
    int lo, first, groups;
};
__device__ __forceinline__ span span_of(const attention_args &a, int pos)
{
    const int lo = a.window && pos + 1 > (int)a.window ? pos + 1 - (int)a.window : 0;

    return {lo, lo / GROUP_TOKENS, pos / GROUP_TOKENS - lo / GROUP_TOKENS + 1};
}

/* What the step's state says: past L1, for it is read before pdl_wait(), and a launch with programmatic dependence need not empty L1 of
 * what a kernel of the step before has left there. */
__device__ __forceinline__ int state_at(const int32_t *p)
{
    return __ldcg(p);
}
__device__ __forceinline__ int row_of(const attention_args &a, int z)
{
    return a.row_list ? state_at(a.row_list + z) : z;
}

/* Of the rows of all lanes, or of one lane's. */
struct load {
    uint32_t rows, groups, longest;
};
__device__ __forceinline__ load load_of_lane(const attention_args &a)
{
    load l = {};

    for (uint32_t z = threadIdx.x & 31; z < a.rows; z += 32) {
        const int pos = state_at(a.positions + row_of(a, (int)z));
        if (pos < 0) continue;
        const uint32_t n = span_of(a, pos).groups;
        l.rows++, l.groups += n, l.longest = max(l.longest, n);
    }
    return l;
}

/* Groups that a part of one of many rows shall have. Rows of about the same length: so many that each of the places for blocks has two
 * parts, the fewer ends the better. Of different lengths: no more than are worth a block, so that nobody has much to do when the
 * others have ended. All lanes of a warp. */
__device__ __forceinline__ int aim_of(load l, uint32_t pairs, uint32_t places)
{
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        l.rows += __shfl_xor_sync(~0u, l.rows, o), l.groups += __shfl_xor_sync(~0u, l.groups, o);
        l.longest = max(l.longest, __shfl_xor_sync(~0u, l.longest, o));
    }
    if (l.longest * l.rows > l.groups + l.groups / 4) return LEAST;
    return (int)max((uint32_t)LEAST, l.groups * pairs / (2 * places));
}

/* Part `split` of pair `pair` of the row in place z; false: there is none. All lanes of a warp. Positions, slots and tables were written
 * before the first kernel of the chain began, so this may be asked before pdl_wait(). */
__device__ __forceinline__ bool part_at(const attention_args &a, const decode_scratch &scratch,
                                        uint32_t places, int split, int pair, int z, part &p)
{
    const int group = a.heads / a.kv_heads, parts = (group + 7) / 8;
    load l = {};

    p.split = split, p.z = z;
    p.row = row_of(a, z);
    p.pos = state_at(a.positions + p.row);
    p.slot = state_at(a.slots + p.row);
    if (!scratch.few_rows) l = load_of_lane(a); /* asked for together with the row's own */
    if (p.pos < 0) return false;
    const span seen = span_of(a, p.pos);
    if (!scratch.few_rows && split && seen.groups < LEAST + LEAST / 2) return false;
    /* Few rows: as few as all warps have one of, which is what helps one sequence. */
    const int aim = scratch.few_rows ? WARPS : aim_of(l, parts * a.kv_heads, places),
              round = scratch.few_rows ? aim - 1 : aim / 2,
              splits = max(1, min((int)scratch.splits_max, (seen.groups + round) / aim)),
              per = ((seen.groups + splits - 1) / splits + WARPS - 1) / WARPS * WARPS;
    p.lo = seen.lo, p.splits = (seen.groups + per - 1) / per;
    p.begin = seen.first + split * per, p.end = min(seen.first + seen.groups, p.begin + per);
    p.kv_head = pair / parts, p.head0 = p.kv_head * group + pair % parts * 8;
    p.heads = min(8, (p.kv_head + 1) * group - p.head0);
    return split < p.splits;
}

/* --- 32 tokens in a warp --- */

/* The A operand: columns q*8 + j*32 of head r, as K is loaded. */
template <typename T, int D> struct query {
    uint32_t a[decode<D>::KJ * 2][2];

    __device__ __forceinline__ void load(const attention_args &args, const part &p)
    {
        const int lane = threadIdx.x & 31, r = lane >> 2, q = lane & 3;
        const T *qp = (const T *)args.q + p.row * args.q_stride +
                      (uint64_t)(p.head0 + (r < p.heads ? r : 0)) * D;
#pragma unroll
        for (int j = 0; j < decode<D>::KJ; j++) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (r < p.heads && j * 32 + q * 8 < D) v = load_shared_state(qp + j * 32 + q * 8);
            a[2 * j][0] = v.x, a[2 * j][1] = v.y, a[2 * j + 1][0] = v.z, a[2 * j + 1][1] = v.w;
        }
    }
};

template <typename T, int D> struct sums {
    float o[D / 8][2] = {}, m = MASKED, l = 0.f; /* of head r; l: of this lane's tokens */

    /* s: scores of tokens tb + q*8 + t*2 + e, unscaled; weights: the A operand of p v. True: the row does not see all tokens, and
     * v & kept must be taken for v: 0 * NaN from past the end must not reach the sums. Word t has tokens 2t, 2t + 1. */
    __device__ __forceinline__ bool weigh(const attention_args &a, const part &p, int tb,
                                          float (&s)[4][2], uint32_t (&weights)[2][2],
                                          uint32_t (&kept)[4])
    {
        const float to_log2 = a.softcap > 0.f ? 1.f : a.scale * LOG2E;
        const int q = threadIdx.x & 3;

        if (a.softcap > 0.f) {
#pragma unroll
            for (int t = 0; t < 4; t++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    s[t][e] = a.softcap * LOG2E * tanhf(s[t][e] * a.scale / a.softcap);
        }
        const bool edge = tb + 31 > p.pos || tb < p.lo;
        if (edge) {
#pragma unroll
            for (int t = 0; t < 4; t++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int token = tb + q * 8 + t * 2 + e;
                    if (token <= p.pos && token >= p.lo) continue;
                    s[t][e] = MASKED;
                    kept[t] &= e ? 0x0000ffffu : 0xffff0000u;
                }
        }
        float mx = MASKED;
#pragma unroll
        for (int t = 0; t < 4; t++)
            mx = fmaxf(mx, fmaxf(s[t][0], s[t][1]));
        mx = lanes_max<4>(mx) * to_log2;
        const float m_new = fmaxf(m, mx);
        if (__any_sync(~0u, m_new > m)) {
            const float alpha = exp2_fast(m - m_new);
            l *= alpha;
#pragma unroll
            for (int i = 0; i < D / 8; i++)
                o[i][0] *= alpha, o[i][1] *= alpha;
            m = m_new;
        }
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const float p0 = exp2_fast(fmaf(s[t][0], to_log2, -m)),
                        p1 = exp2_fast(fmaf(s[t][1], to_log2, -m));
            l += p0 + p1;
            weights[t >> 1][t & 1] = pack2<T>(p0, p1);
        }
        return edge;
    }
    /* Column tile i of V. */
    __device__ __forceinline__ void add(int i, const uint32_t (&weights)[2][2], uint4 v)
    {
        mma_top<T>(o[i][0], o[i][1], weights[0][0], weights[0][1], v.x, v.y);
        mma_top<T>(o[i][0], o[i][1], weights[1][0], weights[1][1], v.z, v.w);
    }
};

__device__ __forceinline__ uint4 keep(uint4 v, const uint32_t (&kept)[4])
{
    return make_uint4(v.x & kept[0], v.y & kept[1], v.z & kept[2], v.w & kept[3]);
}

/* --- warps and parts come together --- */

struct meeting {
    float m[WARPS][8], l[WARPS][8];
    float weight[8][64], sum[8]; /* merge of splits */
    bool last;
};

/* Shared memory of a warp's o: [8][D + 4] f32. */
template <int D> constexpr int WARP_SUMS = 8 * (D + 4);

template <typename T, int D>
__device__ __forceinline__ void put_warp(float *to, meeting &sh, const sums<T, D> &own)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, r = lane >> 2, q = lane & 3;
    const float l = lanes_sum<4>(own.l);

#pragma unroll
    for (int i = 0; i < D / 8; i++)
        *(float2 *)(to + r * (D + 4) + i * 8 + 2 * q) = make_float2(own.o[i][0], own.o[i][1]);
    if (q == 0) sh.m[warp][r] = own.m, sh.l[warp][r] = l;
}

/* Four dims of a head over all warps, whose o lie STRIDE floats apart; their common maximum and sum. */
template <int D, int STRIDE>
__device__ __forceinline__ float4 fold_warps(const float *o, const meeting &sh, int h, int d,
                                             float &M, float &L)
{
    float4 acc = make_float4(0.f, 0.f, 0.f, 0.f);

    M = fmaxf(fmaxf(sh.m[0][h], sh.m[1][h]), fmaxf(sh.m[2][h], sh.m[3][h]));
    L = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        const float f = exp2_fast(sh.m[w][h] - M);
        const float4 x = *(const float4 *)(o + w * STRIDE + h * (D + 4) + d);
        acc.x += f * x.x, acc.y += f * x.y, acc.z += f * x.z, acc.w += f * x.w;
        L += f * sh.l[w][h];
    }
    return acc;
}

template <typename T>
__device__ __forceinline__ void put_out(const attention_args &a, const part &p, int D, int h, int d,
                                        float4 v)
{
    T *out = (T *)a.out + p.row * a.out_stride + (uint64_t)(p.head0 + h) * D + d;
    *(uint2 *)out = make_uint2(pack2<T>(v.x, v.y), pack2<T>(v.z, v.w));
}

/* One more of `counter`. Whoever of the block wrote before the barrier in front of this is seen by who counts later. */
__device__ __forceinline__ uint32_t arrive(uint32_t *counter)
{
    uint32_t before = 0;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(counter)
                 : "memory");
    return before;
}

/* The weights of all parts of each head, and their sum. */
__device__ __forceinline__ void weigh_parts(const decode_scratch &scratch, const part &p,
                                            uint64_t first, meeting &sh)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;

    for (int h = warp; h < p.heads; h += WARPS) {
        const float2 *ml =
            (const float2 *)scratch.partial_ml + first + (uint64_t)h * scratch.splits_max;
        const float2 none = make_float2(MASKED, 0.f);
        const float2 a = lane < p.splits ? __ldcg(ml + lane) : none,
                     b = lane + 32 < p.splits ? __ldcg(ml + lane + 32) : none;
        const float M = lanes_max<32>(fmaxf(a.x, b.x));
        const float fa = exp2_fast(a.x - M), fb = exp2_fast(b.x - M);
        const float L = lanes_sum<32>(products_sum(fa, a.y, fb, b.y));
        sh.weight[h][lane] = fa, sh.weight[h][lane + 32] = fb;
        if (lane == 0) sh.sum[h] = L;
    }
}

/* All parts of the row, in order, by the last of their blocks. Those of a thread's first dims are asked for before their weights
 * are known. */
template <typename T, int D>
__device__ __forceinline__ void merge_parts(const attention_args &a, const decode_scratch &scratch,
                                            const part &p, uint64_t first, meeting &sh)
{
    constexpr int BATCH = 16;
    const int all = p.heads * (D / 4);
    float4 x[BATCH];
    const auto load = [&](int e, int from) {
        const float *at = scratch.partial +
                          (first + (uint64_t)(e / (D / 4)) * scratch.splits_max + from) * D +
                          e % (D / 4) * 4;
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (from + i < p.splits) x[i] = __ldcg((const float4 *)(at + (uint64_t)i * D));
    };

    if ((int)threadIdx.x < all) load(threadIdx.x, 0);
    weigh_parts(scratch, p, first, sh);
    __syncthreads();
    for (int e = threadIdx.x; e < all; e += WARPS * 32) {
        const int h = e / (D / 4), d = e % (D / 4) * 4;
        float4 acc = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 1
        for (int from = 0; from < p.splits; from += BATCH) {
            if (from || e != (int)threadIdx.x) load(e, from);
#pragma unroll
            for (int i = 0; i < BATCH; i++)
                if (from + i < p.splits) {
                    const float f = sh.weight[h][from + i];
                    acc.x += f * x[i].x, acc.y += f * x[i].y;
                    acc.z += f * x[i].z, acc.w += f * x[i].w;
                }
        }
        const float inv = 1.f / sh.sum[h];
        put_out<T>(a, p, D, h, d, make_float4(acc.x * inv, acc.y * inv, acc.z * inv, acc.w * inv));
    }
}

/* The end of a part, by all threads of its block: o has the warps' sums STRIDE floats apart, which put_warp() left. */
template <typename T, int D, int STRIDE>
__device__ __forceinline__ void end_part(const attention_args &a, const decode_scratch &scratch,
                                         const part &p, const float *o, meeting &sh)
{
    const uint64_t first = ((uint64_t)p.z * a.heads + p.head0) * scratch.splits_max;

    __syncthreads();
    for (int e = threadIdx.x; e < p.heads * (D / 4); e += WARPS * 32) {
        const int h = e / (D / 4), d = e % (D / 4) * 4;
        float M, L;
        const float4 acc = fold_warps<D, STRIDE>(o, sh, h, d, M, L);
        if (p.splits == 1) {
            put_out<T>(a, p, D, h, d, make_float4(acc.x / L, acc.y / L, acc.z / L, acc.w / L));
        } else {
            const uint64_t at = first + (uint64_t)h * scratch.splits_max + p.split;
            *(float4 *)(scratch.partial + at * D + d) = acc;
            if (d == 0) *((float2 *)scratch.partial_ml + at) = make_float2(M, L);
        }
    }
    if (p.splits == 1) return;
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t *counter = scratch.counters + (uint64_t)p.z * a.heads + p.head0;
        sh.last = arrive(counter) == (uint32_t)p.splits - 1;
        if (sh.last) *counter = 0; /* for the next launch */
    }
    __syncthreads();
    if (sh.last) merge_parts<T, D>(a, scratch, p, first, sh);
}

} // namespace
