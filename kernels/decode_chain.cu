/* decode_chain.cu - all layers of a decode step of 1..8 rows in one launch (decode_chain.h).
 *
 * Why      A layer of a model of some 100 MB is 5 launches that wait for each other, 2.9 us each, whatever they read. Here all
 *          layers run in one cluster of 16 blocks, whose dependencies are stores to each other's shared memory and barriers
 *          there, 0.4 us each. A cluster is placed as a whole, so its blocks may wait for each other.
 * Roles    Each block owns 1/16 of the rows of every weight. One producer thread streams its slices of all layers in order
 *          through a ring (TMA boxes of whole rows, 128-byte swizzle), and runs ahead of the dependencies. 12 consumer
 *          warps: in attn_in, attn_out and ffn_out a warp takes the 64-column block of its number of every tile, sums are
 *          added in order through shared memory; in ffn_in a warp takes whole tiles.
 * Layer    norm, q k v -> all blocks; parts of attention -> the block that owns those columns; its sum -> all; x + attn_out
 *          -> all; norm, gate and up -> all; x + ffn_out -> all. A block sends its columns with st.async; the receiver's
 *          barrier counts bytes. Between two uses of a buffer lies at least one exchange that needs every block.
 * Attention  parts (split, KV head) are dealt to the blocks, and in a block to 3 groups of 4 warps, each as a block of
 *          paged_decode; pages are fetched to L2 a layer ahead by the producer's warp, the newest token comes from q k v.
 * Numerics The same multiplications and sums in the same order as skinny_gemm and paged_decode: bit for bit.
 * Floor    weights and pages through 16 SMs: 76 GB/s each, 1.2 TB/s, measured (one cluster of 16, H200). */
#include "common/launch.cuh"
#include "common/tensor_map.h"
#include "decode_chain.h"
#include "kv_layout.h"

namespace
{

constexpr int WARPS = 12, QUADS = WARPS / 4, CONSUMERS = WARPS * 32, THREADS = CONSUMERS + 32;
constexpr int D = 64, OUTS = 2; /* head_dim; outputs of q k v per thread */
constexpr uint32_t CTAS = 16, ROWS = DECODE_CHAIN_ROWS_MAX, GROUP_MAX = 8, PIECES_MAX = 6;
constexpr uint32_t SHARED_MAX = 225 * 1024 /* and `statics` */, RING_MIN = 4, RING_MAX = 16;
constexpr float LOG2E = 1.4426950408889634f, MASKED = -1e30f;

enum weight_name { ATTN_IN, ATTN_OUT, FFN_IN, FFN_OUT, WEIGHTS };
enum exchange { X_ROWS, QKV_ROWS, PARTS, ATTENDED, ACTS, EXCHANGES };

/* A block's slice of a weight: `rows` rows in tiles of `tile`, each in `chunks` stages of `blocks` 64-column blocks. */
struct slice {
    uint32_t rows, tile, tiles, kblocks, blocks, chunks;
};

struct places { /* in shared memory, bytes */
    uint32_t x, gain, xs, qkv, parts, acts, scratch, act_out, total;
};

struct params {
    uint32_t M, layers, hidden, ffn, heads, kv_heads, rope_dim, splits_max;
    struct slice w[WEIGHTS];
    struct places at;
    uint32_t stages, stage_bytes;
    float eps[2], scale;
    int act;
    float *x;
    uint64_t x_stride;
    const char *gain[2];
    uint64_t gain_stride;
    char *kv;
    uint64_t kv_layer_bytes;
    const float2 *rope;
    const int32_t *positions, *kv_slots, *slots, *tables;
    uint32_t table_stride;
};

struct maps {
    CUtensorMap w[WEIGHTS];
};

struct row { /* of the step */
    int pos, groups, splits, per;
    const int32_t *table;
};

struct statics {
    uint64_t full[RING_MAX], empty[RING_MAX], come[EXCHANGES];
    struct row rows[ROWS];
    float row_ss[ROWS][PIECES_MAX], factor[ROWS];
};

/* Of the 16 blocks' columns of attention, which heads are in block `rank`, and a part's floats there. */
__host__ __device__ __forceinline__ uint32_t part_floats(uint32_t columns)
{
    return columns + 4; /* and two heads' maximum and sum */
}

__device__ __forceinline__ float activate(float v, int act)
{
    if (act == 0) return v / (1.f + __expf(-v));
    const float u = 0.7978845608f * (v + 0.044715f * v * v * v);
    return 0.5f * v * (1.f + tanhf(u));
}

/* As in skinny_gemm: lane (r = m % 8, q) of the mma wants columns q*16 + j*8 .. +7 of a block of 64 as one read. */
__device__ __forceinline__ uint32_t x_place(uint32_t k, uint32_t m, uint32_t M)
{
    const uint32_t kb = k >> 6, q = (k >> 4) & 3, j = (k >> 3) & 1;
    return (((kb * 2 + j) * M + m) * 4 + q) * 8 + (k & 7);
}

__device__ __forceinline__ void consumers_sync()
{
    asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
}

__device__ __forceinline__ void quad_sync(int quad)
{
    asm volatile("bar.sync %0, 128;" ::"r"(2 + quad) : "memory");
}

/* The parts of all rows that this block works on, in order. */
struct unit_list {
    const params &p;
    const struct row *rows;
    uint32_t rank, m, u;

