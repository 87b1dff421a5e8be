/* engine_state.h - what the files of engine/ share. Not for other folders.
 *
 * Who ends what. A choice is CHOICE_OPEN until its end is decided (delivery.c's close_choice, exactly once). A request is let go of when all its
 * choices are closed, the scheduler has handed back all its sequences, and nothing waits for room in its ring. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "base/notify.h"
#include "engine/engine.h"
#include "sched/sched.h"

enum { STEPS_AHEAD_MAX = 8, BELLS_MAX = 64 };

/* choice.kept: what the output side has said of the choice. */
enum {
    KEPT_NONE = UINT32_MAX,      /* nothing */
    KEPT_FINAL = UINT32_MAX - 1, /* too late: the engine has ended the choice by itself */
};                               /* else: engine_end_choice's kept_tokens */

struct choice {
    struct sequence seq; /* seq.owner is the engine_request */
    uint32_t number;
    uint32_t work; /* tokens of its prompt to be computed, as admitted: in the queue's counts */
    bool open;     /* engine thread: its end is not decided yet */
    bool in_sched; /* engine thread */
    bool started;  /* engine thread: it has been in a step; it does not count as waiting any more */
    bool scored;   /* OUTPUT_PROMPT_SCORED was pushed */
    bool owes_finished; /* OUTPUT_FINISHED waits for room */
    enum finish_reason reason;
    uint32_t counted; /* its tokens that count; the engine's until kept is KEPT_FINAL, then fixed */
    bool output_ended; /* output side: engine_end_choice was called */
    _Atomic uint32_t
        kept; /* see above: engine_end_choice and delivery.c agree here who was first */
};

struct engine_request {
    struct request *request;
    struct engine_request *inbox_next;
    struct engine_request *live_next, *live_prev; /* all that the engine has */
    struct engine_request *dirty_next;            /* outputs were pushed in this turn */
    bool dirty, pushed;
    bool owes_error; /* OUTPUT_ERROR waits for room */
    enum status error_status;
    const char *error; /* static, or error_text */
    struct seq_credit credit;
    uint32_t reserved;    /* places of the ring kept for OUTPUT_PROMPT_SCORED */
    uint32_t owed;        /* outputs that wait for room */
    uint32_t open_count;  /* open choices */
    uint32_t sched_count; /* choices the scheduler has */
    int64_t no_room_ns;   /* since when the ring has had no room for what waits; 0: it has */
    struct forecast_prompt prompt; /* its prompts, each once */
    enum seq_class class;          /* of its choices when it came */
    uint32_t kind;                 /* sched/forecast.h */
    int64_t predicted_ns,
        limit_ns; /* of the first token, as admitted; limit 0: none. predicted -1: not known */
    char error_text[256];
    uint32_t choice_count;
    struct choice choices[];
};

struct flight { /* a step between plan and result */
    struct step *step;
    struct sched_step planned;
    struct step_record record; /* but for what the result tells */
};

/* Numbers that others read: each is stored whole, by the engine thread. */
struct published {
    _Atomic int64_t last_progress_ns;
    _Atomic uint64_t steps, prompt_tokens, generation_tokens, cached_tokens, computed_tokens;
    _Atomic uint64_t step_classes[ENGINE_STEP_CLASSES];
    _Atomic uint64_t kv_places, kv_tokens;
    _Atomic uint32_t held;
    _Atomic uint64_t requests_finished, requests_aborted, requests_failed;
    _Atomic uint32_t seqs_running, seqs_waiting, seqs_blocked;
    _Atomic uint32_t kv_blocks_total, kv_blocks_used, kv_usage_ppm;
    _Atomic uint64_t step_rows_sum, step_ns_sum, host_ns_sum;
    _Atomic uint64_t preemptions, recomputed_tokens, prefix_evictions;
    _Atomic uint32_t prefix_blocks, prefix_pinned, flooding;
    _Atomic uint64_t kv_held_ns, kv_wasted_ns;
    _Atomic int64_t window_ns;
    _Atomic uint32_t arrivals_per_ks;
    _Atomic uint64_t window_fired[WINDOW_TRIGGERS], holds[HOLDS];
    _Atomic double step_ns, row_ns, pair_ns; /* sched/forecast.h */
    _Atomic uint64_t decode_pairs, rows_under_way, rows_of_floods;
    _Atomic uint64_t kv_tokens_left; /* forecast.kv_tokens */
    _Atomic uint16_t ends[FORECAST_STEPS];
    _Atomic uint32_t forecast_ready, decodes, free_slots;
    _Atomic double margin[FORECAST_KINDS]; /* engine.margin */
    _Atomic uint32_t idle;
    _Atomic uint32_t
        starts_per_ks; /* sequences that left the waiting list, per 1000 s: measured over the last seconds */
};

