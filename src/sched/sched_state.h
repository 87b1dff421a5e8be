/* sched_state.h - what the files of sched/ share. Not for other folders. */
#pragma once

#include "sched/sched.h"

/* What the tenants of one hash have had, and who of them waits. */
struct account {
    struct seq_link waiting; /* circular, in the order of order_before */
    uint64_t served;         /* tokens */
    uint32_t holds;          /* slots */
    bool listed, active, floods;
    int64_t arrived_ns; /* its last sequence */
    double rate;        /* tokens that it has had of late, faded (flood.c) */
    double context;     /* mean tokens of its sequences, half of the answer included */
};
enum { ACCOUNTS = 1024 };

/* flood.c: what those that take much more than their share may add to a step. */
struct flood {
    uint16_t active[ACCOUNTS];    /* accounts with a sequence or an arrival not long ago */
    uint32_t active_count, count; /* count: that flood */
    double prompt_tokens;         /* that those who do not flood have to compute, in the mean */
    int64_t ticked_ns;
    /* of the step that is planned */
    double row_ns, pair_ns;
    double part_ns, answers_ns; /* what prompts, and answers, may add to it */
    double
        prompts_left_ns; /* of the part, and of those before it where they were too small (flood.c) */
    bool known;          /* what follows from step times */
    bool whole;          /* nothing of prompts_left_ns has been used */
    bool others_prompts; /* others have chunks of prompts in it */
    bool closed;         /* the others come first */
    bool idle;           /* the step is empty: whoever wants may fill it */
};

/* What blocks in use hold, and for how long: the time mean of (places - tokens) / places. */
struct waste {
    int64_t since_ns;        /* the places and tokens are those of this moment */
    uint64_t places, tokens; /* of blocks that sequences refer to, shared ones once */
    double held_ns,
        wasted_ns; /* integrals over the time in which there were places: of 1, of the share not filled */
};

struct load { /* of running sequences, after the last plan */
    uint32_t decodes;
    uint64_t decode_pairs, rows_under_way, rows_of_floods;
    uint16_t ends[FORECAST_STEPS];
};

struct sched {
    struct sched_options options;
    const struct plan *plan;
    const struct device_limits *limits;
    struct kv_space kv;
    struct seq_link lists[SEQ_STATE_COUNT]; /* circular, one head per state; WAITING: in accounts */
    struct account accounts[ACCOUNTS];
    struct account *listed[ACCOUNTS];    /* all with somebody waiting, and some that had */
    uint32_t listed_count, holder_count; /* accounts; that hold slots */
    uint64_t served;                     /* by the account that was served last, before that */
    struct flood flood;
    struct {
        const struct account *account;
        int64_t ns;
    } recent[2]; /* the last arrival, and the last of another account */
    uint32_t counts[SEQ_STATE_COUNT];
    uint64_t arrivals;
    uint64_t done_seq_no;
    uint64_t preemptions, recomputed_tokens;
    struct window window;
    struct cost_model cost;
    struct waste waste;
    struct load load;
    enum seq_hold held; /* the waiting list, after the last plan */
    int64_t held_ns;    /* when that was */
    uint64_t holds[HOLDS];
    int64_t now_ns;            /* of the step that is being planned */
    struct sequence **by_slot; /* [max_num_seqs]; meaningful for slots that are held */
    uint32_t *free_slots;      /* [max_num_seqs] stack */
    uint32_t free_slot_count;
    uint32_t *tables; /* [max_num_seqs][sum of table_blocks] block tables by slot */
    uint32_t table_blocks[KV_GROUPS_MAX];
    uint32_t table_stride; /* sum of table_blocks */
    bool has_window;       /* some KV group keeps a window only */
};

/* list.  A link is the first field that changes hands; its sequence is found by offset. */
struct sequence *sched_link_seq(const struct seq_link *link);
void sched_move(struct sched *sched, struct sequence *seq, enum seq_state state);
void sched_unlink(struct sched *sched, struct sequence *seq); /* it is on no list then */

/* order.c */
void order_init(struct sched *sched);
/* When it would be served if all were served at once: its arrival, a class later by so much. */
int64_t order_due(const struct sched *sched, const struct sequence *seq);
/* By priority, then order_due, then arrival. */
bool order_before(const struct sched *sched, const struct sequence *a, const struct sequence *b);
/* It waits from now on. */
void order_enqueue(struct sched *sched, struct sequence *seq);
/* The first of the waiting that may start; NULL: none. */
struct sequence *order_first(struct sched *sched,
                             bool (*may_start)(struct sched *sched, struct sequence *seq));
/* It gets a slot and its tenant is charged so many tokens of its prompt; one sampled token. */
void order_admitted(struct sched *sched, struct sequence *seq, uint32_t tokens);
void order_released(struct sched *sched, const struct sequence *seq); /* its slot */
void order_sampled(struct sched *sched, const struct sequence *seq);
/* Arrival of the oldest of the waiting; now_ns: none waits. O(waiting). */
int64_t order_oldest_ns(const struct sched *sched, int64_t now_ns);

/* flood.c */
void flood_arrival(struct sched *sched, struct account *account, int64_t now_ns);
/* It got a slot, and so many tokens of its prompt are to be computed. */
void flood_admitted(struct sched *sched, struct account *account, const struct sequence *seq,
                    uint32_t tokens);
void flood_tick(struct sched *sched);       /* sees who floods; sched->now_ns is set */
void flood_begin_step(struct sched *sched); /* after it, once for each step */
/* Whether nobody but those that flood has anything to compute, though others are about. */
bool flood_has_device(const struct sched *sched);
bool flood_floods(const struct sched *sched, const struct sequence *seq);
/* Whether a sequence of the account may start in this step. */
bool flood_may_start(const struct sched *sched, const struct account *account);
/* Of the next `rows` rows of a prompt, those that may be in this step. */
uint32_t flood_rows(const struct sched *sched, const struct sequence *seq, uint32_t rows);
/* The next `rows` rows of it are in this step. */
void flood_put(struct sched *sched, const struct sequence *seq, uint32_t rows);

/* admission.c */
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
/* What it is about to pass (kv_seq_pass) and is not an entry yet becomes one, so that the index keeps it while there is room: who has to give
 * up its blocks, and who continues its text, can begin behind it. */
void admission_passing(struct sched *sched, struct sequence *seq);
/* It ends: nobody waits for what it has not computed. */
void admission_retract(struct sched *sched, struct sequence *seq);
/* Takes back a slot and blocks: the sequence is GONE, or, if it was LEAVING, WAITING again. */
void admission_release(struct sched *sched, struct sequence *seq);

/* survey.c */
/* Counts the time since the last call, and looks anew. O(sequences that hold blocks). */
void survey(struct sched *sched);

/* preempt.c */
/* A sequence gives up its blocks, now or when its steps are done; `needy` itself, if it is the last in order, but pins first. false: nobody
 * has to, one is about to already. */
bool preempt_for(struct sched *sched, struct sequence *needy);
