/* http.c - one request as libmicrohttpd hands it over: refusals in the order of docs/api.md 1.11, then the route.
 *
 * libmicrohttpd 0.9.75 passes on requests with two Content-Lengths, with Content-Length beside Transfer-Encoding,
 * without Host, with blanks before a colon, as if they were sound: http_head_read refuses them at the first call. An
 * answer given before the body has been read closes the connection; a duplicate of the socket then reads away what the
 * client still sends (io_thread.c), or its kernel would drop our answer with the reset. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "frontend/call.h"
#include "frontend/io_thread.h"
#include "frontend/tls.h"
#include "frontend/web_page.h"

enum { OPEN_HERE_BYTES = 1 << 10 };

static const struct frontend_options *settings_of(const struct call *call)
{
    return io_settings(call->conn->io);
}

static struct conn *conn_of(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    return info ? info->socket_context : NULL;
}

void *http_request_line(void *cls, const char *target, struct MHD_Connection *mhd)
{
    struct conn *conn = conn_of(mhd);

    if (!conn) return NULL;
    struct call *call = call_create(conn, target);

    if (!call) return NULL;
    call->frontend = cls;
    conn->call = call;
    conn->since_ns = clock_mono_ns();
    conn->dropped = false;
    return call;
}

void http_completed(void *cls, struct MHD_Connection *mhd, void **con_cls,
                    enum MHD_RequestTerminationCode how)
{
    struct frontend *f = cls;
    struct call *call = *con_cls;

    (void)mhd;
    if (!call) return;
    if (!call->counted && call->state != CALL_HEAD)
        call_count(call, how == MHD_REQUEST_TERMINATED_COMPLETED_OK ? call->status : 499);
    call->conn->call = NULL;
    call->conn->fresh = false;
    io_touch(call->conn);
    if (call->received_ns) atomic_fetch_sub(&f->busy, 1);
    call_destroy(call);
    *con_cls = NULL;
}

/* --- answers --- */

void http_add_headers(const struct call *call, struct MHD_Response *response)
{
    char seconds[16];

    MHD_add_response_header(response, "Content-Type", call->content_type);
    MHD_add_response_header(response, "X-Request-Id", call->request_id);
    if (call->route >= ROUTE_PAGE && call->route <= ROUTE_PAGE_JS) {
        MHD_add_response_header(response, "Content-Security-Policy", web_page_policy);
        MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
        MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
        MHD_add_response_header(response, "Cache-Control", "no-cache");
    }
    if (call->has_origin && settings_of(call)->cors) {
        MHD_add_response_header(response, "Access-Control-Allow-Origin", "*");
        MHD_add_response_header(response, "Access-Control-Expose-Headers", "*");
    }
    if (call->fault.retry_after_s) {
        snprintf(seconds, sizeof seconds, "%u", call->fault.retry_after_s);
        MHD_add_response_header(response, "Retry-After", seconds);
    }
    if (call->fault.http_status == 401)
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (call->fault.http_status == 405)
        MHD_add_response_header(response, "Allow", http_route_allow(call->route));
    if (call->close) MHD_add_response_header(response, "Connection", "close");
}

static void add_preflight(const struct call *call, struct MHD_Response *response)
{
    char headers[1200];

    MHD_add_response_header(response, "Allow", http_route_allow(call->route));
    if (!settings_of(call)->cors) return;
    if (!call->has_origin) MHD_add_response_header(response, "Access-Control-Allow-Origin", "*");
    MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, POST, HEAD, OPTIONS");
    snprintf(headers, sizeof headers, "authorization, content-type, x-request-id, *%s%s",
             call->request_headers[0] ? ", " : "", call->request_headers);
    MHD_add_response_header(response, "Access-Control-Allow-Headers", headers);
    MHD_add_response_header(response, "Access-Control-Max-Age", "86400");
}