    __device__ __forceinline__ unit_list(const params &p, const struct row *rows, uint32_t rank)
        : p(p), rows(rows), rank(rank), m(0), u(rank)
    {
    }
    /* A row begins with another block than the row before, so that the blocks have alike much to do. */
    __device__ __forceinline__ bool next(uint32_t &row, uint32_t &split, uint32_t &head)
    {
        for (; m < p.M; m++, u = (rank - 5 * m) % CTAS)
            if (rows[m].pos >= 0 && u < rows[m].splits * p.kv_heads) {
                row = m, split = u / p.kv_heads, head = u % p.kv_heads;
                u += CTAS;
                return true;
            }
        return false;
    }
};

/* --- the producer's warp --- */

__device__ __forceinline__ void prefetch_pages(const params &p, const statics &s, uint32_t rank,
                                               uint32_t lane, uint32_t layer)
{
    constexpr uint32_t RECORD = 2 * KV_BLOCK_TOKENS * D * 2;
    const char *pool = p.kv + layer * p.kv_layer_bytes;
    unit_list units(p, s.rows, rank);
    uint32_t m, split, head;

    while (units.next(m, split, head)) {
        const struct row &row = s.rows[m];
        const int first = split * row.per * 2,
                  end = min((int)(split + 1) * row.per * 2, row.pos / KV_BLOCK_TOKENS + 1);
        for (int b = first + lane; b < end; b += 32)
            bulk_prefetch(pool + ((uint64_t)row.table[b] * p.kv_heads + head) * RECORD, RECORD);
    }
}

__device__ __forceinline__ void produce(const params &p, const maps &maps, unsigned char *ring,
                                        statics &s, unsigned char *shared, uint32_t rank,
                                        uint32_t lane)
{
    uint32_t slot = 0, phase = 1;

    for (uint32_t layer = 0; layer < p.layers; layer++) {
        prefetch_pages(p, s, rank, lane, layer);
        __syncwarp();
        if (lane == 0)
            for (int i = 0; i < WEIGHTS; i++) {
                const struct slice &w = p.w[i];
                const uint32_t bytes = w.tile * w.blocks * 128;
                for (uint32_t tile = 0; tile < w.tiles; tile++)
                    for (uint32_t chunk = 0; chunk < w.chunks; chunk++) {
                        const bool gain = (i == ATTN_IN || i == FFN_IN) && tile + chunk == 0;
                        mbarrier_wait(&s.empty[slot], phase);
                        mbarrier_expect(&s.full[slot], bytes + (gain ? p.hidden * 4 : 0));
                        tma_load_4d(ring + slot * p.stage_bytes, &maps.w[i], &s.full[slot], 0,
                                    rank * w.rows + tile * w.tile, chunk * w.blocks, layer);
                        if (gain)
                            bulk_load(shared + p.at.gain +
                                          ((layer & 1) * 2 + (i == FFN_IN)) * p.hidden * 4,
                                      p.gain[i == FFN_IN] + layer * p.gain_stride, p.hidden * 4,
                                      &s.full[slot]);
                        if (++slot == p.stages) {
                            slot = 0;
                            phase ^= 1;
                        }
                    }
            }
        __syncwarp();
    }
}

/* --- the consumers --- */

template <typename T> struct kv_group { /* 32 tokens in registers, as in paged_decode */
    uint4 k[4][2], v[8];
};

template <typename T> struct consumer {
    const params &p;
    statics &s;
    unsigned char *ring, *shared;
    uint32_t t, warp, lane, r, q, rank, slot, phase;

    template <typename U> __device__ __forceinline__ U *at(uint32_t place) const
    {
        return (U *)(shared + place);
    }

    /* --- ring --- */

    __device__ __forceinline__ void advance(uint32_t n)
    {
        for (slot += n; slot >= p.stages; slot -= p.stages)
            phase ^= 1;
    }
    __device__ __forceinline__ void release(uint32_t arrivals)
    {
        __syncwarp();
        if (lane == 0) mbarrier_arrive_many(&s.empty[slot], arrivals);
    }

    /* --- exchanges --- */

    __device__ __forceinline__ uint32_t bytes_of(exchange e) const
    {
        uint32_t bytes = 0;

        switch (e) {
        case X_ROWS: return p.M * p.hidden * 4;
        case QKV_ROWS: return p.M * p.w[ATTN_IN].rows * CTAS * 2;
        case ACTS: return p.M * p.ffn * 2;
        case ATTENDED:
            for (uint32_t m = 0; m < p.M; m++)
                bytes += s.rows[m].pos >= 0 ? p.heads * D * 2 : 0;
            return bytes;
        default:
            for (uint32_t m = 0; m < p.M; m++)
                if (s.rows[m].pos >= 0)
                    bytes += s.rows[m].splits *
                             (p.heads * D / CTAS * 4 + (last_head() - first_head() + 1) * 8);
            return bytes;
        }
    }
    __device__ __forceinline__ void expect(exchange e)
    {
        mbarrier_expect(&s.come[e], bytes_of(e));
    }
    __device__ __forceinline__ void await(exchange e, uint32_t parity)
    {
        mbarrier_wait_cluster(&s.come[e], parity);
        if (t == 0) expect(e); /* the next */
    }
    __device__ __forceinline__ uint32_t bar(exchange e) const
    {
        return smem_addr(&s.come[e]);
    }

    /* --- norm --- */

    template <bool SUM, bool WRITE>
    __device__ __forceinline__ void norm_pass(const float *gain, T *xs)
    {
        const float *x = at<float>(p.at.x);
        const uint32_t pieces = (p.hidden + 127) / 128;

        for (uint32_t u = warp; u < p.M * pieces; u += WARPS) {
            const uint32_t m = u / pieces, piece = u % pieces, k = piece * 128 + lane * 4;
            float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
            if (k < p.hidden) v = *(const float4 *)(x + m * p.hidden + k);
            if (SUM) {
                const float ss = lanes_sum<32>((v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w));
                if (lane == 0) s.row_ss[m][piece] = ss;
            }
            if (WRITE && k < p.hidden) {
                const float4 g = *(const float4 *)(gain + k);
                const float f = is_bf16<T>() ? 1.f : s.factor[m];
                *(uint2 *)(xs + x_place(k, m, p.M)) = {pack2<T>(v.x * f * g.x, v.y * f * g.y),
                                                       pack2<T>(v.z * f * g.z, v.w * f * g.w)};
            }
        }
    }
    __device__ __forceinline__ float row_factor(uint32_t m, float eps) const
    {
        const uint32_t pieces = (p.hidden + 127) / 128;
        float sum = 0.f;
        for (uint32_t i = 0; i < pieces; i++)
            sum += s.row_ss[m][i];
        return rsqrtf(sum / (float)p.hidden + eps);
    }
    /* The first stage of the weight behind brings the gain. */
    __device__ __forceinline__ void norm(uint32_t layer, int which)
    {
        const float *gain = at<float>(p.at.gain) + ((layer & 1) * 2 + which) * p.hidden;
        T *xs = at<T>(p.at.xs);

        mbarrier_wait(&s.full[slot], phase);
        if (is_bf16<T>()) {
            norm_pass<true, true>(gain, xs);
        } else {
            norm_pass<true, false>(gain, xs);
            consumers_sync();
            if (t < p.M) s.factor[t] = row_factor(t, p.eps[which]);
            consumers_sync();
            norm_pass<false, true>(gain, xs);
        }
        consumers_sync();
    }
    __device__ __forceinline__ float late_factor(uint32_t m, int which) const
    {
        return is_bf16<T>() && m < p.M ? row_factor(m, p.eps[which]) : 1.f;
    }

    /* --- products --- */

    __device__ __forceinline__ void load_x(const T *xs, uint32_t kb, uint4 (&x)[2]) const
    {
#pragma unroll
        for (int j = 0; j < 2; j++)
            x[j] = r < p.M ? *(const uint4 *)(xs + (((kb * 2 + j) * p.M + r) * 4 + q) * 8)
                           : make_uint4(0, 0, 0, 0);
    }
    /* c += 16 rows (of which `rows` are there) times one block of 64 columns. */
    __device__ __forceinline__ void block_product(const unsigned char *a, uint32_t rows,
                                                  const uint4 (&x)[2], float (&c)[4]) const
    {
        const unsigned char *row = a + r * 128;
        const uint32_t swizzle = (smem_addr(row) >> 7) & 7; /* of the address, not of the box */
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint32_t u = ((q * 2 + j) ^ swizzle) * 16;
            uint4 lo = make_uint4(0, 0, 0, 0), hi = lo;
            if (r < rows) lo = *(const uint4 *)(row + u);
            if (r + 8 < rows) hi = *(const uint4 *)(row + 1024 + u);
            mma_16816<T>(c, lo.x, hi.x, lo.y, hi.y, x[j].x, x[j].y);
            mma_16816<T>(c, lo.z, hi.z, lo.w, hi.w, x[j].z, x[j].w);
        }
    }
    /* Every warp's sums of all tiles to shared memory: [warp][m][row]. */
    __device__ __forceinline__ void split_product(const struct slice &w, const T *xs)
    {
        for (uint32_t tile = 0; tile < w.tiles; tile++) {
            float c[4] = {};
            for (uint32_t chunk = 0; chunk < w.chunks; chunk++, advance(1)) {
                const uint32_t kb = chunk * w.blocks + warp;
                if (warp >= w.blocks) continue;
                uint4 x[2];
                if (kb < w.kblocks) load_x(xs, kb, x);
                mbarrier_wait(&s.full[slot], phase);
                if (kb < w.kblocks)
                    block_product(ring + slot * p.stage_bytes + warp * w.tile * 128, w.tile, x, c);
                release(warp ? 1 : WARPS + 1 - w.blocks);
            }
            if (warp >= w.blocks) continue;
            float *to = at<float>(p.at.scratch) + warp * p.M * w.rows + tile * w.tile;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t m = 2 * q + (i & 1), n = r + (i >> 1) * 8;
                if (m < p.M && n < w.tile) to[m * w.rows + n] = c[i];
            }
        }
        consumers_sync();
    }
    __device__ __forceinline__ float warps_sum(const struct slice &w, uint32_t m, uint32_t n) const
    {
        const float *from = at<float>(p.at.scratch) + m * w.rows + n;
        float v = 0.f;
#pragma unroll 4
        for (uint32_t i = 0; i < w.blocks; i++)
            v += from[i * p.M * w.rows];
        return v;
    }

    /* --- q k v --- */

    __device__ __forceinline__ void write_page(uint32_t layer, uint32_t n, int32_t kv_slot, T v)
    {
        const uint32_t head = n / D, e = n % D, token = kv_slot % KV_BLOCK_TOKENS;
        const bool is_k = head < p.heads + p.kv_heads;
        const uint32_t kv_head = head - p.heads - (is_k ? 0 : p.kv_heads);

        if (head < p.heads || kv_slot < 0) return;
        T *record = (T *)(p.kv + layer * p.kv_layer_bytes) +
                    ((uint64_t)(kv_slot / KV_BLOCK_TOKENS) * p.kv_heads + kv_head) *
                        (2 * KV_BLOCK_TOKENS * D);
        record[is_k ? token * D + e
                    : KV_BLOCK_TOKENS * D + ((token / 8) * D + e) * 8 + token % 8] = v;
    }
    __device__ __forceinline__ void attn_in(uint32_t layer, const float2 (&turn)[OUTS],
                                            const int32_t (&kv_slot)[OUTS])
    {
        const struct slice &w = p.w[ATTN_IN];

        split_product(w, at<T>(p.at.xs));
#pragma unroll
        for (int i = 0; i < OUTS; i++) {
            const uint32_t idx = t + i * CONSUMERS, m = idx / w.rows, n = idx % w.rows;
            if (i * CONSUMERS >= p.M * w.rows) break;
            float v = m < p.M ? warps_sum(w, m, n) * late_factor(m, 0) : 0.f;
            v += 0.f;
            const float partner = __shfl_xor_sync(~0u, v, 1);
            v = (n & 1) ? v * turn[i].x + partner * turn[i].y
                        : v * turn[i].x - partner * turn[i].y;
            const T out = from_float<T>(v);
            /* four columns to all blocks, by four lanes */
            uint16_t bits;
            memcpy(&bits, &out, 2);
            const uint32_t other = __shfl_xor_sync(~0u, (uint32_t)bits, 1);
            const uint32_t pair = lane & 1 ? other | (uint32_t)bits << 16 : bits | other << 16;
            const uint32_t beside = __shfl_xor_sync(~0u, pair, 2);
            if (m >= p.M) continue;
            const uint32_t n_all = rank * w.rows + n;
            const uint32_t dst =
                smem_addr(at<T>(p.at.qkv) + m * w.rows * CTAS + (n_all & ~3u));
#pragma unroll
            for (uint32_t k = 0; k < 4; k++)
                cluster_send8(dst, bar(QKV_ROWS), (lane & 3) * 4 + k, lane & 2 ? beside : pair,
                              lane & 2 ? pair : beside);
            write_page(layer, n_all, kv_slot[i], out);
        }
    }

    /* --- attention --- */

    __device__ __forceinline__ void load_blocks(const struct row &row, int g, int &k_block,
                                                int &v_block) const
    {
        const int last = row.pos / KV_BLOCK_TOKENS;
        k_block = row.table[min((int)(g * 32 + (r >> 1) * 8) / KV_BLOCK_TOKENS, last)];
        v_block = row.table[min((int)(g * 32 + q * 8) / KV_BLOCK_TOKENS, last)];
    }
    __device__ __forceinline__ void load_group(kv_group<T> &g, uint32_t layer, uint32_t head,
                                               int k_block, int v_block) const
    {
        constexpr uint64_t RECORD = 2ull * KV_BLOCK_TOKENS * D;
        const T *pool = (const T *)(p.kv + layer * p.kv_layer_bytes);
        const T *kp = pool + ((uint64_t)k_block * p.kv_heads + head) * RECORD +
                      ((r >> 1) * 8 % KV_BLOCK_TOKENS + (r & 1)) * D + q * 8;
        const T *vp = pool + ((uint64_t)v_block * p.kv_heads + head) * RECORD +
                      KV_BLOCK_TOKENS * D + ((q & 1) * D + r) * 8;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                g.k[i][j] = load_stream_coherent(kp + ((i >> 1) * 4 + (i & 1) * 2) * D + j * 32);
#pragma unroll
        for (int i = 0; i < 8; i++)
            g.v[i] = load_stream_coherent(vp + i * 64);
    }
    /* The newest token, whose page another block may still be writing. */
    __device__ __forceinline__ void put_newest(kv_group<T> &g, const T *qkv, uint32_t head,
                                               int token) const
    {
        const T *k = qkv + (p.heads + head) * D + q * 8, *v = qkv + (p.heads + p.kv_heads + head) * D;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (token == (int)((r >> 1) * 8 + (r & 1)) + i * 2) {
                g.k[i][0] = *(const uint4 *)k;
                g.k[i][1] = *(const uint4 *)(k + 32);
            }
        uint32_t mask[4]; /* of its 16 bits in a lane's 8 tokens of one dim */
#pragma unroll
        for (int word = 0; word < 4; word++)
            mask[word] = token / 2 != (int)q * 4 + word ? 0 : token & 1 ? 0xffff0000u : 0xffffu;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint16_t bits;
            memcpy(&bits, v + i * 8 + r, 2);
            const uint32_t both = bits | (uint32_t)bits << 16;
            g.v[i].x = (g.v[i].x & ~mask[0]) | (both & mask[0]);
            g.v[i].y = (g.v[i].y & ~mask[1]) | (both & mask[1]);
            g.v[i].z = (g.v[i].z & ~mask[2]) | (both & mask[2]);
            g.v[i].w = (g.v[i].w & ~mask[3]) | (both & mask[3]);
        }
    }

    struct state {
        float o[8][2], m, l;
    };
    __device__ __forceinline__ void attend_group(state &a, kv_group<T> &g, const uint32_t (&Q)[4][2],
                                                 int tb, int pos) const
    {
        const float to_log2 = p.scale * LOG2E;
        float s[4][2]; /* token tb + q*8 + i*2 + e */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float c0 = 0.f, c1 = 0.f;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                mma_top<T>(c0, c1, Q[2 * j][0], Q[2 * j][1], g.k[i][j].x, g.k[i][j].y);
                mma_top<T>(c0, c1, Q[2 * j + 1][0], Q[2 * j + 1][1], g.k[i][j].z, g.k[i][j].w);
            }
            s[i][0] = c0, s[i][1] = c1;
        }
        if (tb + 31 > pos) {
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const bool out = tb + (int)q * 8 + i * 2 + e > pos;
                    if (out) s[i][e] = MASKED;
                    /* 0 * NaN: what lies past the end must not reach the sum */
                    const uint32_t keep = out ? (e ? 0x0000ffffu : 0xffff0000u) : ~0u;
#pragma unroll
                    for (int d = 0; d < 8; d++)
                        (&g.v[d].x)[i] &= keep;
                }
        }
        float mx = MASKED;
