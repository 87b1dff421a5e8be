/* model_harness.h - runs token lists through a model on any device and gives the logits back.
 *
 * For tests of devices and kernels: opens weights, model and device, keeps a fixed set of KV blocks per slot (in a shuffled
 * order, so that tables matter) and builds the steps. Add ${PROJECT_SOURCE_DIR}/tests/model_harness.c to a test's sources and
 * depend on model. A fault fails the test. */
#pragma once

#include <stdbool.h>

#include "device/device.h"
#include "model/model.h"

struct harness_options {
    struct device_options device;
    struct model_options model;
    uint32_t slots;          /* 0: 16 */
    uint32_t rows_max;       /* 0: 512 */
    uint32_t logits_max;     /* 0: rows_max */
    uint32_t context_tokens; /* 0: the plan's, at most 2048 */
    uint32_t steps_inflight; /* 0: 2 */
    uint32_t top_logprobs_max;
    uint32_t kv_blocks; /* of every group; 0: for all slots, as the harness itself needs them */
};

struct harness {
    struct weights *weights;
    struct model *model;
    const struct plan *plan;
    struct device *device;
    struct device_limits limits;
    struct step *steps[8]; /* [steps_inflight] */
    uint64_t seq_no;
    uint32_t *blocks[PLAN_GROUPS_MAX]; /* shuffled ids: block i of slot s is [s * per_slot + i] */
    uint32_t per_slot[PLAN_GROUPS_MAX];
};

/* Opens `path` (GGUF file or folder) and compiles. */
void harness_open(struct harness *h, const char *path, const struct harness_options *options);
void harness_close(struct harness *h);

/* A sequence to run, and where its logits go. */
struct harness_seq {
    const int32_t *tokens;
    uint32_t count;
    uint32_t logits_from; /* first position whose logits are wanted */
    float *logits;        /* [count - logits_from][vocab_rows], filled */
};
/* How prompts are cut. */
struct harness_cut {
    uint32_t chunk_max; /* rows of a sequence per step; 0: as many as fit */
    bool random;        /* 1..chunk_max at random, and sequences join at random */
};
/* Runs all sequences (at most `slots`) together, one slot each. */
void harness_run(struct harness *h, const struct harness_seq *seqs, uint32_t count,
                 struct harness_cut cut);

/* Runs all sequences again, in chunks of up to chunk_max rows of which random ones want logits: beside seqs[].logits, which have those of
 * all rows (logits_from 0). */
struct harness_difference {
    uint32_t rows;       /* that were compared */
    double worst, scale; /* largest difference of a logit; largest logit */
};
struct harness_difference harness_compare_some(struct harness *h, const struct harness_seq *seqs,
                                               uint32_t count, uint32_t chunk_max);

/* Greedy continuation in slot 0 with steps in flight ahead of their tokens: what an engine does. */
void harness_greedy(struct harness *h, const int32_t *prompt, uint32_t prompt_count, uint32_t count,
                    int32_t *out);

/* --- for tests that build their own steps --- */
/* The next step, cleared; at most steps_inflight of them unreleased. */
struct step *harness_step(struct harness *h);
/* Opens the slot with `open` (NULL: greedy) and gives it its blocks up to `tokens` tokens. */
void harness_open_slot(struct harness *h, struct step *step, uint32_t slot,
                       const struct step_open *open, uint32_t tokens);
/* Adds a segment with its tokens; targets are TARGET_SAMPLE. Returns it. */
struct step_segment *harness_segment(struct step *step, uint32_t slot, const int32_t *tokens,
                                     uint32_t rows, uint32_t context_len, uint32_t logits_first,
                                     uint32_t logits_count);
void harness_submit(struct harness *h, struct step *step);
/* Waits for the step; the caller releases it. */
const struct step_result *harness_wait(struct harness *h, uint64_t seq_no);
struct step_open harness_greedy_open(uint32_t slot);
