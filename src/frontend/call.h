/* call.h - one request (of HTTP; of ZeroMQ: zmq.h) and its answer; and the parts of the frontend that all its files share.
 *
 * A call belongs to one connection and is touched by its I/O thread, save while a text thread has it (CALL_PARSING): then
 * only `gone` is shared.
 *
 *   HEAD --first call--> BODY --all read--> ANSWER --queued--> SENT --completed--> (freed)
 *                          |                  ^                 ^
 *                          +--> PARSING --+---+ (a whole body)  |
 *                               (suspended)|--> WAITING ---------+  whole answer, suspended until done
 *                                          +--> STREAM ----------+  events; suspended whenever there is nothing to send
 *   any of them --client gone--> GONE: its socket is shut down, libmicrohttpd ends it */
#pragma once

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "api/api.h"
#include "frontend/frontend.h"
#include "frontend/address_count.h"
#include "frontend/http_route.h"
#include "frontend/settings.h"
#include "frontend/share.h"
#include "frontend/text_pool.h"
#include "observe/request_record.h"

enum call_state {
    CALL_HEAD,
    CALL_BODY,
    CALL_PARSING,
    CALL_WAITING,
    CALL_STREAM,
    CALL_ANSWER,
    CALL_SENT,
    CALL_GONE
};

struct conn {
    struct io_thread *io;
    struct MHD_Connection *mhd; /* NULL: silent, libmicrohttpd has not got it yet (accept.c) */
    int fd;
    uint64_t address; /* address_key; 0: none */
    int linger_fd; /* a duplicate, when what the client still sends is to be read away after the close; else -1 */
    int64_t since_ns;      /* of the phase */
    bool fresh;            /* no request has ended on it yet */
    bool starts_with_line; /* its first byte began a request line: no empty line stood before it */
    bool dropped;          /* idle_memory_drop has been here since the last request */
    char *pool;   /* libmicrohttpd's buffer of the connection, where idle_memory.c knows it */
    bool hung_up; /* the client has closed its side */
    int64_t hung_up_ns;
    struct call *call; /* NULL: idle */
    struct conn *prev, *next;
};

struct zmq_front;

struct call {
    struct conn *conn;     /* HTTP; NULL for ZeroMQ */
    struct zmq_front *zmq; /* ZeroMQ: it stands first in a struct zmq_call (zmq.h); else NULL */
    struct frontend *frontend;
    enum call_state state;
    bool suspended;
    bool counted; /* in the metrics */
    bool close;   /* the connection ends with this answer */
    bool refused_early;
    bool http11;
    bool chunked;      /* the stream's events may go out `direct` */
    _Atomic bool gone; /* the client has left; the text thread looks before it submits */

    char *target; /* owned: as it came */
    enum http_method method;
    enum http_route route;
    char path[512];
    struct slice model_id; /* into path */
    char request_id[132];
    char request_headers[1004]; /* of a preflight */
    bool has_origin;
    uint64_t tenant;
    uint64_t
        holder; /* whose share body and answer count against: the key's, without keys the address's */
    int64_t received_ns;
    struct buf body;
    uint64_t body_reserved; /* of frontend.bodies */

    /* the answer */
    struct api_limits limits;
    struct api_fault fault; /* http_status != 0: the answer is its body */
    unsigned status;
    const char *content_type;
    uint64_t answer_reserved; /* of frontend.answers */
    struct buf out;           /* whole answer, or events not yet given to libmicrohttpd */
    size_t out_at;            /* sent part of out (events) */
    bool
        direct; /* events go straight to the socket (sse.c): libmicrohttpd is asleep until the stream's end */
    bool blocked; /* direct, and the socket is full */

    /* generation */
    struct api_answer api; /* written by the text thread */
    bool submitted;
    bool ended;         /* api_stream_done: nothing more is expected */
    int64_t timeout_ns; /* of X-Request-Timeout; 0: none */
    int64_t first_token_ns, last_token_ns, last_taken_ns;
    int unsent; /* bytes that the kernel holds once it is sent, and since when it is that number; of this answer
                   alone: the next one of a connection may be as long */
    int64_t unsent_ns;
    uint64_t make_ns; /* making text and events */
    int64_t
        given_ns; /* since when libmicrohttpd has bytes of the stream that it has not asked for more after; 0: it has none */
    int64_t stall_ns; /* sum of such times */
    int64_t wall_ns;  /* unix time of received_ns */
    struct trace_context trace;
    struct live_request *live;
    struct call *next_done; /* list of the I/O thread */
    struct call *next_again;
    bool in_again;
};

struct frontend {
    struct frontend_options options;
    struct http_stats *stats;
    struct text_lanes lanes;
    _Atomic(struct engine *) engine; /* NULL: loading; set after `model` */
    struct api_model model;
    struct settings *settings_now;              /* under lock */
    _Atomic(struct settings *) settings_newest; /* the same, to be compared only */
    pthread_mutex_t lock;
    struct address_count *addresses;
    struct admin *admin;
    struct loading {
        char phase[48];
        unsigned percent;
    } loading;              /* under lock */
    _Atomic bool accepting; /* new connections are taken */
    _Atomic bool draining;  /* /ready says so */
    _Atomic bool refusing;  /* and new work gets 503 */
    _Atomic bool leaving;   /* and ZeroMQ's too, whose sockets no other daemon shares */
    _Atomic bool tcp;       /* the listening socket is no unix one */
    _Atomic uint32_t busy;
    struct share_pool *bodies;  /* memory of all bodies being read or parsed */
    struct share_pool *answers; /* of large whole answers that are being sent */
    _Atomic uint64_t
        body_bytes; /* the limit of bodies; that of answers is ANSWERS_PART times as much */
    int listen_fd;
    uint16_t port;
    uint32_t io_count;
    struct io_thread *io;  /* [io_count] */
    struct zmq_front *zmq; /* NULL: no ZeroMQ */
};

