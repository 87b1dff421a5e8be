/* decode_chain_link.cuh - what the clusters of a decode chain send each other: sums of attn_out and ffn_out, through L2.
 *
 * Data and flag are one: a packet is 16 bytes that are stored and loaded as one (three floats and the number of the exchange), so
 * there is no fence and no flag of its own, and whoever waits looks at the packet itself. Two halves are used in turns; a block
 * writes one again only after the exchange in between, for which every block had to have read it. Numbers go on from launch to
 * launch (the head of the memory has the last one), so nothing is cleared between launches; they may wrap, since a packet's old
 * number is always that of two exchanges before. The memory begins as zeros. */
#pragma once

#include "decode_chain.cuh"

namespace
{

struct packet {
    float x[3];
    uint32_t number;
};

/* One store, one load, of 16 bytes (PTX memory model, .b128), past L1. */
__device__ __forceinline__ void send_packet(void *to, const packet &v)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .b128 q; .reg .b64 a, b; mov.b64 a, {%1, %2}; mov.b64 b, {%3, %4};"
                 " mov.b128 q, {a, b}; st.relaxed.gpu.global.b128 [%0], q; }" ::"l"(to),
                 "f"(v.x[0]), "f"(v.x[1]), "f"(v.x[2]), "r"(v.number)
                 : "memory");
#endif
}
__device__ __forceinline__ packet load_packet(const void *from)
{
    packet v = {};
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .b128 q; .reg .b64 a, b; ld.relaxed.gpu.global.b128 q, [%4];"
                 " mov.b128 {a, b}, q; mov.b64 {%0, %1}, a; mov.b64 {%2, %3}, b; }"
                 : "=f"(v.x[0]), "=f"(v.x[1]), "=f"(v.x[2]), "=r"(v.number)
                 : "l"(from)
                 : "memory");
#endif
    return v;
}

/* N packets, `stride` bytes apart, all of number `number`. Some seconds without them: a block is missing, which cannot be mended;
 * the trap makes it the launch's failure and not a device that hangs. */
template <uint32_t N>
__device__ __forceinline__ void receive_packets(packet (&v)[N], const char *from, uint32_t stride,
                                                uint32_t number)
{
    constexpr uint32_t LOOKS_MAX = 1u << 23;
    uint32_t looks = 0;
    bool all;

    asm volatile("" : "+l"(from)); /* the address is computed once, not for each look */
    do {
        all = true;
#pragma unroll
        for (uint32_t i = 0; i < N; i++)
            v[i] = load_packet(from + i * stride);
#pragma unroll
        for (uint32_t i = 0; i < N; i++)
            all = all && v[i].number == number;
        if (++looks == LOOKS_MAX) __trap();
    } while (!all);
}

} // namespace
