/* prefill_wgmma.cu - prefill_attention (attention.h) on Hopper's warpgroup products: the fast variant, sm_90a.
 *
 * Way      The (token, head) pairs of one KV head's group are the rows of a 128-row tile. One warpgroup brings data, two
 *          compute 64 rows each. Its warp 0 fills two stages of K and two of V (128 tokens; 64 where D > 128): K rows by a
 *          tensor map over the pool, a box of 16 tokens x 64 dims per copy, 128-byte swizzle; V as it lies in the pool
 *          (kv_layout.h), one bulk copy per block: eight tokens of eight dims are a core matrix. Its warps 1..3 bring Q.
 *          It runs ahead into the next tile while this one is written out.
 * Overlap  A computing group issues s = Q K[j+1] and o += p V[j], then does the softmax of s while the second runs; the two
 *          groups take turns at issuing (barriers TURN), so that one's softmax lies under the other's products.
 * Launch   persistent: a block per SM takes (tile, kv head) pairs in the given order (longest first, heads innermost), back
 *          and forth: block b the b-th, then the b-th from the end of the next round. 384 threads, 160 KB at D = 128.
 *          Tiles of tokens above the diagonal or in front of the window are never visited.
 * Exact    Token tiles begin at absolute multiples, a masked token's weight is exactly 0 and a scale by 1 changes nothing:
 *          a row's bits do not depend on the chunk or batch that it came in.
 * Floor    4*heads*D*(pairs of row and token) flop at the product rate.
 * Measured H200, November 2026, 32/8 heads, D 128, by `bench kernels`, share of the run's product rate (673 TFLOP/s): 2,048 rows
 *          90 us (383 TFLOP/s, 0.57); behind 6,144 more 441 us (545, 0.81); 8,192 rows 975 us (564, 0.84); 16,384 rows 585
 *          TFLOP/s, 0.87. D 256, 16/8 heads, 2,048 behind 2,048: 537 TFLOP/s.
 * Source   FlashAttention-3, arXiv 2407.08608. */
#include "attention.h"
#include "common/head_dims.cuh"
#include "common/launch.cuh"
#include "common/tensor_map.h"
#include "common/wgmma.cuh"
#include "kv_layout.h"
#include "prefill_wgmma.h"

namespace
{

constexpr int ROWS = PREFILL_TILE_PAIRS, GROUP_ROWS = 64, THREADS = 384, LOADERS = 96;
static_assert(ROWS == 2 * GROUP_ROWS, "two computing groups of 64 rows");
/* At the start every thread has 65536 / 384 registers, rounded down to 168; what one group gives back the others can take, and
 * who asks for more waits forever. */
constexpr int REGISTERS_LOAD = 40, REGISTERS_COMPUTE = 232;
static_assert(REGISTERS_LOAD + 2 * REGISTERS_COMPUTE <= 3 * 168, "of a block");
constexpr float LOG2E = 1.4426950408889634f, MASKED = -1e30f;
constexpr uint32_t TURN = 1, CLEAN = 3; /* named barriers: two turns, one for cleaning */

template <int D_> struct tile_shape {
    static constexpr int D = D_, TOKENS = D > 128 ? 64 : 128, PAGES = TOKENS / KV_BLOCK_TOKENS;
    static constexpr int SLABS = (D + 63) / 64; /* of 64 dims: 128 bytes a row */
    static constexpr int Q_SLAB = ROWS * 128, K_SLAB = TOKENS * 128;
    static constexpr int Q_BYTES = SLABS * Q_SLAB, K_BYTES = SLABS * K_SLAB;
    static constexpr int V_BYTES = TOKENS * D * 2, V_PAGE = KV_BLOCK_TOKENS * D * 2;
    static constexpr int SHARED = 1024 + Q_BYTES + 2 * (K_BYTES + V_BYTES); /* 1024: to align */
    static_assert(SHARED <= 226 * 1024 && PAGES * SLABS <= 32, "fits an SM; a lane per copy");
};

struct barriers {
    uint64_t q_full, q_empty, k_full[2], k_empty[2], v_full[2], v_empty[2];
};

struct params {
    struct attention_args a;
    const struct prefill_tile *tiles;
    uint32_t items, group;
};

/* What one tile of one KV head is made of; every role works it out for itself. */
struct item {
    struct prefill_tile tile;
    int kv_head;
    int pairs;           /* of the segment */
    int first, last;     /* positions of the tile's first and last row */
    int begin;           /* first token that some row sees */
    int j_first, j_last; /* tiles of tokens */
    int segment_end;     /* tokens from here on may hold anything */
};

template <int TOKENS>
__device__ __forceinline__ bool next_item(const params &p, uint32_t round, struct item *out)
{
    const uint32_t b = round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x,
                   at = round * gridDim.x + b;
    if (at >= p.items) return false;
    const struct prefill_tile tile = p.tiles[at / p.a.kv_heads];
    const int group = (int)p.group, pairs = tile.rows * group;
    const int pair_last = max(min(tile.pair + ROWS, pairs) - 1, 0);
    const int first = tile.position + tile.pair / group, last = tile.position + pair_last / group;
    const int window = (int)p.a.window;
    out->tile = tile;
    out->kv_head = (int)(at % p.a.kv_heads);
    out->pairs = pairs;
    out->first = first, out->last = last;
    out->begin = window && first + 1 > window ? first + 1 - window : 0;
    out->j_first = out->begin / TOKENS;
    out->j_last = last / TOKENS;
    out->segment_end = tile.position + tile.rows;
    return true;
}

/* --- the loading group --- */

__device__ __forceinline__ void copy_bytes(uint32_t dst, const void *src, uint64_t *bar,
                                           uint32_t bytes)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(smem_addr(bar))
                 : "memory");
}

