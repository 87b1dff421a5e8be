/* paged_decode_bulk.cu - paged_decode (attention.h) with pages brought to shared memory by the copy engine: sm_90a.
 *
 * Way      HBM -> shared memory -> mma. What is under way is neither in registers of the warps that shall multiply nor in L1, so a block
 *          may come while the kernel in front ends and ask for all pages but the newest, and a warp asks for its next 32 tokens as
 *          soon as it has read these, before it multiplies.
 * Launch   a block of 4 warps for each part of a row (paged_decode.cuh); each warp takes every 4th group of 32 tokens. Parts of a row
 *          that there are not come last. Where every part has an SM to itself, a block has all of its shared memory; else two
 *          share it. Its sums come together where its pages were.
 * L2       Evict first: pages are read once, and 17 MB of them under way push each other out of L2 otherwise (64 x 8k: 565 us
 *          for 485).
 * Floor    4*D*(tokens)*(kv heads) bytes: memory-bound (group / 1 flop per byte).
 * Measured H200, November 2026, 32/8 heads, D 128, cold, by `bench kernels` (read 4,540 GB/s): 64 x 8k 484 us, 0.98 of the run's
 *          read rate; 64 x 4k 244, 0.97; 64 x 2k 124, 0.95; 64 x 1k 65, 0.92 (68 where a context limit above some 1,500 tokens makes
 *          blocks without work); 8 x 2k 26 to 29; 1 x 8k 12.0 to 14.2, 1 x 32k 35.4 to 38.0, by the card. Pages to
 *          registers (paged_decode.cu): 496, 257, 134, 68; 31; 14.7, 39.6.
 *          Three blocks on an SM, one for all of an SM with many rows, blocks that take part after part with the next one's pages
 *          under way: slower, all of them.
 * Source   online softmax, arXiv 1805.02867. */
#include "paged_decode.cuh"
#include "paged_decode_bulk.h"

namespace
{

/* Where 32 tokens lie: K of two blocks, then four halves of V, each 32 bytes further than it need be, so that the four lanes
 * that read the same dims of four halves meet different banks. Bytes. */
template <int D> struct place {
    static constexpr int ROW = 2 * D, K = KV_BLOCK_TOKENS * ROW, HALF = 8 * ROW;
    static constexpr int RECORD = K + 2 * HALF; /* of a block, in memory */
    static constexpr int V_AT = 2 * K, V_STEP = HALF + 32;
    static constexpr int GROUP = V_AT + 4 * V_STEP;
};

__device__ __forceinline__ void copy_bytes(uint32_t dst, const void *src, uint64_t *bar,
                                           uint32_t bytes, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(smem_addr(bar)), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ uint4 shared_16(uint32_t addr)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(addr)
                 : "memory");
    return v;
}

/* A warp's groups of its part, in order, from memory to its SLOTS places. Six lanes copy: of each of two blocks K and the halves of V.
 * Blocks that the row does not see are left out: the table may name others' there. */
template <int D, int SLOTS> struct stream {
    using P = place<D>;
    int g, end, pos, first_block, last_block;
    int of_two, piece; /* what the lane copies; piece > 2: nothing */
    const char *from;  /* that of block 0 */
    uint32_t to;       /* its place 0 */
    uint64_t heads_bytes, policy, *full;
    const int32_t *table;
    int slot, block;

    __device__ __forceinline__ stream(const attention_args &a, const part &p, uint32_t ring,
                                      uint64_t *bars)
    {
        const int lane = threadIdx.x & 31;

        g = p.begin + (int)(threadIdx.x >> 5), end = p.end, pos = p.pos;
        first_block = p.lo / KV_BLOCK_TOKENS, last_block = pos / KV_BLOCK_TOKENS;
        of_two = lane >= 3, piece = lane - 3 * of_two;
        from = (const char *)a.kv + (uint64_t)p.kv_head * P::RECORD +
               (piece ? P::K + (piece - 1) * P::HALF : 0);
        to = ring + (piece ? P::V_AT + (2 * of_two + piece - 1) * P::V_STEP : of_two * P::K);
        heads_bytes = (uint64_t)a.kv_heads * P::RECORD;
        table = a.tables + (uint64_t)p.slot * a.table_stride;
        full = bars, slot = block = 0;
        asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        seek();
    }
    __device__ __forceinline__ bool ready() const
    {
        return g < end;
    }
    __device__ __forceinline__ bool copies() const
    {
        return piece < 3 && 2 * g + of_two >= first_block && 2 * g + of_two <= last_block;
    }
    __device__ __forceinline__ void seek()
    {
        if (ready() && copies()) block = state_at(table + 2 * g + of_two);
    }
    __device__ __forceinline__ void fetch()
    {
        const int blocks = min(2 * g + 1, last_block) - max(2 * g, first_block) + 1;
        uint64_t *bar = full + slot;

        if ((threadIdx.x & 31) == 0) mbarrier_expect(bar, blocks * P::RECORD);
        __syncwarp();
        if (copies())
            copy_bytes(to + slot * P::GROUP, from + (uint64_t)block * heads_bytes, bar,
                       piece ? P::HALF : P::K, policy);
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
        g += WARPS;
        seek();
    }
    /* All places are filled. All tokens but the newest were written in earlier steps: what has them alone is asked for before the
     * kernel in front has ended. */
    __device__ __forceinline__ void begin()
    {
        int flying = 0;

        for (; flying < SLOTS && ready() && (g + 1) * GROUP_TOKENS <= pos; flying++)
            fetch();
        pdl_wait();
        for (; flying < SLOTS && ready(); flying++)
            fetch();
    }
};