/* Sends call->out, or the fault's body. */
static enum MHD_Result queue_answer(struct call *call, struct MHD_Connection *mhd)
{
    if (!call->fault.http_status) call_hold_answer(call, &call->out);
    if (call->fault.http_status) {
        call->status = call->fault.http_status;
        buf_clear(&call->out);
        api_fault_body(&call->fault, &call->out);
    }
    if (buf_status(&call->out)) return MHD_NO;
    struct MHD_Response *response = MHD_create_response_from_buffer(
        call->out.len, call->out.ptr,
        call->out.len ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);

    if (!response) return MHD_NO;
    if (call->out.len) call->out = (struct buf){0}; /* the response frees it */
    http_add_headers(call, response);
    if (call->method == HTTP_OPTIONS) add_preflight(call, response);
    call->state = CALL_SENT;
    call_count(call, call->status);
    enum MHD_Result ok = MHD_queue_response(mhd, call->status, response);

    MHD_destroy_response(response);
    return ok;
}

/* --- answers past libmicrohttpd --- */

static const char *reason_phrase(unsigned status)
{
    switch (status) {
    case 413: return "Content Too Large";
    case 429: return "Too Many Requests";
    case 503: return "Service Unavailable";
    default: return "Bad Request";
    }
}

/* A whole answer, which always fits an empty socket. */
static void make_by_hand(const struct api_fault *fault, const char *request_id, struct buf *out)
{
    static const char head[] =
        "HTTP/1.1 %u %s\r\nContent-Type: application/json\r\nConnection: close\r\n"
        "Content-Length: %zu\r\n%s%s%s%s\r\n";
    struct buf body;

    buf_init(out, 0);
    buf_init(&body, 0);
    api_fault_body(fault, &body);
    buf_printf(out, head, fault->http_status, reason_phrase(fault->http_status), body.len,
               request_id ? "X-Request-Id: " : "", request_id ? request_id : "",
               request_id ? "\r\n" : "", fault->retry_after_s ? "Retry-After: 1\r\n" : "");
    buf_append_slice(out, buf_slice(&body));
    buf_fini(&body);
}

/* An error answer into the socket, where libmicrohttpd would give none or a wrong one; the connection must end then. request_id may
 * be NULL. With TLS through libmicrohttpd's session, which it lets one have; it sends nothing itself while it reads a request. */
static void answer_past_mhd(struct conn *conn, const struct api_fault *fault,
                            const char *request_id)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(conn->mhd, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    struct buf out;

    make_by_hand(fault, request_id, &out);
    if (!buf_status(&out) && info)
        tls_send_last(info->tls_session, out.ptr, out.len);
    else if (!buf_status(&out))
        (void)!write(conn->fd, out.ptr, out.len);
    buf_fini(&out);
}

/* --- the first call: head only --- */

static bool needs_key(enum http_route route)
{
    return route >= ROUTE_MODELS && route < ROUTE_UNKNOWN;
}

static bool check_auth(struct call *call, const struct http_head *head)
{
    const struct frontend_options *o = settings_of(call);

    if (!o->api_key_count || !needs_key(call->route)) return true;
    if (head->authorization_count == 1 &&
        http_auth_ok(head->authorization, o->api_keys, o->api_key_count)) {
        const char *key =
            http_auth_key(head->authorization); /* however many blanks are before it */

        call->tenant = call->holder = hash_bytes(key, strlen(key), 0);
        return true;
    }
    return api_refuse(&call->fault, 401, "invalid_api_key", NULL,
                      "A valid API key is needed: send the header Authorization: Bearer KEY.");
}

