/* request_record.h - one request when it is over: what feeds the log line, the histograms, the traces and /stats.
 *
 * A front end fills it once, when the last byte has been made; whoever keeps it copies it. Owns nothing outside itself. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/stage_times.h"
#include "observe/trace_context.h"

enum request_operation { OPERATION_CHAT, OPERATION_COMPLETION };

struct request_record {
    char id[64];          /* "chatcmpl-..."; "": refused before it had one */
    char request_id[132]; /* X-Request-Id */
    char client[80];      /* "192.0.2.1:4711", "[2001:db8::1]:4711", "unix" */
    char model[128];      /* the served name */
    const char *route;    /* static: "/v1/chat/completions"; "zmq" */
    enum request_operation operation;
    unsigned status;  /* of HTTP; 499: the client has gone */
    char outcome[16]; /* "stop", "length", "aborted", "error"; "refused": it never ran */
    char code[48];    /* of a refusal or fault: "rate_limit_exceeded"; "" without */
    bool streamed, submitted;

    int64_t wall_ns; /* unix time of times.received_ns */
    struct stage_times times;
    struct stage_ledger ledger; /* of these times, to the end */
    int64_t first_token_ns;     /* from received_ns until the first token was sent on; 0: none */

    uint32_t choices, n;
    uint32_t completion_tokens, longest_choice_tokens;
    uint32_t max_tokens;
    float temperature, top_p, frequency_penalty, presence_penalty;
    int32_t top_k;

    struct trace_context trace;
};

/* Whether it failed by our fault: such requests are always traced. */
bool request_record_is_fault(const struct request_record *record);
/* "request done" or "request refused" with all that is known, at level info. */
void request_record_log(const struct request_record *record);
