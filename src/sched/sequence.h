/* sequence.h - one choice of a request as the scheduler sees it: prompt, tokens sampled so far, where it stands.
 *
 *   sched_add            admission          credit used up
 *  NEW ------> WAITING ----------> RUNNING <--------------> BLOCKED
 *               |  ^                   |        credit again    |
 *               |  |                   +-----------+------------+
 *               |  |                   | preempt   | sched_end
 *               |  +---- LEAVING <-----+        ENDING   in both, slot and blocks stay until the steps that use them are done
 *               | sched_end    \ sched_end         | sched_step_done
 *               |               +--> ENDING        |
 *               +------------> GONE <--------------+     sched_reap hands it back to its owner
 *
 * The state names the list the sequence is on. Counting: positions 0..prompt_count-1 are the prompt, position
 * prompt_count + i is sampled token i. computed <= prompt_count + sampled_planned, sampled_known <= sampled_planned <=
 * max_new: the scheduler is ahead of what the host has seen by the steps in flight.
 * Memory: the owner's, until GONE. Thread: engine thread only, from sched_add on. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "device/step.h"
#include "kv/kv_seq.h"

enum seq_state {
    SEQ_NEW,
    SEQ_WAITING,
    SEQ_RUNNING,
    SEQ_BLOCKED,
    SEQ_LEAVING,
    SEQ_ENDING,
    SEQ_GONE,
    SEQ_STATE_COUNT,
};

/* Room for outputs, shared by the sequences of one ring: left + in_flight never exceeds what the ring can take. */
struct seq_credit {
    uint32_t left;      /* samples that may still be planned; the scheduler takes from it */
    uint32_t in_flight; /* samples planned whose token is not known yet; the owner takes from it */
};

/* What kept the waiting list from going on in a step. */
enum seq_hold {
    HOLD_NONE,   /* it came after that step was planned */
    HOLD_WINDOW, /* window.h */
    HOLD_SLOTS,  /* none is free */
    HOLD_BLOCKS, /* too few KV blocks, or others are about to give some back */
    HOLD_ROWS,   /* the step was full */
    HOLD_TURN, /* those that wait do so for a prefix under way, their reader, or other tenants' sake */
    HOLDS
};
const char *seq_hold_name(enum seq_hold hold);

struct seq_link {
    struct seq_link *next, *prev;
};

struct sequence {
    /* the owner fills these before sched_add; read-only from then on */
    const int32_t *prompt; /* [prompt_count], >= 1 */
    uint32_t prompt_count;
    uint32_t max_new;  /* tokens to sample at most; 0: the prompt is only computed (scored) */
    int32_t *sampled;  /* [max_new], lent by the owner, written by sequence_append */
    bool score_prompt; /* every prompt token but the first is a target */
    struct step_open
        open; /* sampling state; the scheduler fills slot and the places of ids and biases */
    const int32_t *banned;          /* [open.banned_count] */
    const struct step_bias *biases; /* [open.bias_count] */
    int32_t priority;               /* larger first */
    uint64_t tenant;                /* those of equal tenant share one account of service */
    uint64_t salt;                  /* only sequences of equal salt share prefixes */
    uint32_t pin_tokens, pin_s;     /* its first tokens are kept so long after it; 0: not */
    struct seq_credit *credit;      /* NULL: no bound */
    void *owner;

    /* the scheduler's */
    struct seq_link link; /* first: of the list that `state` names */
    enum seq_state state;
    int64_t arrived_ns;
    uint64_t arrival;         /* place in the order of arrival, kept for ever */
    uint16_t account;         /* of its tenant (order.c) */
    uint32_t slot;            /* of the device while RUNNING, BLOCKED, LEAVING or ENDING */
    uint32_t computed;        /* positions whose KV has been planned */
    uint32_t sampled_planned; /* tokens that steps so far have been asked for */
    uint32_t sampled_known;   /* of them, seen by the host: sampled[0..sampled_known-1] */
    uint64_t
        last_seq_no; /* the last step that uses its slot and blocks; 0: none since it got the slot */
    int64_t blocked_since_ns; /* while BLOCKED */
    struct kv_seq kv;
    enum seq_hold held; /* what it had been waiting for when it was first admitted */
    uint32_t cached;    /* positions that were there already when it was admitted (kv_prefix.h) */
    uint32_t known_before; /* sampled_known when it was last admitted */
    uint32_t entries; /* its first spans that are entries of the prefix index, its own or adopted */
    uint32_t
        wait_entry; /* while WAITING: a PENDING entry that it waits for; KV_PREFIX_NONE: none */
    uint64_t wait_serial;
    uint32_t
        hit_spans; /* READY spans that the last search found; the last one is hit_entry, if its serial is hit_serial still */
    uint32_t hit_entry;
    uint64_t hit_serial, hit_losses; /* kv_prefix_losses at that search */
    uint32_t preemptions;            /* times that it has given up slot and blocks */
    bool spoiled;                    /* a step of it failed: what its blocks hold is not known */
};

/* Whether it is admitted only with a promise of all the blocks that it will ever need: prompts that are scored, which are never preempted,
 * and those that have been preempted this often. While they run they give way to nobody, so what is computed again is bounded. */
enum { SEQ_PREEMPTIONS_MAX = 3 };
bool sequence_needs_all(const struct sequence *seq);

/* By the tokens that it may sample yet: at most 8, at most 64, more. */
enum seq_class { CLASS_FAST, CLASS_NORMAL, CLASS_SLOW, SEQ_CLASSES };
enum seq_class sequence_class(const struct sequence *seq);
enum seq_class sequence_class_of(uint32_t tokens);

/* Positions that must be computed for the next sample (or, with max_new 0, for the scores: token i is scored by the row before it, so that the
 * last row of a prompt is of use for sampling only). */
static inline uint32_t sequence_target(const struct sequence *seq)
{
    return seq->max_new ? seq->prompt_count + seq->sampled_planned : seq->prompt_count - 1;
}

/* Whether every row and sample that it will ever need has been planned. */
static inline bool sequence_all_planned(const struct sequence *seq)
{
    return seq->max_new ? seq->sampled_planned == seq->max_new
                        : seq->computed == seq->prompt_count - 1;
}

/* Rows that could be planned now: 0 when all samples are planned or everything is computed. */
static inline uint32_t sequence_rows_left(const struct sequence *seq)
{
    return sequence_all_planned(seq) ? 0 : sequence_target(seq) - seq->computed;
}

/* Positions that will ever be in KV: the last sampled token's is never computed. */
uint32_t sequence_kv_tokens(const struct sequence *seq);
/* The token of a row: a literal, or TOKEN_OF where the host has not seen it. */
int32_t sequence_token_at(const struct sequence *seq, uint32_t position);
/* The host has learnt the next sampled token. */
void sequence_append(struct sequence *seq, int32_t token);
/* Only the first `count` sampled tokens were meant. It must end now. */
void sequence_trim(struct sequence *seq, uint32_t count);
/* Ids that a step_open of it carries now. */
uint32_t sequence_open_ids(const struct sequence *seq);
