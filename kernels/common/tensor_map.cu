/* tensor_map.cu - see tensor_map.h. */
#include "common/tensor_map.h"

namespace
{

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

encode_fn find_encode()
{
    void *fn = NULL;
    cudaDriverEntryPointQueryResult found;

    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &fn, 12000, cudaEnableDefault,
                                         &found) ||
        found != cudaDriverEntryPointSuccess)
        return NULL;
    return (encode_fn)fn;
}

} // namespace

extern "C" cudaError_t tensor_map(CUtensorMap *out, enum kernel_type type, const void *base,
                                  uint32_t rank, const uint64_t dims[], const uint64_t strides[],
                                  const uint32_t box[], bool promote)
{
    static const encode_fn encode = find_encode();
    static const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    cuuint64_t d[5], s[4];

    if (!encode) return cudaErrorNotSupported;
    if (rank < 2 || rank > 5) return cudaErrorInvalidValue;
    for (uint32_t i = 0; i < rank; i++) {
        d[i] = dims[i];
        if (i + 1 < rank) s[i] = strides[i];
    }
    CUresult result = encode(
        out,
        type == KERNEL_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        rank, (void *)base, d, s, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B,
        promote ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_NONE,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}
