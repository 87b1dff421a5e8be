/* tensor_map.h - describes a tensor of 16-bit numbers to the copy engine (TMA): plain C, host side, no device needed after the
 * driver's function has been found. */
#pragma once

#include <cuda.h>

#include "common/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of `rank` dims. dims, box: [rank] elements, innermost first; strides: [rank - 1] bytes, of dims 1 and up. Boxes land with 128-byte swizzle; what
 * lies past a dim becomes zero. promote: L2 fetches 256 bytes at a time; not for weights read once, whole: it fetches the neighbouring
 * 128 bytes too early (8 % slower). Errors: cudaErrorNotSupported (driver), cudaErrorInvalidValue (alignment, sizes). */
cudaError_t tensor_map(CUtensorMap *out, enum kernel_type type, const void *base, uint32_t rank,
                       const uint64_t dims[], const uint64_t strides[], const uint32_t box[],
                       bool promote);
static inline cudaError_t tensor_map_3d(CUtensorMap *out, enum kernel_type type, const void *base,
                                        const uint64_t dims[3], const uint64_t strides[2],
                                        const uint32_t box[3], bool promote)
{
    return tensor_map(out, type, base, 3, dims, strides, box, promote);
}

#ifdef __cplusplus
}
#endif
