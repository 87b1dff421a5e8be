/* step.h - one step of the device as a flat block of bytes, and what comes back.
 *
 * The scheduler writes a step, the device reads it; logged or sent to another rank it is the same bytes. A step has
 * segments (runs of rows of one sequence: 1 row is a decode, several are drafted tokens or a chunk of a prompt, the same
 * thing) and what has changed since the last step in the state that the device keeps by slot: block tables and sampling
 * state. Order within a step: copies, opens and table changes first, then the body, then the sampling.
 *
 * Positions: a segment's row r stands at absolute position context_len + r; it attends to all positions up to its own (or
 * the group's window of them). A logits row at position p yields the token at position p + 1.
 *
 * Memory: one allocation of step_bytes(limits); arrays lie at fixed offsets. Thread: one at a time; read-only from
 * device_submit_body() until its seq_no is done. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/plan.h"

/* What a device is compiled for; every step stays within it. */
struct device_limits {
    uint32_t slots_max;      /* sequences with state on the device: slot ids 0..slots_max-1 */
    uint32_t rows_max;       /* rows of a step */
    uint32_t logits_max;     /* logits rows of a step, at most rows_max */
    uint32_t steps_inflight; /* steps submitted and not yet released, 1..8 */
    uint32_t context_tokens; /* longest sequence, prompt and answer; at most plan.context_tokens */
    uint32_t top_logprobs_max;           /* 0..20 */
    uint32_t kv_blocks[PLAN_GROUPS_MAX]; /* blocks per KV group: ids 0..n-1 */
    uint32_t bias_max;                   /* logit_bias entries per slot */
    uint32_t
        banned_max; /* ids per slot that are masked until ban_until (end-of-sequence, stop ids) */
};

/* A row's token: a literal id (>= 0), or the token that the latest earlier step which sampled for `slot` gave it and the
 * host has not seen; k counts the tokens of that step (0 unless drafts are verified). */
#define TOKEN_OF(slot, k) ((int32_t)(0x80000000u | (uint32_t)(slot) << 4 | (uint32_t)(k)))
static inline bool token_is_ref(int32_t token)
{
    return token < 0;
}
static inline uint32_t token_ref_slot(int32_t token)
{
    return ((uint32_t)token & 0x7fffffffu) >> 4;
}
static inline uint32_t token_ref_index(int32_t token)
{
    return (uint32_t)token & 15u;
}

struct step_segment {
    uint32_t slot;
    uint32_t first_row;    /* index into tokens */
    uint32_t rows;         /* >= 1 */
    uint32_t context_len;  /* tokens of the sequence in KV before the first row */
    uint32_t logits_first; /* the first of its rows that wants logits, counted from first_row */
    uint32_t logits_count; /* rows that want logits, 0 in the middle of a prompt; consecutive */
    uint32_t output_first; /* index of its first logits row in targets and in the result */
    uint32_t adapter;      /* 0: none */
};

/* targets[i] for logits row i of the step. */
enum {
    TARGET_SAMPLE = -1
}; /* draw a token by the slot's sampling state; any id >= 0: give that token's logprob */

struct step_table_change { /* block `block` is the index-th of slot's table of group */
    uint32_t slot, group, index, block; /* in front of a group's window a table may have gaps */
};
struct step_copy { /* KV bytes of a whole block, for copy-on-write */
    uint32_t group, from, to;
};
struct step_bias {
    int32_t id;
    float bias;
};

/* (Re)opens a slot: replaces all of its sampling state and empties its block tables. Order of operations on the raw logits of
 * a row: grammar mask and bans; bias; repetition penalty (ids of prompt and sampled); frequency and presence (counts of
 * sampled); then greedy (temperature < 1e-5: largest, ties to the smallest id) or temperature, min_p, top_k, top_p, draw. The draw for
 * the token at position p uses Philox4x32-10 with key = seed (low word first) and counter {p, 0, 0, 0}: u = (word0 + 0.5) * 2^-32,
 * and takes the first token, in order of id over the kept ones, whose running sum of probability exceeds u * total. */