#pragma unroll
        for (int i = 0; i < 4; i++)
            mx = fmaxf(mx, fmaxf(s[i][0], s[i][1]));
        mx = lanes_max<4>(mx) * to_log2;
        const float m_new = fmaxf(a.m, mx);
        if (__any_sync(~0u, m_new > a.m)) {
            const float alpha = exp2_fast(a.m - m_new);
            a.l *= alpha;
#pragma unroll
            for (int d = 0; d < 8; d++)
                a.o[d][0] *= alpha, a.o[d][1] *= alpha;
            a.m = m_new;
        }
        uint32_t A[2][2];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float p0 = exp2_fast(s[i][0] * to_log2 - a.m),
                        p1 = exp2_fast(s[i][1] * to_log2 - a.m);
            a.l += p0 + p1;
            A[i >> 1][i & 1] = pack2<T>(p0, p1);
        }
#pragma unroll
        for (int d = 0; d < 8; d++) {
            mma_top<T>(a.o[d][0], a.o[d][1], A[0][0], A[0][1], g.v[d].x, g.v[d].y);
            mma_top<T>(a.o[d][0], a.o[d][1], A[1][0], A[1][1], g.v[d].z, g.v[d].w);
        }
    }
    /* The four warps' states of a part are merged and sent to the blocks that own its columns. */
    __device__ __forceinline__ void send_part(const state &a, int quad, uint32_t m, uint32_t split,
                                              uint32_t kv_head)
    {
        const uint32_t group = p.heads / p.kv_heads, columns = p.heads * D / CTAS, w4 = warp & 3;
        float *o = at<float>(p.at.scratch) + quad * (4 * group * (D + 4) + 64);
        float *om = o + 4 * group * (D + 4), *ol = om + 32;

        if (r < group)
#pragma unroll
            for (int d = 0; d < 8; d++)
                *(float2 *)&o[(w4 * group + r) * (D + 4) + d * 8 + 2 * q] =
                    make_float2(a.o[d][0], a.o[d][1]);
        if (q == 0) om[w4 * 8 + r] = a.m, ol[w4 * 8 + r] = a.l;
        quad_sync(quad);
        for (uint32_t e = t % 128; e < group * (D / 4); e += 128) {
            const uint32_t h = e / (D / 4), d = e % (D / 4) * 4;
            const float M = fmaxf(fmaxf(om[h], om[8 + h]), fmaxf(om[16 + h], om[24 + h]));
            float4 acc = make_float4(0.f, 0.f, 0.f, 0.f);
            float L = 0.f;
#pragma unroll
            for (int w = 0; w < 4; w++) {
                const float f = exp2_fast(om[w * 8 + h] - M);
                const float4 x = *(const float4 *)&o[(w * group + h) * (D + 4) + d];
                acc.x += f * x.x, acc.y += f * x.y, acc.z += f * x.z, acc.w += f * x.w;
                L += f * ol[w * 8 + h];
            }
            const uint32_t head = kv_head * group + h, column = head * D + d,
                           owner = column / columns;
            float *to = at<float>(p.at.parts) + (m * p.splits_max + split) * part_floats(columns);
            cluster_send16(smem_addr(to + (column - owner * columns)), bar(PARTS), owner,
                           make_uint4(__float_as_uint(acc.x), __float_as_uint(acc.y),
                                      __float_as_uint(acc.z), __float_as_uint(acc.w)));
            if (d == 0)
                for (uint32_t b = owner; b <= (column + D - 1) / columns; b++)
                    cluster_send8(smem_addr(to + columns + (head - b * columns / D) * 2),
                                  bar(PARTS), b, __float_as_uint(M), __float_as_uint(L));
        }
    }
    __device__ __forceinline__ void attention(uint32_t layer)
    {
        const uint32_t group = p.heads / p.kv_heads, w4 = warp & 3;
        const int quad = warp >> 2;
        unit_list units(p, s.rows, rank);
        uint32_t m, split, head, count = 0;
        kv_group<T> g;
        bool awaited = false;

        while (units.next(m, split, head)) {
            if (count++ % QUADS != (uint32_t)quad) continue;
            const struct row row = s.rows[m];
            const int end = min(row.groups, (int)(split + 1) * row.per);
            int at_group = split * row.per + w4, k_block = 0, v_block = 0;
            if (at_group < end) {
                load_blocks(row, at_group, k_block, v_block);
                load_group(g, layer, head, k_block, v_block);
            }
            if (!awaited)
                mbarrier_wait_cluster(&s.come[QKV_ROWS], layer & 1);
            else
                quad_sync(quad); /* the part before has been sent */
            awaited = true;
            const T *qkv = at<T>(p.at.qkv) + m * p.w[ATTN_IN].rows * CTAS;
            uint32_t Q[4][2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint4 v = make_uint4(0, 0, 0, 0);
                if (r < group)
                    v = *(const uint4 *)(qkv + (head * group + r) * D + j * 32 + q * 8);
                Q[2 * j][0] = v.x, Q[2 * j][1] = v.y, Q[2 * j + 1][0] = v.z, Q[2 * j + 1][1] = v.w;
            }
            state a;
            a.m = MASKED, a.l = 0.f;
#pragma unroll
            for (int d = 0; d < 8; d++)
                a.o[d][0] = a.o[d][1] = 0.f;
            for (bool first = true; at_group < end; at_group += 4, first = false) {
                if (!first) load_group(g, layer, head, k_block, v_block);
                if (at_group + 4 < end) load_blocks(row, at_group + 4, k_block, v_block);
                if (row.pos / 32 == at_group) put_newest(g, qkv, head, row.pos % 32);
                attend_group(a, g, Q, at_group * 32, row.pos);
            }
            a.l = lanes_sum<4>(a.l);
            send_part(a, quad, m, split, head);
        }
        await(QKV_ROWS, layer & 1);
    }
    __device__ __forceinline__ bool any_row() const
    {
        for (uint32_t m = 0; m < p.M; m++)
            if (s.rows[m].pos >= 0) return true;
        return false;
    }

    /* --- the sum of the parts, in order, of this block's columns --- */

    __device__ __forceinline__ uint32_t first_head() const
    {
        return rank * (p.heads * D / CTAS) / D;
    }
    __device__ __forceinline__ uint32_t last_head() const
    {
        return ((rank + 1) * (p.heads * D / CTAS) - 1) / D;
    }
    __device__ __forceinline__ void merge_parts(uint32_t layer)
    {
        const uint32_t columns = p.heads * D / CTAS, heads = last_head() - first_head() + 1;

        if (!any_row()) return; /* an exchange of no bytes would be over before it is waited for */
        await(PARTS, layer & 1);
        for (uint32_t u = warp; u < p.M * heads; u += WARPS) {
            const uint32_t m = u / heads, lh = u % heads, head = first_head() + lh;
            if (s.rows[m].pos < 0) continue;
            const uint32_t splits = s.rows[m].splits, size = part_floats(columns);
            const uint32_t begin = max(head * D, rank * columns),
                           end = min((head + 1) * D, (rank + 1) * columns);
            const float *parts = at<float>(p.at.parts) + m * p.splits_max * size;
            float2 ml = make_float2(MASKED, 0.f);
            if (lane < splits) ml = *(const float2 *)(parts + lane * size + columns + lh * 2);
            const float M = lanes_max<32>(ml.x);
            const float f = exp2_fast(ml.x - M);
            const float L = lanes_sum<32>(lane < splits ? f * ml.y : 0.f);
            const uint32_t packets = (end - begin) / 4;
            const float *from = parts + (begin - rank * columns) + min(lane, packets - 1) * 4;
            float4 acc = make_float4(0.f, 0.f, 0.f, 0.f);
            uint2 out;
            if (splits == 1) {
                acc = *(const float4 *)from;
                out = make_uint2(pack2<T>(acc.x / L, acc.y / L), pack2<T>(acc.z / L, acc.w / L));
            } else {
#pragma unroll 4
                for (uint32_t i = 0; i < splits; i++) {
                    const float4 x = *(const float4 *)(from + i * size);
                    const float w = __shfl_sync(~0u, f, i);
                    acc.x += w * x.x, acc.y += w * x.y, acc.z += w * x.z, acc.w += w * x.w;
                }
                const float inv = 1.f / L;
                out = make_uint2(pack2<T>(acc.x * inv, acc.y * inv),
                                 pack2<T>(acc.z * inv, acc.w * inv));
            }
            for (uint32_t i = lane; i < (packets * CTAS + 31) / 32 * 32; i += 32) {
                const uint32_t packet = i % packets;
                const uint32_t a = __shfl_sync(~0u, out.x, packet),
                               b = __shfl_sync(~0u, out.y, packet);
                if (i < packets * CTAS)
                    cluster_send8(smem_addr(at<T>(p.at.xs) + x_place(begin + packet * 4, m, p.M)),
                                  bar(ATTENDED), i / packets, a, b);
            }
        }
        await(ATTENDED, layer & 1);
    }

    /* --- products onto x; x: this thread's output, t = m * rows + n --- */

    __device__ __forceinline__ void add_product(const struct slice &w, const T *xs, float &x,
                                                bool last)
    {
        const uint32_t m = t / w.rows, n = t % w.rows, column = rank * w.rows + n;

        split_product(w, xs);
        if (warp * 32 >= p.M * w.rows) return;
        if (m < p.M) {
            float v = warps_sum(w, m, n);
            v += 0.f + x;
            x = v;
        }
        if (last) {
            if (m < p.M) p.x[m * p.x_stride + column] = x;
            return;
        }
        uint4 four;
        const int group = lane & ~3;
        four.x = __float_as_uint(__shfl_sync(~0u, x, group));
        four.y = __float_as_uint(__shfl_sync(~0u, x, group + 1));
        four.z = __float_as_uint(__shfl_sync(~0u, x, group + 2));
        four.w = __float_as_uint(__shfl_sync(~0u, x, group + 3));
        if (m >= p.M) return;
        const uint32_t dst = smem_addr(at<float>(p.at.x) + m * p.hidden + (column & ~3u));
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            cluster_send16(dst, bar(X_ROWS), (lane & 3) * 4 + k, four);
    }

    /* --- gate and up: rows 2i, 2i + 1; a warp has whole tiles --- */

    __device__ __forceinline__ void ffn_in()
    {
        const struct slice &w = p.w[FFN_IN];
        const uint32_t slot0 = slot, phase0 = phase;
        const T *xs = at<T>(p.at.xs);
        T *mine = at<T>(p.at.act_out) + warp * p.M * 8;
        const float factor[2] = {late_factor(2 * q, 1), late_factor(2 * q + 1, 1)};

        advance(warp);
        for (uint32_t tile = warp; tile < w.tiles; tile += WARPS, advance(WARPS)) {
            const unsigned char *a = ring + slot * p.stage_bytes;
            float v[4] = {};
            mbarrier_wait(&s.full[slot], phase);
#pragma unroll 3
            for (uint32_t kb = 0; kb < w.kblocks; kb++) {
                float c[4] = {};
                uint4 x[2];
                load_x(xs, kb, x);
                block_product(a + kb * w.tile * 128, w.tile, x, c);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    v[i] += c[i];
            }
            release(WARPS);
#pragma unroll
            for (int i = 0; i < 4; i++) { /* row r + (i / 2) * 8 of the tile, row 2q + i % 2 of x */
                const uint32_t m = 2 * q + (i & 1);
                float y = v[i] * factor[i & 1];
                y += 0.f;
                const float up = __shfl_xor_sync(~0u, y, 4);
                if ((r & 1) == 0 && m < p.M)
                    mine[m * 8 + (i >> 1) * 4 + r / 2] = from_float<T>(activate(y, p.act) * up);
            }
            __syncwarp();
            for (uint32_t i = lane; i < p.M * CTAS; i += 32) {
                const uint32_t m = i / CTAS, k = rank * (w.rows / 2) + tile * 8;
                cluster_send16(smem_addr(at<T>(p.at.acts) + x_place(k, m, p.M)), bar(ACTS),
                               i % CTAS, *(const uint4 *)(mine + m * 8));
            }
            __syncwarp();
        }
        slot = slot0, phase = phase0;
        advance(w.tiles);
    }

    __device__ __forceinline__ void run()
    {
        const struct slice &wq = p.w[ATTN_IN], &wo = p.w[ATTN_OUT];
        float2 turn[OUTS];
        int32_t kv_slot[OUTS];
        float x = 0.f;

#pragma unroll
        for (int i = 0; i < OUTS; i++) {
            const uint32_t idx = t + i * CONSUMERS, m = idx / wq.rows;
            const uint32_t n = rank * wq.rows + idx % wq.rows, e = n % D;
            turn[i] = make_float2(1.f, 0.f);
            kv_slot[i] = -1;
            if (m >= p.M) continue;
            kv_slot[i] = p.kv_slots[m];
            if (n < (p.heads + p.kv_heads) * D && e < p.rope_dim && s.rows[m].pos >= 0)
                turn[i] = p.rope[(uint64_t)s.rows[m].pos * (p.rope_dim / 2) + e / 2];
        }
        pdl_wait();
        if (t / wo.rows < p.M)
            x = ((volatile float *)
                     p.x)[t / wo.rows * p.x_stride + rank * wo.rows + t % wo.rows];
        for (uint32_t i = t; i < p.M * p.hidden / 4; i += CONSUMERS) {
            const uint32_t m = i / (p.hidden / 4), k = i % (p.hidden / 4) * 4;
            *(uint4 *)(at<float>(p.at.x) + m * p.hidden + k) =
                load_shared_state(p.x + m * p.x_stride + k);
        }
        consumers_sync();
        for (uint32_t layer = 0; layer < p.layers; layer++) {
            if (layer) await(X_ROWS, 1);
            norm(layer, 0);
            attn_in(layer, turn, kv_slot);
            attention(layer);
            merge_parts(layer);
            add_product(wo, at<T>(p.at.xs), x, false);
            await(X_ROWS, 0);
            norm(layer, 1);
            ffn_in();
            await(ACTS, layer & 1);
            add_product(p.w[FFN_OUT], at<T>(p.at.acts), x, layer + 1 == p.layers);
        }
    }
};

