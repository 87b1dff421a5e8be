/* sched.h - which sequences run in the next step. It reads no clock and starts no thread: the time is an argument, so the
 * simulator drives the very same code.
 *
 * A step is planned in this order, within the step's rows, logits rows and arrays:
 *   1. decode: one row for each running sequence that has one to compute (a running sequence is in every step; where rows do
 *      not suffice for all, those left out come first next time);
 *   2. chunks of prompts under way, oldest first; a chunk that is not the last ends at a multiple of 16 positions;
 *   3. when the window opens (window.h), admission from the waiting list in order of priority, then of what their
 *      tenants have had, then of class and arrival (below): a sequence gets a slot and a promise of the KV blocks of
 *      its tokens so far, if then each running one can still get a block; else it and all behind it wait (so that large ones do not
 *      starve). One whose beginning is just being computed by a running sequence waits for that, and lets others pass; so do the
 *      candidates of one prompt.
 * Preemption: where a running sequence needs a block and there is none, one gives up its blocks (a blocked one, else the last in
 * order of priority, then class and arrival), keeps its arrival, and computes its tokens again later, but for those that the prefix index still
 * has. One that has given way three times comes back with all the blocks that it may need, and keeps them while it runs. The first of the order is never chosen while another runs, and alone it fits (sched_fits), so there is always progress.
 * In a KV group with a window a sequence holds the blocks that its next rows see, and is promised no more than these and those of a step's rows
 * (kv/kv_seq.h); one that is promised all shares none of them while it runs.
 * Order: larger priority first, strictly. Of equal priority, the tenant that has had fewer tokens (prompts when admitted, answers as they
 * come); one that comes after a pause has had what the last one served had had: it is not paid for its absence. Within a tenant by arrival, where
 * class fast (at most 8 tokens to sample), normal (64) and slow count as 0, 1 and 2 times class_age_ns later: a slow one is overtaken
 * only by those that come within so long after it, so within a priority none starves.
 * While several tenants are there, one that holds more than its share of slots leaves an eighth of slots and blocks free, and one that has had several
 * times the others' of late adds to a step only a small part of the time that their first tokens take, and while it is alone its steps are not planned
 * ahead (flood.c); it is preempted before others.
 * Pins: the beginning of a sequence that asks for it (pin_tokens, pin_s) is kept in the prefix index after it for so long, within a quarter of the
 * blocks; where a sequence that is alone, or the last in order, would have to give way, idle pins end instead.
 * Invariants (sched_check): a sequence is on the list its state names; the slots of RUNNING, BLOCKED, LEAVING and ENDING are distinct
 * and the rest are free; blocks are held by these and the prefix index only; every step stays within the limits.
 * Thread: engine thread only. Memory: all taken by sched_create. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/step.h"
#include "sched/cost_model.h"
#include "sched/forecast.h"
#include "sched/sequence.h"
#include "sched/window.h"

struct sched; /* opaque */

struct sched_options {
    uint32_t max_num_seqs;           /* sequences with a slot at once, 1..limits.slots_max */
    uint32_t max_num_batched_tokens; /* rows of a step, 1..limits.rows_max */
    bool share_prefixes;             /* sequences that begin alike share blocks (kv/kv_prefix.h) */
    int64_t max_wait_ns; /* longest window of admission (window.h); 0: none is held back */
    bool fixed_window;   /* everybody is held back so long: to compare with */
    double
        target_throughput; /* prompt tokens a second below 80 % of which the window opens; 0: none */
    int64_t class_age_ns;  /* what a class is worth of waiting; 0: classes do not count */
    int64_t
        max_step_ns; /* chunks of prompts beside decoding sequences are cut so that a step takes no longer; 0: no bound */
    /* Called when a sequence's credit is used up: may raise credit->left (never above what the ring can take). NULL: it stays. */
    void (*refill)(void *ctx, struct sequence *seq, int64_t now_ns);
    void *refill_ctx;
};

/* What one sequence does in a step. Its outputs are the step's outputs output_first .. output_first + output_count - 1: scores
 * of the prompt tokens at positions first_position + 1, ..., and as the last one, where `samples`, a sampled token. */
