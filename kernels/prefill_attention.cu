/* prefill_attention.cu - a chunk of rows against the paged KV of its sequence, on tensor cores (attention.h): for sm_80 and
 * up, by mma.sync; where prefill_wgmma.cu fits, that is run instead.
 *
 * Way      The (token, head) pairs of one KV head's group are the rows of a 128-row tile, so that a short chunk still fills
 *          it. 4 warps of 32 rows: a fragment of K or V from shared memory feeds two products (with 16 rows a warp, shared memory
 *          is what bounds: 75 % busy). K and V in tiles of 64 tokens, two in shared memory, filled by cp.async; Q stays
 *          there too; online softmax in registers. Two blocks an SM, so that one's softmax runs under the other's products. V is interleaved by eight tokens (kv_layout.h): ldmatrix without transpose.
 * Launch   grid (kv heads, tiles): all heads of the longest tile first. 128 threads, sm_80 and up. Tiles above the diagonal are never visited.
 * Floor    4*heads*D*(pairs of row and token) flop at the mma.sync rate (628 TFLOP/s measured on an H200).
 * Measured H200, November 2026, 32/8 heads, D 128: 2,048 rows 135 to 170 us (200 to 254 TFLOP/s), behind 6,144 more 748 to
 *          850 us (280 to 322): 0.3 to 0.46 of the run's product rate; latency of ldmatrix and softmax, not a pipe.
 * Source   FlashAttention-2, arXiv 2307.08691. */
#include "attention.h"
#include "common/head_dims.cuh"
#include "common/launch.cuh"
#include "kv_layout.h"
#include "prefill_wgmma.h"

