/* step_state.cu - see step_state.h. Small kernels, a few microseconds each; only state_rows runs in every step. */
#include "common/launch.cuh"
#include "kv_layout.h"
#include "step_state.h"

namespace
{

__device__ __forceinline__ void count_seen(uint16_t *seen, int32_t id, bool prompt)
{
    /* 16-bit entries through their 32-bit word: several threads may hold neighbours */
    uint32_t *word = (uint32_t *)((uintptr_t)(seen + id) & ~(uintptr_t)3);
    const uint32_t shift = ((uintptr_t)(seen + id) & 2) * 8;
    if (prompt) {
        atomicOr(word, (uint32_t)SEEN_IN_PROMPT << shift);
        return;
    }
    uint32_t old = *word, want;
    do {
        want = old;
        if (((old >> shift) & SEEN_SAMPLED_MAX) == SEEN_SAMPLED_MAX) return;
        old = atomicCAS(word, want, want + (1u << shift));
    } while (old != want);
}

__global__ void open_kernel(const __grid_constant__ struct slot_state state,
                            const struct slot_params *opens, const int32_t *ids,
                            const struct slot_bias *biases)
{
    pdl_wait();
    const struct slot_params o = opens[blockIdx.x];
    const uint32_t t = threadIdx.x, n = blockDim.x;
    if (t == 0) state.params[o.slot] = o;
    if (t < STATE_REFS) state.last[(uint64_t)o.slot * STATE_REFS + t] = 0;
    for (uint32_t i = t; i < o.banned_count; i += n)
        state.banned[(uint64_t)o.slot * state.banned_max + i] = ids[o.banned_first + i];
    for (uint32_t i = t; i < o.bias_count; i += n)
        state.biases[(uint64_t)o.slot * state.bias_max + i] = biases[o.bias_first + i];
    if (!o.counts_seen) return;
    uint16_t *seen = state.seen + (uint64_t)o.slot * state.vocab; /* vocab is even: words align */
    for (uint32_t i = t; i < state.vocab; i += n)
        seen[i] = 0;
    __syncthreads();
    for (uint32_t i = t; i < o.prompt_count; i += n)
        count_seen(seen, ids[o.prompt_first + i], true);
    for (uint32_t i = t; i < o.sampled_count; i += n)
        count_seen(seen, ids[o.sampled_first + i], false);
}

/* One block: table changes come before the rows that read them. It does not trigger early: kernels further down the chain
 * read positions and tables before their own wait. */
__global__ void __launch_bounds__(1024)
    rows_kernel(const __grid_constant__ struct state_rows_args a)
{
    pdl_wait();
    for (uint32_t i = threadIdx.x; i < a.table_count; i += blockDim.x) {
        const struct state_table_change c = a.tables_in[i];
        a.tables[c.group][(uint64_t)c.slot * a.table_stride + c.index] = (int32_t)c.block;
    }
    __syncthreads();
    for (uint32_t r = threadIdx.x; r < a.padded_rows; r += blockDim.x) {
        struct state_row in = {-1, -1, 0};
        if (r < a.rows) {
            in = a.in[r];
            if (in.token < 0) {
                const uint32_t ref = (uint32_t)in.token & 0x7fffffffu;
                in.token = a.last[(uint64_t)(ref >> 4) * STATE_REFS + (ref & 15)];
            }
        }
        a.tokens[r] = in.token;
        a.positions[r] = in.position;
        a.slots[r] = in.slot;
        for (uint32_t g = 0; g < a.group_count; g++)
            a.kv_slots[g][r] = r < a.rows ? a.tables[g][(uint64_t)in.slot * a.table_stride +
                                                        in.position / KV_BLOCK_TOKENS] *
                                                    KV_BLOCK_TOKENS +
                                                in.position % KV_BLOCK_TOKENS
                                          : -1;
    }
    for (uint32_t i = threadIdx.x; i < a.padded_outputs; i += blockDim.x)
        a.out_rows[i] = i < a.outputs ? a.out_rows_in[i] : 0;
}

__global__ void copy_kernel(uint4 *pool, uint64_t blocks, uint64_t words,
                            const struct state_copy *copies)
{
    pdl_wait();
    const struct state_copy c = copies[blockIdx.x];
    uint4 *layer = pool + (uint64_t)blockIdx.y * blocks * words;
    for (uint64_t i = threadIdx.x; i < words; i += blockDim.x)
        layer[c.to * words + i] = layer[c.from * words + i];
}

__global__ void gather_kernel(uint4 *pool, uint64_t blocks, uint64_t words, uint32_t block,
                              uint4 *buffer, bool to_pool)
{
    uint4 *in_pool = pool + ((uint64_t)blockIdx.x * blocks + block) * words;
    uint4 *in_buffer = buffer + blockIdx.x * words;
    for (uint64_t i = threadIdx.x; i < words; i += blockDim.x)
        if (to_pool)
            in_pool[i] = in_buffer[i];
        else
            in_buffer[i] = in_pool[i];
}

} // namespace

extern "C" {

cudaError_t state_open(const struct kernel_context *ctx, const struct slot_state *state,
                       const struct slot_params *opens, uint32_t count, const int32_t *ids,
                       const struct slot_bias *biases)
{
    if (!count) return cudaSuccess;
    return launch(ctx, open_kernel, dim3(count), dim3(256), 0, *state, opens, ids, biases);
}

cudaError_t state_rows(const struct kernel_context *ctx, const struct state_rows_args *args)
{
    return launch(ctx, rows_kernel, dim3(1), dim3(args->padded_rows > 256 ? 1024 : 256), 0, *args);
}

cudaError_t state_copy_blocks(const struct kernel_context *ctx, void *pool, uint32_t layers,
                              uint64_t blocks, uint64_t block_bytes,
                              const struct state_copy *copies, uint32_t count)
{
    if (!count) return cudaSuccess;
    return launch(ctx, copy_kernel, dim3(count, layers), dim3(256), 0, (uint4 *)pool, blocks,
                  block_bytes / 16, copies);
}

cudaError_t state_gather_block(const struct kernel_context *ctx, void *pool, uint32_t layers,
                               uint64_t blocks, uint64_t block_bytes, uint32_t block, void *buffer,
                               bool to_pool)
{
    struct kernel_context plain = *ctx;
    plain.pdl = false;
    return launch(&plain, gather_kernel, dim3(layers), dim3(256), 0, (uint4 *)pool, blocks,
                  block_bytes / 16, block, (uint4 *)buffer, to_pool);
}

} // extern "C"
