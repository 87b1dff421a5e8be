/* paged_decode.cu - one query token per sequence against its paged KV cache (attention.h): the way that every device can go. On
 * sm_90a paged_decode_bulk.cu takes its place.
 *
 * Way      HBM -> registers -> mma: no shared memory until the end.
 * Launch   a block of 4 warps for each part of a row (paged_decode.cuh); each warp takes every 4th group of 32 tokens.
 * Floor    4*D*(tokens)*(kv heads) bytes: memory-bound (group / 1 flop per byte).
 * Source   online softmax, arXiv 1805.02867. */
#include "paged_decode.cuh"
#include "paged_decode_bulk.h"

namespace
{

template <typename T, int D>
__global__ void __launch_bounds__(WARPS * 32, 2)
    decode_kernel(const __grid_constant__ struct attention_args a,
                  const __grid_constant__ struct decode_scratch scratch, uint32_t places)
{
    constexpr int KJ = decode<D>::KJ, VN = decode<D>::VN;
    __shared__ __align__(16) float o[WARPS * WARP_SUMS<D>];
    __shared__ meeting sh;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, r = lane >> 2, q = lane & 3;
    part p;

    pdl_trigger();
    pdl_wait();
    if (!part_at(a, scratch, places, blockIdx.z, blockIdx.x, blockIdx.y, p)) return;
    const int32_t *table = a.tables + (uint64_t)p.slot * a.table_stride;
    /* Entries of the table in front of the window are not read: their blocks may be others' by now. */
    const int first_block = p.lo / KV_BLOCK_TOKENS, last_block = p.pos / KV_BLOCK_TOKENS;
    const auto seen = [&](int block) { return max(first_block, min(block, last_block)); };

    /* Block ids one group ahead: of the 8 tokens whose K rows, and of the 8 whose V, this lane reads. */
    int k_block = 0, v_block = 0;
    uint4 k[4][KJ], v[VN];
    const auto next_blocks = [&](int g) {
        k_block = state_at(table + seen((g * 32 + (r >> 1) * 8) / KV_BLOCK_TOKENS));
        v_block = state_at(table + seen((g * 32 + q * 8) / KV_BLOCK_TOKENS));
    };
    const auto load_group = [&]() {
        constexpr uint64_t RECORD = 2ull * KV_BLOCK_TOKENS * D;
        const T *kp = (const T *)a.kv + ((uint64_t)k_block * a.kv_heads + p.kv_head) * RECORD +
                      ((r >> 1) * 8 % KV_BLOCK_TOKENS + (r & 1)) * D + q * 8;
        const T *vp = (const T *)a.kv + ((uint64_t)v_block * a.kv_heads + p.kv_head) * RECORD +
                      KV_BLOCK_TOKENS * D + ((q & 1) * D + r) * 8;
#pragma unroll
        for (int t = 0; t < 4; t++)
#pragma unroll
            for (int j = 0; j < KJ; j++)
                k[t][j] = D % 32 == 0 || j * 32 + q * 8 < D
                              ? load_stream_coherent(kp + t * 2 * D + j * 32)
                              : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < VN; i++)
            v[i] = load_stream_coherent(vp + i * 64);
    };
    query<T, D> Q;
    sums<T, D> own;

    if (p.begin + warp < p.end) next_blocks(p.begin + warp);
    Q.load(a, p);
    for (int g = p.begin + warp; g < p.end; g += WARPS) {
        load_group();
        if (g + WARPS < p.end) next_blocks(g + WARPS);

        float s[4][2];
#pragma unroll
        for (int t = 0; t < 4; t++) {
            s[t][0] = s[t][1] = 0.f;
#pragma unroll
            for (int j = 0; j < KJ; j++) {
                mma_top<T>(s[t][0], s[t][1], Q.a[2 * j][0], Q.a[2 * j][1], k[t][j].x, k[t][j].y);
                mma_top<T>(s[t][0], s[t][1], Q.a[2 * j + 1][0], Q.a[2 * j + 1][1], k[t][j].z,
                           k[t][j].w);
            }
        }
        uint32_t weights[2][2], kept[4] = {~0u, ~0u, ~0u, ~0u};
        if (own.weigh(a, p, g * GROUP_TOKENS, s, weights, kept)) {
#pragma unroll
            for (int i = 0; i < VN; i++)
                v[i] = keep(v[i], kept);
        }
#pragma unroll
        for (int i = 0; i < VN; i++)
            own.add(i, weights, v[i]);
    }
    put_warp<T, D>(o + warp * WARP_SUMS<D>, sh, own);
    end_part<T, D, WARP_SUMS<D>>(a, scratch, p, o, sh);
}

template <typename T, int D>
cudaError_t launch_dim(const struct kernel_context *ctx, const struct attention_args &a,
                       const struct decode_scratch &s)
{
    return launch(ctx, decode_kernel<T, D>, dim3(pairs_of(a), a.rows, s.splits_max),
                  dim3(WARPS * 32), 0, a, s, 2 * (uint32_t)ctx->sm_count);
}

template <typename T>
cudaError_t launch_decode(const struct kernel_context *ctx, const struct attention_args &a,
                          const struct decode_scratch &s)
{
    switch (a.head_dim) {
    case 64: return launch_dim<T, 64>(ctx, a, s);
    case 80: return launch_dim<T, 80>(ctx, a, s);
    case 96: return launch_dim<T, 96>(ctx, a, s);
    case 128: return launch_dim<T, 128>(ctx, a, s);
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
    if (scratch->splits_max < 1 || scratch->splits_max > 64) return cudaErrorInvalidValue;
    if (ctx->capability >= 90) return paged_decode_bulk(ctx, args, scratch);
    DISPATCH(ctx, launch_decode<T>(ctx, *args, *scratch));
}
