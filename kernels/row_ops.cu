/* row_ops.cu - see row_ops.h. All are bound by memory; at few rows by their launch. */
#include "common/activation.cuh"
#include "common/grid_rows.cuh"
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

/* One block per row; the row stays in registers, so x is read and written once and all of it is asked for at once. Tails past
 * hidden are zeros in x and delta's stride is a multiple of 8, so four elements a thread need no guard but on stores. */
template <typename T, int THREADS, int VEC>
__global__ void __launch_bounds__(THREADS) norm_kernel(const __grid_constant__ struct norm_args a)
{
    __shared__ float scratch[32];
    pdl_trigger();
    pdl_wait();
    const uint32_t row = blockIdx.x, H = a.hidden;
    float *x = a.x + (uint64_t)(a.row_index ? a.row_index[row] : (int32_t)row) * a.x_stride;
    float4 v[VEC];
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        const uint32_t i = (threadIdx.x + k * THREADS) * 4;
        v[k] = i < H ? *(const float4 *)(x + i) : make_float4(0.f, 0.f, 0.f, 0.f);
    }
    if (a.delta) {
        const T *delta = (const T *)a.delta + row * a.delta_stride;
        uint2 w[VEC];
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            const uint32_t i = (threadIdx.x + k * THREADS) * 4;
            w[k] = i < H ? *(const uint2 *)(delta + i) : make_uint2(0, 0);
        }
        float inv = 1.f;
        if (a.post_gain) {
            float ss = 0.f;
#pragma unroll
            for (int k = 0; k < VEC; k++) {
                const uint32_t i = (threadIdx.x + k * THREADS) * 4;
                const float2 lo = unpack2<T>(w[k].x), hi = unpack2<T>(w[k].y);
                const float d[4] = {lo.x, lo.y, hi.x, hi.y};
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    if (i + e >= H) continue;
                    const float b = d[e] + (a.delta_bias ? a.delta_bias[i + e] : 0.f);
                    ss += b * b;
                }
            }
            inv = rsqrtf(block_sum<THREADS>(ss, scratch) / (float)H + a.post_eps);
        }
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            const uint32_t i = (threadIdx.x + k * THREADS) * 4;
            const float2 lo = unpack2<T>(w[k].x), hi = unpack2<T>(w[k].y);
            float d[4] = {lo.x, lo.y, hi.x, hi.y};
            if (i >= H) continue;
#pragma unroll
            for (int e = 0; e < 4; e++) {
                if (i + e >= H) {
                    d[e] = 0.f; /* tails stay zero */
                    continue;
                }
                if (a.delta_bias) d[e] += a.delta_bias[i + e];
                if (a.post_gain) d[e] *= inv * a.post_gain[i + e];
            }
            v[k] = make_float4(v[k].x + d[0], v[k].y + d[1], v[k].z + d[2], v[k].w + d[3]);
            *(float4 *)(x + i) = v[k];
        }
    }
    if (!a.gain) return;
    float ss = 0.f;
#pragma unroll
    for (int k = 0; k < VEC; k++)
        ss += squares_sum(v[k].x, v[k].y, v[k].z, v[k].w);
    ss = block_sum<THREADS>(ss, scratch);
    const float inv = rsqrtf(ss / (float)H + a.eps);
    T *y = (T *)a.y + row * a.y_stride;
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        const uint32_t i = (threadIdx.x + k * THREADS) * 4;
        if (i >= H) continue;
        const float4 g = __ldg((const float4 *)(a.gain + i)); /* padded to 64 with zeros */
        *(uint2 *)(y + i) = make_uint2(pack2<T>(v[k].x * inv * g.x, v[k].y * inv * g.y),
                                       pack2<T>(v[k].z * inv * g.z, v[k].w * inv * g.w));
    }
}

/* A block per row. */
template <typename T>
__global__ void __launch_bounds__(256) pack_kernel(const __grid_constant__ struct pack_args a)
{
    pdl_trigger();
    pdl_wait();
    const uint32_t row = blockIdx.x, t = threadIdx.x;
    const uint64_t from = a.row_index[row];
    const float4 *x = (const float4 *)(a.x + from * a.x_stride);
    const uint4 *v = (const uint4 *)((const T *)a.a + from * a.a_stride);
    float4 *x_to = (float4 *)(a.x_to + row * a.x_stride);
    uint4 *v_to = (uint4 *)((T *)a.a_to + row * a.a_stride);
    for (uint32_t i = t; i < a.x_stride / 4; i += blockDim.x)
        x_to[i] = x[i];
    for (uint32_t i = t; i < a.a_stride / 8; i += blockDim.x)
        v_to[i] = v[i];
}