/* Warp 0: lane l brings page l % PAGES, of K the dims of slab l / PAGES. K runs one tile ahead of V, as they are used. */
template <typename T, typename S>
__device__ __forceinline__ void load_kv(const params &p, const CUtensorMap *map,
                                        struct barriers *bar, uint32_t k, uint32_t v)
{
    const int lane = threadIdx.x & 31, page = lane % S::PAGES, slab = lane / S::PAGES;
    const uint32_t k_dst = k + slab * S::K_SLAB + page * KV_BLOCK_TOKENS * 128;
    const uint32_t v_dst = v + page * S::V_PAGE;
    uint32_t at = 0; /* tiles of tokens so far */
    struct item w;

    for (uint32_t round = 0; next_item<S::TOKENS>(p, round, &w); round++) {
        const int32_t *table = p.a.tables + (uint64_t)w.tile.slot * p.a.table_stride;
        /* Entries of the table in front of the window are not read: their blocks may be others' by now. */
        const int block_first = w.begin / KV_BLOCK_TOKENS,
                  block_last = max(w.segment_end - 1, 0) / KV_BLOCK_TOKENS;
        auto record = [&](int j) {
            const int block = max(block_first, min(j * S::PAGES + page, block_last));
            return table[block] * (int)p.a.kv_heads + w.kv_head;
        };
        auto load_k = [&](int which, uint32_t n) {
            const uint32_t stage = n & 1;
            mbarrier_wait(&bar->k_empty[stage], (n >> 1 & 1) ^ 1);
            if (lane == 0) mbarrier_expect(&bar->k_full[stage], S::K_BYTES);
            __syncwarp();
            if (slab < S::SLABS)
                copy_box(k_dst + stage * S::K_BYTES, map, &bar->k_full[stage], slab * 64, 0, which);
        };
        int now = record(w.j_first), next = record(w.j_first + 1);
        load_k(now, at);
        for (int j = w.j_first; j <= w.j_last; j++, at++) {
            if (j < w.j_last) load_k(next, at + 1);
            const int after = record(j + 2);
            const uint32_t stage = at & 1;
            mbarrier_wait(&bar->v_empty[stage], (at >> 1 & 1) ^ 1);
            if (lane == 0) mbarrier_expect(&bar->v_full[stage], S::V_BYTES);
            __syncwarp();
            if (slab == 0)
                copy_bytes(v_dst + stage * S::V_BYTES,
                           (const T *)p.a.kv +
                               ((uint64_t)(uint32_t)now * 2 + 1) * (KV_BLOCK_TOKENS * S::D),
                           &bar->v_full[stage], S::V_PAGE);
            now = next, next = after;
        }
    }
}