/* Framing, 404, 405, 401, 415, 413: in this order. False: call->fault. */
static bool check_head(struct call *call, const struct http_head *head)
{
    struct api_fault *fault = &call->fault;
    uint64_t limit = settings_of(call)->body_bytes_max;

    if (head->bad) return api_refuse(fault, 400, NULL, NULL, "%s", head->why);
    if (call->route == ROUTE_UNKNOWN)
        return api_refuse(fault, 404, "not_found", NULL, "There is nothing at this path.");
    if (!http_route_takes(call->route, call->method))
        return api_refuse(fault, 405, "method_not_allowed", NULL, "This path takes %s only.",
                          http_route_allow(call->route));
    if (call->method != HTTP_OPTIONS && !check_auth(call, head)) return false;
    const char *media = call->method == HTTP_POST ? http_media_fault(head) : NULL;

    if (media) return api_refuse(fault, 415, "unsupported_media_type", NULL, "%s", media);
    if (head->has_length && head->length > limit)
        return api_refuse(fault, 413, "request_too_large", NULL,
                          "The body may have at most %llu bytes.", (unsigned long long)limit);
    return !head->has_length || call_reserve_body(call, head->length, fault);
}

/* While others can take its next request, a draining daemon ends each connection with its answer. */
static bool is_last(const struct frontend *f)
{
    bool shared = f->options.socket_fd || f->options.reuse_port;

    return atomic_load(&f->draining) && (shared || !atomic_load(&f->refusing));
}

static void take_head(struct call *call, const struct http_head *head, const char *method)
{
    call->method = http_method_of(method);
    call->route = http_route_of(call->target, call->path, sizeof call->path, &call->model_id);
    call->has_origin = head->has_origin;
    call->http11 = head->http11;
    call->timeout_ns = head->timeout_ns;
    call->holder = call->conn->address;
    trace_context_read(head->traceparent, head->tracestate, &call->trace);
    if (head->request_id && http_request_id_ok(head->request_id))
        snprintf(call->request_id, sizeof call->request_id, "%s", head->request_id);
    if (call->method == HTTP_OPTIONS && head->request_headers &&
        http_header_list_ok(head->request_headers))
        snprintf(call->request_headers, sizeof call->request_headers, "%s", head->request_headers);
    call->close = is_last(call->frontend);
    call->limits = settings_of(call)->limits;
    buf_init(&call->body, settings_of(call)->body_bytes_max);
    buf_init(&call->out, 0);
}

static enum MHD_Result first_call(struct call *call, struct MHD_Connection *mhd, const char *method,
                                  const char *version)
{
    struct http_head head;

    http_head_read(mhd, version, &head);
    idle_memory_note(call->conn, method);
    take_head(call, &head, method);
    call->state = CALL_BODY;
    call->conn->since_ns = clock_mono_ns(); /* the body's time begins */
    if (check_head(call, &head)) return MHD_YES;
    if (!head.bad && !head.chunked && !head.length)
        return MHD_YES; /* answered at the last call: keep-alive */
    call->close = true;
    call->refused_early = true;
    call->conn->linger_fd = dup(call->conn->fd);
    return queue_answer(call, mhd);
}

/* --- the body --- */

static bool take_body(struct call *call, const char *bytes, size_t len)
{
    uint64_t limit = call->body.limit; /* as it was when the head came */

    if (call->fault.http_status || call->method != HTTP_POST) return true; /* read and forgotten */
    if (call->body.len + len > limit)
        return api_refuse(&call->fault, 413, "request_too_large", NULL,
                          "The body may have at most %llu bytes.", (unsigned long long)limit);
    if (call->body.len + len > call->body_reserved &&
        !call_reserve_body(call, 2 * len + 65536, &call->fault))
        return false;
    buf_append(&call->body, bytes, len);
    return !buf_status(&call->body);
}

/* libmicrohttpd takes no answer in the middle of a body: one is written past it, then the connection ends. */
static enum MHD_Result refuse_body(struct call *call)
{
    if (!call->fault.http_status) return MHD_NO; /* no memory for it */
    call->conn->linger_fd = dup(call->conn->fd);
    answer_past_mhd(call->conn, &call->fault, call->request_id);
    call_count(call, call->fault.http_status);
    return MHD_NO;
}

