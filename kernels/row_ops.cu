/* row_ops.cu - see row_ops.h. All are bound by memory; at few rows by their launch. */
#include "common/launch.cuh"
#include "kv_layout.h"
#include "row_ops.h"

namespace
{

template <typename T> __global__ void embed_kernel(const __grid_constant__ struct embed_args a)
{
    pdl_trigger();
    pdl_wait();
    const uint32_t row = blockIdx.x;
    const int32_t token = a.tokens[row];
    float *x = a.x + row * a.x_stride;
    const T *src = (const T *)a.table + (uint64_t)(token < 0 ? 0 : token) * a.table_stride;
    for (uint32_t i = threadIdx.x; i < a.hidden; i += blockDim.x)
        x[i] = token < 0 ? 0.f : to_float(src[i]) * a.scale;
}

/* One block per row; the row stays in shared memory, so x is read and written once. Tails past hidden are zeros in x and
 * delta's stride is a multiple of 8, so four elements a thread need no guard but on stores. */
template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS) norm_kernel(const __grid_constant__ struct norm_args a)
{
    extern __shared__ float row_values[];
    __shared__ float scratch[32];
    pdl_trigger();
    pdl_wait();
    const uint32_t row = blockIdx.x, H = a.hidden;
    float *x = a.x + (uint64_t)(a.row_index ? a.row_index[row] : (int32_t)row) * a.x_stride;
    const T *delta = (const T *)a.delta + row * a.delta_stride;

    if (a.delta) {
        float ss = 0.f;
        if (a.post_gain) {
            for (uint32_t i = threadIdx.x; i < H; i += THREADS) {
                const float d = to_float(delta[i]) + (a.delta_bias ? a.delta_bias[i] : 0.f);
                ss += d * d;
            }
            ss = block_sum<THREADS>(ss, scratch);
        }
        const float inv = a.post_gain ? rsqrtf(ss / (float)H + a.post_eps) : 1.f;
        for (uint32_t i = threadIdx.x * 4; i < H; i += THREADS * 4) {
            const float4 v = *(const float4 *)(x + i);
            const uint2 w = *(const uint2 *)(delta + i);
            const float2 lo = unpack2<T>(w.x), hi = unpack2<T>(w.y);
            float d[4] = {lo.x, lo.y, hi.x, hi.y}, o[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                if (i + e >= H) continue;
                if (a.delta_bias) d[e] += a.delta_bias[i + e];
                if (a.post_gain) d[e] *= inv * a.post_gain[i + e];
                o[e] += d[e];
            }
            const float4 out = make_float4(o[0], o[1], o[2], o[3]); /* tails stay zero */
            *(float4 *)(x + i) = out;
            *(float4 *)(row_values + i) = out;
        }
    } else {
        for (uint32_t i = threadIdx.x * 4; i < H; i += THREADS * 4)
            *(float4 *)(row_values + i) = *(const float4 *)(x + i);
    }
    if (!a.gain) return;
    float ss = 0.f;
    for (uint32_t i = threadIdx.x * 4; i < H; i += THREADS * 4) {
        const float4 v = *(const float4 *)(row_values + i); /* own elements: no barrier */
        ss += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
    }
    ss = block_sum<THREADS>(ss, scratch);
    const float inv = rsqrtf(ss / (float)H + a.eps);
    T *y = (T *)a.y + row * a.y_stride;
    for (uint32_t i = threadIdx.x * 4; i < H; i += THREADS * 4) {
        const float4 v = *(const float4 *)(row_values + i);
        const float4 g = __ldg((const float4 *)(a.gain + i)); /* padded to 64 with zeros */
        *(uint2 *)(y + i) = make_uint2(pack2<T>(v.x * inv * g.x, v.y * inv * g.y),
                                       pack2<T>(v.z * inv * g.z, v.w * inv * g.w));
    }
}

__device__ __forceinline__ float activate(float v, int act)
{
    if (act == 0) return v / (1.f + __expf(-v));
    const float u = 0.7978845608f * (v + 0.044715f * v * v * v);
    return 0.5f * v * (1.f + tanhf(u));
}

template <typename T> __global__ void glu_kernel(const __grid_constant__ struct glu_args a)
{
    pdl_trigger();
    pdl_wait();
    const uint32_t row = blockIdx.y, i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= a.width) return;
    const uint4 w = load_shared_state((const T *)a.gu + row * a.gu_stride + 2 * i);
    const uint32_t p[4] = {w.x, w.y, w.z, w.w};
    float o[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float2 gu = unpack2<T>(p[e]);
        if (a.bias && i + e < a.width) {
            gu.x += a.bias[2 * (i + e)];
            gu.y += a.bias[2 * (i + e) + 1];
        }
        o[e] = activate(gu.x, a.act) * gu.y;
    }
    T *y = (T *)a.y + row * a.y_stride + i;
    if (i + 4 <= a.width) {
        *(uint2 *)y = make_uint2(pack2<T>(o[0], o[1]), pack2<T>(o[2], o[3]));
    } else {
        for (uint32_t e = 0; i + e < a.width; e++)
            y[e] = from_float<T>(o[e]);
    }
}

