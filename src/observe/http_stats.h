/* http_stats.h - what the front ends count, for /metrics and /stats. Filled by frontend/, read by prometheus.c, vllm_metrics.c
 * and stats_json.c.
 *
 * Every counter only grows; relaxed order suffices, each is true by itself. Thread: any. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "engine/stage_times.h"
#include "observe/histogram.h"
#include "observe/live.h"
#include "observe/recent.h"

struct request_record;
#include "observe/zmq_stats.h"

enum http_method { HTTP_GET, HTTP_POST, HTTP_HEAD, HTTP_OPTIONS, HTTP_OTHER, HTTP_METHODS };
enum http_route {
    ROUTE_HEALTH,
    ROUTE_READY,
    ROUTE_VERSION,
    ROUTE_METRICS,
    ROUTE_PAGE,
    ROUTE_PAGE_CSS,
    ROUTE_PAGE_JS,
    ROUTE_MODELS,
    ROUTE_MODEL,
    ROUTE_STATS,
    ROUTE_TOKENIZER_INFO,
    ROUTE_CHAT,
    ROUTE_COMPLETIONS,
    ROUTE_TOKENIZE,
    ROUTE_DETOKENIZE,
    ROUTE_UNKNOWN, /* every unknown path shares this one */
    HTTP_ROUTES
};
/* The statuses that the application sends; 499: the client has gone; 0 collects any other. */
enum { HTTP_STATUSES = 14 };
extern const uint16_t http_status_list[HTTP_STATUSES];

enum reject_reason {
    REJECT_QUEUE_FULL, /* 429 */
    REJECT_SHARE,      /* 429: its key or address holds its share of memory */
    REJECT_LOADING,
    REJECT_DRAINING,
    REJECT_UNAVAILABLE, /* 503 for any other reason */
    REJECT_REASONS
};

/* Why a request has ended, by vLLM's words. */
enum finished_reason {
    FINISHED_STOP,
    FINISHED_LENGTH,
    FINISHED_ABORT, /* the client has gone, or the server stops */
    FINISHED_ERROR,
    FINISHED_REASONS
};

/* Histograms under vLLM's names: vllm_metrics.c has the table. */
enum vllm_histogram {
    VLLM_FIRST_TOKEN,
    VLLM_INTER_TOKEN,
    VLLM_TIME_PER_TOKEN, /* mean of a request */
    VLLM_E2E,
    VLLM_QUEUE,
    VLLM_INFERENCE,
    VLLM_PREFILL,
    VLLM_DECODE,
    VLLM_PROMPT_TOKENS,
    VLLM_GENERATION_TOKENS,
    VLLM_PREFILL_COMPUTED,
    VLLM_MAX_GENERATION,
    VLLM_N,
    VLLM_MAX_TOKENS,
    VLLM_PREEMPTIONS,
    VLLM_HISTOGRAMS
};

struct http_stats {
    _Atomic uint64_t requests[HTTP_METHODS][HTTP_ROUTES][HTTP_STATUSES];
    _Atomic uint64_t rejected[REJECT_REASONS];
    _Atomic uint64_t finished[FINISHED_REASONS]; /* requests that the engine had */
    _Atomic uint64_t aborted;                    /* generation requests whose client had gone */
    _Atomic uint64_t connections_refused;        /* over a limit */
    _Atomic uint64_t bodies_held, answers_held;  /* bytes, when /metrics was last asked for */
    _Atomic uint64_t connections_accepted, connections_closed, connections_timed_out;
    _Atomic uint64_t stream_bytes, stream_tokens, stream_ns; /* CPU time making text and events */
    _Atomic uint64_t
        stalled_ns; /* time in which streams had bytes that their sockets would not take */
    struct histogram first_token, inter_token, request, stages[STAGES]; /* BOUNDS_TIME */
    struct histogram vllm[VLLM_HISTOGRAMS];
    struct recent recent_first_token, recent_inter_token, recent_request;
    struct recent recent_stages[STAGES];
    struct recent_rate recent_prompt_tokens, recent_generated_tokens, recent_finished;
    struct live live;
    struct zmq_stats zmq;
};
struct http_stats *http_stats_create(void);        /* NULL: no memory */
void http_stats_destroy(struct http_stats *stats); /* takes NULL */

void http_stats_count(struct http_stats *stats, enum http_method method, enum http_route route,
                      unsigned status);
/* A request's first token came; the next of its first choice came. */
void http_stats_first_token(struct http_stats *stats, int64_t now_ns, int64_t since_received_ns);
void http_stats_inter_token(struct http_stats *stats, int64_t now_ns, int64_t since_last_ns);
/* A request that the engine had is over: all histograms, rates and counters of requests. */
void http_stats_finish(struct http_stats *stats, const struct request_record *record,
                       int64_t now_ns);
const char *http_route_pattern(enum http_route route); /* "/v1/models/{id}"; "other" */
