/* paged_decode.cu - one query token per sequence against its paged KV cache (attention.h).
 *
 * Way      HBM -> registers -> mma: no shared memory until the end. The heads of a group are rows 0..7 of the A operand, 8
 *          tokens the columns of B: a lane's 16 bytes of a K row, and 16 bytes of interleaved V, are B operands as they
 *          come. Token order inside 32 is chosen so that the scores in the accumulators are the A operand of p v.
 * Launch   grid (splits, kv heads * ceil(group / 8), rows), 4 warps; each warp takes every 4th group of 32 tokens of
 *          its split, the warps are merged through shared memory; the last block of a (row, kv head) to finish
 *          merges the splits in order.
 * Floor    4*D*(tokens)*(kv heads) bytes: memory-bound (group / 1 flop per byte).
 * Measured H200, November 2026, 32/8 heads, D 128, cold: 64 x 8k 479 us, 0.97 of the run's read rate; 64 x 4k 0.93;
 *          64 x 1k 0.87; 1 x 8k 14.5 us, 1 x 32k 38.1 us; by `bench kernels`.
 * Source   online softmax, arXiv 1805.02867. */
#include "attention.h"
#include "common/launch.cuh"
#include "kv_layout.h"

namespace
{

constexpr int WARPS = 4;
constexpr float LOG2E = 1.4426950408889634f, MASKED = -1e30f;

template <typename T, int D> struct decode {
    static constexpr int KJ = (D + 31) / 32; /* 16-byte pieces of a K row per lane */
    static constexpr int VN = D / 8;         /* 8-wide column tiles of V */

    struct shared {
        float o[WARPS][8][D + 4];
        float m[WARPS][8], l[WARPS][8];
        float weight[8][64], sum[8]; /* merge of splits */
        bool last;
    };
};

/* Tokens that a row sees, in groups of 32. */
struct span {
    int pos, lo, begin, groups; /* lo: the first token seen; begin: its group */
};
__device__ __forceinline__ span span_of(const attention_args &a, int pos)
{
    const int lo = a.window && pos + 1 > (int)a.window ? pos + 1 - (int)a.window : 0;

    return {pos, lo, lo / 32, pos / 32 - lo / 32 + 1};
}

/* The heads of a KV head that a block does at once: at most eight. */
struct head_part {
    int kv_head, head0, heads;
};
__device__ __forceinline__ head_part part_of(const attention_args &a, int pair)
{
    const int group = a.heads / a.kv_heads, parts = (group + 7) / 8;
    const int kv_head = pair / parts, head0 = kv_head * group + (pair % parts) * 8;

    return {kv_head, head0, min(8, (kv_head + 1) * group - head0)};
}

/* o, m, l += those of groups g_first + warp, + WARPS, ... before g_end. With EARLY the first is fetched before pdl_wait(). */
template <typename T, int D, bool EARLY>
__device__ __forceinline__ void attend(const attention_args &a, int row, const span &seen_of,
                                       const head_part &part, int g_first, int g_end,
                                       float (&o)[decode<T, D>::VN][2], float &m, float &l)
{
    using P = decode<T, D>;
    constexpr int KJ = P::KJ, VN = P::VN;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, r = lane >> 2, q = lane & 3;
    const int kv_head = part.kv_head, head0 = part.head0, heads = part.heads;
    const int pos = seen_of.pos, lo = seen_of.lo;
    const int32_t *table = a.tables + (uint64_t)a.slots[row] * a.table_stride;
    /* Entries of the table in front of the window are not read: their blocks may be others' by now. */
    const int first_block = lo / KV_BLOCK_TOKENS, last_block = pos / KV_BLOCK_TOKENS;
    const auto seen = [&](int block) { return max(first_block, min(block, last_block)); };

    const float to_log2 = a.softcap > 0.f ? 1.f : a.scale * LOG2E;

    /* Block ids one group ahead: of the 8 tokens whose K rows, and of the 8 whose V, this lane reads. */
    int k_block = 0, v_block = 0;
    uint4 k[4][KJ], v[VN];
    const auto next_blocks = [&](int g) {
        k_block = table[seen((g * 32 + (r >> 1) * 8) / KV_BLOCK_TOKENS)];
        v_block = table[seen((g * 32 + q * 8) / KV_BLOCK_TOKENS)];
    };
    const auto load_group = [&]() {
        constexpr uint64_t RECORD = 2ull * KV_BLOCK_TOKENS * D;
        const T *kp = (const T *)a.kv + ((uint64_t)k_block * a.kv_heads + kv_head) * RECORD +
                      ((r >> 1) * 8 % KV_BLOCK_TOKENS + (r & 1)) * D + q * 8;
        const T *vp = (const T *)a.kv + ((uint64_t)v_block * a.kv_heads + kv_head) * RECORD +
                      KV_BLOCK_TOKENS * D + ((q & 1) * D + r) * 8;
#pragma unroll
        for (int t = 0; t < 4; t++)
#pragma unroll
            for (int j = 0; j < KJ; j++) {
                const T *at = kp + ((t >> 1) * 4 + (t & 1) * 2) * D + j * 32;
                if (D % 32 == 0 || j * 32 + q * 8 < D)
                    k[t][j] = load_stream_coherent(at);
                else
                    k[t][j] = make_uint4(0, 0, 0, 0);
            }
#pragma unroll
        for (int i = 0; i < VN; i++)
            v[i] = load_stream_coherent(vp + i * 64);
    };
    bool fetched = false;
    if (g_first + warp < g_end) {
        next_blocks(g_first + warp);
        if (EARLY && (g_first + warp) * 32 + 31 < pos) {
            load_group();
            fetched = true;
        }
    }
    if (EARLY) pdl_wait();

    uint32_t Q[KJ * 2][2]; /* A operand; columns q*8 + j*32 of the head, as K is loaded */
    {
        const T *qp =
            (const T *)a.q + row * a.q_stride + (uint64_t)(head0 + (r < heads ? r : 0)) * D;
#pragma unroll
        for (int j = 0; j < KJ; j++) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (r < heads && j * 32 + q * 8 < D) v = load_shared_state(qp + j * 32 + q * 8);
            Q[2 * j][0] = v.x, Q[2 * j][1] = v.y, Q[2 * j + 1][0] = v.z, Q[2 * j + 1][1] = v.w;
        }
    }
    for (int g = g_first + warp; g < g_end; g += WARPS) {
        const int tb = g * 32;
        if (!EARLY || !fetched) load_group();
        fetched = false;
        if (g + WARPS < g_end) next_blocks(g + WARPS);

        float s[4][2]; /* token tb + q*8 + t*2 + e */
#pragma unroll
        for (int t = 0; t < 4; t++) {
            float c0 = 0.f, c1 = 0.f;
#pragma unroll
            for (int j = 0; j < KJ; j++) {
                mma_top<T>(c0, c1, Q[2 * j][0], Q[2 * j][1], k[t][j].x, k[t][j].y);
                mma_top<T>(c0, c1, Q[2 * j + 1][0], Q[2 * j + 1][1], k[t][j].z, k[t][j].w);
            }
            s[t][0] = c0, s[t][1] = c1;
        }
        if (a.softcap > 0.f) {
#pragma unroll
            for (int t = 0; t < 4; t++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    s[t][e] = a.softcap * LOG2E * tanhf(s[t][e] * a.scale / a.softcap);
        }
        if (tb + 31 > pos || tb < lo) {
#pragma unroll
            for (int t = 0; t < 4; t++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int token = tb + q * 8 + t * 2 + e;
                    const bool out = token > pos || token < lo;
                    if (out) s[t][e] = MASKED;
                    /* 0 * NaN: what lies past the end must not reach the sum */
                    const uint32_t keep = out ? (e ? 0x0000ffffu : 0xffff0000u) : ~0u;
#pragma unroll
                    for (int i = 0; i < VN; i++)
                        (&v[i].x)[t] &= keep;
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
            for (int i = 0; i < VN; i++)
                o[i][0] *= alpha, o[i][1] *= alpha;
            m = m_new;
        }
        uint32_t A[2][2];
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const float p0 = exp2_fast(s[t][0] * to_log2 - m),
                        p1 = exp2_fast(s[t][1] * to_log2 - m);
            l += p0 + p1;
            A[t >> 1][t & 1] = pack2<T>(p0, p1);
        }
#pragma unroll
        for (int i = 0; i < VN; i++) {
            mma_top<T>(o[i][0], o[i][1], A[0][0], A[0][1], v[i].x, v[i].y);
            mma_top<T>(o[i][0], o[i][1], A[1][0], A[1][1], v[i].z, v[i].w);
        }
    }
}

/* This warp's sums to shared memory. */
template <typename T, int D>
__device__ __forceinline__ void put_warp(typename decode<T, D>::shared &sh,
                                         const float (&o)[decode<T, D>::VN][2], float m, float l)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, r = lane >> 2, q = lane & 3;

