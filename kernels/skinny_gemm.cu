/* skinny_gemm.cu - few rows against a whole weight: bound by the reading of W.
 *   y[m, n] = sum_k x[m, k] W[n, k]     M 1..16, W [N, K] row-major, K % 64 == 0
 *
 * Roles    Weights are the A operand (16 rows), rows of x the 8 columns of mma.m16n8k16: one path for M = 1..8, two
 *          column tiles (NT = 2) to 16. The mma's k is only a label: a lane takes 16 contiguous bytes of a weight row,
 *          and x is laid out to match, so weights need no ldmatrix and no shuffle.
 * Ring     One producer thread fills stages of 16 rows x (blocks x 64) columns by TMA, evict-first, 128-byte swizzle;
 *          it starts before pdl_wait(), so the weights of this kernel stream in while the previous one ends. 16
 *          consumer warps each take the 64-column block of their number out of every stage and keep their sums in
 *          registers; at the end of a tile the warps' sums are added in order through shared memory.
 * Input    x is brought to shared memory once per block (normalised, in mma order) where it fits; else each warp
 *          loads its pieces from L2 for every tile. What the epilogue needs of the step (bias, rotation, pages) is
 *          fetched before pdl_wait().
 * Launch   persistent, min(SMs, N / 16) blocks of 17 warps, one per SM.
 * Floor    N*K*2 bytes.
 * Measured H200, November 2026, cold, chained in a graph, M = 1, share of the same run's read rate (4,530 GB/s): 6144x4096
 *          14.2 us 0.78; 4096x4096 9.7 us 0.76; 28672x4096 54.4 us 0.95; 4096x14336 28.2 us 0.92; 128256x4096 232 us
 *          1.00; by `bench kernels`. */
#include "common/activation.cuh"
#include "common/launch.cuh"
#include "common/tensor_map.h"
#include "kv_layout.h"
#include "skinny_gemm.h"

