/* context.cu - what the device can do, asked of the code that really runs on it. */

#include "common/launch.cuh"

__global__ void probe_kernel()
{
    pdl_trigger();
    pdl_wait();
}

/* Of a size that lets one block onto an SM. */
constexpr int PROBE_BYTES = 120 * 1024;

static cudaError_t count_clusters(struct kernel_context *ctx)
{
    cudaError_t e = cudaFuncSetAttribute(probe_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         PROBE_BYTES);

    for (unsigned n = 2; !e && n <= CLUSTER_MAX; n++) {
        cudaLaunchConfig_t config = {};
        cudaLaunchAttribute attribute;
        int count = 0;

        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = n;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
        config.gridDim = dim3(n * (unsigned)ctx->sm_count);
        config.blockDim = dim3(288);
        config.dynamicSmemBytes = PROBE_BYTES;
        config.attrs = &attribute;
        config.numAttrs = 1;
        e = cudaOccupancyMaxActiveClusters(&count, probe_kernel, &config);
        ctx->clusters[n] = (uint16_t)count;
    }
    ctx->clusters[1] = (uint16_t)ctx->sm_count;
    return e;
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
    return ctx->capability >= 90 ? count_clusters(ctx) : cudaSuccess;
}
