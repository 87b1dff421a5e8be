/* medium_wgmma.cu - see medium_gemm.h.
 *   y[m, n] = sum_k x[m, k] W[n, k]     M 1..64, W [N, K] row-major, K % 64 == 0
 *
 * Roles    x is the 64-row operand a of wgmma, a tile of W the operand b: rows of W are wgmma's n, which comes in steps of 8,
 *          so a tile can be as high as fills the device in one wave. A producer thread fills stages of 64 columns of both by
 *          TMA (weights evict-first); two warpgroups take half of the tile's rows each.
 * Cut      High tiles, because every tile reads all of x from L2: at 224 rows 29 % on top of the weights. What tiles leave of the
 *          SMs is filled by cutting K among the blocks of a cluster, which add up through each other's shared memory in
 *          the order of K: no scratch, no second launch.
 * Ends     Sums go through shared memory so that a warp writes whole rows, and so that one row's squares are one warp's.
 * Chain    The first stages of W are asked for before pdl_wait(): they stream in while the previous kernel ends.
 * Launch   one block per SM, 288 threads; more tiles than SMs: persistent, and the sums get memory of their own.
 * Floor    N*K*2 bytes. */
#include <math.h>

#include "common/activation.cuh"
#include "common/launch.cuh"
#include "common/tensor_map.h"
#include "common/wgmma.cuh"
#include "kv_layout.h"
#include "medium_gemm.h"