template <typename T>
__global__ void __launch_bounds__(256) glu_kernel(const __grid_constant__ struct glu_args a)
{
    pdl_trigger();
    pdl_wait();
    const uint32_t row = blockIdx.y, i = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (i >= a.width) return;
    const T *gu = (const T *)a.gu + row * a.gu_stride + 2 * i; /* strides are multiples of 64 */
    const uint4 w0 = load_shared_state(gu), w1 = load_shared_state(gu + 8);
    const uint32_t p[8] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
    float o[8];
#pragma unroll
    for (int e = 0; e < 8; e++) {
        float2 v = unpack2<T>(p[e]);
        if (a.bias && i + e < a.width) {
            v.x += a.bias[2 * (i + e)];
            v.y += a.bias[2 * (i + e) + 1];
        }
        o[e] = activate(v.x, a.act) * v.y;
    }
    T *y = (T *)a.y + row * a.y_stride + i;
    if (i + 8 <= a.width) {
        *(uint4 *)y = make_uint4(pack2<T>(o[0], o[1]), pack2<T>(o[2], o[3]), pack2<T>(o[4], o[5]),
                                 pack2<T>(o[6], o[7]));
    } else {
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (i + e < a.width) y[e] = from_float<T>(o[e]);
    }
}

/* Whether rows [base, base + 8) hold the eight tokens of one half of a block, which kv_layout.h keeps side by side. */
__device__ __forceinline__ bool whole_eight(const int32_t *slots, int64_t base, uint32_t rows,
                                            int32_t first)
{
    if (base < 0 || base + 8 > rows) return false;
    bool whole = true;
#pragma unroll
    for (int i = 0; i < 8; i++)
        whole = whole && slots[base + i] == first + i;
    return whole;
}

template <typename T> __device__ __forceinline__ void add_bias(uint32_t (&w)[4], const float *bias)
{
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const float2 v = unpack2<T>(w[k]);
        w[k] = pack2<T>(v.x + bias[2 * k], v.y + bias[2 * k + 1]);
    }
}

/* Eight dims of V from eight rows: 8 x 8 numbers turned round, 128 bytes in one piece. */
template <typename T>
__device__ __forceinline__ void write_v_eight(const T *src, uint64_t stride, const float *bias,
                                              T *to)
{
    uint32_t w[8][4];
#pragma unroll
    for (int t = 0; t < 8; t++) {
        const uint4 v = load_shared_state(src + t * stride);
        w[t][0] = v.x, w[t][1] = v.y, w[t][2] = v.z, w[t][3] = v.w;
    }
    if (bias)
#pragma unroll
        for (int t = 0; t < 8; t++)
            add_bias<T>(w[t], bias);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const uint32_t pick = e % 2 ? 0x7632 : 0x5410;
        *(uint4 *)(to + e * 8) = make_uint4(__byte_perm(w[0][e / 2], w[1][e / 2], pick),
                                            __byte_perm(w[2][e / 2], w[3][e / 2], pick),
                                            __byte_perm(w[4][e / 2], w[5][e / 2], pick),
                                            __byte_perm(w[6][e / 2], w[7][e / 2], pick));
    }
}

/* V of one row and head, eight dims of it: alone, or the eight tokens that it is the first of. */
template <typename T>
__device__ __forceinline__ void rope_wide_v(const struct rope_kv_args &a, uint32_t row, uint32_t g,
                                            uint32_t e0)
{
    const int32_t slot = a.positions[row] < 0 ? -1 : a.kv_slots[row];
    if (slot < 0 || e0 >= a.head_dim) return;
    const uint32_t D = a.head_dim, u = a.heads + a.kv_heads + g, token = slot % KV_BLOCK_TOKENS;
    const T *src = (const T *)a.qkv + row * a.qkv_stride + (uint64_t)u * D + e0;
    const float *bias = a.bias ? a.bias + (uint64_t)u * D + e0 : NULL;
    T *to = (T *)a.kv +
            ((uint64_t)(slot / KV_BLOCK_TOKENS) * a.kv_heads + g) * (2ull * KV_BLOCK_TOKENS * D) +
            KV_BLOCK_TOKENS * D + ((uint64_t)(token / 8) * D + e0) * 8;

    if (whole_eight(a.kv_slots, (int64_t)row - token % 8, a.rows, slot - token % 8)) {
        if (token % 8 == 0) write_v_eight(src, a.qkv_stride, bias, to);
        return;
    }
    const uint4 in = load_shared_state(src);
    uint32_t w[4] = {in.x, in.y, in.z, in.w};
    if (bias) add_bias<T>(w, bias);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const float2 v = unpack2<T>(w[e / 2]);
        to[e * 8 + token % 8] = from_float<T>(e % 2 ? v.y : v.x);
    }
}