/* Warps 1..3: the rows of Q, swizzled as a tensor map would; rows past the segment are zeros. */
template <typename T, typename S>
__device__ __forceinline__ void load_q(const params &p, struct barriers *bar, uint32_t q)
{
    constexpr int PIECES = S::D / 8;
    struct item w;

    for (uint32_t round = 0; next_item<S::TOKENS>(p, round, &w); round++) {
        mbarrier_wait(&bar->q_empty, (round & 1) ^ 1);
#pragma unroll 2
        for (int c = (int)threadIdx.x - 32; c < ROWS * PIECES; c += LOADERS) {
            const int i = c / PIECES, piece = c % PIECES, pair = w.tile.pair + i;
            const uint32_t row = (uint32_t)pair / p.group, head = (uint32_t)pair % p.group;
            const bool valid = pair < w.pairs;
            const T *src = (const T *)p.a.q;
            if (valid)
                src += (uint64_t)(w.tile.first_row + row) * p.a.q_stride +
                       (uint64_t)(w.kv_head * p.group + head) * S::D + piece * 8;
            cp_async16(q + piece / 8 * S::Q_SLAB + i * 128 + ((piece % 8) ^ (i & 7)) * 16, src,
                       valid);
        }
        cp_async_commit();
        cp_async_wait<0>();
        fence_proxy_async();
        __syncwarp();
        if ((threadIdx.x & 31) == 0) mbarrier_arrive(&bar->q_full);
    }
}

/* --- a computing group --- */

template <int TOKENS> struct softmax_rows { /* of this thread: two rows */
    float m[2], l[2]; /* largest score so far (log2), sum of weights over the thread's columns */
    int pos[2];
};