namespace
{

constexpr int WARPS = 16, THREADS = WARPS * 32 + 32, BLOCK_BYTES = 2048;
constexpr uint32_t FEW_ROWS = 4;   /* whose staging is one round of loads as it is */
constexpr uint32_t SHORT_K = 2048; /* tiles of one or two stages: x of 8 such rows always fits */
constexpr uint32_t SHARED_MAX = 227 * 1024;
constexpr uint32_t RING_MIN = 2, RING_MAX = 6, RING_BYTES = 128 * 1024;

struct params {
    uint32_t M, N, K, blocks, stages;
    const void *x;
    uint64_t x_stride;
    uint32_t x_cols;
    const int32_t *row_index;
    const float *norm_gain;
    float norm_eps;
    const float *bias;
    int epilogue, act;
    float scale, softcap;
    void *y;
    uint64_t y_stride;
    struct skinny_qkv qkv;
};

/* Sums of all warps for RT tiles, twice, so that the next tiles may start while the last are written out. */
template <int NT, int RT> struct reduce_buffer {
    float sum[2][RT][WARPS][NT * 8][17];
    float row_ss[NT * 8][WARPS], factor[NT * 8];
};

/* Where element k of row m of x lies in shared memory: lane (r = m % 8, q) of the mma wants columns q*16 + j*8 .. +7
 * of a block of 64 as one 16-byte read. */
__device__ __forceinline__ uint32_t x_place(uint32_t k, uint32_t m, uint32_t M)
{
    const uint32_t kb = k >> 6, q = (k >> 4) & 3, j = (k >> 3) & 1;
    return (((kb * 2 + j) * M + m) * 4 + q) * 8 + (k & 7);
}

/* x -> shared memory; four rows and two pieces are in flight at once. */
template <typename T> __device__ __forceinline__ void stage_plain(const params &p, T *xs)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (uint32_t m0 = 0; m0 < p.M; m0 += 4)
        for (uint32_t k0 = warp * 256 + lane * 8; k0 < p.K; k0 += WARPS * 256 * 2) {
            uint4 v[2][4];
#pragma unroll
            for (int b = 0; b < 2; b++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (m0 + i < p.M && k0 + b * WARPS * 256 < p.K) {
                        const uint64_t row = p.row_index ? p.row_index[m0 + i] : m0 + i;
                        v[b][i] = load_shared_state((const T *)p.x + row * p.x_stride + k0 +
                                                    b * WARPS * 256);
                    }
#pragma unroll
            for (int b = 0; b < 2; b++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (m0 + i < p.M && k0 + b * WARPS * 256 < p.K)
                        *(uint4 *)(xs + x_place(k0 + b * WARPS * 256, m0 + i, p.M)) = v[b][i];
        }
}

/* The same for more rows: pieces of 256 columns of a row are dealt to all warps, eight in flight each. */
template <typename T> __device__ __forceinline__ void stage_plain_many(const params &p, T *xs)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, pieces = (p.K + 255) / 256;
    const uint32_t units = p.M * pieces; /* of 256 columns of a row */
    uint32_t m = 0, piece = warp;
    for (uint32_t u = warp; u < units;) {
        uint4 v[8];
        uint32_t to[8];
#pragma unroll
        for (int i = 0; i < 8; i++, u += WARPS, piece += WARPS) {
            to[i] = ~0u;
            if (u >= units) continue;
            while (piece >= pieces)
                piece -= pieces, m++;
            const uint32_t k = piece * 256 + lane * 8;
            if (k >= p.K) continue;
            to[i] = x_place(k, m, p.M);
            v[i] = load_shared_state((const T *)p.x +
                                     (uint64_t)(p.row_index ? p.row_index[m] : m) * p.x_stride + k);
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (to[i] != ~0u) *(uint4 *)(xs + to[i]) = v[i];
    }
}

/* One pass over x: sums of squares to row_ss, and T(x * gain * factor[m]) to shared memory where WRITE. Warp w takes columns
 * [w*128, w*128 + 128), then 16 * 128 further on, of every row, so that the sum of squares is added in an order that only K
 * decides. Four rows and two pieces are in flight at once. */
template <typename T, bool SUM, bool WRITE>
__device__ __forceinline__ void stage_norm_pass(const params &p, T *xs, float (*row_ss)[WARPS],
                                                const float *factor)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (uint32_t m0 = 0; m0 < p.M; m0 += 4) {
        float ss[4] = {};
        for (uint32_t k0 = warp * 128 + lane * 4; k0 < p.K; k0 += WARPS * 128 * 2) {
            uint4 v[2][4];
            float4 g[2];
#pragma unroll
            for (int b = 0; b < 2; b++)
                if (k0 + b * WARPS * 128 < p.K) {
                    g[b] = __ldg((const float4 *)(p.norm_gain + k0 + b * WARPS * 128));
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (m0 + i < p.M) {
                            const uint64_t row = p.row_index ? p.row_index[m0 + i] : m0 + i;
                            v[b][i] = load_shared_state((const float *)p.x + row * p.x_stride + k0 +
                                                        b * WARPS * 128);
                        }
                }
#pragma unroll
            for (int b = 0; b < 2; b++)
                if (k0 + b * WARPS * 128 < p.K) {
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (m0 + i < p.M) {
                            const float x = __uint_as_float(v[b][i].x),
                                        y = __uint_as_float(v[b][i].y),
                                        z = __uint_as_float(v[b][i].z),
                                        w = __uint_as_float(v[b][i].w);
                            if (SUM) ss[i] += squares_sum(x, y, z, w);
                            if (WRITE) {
                                const float f = factor ? factor[m0 + i] : 1.f;
                                uint2 o = {pack2<T>(x * f * g[b].x, y * f * g[b].y),
                                           pack2<T>(z * f * g[b].z, w * f * g[b].w)};
                                *(uint2 *)(xs + x_place(k0 + b * WARPS * 128, m0 + i, p.M)) = o;
                            }
                        }
                }
        }
        if (SUM)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (m0 + i < p.M) {
                    const float s = lanes_sum<32>(ss[i]);
                    if (lane == 0) row_ss[m0 + i][warp] = s;
                }
    }
}

__device__ __forceinline__ float row_factor(const params &p, const float *ss)
{
    float s = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        s += ss[w];
    return rsqrtf(s / (float)p.x_cols + p.norm_eps);
}

/* The same where a row has no more pieces of 128 columns than there are warps: (row, piece) pairs are dealt to all of them,
 * four in flight each. Sums of squares of the same pieces, so of the same bits. */
template <typename T, bool SUM, bool WRITE>
__device__ __forceinline__ void stage_norm_short(const params &p, T *xs, float (*row_ss)[WARPS],
                                                 const float *factor)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, pieces = (p.K + 127) / 128;
    const uint32_t units = p.M * pieces;

