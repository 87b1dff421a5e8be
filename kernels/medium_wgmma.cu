/* medium_wgmma.cu - see medium_gemm.h.
 *   y[m, n] = sum_k x[m, k] W[n, k]     M 1..64, W [N, K] row-major, K % 64 == 0
 *
 * Roles    x is the 64-row operand a of wgmma, a tile of W the operand b: rows of W are wgmma's n, which comes in steps of 8,
 *          so a tile can be as high as fills the device in one wave. A producer thread fills stages of both by TMA (weights
 *          evict-first), of 128 columns, so that 256 bytes of a row are asked for at once; two warpgroups take half of the tile's
 *          rows each; a clerk fetches what rows end with.
 * Cut      What tiles leave of the SMs is filled by cutting K among the blocks of a cluster: no scratch, no second launch. Each
 *          finishes 16 rows or more: the others send him their sums (st.async, counted by his barrier), which he adds in the
 *          order of K. x costs as much L2 traffic per tile as 64 rows of W: blocks of neighbouring tiles bring it in turns, each
 *          for all (multicast).
 * Ends     medium_ends.cuh. With K whole they are finished in registers while the ring fills with the next tile's. Blocks of a cluster
 *          leave without a meeting: the producer stays until all who read its x have said so.
 * Chain    The first stages of W are asked for before pdl_wait(): they stream in while the previous kernel ends. (Blocks of
 *          less than half an SM, so that the next kernel's come in beside them, were slower: they come in by twos.)
 * Launch   one block per SM, 320 threads; more tiles than SMs: persistent.
 * Floor    N*K*2 bytes. */
#include <math.h>

#include "common/cluster_send.cuh"
#include "common/launch.cuh"
#include "common/tensor_map.h"
#include "common/wgmma.cuh"
#include "medium_ends.cuh"
#include "medium_gemm.h"

namespace
{

constexpr uint32_t COMPUTE = 256, CLERK = 288, THREADS = 320, WARPS = COMPUTE / 32;
constexpr uint32_t ROWS = MEDIUM_ROWS_MAX, GROUP = 16, GROUPS = ROWS / GROUP, STAGES_MAX = 12;
constexpr uint32_t DEEP = 2; /* blocks of 64 columns in a stage, where two such fit */
constexpr uint32_t X_BYTES = ROWS * 128, TILES[] = {64, 128, 144, 160, 208, 224, 256};
constexpr uint32_t SHARED_MAX =
    226 * 1024 - 2048; /* less what is static and what alignment takes */

using params = medium_params;

/* --- who finishes what, where K is cut: groups of 16 rows --- */

constexpr uint32_t first_group_of(uint32_t split, uint32_t splits)
{
    const uint32_t owners = splits < GROUPS ? splits : GROUPS;

    return split >= owners ? GROUPS : (GROUPS * split + owners - 1) / owners;
}
__device__ __forceinline__ uint32_t owner_of(uint32_t group, uint32_t splits)
{
    return splits < GROUPS ? group * splits / GROUPS : group;
}
/* The groups that block `split` finishes: first .. end - 1. */
struct owned {
    uint32_t first, end;
};
__device__ __forceinline__ owned owned_by(const params &p, uint32_t split)
{
    const uint32_t used = (p.M + GROUP - 1) / GROUP;

    return {min((uint32_t)p.first_group[split], used),
            min((uint32_t)p.first_group[split + 1], used)};
}
/* Of a group, from one block: the fours of all lanes, one eight of columns behind the other. */
__host__ __device__ constexpr uint32_t group_bytes(uint32_t tile)
{
    return tile / 8 * 512;
}

/* --- roles --- */

struct run { /* of a block: its place in the cluster, its tiles and its part of K */
    uint32_t split, member, group, groups, group_step, k_begin, k_count;
};

/* No divisions: all of it stands in front of the first weights. */
__device__ __forceinline__ run run_of(const params &p)
{
    run r = {cluster_rank(), 0, cluster_index(), p.groups, cluster_count()};

    for (; r.split >= p.splits; r.member++)
        r.split -= p.splits;
    r.k_begin = p.k_begin[r.split];
    r.k_count = p.k_begin[r.split + 1] - r.k_begin;
    return r;
}

/* All of x's rows, 64 columns, to the same place of every block in `mask`. */
__device__ __forceinline__ void copy_box_to_all(uint32_t dst, const void *map, uint64_t *bar,
                                                int c2, uint16_t mask)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %3, %4}], [%2], %5;" ::"r"(dst),
                 "l"(map), "r"(smem_addr(bar)), "r"(0), "r"(c2), "h"(mask)
                 : "memory");
}

