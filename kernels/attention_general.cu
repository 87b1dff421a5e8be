/* attention_general.cu - attention for every shape that the fast kernels do not take (attention.h).
 *
 * Launch   grid (heads, rows), 4 warps; a warp takes every 4th token, its lanes the dims; merged through shared memory.
 * Speed    reads K and V once per row and head: for tests, odd head sizes and small models. */
#include "attention.h"
#include "common/grid_rows.cuh"
#include "common/launch.cuh"
#include "kv_layout.h"

namespace
{

constexpr int WARPS = 4;
constexpr float LOG2E = 1.4426950408889634f;

template <typename T, int DIMS> /* DIMS: dims per lane */
__global__ void __launch_bounds__(WARPS * 32)
    general_kernel(const __grid_constant__ struct attention_args a)
{
    __shared__ float so[WARPS][DIMS * 32], sm[WARPS], sl[WARPS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int head = blockIdx.x, D = a.head_dim;
    const int kv_head = head / (a.heads / a.kv_heads);

    pdl_trigger();
    pdl_wait();
    const int row = a.row_list ? a.row_list[blockIdx.y] : (int)blockIdx.y;
    const int pos = a.positions[row];
    if (pos < 0) return;
    const int lo = a.window && pos + 1 > (int)a.window ? pos + 1 - (int)a.window : 0;
    const int32_t *table = a.tables + (uint64_t)a.slots[row] * a.table_stride;
    const volatile T *qp = (const T *)a.q + row * a.q_stride + (uint64_t)head * D;
    float q[DIMS], o[DIMS] = {}, m = -INFINITY, l = 0.f;
#pragma unroll
    for (int i = 0; i < DIMS; i++) {
        const int d = lane + i * 32;
        q[i] = 0.f;
        if (d < D) {
            T v = const_cast<const T *>(qp)[d];
            q[i] = to_float(v);
        }
    }
    for (int t = lo + warp; t <= pos; t += WARPS) {
        const T *record =
            (const T *)a.kv + ((uint64_t)table[t / KV_BLOCK_TOKENS] * a.kv_heads + kv_head) *
                                  (2ull * KV_BLOCK_TOKENS * D);
        const int in = t % KV_BLOCK_TOKENS;
        float s = 0.f;
#pragma unroll
        for (int i = 0; i < DIMS; i++)
            if (lane + i * 32 < D) s += q[i] * to_float(record[in * D + lane + i * 32]);
        s = lanes_sum<32>(s) * a.scale;
        if (a.softcap > 0.f) s = a.softcap * tanhf(s / a.softcap);
        s *= LOG2E;
        const float m_new = fmaxf(m, s), alpha = exp2f(m - m_new), p = exp2f(s - m_new);
        l = l * alpha + p;
        m = m_new;
#pragma unroll
        for (int i = 0; i < DIMS; i++)
            if (lane + i * 32 < D)
                o[i] = o[i] * alpha +
                       p * to_float(record[KV_BLOCK_TOKENS * D +
                                           ((in / 8) * D + lane + i * 32) * 8 + in % 8]);
    }
#pragma unroll
    for (int i = 0; i < DIMS; i++)
        so[warp][lane + i * 32] = o[i];
    if (lane == 0) sm[warp] = m, sl[warp] = l;
    __syncthreads();
    const float M = fmaxf(fmaxf(sm[0], sm[1]), fmaxf(sm[2], sm[3]));
    float f[WARPS], L = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        f[w] = sl[w] == 0.f ? 0.f : exp2f(sm[w] - M); /* a warp without a token */
        L += f[w] * sl[w];
    }
    for (int d = threadIdx.x; d < D; d += WARPS * 32) {
        float acc = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            acc += f[w] * so[w][d];
        ((T *)a.out)[row * a.out_stride + (uint64_t)head * D + d] = from_float<T>(acc / L);
    }
}

template <typename T>
cudaError_t launch_general(const struct kernel_context *ctx, const struct attention_args &a)
{
    const dim3 grid(a.heads, a.rows), block(WARPS * 32);
    if (a.head_dim <= 64) return launch(ctx, general_kernel<T, 2>, grid, block, 0, a);
    if (a.head_dim <= 256) return launch(ctx, general_kernel<T, 8>, grid, block, 0, a);
    if (a.head_dim <= ATTENTION_HEAD_DIM_MAX)
        return launch(ctx, general_kernel<T, 16>, grid, block, 0, a);
    return cudaErrorInvalidValue;
}

/* Rows first .. of the list, or of all: as many as a grid has. */
cudaError_t launch_part(const struct kernel_context *ctx, struct attention_args a, uint32_t first)
{
    a.rows = grid_rows(a.rows - first);
    if (a.row_list) {
        a.row_list += first;
    } else {
        a.positions += first, a.slots += first;
        a.q = (const char *)a.q + first * a.q_stride * 2; /* bf16 and f16 alike */
        a.out = (char *)a.out + first * a.out_stride * 2;
    }
    DISPATCH(ctx, launch_general<T>(ctx, a));
}

} // namespace

extern "C" cudaError_t attention_general(const struct kernel_context *ctx,
                                         const struct attention_args *args)
{
    cudaError_t e = cudaSuccess;

    for (uint32_t first = 0; !e && first < args->rows; first += GRID_ROWS_MAX)
        e = launch_part(ctx, *args, first);
    return e;
}