    if (SUM)
        for (uint32_t i = threadIdx.x; i < p.M * WARPS; i += WARPS * 32)
            if (i % WARPS >= pieces) row_ss[i / WARPS][i % WARPS] = 0.f;
    uint32_t m_next = 0, piece_next = warp;
    for (uint32_t u = warp; u < units;) {
        uint4 v[4];
        uint32_t row[4], piece[4];
#pragma unroll
        for (int i = 0; i < 4; i++, u += WARPS, piece_next += WARPS) {
            row[i] = p.M, piece[i] = 0;
            v[i] = make_uint4(0, 0, 0, 0);
            if (u >= units) continue;
            while (piece_next >= pieces)
                piece_next -= pieces, m_next++;
            const uint32_t m = m_next, k = piece_next * 128 + lane * 4;
            row[i] = m, piece[i] = piece_next;
            if (k < p.K)
                v[i] = load_shared_state((const float *)p.x +
                                         (uint64_t)(p.row_index ? p.row_index[m] : m) * p.x_stride +
                                         k);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t m = row[i], k = piece[i] * 128 + lane * 4;
            if (m >= p.M) break;
            const float x = __uint_as_float(v[i].x), y = __uint_as_float(v[i].y),
                        z = __uint_as_float(v[i].z), w = __uint_as_float(v[i].w);
            if (SUM) {
                const float ss = lanes_sum<32>(squares_sum(x, y, z, w));
                if (lane == 0) row_ss[m][piece[i]] = ss;
            }
            if (WRITE && k < p.K) {
                const float4 g = __ldg((const float4 *)(p.norm_gain + k));
                const float f = factor ? factor[m] : 1.f;
                *(uint2 *)(xs + x_place(k, m, p.M)) = {pack2<T>(x * f * g.x, y * f * g.y),
                                                       pack2<T>(z * f * g.z, w * f * g.w)};
            }
        }
    }
}

template <typename T, bool SUM, bool WRITE>
__device__ __forceinline__ void stage_norm(const params &p, T *xs, float (*row_ss)[WARPS],
                                           const float *factor)
{
    if (p.M > FEW_ROWS && p.K <= WARPS * 128)
        stage_norm_short<T, SUM, WRITE>(p, xs, row_ss, factor);
    else
        stage_norm_pass<T, SUM, WRITE>(p, xs, row_ss, factor);
}

/* bf16 keeps its precision at any scale, so 1 / rms waits for the epilogue and x is read once. f16 has a narrow range: a
 * second pass writes the normalised values. */
template <typename T>
__device__ __forceinline__ void stage_x(const params &p, T *xs, float (*row_ss)[WARPS],
                                        float *factor)
{
    if (!p.norm_gain) {
        if (p.M > FEW_ROWS)
            stage_plain_many<T>(p, xs);
        else
            stage_plain<T>(p, xs);
    } else if (sizeof(T) == 2 && is_bf16<T>()) {
        stage_norm<T, true, true>(p, xs, row_ss, NULL);
    } else {
        stage_norm<T, true, false>(p, xs, row_ss, NULL);
        asm volatile("bar.sync 1, %0;" ::"n"(WARPS * 32) : "memory");
        if (threadIdx.x < p.M) factor[threadIdx.x] = row_factor(p, row_ss[threadIdx.x]);
        asm volatile("bar.sync 1, %0;" ::"n"(WARPS * 32) : "memory");
        stage_norm<T, false, true>(p, xs, row_ss, factor);
    }
    asm volatile("bar.sync 1, %0;" ::"n"(WARPS * 32) : "memory");
}

