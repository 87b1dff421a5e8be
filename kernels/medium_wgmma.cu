/* medium_wgmma.cu - see medium_gemm.h.
 *   y[m, n] = sum_k x[m, k] W[n, k]     M 1..64, W [N, K] row-major, K % 64 == 0
 *
 * Roles    x is the 64-row operand a of wgmma, a tile of W the operand b: rows of W are wgmma's n, which comes in steps of 8,
 *          so a tile can be as high as fills the device in one wave. A producer thread fills stages of 64 columns of both by
 *          TMA (weights evict-first); two warpgroups take half of the tile's rows each.
 * Cut      What tiles leave of the SMs is filled by cutting K among the blocks of a cluster, which add up through each other's
 *          shared memory in the order of K: no scratch, no second launch. x costs as much L2 traffic per tile as 64 rows of W:
 *          blocks of neighbouring tiles bring it in turns, each for all (multicast).
 * Ends     Sums go through shared memory so that a warp writes whole rows, and so that one row's squares are one warp's. A block
 *          comes here once, with none of this code in its instruction cache: loops stay loops.
 * Chain    The first stages of W are asked for before pdl_wait(): they stream in while the previous kernel ends. (Blocks of
 *          less than half an SM, so that the next kernel's come in beside them, were slower: they come in by twos.)
 * Launch   one block per SM, 288 threads; more tiles than SMs: persistent, and the sums get memory of their own.
 * Floor    N*K*2 bytes. */
#include <math.h>

#include "common/activation.cuh"
#include "common/ahead.cuh"
#include "common/launch.cuh"
#include "common/tensor_map.h"
#include "common/wgmma.cuh"
#include "kv_layout.h"
#include "medium_gemm.h"

namespace
{

constexpr uint32_t THREADS = 288, CLERK = 288, COMPUTE = 256, WARPS = COMPUTE / 32, STAGES_MAX = 12;
constexpr uint32_t ROWS = MEDIUM_ROWS_MAX, X_BYTES = ROWS * 128;
constexpr uint32_t SHARED_MAX = 226 * 1024 - 1024; /* less barriers and what alignment takes */

struct params {
    uint32_t M, N, rows8, kblocks, tiles, splits, share, stages;
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
    uint32_t leave; /* of enum leave */
    bool push;      /* sums of splits are sent to who adds them, not read by him */
    bool clerk;     /* a warp behind the producer fetches what rows end with */
    struct medium_ahead ahead;
};

/* Blocks of a split send each other their sums (copy engine, counted by the receiver's barrier) in place of reading them behind a cluster
 * barrier whose release waits for the whole device (MEMBAR.ALL.GPU). */
constexpr uint32_t TRIAL_PUSH = 64;

/* To see what a product's time goes to, parts of it can be left out (wrong results, bf16 and tiles of 224 rows only): trial bits from
 * LEAVE_SHIFT on. */
enum leave { LEAVE_PRODUCTS = 1, LEAVE_X = 2, LEAVE_ENDS = 4, LEAVE_W = 8 };
constexpr uint32_t LEAVE_SHIFT = 8;

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
                                          float4 c, const place &at)
{
    const struct skinny_qkv &a = p.qkv;
    const uint32_t D = a.head_dim, head = n / D, e = n % D;
    const bool is_q = head < a.heads, is_v = head >= a.heads + a.kv_heads;

    v = make_float4(v.x * c.x - v.y * c.y, v.y * c.x + v.x * c.y, v.z * c.z - v.w * c.w,
                    v.w * c.z + v.z * c.w);
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

/* What a row's end wants of memory beside the sums: the residual stream, or the cosines and sines of q and k. */
__device__ __forceinline__ float4 fetch_beside(const params &p, uint32_t m, uint32_t n,
                                               const place *places)
{
    if (m >= p.M || n >= p.N) return make_float4(0.f, 0.f, 0.f, 0.f);
    if (p.epilogue == MEDIUM_RESIDUAL)
        return __ldcg((const float4 *)((const float *)p.y + m * p.y_stride + n));
    if (p.epilogue == MEDIUM_QKV) {
        const struct skinny_qkv &a = p.qkv;
        const uint32_t e = n % a.head_dim;
        const int32_t position = places[m].position;
        if (n < (a.heads + a.kv_heads) * a.head_dim && e < a.rope_dim && position >= 0)
            return __ldg((const float4 *)(a.rope + (uint64_t)position * (a.rope_dim / 2) + e / 2));
    }
    return make_float4(1.f, 0.f, 1.f, 0.f); /* not turned */
}

/* Returns the sum of squares of what was written to the residual stream. */
template <typename T>
__device__ __forceinline__ float write_four(const params &p, uint32_t m, uint32_t n, float4 v,
                                            float4 beside, const place *places)
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
        v = make_float4(v.x + beside.x, v.y + beside.y, v.z + beside.z, v.w + beside.w);
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
    default: write_qkv<T>(p, m, n, v, beside, places[m]);
    }
    return 0.f;
}