/* At the same barrier of another block of the cluster. Nothing is handed over but the room, so no fence (which would wait for
 * all of the device: 2.5 times the whole product's time). */
__device__ __forceinline__ void arrive_at(uint64_t *bar, uint32_t rank)
{
    asm volatile("{ .reg .b32 peer; mapa.shared::cluster.u32 peer, %0, %1;"
                 " mbarrier.arrive.shared::cluster.b64 _, [peer]; }" ::"r"(smem_addr(bar)),
                 "r"(rank)
                 : "memory");
}

/* Which of the blocks that share x brings it for a stage. share is a power of two. */
__device__ __forceinline__ uint32_t turn_of(const params &p, uint32_t stage)
{
    return stage & (p.share - 1);
}

/* Fills stages in turn: W always, x where it is this block's turn. */
template <uint32_t TILE> struct producer {
    const params &p;
    const run &r;
    const CUtensorMap *W, *x;
    uint64_t *full, *empty;
    unsigned char *ring;
    uint32_t ahead;   /* stages that can be filled at once */
    uint16_t sharers; /* the blocks that x is for */

    __device__ __forceinline__ unsigned char *place(uint32_t stage) const
    {
        return ring + stage * (p.deep * (TILE * 128 + X_BYTES));
    }
    __device__ __forceinline__ void load_w(uint32_t stage, uint32_t group, uint32_t k)
    {
        mbarrier_expect(&full[stage], p.deep * (TILE + p.rows8) * 128);
        tma_load_4d(place(stage), W, &full[stage], 0, 0, (int)(r.k_begin + k),
                    (int)((group * p.share + r.member) * (TILE / 8)));
    }
    __device__ __forceinline__ void load_x(uint32_t stage, uint32_t k)
    {
        const uint32_t dst = smem_addr(place(stage) + p.deep * (TILE * 128));

        if (turn_of(p, stage) != r.member) return;
        if (p.share == 1)
            copy_box(dst, x, &full[stage], 0, 0, (int)(r.k_begin + k));
        else
            copy_box_to_all(dst, x, &full[stage], (int)(r.k_begin + k), sharers);
    }
    __device__ __forceinline__ void begin()
    {
#pragma unroll 1
        for (uint32_t i = 0; i < ahead; i++)
            load_w(i, r.group, i * p.deep);
    }
    __device__ __forceinline__ void rest()
    {
        uint32_t stage = ahead == p.stages ? 0 : ahead, phase = ahead == p.stages ? 0 : 1;
        uint32_t k = ahead * p.deep;

#pragma unroll 1
        for (uint32_t i = 0; i < ahead; i++)
            load_x(i, i * p.deep);
        for (uint32_t group = r.group; group < r.groups; group += r.group_step, k = 0)
            for (; k < r.k_count; k += p.deep) {
                mbarrier_wait(&empty[stage], phase);
                load_w(stage, group, k);
                load_x(stage, k);
                if (++stage == p.stages) stage = 0, phase ^= 1;
            }
        if (p.share == 1) return;
#pragma unroll 1
        for (uint32_t i = 0; i < p.stages; i++) { /* until nobody counts on its barriers any more */
            mbarrier_wait(&empty[stage], phase);
            if (++stage == p.stages) stage = 0, phase ^= 1;
        }
    }
};

/* COUNT of the fours of one row group that a warp has, from the `begin`th on. */
template <typename T, int WN, int END, int COUNT>
__device__ __forceinline__ void finish_some(const params &p, const medium_fours &at,
                                            const float (&c)[WN / 2], int begin,
                                            const medium_rows &rows, float2 factors, float2 &ss)
{
    const medium_fours those = {at.m, at.n + begin * 8, at.end, at.first, at.second};
    medium_beside beside[COUNT];
    float4 v[COUNT];

    fetch_beside<END, COUNT, 8>(p, those, rows, beside);
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        const int i = (begin + j) * 4;
        v[j] = make_float4(c[i], c[i + 1], c[i + 2], c[i + 3]);
    }
    finish_fours<T, END, COUNT, 8>(p, those, v, factors, beside, rows, ss);
}