namespace
{

constexpr uint32_t THREADS = 288, COMPUTE = 256, WARPS = COMPUTE / 32, STAGES_MAX = 12;
constexpr uint32_t ROWS = MEDIUM_ROWS_MAX, X_BYTES = ROWS * 128;
constexpr uint32_t SHARED_MAX = 226 * 1024 - 1024; /* less barriers and what alignment takes */

struct params {
    uint32_t M, N, rows8, kblocks, tiles, splits, stages;
    bool out_apart; /* sums lie behind the ring, not in it: the producer runs ahead of them */
    const float *norm_sums;
    uint32_t norm_tiles, norm_cols;
    float norm_eps;
    const float *bias;
    int epilogue, act;
    float scale, softcap;
    void *y;
    uint64_t y_stride;
    const float *next_gain;
    void *h;
    uint64_t h_stride;
    float *sums;
    struct skinny_qkv qkv;
};

__host__ __device__ constexpr uint32_t out_stride(uint32_t tile)
{
    return tile + 8; /* eight rows of 16-byte-apart pairs then fill all banks */
}

/* --- ends: four neighbouring outputs of a row --- */

/* Of a row of a step: where its K and V go and how far they are turned. */
struct place {
    int32_t position, slot;
};

template <typename T>
__device__ __forceinline__ void write_qkv(const params &p, uint32_t m, uint32_t n, float4 v,
                                          const place &at)
{
    const struct skinny_qkv &a = p.qkv;
    const uint32_t D = a.head_dim, head = n / D, e = n % D;
    const bool is_q = head < a.heads, is_v = head >= a.heads + a.kv_heads;

    if (!is_v && e < a.rope_dim && at.position >= 0) {
        const float4 c =
            __ldg((const float4 *)(a.rope + (uint64_t)at.position * (a.rope_dim / 2) + e / 2));
        v = make_float4(v.x * c.x - v.y * c.y, v.y * c.x + v.x * c.y, v.z * c.z - v.w * c.w,
                        v.w * c.z + v.z * c.w);
    }
    const uint2 packed = make_uint2(pack2<T>(v.x, v.y), pack2<T>(v.z, v.w));
    if (is_q) {
        *(uint2 *)((T *)p.y + m * p.y_stride + n) = packed;
        return;
    }
    if (at.slot < 0) return;
    const uint32_t kv_head = is_v ? head - a.heads - a.kv_heads : head - a.heads;
    const uint32_t token = at.slot % KV_BLOCK_TOKENS;
    T *record = (T *)a.kv + ((uint64_t)(at.slot / KV_BLOCK_TOKENS) * a.kv_heads + kv_head) *
                                (2ull * KV_BLOCK_TOKENS * D);
    if (!is_v) {
        *(uint2 *)(record + token * D + e) = packed;
        return;
    }
    T *to = record + KV_BLOCK_TOKENS * D + ((token / 8) * D + e) * 8 + token % 8;
    to[0] = from_float<T>(v.x), to[8] = from_float<T>(v.y);
    to[16] = from_float<T>(v.z), to[24] = from_float<T>(v.w);
}

/* Returns the sum of squares of what was written to the residual stream. `old`: that stream, where the end is MEDIUM_RESIDUAL. */
template <typename T>
__device__ __forceinline__ float write_four(const params &p, uint32_t m, uint32_t n, float4 v,
                                            float4 old, const place &at)
{
    if (p.bias) {
        const float4 b = __ldg((const float4 *)(p.bias + n));
        v = make_float4(v.x + b.x, v.y + b.y, v.z + b.z, v.w + b.w);
    }
    switch (p.epilogue) {
    case MEDIUM_STORE:
        *(uint2 *)((T *)p.y + m * p.y_stride + n) =
            make_uint2(pack2<T>(v.x, v.y), pack2<T>(v.z, v.w));
        break;
    case MEDIUM_LOGITS: {
        float o[4] = {v.x * p.scale, v.y * p.scale, v.z * p.scale, v.w * p.scale};
        if (p.softcap > 0.f)
#pragma unroll
            for (int i = 0; i < 4; i++)
                o[i] = p.softcap * tanhf(o[i] / p.softcap);
        *(float4 *)((float *)p.y + m * p.y_stride + n) = make_float4(o[0], o[1], o[2], o[3]);
        break;
    }
    case MEDIUM_RESIDUAL: {
        v = make_float4(v.x + old.x, v.y + old.y, v.z + old.z, v.w + old.w);
        *(float4 *)((float *)p.y + m * p.y_stride + n) = v;
        if (!p.next_gain) break;
        const float4 g = __ldg((const float4 *)(p.next_gain + n));
        *(uint2 *)((T *)p.h + m * p.h_stride + n) =
            make_uint2(pack2<T>(v.x * g.x, v.y * g.y), pack2<T>(v.z * g.z, v.w * g.w));
        return (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
    }
    case MEDIUM_GLU:
        *(uint32_t *)((T *)p.y + m * p.y_stride + n / 2) =
            pack2<T>(activate(v.x, p.act) * v.y, activate(v.z, p.act) * v.w);
        break;
    default: write_qkv<T>(p, m, n, v, at);
    }
    return 0.f;
}

/* One row of a tile by one warp: the parts of all blocks of the cluster in the order of K, then the end. */
template <typename T, uint32_t TILE>
__device__ __forceinline__ void finish_row(const params &p, uint32_t tile, uint32_t m, float *out,
                                           float factor)
{
    constexpr int PIECES = (TILE + 127) / 128; /* of 128 columns, four a lane */
    const uint32_t lane = threadIdx.x & 31, first = tile * TILE;
    float4 v[PIECES], old[PIECES];
    place at = {-1, -1};
    float ss = 0.f;

    if (p.epilogue == MEDIUM_QKV) at = {p.qkv.positions[m], p.qkv.kv_slots[m]};
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        const uint32_t c = lane * 4 + j * 128;
        v[j] = old[j] = make_float4(0.f, 0.f, 0.f, 0.f);
        if (p.epilogue == MEDIUM_RESIDUAL && c < TILE && first + c < p.N)
            old[j] = __ldcg((const float4 *)((const float *)p.y + m * p.y_stride + first + c));
    }
#pragma unroll 4
    for (uint32_t s = 0; s < p.splits; s++) {
        const float *from = p.splits > 1 ? cluster_peer(out, s) : out;
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            const uint32_t c = lane * 4 + j * 128;
            if (c >= TILE) continue;
            const float4 w = *(const float4 *)(from + m * out_stride(TILE) + c);
            v[j] = make_float4(v[j].x + w.x, v[j].y + w.y, v[j].z + w.z, v[j].w + w.w);
        }
    }
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        const uint32_t c = lane * 4 + j * 128;
        if (c >= TILE || first + c >= p.N) continue;
        const float4 w =
            make_float4(v[j].x * factor, v[j].y * factor, v[j].z * factor, v[j].w * factor);
        ss += write_four<T>(p, m, first + c, w, old[j], at);
    }
    if (!p.next_gain) return;
    ss = lanes_sum<32>(ss);
    if (lane == 0) p.sums[m * p.tiles + tile] = ss;
}

/* --- roles --- */

struct run { /* of a block: its tiles and its part of K */
    uint32_t tile, tile_step, rank, k_begin, k_count;
};

