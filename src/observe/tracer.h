/* tracer.h - sends requests as traces to an OpenTelemetry collector (OTLP over HTTP, protobuf), beside serving and never in its way.
 *
 *     front end --tracer_offer--> queue of TRACER_QUEUE_MAX --thread of its own, in batches--> POST .../v1/traces
 *
 * tracer_offer decides whether the request is traced, and if so copies it; a full queue drops it and counts that. The thread sends what
 * there is once a second, or as soon as a batch is full. An answer of 429, 502, 503 or 504, or none, is tried again with growing
 * pauses (Retry-After is heard), five times in all; then the batch is dropped and counted. Any other refusal drops it at once.
 * Which requests: those whose caller says so in traceparent, else a share of them by trace id, and always those that failed by our fault.
 * Thread: tracer_offer and tracer_stats from any. Memory: all taken by tracer_create but for what a batch takes while it is sent. */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "observe/request_record.h"

enum { TRACER_QUEUE_MAX = 1024, TRACER_BATCH_MAX = 64 };

struct tracer; /* opaque */

/* Strings are copied. */
struct tracer_options {
    const char *url;     /* whole: http://host:4318/v1/traces */
    const char *headers; /* "name=value,name=value"; NULL: none */
    const char *service_name, *service_version;
    const char *resource_attributes; /* NULL: none */
    double ratio;                    /* 0..1 */
    uint32_t pause_ms;               /* between batches; 0: a second */
};

struct tracer_stats {
    uint64_t exported, unsampled; /* requests */
    uint64_t dropped_full, dropped_refused,
        dropped_lost; /* queue full; collector said no; not reached */
    uint64_t spans;   /* of the exported ones */
};

/* Whether it is a URL of http or https that could be asked. Errors: STATUS_INVALID, STATUS_NOMEM. */
enum status tracer_check_url(const char *url, struct error *err);
/* Starts the thread. Errors: STATUS_INVALID (the URL), STATUS_NOMEM. A collector that is not there is no error. */
enum status tracer_create(const struct tracer_options *options, struct tracer **out,
                          struct error *err);
/* The URL without user, password and query: for logs. The tracer owns it. */
const char *tracer_shown_url(const struct tracer *tracer);
/* Never blocks on the network. Takes a NULL tracer. */
void tracer_offer(struct tracer *tracer, const struct request_record *record);
void tracer_stats(struct tracer *tracer, struct tracer_stats *out); /* NULL: zeros */
/* Sends what is queued, for two seconds at most; then ends. Takes NULL. */
void tracer_destroy(struct tracer *tracer);