/* What the epilogue of an output reads, fetched when its tile begins; that of the first before the kernel before has ended:
 * positions and slots are those of the step. The residual is fetched apart. */
struct extras {
    float bias;
    float2 turn;  /* cos, sin; (1, 0): none */
    int32_t slot; /* of the KV pages */
};

__device__ __forceinline__ extras fetch_extras(const params &p, uint32_t m, uint32_t n)
{
    extras x = {0.f, {1.f, 0.f}, -1};

    if (m >= p.M || n >= p.N) return x;
    if (p.bias) x.bias = p.bias[n];
    if (p.epilogue == SKINNY_QKV) {
        const struct skinny_qkv &a = p.qkv;
        const uint32_t e = n % a.head_dim;
        const int32_t pos = __ldcg(a.positions + m);
        x.slot = __ldcg(a.kv_slots + m);
        if (n < (a.heads + a.kv_heads) * a.head_dim && e < a.rope_dim && pos >= 0)
            x.turn = a.rope[(uint64_t)pos * (a.rope_dim / 2) + e / 2];
    }
    return x;
}

/* One output: `v` is y[m, n], `partner` y[m, n ^ 1]. All 16 threads of a row of the tile call it. */
template <typename T>
__device__ __forceinline__ void write_qkv(const params &p, uint32_t m, uint32_t n, float v,
                                          float partner, const extras &x)
{
    const struct skinny_qkv &a = p.qkv;
    const uint32_t D = a.head_dim, q_rows = a.heads * D, k_rows = a.kv_heads * D;
    const uint32_t head = n / D, e = n % D;

    v = products_sum(v, x.turn.x, partner, e & 1 ? x.turn.y : -x.turn.y);
    if (n < q_rows) {
        ((T *)p.y)[m * p.y_stride + n] = from_float<T>(v);
        return;
    }
    const int32_t slot = x.slot;
    if (slot < 0) return;
    const bool is_k = n < q_rows + k_rows;
    const uint32_t kv_head = is_k ? head - a.heads : head - a.heads - a.kv_heads;
    const uint32_t token = slot % KV_BLOCK_TOKENS;
    T *record = (T *)a.kv + ((uint64_t)(slot / KV_BLOCK_TOKENS) * a.kv_heads + kv_head) *
                                (2 * KV_BLOCK_TOKENS * D);
    if (is_k)
        record[token * D + e] = from_float<T>(v);
    else
        record[KV_BLOCK_TOKENS * D + ((token / 8) * D + e) * 8 + token % 8] = from_float<T>(v);
}

template <typename T>
__device__ __forceinline__ void write_out(const params &p, uint32_t m, uint32_t n, float v,
                                          float residual, const extras &x)
{
    const bool valid = m < p.M && n < p.N;
    v += x.bias + residual;
    const float partner = __shfl_xor_sync(~0u, v, 1);
    if (!valid) return;
    switch (p.epilogue) {
    case SKINNY_STORE: ((T *)p.y)[m * p.y_stride + n] = from_float<T>(v); break;
    case SKINNY_LOGITS:
        v *= p.scale;
        if (p.softcap > 0.f) v = p.softcap * tanhf(v / p.softcap);
        ((float *)p.y)[m * p.y_stride + n] = v;
        break;
    case SKINNY_RESIDUAL: ((float *)p.y)[m * p.y_stride + n] = v; break;
    case SKINNY_GLU:
        if ((n & 1) == 0)
            ((T *)p.y)[m * p.y_stride + n / 2] = from_float<T>(activate(v, p.act) * partner);
        break;
    default: write_qkv<T>(p, m, n, v, partner, x);
    }
}