/* The rows that a block finishes for all of its split. */
struct owned {
    uint32_t first, step, end; /* first, first + step, ... below end */
};
/* How many rows a block finishes where they lie together: so many are sent to each. */
__host__ __device__ constexpr uint32_t rows_sent(uint32_t M, uint32_t splits)
{
    return (M + splits - 1) / splits;
}
__device__ __forceinline__ owned owned_by(const params &p, uint32_t split)
{
    const uint32_t rows = rows_sent(p.M, p.splits);

    if (!p.push) return {split, p.splits, p.M};
    return {split * rows, 1, min((split + 1) * rows, p.M)};
}
__device__ __forceinline__ owned dealt(const owned &rows, uint32_t warp, uint32_t warps)
{
    return {rows.first + warp * rows.step, rows.step * warps, rows.end};
}

/* Of splits before and behind a block's own, in order, what they sent lies behind its own sums. */
template <uint32_t TILE>
__device__ __forceinline__ const float *sent_by(const params &p, const float *out, uint32_t split,
                                                uint32_t own, uint32_t m)
{
    const uint32_t rows = rows_sent(p.M, p.splits), place = split < own ? split : split - 1;

    if (split == own) return out + m * out_stride(TILE);
    return out + (ROWS + place * rows + (m - own * rows)) * out_stride(TILE);
}

/* Rows m0, m0 + step, ... of a tile by one warp, 128 columns at a time: the parts of all blocks of a split in the order of K, then
 * the end. What lies beside the next sums is on its way meanwhile. */
template <typename T, uint32_t TILE>
__device__ __forceinline__ void
finish_rows(const params &p, uint32_t tile, const owned &rows, uint32_t split, uint32_t peer,
            float *out, const float *factors, const place *places, float4 beside)
{
    constexpr uint32_t PIECES = (TILE + 127) / 128;
    const uint32_t lane = threadIdx.x & 31, first = tile * TILE;
    uint32_t m = rows.first, piece = 0;
    float ss = 0.f;

#pragma unroll 1
    while (m < rows.end) {
        const uint32_t c = lane * 4 + piece * 128, n = first + c;
        const bool last = PIECES == 1 || piece + 1 == PIECES;
        const uint32_t m_next = last ? m + rows.step : m, piece_next = last ? 0 : piece + 1;
        const float4 next = fetch_beside(p, m_next < rows.end ? m_next : p.M,
                                         first + lane * 4 + piece_next * 128, places);
        float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
        if (c < TILE && n < p.N) {
#pragma unroll 4
            for (uint32_t s = 0; s < p.splits; s++) {
                const float *from = p.splits == 1 ? out + m * out_stride(TILE)
                                    : p.push      ? sent_by<TILE>(p, out, s, split, m)
                                             : cluster_peer(out, peer + s) + m * out_stride(TILE);
                const float4 w = *(const float4 *)(from + c);
                v = make_float4(v.x + w.x, v.y + w.y, v.z + w.z, v.w + w.w);
            }
            const float f = p.norm_sums ? factors[m] : 1.f;
            v = make_float4(v.x * f, v.y * f, v.z * f, v.w * f);
            ss += write_four<T>(p, m, n, v, beside, places);
        }
        if (last && p.next_gain) {
            ss = lanes_sum<32>(ss);
            if (lane == 0 && tile < p.tiles) p.sums[m * p.tiles + tile] = ss;
            ss = 0.f;
        }
        m = m_next, piece = piece_next, beside = next;
    }
}

/* --- roles --- */

struct run { /* of a block: its place in the cluster, its tiles and its part of K */
    uint32_t split, member, group, groups, group_step, k_begin, k_count;
};