/* One warp per (row, head). PAIRS: pairs of neighbours per lane. */
template <typename T, int PAIRS>
__global__ void __launch_bounds__(256) rope_kv_kernel(const __grid_constant__ struct rope_kv_args a)
{
    pdl_trigger();
    pdl_wait();
    const uint32_t units = a.heads + 2 * a.kv_heads, lane = threadIdx.x & 31;
    const uint64_t unit = (uint64_t)blockIdx.x * 8 + threadIdx.x / 32;
    const uint32_t row = unit / units, u = unit % units, D = a.head_dim;
    if (row >= a.rows) return;
    const int32_t pos = a.positions[row], slot = a.kv_slots[row];
    const bool is_q = u < a.heads, is_v = u >= a.heads + a.kv_heads;
    if (pos < 0 || (!is_q && slot < 0)) return;

    const T *src = (const T *)a.qkv + row * a.qkv_stride + (uint64_t)u * D;
    float v[PAIRS][2], ss = 0.f;
#pragma unroll
    for (int k = 0; k < PAIRS; k++) {
        const uint32_t e = 2 * (lane + 32 * k);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            v[k][i] = e + i < D ? to_float(src[e + i]) : 0.f;
            if (a.bias && e + i < D) v[k][i] += a.bias[u * D + e + i];
        }
        ss += v[k][0] * v[k][0] + v[k][1] * v[k][1];
    }
    const float *gain = is_q ? a.q_gain : is_v ? NULL : a.k_gain;
    if (gain) {
        const float inv = rsqrtf(lanes_sum<32>(ss) / (float)D + (is_q ? a.q_eps : a.k_eps));
#pragma unroll
        for (int k = 0; k < PAIRS; k++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t e = 2 * (lane + 32 * k) + i;
                if (e < D) v[k][i] *= inv * gain[e];
            }
    }
    T *record = (T *)a.kv;
    const uint32_t token = slot < 0 ? 0 : slot % KV_BLOCK_TOKENS;
    if (!is_q)
        record += ((uint64_t)(slot / KV_BLOCK_TOKENS) * a.kv_heads +
                   (is_v ? u - a.heads - a.kv_heads : u - a.heads)) *
                  (2ull * KV_BLOCK_TOKENS * D);
    T *out = is_q ? (T *)a.q_out + row * a.q_stride + (uint64_t)u * D : record + token * D;
#pragma unroll
    for (int k = 0; k < PAIRS; k++) {
        const uint32_t e = 2 * (lane + 32 * k);
        if (e >= D) continue;
        if (is_v) {
            T *to = record + KV_BLOCK_TOKENS * D + ((uint64_t)(token / 8) * D + e) * 8 + token % 8;
            to[0] = from_float<T>(v[k][0]);
            if (e + 1 < D) to[8] = from_float<T>(v[k][1]);
            continue;
        }
        float x = v[k][0], y = v[k][1];
        if (e < a.rope_dim) {
            const float2 cs = a.rope[(uint64_t)pos * (a.rope_dim / 2) + e / 2];
            x = v[k][0] * cs.x - v[k][1] * cs.y;
            y = v[k][1] * cs.x + v[k][0] * cs.y;
        }
        out[e] = from_float<T>(x);
        if (e + 1 < D) out[e + 1] = from_float<T>(y);
    }
}

__global__ void softcap_kernel(float *v, uint64_t n, float cap)
{
    pdl_trigger();
    pdl_wait();
    const uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) v[i] = cap * tanhf(v[i] / cap);
}

__global__ void rope_table_kernel(const float *inv_freq, uint32_t half_dim, uint32_t positions,
                                  float scale, float2 *out)
{
    pdl_trigger();
    pdl_wait();
    const uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (uint64_t)half_dim * positions) return;
    double s, c;
    sincos((double)((float)(i / half_dim) * inv_freq[i % half_dim]), &s, &c);
    out[i] = make_float2((float)c * scale, (float)s * scale);
}

__device__ __forceinline__ uint64_t mix64(uint64_t x) /* base/hash.h, hash_mix64 */
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ (x >> 33);
}