/* RT: tiles between two reductions; 2 where a tile is so short that its barrier would be what it costs. */
template <typename T, int NT, int RT, bool STAGED>
__global__ void __launch_bounds__(THREADS, 1)
    skinny_kernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ params p)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ __align__(8) uint64_t full[RING_MAX], empty[RING_MAX];
    const uint32_t t = threadIdx.x, warp = t >> 5, lane = t & 31, r = lane >> 2, q = lane & 3;
    const uint32_t tiles = (p.N + 15) / 16, kblocks = p.K / 64;
    const uint32_t per_tile = (kblocks + p.blocks - 1) / p.blocks; /* stages per tile */
    const uint32_t stage_bytes = p.blocks * BLOCK_BYTES;
    unsigned char *ring = shared;
    auto *red = (reduce_buffer<NT, RT> *)(shared + p.stages * stage_bytes);
    T *xs = (T *)((unsigned char *)red + (sizeof(reduce_buffer<NT, RT>) + 15) / 16 * 16);

    pdl_trigger();
    if (t == 0) {
        for (uint32_t s = 0; s < p.stages; s++) {
            mbarrier_init(&full[s], 1);
            mbarrier_init(&empty[s], WARPS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();

    if (warp == WARPS) { /* the producer: weights depend on nobody */
        if (lane == 0) {
            uint32_t s = 0, phase = 1;
            for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x)
                for (uint32_t c = 0; c < per_tile; c++) {
                    mbarrier_wait(&empty[s], phase);
                    mbarrier_expect(&full[s], stage_bytes);
                    tma_load_3d(ring + s * stage_bytes, &map, &full[s], 0, tile * 16, c * p.blocks);
                    if (++s == p.stages) {
                        s = 0;
                        phase ^= 1;
                    }
                }
        }
        pdl_wait();
        return;
    }

    /* the output of a tile that this thread writes, once the warps' sums are there */
    const uint32_t my_rt = t / (128 * NT), my_m = t % (128 * NT) / 16, my_n = t % 16;
    uint32_t my_tile = blockIdx.x + my_rt * gridDim.x;
    extras more;
    if (my_rt < RT && my_tile < tiles) more = fetch_extras(p, my_m, my_tile * 16 + my_n);
    pdl_wait();
    if (STAGED) stage_x<T>(p, xs, red->row_ss, red->factor);
    const bool late_norm = STAGED && is_bf16<T>() && p.norm_gain;
    const float norm_factor =
        late_norm && t < 128 * NT * RT && my_m < p.M ? row_factor(p, red->row_ss[my_m]) : 1.f;

    uint32_t s = 0, phase = 0, buffer = 0;
    for (uint32_t first = blockIdx.x; first < tiles; first += gridDim.x * RT) {
        my_tile = first + my_rt * gridDim.x;
        const bool my_output = my_rt < RT && my_tile < tiles;
        if (my_output && first != blockIdx.x) more = fetch_extras(p, my_m, my_tile * 16 + my_n);
        float residual = 0.f;
        if (my_output && p.epilogue == SKINNY_RESIDUAL && my_m < p.M && my_tile * 16 + my_n < p.N)
            residual = ((volatile float *)p.y)[my_m * p.y_stride + my_tile * 16 + my_n];
#pragma unroll
        for (int rt = 0; rt < RT; rt++) {
            if (first + rt * gridDim.x >= tiles) break;
            float c[NT][4] = {};
            for (uint32_t chunk = 0; chunk < per_tile; chunk++) {
                const uint32_t kb = chunk * p.blocks + warp;
                const bool mine = warp < p.blocks && kb < kblocks;
                uint4 x[NT][2];
                if (mine) {
#pragma unroll
                    for (int i = 0; i < NT; i++)
#pragma unroll
                        for (int j = 0; j < 2; j++) {
                            const uint32_t m = i * 8 + r;
                            x[i][j] = make_uint4(0, 0, 0, 0);
                            if (m >= p.M) continue;
                            if (STAGED)
                                x[i][j] =
                                    *(const uint4 *)(xs + (((kb * 2 + j) * p.M + m) * 4 + q) * 8);
                            else
                                x[i][j] = load_shared_state((const T *)p.x + m * p.x_stride +
                                                            kb * 64 + q * 16 + j * 8);
                        }
                }
                mbarrier_wait(&full[s], phase);
                if (mine) {
                    const unsigned char *a = ring + s * stage_bytes + warp * BLOCK_BYTES;
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        /* The swizzle stores 16-byte piece u of row r at u ^ (r % 8); pieces q*2 + j of two
                     * neighbouring rows then fill all banks. */
                        const uint32_t u = ((q * 2 + j) ^ r) * 16;
                        const uint4 lo = *(const uint4 *)(a + r * 128 + u);
                        const uint4 hi = *(const uint4 *)(a + (r + 8) * 128 + u);
#pragma unroll
                        for (int i = 0; i < NT; i++) {
                            mma_16816<T>(c[i], lo.x, hi.x, lo.y, hi.y, x[i][j].x, x[i][j].y);
                            mma_16816<T>(c[i], lo.z, hi.z, lo.w, hi.w, x[i][j].z, x[i][j].w);
                        }
                    }
                }
                __syncwarp();
                if (lane == 0) mbarrier_arrive(&empty[s]);
                if (++s == p.stages) {
                    s = 0;
                    phase ^= 1;
                }
            }
#pragma unroll
            for (int i = 0; i < NT; i++) {
                float(*sum)[17] = red->sum[buffer][rt][warp];
                sum[i * 8 + 2 * q][r] = c[i][0];
                sum[i * 8 + 2 * q + 1][r] = c[i][1];
                sum[i * 8 + 2 * q][r + 8] = c[i][2];
                sum[i * 8 + 2 * q + 1][r + 8] = c[i][3];
            }
        }
        asm volatile("bar.sync 1, %0;" ::"n"(WARPS * 32) : "memory");
        if (my_output && my_m / 2 * 2 < p.M) { /* a warp writes two rows of 16 */
            float v = 0.f;
#pragma unroll
            for (int w = 0; w < WARPS; w++)
                v += red->sum[buffer][my_rt][w][my_m][my_n];
            write_out<T>(p, my_m, my_tile * 16 + my_n, v * norm_factor, residual, more);
        }
        buffer ^= 1;
    }
}

