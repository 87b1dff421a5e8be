/* prefill_attention.cu - a chunk of rows against the paged KV of its sequence, on tensor cores (attention.h).
 *
 * Way      The (token, head) pairs of one KV head's group are the rows of a 128-row tile, so that a short chunk still fills
 *          it. 8 warps of 16 rows; K and V in tiles of 64 tokens, two in shared memory, filled by cp.async;
 *          online softmax in registers. V is interleaved by eight tokens (kv_layout.h): ldmatrix without transpose.
 * Launch   grid (tiles, kv heads), 256 threads, sm_80 and up. Tiles above the diagonal are never visited.
 * Floor    4*heads*D*(pairs of row and token) flop at the mma.sync rate (628 TFLOP/s measured on an H200).
 * Source   FlashAttention-2, arXiv 2307.08691. */
#include "attention.h"
#include "common/launch.cuh"
#include "kv_layout.h"

namespace
{

constexpr int WARPS = 8, THREADS = WARPS * 32, ROWS = PREFILL_TILE_PAIRS, TOKENS = 64;
constexpr float LOG2E = 1.4426950408889634f, MASKED = -1e30f;

template <int D> struct tile_shape {
    static constexpr int K_STRIDE = D + 8; /* elements: eight rows of ldmatrix in eight different banks */
    static constexpr int K_ELEMENTS = TOKENS * K_STRIDE, V_ELEMENTS = TOKENS * D;
    static constexpr int STAGE = K_ELEMENTS + V_ELEMENTS;
    static constexpr int Q_ELEMENTS = ROWS * K_STRIDE;
    static constexpr int BYTES = 2 * (2 * STAGE > Q_ELEMENTS ? 2 * STAGE : Q_ELEMENTS);
};

/* Tokens [j * 64, +64) to shared memory; what lies at or past `end` becomes zero, or is cleaned by clean_tail. */
template <typename T, int D>
__device__ __forceinline__ void load_tile(const struct attention_args &a, const int32_t *table,
                                          int kv_head, int j, int end, T *k, T *v)
{
    using S = tile_shape<D>;
    constexpr int CHUNKS = D / 8;
    for (int c = threadIdx.x; c < TOKENS * CHUNKS; c += THREADS) {
        const int token = c / CHUNKS, piece = c % CHUNKS;
        const bool valid = j * TOKENS + token < end;
        const int block = valid ? table[(j * TOKENS + token) / KV_BLOCK_TOKENS] : 0;
        const T *record = (const T *)a.kv + ((uint64_t)block * a.kv_heads + kv_head) *
                                                (2ull * KV_BLOCK_TOKENS * D);
        cp_async16(smem_addr(k + token * S::K_STRIDE + piece * 8),
                   record + (token % KV_BLOCK_TOKENS) * D + piece * 8, valid);
    }
    for (int c = threadIdx.x; c < (TOKENS / 8) * D; c += THREADS) {
        const int eight = c / D, dim = c % D;
        const bool valid = j * TOKENS + eight * 8 < end;
        const int block = valid ? table[(j * TOKENS + eight * 8) / KV_BLOCK_TOKENS] : 0;
        const T *record = (const T *)a.kv + ((uint64_t)block * a.kv_heads + kv_head) *
                                                (2ull * KV_BLOCK_TOKENS * D);
        cp_async16(smem_addr(v + c * 8),
                   record + KV_BLOCK_TOKENS * D + ((eight & 1) * D + dim) * 8, valid);
    }
}

/* The last eight tokens may hold anything past `end`: 0 * NaN must not reach the sum. */
template <typename T, int D> __device__ __forceinline__ void clean_tail(T *v, int valid_tokens)
{
    const int eight = valid_tokens / 8, from = valid_tokens % 8;
    if (from == 0 || eight >= TOKENS / 8) return;
    for (int c = threadIdx.x; c < D * 8; c += THREADS)
        if (c % 8 >= from) v[eight * D * 8 + c] = from_float<T>(0.f);
}

template <typename T, int D>
__global__ void __launch_bounds__(THREADS, D <= 64 ? 2 : 1)
    prefill_kernel(const __grid_constant__ struct attention_args a, const struct prefill_tile *tiles)
{
    using S = tile_shape<D>;
    constexpr int KS = D / 16, NT = TOKENS / 8, DN = D / 8;
    extern __shared__ __align__(128) unsigned char shared[];
    T *const sm = (T *)shared;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, r = lane >> 2, q = lane & 3;
    const int kv_head = blockIdx.y, group = a.heads / a.kv_heads;

    pdl_trigger();
    pdl_wait();
    const struct prefill_tile tile = tiles[blockIdx.x];
    const int32_t *table = a.tables + (uint64_t)tile.slot * a.table_stride;
    const int pairs = tile.rows * group, pair_last = min(tile.pair + ROWS, pairs) - 1;
    const int pos_first = tile.position + tile.pair / group,
              pos_last = tile.position + pair_last / group;
    const int end = pos_last + 1; /* tokens that any row sees */
    const int begin = a.window && pos_first + 1 > (int)a.window ? pos_first + 1 - (int)a.window : 0;

    /* Q through shared memory to A operands, which stay in registers. */
    for (int c = threadIdx.x; c < ROWS * (D / 8); c += THREADS) {
        const int i = c / (D / 8), piece = c % (D / 8), pair = tile.pair + i;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (pair < pairs)
            v = load_shared_state((const T *)a.q + (uint64_t)(tile.first_row + pair / group) * a.q_stride +
                                  (uint64_t)(kv_head * group + pair % group) * D + piece * 8);
        *(uint4 *)(sm + i * S::K_STRIDE + piece * 8) = v;
    }
    __syncthreads();
    uint32_t Q[KS][4];
#pragma unroll
    for (int s = 0; s < KS; s++)
        ldmatrix_x4(Q[s], smem_addr(sm + (warp * 16 + (lane & 15)) * S::K_STRIDE + s * 16 +
                                    (lane >> 4) * 8));
    __syncthreads();

    int row_pos[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int pair = tile.pair + warp * 16 + r + i * 8;
        row_pos[i] = pair < pairs ? tile.position + pair / group : pos_last;
    }
    const float to_log2 = a.softcap > 0.f ? 1.f : a.scale * LOG2E;
    float o[DN][4], m[2] = {MASKED, MASKED}, l[2] = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < DN; i++)
        o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0.f;

