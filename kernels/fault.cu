/* fault.cu - see fault.h. One thread each; no memory is touched. */
#include "fault.h"

__global__ void trap_kernel()
{
    asm volatile("trap;");
}

__global__ void spin_kernel(uint64_t ns)
{
    uint64_t begun, now;

    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
    do {
        __nanosleep(1000);
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - begun < ns);
}

cudaError_t fault_trap(const struct kernel_context *ctx)
{
    trap_kernel<<<1, 1, 0, ctx->stream>>>();
    return cudaGetLastError();
}

cudaError_t fault_spin(const struct kernel_context *ctx, uint32_t seconds)
{
    spin_kernel<<<1, 1, 0, ctx->stream>>>(seconds * 1000000000ull);
    return cudaGetLastError();
}
