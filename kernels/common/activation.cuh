/* activation.cuh - what gated feed-forward parts put on the gate: 0 silu, 1 gelu by its tanh formula; and tanh itself. All are quotients
 * with exp(), short and without branches; tests/kernels hold what is made of them against float64. */
#pragma once

/* v / (1 + exp(-v)); gelu is v / (1 + exp(-2 u)), as 1 + tanh(u) is 2 / (1 + exp(-2 u)). -0 where exp() is infinite. */
__device__ __forceinline__ float activate(float v, int act)
{
    const float u = act == 0 ? v : 1.5957691216f * (v + 0.044715f * v * v * v);
    return __fdividef(v, 1.f + __expf(-u));
}
/* To some 2^-22 of 1, also near 0. */
__device__ __forceinline__ float tanh_fast(float v)
{
    return 1.f - __fdividef(2.f, 1.f + __expf(2.f * v));
}