/* Scores of tokens [first, +TOKENS) become weights; alpha: what earlier sums are to be scaled by. */
template <int TOKENS>
__device__ __forceinline__ void softmax_tile(const params &p, float to_log2, int first, bool edge,
                                             float (&s)[TOKENS / 2], struct softmax_rows<TOKENS> &r,
                                             float (&alpha)[2])
{
    const int q2 = (threadIdx.x & 3) * 2;
    if (p.a.softcap > 0.f) { /* tanh(x) = 1 - 2 / (1 + e^2x): to 2^-22 of the cap, and short */
        const float in = 2.f * LOG2E * p.a.scale / p.a.softcap, cap = p.a.softcap * LOG2E;
#pragma unroll
        for (int i = 0; i < TOKENS / 2; i++)
            s[i] = cap - 2.f * cap * __frcp_rn(1.f + exp2_fast(s[i] * in));
    }
    if (edge) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int above = r.pos[i] - first - q2,
                      below = p.a.window ? above - (int)p.a.window : -TOKENS;
#pragma unroll
            for (int n = 0; n < TOKENS / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (n * 8 + e > above || n * 8 + e <= below) s[n * 4 + i * 2 + e] = MASKED;
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top[2] = {MASKED, MASKED};
#pragma unroll
        for (int n = 0; n < TOKENS / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                top[e] = fmaxf(top[e], s[n * 4 + i * 2 + e]);
        const float mx = lanes_max<4>(fmaxf(top[0], top[1])) * to_log2, m_new = fmaxf(r.m[i], mx);
        alpha[i] = exp2_fast(r.m[i] - m_new);
        /* a row that has seen no token yet (window): its weights must be 0, not exp2(0) */
        const float base = m_new <= MASKED * 0.5f * fabsf(to_log2) ? 0.f : m_new;
        r.m[i] = m_new;
        float sum[2] = {0.f, 0.f};
#pragma unroll
        for (int n = 0; n < TOKENS / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &x = s[n * 4 + i * 2 + e];
                x = exp2_fast(fmaf(x, to_log2, -base));
                sum[e] += x;
            }
        r.l[i] = r.l[i] * alpha[i] + (sum[0] + sum[1]);
    }
}

/* The accumulator's layout is that of an a operand: no shuffle. */
template <typename T, int TOKENS>
__device__ __forceinline__ void pack_weights(const float (&s)[TOKENS / 2],
                                             uint32_t (&w)[TOKENS / 4])
{
#pragma unroll
    for (int i = 0; i < TOKENS / 4; i++)
        w[i] = pack2<T>(s[2 * i], s[2 * i + 1]);
}

template <typename T, typename S>
__device__ __forceinline__ void scores(float (&s)[S::TOKENS / 2], uint32_t q, uint32_t k)
{
#pragma unroll
    for (int ks = 0; ks < S::D / 16; ks++)
        wgmma_ss<T, S::TOKENS>(s, smem_swizzled(q + ks / 4 * S::Q_SLAB + ks % 4 * 32),
                               smem_swizzled(k + ks / 4 * S::K_SLAB + ks % 4 * 32), ks > 0);
}

template <typename T, typename S>
__device__ __forceinline__ void add_values(float (&o)[S::D / 2], const uint32_t (&w)[S::TOKENS / 4],
                                           uint32_t v)
{
#pragma unroll
    for (int ks = 0; ks < S::TOKENS / 16; ks++)
        wgmma_rs<T, S::D>(o, w + ks * 4, smem_cores(v + ks * S::V_PAGE, 128, S::D * 16), 1);
}

/* Tokens from `valid` on become zeros in V: 0 * NaN must not reach the sum. So do those in front of `begin`, a multiple of 16: the
 * block that stands in for theirs may be the last one. Both computing groups together. */
template <typename T, typename S>
__device__ __forceinline__ void clean_ends(T *v, int begin, int valid)
{
    const int tid = (int)threadIdx.x - 128, from = valid % 8;
    int eight = valid / 8;
    if (from) {
        for (int c = tid; c < S::D * 8; c += 256)
            if (c % 8 >= from) v[eight * S::D * 8 + c] = from_float<T>(0.f);
        eight++;
    }
    for (int c = eight * S::D + tid; c < S::TOKENS / 8 * S::D; c += 256)
        *(uint4 *)(v + c * 8) = make_uint4(0, 0, 0, 0);
    for (int c = tid; c < begin / 8 * S::D; c += 256)
        *(uint4 *)(v + c * 8) = make_uint4(0, 0, 0, 0);
    fence_proxy_async();
    named_sync(CLEAN, 256);
}

/* Four words of each of a quad's lanes, transposed: lane q then has word q of all four. */
__device__ __forceinline__ void transpose_quad(uint32_t (&x)[4])
{
    const int q = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t got = __shfl_xor_sync(~0u, q & 1 ? x[i] : x[i + 1], 1);
        if (q & 1)
            x[i] = got;
        else
            x[i + 1] = got;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t got = __shfl_xor_sync(~0u, q & 2 ? x[i] : x[i + 2], 2);
        if (q & 2)
            x[i] = got;
        else
            x[i + 2] = got;
    }
}

template <typename T, typename S>
__device__ __forceinline__ void write_out(const params &p, const struct item &w, int pair_first,
                                          const float (&o)[S::D / 2], const float (&l)[2])
{
    const int lane = threadIdx.x & 31, q = lane & 3;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int pair = pair_first + (lane >> 2) + i * 8;
        const float inv = 1.f / lanes_sum<4>(l[i]);
        T *out = (T *)p.a.out;
        if (pair < w.pairs)
            out += (uint64_t)(w.tile.first_row + pair / (int)p.group) * p.a.out_stride +
                   (uint64_t)(w.kv_head * (int)p.group + pair % (int)p.group) * S::D;
#pragma unroll
        for (int n = 0; n + 4 <= S::D / 8; n += 4) { /* 16 bytes a lane */
            uint32_t x[4];
#pragma unroll
            for (int b = 0; b < 4; b++)
                x[b] = pack2<T>(o[(n + b) * 4 + i * 2] * inv, o[(n + b) * 4 + i * 2 + 1] * inv);
            transpose_quad(x);
            if (pair < w.pairs) *(uint4 *)(out + (n + q) * 8) = make_uint4(x[0], x[1], x[2], x[3]);
        }
#pragma unroll
        for (int n = S::D / 32 * 4; n < S::D / 8; n++)
            if (pair < w.pairs)
                *(uint32_t *)(out + n * 8 + 2 * q) =
                    pack2<T>(o[n * 4 + i * 2] * inv, o[n * 4 + i * 2 + 1] * inv);
    }
}