__device__ __forceinline__ run run_of(const params &p)
{
    const uint32_t size = p.splits * p.share, rank = blockIdx.x % size;
    run r = {rank % p.splits, rank / p.splits, blockIdx.x / size, (p.tiles + p.share - 1) / p.share,
             gridDim.x / size};

    r.k_begin = p.kblocks * r.split / p.splits;
    r.k_count = p.kblocks * (r.split + 1) / p.splits - r.k_begin;
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
template <uint32_t TILE, bool LEAVE> struct producer {
    static constexpr uint32_t W_BYTES = TILE * 128, STAGE_BYTES = W_BYTES + X_BYTES;
    const params &p;
    const run &r;
    const CUtensorMap *W, *x;
    uint64_t *full, *empty;
    unsigned char *ring;
    uint32_t ahead;   /* stages that can be filled at once */
    uint16_t sharers; /* the blocks that x is for */

    __device__ __forceinline__ void load_w(uint32_t stage, uint32_t group, uint32_t k)
    {
        if (LEAVE && p.leave & (LEAVE_X | LEAVE_W)) {
            const uint32_t bytes =
                (p.leave & LEAVE_W ? 0 : W_BYTES) + (p.leave & LEAVE_X ? 0 : p.rows8 * 128);
            mbarrier_expect(&full[stage], bytes);
            if (p.leave & LEAVE_W) return;
        } else {
            mbarrier_expect(&full[stage], W_BYTES + p.rows8 * 128);
        }
        tma_load_3d(ring + stage * STAGE_BYTES, W, &full[stage], 0,
                    (int)((group * p.share + r.member) * TILE), (int)(r.k_begin + k));
    }
    __device__ __forceinline__ void load_x(uint32_t stage, uint32_t k)
    {
        const uint32_t dst = smem_addr(ring + stage * STAGE_BYTES + W_BYTES);

        if (turn_of(p, stage) != r.member || (LEAVE && p.leave & LEAVE_X)) return;
        if (p.share == 1)
            copy_box(dst, x, &full[stage], 0, 0, (int)(r.k_begin + k));
        else
            copy_box_to_all(dst, x, &full[stage], (int)(r.k_begin + k), sharers);
    }
    __device__ __forceinline__ void begin()
    {
#pragma unroll 1
        for (uint32_t i = 0; i < ahead; i++)
            load_w(i, r.group, i);
    }
    __device__ __forceinline__ void rest()
    {
        uint32_t stage = ahead == p.stages ? 0 : ahead, phase = ahead == p.stages ? 0 : 1;
        uint32_t k = ahead;

#pragma unroll 1
        for (uint32_t i = 0; i < ahead; i++)
            load_x(i, i);
        for (uint32_t group = r.group; group < r.groups; group += r.group_step, k = 0)
            for (; k < r.k_count; k++) {
                mbarrier_wait(&empty[stage], phase);
                load_w(stage, group, k);
                load_x(stage, k);
                if (++stage == p.stages) stage = 0, phase ^= 1;
            }
    }
};

/* What rows end with, known before their sums are: by the warps that will want it. */
__device__ __forceinline__ void fetch_rows(const params &p, const owned &rows, float *factors,
                                           place *places)
{
    const uint32_t lane = threadIdx.x & 31;

#pragma unroll 1
    for (uint32_t m = rows.first; m < rows.end; m += rows.step) {
        if (p.epilogue == MEDIUM_QKV && lane == 0)
            places[m] = {p.qkv.positions[m], p.qkv.kv_slots[m]};
        if (!p.norm_sums) continue;
        float s = 0.f;
#pragma unroll 2
        for (uint32_t i = lane; i < p.norm_tiles; i += 32)
            s += __ldcg(p.norm_sums + m * p.norm_tiles + i);
        s = lanes_sum<32>(s);
        if (lane == 0) factors[m] = rsqrtf(s / (float)p.norm_cols + p.norm_eps);
    }
    __syncwarp();
}

/* The same by one warp while the others multiply: eight rows with one wait. */
__device__ __forceinline__ void keep_rows(const params &p, const owned &rows, float *factors,
                                          place *places)
{
    constexpr int AT_ONCE = 8;
    const uint32_t lane = threadIdx.x & 31;

    if (p.epilogue == MEDIUM_QKV)
        for (uint32_t m = rows.first + lane * rows.step; m < rows.end; m += 32 * rows.step)
            places[m] = {p.qkv.positions[m], p.qkv.kv_slots[m]};
    if (!p.norm_sums) return;
#pragma unroll 1
    for (uint32_t m = rows.first; m < rows.end; m += AT_ONCE * rows.step) {
        float s[AT_ONCE] = {};
#pragma unroll 1
        for (uint32_t i = lane; i < p.norm_tiles; i += 32)
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                if (m + j * rows.step < rows.end)
                    s[j] += __ldcg(p.norm_sums + (m + j * rows.step) * p.norm_tiles + i);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            s[j] = lanes_sum<32>(s[j]);
            if (lane == 0 && m + j * rows.step < rows.end)
                factors[m + j * rows.step] = rsqrtf(s[j] / (float)p.norm_cols + p.norm_eps);
        }
    }
}

