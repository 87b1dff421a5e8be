/* engine.h - requests in, outputs out: one thread that owns scheduler, KV pool and running sequences outright.
 *
 * Each turn it drains submissions and cancellations, plans one step, hands it to the device, and while the device works
 * it finishes the outputs of the step before (one step ahead: when step n+1 is planned the tokens of step n are not known
 * yet, so a sequence that has ended may run one step too many; what it made then is discarded and counted nowhere).
 * Thread: engine_submit, engine_cancel, engine_end_choice and engine_stats from any; the rest from the owner. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/device.h"
#include "engine/output.h"
#include "engine/request.h"
#include "engine/step_record.h"

struct engine; /* opaque */

/* A beginning of prompts that stays cached for pin_s seconds after each request that begins so. */
struct engine_pin {
    const int32_t *ids;
    uint32_t count;
};

struct engine_options {
    uint32_t max_num_seqs;           /* sequences running at once, 1..limits.slots_max */
    uint32_t max_num_batched_tokens; /* rows of a step, at most limits.rows_max */
    uint32_t
        queue_seqs_max; /* sequences waiting at once (512): beyond it STATUS_FULL, but for tenants that have less than
                                      * their share of it waiting */
    uint64_t queue_tokens_max;  /* prompt tokens waiting at once */
    uint32_t ttft_limit_us;     /* longest predicted time to a first token; 0: no limit */
    uint32_t client_stall_ms;   /* a blocked ring for this long ends its request */
    uint32_t context_tokens;    /* longest sequence */
    uint32_t max_batch_wait_us; /* longest admission window (sched/window.h); 0: none */
    uint32_t target_throughput; /* prompt tokens a second, below 80 % of which it opens; 0: none */
    uint32_t
        class_age_us; /* what a class of length is worth of waiting (sched/sched.h); 0: nothing */
    uint32_t max_itl_us; /* a step with decoding sequences is to take no longer; 0: no bound */
    const struct engine_pin *pins; /* [pin_count], borrowed */
    uint32_t pin_count, pin_s;
    uint32_t
        calibrate_ms; /* engine_create runs steps on trial for about so long, so that step times are known; 0: it learns as it serves */
    bool no_prefix_sharing; /* every prompt is computed in full */
    uint32_t
        step_timeout_ms; /* a device that takes longer for a step has stopped answering: it is lost; 0: no limit */
};

/* Starts the engine thread over a compiled device. Borrows the device, plan and limits until engine_destroy. */
enum status engine_create(const struct engine_options *options, struct device *device,
                          const struct plan *plan, const struct device_limits *limits,
                          struct engine **out, struct error *err);
/* Ends every request that is left with FINISH_CANCELLED, waits for the steps in flight, joins the thread. Takes NULL. */
void engine_destroy(struct engine *engine);

/* Queues the request and takes a reference. Never blocks, never waits for the device.
 * STATUS_FULL: the queue is full, or the first token is predicted for after the request's deadline or ttft_limit_us: 429 with *retry_after_s
 * (>= 1) and the sentence. STATUS_INVALID: it can never run (more sequences than
 * the queue holds, more KV than the pool has): 400 with the sentence. STATUS_CLOSED: it ends or is dead: 503. */
enum status engine_submit(struct engine *engine, struct request *request, uint32_t *retry_after_s,
                          struct error *err);
/* The client has gone: its sequences leave at the next step. Idempotent. No output need be read after it. */
void engine_cancel(struct engine *engine, struct request *request);
/* The output side found stop text in `choice`: later tokens do not count. The choice ends with FINISH_ENDED. kept_tokens:
 * sampled tokens that count (for usage and metrics). Called on the request's I/O thread, once a choice, before or after its OUTPUT_FINISHED was
 * pushed: if the choice had ended already, times.completion_tokens is put right by this very call; else before OUTPUT_FINISHED. */
void engine_end_choice(struct engine *engine, struct request *request, uint32_t choice,
                       uint32_t kept_tokens);

/* Returns when the engine thread has ended a turn that began after the call: what was cancelled or had ended before it is
 * let go of, and its bell is touched no more. For whoever is about to free a bell. Waits some ms, at most 2 s (an engine that
 * stands still). Any thread but the engine's. */
void engine_settle(struct engine *engine);

/* Steps are counted by their rows, in classes up to these; the last one has those with more. */
enum { ENGINE_STEP_CLASSES = 14 };
extern const uint32_t engine_step_rows[ENGINE_STEP_CLASSES - 1];
/* Asks the thread for a turn, so that an idle engine shows by last_progress_ns that it lives. Cheap; any thread. */
void engine_probe(struct engine *engine);

/* A consistent-enough picture for /metrics, /ready and logs; each value was true within the last turn. */
struct engine_stats {
    bool alive;              /* the thread lives and the device is not lost */
    const char *dead_reason; /* static text where not alive */
    int64_t
        last_progress_ns; /* CLOCK_MONOTONIC: a step finished, or a turn had nothing to compute (engine_probe) */
    uint64_t steps;
    uint64_t prompt_tokens, generation_tokens, cached_tokens; /* totals that count */
    uint64_t
        computed_tokens; /* prompt tokens of sequences that have started, but for the cached ones */
    uint64_t requests_submitted, requests_finished, requests_aborted, requests_rejected,
        requests_failed;
    uint32_t seqs_running, seqs_waiting, seqs_blocked;
    uint32_t kv_blocks_total,
        kv_blocks_used; /* used: by sequences; blocks kept for later prompts are not */
    double
        kv_usage; /* share of blocks used, in the KV group (plan.h) that has the smallest part left */
    uint64_t kv_places,
        kv_tokens;          /* of the blocks that sequences hold: places, and tokens in them */
    uint64_t step_rows_sum; /* rows over all steps */
    uint64_t step_classes[ENGINE_STEP_CLASSES];
    uint64_t step_ns_sum;             /* device time over all steps */
    uint64_t host_ns_sum;             /* engine thread's time outside waiting */
    uint64_t late_mallocs;            /* allocations on the step path after start: stays 0 */
    uint64_t late_device_allocations; /* device_health.late_allocations: stays 0 */
    int64_t device_memory_drift;      /* device_health.memory_drift */
    uint64_t preemptions,
        recomputed_tokens; /* KV given up for want of blocks; tokens computed a second time for it */
    uint32_t prefix_blocks; /* entries of the prefix index, in use or kept for later prompts */
    uint64_t prefix_evictions;
    uint32_t prefix_pinned; /* of prefix_blocks */
    uint32_t flooding;      /* tenants held back for the others' sake (sched/sched.h) */
    uint64_t kv_held_ns,
        kv_wasted_ns;  /* time with KV in use; of it, by the share of places that held no token */
    int64_t window_ns; /* admission window as last decided (sched/window.h) */
    uint32_t
        arrivals_per_ks; /* sequences that arrive in 1000 s, averaged over about one; rho = this * window */
    const char
        *waiting_for;  /* static: sched/sequence.h's name of what the waiting list waits for */
    uint64_t holds[6]; /* by enum seq_hold: steps after which somebody still waited, for what */
    uint64_t window_fired[4]; /* by enum window_trigger: idle, size, age, throughput */
};
void engine_stats(const struct engine *engine, struct engine_stats *out);

/* The last steps, oldest first; out: [STEP_RECORDS_MAX]. Returns how many. Any thread. */
uint32_t engine_step_records(const struct engine *engine, struct step_record *out);