/* Of the fours of one row group that a warp has, with K whole: c as wgmma leaves them. `squares`: [2][ROWS] of both warpgroups. */
template <typename T, int WN, int END>
__device__ __forceinline__ void finish_own(const params &p, uint32_t tile, const float (&c)[WN / 2],
                                           const medium_rows &rows, float *squares)
{
    constexpr int FOURS = WN / 8, AT_ONCE = 4, LAST = FOURS % AT_ONCE;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32, half = warp / 4;
    const uint32_t m = warp % 4 * GROUP + lane / 4, columns = tile * 2 * WN + half * WN;
    float2 ss = make_float2(0.f, 0.f);

    if (warp % 4 * GROUP < p.M) {
        const medium_fours at = fours_at(p, m, columns + lane % 4 * 2, columns + WN);
        const float2 factors = make_float2(rows.factors[m], rows.factors[m + 8]);
#pragma unroll
        for (int i = 0; i + AT_ONCE <= FOURS; i += AT_ONCE)
            finish_some<T, WN, END, AT_ONCE>(p, at, c, i, rows, factors, ss);
        if constexpr (LAST > 0)
            finish_some<T, WN, END, LAST>(p, at, c, FOURS - LAST, rows, factors, ss);
    }
    if (END != MEDIUM_RESIDUAL || !p.next_gain) return;
    ss.x = lanes_sum<4>(ss.x), ss.y = lanes_sum<4>(ss.y);
    if (lane % 4 == 0) squares[half * ROWS + m] = ss.x, squares[half * ROWS + m + 8] = ss.y;
    named_sync(1, COMPUTE);
    if (threadIdx.x < p.M && tile < p.tiles)
        p.sums[threadIdx.x * p.tiles + tile] = squares[threadIdx.x] + squares[ROWS + threadIdx.x];
    named_sync(1, COMPUTE);
}

/* Sends the warp's fours to who finishes its rows: to `inbox` of his, where this split's place is. */
template <int WN>
__device__ __forceinline__ void send_sums(const params &p, const run &r, const float (&c)[WN / 2],
                                          uint32_t inbox, uint64_t *arrived)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32, group = warp % 4;
    const uint32_t owner = owner_of(group, p.splits), rank = owner + r.member * p.splits;
    const uint32_t place = (group - p.first_group[owner]) * p.splits + r.split;
    const uint32_t to = cluster_map(inbox, rank) + place * group_bytes(2 * WN) +
                        warp / 4 * group_bytes(WN) + lane * 16;
    const uint32_t bar = cluster_map(smem_addr(arrived), rank);

    if (group * GROUP >= p.M) return;
#pragma unroll
    for (int f = 0; f < WN / 8; f++)
        send16(to + f * 512, bar,
               make_uint4(__float_as_uint(c[f * 4]), __float_as_uint(c[f * 4 + 1]),
                          __float_as_uint(c[f * 4 + 2]), __float_as_uint(c[f * 4 + 3])));
}