    l = lanes_sum<4>(l);
#pragma unroll
    for (int i = 0; i < decode<T, D>::VN; i++)
        *(float2 *)&sh.o[warp][r][i * 8 + 2 * q] = make_float2(o[i][0], o[i][1]);
    if (q == 0) sh.m[warp][r] = m, sh.l[warp][r] = l;
}

/* Four dims of a head over all warps; their common maximum and sum. */
template <typename T, int D>
__device__ __forceinline__ float4 fold_warps(const typename decode<T, D>::shared &sh, int h, int d,
                                             float &M, float &L)
{
    float4 acc = make_float4(0.f, 0.f, 0.f, 0.f);

    M = fmaxf(fmaxf(sh.m[0][h], sh.m[1][h]), fmaxf(sh.m[2][h], sh.m[3][h]));
    L = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        const float f = exp2_fast(sh.m[w][h] - M);
        const float4 x = *(const float4 *)&sh.o[w][h][d];
        acc.x += f * x.x, acc.y += f * x.y, acc.z += f * x.z, acc.w += f * x.w;
        L += f * sh.l[w][h];
    }
    return acc;
}

template <typename T> __device__ __forceinline__ void put_out(T *out, float4 v)
{
    *(uint2 *)out = make_uint2(pack2<T>(v.x, v.y), pack2<T>(v.z, v.w));
}