/* --- frontend.c --- */
/* Before a bell is freed: the engine rings it no more. */
void frontend_settle(struct frontend *frontend);

/* --- call.c: life of a call --- */
/* "req-" and 24 hexadecimal digits. */
void call_fresh_id(char out[132]);
struct call *call_create(struct conn *conn, const char *target);
void call_destroy(struct call *call);
/* Takes memory for `bytes` more of the body. False: over what all bodies or its holder's may have (share.h), and *fault says so. */
bool call_reserve_body(struct call *call, uint64_t bytes, struct api_fault *fault);
/* Takes memory for a whole answer that has been made, until the call ends; small ones are not counted. False: clients, or this one,
 * leave too many unread: the answer's memory is given back and call->fault filled. */
bool call_hold_answer(struct call *call, struct buf *answer);
/* Gives a call whose body (or message) has so many bytes to the text threads of its lane, which run call_run. STATUS_FULL: not taken. */
enum status call_to_text(struct call *call, size_t bytes);
/* On a text thread: parse, tokenise, submit; then hands the call back to its I/O thread. */
void call_run(void *call);
/* On the I/O thread, after call_run: the call goes on by what has become of it. */
void call_parsed(struct call *call);
/* Takes outputs of the engine, makes text. *more: stopped at the bound of one turn. */
void call_pump(struct call *call, bool *more);
/* The client has left: its sequences leave the engine, the connection is shut down. */
void call_vanish(struct call *call);
/* Our side ends it, with an error for the client: the end of the drain time, or the operator. */
void call_end(struct call *call, const char *code, const char *why);
/* Counts the finished request, once: metrics, log line, trace. */
void call_count(struct call *call, unsigned status);
/* call_report.c: /stats lists it from here on, until call_count. */
void call_show(struct call *call);
/* call_report.c: the record of a request that is over: to the counters at once, so that who has its answer finds it counted; its line in
 * the log and its trace come with reports_tell. */
void call_report(struct call *call, unsigned status, int64_t now_ns);

/* The records of a thread that ends requests, until the answers of the turn are on their way: a line of the log takes longer to write
 * than the answer to be sent. */
enum { REPORTS_MAX = 16 };
struct reports {
    uint32_t count;
    struct request_record records[REPORTS_MAX];
};
void reports_tell(struct reports *reports, struct frontend *frontend);
static inline bool call_is_generation(const struct call *call)
{
    return call->route == ROUTE_CHAT || call->route == ROUTE_COMPLETIONS;
}

/* --- http.c: callbacks of libmicrohttpd --- */
enum MHD_Result http_handle(void *cls, struct MHD_Connection *mhd, const char *url,
                            const char *method, const char *version, const char *upload,
                            size_t *upload_size, void **con_cls);
void *http_request_line(void *cls, const char *target, struct MHD_Connection *mhd);
void http_completed(void *cls, struct MHD_Connection *mhd, void **con_cls,
                    enum MHD_RequestTerminationCode how);

/* --- sse.c --- */
/* Queues the response whose bytes come from call->out. */
enum MHD_Result sse_queue(struct call *call, struct MHD_Connection *mhd);
/* For a call that is `direct`: takes outputs, makes events, sends them. *more: stopped at the bound of one turn. */
void sse_pump(struct call *call, bool *more);
/* The socket takes bytes again. */
void sse_writable(struct call *call);
/* Sends what is there; at the end of the stream libmicrohttpd goes on. */
void sse_flush(struct call *call);
/* Appends an error event. */
void sse_fail(struct call *call, const struct api_fault *fault);

/* --- http.c --- */
/* Whether the head of a request that is being read there has a Content-Length that libmicrohttpd does not take: then it has been
 * answered, and nothing more can be sent. */
bool http_refuse_length(struct conn *conn);
/* The headers that every answer has. */
void http_add_headers(const struct call *call, struct MHD_Response *response);

/* --- service.c: bodies of the service endpoints --- */
/* Fills call->status, content_type and out (or call->fault). */
void service_answer(struct call *call);
enum api_state service_state(const struct frontend *frontend);
/* Why the engine serves nobody, though it was ready; NULL: nothing is wrong. */
const char *service_fault(const struct frontend *frontend, char text[96]);

/* --- io_thread.c --- */
enum status io_create(struct frontend *frontend, struct io_thread *io, uint32_t number,
                      uint32_t connections_max, struct error *err);
void io_stop(struct io_thread *io); /* asks; io_join waits */
void io_join(struct io_thread *io);
void io_wake(struct io_thread *io); /* a turn soon: it looks at what has changed */
/* Runs visit(io, ctx) on the I/O thread between two turns and waits for it, 2 s at most. False: it did not come to it. */
bool io_visit(struct io_thread *io, void (*visit)(struct io_thread *io, void *ctx), void *ctx);
void io_destroy(struct io_thread *io);

void io_resume(struct call *call); /* lets libmicrohttpd go on with a suspended call */
void io_suspend(struct call *call);
void io_watch_writable(struct call *call, bool on); /* sse_writable, when the socket has room */
void io_done(struct call *call);                    /* text thread: hands the call back */
bool io_may_open(struct call *call); /* whether the I/O thread itself may run it: a few a turn */
void io_again(struct call *call);    /* pump it once more in the next turn */
struct output_bell *io_bell(struct io_thread *io);
struct reports *io_reports(struct io_thread *io);
const struct frontend_options *io_settings(const struct io_thread *io); /* until the turn's end */
void io_touch(struct conn *conn); /* its last request has ended: its idle time begins */