__device__ __forceinline__ struct row row_of(const params &p, uint32_t m)
{
    struct row row = {p.positions[m], 0, 0, 0, p.tables};

    if (row.pos < 0) return row;
    row.groups = row.pos / 32 + 1;
    row.table += (uint64_t)p.slots[m] * p.table_stride;
    row.splits = max(1, min((int)p.splits_max, (row.groups + 3) / 4));
    row.per = ((row.groups + row.splits - 1) / row.splits + 3) / 4 * 4;
    row.splits = (row.groups + row.per - 1) / row.per;
    return row;
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 1)
    chain_kernel(const __grid_constant__ maps maps, const __grid_constant__ params p)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ __align__(8) statics s;
    const uint32_t t = threadIdx.x, warp = t >> 5, lane = t & 31, rank = cluster_rank();
    unsigned char *own = shared + p.stages * p.stage_bytes;
    consumer<T> c = {p, s, shared, own, t, warp, lane, lane >> 2, lane & 3, rank, 0, 0};

    pdl_trigger();
    /* Positions and tables are those of the step: written before the kernel in front of this one began. */
    if (t < p.M) s.rows[t] = row_of(p, t);
    if (t == 0) {
        for (uint32_t i = 0; i < p.stages; i++) {
            mbarrier_init(&s.full[i], 1);
            mbarrier_init(&s.empty[i], WARPS);
        }
        for (int i = 0; i < EXCHANGES; i++)
            mbarrier_init(&s.come[i], 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (t == 0)
        for (int i = 0; i < EXCHANGES; i++)
            c.expect((exchange)i);
    __syncwarp();
    cluster_arrive(); /* nobody is sent anything before it is ready, */
    if (warp == WARPS) {
        produce(p, maps, shared, s, own, rank, lane);
        pdl_wait();
        cluster_wait();
    } else {
        cluster_wait();
        c.run();
    }
    __syncwarp();
    cluster_arrive(); /* and nobody leaves while another may send */
    cluster_wait();
}

/* --- host --- */

uint32_t round_up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

/* Stages are those of skinny_gemm: its sums are over the same blocks. */
struct slice slice_of(uint32_t N, uint32_t K)
{
    struct slice w = {};

    w.rows = N / CTAS;
    for (w.tile = 16; w.rows % w.tile; w.tile--)
        ;
    w.tiles = w.rows / w.tile;
    w.kblocks = K / 64;
    w.chunks = (w.kblocks + 15) / 16;
    w.blocks = (w.kblocks + w.chunks - 1) / w.chunks;
    return w;
}

uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

void plan_shape(const struct decode_chain_shape *s, uint32_t M, params *p)
{
    const uint32_t qkv = (s->heads + 2 * s->kv_heads) * D, heads = s->heads * D,
                   group = s->heads / s->kv_heads;
    uint32_t sums = 0, stages_of_layer = 0, at = 0;

    p->M = M, p->layers = s->layers, p->hidden = s->hidden, p->ffn = s->ffn;
    p->heads = s->heads, p->kv_heads = s->kv_heads, p->rope_dim = s->rope_dim;
    p->splits_max = s->splits_max;
    p->w[ATTN_IN] = slice_of(qkv, s->hidden);
    p->w[ATTN_OUT] = slice_of(s->hidden, heads);
    p->w[FFN_IN] = slice_of(2 * s->ffn, s->hidden);
    p->w[FFN_OUT] = slice_of(s->hidden, s->ffn);
    p->stage_bytes = 0;
    for (int i = 0; i < WEIGHTS; i++) {
        p->stage_bytes = max_u32(p->stage_bytes, round_up(p->w[i].tile * p->w[i].blocks * 128, 1024));
        stages_of_layer += p->w[i].tiles * p->w[i].chunks;
        if (i != FFN_IN) sums = max_u32(sums, p->w[i].blocks * M * p->w[i].rows * 4);
    }
    const auto take = [&at](uint32_t bytes) {
        const uint32_t from = at;
        at = round_up(at + bytes, 128);
        return from;
    };
    p->at.x = take(M * s->hidden * 4);
    p->at.gain = take(4 * s->hidden * 4);
    p->at.xs = take(M * max_u32(s->hidden, heads) * 2);
    p->at.scratch = take(max_u32(sums, QUADS * (4 * group * (D + 4) + 64) * 4));
    p->at.act_out = take(WARPS * M * 16);
    p->at.acts = p->at.qkv = take(M * qkv * 2); /* activations are there when these are not */
    p->at.parts = take(M * s->splits_max * part_floats(heads / CTAS) * 4);
    at = max_u32(at, p->at.acts + round_up(M * s->ffn * 2, 128));
    p->at.total = at;
    p->stages = at < SHARED_MAX ? (SHARED_MAX - at) / p->stage_bytes : 0;
    if (p->stages > RING_MAX) p->stages = RING_MAX;
    /* gains have room for two layers: the ring must not reach farther */
    if (p->stages >= stages_of_layer) p->stages = stages_of_layer - 1;
}

bool shape_fits(const struct decode_chain_shape *s)
{
    const uint32_t qkv = s->heads + 2 * s->kv_heads;
    params p = {};

    if (!s->layers || !s->hidden || !s->ffn || !s->kv_heads || s->heads % s->kv_heads) return false;
    if (s->head_dim != D || s->heads / s->kv_heads > GROUP_MAX || s->heads > 16) return false;
    if (s->rope_dim % 2 || s->rope_dim > D) return false;
    if (s->hidden % 64 || s->hidden > WARPS * 64 || s->ffn % 128 || qkv * D % (CTAS * 4)) return false;
    if (s->splits_max < 1 || s->splits_max > DECODE_CHAIN_SPLITS_MAX) return false;
    plan_shape(s, ROWS, &p);
    for (int i = 0; i < WEIGHTS; i++)
        if (p.w[i].blocks > WARPS) return false;
    return p.stages >= RING_MIN && p.w[FFN_IN].tile == 16 && p.w[FFN_IN].chunks == 1 &&
           ROWS * p.w[ATTN_IN].rows <= OUTS * CONSUMERS &&
           ROWS * p.w[ATTN_OUT].rows <= CONSUMERS && p.w[ATTN_OUT].rows % 4 == 0;
}

template <typename T> cudaError_t allow(uint32_t shared)
{
    cudaError_t e = cudaFuncSetAttribute(
        chain_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (!e)
        e = cudaFuncSetAttribute(chain_kernel<T>, cudaFuncAttributeNonPortableClusterSizeAllowed,
                                 1);
    return e;
}

uint32_t shared_of(const params &p)
{
    return p.stages * p.stage_bytes + p.at.total;
}

template <typename T> bool can_place(const struct decode_chain_shape *s)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute cluster;
    params p = {};
    int clusters = 0;

    plan_shape(s, 1, &p);
    if (allow<T>(SHARED_MAX)) return false;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = CTAS, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.gridDim = dim3(CTAS);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = shared_of(p);
    config.attrs = &cluster;
    config.numAttrs = 1;
    return !cudaOccupancyMaxActiveClusters(&clusters, chain_kernel<T>, &config) && clusters > 0;
}

template <typename T>
cudaError_t launch_chain(const struct kernel_context *ctx, const struct decode_chain_args *a)
{
    const struct decode_chain *chain = a->chain;
    struct maps maps;
    params p = {};

    if (a->rows < 1 || a->rows > ROWS || !shape_fits(&chain->shape)) return cudaErrorInvalidValue;
    plan_shape(&chain->shape, a->rows, &p);
    p.eps[0] = a->attn_eps, p.eps[1] = a->ffn_eps, p.scale = a->scale, p.act = a->act;
    p.x = a->x, p.x_stride = a->x_stride;
    p.gain[0] = chain->attn_gain, p.gain[1] = chain->ffn_gain, p.gain_stride = chain->gain_stride;
    p.kv = (char *)a->kv, p.kv_layer_bytes = a->kv_layer_bytes, p.rope = a->rope;
    p.positions = a->positions, p.kv_slots = a->kv_slots, p.slots = a->slots;
    p.tables = a->tables, p.table_stride = a->table_stride;
    memcpy(&maps, chain->maps, sizeof maps);
    cudaError_t e = allow<T>(SHARED_MAX);
    return e ? e
             : launch_clusters(ctx, chain_kernel<T>, dim3(CTAS), dim3(THREADS), shared_of(p), CTAS,
                               maps, p);
}

} // namespace

