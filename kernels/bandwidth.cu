/* bandwidth.cu - 16-byte accesses, eight in flight a thread, two blocks an SM. */
#include "bandwidth.h"
#include "common/launch.cuh"

namespace
{

constexpr int THREADS = 1024, UNROLL = 8;

__global__ void __launch_bounds__(THREADS) read_kernel(const uint4 *src, uint64_t n, uint32_t *sink)
{
    pdl_trigger();
    pdl_wait();
    const uint64_t stride = (uint64_t)gridDim.x * THREADS;
    uint32_t sum = 0;
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += stride * UNROLL) {
        uint4 v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            v[u] = i + u * stride < n ? load_stream(src + i + u * stride) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            sum += v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
    }
    if (sum == 0x12345678u) *sink = sum;
}

__global__ void __launch_bounds__(THREADS) copy_kernel(uint4 *dst, const uint4 *src, uint64_t n)
{
    pdl_trigger();
    pdl_wait();
    const uint64_t stride = (uint64_t)gridDim.x * THREADS;
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += stride * 4) {
        uint4 v[4];
#pragma unroll
        for (int u = 0; u < 4; u++)
            if (i + u * stride < n) v[u] = load_stream(src + i + u * stride);
#pragma unroll
        for (int u = 0; u < 4; u++)
            if (i + u * stride < n) dst[i + u * stride] = v[u];
    }
}

__global__ void fill_kernel(uint32_t *dst, uint64_t n, uint64_t seed)
{
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (uint64_t)gridDim.x * blockDim.x) {
        uint64_t x = (i + seed) * 0x9e3779b97f4a7c15ull;
        x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
        x ^= x >> 32;
        dst[i] = ((uint32_t)x & 0x837f837fu) | 0x3c003c00u; /* |bf16| 0.008 to 0.03, |f16| 1 to 2 */
    }
}

} // namespace

extern "C" {

cudaError_t bandwidth_read(const struct kernel_context *ctx, const void *src, uint64_t bytes,
                           uint32_t *sink)
{
    return launch(ctx, read_kernel, dim3(ctx->sm_count * 2), dim3(THREADS), 0, (const uint4 *)src,
                  bytes / 16, sink);
}

cudaError_t bandwidth_copy(const struct kernel_context *ctx, void *dst, const void *src,
                           uint64_t bytes)
{
    return launch(ctx, copy_kernel, dim3(ctx->sm_count * 2), dim3(THREADS), 0, (uint4 *)dst,
                  (const uint4 *)src, bytes / 16);
}

cudaError_t bandwidth_fill(const struct kernel_context *ctx, void *dst, uint64_t bytes,
                           uint64_t seed)
{
    struct kernel_context plain = *ctx;
    plain.pdl = false;
    return launch(&plain, fill_kernel, dim3(ctx->sm_count * 8), dim3(256), 0, (uint32_t *)dst,
                  bytes / 4, seed);
}

} // extern "C"
