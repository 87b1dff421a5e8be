/* simulate.h - a trace through the real scheduler and block pool on a modelled device, in virtual time.
 *
 * The files of sched/ and kv/ are the daemon's own; around them stands what engine/ does to them (bounded queue, two steps in flight,
 * results before planning), with a virtual clock and no thread. A run depends on its inputs alone: the same twice is the same to the bit.
 *
 *     arrival --request_ns--> queue (full: refused) --> sched_add --> sched_plan .. device_model --> token --reply_ns--> seen
 *
 * A fleet is `replicas` such engines; each arrival goes to one of them when it comes (router). */
#pragma once

#include "bench/device_model.h"
#include "bench/load_report.h"
#include "bench/log_histogram.h"
#include "bench/trace.h"

enum sim_router {
    ROUTE_LEAST, /* fewest tokens still to compute */
    ROUTE_ROUND_ROBIN,
};

enum { SIM_KEYS = 64 };

struct sim_options {
    struct device_model device;
    uint32_t max_num_seqs, max_num_batched_tokens;
    uint32_t queue_seqs_max;
    uint64_t queue_tokens_max;
    double max_batch_wait_ms, max_itl_ms, max_ttft_ms, class_age_ms, target_throughput;
    bool no_prefix_sharing;
    bool calibrates;   /* step times are known from the start, as after serve's --calibrate-ms */
    bool fixed_window; /* of max_batch_wait_ms */
    uint32_t replicas;
    enum sim_router router;
    double speed; /* of the trace: 2: twice as many arrivals a second */
    struct report_slo slo;
};

struct sim_request { /* an arrival of the trace */
    enum sim_fate { SIM_REFUSED, SIM_TOO_LARGE, SIM_DONE } fate;
    double ttft_ms, e2el_ms; /* of one that is done */
};

struct sim_result {
    double seconds; /* virtual, first arrival to last token */
    uint32_t completed, refused, refused_late, too_large, good; /* late: predicted to be */
    uint64_t input_tokens, cached_tokens, output_tokens;
    struct samples ms[REPORT_METRICS];    /* owned; ITL stays empty: */
    struct samples key_ttft_ms[SIM_KEYS]; /* owned; of clients 0..63 */
    struct log_histogram *itl_ms;         /* owned */
    struct sim_request *requests;         /* owned, one for each of the trace, in its order */
    uint64_t steps, sequence_steps, step_rows;
    uint64_t preemptions, recomputed_tokens, prefix_evictions;
    double busy; /* share of the time that the devices had a step, mean over replicas */
    double
        waste; /* time mean of (slots of blocks that sequences hold - tokens in them) / slots; shared blocks once */
    uint64_t cpu_ns; /* that the simulated time took */
    uint64_t
        around_ns; /* CPU time to make and end the replicas: of their memory, not of the trace */
};

/* Errors: STATUS_INVALID (options, by sched_create), STATUS_NOMEM. sim_result_fini after either outcome. */
enum status simulate(const struct sim_options *options, const struct trace *trace,
                     struct sim_result *out, struct error *err);
void sim_result_fini(struct sim_result *result);

/* `inferd simulate`. */
int bench_simulate_main(int argc, char **argv);
