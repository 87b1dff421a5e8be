/* step_state.h - what the device keeps by slot, changed and read out at the start of a step.
 *
 * A step's image (built by the host, copied to the device) names what is new: opens, block-table entries, copies, and one
 * entry per row and per logits row. state_rows turns it into the arrays at fixed addresses that the kernels of the body
 * read, so that a graph captured once serves every step of its number of rows. */
#pragma once

#include "common/context.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { STATE_GROUPS_MAX = 4, STATE_REFS = 16 };
enum { SEEN_IN_PROMPT = 0x8000, SEEN_SAMPLED_MAX = 0x7fff };

/* Sampling state of a slot; meaning in device/step.h, struct step_open. */
struct slot_params {
    float temperature, top_p, min_p_log; /* min_p_log: ln(min_p), -INFINITY when off */
    int32_t top_k;
    float repetition_penalty, frequency_penalty, presence_penalty;
    uint32_t ban_until;
    uint64_t seed;
    uint32_t top_logprobs, want_logprobs, banned_count, bias_count;
    uint32_t counts_seen; /* a penalty is on */
    uint32_t slot;        /* in an image: which slot this is for */
    uint32_t banned_first, prompt_first, prompt_count, sampled_first, sampled_count, bias_first;
};
struct slot_bias {
    int32_t id;
    float bias;
};
struct slot_state {             /* device pointers */
    struct slot_params *params; /* [slots] */
    int32_t *banned;            /* [slots, banned_max] */
    struct slot_bias *biases;   /* [slots, bias_max] */
    uint16_t *
        seen; /* [slots, vocab] of slots with counts_seen: bit 15 in the prompt, below: times sampled */
    int32_t *last; /* [slots, STATE_REFS] tokens of the latest step that sampled */
    uint32_t slots, banned_max, bias_max, vocab;
};

/* Reopens slots: params, ids and biases out of the image, seen counted anew. opens: device, [count]. */
cudaError_t state_open(const struct kernel_context *ctx, const struct slot_state *state,
                       const struct slot_params *opens, uint32_t count, const int32_t *ids,
                       const struct slot_bias *biases);

struct state_table_change {
    uint32_t slot, group, index, block;
};
struct state_row {
    int32_t token; /* literal, or bit 31 set: TOKEN_OF(slot, k) = 0x80000000 | slot << 4 | k */
    int32_t position;
    int32_t slot;
};
struct state_rows_args {
    uint32_t rows, padded_rows; /* entries rows..padded_rows-1 are written as padding */
    const struct state_row *in; /* [rows] in the image */
    uint32_t outputs, padded_outputs;
    const int32_t *out_rows_in; /* [outputs] row of each logits row */
    uint32_t table_count;
    const struct state_table_change *tables_in;
    const int32_t *last; /* slot_state.last */
    uint32_t group_count;
    int32_t *tables[STATE_GROUPS_MAX]; /* [slots, table_stride] */
    uint32_t table_stride;
    int32_t *tokens, *positions, *slots; /* [padded_rows]; padding: -1, -1, 0 */
    int32_t *kv_slots[STATE_GROUPS_MAX]; /* [padded_rows] block * 16 + token; padding -1 */
    int32_t *out_rows;                   /* [padded_outputs]; padding 0 */
};
cudaError_t state_rows(const struct kernel_context *ctx, const struct state_rows_args *args);

struct state_copy {
    uint32_t from, to;
};
/* Copies whole blocks, all layers: pool [layers, blocks, block_bytes], block_bytes % 16 == 0. */
cudaError_t state_copy_blocks(const struct kernel_context *ctx, void *pool, uint32_t layers,
                              uint64_t blocks, uint64_t block_bytes,
                              const struct state_copy *copies, uint32_t count);
/* One block of all layers between the pool and a contiguous buffer [layers, block_bytes]. */
cudaError_t state_gather_block(const struct kernel_context *ctx, void *pool, uint32_t layers,
                               uint64_t blocks, uint64_t block_bytes, uint32_t block, void *buffer,
                               bool to_pool);

#ifdef __cplusplus
}
#endif
