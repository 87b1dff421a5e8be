/* cluster_send.cuh - what blocks of a cluster need to work as one: stores to each other that a barrier counts, split cluster
 * barriers, and the copies that feed them. sm_90. */
#pragma once

#include "common/ptx.cuh"

__device__ __forceinline__ void cluster_arrive()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ uint32_t cluster_map(uint32_t addr, uint32_t rank)
{
    uint32_t r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(addr), "r"(rank));
    return r;
}
/* 8 or 16 bytes to where `dst` (an address of this block's shared memory) lies in block `rank`; they count towards what its
 * barrier `bar` expects. */
__device__ __forceinline__ void cluster_send8(uint32_t dst, uint32_t bar, uint32_t rank, uint32_t a,
                                              uint32_t b)
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1,%2}, [%3];" ::"r"(
            cluster_map(dst, rank)),
        "r"(a), "r"(b), "r"(cluster_map(bar, rank))
        : "memory");
}
/* 16 bytes to `to` of another block, which its barrier `bar` counts: both as cluster_map() gives them. */
__device__ __forceinline__ void send16(uint32_t to, uint32_t bar, uint4 v)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0],"
                 " {%1,%2,%3,%4}, [%5];" ::"r"(to),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(bar)
                 : "memory");
}
__device__ __forceinline__ void cluster_send16(uint32_t dst, uint32_t bar, uint32_t rank, uint4 v)
{
    send16(cluster_map(dst, rank), cluster_map(bar, rank), v);
}
__device__ __forceinline__ void mbarrier_arrive_many(uint64_t *bar, uint32_t arrivals)
{
    asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0], %1; }" ::"r"(smem_addr(bar)),
                 "r"(arrivals)
                 : "memory");
}
/* As tma_load_3d. */
__device__ __forceinline__ void tma_load_4d(void *dst, const void *map, uint64_t *bar, int c0,
                                            int c1, int c2, int c3)
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(smem_addr(dst)),
                 "l"(map), "r"(smem_addr(bar)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
                 : "memory");
}
/* Contiguous bytes to shared memory; addresses and size are multiples of 16. */
__device__ __forceinline__ void bulk_load(void *dst, const void *src, uint32_t bytes, uint64_t *bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];" ::"r"(smem_addr(dst)),
                 "l"(src), "r"(bytes), "r"(smem_addr(bar))
                 : "memory");
}
/* Contiguous bytes to L2 only. */
__device__ __forceinline__ void bulk_prefetch(const void *src, uint32_t bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(src), "r"(bytes) : "memory");
}