/* Sum over LANES neighbouring lanes, which are here together. */
template <int LANES> __device__ __forceinline__ float head_sum(float v)
{
    const unsigned mask =
        LANES == 32 ? ~0u : ((1u << LANES % 32) - 1) << (threadIdx.x % 32 / LANES * LANES);
#pragma unroll
    for (int o = LANES / 2; o; o >>= 1)
        v += __shfl_xor_sync(mask, v, o);
    return v;
}

/* LANES lanes per head, eight dims each: head_dim and rope_dim multiples of 8, head_dim <= LANES * 8. First all of Q and K,
 * ROPE_ROWS rows per lane so that enough bytes are under way; then V, one row per lane. */
constexpr int ROPE_ROWS = 4;
template <typename T, int LANES>
__global__ void __launch_bounds__(256)
    rope_kv_wide_kernel(const __grid_constant__ struct rope_kv_args a)
{
    pdl_trigger();
    pdl_wait();
    const uint32_t units = a.heads + a.kv_heads, D = a.head_dim, e0 = threadIdx.x % LANES * 8;
    const uint32_t at = blockIdx.x * (256 / LANES) + threadIdx.x / LANES,
                   qk = (a.rows + ROPE_ROWS - 1) / ROPE_ROWS * units;
    if (at >= qk) {
        const uint32_t row = (at - qk) / a.kv_heads;
        if (row < a.rows) rope_wide_v<T>(a, row, (at - qk) % a.kv_heads, e0);
        return;
    }
    const uint32_t first = at / units * ROPE_ROWS, u = at % units;
    const bool is_q = u < a.heads, turned = e0 < a.rope_dim;
    int32_t pos[ROPE_ROWS], slot[ROPE_ROWS];
    uint4 in[ROPE_ROWS];
    float4 c[ROPE_ROWS][2]; /* cos, sin, cos, sin */
#pragma unroll
    for (int i = 0; i < ROPE_ROWS; i++) {
        const uint32_t row = first + i;
        const bool there = row < a.rows;
        pos[i] = there ? a.positions[row] : -1, slot[i] = there ? a.kv_slots[row] : -1;
        in[i] = make_uint4(0, 0, 0, 0);
        if (there && e0 < D)
            in[i] = load_shared_state((const T *)a.qkv + row * a.qkv_stride + (uint64_t)u * D + e0);
    }
#pragma unroll
    for (int i = 0; i < ROPE_ROWS; i++) {
        const float4 *table =
            (const float4 *)(a.rope + (uint64_t)max(pos[i], 0) * (a.rope_dim / 2) + e0 / 2);
        if (turned) c[i][0] = __ldg(table), c[i][1] = __ldg(table + 1);
    }
    const float *gain = is_q ? a.q_gain : a.k_gain;
#pragma unroll
    for (int i = 0; i < ROPE_ROWS; i++) {
        if (pos[i] < 0 || (!is_q && slot[i] < 0)) continue; /* all lanes of the head alike */
        const uint32_t w[4] = {in[i].x, in[i].y, in[i].z, in[i].w};
        float v[8], ss = 0.f;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float2 f = unpack2<T>(w[k]);
            v[2 * k] = f.x, v[2 * k + 1] = f.y;
        }
#pragma unroll
        for (int e = 0; e < 8; e++) {
            if (a.bias && e0 < D) v[e] += a.bias[(uint64_t)u * D + e0 + e];
            ss += v[e] * v[e];
        }
        if (gain) {
            const float inv = rsqrtf(head_sum<LANES>(ss) / (float)D + (is_q ? a.q_eps : a.k_eps));
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (e0 < D) v[e] *= inv * gain[e0 + e];
        }
        if (turned) {
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float *p = v + 4 * k;
                const float x0 = p[0], x1 = p[1], y0 = p[2], y1 = p[3];
                p[0] = products_sum(x0, c[i][k].x, x1, -c[i][k].y);
                p[1] = products_sum(x1, c[i][k].x, x0, c[i][k].y);
                p[2] = products_sum(y0, c[i][k].z, y1, -c[i][k].w);
                p[3] = products_sum(y1, c[i][k].z, y0, c[i][k].w);
            }
        }
        T *out = (T *)a.q_out + (first + i) * a.q_stride + (uint64_t)u * D + e0;
        if (!is_q)
            out = (T *)a.kv +
                  ((uint64_t)(slot[i] / KV_BLOCK_TOKENS) * a.kv_heads + u - a.heads) *
                      (2ull * KV_BLOCK_TOKENS * D) +
                  slot[i] % KV_BLOCK_TOKENS * D + e0;
        if (e0 < D)
            *(uint4 *)out = make_uint4(pack2<T>(v[0], v[1]), pack2<T>(v[2], v[3]),
                                       pack2<T>(v[4], v[5]), pack2<T>(v[6], v[7]));
    }
}

