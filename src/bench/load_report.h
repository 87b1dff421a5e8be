/* load_report.h - what a run of load_client.h measured: the block that `vllm bench serve` prints, and its JSON.
 *
 * Names and definitions are vLLM's, so that figures of two servers stand side by side:
 *   TTFT  start of the request to its first text;          E2EL  to its last text
 *   TPOT  (E2EL - TTFT) / (output tokens - 1)              ITL   each gap between chunks with text, over all requests
 *   request goodput  requests a second that met every objective given (--goodput ttft:200 tpot:50 e2el:3000, ms) */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "bench/load_client.h"
#include "bench/samples.h"

enum report_metric { REPORT_TTFT, REPORT_TPOT, REPORT_ITL, REPORT_E2EL, REPORT_METRICS };

struct report_slo {
    double ms[REPORT_METRICS]; /* 0: no objective; ITL has none */
};

struct load_report {
    double seconds, rate, burstiness;    /* rate: INFINITY where not bounded */
    uint32_t concurrency;                /* 0: not bounded */
    uint32_t completed, failed, refused; /* refused: of the failed, HTTP 429 and 503 */
    uint64_t input_tokens, cached_tokens, output_tokens;
    uint32_t good; /* met all objectives */
    bool has_slo;
    double peak_output_tokens_s; /* in the busiest whole second */
    uint32_t peak_concurrent;
    struct samples ms[REPORT_METRICS]; /* owned */
    const char *first_error;           /* of a result; NULL: none */
};

/* Borrows results for first_error. Errors: STATUS_NOMEM. report_fini after either outcome. */
enum status report_make(const struct load_result *results, uint32_t count, double seconds,
                        const struct report_slo *slo, struct load_report *out);
void report_fini(struct load_report *report);

/* percentiles: [count], like 99. */
void report_print(const struct load_report *report, const double *percentiles, uint32_t count,
                  FILE *to);
/* Latency of single requests: median, P50, P90, P99 and sigma for each metric. */
void report_print_latency(const struct load_report *report, FILE *to);
/* The caller's reference; NULL without memory. detailed: every request's figures as well. */
json_t *report_json(const struct load_report *report, const double *percentiles, uint32_t count,
                    const struct load_result *detailed, uint32_t result_count);

/* "ttft:200 tpot:50" (spaces or commas). STATUS_INVALID with what would be right. */
enum status report_slo_parse(const char *text, struct report_slo *out, struct error *err);
