/* planner.h - what a plan takes and what fits, worked out before anything large is taken.
 *
 * planner_fit() turns options into the limits that a device is compiled for, and into the bytes of every holder. `inferd plan`
 * prints them, `inferd serve` compiles them: one function, so the two cannot disagree. The arithmetic:
 *
 *     budget      = memory_bytes * utilization                              where the memory is known
 *     fixed       = weights + activations + logits + ... , all but the KV pool (device_memory.h)
 *     KV pool     = kv_bytes, or budget - fixed where none was asked for, in whole blocks
 *     context     = max_model_len, or the model's own, or what the pool holds if that is less
 *     sequences of full length = blocks / ceil(context / block_tokens), of the group of layers that has the fewest
 *
 * Where layers differ in what they see (full attention, a window), each group has a pool of its own, and how many blocks it should have depends on
 * how long sequences are: short ones need as many in each group, long ones few in those with a window. Lengths are not known, so the pools are
 * sized for the worst choice of them to do least harm. Let N(C) be the sequences of C tokens that the bytes would hold if every block could be of
 * any group (at most max_num_seqs). A pool wants W = max over C of N(C) * (its blocks of a sequence of C tokens). Each first gets what one sequence of
 * the whole context needs, with the rows of a step; the rest is dealt in proportion to W. So every load of equal sequences gets about the same
 * share, 1 / (sum of W in bytes / bytes), of what it would with pools made for it alone, or more. (One pool of pages that any group can take would
 * get all of it, but needs a layout in which a block's layers lie side by side; the devices keep each layer's blocks together.)
 *
 * Pure: reads headers' content only, no weights, no device. Thread: any. */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "device/device_memory.h"
#include "device/plan.h"

struct planner_options {
    struct device_options device;
    uint32_t max_num_seqs;           /* sequences at once */
    uint32_t max_num_batched_tokens; /* rows of a step; raised to max_num_seqs */
    uint32_t max_logprobs;
    uint64_t max_model_len; /* tokens; 0: see above */
    uint64_t
        kv_bytes; /* of the KV pool at most; 0: what the budget leaves (memory_bytes must be known) */
    uint64_t memory_bytes; /* of the device; 0: not known, then only kv_bytes bounds anything */
    double utilization;    /* share of memory_bytes that may be used, 0..1 */
};

struct planner_stored { /* the model's weights as they lie in its files, tied tables once */
    uint32_t tensors[DTYPE_COUNT];
    uint64_t bytes[DTYPE_COUNT];
    uint64_t total_bytes;
};

struct planner_fit {
    struct device_limits limits;
    struct device_memory memory; /* of these limits */
    uint64_t budget_bytes;       /* 0: memory not known */
    uint64_t fixed_bytes;        /* device memory of all but the KV pool */
    uint64_t pool_bytes;         /* all KV groups; their blocks are in limits */
    uint64_t block_bytes;        /* one block of each KV group */
    uint32_t block_tokens;
    uint64_t blocks;    /* of the group that has most: the one that keeps all tokens */
    uint64_t kv_tokens; /* blocks * block_tokens */
    uint64_t full_sequences;
};

/* On a refusal *out still has what is known by then: memory.lines with a pool of one block.
 * Errors: STATUS_NOMEM (it does not fit: the arithmetic), STATUS_INVALID (max_model_len), STATUS_UNSUPPORTED (as
 * device_memory_plan). */
enum status planner_fit(const struct planner_options *options, const struct plan *plan,
                        struct planner_fit *out, struct error *err);

void planner_stored_weights(const struct plan *plan, struct planner_stored *out);

/* Whether what lies in the host's memory fits in `available` bytes: all of it for the CPU and null devices, else host_bytes.
 * STATUS_NOMEM with the arithmetic. available 0: not known, all fits. */
enum status planner_check_host(const struct planner_fit *fit, enum device_kind kind,
                               uint64_t available, struct error *err);

/* --- host_memory.c --- */
/* Bytes that this process could still take without swapping: MemAvailable, or what its memory control groups leave if that is
 * less; 0 when the system does not tell. */
uint64_t planner_host_available(void);
/* What the process's control group and those above it leave, the least of it; UINT64_MAX where nothing is limited. root as in
 * base/cgroup.h. */
uint64_t planner_cgroup_left(const char *root);

/* --- planner_print.c --- */
struct planner_subject { /* what the pages name */
    const char *path, *description, *device;
    uint64_t parameters;
    bool weights_present;    /* false: shape only, from its config */
    uint64_t host_available; /* 0: not known */
    const char *refused;     /* the sentence; NULL: it fits */
};
void planner_print(const struct planner_subject *subject, const struct planner_options *options,
                   const struct plan *plan, const struct planner_fit *fit, FILE *to);
/* The caller's reference; NULL without memory. Keys: docs/planning.md. */
json_t *planner_json(const struct planner_subject *subject, const struct planner_options *options,
                     const struct plan *plan, const struct planner_fit *fit);
