/* sse.c - server-sent events on their way out.
 *
 * The head and what is there at once go through libmicrohttpd: it asks for bytes (read_events). The first time that there
 * are none it is put to sleep for good, and the events that follow are written to the socket from here, as chunks of the
 * chunked coding: one send() a turn instead of a resume, two turns of libmicrohttpd's state machine, two epoll_ctl and a
 * suspend. That is safe because it asks only when all that it had is sent, and while it sleeps it touches nothing. At the
 * end it is woken once, is told END_OF_STREAM and writes the last chunk. Not so for HTTP/1.0 and `Connection: close` (no
 * chunked coding for certain) and TLS: there libmicrohttpd asks each time. */
#include <errno.h>
#include <stdio.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "frontend/call.h"

enum {
    EVENTS_BLOCK = 32 << 10, /* libmicrohttpd's buffer for one read */
    OUT_KEEP = 16 << 10
}; /* an emptied buffer larger than this is given back */

static void drop_sent(struct call *call)
{
    call->out_at = 0;
    if (call->out.cap > OUT_KEEP)
        buf_fini(&call->out);
    else
        buf_clear(&call->out);
}

/* --- straight to the socket --- */

static bool may_be_direct(struct MHD_Connection *mhd)
{
    const char *connection =
        MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONNECTION);

    return MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_GNUTLS_SESSION) == NULL &&
           !(connection && strcasestr(connection, "close"));
}

/* A chunk's head is written once its size is known; until then its place is held. */
enum { CHUNK_HEAD = 8, CHUNK_SIZE_MAX = 0xffffff };
static const char chunk_head[] = "000000\r\n";

static size_t open_chunk(struct buf *out)
{
    buf_append(out, chunk_head, CHUNK_HEAD);
    return out->len;
}

static void close_chunk(struct buf *out, size_t from)
{
    static const char digits[] = "0123456789abcdef";
    size_t size = out->len - from;

    if (buf_status(out)) return;
    if (!size) {
        out->len -= CHUNK_HEAD;
        return;
    }
    if (size > CHUNK_SIZE_MAX) {
        out->failed = STATUS_LIMIT; /* an echo of over 16 MiB: the caller cuts */
        return;
    }
    for (int i = 0; i < 6; i++)
        out->ptr[from - CHUNK_HEAD + (size_t)i] = digits[size >> (20 - 4 * i) & 15];
    buf_append(out, "\r\n", 2);
}

static void set_blocked(struct call *call, bool blocked)
{
    if (call->blocked == blocked) return;
    call->blocked = blocked;
    int64_t now = clock_mono_ns();

    if (blocked)
        call->given_ns = now;
    else if (call->given_ns)
        call->stall_ns += now - call->given_ns;
    if (!blocked) call->given_ns = 0;
    io_watch_writable(call, blocked);
}

void sse_flush(struct call *call)
{
    if (buf_status(&call->out)) { /* no memory: the client must see that it is cut */
        call_vanish(call);
        return;
    }
    while (call->out_at < call->out.len) {
        ssize_t sent = send(call->conn->fd, call->out.ptr + call->out_at,
                            call->out.len - call->out_at, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno != EAGAIN) {
            call_vanish(call);
            return;
        }
        if (sent < 0) {
            set_blocked(call, true);
            return;
        }
        call->out_at += (size_t)sent;
        call->last_taken_ns = clock_mono_ns();
    }
    drop_sent(call);
    set_blocked(call, false);
    if (call->ended) io_resume(call); /* read_events tells the end */
}

void sse_pump(struct call *call, bool *more)
{
    *more = false;
    if (call->blocked) return; /* its ring fills */
    size_t from = open_chunk(&call->out);

    call_pump(call, more);
    close_chunk(&call->out, from);
    if (call->out.len || call->ended) sse_flush(call);
}

void sse_writable(struct call *call)
{
    bool more;

    if (!call->blocked) return;
    sse_flush(call);
    if (call->blocked || call->state != CALL_STREAM || call->ended) return;
    sse_pump(call, &more);
    if (more) io_again(call);
}

void sse_fail(struct call *call, const struct api_fault *fault)
{
    size_t from = open_chunk(&call->out);

    api_stream_fail(call->api.stream, fault, &call->out);
    close_chunk(&call->out, from);
}

/* --- through libmicrohttpd --- */

static ssize_t read_events(void *cls, uint64_t position, char *to, size_t max)
{
    struct call *call = cls;
    bool more;

    (void)position;
    if (call->state == CALL_GONE) return MHD_CONTENT_READER_END_WITH_ERROR;
    call->last_taken_ns = clock_mono_ns();
    if (call->given_ns) call->stall_ns += call->last_taken_ns - call->given_ns;
    call->given_ns = 0;
    if (call->out_at == call->out.len && !call->ended) {
        drop_sent(call);
        call_pump(call, &more);
        if (buf_status(&call->out)) { /* no memory: the client must see that it is cut */
            call_vanish(call);
            return MHD_CONTENT_READER_END_WITH_ERROR;
        }
    }
    size_t left = call->out.len - call->out_at;

    if (!left) {
        if (call->ended) return MHD_CONTENT_READER_END_OF_STREAM;
        io_suspend(call);
        call->direct = call->chunked;
        return 0;
    }
    if (left > max) left = max;
    memcpy(to, call->out.ptr + call->out_at, left);
    call->out_at += left;
    call->given_ns = call->last_taken_ns; /* it asks again when the socket has taken this */
    return (ssize_t)left;
}

enum MHD_Result sse_queue(struct call *call, struct MHD_Connection *mhd)
{
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, EVENTS_BLOCK, read_events, call, NULL);

    if (!response) return MHD_NO;
    call->content_type = "text/event-stream; charset=utf-8";
    http_add_headers(call, response);
    MHD_add_response_header(response, "Cache-Control", "no-cache");
    MHD_add_response_header(response, "X-Accel-Buffering",
                            "no"); /* nginx: pass each event on at once */
    call->chunked = call->http11 && may_be_direct(mhd);
    enum MHD_Result ok = MHD_queue_response(mhd, 200, response);

    MHD_destroy_response(response);
    return ok;
}