template <typename T, typename S>
__device__ __forceinline__ void compute(const params &p, struct barriers *bar, uint32_t q,
                                        uint32_t k, uint32_t v, unsigned char *v_at)
{
    constexpr int TOKENS = S::TOKENS;
    const int group = threadIdx.x / 128 - 1, lane = threadIdx.x & 31;
    const uint32_t my_q = q + group * GROUP_ROWS * 128;
    const float to_log2 = p.a.softcap > 0.f ? 1.f : p.a.scale * LOG2E;
    uint32_t at = 0; /* tiles of tokens so far */
    struct item w;
    auto release = [&](uint64_t *empty) {
        if (lane == 0) mbarrier_arrive(empty);
    };

    if (group == 1) named_arrive(TURN, 256); /* the first turn is group 0's */
    for (uint32_t round = 0; next_item<TOKENS>(p, round, &w); round++) {
        const int group_first = w.tile.pair + group * GROUP_ROWS,
                  pair_first = group_first + (threadIdx.x >> 5) % 4 * 16;
        const int pos_low = w.tile.position + min(group_first, max(w.pairs - 1, 0)) / (int)p.group;
        struct softmax_rows<TOKENS> rows = {
            {MASKED, MASKED}, {0.f, 0.f},
            {
                0, 0
            }
        };
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int pair = pair_first + (lane >> 2) + i * 8;
            rows.pos[i] = pair < w.pairs ? w.tile.position + pair / (int)p.group : w.last;
        }
        auto is_edge = [&](int first) {
            return first + TOKENS - 1 > pos_low ||
                   (p.a.window && first + (int)p.a.window <= w.last);
        };
        float s[TOKENS / 2], o[S::D / 2], alpha[2];
        uint32_t weights[TOKENS / 4];

        mbarrier_wait(&bar->q_full, round & 1);
        mbarrier_wait(&bar->k_full[at & 1], at >> 1 & 1);
        wgmma_hold(s);
        wgmma_fence();
        scores<T, S>(s, my_q, k + (at & 1) * S::K_BYTES);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_hold(s);
        release(&bar->k_empty[at & 1]);
        if (w.j_first == w.j_last) release(&bar->q_empty);
        softmax_tile<TOKENS>(p, to_log2, w.j_first * TOKENS, is_edge(w.j_first * TOKENS), s, rows,
                             alpha);
        pack_weights<T, TOKENS>(s, weights);
#pragma unroll
        for (int i = 0; i < S::D / 2; i++)
            o[i] = 0.f;

        for (int j = w.j_first; j < w.j_last; j++, at++) {
            const uint32_t now = at & 1, next = now ^ 1;
            mbarrier_wait(&bar->k_full[next], (at + 1) >> 1 & 1);
            named_sync(TURN + group, 256);
            wgmma_hold(s);
            wgmma_hold(o);
            wgmma_fence();
            scores<T, S>(s, my_q, k + next * S::K_BYTES);
            wgmma_commit();
            mbarrier_wait(&bar->v_full[now], at >> 1 & 1);
            wgmma_fence(); /* for `weights`, which the compiler moves about */
            add_values<T, S>(o, weights, v + now * S::V_BYTES);
            wgmma_commit();
            named_arrive(TURN + (group ^ 1), 256);
            wgmma_wait<1>();
            wgmma_hold(s);
            release(&bar->k_empty[next]);
            if (j + 1 == w.j_last) release(&bar->q_empty);
            const int first = (j + 1) * TOKENS;
            softmax_tile<TOKENS>(p, to_log2, first, is_edge(first), s, rows, alpha);
            wgmma_wait<0>();
            wgmma_hold(o);
            release(&bar->v_empty[now]);
            pack_weights<T, TOKENS>(s, weights);
            /* rare once the largest score has been seen */
            if (__any_sync(~0u, alpha[0] != 1.f || alpha[1] != 1.f)) {
#pragma unroll
                for (int i = 0; i < S::D / 2; i++)
                    o[i] *= alpha[i >> 1 & 1];
            }
        }

        const uint32_t now = at & 1;
        mbarrier_wait(&bar->v_full[now], at >> 1 & 1);
        if (w.segment_end < (w.j_last + 1) * TOKENS)
            clean_ends<T, S>((T *)(v_at + now * S::V_BYTES),
                             w.begin / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS - w.j_last * TOKENS,
                             w.segment_end - w.j_last * TOKENS);
        wgmma_hold(o);
        wgmma_fence();
        add_values<T, S>(o, weights, v + now * S::V_BYTES);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_hold(o);
        release(&bar->v_empty[now]);
        at++;
        write_out<T, S>(p, w, pair_first, o, rows.l);
    }
    if (group == 0) named_sync(TURN, 256); /* takes the turn that is left */
}