__device__ __forceinline__ run run_of(const params &p)
{
    run r = {blockIdx.x, gridDim.x, 0, 0, p.kblocks};

    if (p.splits > 1) {
        r.tile = blockIdx.x / p.splits, r.rank = cluster_rank();
        r.k_begin = p.kblocks * r.rank / p.splits;
        r.k_count = p.kblocks * (r.rank + 1) / p.splits - r.k_begin;
        r.tile_step = p.tiles; /* one tile a cluster */
    }
    return r;
}

template <uint32_t TILE>
__device__ __forceinline__ void produce(const params &p, const run &r, const CUtensorMap *W,
                                        const CUtensorMap *x, uint64_t *full, uint64_t *empty,
                                        unsigned char *ring)
{
    constexpr uint32_t W_BYTES = TILE * 128, STAGE_BYTES = W_BYTES + X_BYTES;
    const uint32_t bytes = W_BYTES + p.rows8 * 128;
    const uint32_t ahead = r.k_count < p.stages ? r.k_count : p.stages;
    const auto load_w = [&](uint32_t stage, uint32_t tile, uint32_t k) {
        mbarrier_expect(&full[stage], bytes);
        tma_load_3d(ring + stage * STAGE_BYTES, W, &full[stage], 0, (int)(tile * TILE), (int)k);
    };
    const auto load_x = [&](uint32_t stage, uint32_t k) {
        copy_box(smem_addr(ring + stage * STAGE_BYTES + W_BYTES), x, &full[stage], 0, 0, (int)k);
    };

    for (uint32_t i = 0; i < ahead; i++) /* the first tile of every block is there */
        load_w(i, r.tile, r.k_begin + i);
    pdl_wait(); /* x is the previous kernel's */
    for (uint32_t i = 0; i < ahead; i++)
        load_x(i, r.k_begin + i);
    uint32_t stage = ahead == p.stages ? 0 : ahead, phase = ahead == p.stages ? 0 : 1, k = ahead;
    for (uint32_t tile = r.tile; tile < p.tiles; tile += r.tile_step, k = 0)
        for (; k < r.k_count; k++) {
            mbarrier_wait(&empty[stage], phase);
            load_w(stage, tile, r.k_begin + k);
            load_x(stage, r.k_begin + k);
            if (++stage == p.stages) stage = 0, phase ^= 1;
        }
}

template <typename T, int WN>
__device__ __forceinline__ void compute(const params &p, const run &r, uint64_t *full,
                                        uint64_t *empty, unsigned char *ring, float *out,
                                        float *factors)
{
    constexpr uint32_t TILE = 2 * WN, W_BYTES = TILE * 128, STAGE_BYTES = W_BYTES + X_BYTES;
    const uint32_t t = threadIdx.x, lane = t & 31, warp = t / 32, group = t / 128;
    const uint32_t base = smem_addr(ring);
    uint32_t stage = 0, phase = 0;

    pdl_wait();
    for (uint32_t m = r.rank + p.splits * warp; m < p.M; m += p.splits * WARPS) {
        float s = 0.f;
        if (!p.norm_sums) break;
        for (uint32_t i = lane; i < p.norm_tiles; i += 32)
            s += __ldcg(p.norm_sums + m * p.norm_tiles + i);
        s = lanes_sum<32>(s);
        if (lane == 0) factors[m] = rsqrtf(s / (float)p.norm_cols + p.norm_eps);
    }
    for (uint32_t tile = r.tile; tile < p.tiles; tile += r.tile_step) {
        float c[WN / 2];
        for (uint32_t k = 0; k < r.k_count; k++) {
            const uint32_t W = base + stage * STAGE_BYTES + group * (WN * 128),
                           x = base + stage * STAGE_BYTES + W_BYTES;
            mbarrier_wait(&full[stage], phase);
            wgmma_hold(c);
            wgmma_fence();
#pragma unroll
            for (int ks = 0; ks < 4; ks++)
                wgmma_ss<T, WN>(c, smem_swizzled(x + ks * 32), smem_swizzled(W + ks * 32),
                                ks > 0 || k > 0);
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_hold(c);
            if (lane == 0) mbarrier_arrive(&empty[stage]);
            if (++stage == p.stages) stage = 0, phase ^= 1;
        }
        /* nobody reads the ring, or the sums of the tile before, any more */
        named_sync(1, COMPUTE);
        const uint32_t row = warp % 4 * 16 + lane / 4;
        float *to = out + row * out_stride(TILE) + group * WN + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (row + i * 8 < p.M)
#pragma unroll
                for (int b = 0; b < WN / 8; b++)
                    *(float2 *)(to + i * 8 * out_stride(TILE) + b * 8) =
                        make_float2(c[b * 4 + i * 2], c[b * 4 + i * 2 + 1]);
        if (p.splits > 1)
            cluster_sync();
        else
            named_sync(1, COMPUTE);
        for (uint32_t m = r.rank + p.splits * warp; m < p.M; m += p.splits * WARPS)
            finish_row<T, TILE>(p, tile, m, out, p.norm_sums ? factors[m] : 1.f);
    }
}