/* --- a Content-Length that is none --- */

bool http_refuse_length(struct conn *conn)
{
    struct call *call = conn->call;
    struct api_fault fault;

    if (!conn->mhd || !call || call->state != CALL_HEAD || call->refused_early) return false;
    const char *value =
        MHD_lookup_connection_value(conn->mhd, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    size_t digits = value ? strspn(value, "0123456789") : 0;

    if (!value || (digits && !value[digits] && digits < 20)) return false;
    if (digits && !value[digits])
        api_refuse(&fault, 413, "request_too_large", NULL, "The body may have at most %llu bytes.",
                   (unsigned long long)settings_of(call)->body_bytes_max);
    else
        api_refuse(&fault, 400, NULL, NULL,
                   "Content-Length must be a plain decimal number, with nothing behind it.");
    call->refused_early = true;
    conn->linger_fd = dup(conn->fd);
    answer_past_mhd(conn, &fault, call->request_id[0] ? call->request_id : NULL);
    shutdown(conn->fd, SHUT_WR); /* libmicrohttpd's own answer goes nowhere, and it closes */
    http_stats_count(call->frontend->stats, HTTP_OTHER, ROUTE_UNKNOWN, fault.http_status);
    return true;
}

/* --- the last call: all has been read --- */

/* From here until its answer is sent the call is one that a drain waits for; half a request is none. */
static void mark_received(struct call *call)
{
    call->received_ns = clock_mono_ns();
    call->wall_ns = clock_wall_ns();
    atomic_fetch_add(&call->frontend->busy, 1);
}

/* A short prompt takes less time to tokenise than a text thread to wake up and to wake us; a few of them in a turn hold up
 * nobody. */
static enum MHD_Result start_parsing(struct call *call, struct MHD_Connection *mhd)
{
    mark_received(call);
    call->state = CALL_PARSING;
    bool short_prompt = call->route == ROUTE_COMPLETIONS && call->body.len <= OPEN_HERE_BYTES;

    if (short_prompt && io_may_open(call)) {
        io_suspend(call);
        if (call->conn->hung_up) call_vanish(call);
        call_run(call);
        return MHD_YES;
    }
    if (!call_to_text(call, call->body.len)) {
        io_suspend(call);
        if (call->conn->hung_up) call_vanish(call);
        return MHD_YES;
    }
    api_refuse(&call->fault, 429, "rate_limit_exceeded", NULL,
               "Too many requests are being read; try again in a second.");
    return queue_answer(call, mhd);
}

static enum MHD_Result last_call(struct call *call, struct MHD_Connection *mhd)
{
    if (call->state == CALL_BODY) {
        if (!call->fault.http_status && call->method == HTTP_POST) return start_parsing(call, mhd);
        mark_received(call);
        if (!call->fault.http_status) service_answer(call);
        return queue_answer(call, mhd);
    }
    if (call->state == CALL_ANSWER) return queue_answer(call, mhd);
    if (call->state == CALL_STREAM) return sse_queue(call, mhd);
    if (call->state == CALL_PARSING || call->state == CALL_WAITING) return MHD_YES;
    return MHD_NO; /* CALL_GONE */
}

enum MHD_Result http_handle(void *cls, struct MHD_Connection *mhd, const char *url,
                            const char *method, const char *version, const char *upload,
                            size_t *upload_size, void **con_cls)
{
    struct call *call = *con_cls;

    (void)cls;
    (void)url;
    if (!call) return MHD_NO;
    if (call->state == CALL_HEAD) return first_call(call, mhd, method, version);
    if (!*upload_size) return last_call(call, mhd);
    size_t len = *upload_size;

    *upload_size = 0;
    if (call->state != CALL_BODY) return MHD_YES; /* refused already */
    return take_body(call, upload, len) ? MHD_YES : refuse_body(call);
}
