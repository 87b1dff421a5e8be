/* cpu_sample.h - from a row of logits to a token, with the state that each slot keeps for it.
 *
 * Order of operations and the draw: device/step.h, struct step_open. Filters keep the likeliest by (logit, then smaller id);
 * each works on what the one before has kept: min_p against the largest probability, top_k by count, top_p by mass of
 * the kept. The vocabulary is never sorted: bounds that each filter implies cut it to a list of candidates, and a filter is a
 * threshold on (logit, id), found by counting the list into bins and ordering one bin.
 * Thread: rows of different slots may run on different threads, each with its own scratch; one slot's rows in order. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "device/cpu/cpu_kernels.h"
#include "device/step.h"

/* Tokens seen, per token of the vocabulary: bit 15 in the prompt, below it how often sampled (saturating). */
enum { SEEN_PROMPT = 0x8000, SEEN_COUNT_MAX = 0x7fff, SAMPLE_REFS = 16 };

struct sample_slot {
    struct step_open
        open; /* the parameters; its first/count fields of ids and biases are of a step long gone */
    uint32_t banned_count, bias_count;
    int32_t *banned;          /* [banned_max] */
    struct step_bias *biases; /* [bias_max] */
    uint16_t *seen;           /* [vocab_rows]; all zero unless seen_used */
    bool seen_used;
    int32_t last[SAMPLE_REFS]; /* tokens of the latest step that sampled: TOKEN_OF(slot, k) */
};

struct sample_scratch { /* each [vocab_rows] */
    float *work;        /* logits as changed */
    float *z, *p;       /* of candidates: (logit - largest) / temperature, and its exp */
    uint32_t *ids;      /* of candidates, ascending */
    uint64_t *heap;
};

/* Replaces the slot's state by that of opens[index] of the step. */
void sample_slot_open(struct sample_slot *slot, const struct step *step, uint32_t index,
                      uint32_t vocab_rows);
bool sample_wants_seen(const struct step_open *open);

struct sample_row {
    const struct cpu_kernels *kernels;
    const float *logits;               /* [vocab_rows], raw; read only */
    uint32_t vocab_rows, vocab_tokens; /* tokens beyond vocab_tokens are never drawn */
    const uint32_t *mask;              /* bit set: allowed; NULL: no mask */
    uint32_t position;                 /* of the token to draw: the row's own + 1 */
    int32_t target;                    /* TARGET_SAMPLE, or an id to be scored */
};
/* Fills *out and tops (room for the slot's top_logprobs). A drawn token is counted in the slot. */
void sample_row(const struct sample_row *row, struct sample_slot *slot,
                struct sample_scratch *scratch, struct step_output *out, struct top_logprob *tops);