namespace
{

constexpr int WARPS = 4, MT = 2, THREADS = WARPS * 32, ROWS = PREFILL_TILE_PAIRS, TOKENS = 64;
static_assert(WARPS * MT * 16 == ROWS, "a warp has MT tiles of 16 rows");
constexpr float LOG2E = 1.4426950408889634f, MASKED = -1e30f;

template <int D> struct tile_shape {
    static constexpr int K_STRIDE =
        D + 8; /* elements: eight rows of ldmatrix in eight different banks */
    static constexpr int K_ELEMENTS = TOKENS * K_STRIDE, V_ELEMENTS = TOKENS * D;
    static constexpr int STAGE = K_ELEMENTS + V_ELEMENTS;
    static constexpr int Q_ELEMENTS = ROWS * K_STRIDE;
    static constexpr int BYTES = 2 * (2 * STAGE + Q_ELEMENTS);
};

/* Tokens [j * 64, +64) to shared memory; what lies at or past `end` becomes zero, or is cleaned by clean_tail. So do blocks in front of
 * that of `begin`, the first token that some row sees: the table is not read there, such a block may be another's by now. */
template <typename T, int D>
__device__ __forceinline__ void load_tile(const struct attention_args &a, const int32_t *table,
                                          int kv_head, int j, int begin, int end, T *k, T *v)
{
    using S = tile_shape<D>;
    constexpr int CHUNKS = D / 8, PER_BLOCK = KV_BLOCK_TOKENS * CHUNKS;
#pragma unroll
    for (int b = 0; b < TOKENS / KV_BLOCK_TOKENS; b++) {
        const int first = j * TOKENS + b * KV_BLOCK_TOKENS;
        const int left = first + KV_BLOCK_TOKENS > begin ? end - first : 0; /* tokens that exist */
        const int block = left > 0 ? table[first / KV_BLOCK_TOKENS] : 0;
        const T *record = (const T *)a.kv +
                          ((uint64_t)block * a.kv_heads + kv_head) * (2ull * KV_BLOCK_TOKENS * D);
#pragma unroll
        for (int i = 0; i < (PER_BLOCK + THREADS - 1) / THREADS; i++) {
            const int c = threadIdx.x + i * THREADS, token = c / CHUNKS;
            if (PER_BLOCK % THREADS && c >= PER_BLOCK) break;
            cp_async16(smem_addr(k + (b * KV_BLOCK_TOKENS + token) * S::K_STRIDE + c % CHUNKS * 8),
                       record + c * 8, token < left);
        }
#pragma unroll
        for (int i = 0; i < (PER_BLOCK + THREADS - 1) / THREADS; i++) {
            const int c = threadIdx.x + i * THREADS;
            if (PER_BLOCK % THREADS && c >= PER_BLOCK) break;
            cp_async16(smem_addr(v + (b * PER_BLOCK + c) * 8), record + KV_BLOCK_TOKENS * D + c * 8,
                       c / D * 8 < left);
        }
    }
}

/* The last eight tokens may hold anything past `end`: 0 * NaN must not reach the sum. Each thread cleans the pieces that it asked
 * for itself in load_tile, once they are there, so that no other's writes need be waited for. */
template <typename T, int D> __device__ __forceinline__ void clean_tail(T *v, int valid_tokens)
{
    constexpr int PER_BLOCK = 2 * D; /* pieces of 16 bytes: eight tokens of a dim */
    const int eight = valid_tokens / 8, from = valid_tokens % 8;
    if (from == 0 || eight >= TOKENS / 8) return;
    for (int c = threadIdx.x; c < PER_BLOCK; c += THREADS)
        for (int e = from; c / D == eight % 2 && e < 8; e++)
            v[(eight / 2 * PER_BLOCK + c) * 8 + e] = from_float<T>(0.f);
}

template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 2)
    prefill_kernel(const __grid_constant__ struct attention_args a,
                   const struct prefill_tile *tiles)
{
    using S = tile_shape<D>;
    constexpr int KS = D / 16, NT = TOKENS / 8, DN = D / 8;
    extern __shared__ __align__(128) unsigned char shared[];
    T *const qs = (T *)shared, *const sm = qs + S::Q_ELEMENTS;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, r = lane >> 2, q = lane & 3;
    const int kv_head = blockIdx.x, group = a.heads / a.kv_heads;

    pdl_trigger();
    pdl_wait();
    const struct prefill_tile tile = tiles[blockIdx.y];
    const int32_t *table = a.tables + (uint64_t)tile.slot * a.table_stride;
    const int pairs = tile.rows * group, pair_last = min(tile.pair + ROWS, pairs) - 1;
    const int pos_first = tile.position + tile.pair / group,
              pos_last = tile.position + pair_last / group;
    const int end = pos_last + 1; /* tokens that any row sees */
    const int begin = a.window && pos_first + 1 > (int)a.window ? pos_first + 1 - (int)a.window : 0;

    const int j_first = begin / TOKENS, j_last = (end - 1) / TOKENS;
    load_tile<T, D>(a, table, kv_head, j_first, begin, end, sm, sm + S::K_ELEMENTS);
    cp_async_commit();
    for (int c = threadIdx.x; c < ROWS * (D / 8); c += THREADS) {
        const int i = c / (D / 8), piece = c % (D / 8), pair = tile.pair + i;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (pair < pairs)
            v = load_shared_state((const T *)a.q +
                                  (uint64_t)(tile.first_row + pair / group) * a.q_stride +
                                  (uint64_t)(kv_head * group + pair % group) * D + piece * 8);
        *(uint4 *)(qs + i * S::K_STRIDE + piece * 8) = v;
    }

    int row_pos[MT][2];
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int pair = tile.pair + warp * MT * 16 + t * 16 + r + i * 8;
            row_pos[t][i] = pair < pairs ? tile.position + pair / group : pos_last;
        }
    const float to_log2 = a.softcap > 0.f ? 1.f : a.scale * LOG2E;
    float o[MT][DN][4], m[MT][2], l[MT][2];