/* EARLY: for few rows, where the wait for memory is what counts; for many the device is full, and blocks that wait for the
 * kernel before only take places. */
template <typename T, int D, bool EARLY>
__global__ void __launch_bounds__(WARPS * 32, 2)
    decode_kernel(const __grid_constant__ struct attention_args a,
                  const __grid_constant__ struct decode_scratch scratch)
{
    using P = decode<T, D>;
    constexpr int VN = P::VN;
    __shared__ __align__(16) typename P::shared sh;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const head_part part = part_of(a, blockIdx.y);
    const int head0 = part.head0, heads = part.heads, split = blockIdx.x;

    pdl_trigger();
    if (!EARLY) pdl_wait();
    /* Positions, slots and tables are those of the step: written before the first kernel of the chain began. All tokens
     * but the newest were written in earlier steps, so the first group is fetched before the wait. */
    const int row = a.row_list ? a.row_list[blockIdx.z] : (int)blockIdx.z;
    const int pos = a.positions[row];
    if (pos < 0) {
        if (EARLY) pdl_wait();
        return;
    }
    const span seen = span_of(a, pos);
    int splits = scratch.few_rows ? (seen.groups + WARPS - 1) / WARPS : (seen.groups + 16) / 32;
    splits = max(1, min((int)scratch.splits_max, splits));
    const int per = ((seen.groups + splits - 1) / splits + WARPS - 1) / WARPS * WARPS;
    splits = (seen.groups + per - 1) / per;
    if (split >= splits) {
        if (EARLY) pdl_wait();
        return;
    }
    const int g_first = seen.begin + split * per,
              g_end = min(seen.begin + seen.groups, g_first + per);
    float o[VN][2] = {}, m = MASKED, l = 0.f;

    attend<T, D, EARLY>(a, row, seen, part, g_first, g_end, o, m, l);
    put_warp<T, D>(sh, o, m, l);
    __syncthreads();

    const uint64_t part0 = ((uint64_t)blockIdx.z * a.heads + head0) * scratch.splits_max;
    for (int e = threadIdx.x; e < heads * (D / 4); e += WARPS * 32) {
        const int h = e / (D / 4), d = e % (D / 4) * 4;
        float M, L;
        const float4 acc = fold_warps<T, D>(sh, h, d, M, L);
        if (splits == 1) {
            put_out((T *)a.out + row * a.out_stride + (uint64_t)(head0 + h) * D + d,
                    make_float4(acc.x / L, acc.y / L, acc.z / L, acc.w / L));
        } else {
            const uint64_t at = part0 + (uint64_t)h * scratch.splits_max + split;
            *(float4 *)(scratch.partial + at * D + d) = acc;
            if (d == 0) *(float2 *)(scratch.partial_ml + at * 2) = make_float2(M, L);
        }
    }
    if (splits == 1) return;

    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t *counter = scratch.counters + (uint64_t)blockIdx.z * a.heads + blockIdx.y;
        sh.last = atomicAdd(counter, 1) == (uint32_t)splits - 1;
        if (sh.last) *counter = 0; /* for the next launch */
    }
    __syncthreads();
    if (!sh.last) return;
    __threadfence();
    for (int h = warp; h < heads; h += WARPS) {
        const float *ml = scratch.partial_ml + (part0 + (uint64_t)h * scratch.splits_max) * 2;
        float M = MASKED, L = 0.f;
        for (int i = lane; i < splits; i += 32)
            M = fmaxf(M, __ldcg(ml + 2 * i));
        M = lanes_max<32>(M);
        for (int i = lane; i < splits; i += 32) {
            const float f = exp2_fast(__ldcg(ml + 2 * i) - M);
            sh.weight[h][i] = f;
            L += f * __ldcg(ml + 2 * i + 1);
        }
        L = lanes_sum<32>(L);
        if (lane == 0) sh.sum[h] = L;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < heads * (D / 4); e += WARPS * 32) {
        const int h = e / (D / 4), d = e % (D / 4) * 4;
        const float *po = scratch.partial + (part0 + (uint64_t)h * scratch.splits_max) * D + d;
        float4 acc = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 8
        for (int i = 0; i < splits; i++) {
            const float4 x = __ldcg((const float4 *)(po + (uint64_t)i * D));
            const float f = sh.weight[h][i];
            acc.x += f * x.x, acc.y += f * x.y, acc.z += f * x.z, acc.w += f * x.w;
        }
        const float inv = 1.f / sh.sum[h];
        put_out((T *)a.out + row * a.out_stride + (uint64_t)(head0 + h) * D + d,
                make_float4(acc.x * inv, acc.y * inv, acc.z * inv, acc.w * inv));
    }
}