    const int j_first = begin / TOKENS, j_last = (end - 1) / TOKENS;
    load_tile<T, D>(a, table, kv_head, j_first, end, sm, sm + S::K_ELEMENTS);
    cp_async_commit();
    for (int j = j_first; j <= j_last; j++) {
        T *const k = sm + ((j - j_first) & 1) * S::STAGE, *const v = k + S::K_ELEMENTS;
        cp_async_wait<0>();
        __syncthreads(); /* tile j is here, and everyone has left the other buffer */
        if (j < j_last) {
            T *next = sm + ((j - j_first + 1) & 1) * S::STAGE;
            load_tile<T, D>(a, table, kv_head, j + 1, end, next, next + S::K_ELEMENTS);
            cp_async_commit();
        } else {
            clean_tail<T, D>(v, end - j * TOKENS);
            __syncthreads();
        }

        float s[NT][4];
#pragma unroll
        for (int n = 0; n < NT; n++)
            s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.f;
#pragma unroll
        for (int ks = 0; ks < KS; ks++)
#pragma unroll
            for (int n = 0; n < NT; n += 2) {
                uint32_t b[4];
                ldmatrix_x4(b, smem_addr(k + (n * 8 + (lane >> 4) * 8 + (lane & 7)) * S::K_STRIDE +
                                         ks * 16 + ((lane >> 3) & 1) * 8));
                mma_16816<T>(s[n], Q[ks][0], Q[ks][1], Q[ks][2], Q[ks][3], b[0], b[1]);
                mma_16816<T>(s[n + 1], Q[ks][0], Q[ks][1], Q[ks][2], Q[ks][3], b[2], b[3]);
            }
        if (a.softcap > 0.f) {
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[n][e] = a.softcap * LOG2E * tanhf(s[n][e] * a.scale / a.softcap);
        }
        const bool edge = (j + 1) * TOKENS - 1 > pos_first ||
                          (a.window && j * TOKENS + (int)a.window <= pos_last);
        if (edge) {
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int token = j * TOKENS + n * 8 + 2 * q + (e & 1), pos = row_pos[e >> 1];
                    if (token > pos || (a.window && token + (int)a.window <= pos)) s[n][e] = MASKED;
                }
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float mx = MASKED;
#pragma unroll
            for (int n = 0; n < NT; n++)
                mx = fmaxf(mx, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
            mx = lanes_max<4>(mx) * to_log2;
            const float m_new = fmaxf(m[i], mx), alpha = exp2_fast(m[i] - m_new);
            /* a row that has seen no token yet (window): its weights must be 0, not exp2(0) */
            const float base = m_new <= MASKED * 0.5f * fabsf(to_log2) ? 0.f : m_new;
            m[i] = m_new;
            l[i] *= alpha;
#pragma unroll
            for (int d = 0; d < DN; d++)
                o[d][2 * i] *= alpha, o[d][2 * i + 1] *= alpha;
#pragma unroll
            for (int n = 0; n < NT; n++) {
                s[n][2 * i] = exp2_fast(s[n][2 * i] * to_log2 - base);
                s[n][2 * i + 1] = exp2_fast(s[n][2 * i + 1] * to_log2 - base);
                l[i] += s[n][2 * i] + s[n][2 * i + 1];
            }
        }
#pragma unroll
        for (int ks = 0; ks < TOKENS / 16; ks++) {
            const uint32_t a0 = pack2<T>(s[2 * ks][0], s[2 * ks][1]),
                           a1 = pack2<T>(s[2 * ks][2], s[2 * ks][3]),
                           a2 = pack2<T>(s[2 * ks + 1][0], s[2 * ks + 1][1]),
                           a3 = pack2<T>(s[2 * ks + 1][2], s[2 * ks + 1][3]);
#pragma unroll
            for (int d = 0; d < DN; d += 2) {
                uint32_t b[4];
                ldmatrix_x4(b, smem_addr(v + ((ks * 2 + ((lane >> 3) & 1)) * D + d * 8 +
                                              (lane >> 4) * 8 + (lane & 7)) * 8));
                mma_16816<T>(o[d], a0, a1, a2, a3, b[0], b[1]);
                mma_16816<T>(o[d + 1], a0, a1, a2, a3, b[2], b[3]);
            }
        }
    }

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int pair = tile.pair + warp * 16 + r + i * 8;
        const float inv = 1.f / lanes_sum<4>(l[i]);
        if (pair >= pairs) continue;
        T *out = (T *)a.out + (uint64_t)(tile.first_row + pair / group) * a.out_stride +
                 (uint64_t)(kv_head * group + pair % group) * D + 2 * q;
#pragma unroll
        for (int d = 0; d < DN; d++)
            *(uint32_t *)(out + d * 8) = pack2<T>(o[d][2 * i] * inv, o[d][2 * i + 1] * inv);
    }
}

