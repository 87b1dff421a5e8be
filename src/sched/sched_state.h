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
    uint32_t *free_slots; /* [max_num_seqs] stack */
    uint32_t free_slot_count;
    uint32_t *tables; /* [max_num_seqs][sum of table_blocks] block tables by slot */
    uint32_t table_blocks[KV_GROUPS_MAX];
    uint32_t table_stride; /* sum of table_blocks */
};

/* list.  A link is the first field that changes hands; its sequence is found by offset. */
struct sequence *sched_link_seq(const struct seq_link *link);
void sched_move(struct sched *sched, struct sequence *seq, enum seq_state state);

/* admission.c */
void admission_enqueue(struct sched *sched, struct sequence *seq);
/* Gives the first waiting sequence its slot and promise, if both are to be had: it is RUNNING then. NULL otherwise. */
struct sequence *admission_next(struct sched *sched);
/* Takes back a slot and blocks: the sequence is GONE. */
void admission_release(struct sched *sched, struct sequence *seq);
