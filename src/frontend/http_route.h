/* http_route.h - which route a request line means, and what its headers forbid. Pure: no sockets. */
#pragma once

#include <microhttpd.h>
#include <stdbool.h>

#include "api/api.h"
#include "base/slice.h"
#include "observe/http_stats.h"

enum http_method http_method_of(const char *method);

/* The route of a request target as it came (percent-encoded, query and all). *id: for ROUTE_MODEL what follows
 * "/v1/models/", decoded, in `decoded` (borrowed). A target too long for decoded[] is ROUTE_UNKNOWN. */
enum http_route http_route_of(const char *target, char *decoded, size_t decoded_size,
                              struct slice *id);
/* Methods that the route takes, for Allow: "GET, HEAD, OPTIONS". */
const char *http_route_allow(enum http_route route);
bool http_route_takes(enum http_route route, enum http_method method);

/* Headers of one request as the checks need them; filled by http_head_read. */
struct http_head {
    bool http11;
    bool has_host, has_length, chunked, has_origin, expects_continue;
    uint64_t length;
    bool bad;        /* the framing must be refused: 400 and close */
    const char *why; /* static, where bad */
    const char *authorization, *content_type, *content_encoding; /* borrowed, NULL: absent */
    const char *request_id, *request_headers;
    const char *traceparent, *tracestate;
    int64_t timeout_ns; /* of X-Request-Timeout; 0: none */
    uint32_t authorization_count;
};
void http_head_read(struct MHD_Connection *connection, const char *version, struct http_head *out);

/* What stands behind "Bearer " in an Authorization header, without the blanks before it; NULL: it is no such header. */
const char *http_auth_key(const char *authorization);
/* Whether an Authorization header carries one of the keys; takes the same time whichever differs. */
bool http_auth_ok(const char *authorization, const char *const *keys, uint32_t key_count);
/* NULL when the body's type is acceptable, else a sentence for 415. */
const char *http_media_fault(const struct http_head *head);
/* Seconds, a decimal number, 0.001 to 86400. */
bool http_timeout_read(const char *value, int64_t *out_ns);
/* 1..128 characters of A-Z a-z 0-9 . _ - */
bool http_request_id_ok(const char *id);
/* A list of header names that may stand in an answer: tokens, commas and blanks, at most 1,000 bytes. */
bool http_header_list_ok(const char *list);