enum { QUEUE_ACCOUNTS = 256 };
struct queue_account { /* in the queue: of the tenants of one hash */
    _Atomic uint32_t seqs;
    _Atomic uint64_t tokens; /* of their prompts */
    _Atomic uint64_t work;   /* of them, to be computed (sched/forecast.h) */
};
struct queue_class { /* choices of one class */
    _Atomic uint32_t seqs;
    _Atomic uint64_t work;
};

struct engine {
    struct engine_options options;
    struct device *device;
    const struct plan *plan;
    const struct device_limits *limits;
    struct sched *sched;
    pthread_t thread;
    bool thread_runs;

    /* shared with other threads */
    struct notify *wake;
    _Atomic(struct engine_request *) inbox; /* newest first */
    _Atomic(struct request *) attention;    /* newest first */
    _Atomic uint32_t queued_seqs;           /* submitted and not started */
    _Atomic uint64_t queued_tokens;         /* their prompt tokens */
    struct queue_class queue_classes[SEQ_CLASSES];
    struct queue_account queue_accounts[QUEUE_ACCOUNTS];
    _Atomic uint32_t queue_account_count; /* that have something there */
    _Atomic uint32_t stopping;
    _Atomic uint64_t turns; /* ended, by the engine thread */
    _Atomic(const char *) dead_reason;
    _Atomic uint64_t requests_submitted, requests_rejected;
    _Atomic uint64_t
        generation_shown; /* the largest total that engine_stats has told: a counter never falls */
    _Atomic uint64_t
        late_discarded; /* tokens that an engine_end_choice took back after the choice had ended */
    _Atomic uint64_t notified;     /* device_notify calls that have returned from notify_signal */
    _Atomic uint64_t late_mallocs; /* of the engine thread */
    struct published published;
    struct step_records records;

    /* the engine thread's */
    struct engine_request live; /* head of the list, choice_count 0 */
    struct engine_request *dirty;
    struct output_bell *bells[BELLS_MAX]; /* rung in this turn */
    uint32_t bell_count;
    uint32_t owed; /* outputs that wait for room, over all requests */
    uint32_t deadline_count;
    uint32_t depth; /* steps in flight at most */
    uint64_t planned_seq_no, done_seq_no;
    int64_t step_since_ns;    /* since when the device works on the oldest step in flight */
    uint64_t steps_submitted; /* each is followed by a device_notify, sooner or later */
    struct flight flights[STEPS_AHEAD_MAX]; /* step n at n % depth */
    int64_t now_ns;
    int64_t next_sweep_ns;
    int64_t rate_since_ns;
    uint32_t starts; /* since then */
    double starts_per_s;
    struct forecast_margin margin;
    struct engine_stats totals; /* what published is copied from */
    void *step_memory;
    struct sched_entry *entry_memory;
};

/* calibrate.c: before the engine thread runs. Errors: STATUS_DEVICE, STATUS_DEVICE_LOST. */
enum status calibrate(struct engine *e, struct error *err);

/* step_loop.c: the engine thread. */
void *step_loop(void *engine);
void step_loop_publish(struct engine *e); /* before the thread runs: by its maker */

/* delivery.c: from results to rings, and how choices and requests end. All on the engine thread. */
void delivery_start(struct engine *e, struct engine_request *er);
void delivery_step(struct engine *e, const struct flight *flight, const struct step_result *result);
void delivery_ended_choices(struct engine *e, struct engine_request *er);
void delivery_abort(struct engine *e, struct engine_request *er);
/* error: static text or er->error_text. */
void delivery_fail(struct engine *e, struct engine_request *er, enum status status,
                   const char *error);
/* Pushes what waits for room. */
void delivery_retry(struct engine *e);
/* Ends requests whose readers stand still. */
void delivery_cut_stalled(struct engine *e);
/* Takes sequences back from the scheduler and lets go of requests that are over. */
void delivery_reap(struct engine *e);
/* Lists and rings for all pushed since the last call. */
void delivery_ring(struct engine *e);
/* sched_options.refill. */
void delivery_refill(void *engine, struct sequence *seq, int64_t now_ns);

/* The request's first token came. */
void engine_first_token(struct engine *e, const struct engine_request *er);
/* The choice is out of the waiting list for good: its share of the queue's bounds is free. */
void engine_leave_queue(struct engine *e, struct choice *choice);