extern "C" bool decode_chain_fits(const struct kernel_context *ctx,
                                  const struct decode_chain_shape *shape)
{
    if (ctx->capability < 90 || !shape_fits(shape)) return false;
    DISPATCH(ctx, can_place<T>(shape));
}

extern "C" cudaError_t decode_chain_init(struct decode_chain *out,
                                         const struct decode_chain_shape *shape,
                                         const struct decode_chain_weights *weights,
                                         enum kernel_type type)
{
    const void *base[WEIGHTS] = {weights->attn_in, weights->attn_out, weights->ffn_in,
                                 weights->ffn_out};
    params p = {};

    if (!shape_fits(shape) || weights->stride % 16) return cudaErrorInvalidValue;
    plan_shape(shape, 1, &p);
    *out = {};
    out->shape = *shape;
    out->attn_gain = (const char *)weights->attn_gain;
    out->ffn_gain = (const char *)weights->ffn_gain;
    out->gain_stride = weights->stride;
    for (int i = 0; i < WEIGHTS; i++) {
        const struct slice &w = p.w[i];
        const uint64_t dims[4] = {64, (uint64_t)w.rows * CTAS, w.kblocks, shape->layers};
        const uint64_t strides[3] = {(uint64_t)w.kblocks * 128, 128,
                                     shape->layers > 1 ? weights->stride : 16};
        const uint32_t box[4] = {64, w.tile, w.blocks, 1};
        CUtensorMap map;
        cudaError_t e = tensor_map_4d(&map, type, base[i], dims, strides, box);
        if (e) return e;
        memcpy(out->maps[i], &map, sizeof map);
    }
    return cudaSuccess;
}

extern "C" cudaError_t decode_chain_run(const struct kernel_context *ctx,
                                    const struct decode_chain_args *args)
{
    DISPATCH(ctx, launch_chain<T>(ctx, args));
}