#pragma unroll
    for (int t = 0; t < MT; t++) {
        m[t][0] = m[t][1] = MASKED;
        l[t][0] = l[t][1] = 0.f;
#pragma unroll
        for (int i = 0; i < DN; i++)
            o[t][i][0] = o[t][i][1] = o[t][i][2] = o[t][i][3] = 0.f;
    }
    const uint32_t q_at =
        smem_addr(qs + (warp * MT * 16 + (lane & 15)) * S::K_STRIDE + (lane >> 4) * 8);

    for (int j = j_first; j <= j_last; j++) {
        T *const k = sm + ((j - j_first) & 1) * S::STAGE, *const v = k + S::K_ELEMENTS;
        cp_async_wait<0>();
        if (j == j_last) clean_tail<T, D>(v, end - j * TOKENS);
        __syncthreads(); /* tile j is here, and everyone has left the other buffer */
        if (j < j_last) {
            T *next = sm + ((j - j_first + 1) & 1) * S::STAGE;
            load_tile<T, D>(a, table, kv_head, j + 1, begin, end, next, next + S::K_ELEMENTS);
            cp_async_commit();
        }

        {
            const int first = j * TOKENS;
            float s[MT][NT][4];
#pragma unroll
            for (int t = 0; t < MT; t++)
#pragma unroll
                for (int n = 0; n < NT; n++)
                    s[t][n][0] = s[t][n][1] = s[t][n][2] = s[t][n][3] = 0.f;
#pragma unroll
            for (int ks = 0; ks < KS; ks++) {
                uint32_t Q[MT][4];
#pragma unroll
                for (int t = 0; t < MT; t++)
                    ldmatrix_x4(Q[t], q_at + (t * 16 * S::K_STRIDE + ks * 16) * 2);
#pragma unroll
                for (int n = 0; n < NT; n += 2) {
                    uint32_t b[4];
                    ldmatrix_x4(b,
                                smem_addr(k + (n * 8 + (lane >> 4) * 8 + (lane & 7)) * S::K_STRIDE +
                                          ks * 16 + ((lane >> 3) & 1) * 8));
#pragma unroll
                    for (int t = 0; t < MT; t++) {
                        mma_16816<T>(s[t][n], Q[t][0], Q[t][1], Q[t][2], Q[t][3], b[0], b[1]);
                        mma_16816<T>(s[t][n + 1], Q[t][0], Q[t][1], Q[t][2], Q[t][3], b[2], b[3]);
                    }
                }
            }
            const bool edge =
                first + TOKENS - 1 > pos_first || (a.window && first + (int)a.window <= pos_last);
#pragma unroll
            for (int t = 0; t < MT; t++) {
                if (a.softcap > 0.f) {
#pragma unroll
                    for (int n = 0; n < NT; n++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            s[t][n][e] =
                                a.softcap * LOG2E * tanhf(s[t][n][e] * a.scale / a.softcap);
                }
                if (edge) {
#pragma unroll
                    for (int n = 0; n < NT; n++)
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            const int token = first + n * 8 + 2 * q + (e & 1),
                                      pos = row_pos[t][e >> 1];
                            if (token > pos || (a.window && token + (int)a.window <= pos))
                                s[t][n][e] = MASKED;
                        }
                }
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float mx = MASKED;
#pragma unroll
                    for (int n = 0; n < NT; n++)
                        mx = fmaxf(mx, fmaxf(s[t][n][2 * i], s[t][n][2 * i + 1]));
                    mx = lanes_max<4>(mx) * to_log2;
                    const float m_new = fmaxf(m[t][i], mx), alpha = exp2_fast(m[t][i] - m_new);
                    /* a row that has seen no token yet (window): its weights must be 0, not exp2(0) */
                    const float base = m_new <= MASKED * 0.5f * fabsf(to_log2) ? 0.f : m_new;
                    m[t][i] = m_new;
                    l[t][i] *= alpha;
                    if (__any_sync(~0u,
                                   alpha != 1.f)) { /* rare once the largest score has been seen */
#pragma unroll
                        for (int d = 0; d < DN; d++)
                            o[t][d][2 * i] *= alpha, o[t][d][2 * i + 1] *= alpha;
                    }
#pragma unroll
                    for (int n = 0; n < NT; n++) {
                        s[t][n][2 * i] = exp2_fast(s[t][n][2 * i] * to_log2 - base);
                        s[t][n][2 * i + 1] = exp2_fast(s[t][n][2 * i + 1] * to_log2 - base);
                        l[t][i] += s[t][n][2 * i] + s[t][n][2 * i + 1];
                    }
                }
            }
#pragma unroll
            for (int ks = 0; ks < TOKENS / 16; ks++) {
                uint32_t A[MT][4];
#pragma unroll
                for (int t = 0; t < MT; t++) {
                    A[t][0] = pack2<T>(s[t][2 * ks][0], s[t][2 * ks][1]);
                    A[t][1] = pack2<T>(s[t][2 * ks][2], s[t][2 * ks][3]);
                    A[t][2] = pack2<T>(s[t][2 * ks + 1][0], s[t][2 * ks + 1][1]);
                    A[t][3] = pack2<T>(s[t][2 * ks + 1][2], s[t][2 * ks + 1][3]);
                }
#pragma unroll
                for (int d = 0; d < DN; d += 2) {
                    uint32_t b[4];
                    ldmatrix_x4(b, smem_addr(v + ((ks * 2 + ((lane >> 3) & 1)) * D + d * 8 +
                                                  (lane >> 4) * 8 + (lane & 7)) *
                                                     8));
#pragma unroll
                    for (int t = 0; t < MT; t++) {
                        mma_16816<T>(o[t][d], A[t][0], A[t][1], A[t][2], A[t][3], b[0], b[1]);
                        mma_16816<T>(o[t][d + 1], A[t][0], A[t][1], A[t][2], A[t][3], b[2], b[3]);
                    }
                }
            }
        }
    }