/* The groups that are this block's, the fours of each dealt to all warps. `squares`: [WARPS][GROUP]. */
template <typename T, int WN, int END>
__device__ __forceinline__ void finish_sent(const params &p, const run &r, uint32_t tile,
                                            const unsigned char *inbox, uint64_t *arrived,
                                            const medium_rows &rows, float *squares)
{
    constexpr int FOURS = WN / 4, EACH = (FOURS + WARPS - 1) / WARPS;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const owned groups = owned_by(p, r.split);

    for (uint32_t group = groups.first; group < groups.end; group++) {
        const uint32_t m = group * GROUP + lane / 4;
        const medium_fours at =
            fours_at(p, m, tile * 2 * WN + warp * 8 + lane % 4 * 2, (tile + 1) * 2 * WN);
        const float4 *from =
            (const float4 *)(inbox + (group - groups.first) * p.splits * group_bytes(2 * WN)) +
            warp * 32 + lane;
        medium_beside beside[EACH];
        float4 v[EACH];
        float2 ss = make_float2(0.f, 0.f);

        fetch_beside<END, EACH, WARPS * 8>(p, at, rows, beside);
#pragma unroll
        for (int j = 0; j < EACH; j++)
            v[j] = make_float4(0.f, 0.f, 0.f, 0.f);
        if (group == groups.first) mbarrier_wait(arrived, 0);
#pragma unroll 1
        for (uint32_t s = 0; s < p.splits; s++, from += FOURS * 32)
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                if (warp + j * WARPS >= FOURS) continue;
                const float4 w = from[j * WARPS * 32];
                v[j] = make_float4(v[j].x + w.x, v[j].y + w.y, v[j].z + w.z, v[j].w + w.w);
            }
        const float2 factors = make_float2(rows.factors[m], rows.factors[m + 8]);
        finish_fours<T, END, EACH, WARPS * 8>(p, at, v, factors, beside, rows, ss);
        if (END != MEDIUM_RESIDUAL || !p.next_gain) continue;
        ss.x = lanes_sum<4>(ss.x), ss.y = lanes_sum<4>(ss.y);
        if (lane % 4 == 0)
            squares[warp * GROUP + lane / 4] = ss.x, squares[warp * GROUP + lane / 4 + 8] = ss.y;
        named_sync(1, COMPUTE);
        const uint32_t row = group * GROUP + threadIdx.x;
        if (threadIdx.x < GROUP && row < p.M && tile < p.tiles) {
            float sum = 0.f;
#pragma unroll
            for (uint32_t w = 0; w < WARPS; w++)
                sum += squares[w * GROUP + threadIdx.x];
            p.sums[row * p.tiles + tile] = sum;
        }
        if (group + 1 < groups.end) named_sync(1, COMPUTE);
    }
}

/* The sums of a tile: this block's part of K. A stage of W: eights of rows, of each `deep` blocks of 64 columns. */
template <typename T, int WN>
__device__ __forceinline__ void multiply(const params &p, const run &r, uint64_t *full,
                                         uint64_t *empty, uint32_t ring, uint32_t &stage,
                                         uint32_t &phase, float (&c)[WN / 2])
{
    const uint32_t half = threadIdx.x / 128, eight = p.deep * 1024;
    const uint32_t stage_bytes = p.deep * (WN * 256 + X_BYTES);

#pragma unroll 1
    for (uint32_t k = 0; k < r.k_count;) {
        const uint32_t end = min(k + p.deep, r.k_count);
        uint32_t W = ring + stage * stage_bytes, x = W + WN / 4 * eight;
        W += half * (WN / 8 * eight);
        mbarrier_wait(&full[stage], phase);
#pragma unroll 1
        for (; k < end; k++, W += 1024, x += p.rows8 * 128) {
            wgmma_hold(c);
            wgmma_fence();
#pragma unroll
            for (int ks = 0; ks < 4; ks++)
                wgmma_ss<T, WN>(c, smem_swizzled(x + ks * 32), smem_swizzled(W + ks * 32, eight),
                                ks > 0 || k > 0);
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_hold(c);
        }
        if ((threadIdx.x & 31) == 0) {
            mbarrier_arrive(&empty[stage]);
            if (turn_of(p, stage) != r.member)
                arrive_at(&empty[stage], r.split + turn_of(p, stage) * p.splits);
        }
        if (++stage == p.stages) stage = 0, phase ^= 1;
    }
}

template <typename T, int WN, int END>
__device__ __forceinline__ void compute(const params &p, const run &r, uint64_t *full,
                                        uint64_t *empty, uint64_t *arrived, unsigned char *ring,
                                        const medium_rows &rows, float *squares)
{
    const unsigned char *const inbox = ring + p.stages * p.deep * (WN * 256 + X_BYTES);
    uint32_t stage = 0, phase = 0;

    for (uint32_t group = r.group; group < r.groups; group += r.group_step) {
        const uint32_t tile = group * p.share + r.member;
        float c[WN / 2];
        multiply<T, WN>(p, r, full, empty, smem_addr(ring), stage, phase, c);
        if (group == r.group) named_sync(2, COMPUTE + 32); /* what the clerk fetched is there */
        if (p.splits == 1) {
            finish_own<T, WN, END>(p, tile, c, rows, squares);
            continue;
        }
        send_sums<WN>(p, r, c, smem_addr(inbox), arrived);
        finish_sent<T, WN, END>(p, r, tile, inbox, arrived, rows, squares);
    }
}