struct shape {
    uint32_t stages, shared;
    bool staged, fits;
};

template <int NT, int RT> shape plan_shape(uint32_t M, uint32_t K, uint32_t blocks, bool norm)
{
    const uint32_t stage_bytes = blocks * BLOCK_BYTES;
    const uint32_t red = (sizeof(reduce_buffer<NT, RT>) + 15) / 16 * 16, x = M * K * 2;
    shape s = {};
    uint32_t room = SHARED_MAX - 1024 - red; /* 1024: barriers and alignment */

    s.staged =
        x <= room && room - x >= RING_MIN * stage_bytes && (norm || room - x >= 3 * stage_bytes);
    s.fits = s.staged || !norm;
    if (s.staged) room -= x;
    if (room > RING_BYTES) room = RING_BYTES;
    s.stages = room / stage_bytes;
    if (s.stages > RING_MAX) s.stages = RING_MAX;
    s.shared = s.stages * stage_bytes + red + (s.staged ? x : 0);
    return s;
}

uint32_t stage_blocks(uint32_t K)
{
    const uint32_t kblocks = K / 64, stages = (kblocks + 15) / 16;
    return (kblocks + stages - 1) / stages;
}

template <typename T, int NT, int RT, bool STAGED>
cudaError_t launch_one(const struct kernel_context *ctx, const CUtensorMap &map, const params &p,
                       uint32_t shared)
{
    static uint32_t
        allowed; /* the attribute belongs to the function; setting it twice is harmless */
    if (allowed < shared) {
        cudaError_t e =
            cudaFuncSetAttribute(skinny_kernel<T, NT, RT, STAGED>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (e) return e;
        allowed = shared;
    }
    const uint32_t tiles = (p.N + 15) / 16,
                   grid = tiles < (uint32_t)ctx->sm_count ? tiles : ctx->sm_count;
    return launch(ctx, skinny_kernel<T, NT, RT, STAGED>, dim3(grid), dim3(THREADS), shared, map, p);
}

template <typename T>
cudaError_t launch_skinny(const struct kernel_context *ctx, const struct skinny_args *a)
{
    const struct skinny_weight *w = a->weight;
    const bool norm = a->norm_gain != NULL;
    /* also where a block has one tile only: the small products of a layer then run one code, and find it in the
     * instruction cache (2 % of a small model's step) */
    const bool short_tiles = a->M <= 8 && w->K <= SHORT_K;
    const shape s = short_tiles ? plan_shape<1, 2>(a->M, w->K, w->blocks, norm)
                    : a->M <= 8 ? plan_shape<1, 1>(a->M, w->K, w->blocks, norm)
                                : plan_shape<2, 1>(a->M, w->K, w->blocks, norm);
    CUtensorMap map;
    params p = {a->M,        w->N,        w->K,        w->blocks,    s.stages,
                a->x,        a->x_stride, a->x_cols,   a->row_index, a->norm_gain,
                a->norm_eps, a->bias,     a->epilogue, a->act,       a->scale,
                a->softcap,  a->y,        a->y_stride, a->qkv};

    if (!s.fits || a->M < 1 || a->M > SKINNY_ROWS_MAX) return cudaErrorInvalidValue;
    if (!s.staged && a->row_index) return cudaErrorInvalidValue;
    memcpy(&map, w->map, sizeof map);
    if (short_tiles) return launch_one<T, 1, 2, true>(ctx, map, p, s.shared);
    if (a->M <= 8)
        return s.staged ? launch_one<T, 1, 1, true>(ctx, map, p, s.shared)
                        : launch_one<T, 1, 1, false>(ctx, map, p, s.shared);
    return s.staged ? launch_one<T, 2, 1, true>(ctx, map, p, s.shared)
                    : launch_one<T, 2, 1, false>(ctx, map, p, s.shared);
}

} // namespace