/* WN: rows of W per warpgroup, half of a tile. */
template <typename T, int WN>
__global__ void __launch_bounds__(THREADS, 1)
    medium_kernel(const __grid_constant__ params p, const __grid_constant__ CUtensorMap W,
                  const __grid_constant__ CUtensorMap x)
{
    extern __shared__ unsigned char raw[];
    __shared__ uint64_t full[STAGES_MAX], empty[STAGES_MAX];
    __shared__ float factors[ROWS];
    unsigned char *const ring = raw + ((1024 - (smem_addr(raw) & 1023)) & 1023);
    float *const out = (float *)(ring + (p.out_apart ? p.stages * (2 * WN * 128 + X_BYTES) : 0));
    const run r = run_of(p);

    pdl_trigger();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < p.stages; i++) {
            mbarrier_init(&full[i], 1);
            mbarrier_init(&empty[i], WARPS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < COMPUTE) {
        compute<T, WN>(p, r, full, empty, ring, out, factors);
    } else {
        if (threadIdx.x == COMPUTE) produce<2 * WN>(p, r, &W, &x, full, empty, ring);
        __syncwarp();
        if (p.splits > 1) cluster_sync(); /* the one before rows are finished */
    }
    if (p.splits > 1) cluster_sync(); /* no block goes while another may read its memory */
}

/* --- launch --- */

/* Dynamic shared memory and what goes into it. */
struct memory {
    uint32_t stages, bytes;
    bool out_apart;
};

memory memory_of(const struct medium_shape &s, uint32_t kblocks, bool waves)
{
    const uint32_t stage = s.tile * 128 + X_BYTES, out = ROWS * out_stride(s.tile) * 4;
    const uint32_t longest = (kblocks + s.splits - 1) / s.splits;
    memory m = {(SHARED_MAX - (waves ? out : 0)) / stage, 0, waves};

    if (m.stages > STAGES_MAX) m.stages = STAGES_MAX;
    if (!waves && m.stages > longest) m.stages = longest;
    m.bytes = m.stages * stage + (waves ? out : 0);
    if (m.bytes < out) m.bytes = out;
    m.bytes += 1024; /* to align */
    return m;
}

template <typename T, int WN>
cudaError_t launch_one(const struct kernel_context *ctx, const struct medium_args *a)
{
    const struct medium_weight *w = a->weight;
    const uint32_t tiles = medium_tiles(w), splits = w->shape.splits, rows8 = (a->M + 7) / 8 * 8,
                   sms = (uint32_t)ctx->sm_count;
    const uint32_t blocks = splits > 1 || tiles < sms ? tiles * splits : sms;
    const memory m = memory_of(w->shape, w->K / 64, blocks < tiles);
    const uint64_t dims[3] = {64, a->M, w->K / 64}, strides[2] = {a->x_stride * 2, 128};
    const uint32_t box[3] = {64, rows8, 1};
    const params p = {a->M,         w->N,        rows8,       w->K / 64,    tiles,
                      splits,       m.stages,    m.out_apart, a->norm_sums, a->norm_tiles,
                      a->norm_cols, a->norm_eps, a->bias,     a->epilogue,  a->act,
                      a->scale,     a->softcap,  a->y,        a->y_stride,  a->next_gain,
                      a->h,         a->h_stride, a->sums,     a->qkv};
    const auto kernel = medium_kernel<T, WN>;
    CUtensorMap W, x;

    memcpy(&W, w->map, sizeof W);
    cudaError_t e = tensor_map_3d(&x, ctx->type, a->x, dims, strides, box, true);
    if (!e)
        e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)m.bytes);
    if (e) return e;
    return splits > 1
               ? launch_clusters(ctx, kernel, dim3(blocks), dim3(THREADS), m.bytes, splits, p, W, x)
               : launch(ctx, kernel, dim3(blocks), dim3(THREADS), m.bytes, p, W, x);
}