/* Any head size: one warp per (row, head). PAIRS: pairs of neighbours per lane. */
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
        ss += products_sum(v[k][0], v[k][0], v[k][1], v[k][1]);
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
            x = products_sum(v[k][0], cs.x, v[k][1], -cs.y);
            y = products_sum(v[k][1], cs.x, v[k][0], cs.y);
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

/* Smallest that holds the row in registers; 49,152 floats only just (they spill). How many rows there are does not count: a
 * row's sums are in one order always. */
template <typename T>
cudaError_t launch_norm(const struct kernel_context *ctx, const struct norm_args &a)
{
    const dim3 grid(a.rows);
    if (a.hidden <= 1024) return launch(ctx, norm_kernel<T, 256, 1>, grid, dim3(256), 0, a);
    if (a.hidden <= 2048) return launch(ctx, norm_kernel<T, 256, 2>, grid, dim3(256), 0, a);
    if (a.hidden <= 4096) return launch(ctx, norm_kernel<T, 256, 4>, grid, dim3(256), 0, a);
    if (a.hidden <= 8192) return launch(ctx, norm_kernel<T, 512, 4>, grid, dim3(512), 0, a);
    if (a.hidden <= 16384) return launch(ctx, norm_kernel<T, 1024, 4>, grid, dim3(1024), 0, a);
    if (a.hidden <= NORM_HIDDEN_MAX)
        return launch(ctx, norm_kernel<T, 1024, 12>, grid, dim3(1024), 0, a);
    return cudaErrorInvalidValue;
}

template <typename T, int LANES>
cudaError_t launch_rope_wide(const struct kernel_context *ctx, const struct rope_kv_args &a)
{
    const uint64_t heads =
        (uint64_t)((a.rows + ROPE_ROWS - 1) / ROPE_ROWS) * (a.heads + a.kv_heads) +
        (uint64_t)a.rows * a.kv_heads;
    const uint64_t blocks = (heads * LANES + 255) / 256;
    if (heads > UINT32_MAX / 2) return cudaErrorInvalidValue;
    return launch(ctx, rope_kv_wide_kernel<T, LANES>, dim3((unsigned)blocks), dim3(256), 0, a);
}

template <typename T>
cudaError_t launch_rope(const struct kernel_context *ctx, const struct rope_kv_args &a)
{
    const uint64_t units = (uint64_t)a.rows * (a.heads + 2 * a.kv_heads);
    const dim3 grid((unsigned)((units + 7) / 8)), block(256);

    if (a.head_dim % 8 == 0 && a.rope_dim % 8 == 0 && a.head_dim <= 256) {
        if (a.head_dim <= 64) return launch_rope_wide<T, 8>(ctx, a);
        return a.head_dim <= 128 ? launch_rope_wide<T, 16>(ctx, a)
                                 : launch_rope_wide<T, 32>(ctx, a);
    }
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

cudaError_t pack_rows(const struct kernel_context *ctx, const struct pack_args *a)
{
    if (!a->rows) return cudaSuccess;
    DISPATCH(ctx, launch(ctx, pack_kernel<T>, dim3(a->rows), dim3(256), 0, *a));
}

static cudaError_t launch_glu(const struct kernel_context *ctx, const struct glu_args *a)
{
    const dim3 grid((a->width + 2047) / 2048, a->rows), block(256);
    DISPATCH(ctx, launch(ctx, glu_kernel<T>, grid, block, 0, *a));
}

cudaError_t glu(const struct kernel_context *ctx, const struct glu_args *a)
{
    cudaError_t e = cudaSuccess;

    for (uint32_t first = 0; !e && first < a->rows; first += GRID_ROWS_MAX) {
        struct glu_args part = *a;
        part.rows = grid_rows(a->rows - first);
        part.gu = (const char *)a->gu + first * a->gu_stride * 2; /* bf16 and f16 alike */
        part.y = (char *)a->y + first * a->y_stride * 2;
        e = launch_glu(ctx, &part);
    }
    return e;
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