/* WN: rows of W per warpgroup, half of a tile. END: of enum medium_epilogue. */
template <typename T, int WN, int END>
__global__ void __launch_bounds__(THREADS, 1)
    medium_kernel(const __grid_constant__ params p, const __grid_constant__ CUtensorMap W,
                  const __grid_constant__ CUtensorMap x)
{
    extern __shared__ unsigned char raw[];
    __shared__ uint64_t full[STAGES_MAX], empty[STAGES_MAX], arrived;
    __shared__ medium_rows rows;
    __shared__ float squares[2 * ROWS];
    static_assert(WARPS * GROUP <= 2 * ROWS, "squares of warps");
    unsigned char *const ring = raw + ((1024 - (smem_addr(raw) & 1023)) & 1023);
    const run r = run_of(p);
    const uint32_t wanted = p.deep == 1 ? r.k_count : (r.k_count + DEEP - 1) / DEEP;
    producer<2 *WN> loads = {
        p, r, &W, &x, full, empty, ring, min(wanted, p.stages), (uint16_t)(p.sharers << r.split)};

    pdl_trigger();
    if (threadIdx.x ==
        COMPUTE) { /* what stands in front of the first weights is short, and by one thread: barriers are made one by one */
        const owned groups = owned_by(p, r.split);
        tensor_map_prefetch(&W), tensor_map_prefetch(&x);
#pragma unroll 1
        for (uint32_t i = 0; i < p.stages; i++)
            mbarrier_init(&full[i], 1);
        mbarrier_init_fence();
        loads.begin();
#pragma unroll 1
        for (uint32_t i = 0; i < p.stages;
             i++) /* who brings x for a stage waits for all who read it */
            mbarrier_init(&empty[i], turn_of(p, i) == r.member ? WARPS * p.share : WARPS);
        mbarrier_init(&arrived, 1);
        mbarrier_init_fence();
        mbarrier_expect(&arrived, (groups.end - groups.first) * p.splits * group_bytes(2 * WN));
    }
    __syncthreads();
    /* barriers are there before others count on them */
    if (p.splits * p.share > 1) cluster_meet();
    pdl_wait();
    if (threadIdx.x < COMPUTE) {
        compute<T, WN, END>(p, r, full, empty, &arrived, ring, rows, squares);
    } else if (threadIdx.x < CLERK) {
        if (threadIdx.x == COMPUTE) loads.rest();
    } else {
        const owned groups = owned_by(p, r.split);
        fetch_rows<END>(p, groups.first * GROUP, min(groups.end * GROUP, p.M), rows);
        named_arrive(2, COMPUTE + 32);
    }
}

/* --- launch --- */

/* Dynamic shared memory and what goes into it. */
struct memory {
    uint32_t deep, stages, bytes;
};

memory memory_of(const struct medium_shape &s, uint32_t kblocks, bool waves)
{
    const uint32_t longest = (kblocks + s.splits - 1) / s.splits, shortest = kblocks / s.splits;
    const uint32_t inbox =
        s.splits > 1 ? first_group_of(1, s.splits) * s.splits * group_bytes(s.tile) : 0;
    const uint32_t single = s.tile * 128 + X_BYTES;
    memory m = {shortest >= DEEP && (SHARED_MAX - inbox) / (DEEP * single) >= 2 ? DEEP : 1, 0, 0};
    const uint32_t stage = m.deep * single;

    m.stages = (SHARED_MAX - inbox) / stage;
    if (m.stages > STAGES_MAX) m.stages = STAGES_MAX;
    if (!waves) m.stages = min(m.stages, longest / m.deep + 1);
    m.bytes = m.stages * stage + inbox + 1024; /* to align */
    return m;
}

/* A cluster for each group of tiles; where K is whole, no more than fit at once. */
uint32_t clusters_of(const struct kernel_context *ctx, const struct medium_weight *w)
{
    const uint32_t size = w->shape.splits * w->shape.share,
                   groups = (medium_tiles(w) + w->shape.share - 1) / w->shape.share;

    return w->shape.splits > 1 || groups < ctx->clusters[size] ? groups : ctx->clusters[size];
}