template <typename T>
cudaError_t launch_medium(const struct kernel_context *ctx, const struct medium_args *a)
{
    const struct medium_weight *w = a->weight;

    if (!medium_gemm_fits(ctx, a->M, w->N, w->K) || a->x_stride % 8) return cudaErrorInvalidValue;
    if (a->epilogue == MEDIUM_QKV && (a->qkv.head_dim % 4 || a->qkv.rope_dim % 4))
        return cudaErrorInvalidValue;
    switch (w->shape.tile) {
    case 64: return launch_one<T, 32>(ctx, a);
    case 96: return launch_one<T, 48>(ctx, a);
    case 128: return launch_one<T, 64>(ctx, a);
    case 160: return launch_one<T, 80>(ctx, a);
    case 192: return launch_one<T, 96>(ctx, a);
    case 224: return launch_one<T, 112>(ctx, a);
    case 256: return launch_one<T, 128>(ctx, a);
    default: return cudaErrorInvalidValue;
    }
}

/* About how long a cut takes, in ns. The rates are bytes per ns and SM, of an H200: what all get of memory when all read, what one
 * can take of memory and of L2, what all get of L2; elsewhere their ratios count. */
double cost_of(const struct kernel_context *ctx, uint32_t N, uint32_t K, uint32_t tile,
               uint32_t splits)
{
    const double MEMORY = 34, ONE_MEMORY = 42, ONE_L2 = 56, L2 = 47;
    const uint32_t tiles = (N + tile - 1) / tile, kblocks = K / 64,
                   slots = splits == 1 ? (uint32_t)ctx->sm_count : ctx->clusters[splits] * splits;

    if (!slots || splits > kblocks) return INFINITY;
    const double waves = (tiles * splits + slots - 1) / slots, blocks = tiles * splits,
                 w = (kblocks + splits - 1) / splits * 128. * tile,
                 x = (kblocks + splits - 1) / splits * 128. * ROWS, sms = ctx->sm_count;
    double t = 2. * N * K / (MEMORY * sms);
    t = fmax(t, fmax(waves * w / ONE_MEMORY, waves * (w + x) / ONE_L2));
    t = fmax(t, blocks * (w + x) / (L2 * sms));
    return t + 600 + tile * ROWS * 4 / 60. + (splits > 1 ? 900 : 0);
}

} // namespace

extern "C" {

bool medium_gemm_fits(const struct kernel_context *ctx, uint32_t M, uint32_t N, uint32_t K)
{
    return ctx->capability == 90 && M >= 1 && M <= MEDIUM_ROWS_MAX && N >= 8 && N % 8 == 0 &&
           K >= 64 && K % 64 == 0;
}

struct medium_shape medium_shape_of(const struct kernel_context *ctx, uint32_t N, uint32_t K)
{
    struct medium_shape best = {64, 1};
    double least = INFINITY;

    for (uint32_t splits = 1; splits <= CLUSTER_MAX; splits++)
        for (uint32_t tile = 64; tile <= 256; tile += 32) {
            const double cost = cost_of(ctx, N, K, tile, splits);
            if (cost < least) least = cost, best = {tile, splits};
        }
    return best;
}

cudaError_t medium_weight_init(struct medium_weight *out, const struct kernel_context *ctx,
                               const void *W, uint32_t N, uint32_t K,
                               const struct medium_shape *shape)
{
    CUtensorMap map;

    if (!medium_gemm_fits(ctx, 1, N, K)) return cudaErrorInvalidValue;
    out->N = N, out->K = K;
    out->shape = shape ? *shape : medium_shape_of(ctx, N, K);
    if (out->shape.splits < 1 || out->shape.splits > CLUSTER_MAX || out->shape.splits > K / 64 ||
        (out->shape.splits > 1 && !ctx->clusters[out->shape.splits]))
        return cudaErrorInvalidValue;
    const uint64_t dims[3] = {64, N, K / 64}, strides[2] = {K * 2ull, 128};
    const uint32_t box[3] = {64, out->shape.tile, 1};
    cudaError_t e = tensor_map_3d(&map, ctx->type, W, dims, strides, box, false);
    if (e) return e;
    memcpy(out->map, &map, sizeof map);
    return cudaSuccess;
}

cudaError_t medium_gemm(const struct kernel_context *ctx, const struct medium_args *args)
{
    DISPATCH(ctx, launch_medium<T>(ctx, args));
}

} // extern "C"
