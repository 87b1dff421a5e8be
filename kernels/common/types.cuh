/* types.cuh - bf16 and f16 behind one set of names; sums are always float32. */
#pragma once

#include "common/ptx.cuh"

template <typename T> __host__ __device__ constexpr bool is_bf16()
{
    return false;
}
template <> __host__ __device__ constexpr bool is_bf16<__nv_bfloat16>()
{
    return true;
}

template <typename T> __device__ __forceinline__ float to_float(T v);
template <> __device__ __forceinline__ float to_float(__nv_bfloat16 v)
{
    return __bfloat162float(v);
}
template <> __device__ __forceinline__ float to_float(__half v)
{
    return __half2float(v);
}
/* f16 saturates: a massive activation must not become infinity. */
template <typename T> __device__ __forceinline__ T from_float(float v);
template <> __device__ __forceinline__ __nv_bfloat16 from_float(float v)
{
    return __float2bfloat16_rn(v);
}
template <> __device__ __forceinline__ __half from_float(float v)
{
    return __float2half_rn(v > 65504.f ? 65504.f : v < -65504.f ? -65504.f : v);
}
template <typename T> __device__ __forceinline__ uint32_t pack2(float lo, float hi)
{
    T v[2] = {from_float<T>(lo), from_float<T>(hi)};
    uint32_t r;
    memcpy(&r, v, 4);
    return r;
}
template <> __device__ __forceinline__ uint32_t pack2<__nv_bfloat16>(float lo, float hi)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
template <typename T> __device__ __forceinline__ float2 unpack2(uint32_t v);
template <> __device__ __forceinline__ float2 unpack2<__nv_bfloat16>(uint32_t v)
{
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}
template <> __device__ __forceinline__ float2 unpack2<__half>(uint32_t v)
{
    __half2 h;
    memcpy(&h, &v, 4);
    return __half22float2(h);
}

/* c += a b, a 16 x 16 row-major, b 16 x 8 column-major. */
template <typename T>
__device__ __forceinline__ void mma_16816(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                          uint32_t a3, uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void mma_16816<__nv_bfloat16>(float (&c)[4], uint32_t a0, uint32_t a1,
                                                         uint32_t a2, uint32_t a3, uint32_t b0,
                                                         uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},"
                 "{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma_16816<__half>(float (&c)[4], uint32_t a0, uint32_t a1,
                                                  uint32_t a2, uint32_t a3, uint32_t b0,
                                                  uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},"
                 "{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
/* Rows 0..7 of c only: rows 8..15 of a are zero and their results dropped. */
template <typename T>
__device__ __forceinline__ void mma_top(float &c0, float &c1, uint32_t a0, uint32_t a2, uint32_t b0,
                                        uint32_t b1)
{
    float c[4] = {c0, c1, 0.f, 0.f};
    mma_16816<T>(c, a0, 0, a2, 0, b0, b1);
    c0 = c[0];
    c1 = c[1];
}

/* Sums of two products. Which of the two is fused is said here: left to the compiler it is this one in one place and that one in
 * another, and a row is to have the same bits wherever it is computed. */
__device__ __forceinline__ float products_sum(float a, float b, float c, float d) /* a b + c d */
{
    return __fmaf_rn(a, b, __fmul_rn(c, d));
}
__device__ __forceinline__ float squares_sum(float x, float y, float z, float w)
{
    return __fadd_rn(products_sum(x, x, y, y), products_sum(z, z, w, w));
}

template <int WIDTH> __device__ __forceinline__ float lanes_sum(float v)
{
#pragma unroll
    for (int o = WIDTH / 2; o; o >>= 1)
        v += __shfl_xor_sync(~0u, v, o);
    return v;
}
template <int WIDTH> __device__ __forceinline__ float lanes_max(float v)
{
#pragma unroll
    for (int o = WIDTH / 2; o; o >>= 1)
        v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    return v;
}
/* Sum over a block of THREADS threads, the same bits in every thread; scratch: 32 floats of shared memory. */
template <int THREADS> __device__ __forceinline__ float block_sum(float v, float *scratch)
{
    v = lanes_sum<32>(v);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = v;
    __syncthreads();
    float s = 0.f;
#pragma unroll
    for (int w = 0; w < THREADS / 32; w++)
        s += scratch[w];
    return s;
}
