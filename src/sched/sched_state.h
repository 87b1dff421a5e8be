/* sched_state.h - what the files of sched/ share. Not for other folders. */
#pragma once

#include "sched/sched.h"

struct sched {
    struct sched_options options;
    const struct plan *plan;
    const struct device_limits *limits;
    struct kv_space kv;
    struct seq_link lists[SEQ_STATE_COUNT]; /* circular, one head per state */
    uint32_t counts[SEQ_STATE_COUNT];
    uint64_t arrivals;
    uint64_t done_seq_no;
    uint64_t preemptions, recomputed_tokens;
    struct window window;
    struct cost_model cost;
    int64_t now_ns;       /* of the step that is being planned */
    uint32_t *free_slots; /* [max_num_seqs] stack */
    uint32_t free_slot_count;
    uint32_t *tables; /* [max_num_seqs][sum of table_blocks] block tables by slot */
    uint32_t table_blocks[KV_GROUPS_MAX];
    uint32_t table_stride; /* sum of table_blocks */
};

/* list.  A link is the first field that changes hands; its sequence is found by offset. */
struct sequence *sched_link_seq(const struct seq_link *link);
void sched_move(struct sched *sched, struct sequence *seq, enum seq_state state);
void sched_unlink(struct sched *sched, struct sequence *seq); /* it is on no list then */

/* admission.c */
void admission_enqueue(struct sched *sched, struct sequence *seq);
/* The first waiting sequence that has not to wait for a prefix, if a slot is free; NULL otherwise. */
struct sequence *admission_candidate(struct sched *sched);
/* Positions of the candidate that are there already, and full spans of its prompt. */
uint32_t admission_cached(const struct sched *sched, struct sequence *seq);
uint32_t admission_prompt_spans(const struct sched *sched, const struct sequence *seq);
/* Gives the candidate slot, shared blocks and promise: it is RUNNING then. false: the pool has too few blocks. */
bool admission_admit(struct sched *sched, struct sequence *seq);
/* Step seq_no computes positions from..to-1 of it. */
void admission_computed(struct sched *sched, const struct sequence *seq, uint32_t from, uint32_t to,
                        uint64_t seq_no);
/* It ends: nobody waits for what it has not computed. */
void admission_retract(struct sched *sched, struct sequence *seq);
/* Takes back a slot and blocks: the sequence is GONE, or, if it was LEAVING, WAITING again. */
void admission_release(struct sched *sched, struct sequence *seq);

/* preempt.c */
/* A sequence gives up its blocks, now or when its steps are done; `needy` itself, if it is the last in order. false: nobody has to, one is
 * about to already. */
bool preempt_for(struct sched *sched, struct sequence *needy);