#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int pair = tile.pair + warp * MT * 16 + t * 16 + r + i * 8;
            const float inv = 1.f / lanes_sum<4>(l[t][i]);
            if (pair >= pairs) continue;
            T *out = (T *)a.out + (uint64_t)(tile.first_row + pair / group) * a.out_stride +
                     (uint64_t)(kv_head * group + pair % group) * D + 2 * q;
#pragma unroll
            for (int d = 0; d < DN; d++)
                *(uint32_t *)(out + d * 8) =
                    pack2<T>(o[t][d][2 * i] * inv, o[t][d][2 * i + 1] * inv);
        }
}

template <typename T, int D>
cudaError_t launch_one(const struct kernel_context *ctx, const struct attention_args &a,
                       const struct prefill_tile *tiles, uint32_t tile_count)
{
    cudaError_t e = cudaFuncSetAttribute(
        prefill_kernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, tile_shape<D>::BYTES);
    if (e) return e;
    return launch(ctx, prefill_kernel<T, D>, dim3(a.kv_heads, tile_count), dim3(THREADS),
                  tile_shape<D>::BYTES, a, tiles);
}

using sizes = head_dims<64, 96, 128>;

} // namespace

extern "C" bool prefill_attention_fits(const struct kernel_context *ctx, uint32_t head_dim)
{
    return prefill_wgmma_fits(ctx, head_dim) || sizes::has(head_dim);
}

extern "C" cudaError_t prefill_attention(const struct kernel_context *ctx,
                                         const struct attention_args *args,
                                         const struct prefill_tile *tiles, uint32_t tile_count)
{
    if (!tile_count) return cudaSuccess;
    if (prefill_wgmma_fits(ctx, args->head_dim)) return prefill_wgmma(ctx, args, tiles, tile_count);
    DISPATCH(ctx, sizes::dispatch(args->head_dim, [&](auto D) {
                 return launch_one<T, D>(ctx, *args, tiles, tile_count);
             }));
}