template <typename T, int WN, int END>
cudaError_t launch_one(const struct kernel_context *ctx, const struct medium_args *a)
{
    const struct medium_weight *w = a->weight;
    const struct medium_shape &s = w->shape;
    const uint32_t tiles = medium_tiles(w), size = s.splits * s.share,
                   groups = (tiles + s.share - 1) / s.share, rows8 = (a->M + 7) / 8 * 8;
    const uint32_t clusters = clusters_of(ctx, w);
    const memory m = memory_of(s, w->K / 64, clusters < groups);
    const uint64_t dims[3] = {64, a->M, w->K / 64}, strides[2] = {a->x_stride * 2, 128};
    const uint32_t box[3] = {64, rows8, m.deep};
    params p = {a->M,
                w->N,
                rows8,
                tiles,
                groups,
                s.splits,
                s.share,
                m.stages,
                m.deep,
                0,
                {},
                {},
                a->norm_sums,
                a->norm_tiles,
                1.f / (float)a->norm_cols,
                a->norm_eps,
                a->bias,
                a->act,
                a->scale,
                a->softcap,
                a->y,
                a->y_stride,
                a->next_gain,
                a->h,
                a->h_stride,
                a->sums,
                a->qkv,
                0};
    const auto kernel = medium_kernel<T, WN, END>;
    CUtensorMap W, x;

    for (uint32_t i = 0; i <= s.splits; i++) {
        p.k_begin[i] = (uint16_t)(w->K / 64 * i / s.splits / m.deep * m.deep);
        p.first_group[i] = (uint8_t)first_group_of(i, s.splits);
    }
    p.k_begin[s.splits] = (uint16_t)(w->K / 64);
    if (END == MEDIUM_QKV) {
        if ((uint64_t)w->N * a->qkv.head_dim >> 32) return cudaErrorInvalidValue;
        p.per_head = (uint32_t)(((1ull << 32) + a->qkv.head_dim - 1) / a->qkv.head_dim);
    }
    for (uint32_t i = 0; i < s.share; i++)
        p.sharers |= 1u << i * s.splits;
    memcpy(&W, w->map, sizeof W);
    cudaError_t e = tensor_map_3d(&x, ctx->type, a->x, dims, strides, box, true);
    if (!e)
        e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)m.bytes);
    if (e) return e;
    return size > 1 ? launch_clusters(ctx, kernel, dim3(clusters * size), dim3(THREADS), m.bytes,
                                      size, p, W, x)
                    : launch(ctx, kernel, dim3(clusters), dim3(THREADS), m.bytes, p, W, x);
}

template <typename T, int END>
cudaError_t launch_end(const struct kernel_context *ctx, const struct medium_args *a)
{
    switch (a->weight->shape.tile) {
    case 64: return launch_one<T, 32, END>(ctx, a);
    case 128: return launch_one<T, 64, END>(ctx, a);
    case 144: return launch_one<T, 72, END>(ctx, a);
    case 160: return launch_one<T, 80, END>(ctx, a);
    case 208: return launch_one<T, 104, END>(ctx, a);
    case 224: return launch_one<T, 112, END>(ctx, a);
    case 256: return launch_one<T, 128, END>(ctx, a);
    default: return cudaErrorInvalidValue;
    }
}

template <typename T>
cudaError_t launch_medium(const struct kernel_context *ctx, const struct medium_args *a)
{
    const struct medium_weight *w = a->weight;

    if (!medium_gemm_fits(ctx, a->M, w->N, w->K) || a->x_stride % 8) return cudaErrorInvalidValue;
    if (a->epilogue == MEDIUM_QKV && (a->qkv.head_dim % 4 || a->qkv.rope_dim % 4))
        return cudaErrorInvalidValue;
    switch (a->epilogue) {
    case MEDIUM_STORE: return launch_end<T, MEDIUM_STORE>(ctx, a);
    case MEDIUM_LOGITS: return launch_end<T, MEDIUM_LOGITS>(ctx, a);
    case MEDIUM_RESIDUAL: return launch_end<T, MEDIUM_RESIDUAL>(ctx, a);
    case MEDIUM_GLU: return launch_end<T, MEDIUM_GLU>(ctx, a);
    case MEDIUM_QKV: return launch_end<T, MEDIUM_QKV>(ctx, a);
    default: return cudaErrorInvalidValue;
    }
}

