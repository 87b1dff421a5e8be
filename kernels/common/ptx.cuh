/* ptx.cuh - one named function per hand-written instruction, with the hardware reason. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

/* --- programmatic dependent launch (context.h); nothing on sm_80 --- */
__device__ __forceinline__ void pdl_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void pdl_trigger()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* --- loads --- */
/* 16 bytes that nobody writes while this kernel runs and that are read once: past L1, 128-byte L2 fetch. */
__device__ __forceinline__ uint4 load_stream(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3},[%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
/* The same for bytes of which some may come from the previous kernel of the chain: coherent, after pdl_wait(). */
__device__ __forceinline__ uint4 load_stream_coherent(const void *p)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3},[%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
/* 16 bytes that the previous kernel of the chain wrote: a plain load, never moved above pdl_wait(). */
__device__ __forceinline__ uint4 load_shared_state(const void *p)
{
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3},[%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
__device__ __forceinline__ uint32_t smem_addr(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* --- cp.async: global to shared memory without registers, sm_80 --- */
__device__ __forceinline__ void cp_async16(uint32_t dst, const void *src, bool valid)
{
    /* a source size of 0 fills the 16 bytes with zeros and reads nothing */
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
                 "r"(valid ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int PENDING> __device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* --- mbarrier and TMA, sm_90 --- */
__device__ __forceinline__ void mbarrier_init(uint64_t *bar, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(smem_addr(bar)), "r"(arrivals)
                 : "memory");
}
/* Makes the barriers visible to the copy engine, which is another proxy. Of shared memory only: for all memory the fence is a wait for
 * the whole device (MEMBAR.ALL.GPU), in front of the first weights that a kernel asks for. */
__device__ __forceinline__ void mbarrier_init_fence()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
__device__ __forceinline__ void mbarrier_arrive(uint64_t *bar)
{
    asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"(smem_addr(bar))
                 : "memory");
}
__device__ __forceinline__ void mbarrier_expect(uint64_t *bar, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(smem_addr(bar)),
                 "r"(bytes)
                 : "memory");
#endif
}
__device__ __forceinline__ void mbarrier_wait(uint64_t *bar, uint32_t parity)
{
#if __CUDA_ARCH__ >= 900
    uint32_t done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2;"
                     " selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(smem_addr(bar)), "r"(parity)
                     : "memory");
#endif
}
/* A box of a tensor map to shared memory. Weights are read once per step: evict first, so that they do not push
 * activations and KV out of L2. */
__device__ __forceinline__ void tma_load_3d(void *dst, const void *map, uint64_t *bar, int c0,
                                            int c1, int c2)
{
#if __CUDA_ARCH__ >= 900
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(smem_addr(dst)),
                 "l"(map), "r"(smem_addr(bar)), "r"(c0), "r"(c1), "r"(c2), "l"(policy)
                 : "memory");
#endif
}

/* A tensor map in kernel parameters, to where the copy engine looks for it first. */
__device__ __forceinline__ void tensor_map_prefetch(const void *map)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#endif
}
/* --- clusters, sm_90: blocks that see each other's shared memory --- */
__device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t r = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
#endif
    return r;
}
__device__ __forceinline__ uint32_t cluster_index()
{
    uint32_t r = blockIdx.x;
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(r));
#endif
    return r;
}
__device__ __forceinline__ uint32_t cluster_count()
{
    uint32_t r = gridDim.x;
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(r));
#endif
    return r;
}
/* All threads of all blocks of the cluster; what was written before is seen after. */
__device__ __forceinline__ void cluster_sync()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
#endif
}
/* The same, but nothing written is handed over: who only must not go too early need not wait for writes. */
__device__ __forceinline__ void cluster_meet()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n"
                 "barrier.cluster.wait.aligned;" ::
                     : "memory");
#endif
}
/* Where the same variable lies in another block of the cluster. */
template <typename P> __device__ __forceinline__ P *cluster_peer(P *p, uint32_t rank)
{
    P *r = p;
#if __CUDA_ARCH__ >= 900
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(r) : "l"(p), "r"(rank));
#endif
    return r;
}

/* --- tensor cores --- */
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

/* --- arithmetic --- */
__device__ __forceinline__ float exp2_fast(float x) /* 2 ulp; flushes subnormals; exp2(-inf) = 0 */
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
