/* context.cu - what the device can do, asked of the code that really runs on it. */
#include "common/launch.cuh"

__global__ void probe_kernel()
{
    pdl_trigger();
    pdl_wait();
}

/* Code for compute_80 that the driver translated for a newer device has no griddepcontrol: the version of the code counts,
 * not that of the device. */
cudaError_t kernel_context_init(struct kernel_context *ctx)
{
    cudaFuncAttributes attributes;
    int device = 0;
    cudaError_t e = cudaGetDevice(&device);

    *ctx = {};
    if (!e) e = cudaDeviceGetAttribute(&ctx->sm_count, cudaDevAttrMultiProcessorCount, device);
    if (!e) e = cudaFuncGetAttributes(&attributes, probe_kernel);
    if (e) return e;
    ctx->capability = attributes.ptxVersion >= 90 ? 90 : 80;
    ctx->pdl = ctx->capability >= 90;
    return cudaSuccess;
}