struct step_open {
    uint32_t slot;
    float temperature, top_p, min_p;
    int32_t top_k;                                                 /* <= 0: off */
    float repetition_penalty, frequency_penalty, presence_penalty; /* 1, 0, 0: off */
    uint64_t seed;
    uint32_t
        ban_until; /* absolute position: a token at a position below it is none of the banned ids */
    uint32_t top_logprobs;               /* 0..20 likeliest tokens reported */
    uint32_t want_logprobs;              /* 1: the sampled token's logprob is computed */
    uint32_t banned_first, banned_count; /* ids[...] */
    uint32_t prompt_first,
        prompt_count; /* ids[...]: tokens of the prompt, only where the repetition penalty is on */
    uint32_t sampled_first,
        sampled_count; /* ids[...]: tokens sampled so far (resumed sequences), where a penalty is on */
    uint32_t bias_first, bias_count; /* biases[...] */
};

struct step {
    uint64_t seq_no; /* 1, 2, 3 ... without a gap */
    uint32_t segment_count, row_count, output_count;
    uint32_t table_count, copy_count, open_count, id_count, bias_count;
    uint32_t flags;
    /* capacities and byte offsets from the start of this struct, set by step_init */
    uint32_t segment_cap, row_cap, output_cap, table_cap, copy_cap, open_cap, id_cap, bias_cap;
    uint32_t segments_at, tokens_at, targets_at, tables_at, copies_at, opens_at, ids_at, biases_at;
    uint32_t bytes; /* of the whole block */
};
enum step_flags {
    STEP_KEEP_LOGITS = 1, /* the result carries the raw logits (tests) */
};

/* Bytes of a step for these limits. group_count and block sizes come from the plan. Capacities hold whatever a scheduler can
 * ask for within the limits, but for ids: with penalties on, a step has room for 2^20 tokens of history (or two contexts)
 * beside all bans; a scheduler whose opens would need more (id_count over id_cap) leaves some to the next step. */
size_t step_bytes(const struct plan *plan, const struct device_limits *limits);
/* Lays out an empty step in `memory` of that many bytes, 64-byte aligned. */
struct step *step_init(void *memory, const struct plan *plan, const struct device_limits *limits);
void step_clear(struct step *step, uint64_t seq_no);
/* Whether every index in the step is within the limits and consistent (for asserts and for steps from another rank). */
enum status step_check(const struct step *step, const struct plan *plan,
                       const struct device_limits *limits, struct error *err);

#define STEP_ARRAY(type, name)                                      \
    static inline type *step_##name(const struct step *step)        \
    {                                                               \
        return (type *)((char *)(uintptr_t)step + step->name##_at); \
    }
STEP_ARRAY(struct step_segment, segments)
STEP_ARRAY(int32_t, tokens)
STEP_ARRAY(int32_t, targets)
STEP_ARRAY(struct step_table_change, tables)
STEP_ARRAY(struct step_copy, copies)
STEP_ARRAY(struct step_open, opens)
STEP_ARRAY(int32_t, ids)
STEP_ARRAY(struct step_bias, biases)
#undef STEP_ARRAY

struct top_logprob {
    int32_t id;
    float logprob;
};

enum output_flags {
    OUTPUT_BAD_LOGITS =
        1, /* NaN or infinity, or a mask that allows nothing: the token means nothing, the sequence must end */
};
struct step_output { /* one per logits row */
    int32_t token;   /* sampled, or the target that was scored */
    float logprob;   /* of that token under the raw logits (natural log), where wanted, else 0 */
    uint8_t flags;
    uint8_t
        top_count; /* entries at tops[i * top_stride ...], likeliest first, ties by smaller id */
    uint16_t reserved;
};

struct step_result {
    uint64_t seq_no;
    enum status
        status; /* STATUS_OK, STATUS_DEVICE (this step's sequences are lost), STATUS_DEVICE_LOST */
    struct error error; /* where status is not OK */
    uint32_t output_count;
    const struct step_output *outputs;
    const struct top_logprob *tops;
    uint32_t top_stride;
    const float *logits;          /* [output_count, vocab_rows] with STEP_KEEP_LOGITS, else NULL */
    int64_t started_ns, ended_ns; /* CLOCK_MONOTONIC, as the device saw it */
};

/* Grammar masks for submit_sample: bit t of masks[i] set: token t allowed. NULL entry: no mask. */
struct step_masks {
    uint32_t count;               /* output_count of the step */
    const uint32_t *const *masks; /* [count] -> [(vocab_rows + 31) / 32] */
};
