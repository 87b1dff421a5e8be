/* bandwidth.h - plain reading and copying, for the limits that the other kernels are measured against. */
#pragma once

#include "common/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* bytes: a multiple of 16. sink: 4 bytes, written only if the data happen to sum to a certain word. */
cudaError_t bandwidth_read(const struct kernel_context *ctx, const void *src, uint64_t bytes,
                           uint32_t *sink);
cudaError_t bandwidth_copy(const struct kernel_context *ctx, void *dst, const void *src,
                           uint64_t bytes);
/* Random bits whose halves, read as bf16 or f16, are finite and of moderate size. */
cudaError_t bandwidth_fill(const struct kernel_context *ctx, void *dst, uint64_t bytes,
                           uint64_t seed);

#ifdef __cplusplus
}
#endif
