/* sse.c - server-sent events on their way out: libmicrohttpd asks for bytes, a call without any is suspended. */
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

static ssize_t read_events(void *cls, uint64_t position, char *to, size_t max)
{
    struct call *call = cls;
    bool more;

    (void)position;
    if (call->state == CALL_GONE) return MHD_CONTENT_READER_END_WITH_ERROR;
    call->last_taken_ns = clock_mono_ns();
    if (call->given_ns) call->stall_ns += call->last_taken_ns - call->given_ns;
    call->given_ns = 0;
    if (call->out_at == call->out.len) {
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
    enum MHD_Result ok = MHD_queue_response(mhd, 200, response);

    MHD_destroy_response(response);
    return ok;
}
