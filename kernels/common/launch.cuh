/* launch.cuh - a launch with or without programmatic dependence; DISPATCH picks the number type. */
#pragma once

#include "common/context.h"
#include "common/types.cuh"

template <typename... P, typename... A>
static cudaError_t launch(const struct kernel_context *ctx, void (*kernel)(P...), dim3 grid,
                          dim3 block, size_t shared_bytes, A... args)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute;

    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = ctx->stream;
    config.attrs = &attribute;
    config.numAttrs = ctx->pdl ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, P(args)...);
}

/* The same with clusters of `cluster` blocks along x. */
template <typename... P, typename... A>
static cudaError_t launch_clusters(const struct kernel_context *ctx, void (*kernel)(P...),
                                   dim3 grid, dim3 block, size_t shared_bytes, unsigned cluster,
                                   A... args)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2];

    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = cluster;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = ctx->stream;
    config.attrs = attributes;
    config.numAttrs = ctx->pdl ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, P(args)...);
}

#define DISPATCH(ctx, call)               \
    do {                                  \
        if ((ctx)->type == KERNEL_BF16) { \
            using T = __nv_bfloat16;      \
            return call;                  \
        } else {                          \
            using T = __half;             \
            return call;                  \
        }                                 \
    } while (0)