enum { EARLY_ROWS = 16 };

template <typename T, int D>
cudaError_t launch_one(const struct kernel_context *ctx, const struct attention_args &a,
                       const struct decode_scratch &s, dim3 grid)
{
    const auto kernel =
        a.rows <= EARLY_ROWS ? decode_kernel<T, D, true> : decode_kernel<T, D, false>;

    return launch(ctx, kernel, grid, dim3(WARPS * 32), 0, a, s);
}

template <typename T>
cudaError_t launch_decode(const struct kernel_context *ctx, const struct attention_args &a,
                          const struct decode_scratch &s)
{
    const uint32_t group = a.heads / a.kv_heads;
    const dim3 grid(s.splits_max, a.kv_heads * ((group + 7) / 8), a.rows);

    if (s.splits_max < 1 || s.splits_max > 64) return cudaErrorInvalidValue;
    switch (a.head_dim) {
    case 64: return launch_one<T, 64>(ctx, a, s, grid);
    case 80: return launch_one<T, 80>(ctx, a, s, grid);
    case 96: return launch_one<T, 96>(ctx, a, s, grid);
    case 128: return launch_one<T, 128>(ctx, a, s, grid);
    default: return cudaErrorInvalidValue;
    }
}

} // namespace

extern "C" bool paged_decode_fits(uint32_t head_dim)
{
    return head_dim == 64 || head_dim == 80 || head_dim == 96 || head_dim == 128;
}

extern "C" cudaError_t paged_decode(const struct kernel_context *ctx,
                                    const struct attention_args *args,
                                    const struct decode_scratch *scratch)
{
    DISPATCH(ctx, launch_decode<T>(ctx, *args, *scratch));
}