template <typename T, int D, int SLOTS, int BLOCKS>
__global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    bulk_kernel(const __grid_constant__ struct attention_args a,
                const __grid_constant__ struct decode_scratch scratch, uint32_t places)
{
    using P = place<D>;
    constexpr int KJ = decode<D>::KJ, VN = decode<D>::VN;
    constexpr int STRIDE = SLOTS * P::GROUP / 4; /* a warp's sums lie where its pages were */
    static_assert(STRIDE >= WARP_SUMS<D>, "room for sums");
    extern __shared__ __align__(128) char ring[];
    __shared__ meeting sh;
    __shared__ uint64_t full[WARPS][SLOTS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, r = lane >> 2, q = lane & 3;
    part p;

    if (lane < SLOTS) mbarrier_init(&full[warp][lane], 1);
    mbarrier_init_fence();
    __syncwarp();
    pdl_trigger();
    if (!part_at(a, scratch, places, blockIdx.z, blockIdx.x, blockIdx.y, p)) {
        pdl_wait();
        return;
    }

    const uint32_t own_ring = smem_addr(ring) + warp * SLOTS * P::GROUP;
    stream<D, SLOTS> in(a, p, own_ring, full[warp]);
    in.begin();

    const uint32_t k_lane = (r >> 2) * P::K + (((r >> 1) & 1) * 8 + (r & 1)) * P::ROW + q * 16,
                   v_lane = P::V_AT + q * P::V_STEP + r * 16;
    int slot = 0;
    uint32_t parity = 0;
    query<T, D> Q;
    sums<T, D> own;

    Q.load(a, p);
#pragma unroll 1
    for (int g = p.begin + warp; g < p.end; g += WARPS) {
        const uint32_t at = own_ring + slot * P::GROUP;
        mbarrier_wait(in.full + slot, parity);
        if (++slot == SLOTS) slot = 0, parity ^= 1;

        float s[4][2];
#pragma unroll
        for (int t = 0; t < 4; t++) {
            s[t][0] = s[t][1] = 0.f;
#pragma unroll
            for (int j = 0; j < KJ; j++) {
                uint4 k = make_uint4(0, 0, 0, 0);
                if (D % 32 == 0 || j * 32 + q * 8 < D)
                    k = shared_16(at + k_lane + t * 2 * P::ROW + j * 64);
                mma_top<T>(s[t][0], s[t][1], Q.a[2 * j][0], Q.a[2 * j][1], k.x, k.y);
                mma_top<T>(s[t][0], s[t][1], Q.a[2 * j + 1][0], Q.a[2 * j + 1][1], k.z, k.w);
            }
        }
        uint4 v[VN];
#pragma unroll
        for (int i = 0; i < VN; i++)
            v[i] = shared_16(at + v_lane + i * 128);
        __syncwarp();
        if (in.ready()) in.fetch(); /* to the place that is free now */

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
    float *const o = (float *)ring;
    put_warp<T, D>(o + warp * STRIDE, sh, own);
    end_part<T, D, STRIDE>(a, scratch, p, o, sh);
}

template <typename T, int D, int SLOTS, int BLOCKS>
cudaError_t launch_bulk(const struct kernel_context *ctx, const struct attention_args &a,
                        const struct decode_scratch &s)
{
    const auto kernel = bulk_kernel<T, D, SLOTS, BLOCKS>;
    constexpr int SHARED = WARPS * SLOTS * place<D>::GROUP;
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);

    if (e) return e;
    return launch(ctx, kernel, dim3(pairs_of(a), a.rows, s.splits_max), dim3(WARPS * 32), SHARED, a,
                  s, BLOCKS * (uint32_t)ctx->sm_count);
}

/* ONE, MANY: groups a warp has under way where a block is alone on its SM, and where there are two. */
template <typename T, int D, int ONE, int MANY>
cudaError_t launch_way(const struct kernel_context *ctx, const struct attention_args &a,
                       const struct decode_scratch &s)
{
    const bool alone =
        s.few_rows && (uint64_t)s.splits_max * pairs_of(a) * a.rows <= (uint64_t)ctx->sm_count;

    return alone ? launch_bulk<T, D, ONE, 1>(ctx, a, s) : launch_bulk<T, D, MANY, 2>(ctx, a, s);
}

template <typename T>
cudaError_t launch_dim(const struct kernel_context *ctx, const struct attention_args &a,
                       const struct decode_scratch &s)
{
    switch (a.head_dim) {
    case 64: return launch_way<T, 64, 6, 2>(ctx, a, s);
    case 80: return launch_way<T, 80, 5, 1>(ctx, a, s);
    case 96: return launch_way<T, 96, 4, 1>(ctx, a, s);
    case 128: return launch_way<T, 128, 3, 1>(ctx, a, s);
    default: return cudaErrorInvalidValue;
    }
}

} // namespace

extern "C" cudaError_t paged_decode_bulk(const struct kernel_context *ctx,
                                         const struct attention_args *args,
                                         const struct decode_scratch *scratch)
{
    DISPATCH(ctx, launch_dim<T>(ctx, *args, *scratch));
}