/* The values of device/dummy_weights.c: the CPU and this device run the same made-up model. */
template <typename T>
__global__ void dummy_kernel(T *out, uint64_t stride, uint32_t rows, uint32_t cols,
                             const uint32_t *map, uint64_t seed)
{
    pdl_trigger();
    pdl_wait();
    const double size = sqrt(3.0 / cols);
    for (uint32_t r = blockIdx.x; r < rows; r += gridDim.x) {
        const uint64_t row_seed = mix64(seed ^ mix64((uint64_t)r + 0x9e3779b97f4a7c15ull));
        T *to = out + (uint64_t)map[r] * stride;
        for (uint32_t c = threadIdx.x; c < cols; c += blockDim.x) {
            const double unit = (double)(mix64(row_seed + c) >> 11) * 0x1p-52 - 1;
            to[c] = from_float<T>((float)(unit * size));
        }
    }
}

__global__ void words_kernel(uint32_t *out, uint64_t words, uint32_t pattern)
{
    pdl_trigger();
    pdl_wait();
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < words;
         i += (uint64_t)gridDim.x * blockDim.x)
        out[i] = pattern;
}

template <typename T>
cudaError_t launch_norm(const struct kernel_context *ctx, const struct norm_args &a)
{
    const size_t shared = ((size_t)a.hidden + 3) / 4 * 16;
    if (a.hidden > NORM_HIDDEN_MAX) return cudaErrorInvalidValue;
    auto kernel = a.hidden <= 1024 ? norm_kernel<T, 256> : norm_kernel<T, 512>;
    if (shared > 40 * 1024) {
        cudaError_t e =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (e) return e;
    }
    return launch(ctx, kernel, dim3(a.rows), dim3(a.hidden <= 1024 ? 256 : 512), shared, a);
}

template <typename T>
cudaError_t launch_rope(const struct kernel_context *ctx, const struct rope_kv_args &a)
{
    const uint64_t units = (uint64_t)a.rows * (a.heads + 2 * a.kv_heads);
    const dim3 grid((unsigned)((units + 7) / 8)), block(256);
    if (a.head_dim <= 64) return launch(ctx, rope_kv_kernel<T, 1>, grid, block, 0, a);
    if (a.head_dim <= 128) return launch(ctx, rope_kv_kernel<T, 2>, grid, block, 0, a);
    if (a.head_dim <= 512) return launch(ctx, rope_kv_kernel<T, 8>, grid, block, 0, a);
    return cudaErrorInvalidValue;
}

} // namespace

extern "C" {

cudaError_t embed(const struct kernel_context *ctx, const struct embed_args *a)
{
    DISPATCH(ctx, launch(ctx, embed_kernel<T>, dim3(a->rows), dim3(256), 0, *a));
}

cudaError_t rmsnorm(const struct kernel_context *ctx, const struct norm_args *a)
{
    DISPATCH(ctx, launch_norm<T>(ctx, *a));
}

cudaError_t glu(const struct kernel_context *ctx, const struct glu_args *a)
{
    const dim3 grid((a->width + 1023) / 1024, a->rows), block(256);
    DISPATCH(ctx, launch(ctx, glu_kernel<T>, grid, block, 0, *a));
}

cudaError_t rope_kv(const struct kernel_context *ctx, const struct rope_kv_args *a)
{
    DISPATCH(ctx, launch_rope<T>(ctx, *a));
}

cudaError_t softcap_logits(const struct kernel_context *ctx, float *v, uint64_t n, float cap)
{
    return launch(ctx, softcap_kernel, dim3((unsigned)((n + 255) / 256)), dim3(256), 0, v, n, cap);
}

cudaError_t rope_table(const struct kernel_context *ctx, const float *inv_freq, uint32_t half_dim,
                       uint32_t positions, float scale, float2 *out)
{
    const uint64_t n = (uint64_t)half_dim * positions;
    return launch(ctx, rope_table_kernel, dim3((unsigned)((n + 255) / 256)), dim3(256), 0, inv_freq,
                  half_dim, positions, scale, out);
}

cudaError_t fill_dummy(const struct kernel_context *ctx, void *out, uint64_t stride, uint32_t rows,
                       uint32_t cols, const uint32_t *map, uint64_t seed)
{
    const dim3 grid(ctx->sm_count * 16), block(256);
    DISPATCH(ctx,
             launch(ctx, dummy_kernel<T>, grid, block, 0, (T *)out, stride, rows, cols, map, seed));
}

cudaError_t fill_words(const struct kernel_context *ctx, void *out, uint64_t words,
                       uint32_t pattern)
{
    return launch(ctx, words_kernel, dim3(ctx->sm_count * 4), dim3(256), 0, (uint32_t *)out, words,
                  pattern);
}

} // extern "C"