template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 1)
    prefill_wgmma_kernel(const __grid_constant__ params p, const __grid_constant__ CUtensorMap map)
{
    using S = tile_shape<D>;
    extern __shared__ unsigned char raw[];
    __shared__ struct barriers bar;
    unsigned char *const shared = raw + ((1024 - (smem_addr(raw) & 1023)) & 1023);
    const uint32_t q = smem_addr(shared), k = q + S::Q_BYTES, v = k + 2 * S::K_BYTES;

    if (threadIdx.x == 0) {
        mbarrier_init(&bar.q_full, LOADERS / 32);
        mbarrier_init(&bar.q_empty, 8);
        for (int i = 0; i < 2; i++) {
            mbarrier_init(&bar.k_full[i], 1);
            mbarrier_init(&bar.v_full[i], 1);
            mbarrier_init(&bar.k_empty[i], 8);
            mbarrier_init(&bar.v_empty[i], 8);
        }
        mbarrier_init_fence();
    }
    pdl_trigger();
    __syncthreads();
    pdl_wait();
    if (threadIdx.x < 128) {
        registers_shrink<REGISTERS_LOAD>();
        if (threadIdx.x < 32)
            load_kv<T, S>(p, &map, &bar, k, v);
        else
            load_q<T, S>(p, &bar, q);
    } else {
        registers_grow<REGISTERS_COMPUTE>();
        compute<T, S>(p, &bar, q, k, v, shared + S::Q_BYTES + 2 * S::K_BYTES);
    }
}

template <typename T, int D>
cudaError_t launch_one(const struct kernel_context *ctx, const struct attention_args &a,
                       const struct prefill_tile *tiles, uint32_t tile_count)
{
    using S = tile_shape<D>;
    const uint64_t records = a.kv_blocks * a.kv_heads;
    const uint64_t dims[3] = {D, KV_BLOCK_TOKENS, records};
    const uint64_t strides[2] = {D * 2, kv_record_elements(D) * 2};
    const uint32_t box[3] = {64, KV_BLOCK_TOKENS, 1};
    const params p = {a, tiles, tile_count * a.kv_heads, a.heads / a.kv_heads};
    CUtensorMap map;

    if (!records || records > INT32_MAX || (uint64_t)tile_count * a.kv_heads > INT32_MAX)
        return cudaErrorInvalidValue;
    cudaError_t e = tensor_map_3d(&map, ctx->type, a.kv, dims, strides, box, true);
    if (!e)
        e = cudaFuncSetAttribute(prefill_wgmma_kernel<T, D>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED);
    if (e) return e;
    const uint32_t blocks = p.items < (uint32_t)ctx->sm_count ? p.items : (uint32_t)ctx->sm_count;
    return launch(ctx, prefill_wgmma_kernel<T, D>, dim3(blocks), dim3(THREADS), S::SHARED, p, map);
}

using sizes = head_dims<64, 80, 96, 128, 256>;

} // namespace

bool prefill_wgmma_fits(const struct kernel_context *ctx, uint32_t head_dim)
{
    return ctx->capability == 90 && sizes::has(head_dim);
}

cudaError_t prefill_wgmma(const struct kernel_context *ctx, const struct attention_args *args,
                          const struct prefill_tile *tiles, uint32_t tile_count)
{
    DISPATCH(ctx, sizes::dispatch(args->head_dim, [&](auto D) {
                 return launch_one<T, D>(ctx, *args, tiles, tile_count);
             }));
}