struct sched_entry {
    struct sequence *seq;
    uint32_t first_position, rows;
    uint32_t output_first, output_count;
    bool samples;
};
struct sched_step {
    uint64_t seq_no;
    uint32_t entry_count, row_count;
    uint64_t pairs;              /* cost_model.h */
    struct sched_entry *entries; /* [max_num_seqs], lent */
};

struct sched_counts {
    uint32_t waiting, running, blocked, leaving, ending;
    uint32_t flooding;                        /* tenants that are held back for the others' sake */
    uint32_t kv_blocks_total, kv_blocks_used; /* used: by sequences */
    uint32_t
        kv_usage_ppm; /* used of 10^6 blocks, in the KV group that has the smallest part left */
    uint32_t prefix_entries, prefix_pinned;
    uint64_t prefix_evictions;
    uint64_t preemptions,
        recomputed_tokens; /* tokens whose KV was given up by preempted ones and not found again */
    /* time in which sequences held blocks, and its integral over the share of their places without a token (shared blocks once): the
     * quotient is the mean waste */
    uint64_t kv_held_ns, kv_wasted_ns;
    uint64_t kv_places,
        kv_tokens;         /* of blocks that sequences hold, now: places, and tokens in them */
    enum seq_hold held;    /* what the waiting list waits for, where somebody waits */
    uint64_t holds[HOLDS]; /* plans after which somebody still waited, by what for */
};

/* Errors: STATUS_INVALID (an option out of its bounds), STATUS_NOMEM. Borrows plan and limits. */
enum status sched_create(const struct sched_options *options, const struct plan *plan,
                         const struct device_limits *limits, struct sched **out, struct error *err);
void sched_destroy(struct sched *sched); /* takes NULL; aborts when a sequence is still in it */

/* Whether the sequence could run if it were alone. STATUS_INVALID with the sentence. Reads only what never changes: any thread. */
enum status sched_fits(const struct sched *sched, const struct sequence *seq, struct error *err);

/* Prompt positions of a sequence that has not been added that would probably be there already when it starts; fewer than its prompt. Where others of
 * the same text go before it, `sharing`: those that it would take from them at most. Any thread. */
uint32_t sched_guess_cached(const struct sched *sched, const struct sequence *seq, bool sharing);

/* Puts a sequence that fits in its place among the waiting. Borrows it until sched_reap gives it back. */
void sched_add(struct sched *sched, struct sequence *seq, int64_t now_ns);
/* The sequence wants nothing more. Nothing of it is in later steps. Idempotent. A step of it that failed must be told by seq->spoiled
 * before this, and before sched_step_done of that step: what it computed there is not shared. */
void sched_end(struct sched *sched, struct sequence *seq);
/* A sequence that is GONE, or NULL: it belongs to its owner again. */
struct sequence *sched_reap(struct sched *sched);

/* Plans step seq_no into `step` (cleared by the call) and tells in *out who is in it. false: there is nothing to compute (or, while an earlier step is
 * not done, nothing that may be planned ahead: ask again when it is); the number may be used again. */
bool sched_plan(struct sched *sched, uint64_t seq_no, int64_t now_ns, struct step *step,
                struct sched_step *out);
/* All steps up to seq_no are done: what only they used is free. */
void sched_step_done(struct sched *sched, uint64_t seq_no);

/* The step took so long on the device: for cost_model.h. */
void sched_observe(struct sched *sched, const struct sched_step *step, int64_t device_ns);
const struct cost_model *sched_cost_model(const struct sched *sched);
/* For predictions of the time to first tokens. */
struct forecast sched_forecast(const struct sched *sched);
const struct window *sched_window(const struct sched *sched);
/* When a fixed window that holds somebody back opens by age; INT64_MAX: there is none. Another opens at the end of a step. */
int64_t sched_opens_ns(const struct sched *sched);

/* Blocked sequences that have credit again run on; true when there was one. Called by sched_plan too. */
bool sched_unblock(struct sched *sched, int64_t now_ns);

struct sched_counts sched_counts(const struct sched *sched);
/* Asserts the invariants. O(everything). */
void sched_check(const struct sched *sched);
