/* fake_device.h - a device for tests of the engine: no model, but real KV pages, and it checks every step that it is given.
 *
 * KV: a token per position, in (group, block, offset), reached through the slot's block table as a real device would. The token
 * sampled at position p is a hash of ALL tokens at positions 0..p-1 as read through the tables, of the seed and of p. So a wrong table, a
 * wrong position, a block given away too early or a wrong TOKEN_OF gives wrong tokens, which the test's own sum (fake_token)
 * shows. Checked besides (abort): step_check; seq_no without a gap; steps_inflight; positions contiguous; tables complete; a block that
 * is written is used by no other slot in any step in flight; opens before use; body, then sample. */
#pragma once

#include <stdatomic.h>

#include "device/device.h"

struct fake_options {
    uint32_t step_us;           /* a step takes 0..2 * step_us, at random */
    uint32_t row_ns;            /* and so much a row */
    uint64_t fail_one_in;       /* of so many steps one gives STATUS_DEVICE; 0: none */
    uint64_t refuse_one_in;     /* of so many submissions one gives STATUS_DEVICE; 0: none */
    uint64_t bad_logits_one_in; /* of so many outputs one is OUTPUT_BAD_LOGITS; 0: none */
    uint64_t lose_at;           /* this step loses the device; 0: none */
    const atomic_bool *hold;    /* while it is true no step ends; NULL: they do */
    bool answer_only;           /* no KV, no checks, made-up tokens: for measuring the host */
    uint64_t seed;
};

struct device *fake_device_open(const struct fake_options *options);

/* A plan with these groups and nothing else, for limits and pools. */
void fake_plan(struct plan *plan, uint32_t groups, uint32_t vocab, uint32_t context);

/* The hash of tokens[0..count-1], and what is sampled after them for a seed: never one of banned[] while count < ban_until. */
uint64_t fake_history(uint64_t history, int32_t token);
int32_t fake_token(uint64_t history, uint64_t seed, uint32_t position, uint32_t vocab,
                   uint32_t ban_until, const int32_t *banned, uint32_t banned_count);
float fake_logprob(uint64_t history, int32_t token);

/* Rows and segments that it has computed, largest step. */
struct fake_counts {
    uint64_t steps, rows, copies;
    uint32_t rows_max, segments_max;
};
struct fake_counts fake_device_counts(struct device *device);
