/* http_stats.h - what the front end counts, for /metrics. Filled by frontend/, read by prometheus.c.
 *
 * Every member is an atomic counter that only grows; relaxed order suffices, each is true by itself. Zeroed memory is a
 * right start. Thread: any. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "engine/stage_times.h"
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
    REJECT_LOADING,
    REJECT_DRAINING,
    REJECT_UNAVAILABLE, /* 503 for any other reason */
    REJECT_REASONS
};

enum { HISTOGRAM_BUCKETS = 20 };
struct histogram {
    _Atomic uint64_t counts[HISTOGRAM_BUCKETS + 1]; /* not cumulative; the last one is +Inf */
    _Atomic uint64_t sum_ns;
};
/* Upper bounds of the buckets in ns: 0.5 ms to 262 s in powers of two. */
int64_t histogram_bound_ns(uint32_t bucket);
void histogram_add(struct histogram *histogram, int64_t value_ns);

/* Quantiles over the last seconds: a second a slot, buckets of 2^(1/8). Where a slot is taken over for a new second while others count into it, a few
 * values may be lost. */
enum { RECENT_SECONDS = 5, RECENT_SLOTS = RECENT_SECONDS + 1, RECENT_BUCKETS = 224 };
struct recent {
    struct {
        _Atomic int64_t second; /* + 1; 0: never used */
        _Atomic uint32_t counts[RECENT_BUCKETS];
    } slots[RECENT_SLOTS];
};
void recent_add(struct recent *recent, int64_t now_ns, int64_t value_ns);
/* In ns; negative: nothing in the last RECENT_SECONDS. */
double recent_quantile(const struct recent *recent, int64_t now_ns, double q);

struct http_stats {
    _Atomic uint64_t requests[HTTP_METHODS][HTTP_ROUTES][HTTP_STATUSES];
    _Atomic uint64_t rejected[REJECT_REASONS];
    _Atomic uint64_t aborted; /* generation requests whose client had gone */
    _Atomic uint64_t connections_accepted, connections_closed, connections_timed_out;
    _Atomic uint64_t stream_bytes, stream_tokens, stream_ns; /* CPU time making text and events */
    struct histogram first_token, inter_token, request;
    struct recent recent_first_token, recent_inter_token, recent_request;
    struct recent recent_stages[STAGES];
    struct zmq_stats zmq;
};
void http_stats_count(struct http_stats *stats, enum http_method method, enum http_route route,
                      unsigned status);
const char *http_route_pattern(enum http_route route); /* "/v1/models/{id}"; "other" */