template <typename T, int D>
cudaError_t launch_one(const struct kernel_context *ctx, const struct attention_args &a,
                       const struct prefill_tile *tiles, uint32_t tile_count)
{
    cudaError_t e = cudaFuncSetAttribute(prefill_kernel<T, D>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         tile_shape<D>::BYTES);
    if (e) return e;
    return launch(ctx, prefill_kernel<T, D>, dim3(tile_count, a.kv_heads), dim3(THREADS),
                  tile_shape<D>::BYTES, a, tiles);
}

template <typename T>
cudaError_t launch_prefill(const struct kernel_context *ctx, const struct attention_args &a,
                           const struct prefill_tile *tiles, uint32_t tile_count)
{
    switch (a.head_dim) {
    case 64: return launch_one<T, 64>(ctx, a, tiles, tile_count);
    case 96: return launch_one<T, 96>(ctx, a, tiles, tile_count);
    case 128: return launch_one<T, 128>(ctx, a, tiles, tile_count);
    default: return cudaErrorInvalidValue;
    }
}

} // namespace

extern "C" bool prefill_attention_fits(uint32_t head_dim)
{
    return head_dim == 64 || head_dim == 96 || head_dim == 128;
}

extern "C" cudaError_t prefill_attention(const struct kernel_context *ctx,
                                         const struct attention_args *args,
                                         const struct prefill_tile *tiles, uint32_t tile_count)
{
    if (!tile_count) return cudaSuccess;
    DISPATCH(ctx, launch_prefill<T>(ctx, *args, tiles, tile_count));
}