/* What block `rank` of the cluster gets from this one: `bytes` behind `to`, counted by its barrier. */
__device__ __forceinline__ void send(uint32_t rank, const float *to, const float *from,
                                     uint32_t bytes, uint64_t *bar)
{
    asm volatile("{ .reg .b32 at, counted;\n"
                 " mapa.shared::cluster.u32 at, %0, %4;\n"
                 " mapa.shared::cluster.u32 counted, %1, %4;\n"
                 " cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
                 " [at], [%2], %3, [counted]; }" ::"r"(smem_addr(to)),
                 "r"(smem_addr(bar)), "r"(smem_addr(from)), "r"(bytes), "r"(rank)
                 : "memory");
}

/* Bytes of the sums that each other block of the split sends to block `split`. */
template <uint32_t TILE>
__device__ __forceinline__ uint32_t bytes_sent(const params &p, uint32_t split)
{
    const owned rows = owned_by(p, split);

    return rows.first < rows.end ? (rows.end - rows.first) * out_stride(TILE) * 4 : 0;
}

/* All multiplying threads. Others' sums come to rest behind the own ones, where the ring was: so not before all have done with their
 * rings. `arrived` was told at the start how much to expect. */
template <uint32_t TILE>
__device__ __forceinline__ void exchange_sums(const params &p, const run &r, float *out,
                                              uint64_t *arrived)
{
    const uint32_t to = threadIdx.x;

    fence_proxy_async();
    named_sync(1, COMPUTE);
    cluster_meet();
    if (to < p.splits && to != r.split) {
        const uint32_t bytes = bytes_sent<TILE>(p, to);
        const float *place = sent_by<TILE>(p, out, r.split, to, owned_by(p, to).first);
        if (bytes)
            send(to + r.member * p.splits, place, out + owned_by(p, to).first * out_stride(TILE),
                 bytes, arrived);
    }
    mbarrier_wait(arrived, 0);
}