extern "C" bool skinny_gemm_fits(const struct kernel_context *ctx, uint32_t M, uint32_t K,
                                 bool norm)
{
    if (ctx->capability < 90 || M < 1 || M > SKINNY_ROWS_MAX || K % 64) return false;
    return M <= 8 ? plan_shape<1, 1>(M, K, stage_blocks(K), norm).fits
                  : plan_shape<2, 1>(M, K, stage_blocks(K), norm).fits;
}

/* The map orders its dims (64 columns, rows, blocks of 64): a box lands in shared memory as `blocks` pieces of
 * 16 rows x 128 bytes. Rows past N and blocks past K read as zeros. */
extern "C" cudaError_t skinny_weight_init(struct skinny_weight *out, const void *W, uint32_t N,
                                          uint32_t K, enum kernel_type type)
{
    CUtensorMap map;

    if (K % 64 || !N) return cudaErrorInvalidValue;
    out->N = N;
    out->K = K;
    out->blocks = stage_blocks(K);
    const uint64_t dims[3] = {64, N, K / 64}, strides[2] = {K * 2ull, 128};
    const uint32_t box[3] = {64, 16, out->blocks};
    cudaError_t e = tensor_map_3d(&map, type, W, dims, strides, box, false);
    if (e) return e;
    memcpy(out->map, &map, sizeof map);
    return cudaSuccess;
}

extern "C" cudaError_t skinny_gemm(const struct kernel_context *ctx, const struct skinny_args *args)
{
    DISPATCH(ctx, launch_skinny<T>(ctx, args));
}
