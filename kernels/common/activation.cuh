/* activation.cuh - what gated feed-forward parts put on the gate: 0 silu, 1 gelu by its tanh formula. */
#pragma once

__device__ __forceinline__ float activate(float v, int act)
{
    if (act == 0) return __fdividef(v, 1.f + __expf(-v)); /* -0 where exp() is infinite */
    const float u = 0.7978845608f * (v + 0.044715f * v * v * v);
    return 0.5f * v * (1.f + tanhf(u));
}