template <typename T, int WN, bool LEAVE>
__device__ __forceinline__ void compute(const params &p, const run &r, uint64_t *full,
                                        uint64_t *empty, uint64_t *arrived, unsigned char *ring,
                                        float *out, float *factors, place *places)
{
    constexpr uint32_t TILE = 2 * WN, W_BYTES = TILE * 128, STAGE_BYTES = W_BYTES + X_BYTES;
    const uint32_t t = threadIdx.x, lane = t & 31, warp = t / 32, half = t / 128;
    const uint32_t base = smem_addr(ring);
    const owned rows = dealt(owned_by(p, r.split), warp, WARPS);
    const uint32_t m0 = rows.first < rows.end ? rows.first : p.M; /* M: none */
    uint32_t stage = 0, phase = 0;

    if (!p.clerk) fetch_rows(p, rows, factors, places);
    for (uint32_t group = r.group; group < r.groups; group += r.group_step) {
        const uint32_t tile = group * p.share + r.member;
        float c[WN / 2];
#pragma unroll 1
        for (uint32_t k = 0; k < r.k_count; k++) {
            const uint32_t W = base + stage * STAGE_BYTES + half * (WN * 128),
                           x = base + stage * STAGE_BYTES + W_BYTES;
            mbarrier_wait(&full[stage], phase);
            wgmma_hold(c);
            wgmma_fence();
            if (!LEAVE || !(p.leave & LEAVE_PRODUCTS))
#pragma unroll
                for (int ks = 0; ks < 4; ks++)
                    wgmma_ss<T, WN>(c, smem_swizzled(x + ks * 32), smem_swizzled(W + ks * 32),
                                    ks > 0 || k > 0);
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_hold(c);
            if (lane == 0) {
                mbarrier_arrive(&empty[stage]);
                if (turn_of(p, stage) != r.member)
                    arrive_at(&empty[stage], r.split + turn_of(p, stage) * p.splits);
            }
            if (++stage == p.stages) stage = 0, phase ^= 1;
        }
        /* nobody of this block reads the ring, or the sums of the tile before, any more */
        named_sync(1, COMPUTE);
        const uint32_t row = warp % 4 * 16 + lane / 4;
        float *to = out + row * out_stride(TILE) + half * WN + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (row + i * 8 < p.M)
#pragma unroll
                for (int b = 0; b < WN / 8; b++)
                    *(float2 *)(to + i * 8 * out_stride(TILE) + b * 8) =
                        make_float2(c[b * 4 + i * 2], c[b * 4 + i * 2 + 1]);
        float4 beside;
        if (p.clerk) { /* what it fetched is there long since; the first row's part comes while the others arrive */
            if (group == r.group) named_sync(2, COMPUTE + 32);
            beside = fetch_beside(p, m0, tile * TILE + lane * 4, places);
        }
        if (p.splits > 1 && p.push)
            exchange_sums<TILE>(p, r, out, arrived);
        else if (p.splits > 1)
            cluster_sync();
        else
            named_sync(1, COMPUTE);
        if (!p.clerk) beside = fetch_beside(p, m0, tile * TILE + lane * 4, places);
        if (!LEAVE || !(p.leave & LEAVE_ENDS))
            finish_rows<T, TILE>(p, tile, rows, r.split, r.member * p.splits, out, factors, places,
                                 beside);
    }
}