/* About how long a cut takes, in ns. The rates are bytes per ns and SM, of an H200: what all get of memory, and of memory and L2
 * together, and what one can take of both; elsewhere their ratios count. */
double cost_of(const struct kernel_context *ctx, uint32_t N, uint32_t K,
               const struct medium_shape &s)
{
    const double MEMORY = 34.4, BOTH = 38, ONE_MEMORY = 42, ONE_BOTH = 46;
    const uint32_t tiles = (N + s.tile - 1) / s.tile, kblocks = K / 64, size = s.splits * s.share;
    const uint32_t groups = (tiles + s.share - 1) / s.share, slots = ctx->clusters[size];

    if (!slots || s.splits > kblocks) return INFINITY;
    const double waves = (groups + slots - 1) / slots, blocks = groups * size, sms = ctx->sm_count,
                 w = (kblocks + s.splits - 1) / s.splits * 128. * s.tile,
                 x = (kblocks + s.splits - 1) / s.splits * 128. * ROWS / s.share;
    double t = fmax(2. * N * K / (MEMORY * sms), waves * w / ONE_MEMORY);
    t = fmax(t, fmax(blocks * (w + x) / (BOTH * sms), waves * (w + x) / ONE_BOTH));
    return t + s.tile * ROWS * 4 / 60. + (s.splits > 1 ? 1200 : 0) + (s.share > 1 ? 300 : 0);
}

} // namespace

extern "C" {

bool medium_gemm_fits(const struct kernel_context *ctx, uint32_t M, uint32_t N, uint32_t K)
{
    return ctx->capability == 90 && M >= 1 && M <= MEDIUM_ROWS_MAX && N >= 8 && N % 8 == 0 &&
           K >= 64 && K % 64 == 0;
}

uint32_t medium_shapes(const struct kernel_context *ctx, uint32_t N, uint32_t K,
                       struct medium_shape *out, uint32_t most)
{
    uint32_t count = 0;

    for (uint32_t share = 1; share <= 4; share *= 2)
        for (uint32_t splits = 1; splits * share <= CLUSTER_MAX; splits++)
            for (uint32_t tile : TILES) {
                const struct medium_shape s = {tile, splits, share};
                const double cost = cost_of(ctx, N, K, s);
                uint32_t at = count;
                if (cost == INFINITY) continue;
                while (at > 0 && cost < cost_of(ctx, N, K, out[at - 1]))
                    at--;
                if (at == most) continue;
                if (count < most) count++;
                for (uint32_t i = count - 1; i > at; i--)
                    out[i] = out[i - 1];
                out[at] = s;
            }
    return count;
}

cudaError_t medium_weight_init(struct medium_weight *out, const struct kernel_context *ctx,
                               const void *W, uint32_t N, uint32_t K,
                               const struct medium_shape *shape)
{
    CUtensorMap map;

    if (!medium_gemm_fits(ctx, 1, N, K)) return cudaErrorInvalidValue;
    out->N = N, out->K = K;
    if (shape)
        out->shape = *shape;
    else
        medium_shapes(ctx, N, K, &out->shape, 1);
    const uint32_t size = out->shape.splits * out->shape.share;
    if (size < 1 || size > CLUSTER_MAX || (out->shape.share & (out->shape.share - 1)) ||
        out->shape.splits > K / 64 || !ctx->clusters[size])
        return cudaErrorInvalidValue;
    const uint32_t deep = memory_of(out->shape, K / 64, false).deep;
    const uint64_t dims[4] = {64, 8, K / 64, N / 8}, strides[3] = {K * 2ull, 128, K * 16ull};
    const uint32_t box[4] = {64, 8, deep, out->shape.tile / 8};
    cudaError_t e = tensor_map(&map, ctx->type, W, 4, dims, strides, box, false);
    if (e) return e;
    memcpy(out->map, &map, sizeof map);
    return cudaSuccess;
}

cudaError_t medium_gemm(const struct kernel_context *ctx, const struct medium_args *args)
{
    DISPATCH(ctx, launch_medium<T>(ctx, args));
}

} // extern "C"
