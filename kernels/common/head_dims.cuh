/* head_dims.cuh - the head sizes that a family of kernels is compiled for, listed once: what fits, and which code runs. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <type_traits>

template <int... D> struct head_dims {
    static bool has(uint32_t head_dim)
    {
        return ((head_dim == D) || ...);
    }

    /* run(std::integral_constant<int, head_dim>) for a size of the list, else cudaErrorInvalidValue. */
    template <typename F> static cudaError_t dispatch(uint32_t head_dim, F run)
    {
        cudaError_t e = cudaErrorInvalidValue;
        (void)((head_dim == D && (e = run(std::integral_constant<int, D>()), true)) || ...);
        return e;
    }
};