/* Who has no sums is there from the start and hands nothing over: nobody waits for his loads. */
__device__ __forceinline__ void arrive_before_ends(const params &p)
{
    if (p.splits > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_before_ends(const params &p)
{
    if (p.splits > 1) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

/* WN: rows of W per warpgroup, half of a tile. */
template <typename T, int WN, bool LEAVE>
__global__ void __launch_bounds__(THREADS + 32, 1)
    medium_kernel(const __grid_constant__ params p, const __grid_constant__ CUtensorMap W,
                  const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap next)
{
    extern __shared__ unsigned char raw[];
    __shared__ uint64_t full[STAGES_MAX], empty[STAGES_MAX], arrived;
    __shared__ float factors[ROWS];
    __shared__ place places[ROWS];
    unsigned char *const ring = raw + ((1024 - (smem_addr(raw) & 1023)) & 1023);
    float *const out = (float *)(ring + (p.out_apart ? p.stages * (2 * WN * 128 + X_BYTES) : 0));
    const run r = run_of(p);
    uint32_t sharers = 0;
    for (uint32_t i = 0; i < p.share; i++)
        sharers |= 1u << (r.split + i * p.splits);
    producer<2 * WN, LEAVE> loads = {p,
                                     r,
                                     &W,
                                     &x,
                                     full,
                                     empty,
                                     ring,
                                     r.k_count < p.stages ? r.k_count : p.stages,
                                     (uint16_t)sharers};

    pdl_trigger();
    if (threadIdx.x == COMPUTE) {
        if (p.clerk) tensor_map_prefetch(&x);
#pragma unroll 1
        for (uint32_t i = 0; i < p.stages; i++) {
            mbarrier_init(&full[i], 1);
            /* who brings x for a stage waits for all who read it */
            mbarrier_init(&empty[i], turn_of(p, i) == r.member ? WARPS * p.share : WARPS);
        }
        if (p.push) mbarrier_init(&arrived, 1);
        mbarrier_init_fence();
        if (p.push) mbarrier_expect(&arrived, (p.splits - 1) * bytes_sent<2 * WN>(p, r.split));
        loads.begin();
    }
    __syncthreads();
    if (p.share > 1) cluster_meet(); /* barriers are there before others count on them */
    pdl_wait();
    if (threadIdx.x < COMPUTE) {
        compute<T, WN, LEAVE>(p, r, full, empty, &arrived, ring, out, factors, places);
    } else if (threadIdx.x < CLERK) {
        arrive_before_ends(p);
        if (threadIdx.x == COMPUTE) {
            loads.rest();
            weights_ahead(p.ahead, &next, blockIdx.x, gridDim.x);
        }
        __syncwarp();
        wait_before_ends(p);
    } else {
        arrive_before_ends(p);
        keep_rows(p, owned_by(p, r.split), factors, places);
        named_arrive(2, COMPUTE + 32);
        wait_before_ends(p);
    }
    /* no block goes while another may read its memory, or count on its barriers */
    if (p.splits * p.share > 1) cluster_meet();
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
    const uint32_t sent = (s.splits - 1) * rows_sent(ROWS, s.splits) * out_stride(s.tile) * 4;
    if (m.bytes < out + sent) m.bytes = out + sent;
    m.bytes += 1024; /* to align */
    return m;
}

/* A cluster for each group of tiles; where K is whole, no more than fit at once. */
uint32_t clusters_of(const struct kernel_context *ctx, const struct medium_weight *w)
{
    const uint32_t size = w->shape.splits * w->shape.share,
                   groups = (medium_tiles(w) + w->shape.share - 1) / w->shape.share;

    return w->shape.splits > 1 || groups < ctx->clusters[size] ? groups : ctx->clusters[size];
}

template <typename T, int WN>
cudaError_t launch_one(const struct kernel_context *ctx, const struct medium_args *a)
{
    const struct medium_weight *w = a->weight;
    const struct medium_shape &s = w->shape;
    const uint32_t tiles = medium_tiles(w), size = s.splits * s.share,
                   groups = (tiles + s.share - 1) / s.share, rows8 = (a->M + 7) / 8 * 8;
    const uint32_t clusters = clusters_of(ctx, w);
    const bool clerk = ctx->trial & TRIAL_CLERK;
    const uint32_t threads = clerk ? THREADS + 32 : THREADS;
    const memory m = memory_of(s, w->K / 64, clusters < groups);
    const uint64_t dims[3] = {64, a->M, w->K / 64}, strides[2] = {a->x_stride * 2, 128};
    const uint32_t box[3] = {64, rows8, 1};
    const params p = {a->M,
                      w->N,
                      rows8,
                      w->K / 64,
                      tiles,
                      s.splits,
                      s.share,
                      m.stages,
                      m.out_apart,
                      a->norm_sums,
                      a->norm_tiles,
                      a->norm_cols,
                      a->norm_eps,
                      a->bias,
                      a->epilogue,
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
                      ctx->trial >> LEAVE_SHIFT,
                      s.splits > 1 && ctx->trial & TRIAL_PUSH,
                      clerk,
                      medium_ahead_of(ctx, a->next)};
    constexpr bool CAN_LEAVE = WN == 112 && is_bf16<T>();
    const auto kernel =
        CAN_LEAVE && p.leave ? medium_kernel<T, WN, CAN_LEAVE> : medium_kernel<T, WN, false>;
    CUtensorMap W, x, next;

    memcpy(&W, w->map, sizeof W);
    memcpy(&next, p.ahead.blocks ? a->next->map : w->map, sizeof next);
    cudaError_t e = tensor_map_3d(&x, ctx->type, a->x, dims, strides, box, true);
    if (!e)
        e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)m.bytes);
    if (e) return e;
    return size > 1 ? launch_clusters(ctx, kernel, dim3(clusters * size), dim3(threads), m.bytes,
                                      size, p, W, x, next)
                    : launch(ctx, kernel, dim3(clusters), dim3(threads), m.bytes, p, W, x, next);
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
            for (uint32_t tile = 64; tile <= 256; tile += 32) {
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

struct medium_ahead medium_ahead_of(const struct kernel_context *ctx,
                                    const struct medium_weight *weight)
{
    if (!weight || !weight->N || !(ctx->trial & TRIAL_AHEAD)) return {};
    const struct medium_shape &s = weight->shape;
    const uint32_t clusters = clusters_of(ctx, weight),
                   groups = (medium_tiles(weight) + s.share - 1) / s.share;

    return {clusters * s.splits * s.share,
            s.splits,
            s.share,
            s.tile,
            weight->K / 64,
            memory_of(s, weight->K / 64, clusters < groups).stages,
            weight->N};
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
