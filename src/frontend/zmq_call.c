/* zmq_call.c - what a client asks for, from its message to the last Response.
 *
 *   PARSING (with a text thread) --opened--> STREAM or WAITING --ended--> freed
 *      |                                        |
 *      +-- client gone, or cancelled: it ends when the text thread gives it back */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "frontend/zmq.h"

enum {
    OPEN_HERE_BYTES = 1 << 10,
    OPEN_HERE_MAX = 16, /* in a turn: some 0.5 ms */
};

static const enum http_route routes[API_MESSAGES] = {[API_MESSAGE_GENERATE] = ROUTE_COMPLETIONS,
                                                     [API_MESSAGE_TOKENIZE] = ROUTE_TOKENIZE,
                                                     [API_MESSAGE_DETOKENIZE] = ROUTE_DETOKENIZE};
static_assert((int)API_MESSAGES == (int)ZMQ_KINDS &&
                  (int)API_MESSAGE_LOAD_REPORT == (int)ZMQ_KIND_LOAD_REPORT,
              "one list of kinds");

/* --- table of open calls --- */

static struct zmq_call **bucket(struct zmq_front *z, const struct zmq_client *client, uint64_t id)
{
    return &z->call_table[hash_mix64(client->hash ^ hash_mix64(id ^ z->secret)) % ZMQ_CALL_BUCKETS];
}

static struct zmq_call *find(struct zmq_front *z, const struct zmq_client *client, uint64_t id)
{
    struct zmq_call *call = *bucket(z, client, id);

    while (call && (call->client != client || call->id != id))
        call = call->hash_next;
    return call;
}

static void unlink_client(struct zmq_front *z, struct zmq_call *call)
{
    struct zmq_client *client = call->client;
    struct zmq_call **at;

    if (client) {
        at = bucket(z, client, call->id);
        while (*at != call)
            at = &(*at)->hash_next;
        *at = call->hash_next;
        client->call_count--;
    }
    if (call->prev)
        call->prev->next = call->next;
    else if (client)
        client->calls = call->next;
    else
        z->orphans = call->next;
    if (call->next) call->next->prev = call->prev;
    call->prev = call->next = NULL;
    call->client = NULL;
}

static void forget_again(struct zmq_front *z, struct zmq_call *call)
{
    if (!call->in_again) return;
    for (struct zmq_call **at = &z->again; *at; at = &(*at)->again_next)
        if (*at == call) {
            *at = call->again_next;
            break;
        }
    call->in_again = false;
}

static void drop_message(struct zmq_call *call)
{
    if (call->has_message) zmq_msg_close(&call->message);
    call->has_message = false;
}

/* Its last Response has been made, or nobody wants it. */
static void end(struct zmq_front *z, struct zmq_call *call)
{
    if (call->client)
        zmq_client_touch(z, call->client); /* an emptied client ends when all is sent */
    unlink_client(z, call);
    forget_again(z, call);
    drop_message(call);
    z->call_count--;
    atomic_fetch_sub(&z->frontend->busy, 1);
    call_destroy(&call->call);
}

/* --- Responses that are not of a stream --- */

static void answer_fault(struct zmq_front *z, struct zmq_client *client, uint64_t id,
                         const struct api_fault *fault)
{
    api_proto_error(id, fault, &client->out);
    zmq_client_touch(z, client);
}

static void take_request_id(struct call *call, struct slice id)
{
    char text[130];

    if (!id.len || id.len > 128) return;
    memcpy(text, id.ptr, id.len);
    text[id.len] = 0;
    if (http_request_id_ok(text)) memcpy(call->request_id, text, id.len + 1);
}

static const char *copy_text(struct slice from, char *to, size_t size)
{
    if (!from.len || from.len >= size) return NULL;
    memcpy(to, from.ptr, from.len);
    to[from.len] = 0;
    return to;
}

static void take_trace(struct call *call, const struct api_head *head)
{
    char parent[128], state[TRACE_STATE_MAX + 1];

    trace_context_read(copy_text(head->traceparent, parent, sizeof parent),
                       copy_text(head->tracestate, state, sizeof state), &call->trace);
}

/* What is told of a request whether it is taken or refused. */
static void describe(struct zmq_front *z, const struct api_head *head, struct zmq_call *zc)
{
    struct call *call = &zc->call;

    zc->id = head->id;
    zc->kind = (enum zmq_kind)head->kind;
    call->zmq = z;
    call->frontend = z->frontend;
    call->method = HTTP_POST;
    call->route = routes[head->kind];
    call_fresh_id(call->request_id);
    take_request_id(call, head->request_id);
    call->received_ns = clock_mono_ns();
    call->wall_ns = clock_wall_ns();
    take_trace(call, head);
}

/* A refusal before there is a call: counted, logged and traced as any other. */
static void refuse(struct zmq_front *z, struct zmq_client *client, const struct api_head *head,
                   const struct api_fault *fault)
{
    struct zmq_call told = {0};

    describe(z, head, &told);
    told.call.fault = *fault;
    call_count(&told.call, fault->http_status);
    answer_fault(z, client, head->id, fault);
}

static void answer_health(struct zmq_front *z, uint64_t id, struct buf *out)
{
    static const int states[] = {[API_READY] = API_HEALTH_READY,
                                 [API_LOADING] = API_HEALTH_LOADING,
                                 [API_DRAINING] = API_HEALTH_DRAINING};
    struct api_health health = {.version = z->frontend->options.version};
    char text[96];
    const char *reason = service_fault(z->frontend, text);

    health.state = states[service_state(z->frontend)];
    if (health.state == API_HEALTH_READY && atomic_load(&z->frontend->draining))
        health.state = API_HEALTH_DRAINING; /* as /ready */
    if (reason) {
        health.state = API_HEALTH_FAILED;
        health.reason = reason;
    }
    api_proto_health(id, &health, out);
}

static uint64_t rejected_total(struct frontend *f)
{
    uint64_t total = 0;

    for (int r = 0; r < REJECT_REASONS; r++)
        total += atomic_load_explicit(&f->stats->rejected[r], memory_order_relaxed);
    return total;
}

static void answer_load(struct zmq_front *z, uint64_t id, struct buf *out)
{
    struct engine *engine = atomic_load(&z->frontend->engine);
    struct engine_stats e = {0};

    if (engine) engine_stats(engine, &e);
    struct api_load load = {.seqs_running = e.seqs_running,
                            .seqs_waiting = e.seqs_waiting,
                            .seqs_blocked = e.seqs_blocked,
                            .kv_blocks_total = e.kv_blocks_total,
                            .kv_blocks_used = e.kv_blocks_used,
                            .requests_open = atomic_load(&z->frontend->busy),
                            .prompt_tokens = e.prompt_tokens,
                            .generation_tokens = e.generation_tokens,
                            .cached_tokens = e.cached_tokens,
                            .requests_finished = e.requests_finished,
                            .requests_rejected = rejected_total(z->frontend),
                            .preemptions = e.preemptions,
                            .steps = e.steps};

    api_proto_load(id, &load, out);
}

/* --- cancelling --- */

static struct api_fault cancelled_fault(void)
{
    struct api_fault fault;

    api_refuse(&fault, 499, "cancelled", NULL, "The request was cancelled.");
    return fault;
}

void zmq_call_fail(struct zmq_front *z, struct zmq_call *zc, const struct api_fault *fault)
{
    struct call *call = &zc->call;

    if (call->state == CALL_PARSING) { /* zmq_call_opened goes on with it */
        atomic_store(&call->gone, true);
        call->fault = *fault;
        return;
    }
    /* what a stream says itself; the record takes the code from it */
    api_stream_fail(call->api.stream, fault, &zc->client->out);
    if (!api_stream_is_sse(call->api.stream)) api_proto_error(zc->id, fault, &zc->client->out);
    zmq_client_touch(z, zc->client);
    call_count(call, fault->http_status);
    if (call->submitted && !call->ended)
        engine_cancel(atomic_load(&z->frontend->engine), call->api.request);
    call->ended = true;
    end(z, zc);
}

static void cancel(struct zmq_front *z, struct zmq_client *client, const struct api_head *head)
{
    struct zmq_call *call = find(z, client, head->cancel_id);
    struct api_fault fault = cancelled_fault();

    api_proto_cancel(head->id, call && !call->cancelled, &client->out);
    zmq_client_touch(z, client);
    if (!call || call->cancelled) return;
    call->cancelled = true;
    zmq_call_fail(z, call, &fault);
}

/* --- taking requests --- */

static struct zmq_call *make(struct zmq_front *z, struct zmq_client *client,
                             const struct api_head *head, zmq_msg_t *message)
{
    struct zmq_call *zc = calloc(1, sizeof *zc);

    if (!zc) return NULL;
    struct call *call = &zc->call;

    describe(z, head, zc);
    call->state = CALL_PARSING;
    call->content_type = "";
    call->limits = z->settings->o.limits;
    call->tenant =
        z->settings->o.api_key_count ? hash_bytes(head->api_key.ptr, head->api_key.len, 0) : 0;
    call->holder = call->tenant ? call->tenant : zmq_peer_address(message);
    buf_init(&call->body, 0);
    buf_init(&call->out, 0);
    zc->client = client;
    zmq_msg_init(&zc->message);
    zmq_msg_move(&zc->message, message);
    zc->has_message = true;
    return zc;
}

static void link_client(struct zmq_front *z, struct zmq_call *zc)
{
    struct zmq_client *client = zc->client;
    struct zmq_call **at = bucket(z, client, zc->id);

    zc->hash_next = *at;
    *at = zc;
    zc->next = client->calls;
    if (client->calls) client->calls->prev = zc;
    client->calls = zc;
    client->call_count++;
    z->call_count++;
    atomic_fetch_add(&z->frontend->busy, 1);
}

/* A short prompt takes less time to tokenise than a text thread to wake up and to wake us; a few of them in a turn hold up
 * nobody. */
static bool begin(struct zmq_front *z, struct zmq_call *zc, size_t bytes, bool plain,
                  struct api_fault *fault)
{
    if (!call_reserve_body(&zc->call, bytes, fault)) return false;
    if (plain && bytes <= OPEN_HERE_BYTES && z->opened_here < OPEN_HERE_MAX) {
        z->opened_here++;
        call_run(&zc->call); /* ends in zmq_front_done */
        return true;
    }
    if (!call_to_text(&zc->call, bytes)) return true;
    return api_refuse(fault, 429, "rate_limit_exceeded", NULL,
                      "Too many requests are being read; try again in a second.");
}

static bool may_start(struct zmq_front *z, struct zmq_client *client, const struct api_head *head,
                      struct api_fault *fault)
{
    if (find(z, client, head->id))
        return api_refuse(fault, 400, "duplicate_id", "id",
                          "A request of this client with the same id is still open.");
    if (client->call_count >= ZMQ_CLIENT_CALLS_MAX)
        return api_refuse(fault, 429, "too_many_requests", NULL,
                          "A client may have %d requests open.", ZMQ_CLIENT_CALLS_MAX);
    if (z->draining)
        return api_refuse(fault, 503, "server_draining", NULL,
                          "The server is shutting down and takes no new requests.");
    return true;
}

static void start(struct zmq_front *z, struct zmq_client *client, const struct api_head *head,
                  zmq_msg_t *message)
{
    size_t bytes = zmq_msg_size(message);
    uint64_t limit = z->settings->o.body_bytes_max; /* the socket's is that of the start */
    struct api_fault fault;

    if (bytes > limit) {
        api_refuse(&fault, 413, "request_too_large", NULL, "A message may have at most %llu bytes.",
                   (unsigned long long)limit);
        refuse(z, client, head, &fault);
        return;
    }
    if (!may_start(z, client, head, &fault)) {
        refuse(z, client, head, &fault);
        return;
    }
    struct zmq_call *zc = make(z, client, head, message);

    if (zc) link_client(z, zc);
    if (zc && begin(z, zc, bytes, head->plain, &fault)) return;
    if (!zc) api_submit_fault(STATUS_NOMEM, NULL, API_COMPLETIONS, 1, &fault);
    if (!zc) {
        refuse(z, client, head, &fault);
        return;
    }
    zc->call.fault = fault;
    call_count(&zc->call, fault.http_status);
    answer_fault(z, client, zc->id, &fault);
    end(z, zc);
}

static void handle(struct zmq_front *z, struct zmq_client *client, const struct api_head *head,
                   zmq_msg_t *message)
{
    struct api_fault fault;

    if (!zmq_auth_listed(z->auth, message)) {
        api_refuse(&fault, 401, "invalid_client_key", NULL,
                   "The client's CURVE key is not in the server's list any more.");
        refuse(z, client, head, &fault);
        return;
    }
    if (head->kind != API_MESSAGE_HEALTH && z->settings->o.api_key_count &&
        !zmq_auth_key_ok(&z->settings->o, head->api_key)) {
        api_refuse(&fault, 401, "invalid_api_key", NULL,
                   "A valid API key is needed: set the field api_key.");
        refuse(z, client, head, &fault);
        return;
    }
    switch (head->kind) {
    case API_MESSAGE_GENERATE:
    case API_MESSAGE_TOKENIZE:
    case API_MESSAGE_DETOKENIZE: start(z, client, head, message); return;
    case API_MESSAGE_CANCEL: cancel(z, client, head); break;
    case API_MESSAGE_HEALTH: answer_health(z, head->id, &client->out); break;
    case API_MESSAGE_LOAD_REPORT: answer_load(z, head->id, &client->out); break;
    case API_MESSAGE_MODEL_INFO:
        if (service_state(z->frontend) == API_LOADING) {
            api_refuse(&fault, 503, "model_loading", NULL, "The model is still loading.");
            refuse(z, client, head, &fault);
            return;
        }
        api_proto_model(head->id, &z->frontend->model, &client->out);
        break;
    default:
        api_refuse(&fault, 400, "invalid_message", NULL,
                   "The Request asks for nothing that this version knows.");
        refuse(z, client, head, &fault);
        return;
    }
    zmq_stats_count(z->stats, (enum zmq_kind)head->kind, 200);
    zmq_client_touch(z, client);
}

void zmq_call_handle(struct zmq_front *z, struct slice id, zmq_msg_t *message, bool extra)
{
    struct slice bytes = slice_of(zmq_msg_data(message), zmq_msg_size(message));
    struct zmq_client *client;
    struct api_head head;
    struct api_fault fault;

    atomic_fetch_add_explicit(&z->stats->messages_in, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&z->stats->bytes_in, bytes.len, memory_order_relaxed);
    if (!bytes.len && !extra) return; /* a client's own way of keeping its connection warm */
    client = zmq_client_open(z, id);
    if (!client) return; /* no memory: dropped, as a lost packet */
    zmq_peer_note(client, message);
    /* It reads nothing, and would be answered without end: dropped until it does, or is cut. */
    if (client->stuck && client->out.len > ZMQ_OUT_HARD) return;
    if (!extra && api_proto_head(bytes, &head)) {
        handle(z, client, &head, message);
        return;
    }
    atomic_fetch_add_explicit(&z->stats->malformed, 1, memory_order_relaxed);
    if (extra) head = (struct api_head){0};
    api_refuse(&fault, 400, "invalid_message", NULL,
               extra ? "A message must be one frame." : "The message is no inferd.v1.Request.");
    answer_fault(z, client, head.id, &fault);
}

/* --- answers --- */

/* The Responses of a stream are made where they are sent from. */
static void pump_stream(struct zmq_client *client, struct call *call, bool *more)
{
    call->out = client->out;
    call_pump(call, more);
    client->out = call->out;
    call->out = (struct buf){0};
}

/* A whole answer moves when nothing is before it. */
static void take_whole(struct zmq_client *client, struct call *call, struct buf *answer)
{
    if (!client->out_large) client->holder = call->holder;
    if (share_move(call->frontend->answers, call->holder, client->holder, call->answer_reserved)) {
        client->out_large += call->answer_reserved; /* the client's from here on */
        call->answer_reserved = 0;
    }
    if (!client->out.len && !buf_status(&client->out)) {
        buf_fini(&client->out);
        client->out = *answer;
        *answer = (struct buf){0};
    } else {
        buf_append_slice(&client->out, buf_slice(answer));
    }
}

/* Counts the call, and gives the answer to its client; or a fault, where clients leave too many unread. */
static void give_whole(struct zmq_front *z, struct zmq_call *zc, struct buf *answer)
{
    struct call *call = &zc->call;
    bool held = call_hold_answer(call, answer);

    call_count(call, held ? call->status : call->fault.http_status);
    if (held)
        take_whole(zc->client, call, answer);
    else
        answer_fault(z, zc->client, zc->id, &call->fault);
}

void zmq_call_pump(struct zmq_front *z, struct zmq_call *zc)
{
    struct call *call = &zc->call;
    struct zmq_client *client = zc->client;
    bool more = false;

    if (!client || (call->state != CALL_STREAM && call->state != CALL_WAITING)) return;
    if (!zmq_client_has_room(client)) {
        if (!client->stuck) zmq_call_again(z, zc); /* after this turn's flush */
        return; /* stuck: its ring fills; tried again when the socket has room */
    }
    if (call->state == CALL_STREAM)
        pump_stream(client, call, &more);
    else
        call_pump(call, &more);
    if (call->ended) {
        if (call->state == CALL_ANSWER) {
            give_whole(z, zc, &call->out);
        }
        end(z, zc);
        return;
    }
    if (client->out.len) zmq_client_touch(z, client);
    if (more) zmq_call_again(z, zc);
}

void zmq_call_again(struct zmq_front *z, struct zmq_call *zc)
{
    if (zc->in_again) return;
    zc->in_again = true;
    zc->again_next = z->again;
    z->again = zc;
}

/* Cancelled, or its client has gone, while a text thread had it. */
static void drop_opened(struct zmq_front *z, struct zmq_call *zc)
{
    struct call *call = &zc->call;

    if (call->submitted) engine_cancel(atomic_load(&z->frontend->engine), call->api.request);
    call->ended = true;
    call_count(call, call->fault.http_status ? call->fault.http_status : 499);
    if (zc->client) answer_fault(z, zc->client, zc->id, &call->fault);
    end(z, zc);
}

void zmq_call_opened(struct zmq_front *z, struct zmq_call *zc)
{
    struct call *call = &zc->call;

    drop_message(zc);
    if (atomic_load(&call->gone)) {
        drop_opened(z, zc);
        return;
    }
    if (call->api.kind == API_GENERATE) {
        call->last_taken_ns = clock_mono_ns();
        if (strncmp(call->api.request->id, "chat", 4) == 0) call->route = ROUTE_CHAT;
        call_show(call);
        call->state = api_stream_is_sse(call->api.stream) ? CALL_STREAM : CALL_WAITING;
        api_stream_begin(call->api.stream, &zc->client->out);
        zmq_client_touch_lazily(z, zc->client);
        zmq_call_pump(z, zc);
        return;
    }
    call->fault = call->api.fault;
    call->status = 200;
    if (call->api.kind != API_FAULT) {
        give_whole(z, zc, &call->api.body);
    } else {
        call_count(call, call->fault.http_status);
        answer_fault(z, zc->client, zc->id, &call->fault);
    }
    end(z, zc);
}

/* --- many at once --- */

static void vanish(struct zmq_front *z, struct zmq_call *zc)
{
    struct call *call = &zc->call;

    unlink_client(z, zc);
    atomic_store(&call->gone, true);
    if (call->state == CALL_PARSING) { /* the text thread has it */
        zc->next = z->orphans;
        if (z->orphans) z->orphans->prev = zc;
        z->orphans = zc;
        return;
    }
    call_count(call, 499);
    if (call->submitted && !call->ended)
        engine_cancel(atomic_load(&z->frontend->engine), call->api.request);
    call->ended = true;
    /* an orphan for the moment, so that end() finds it where it looks */
    zc->next = z->orphans;
    if (z->orphans) z->orphans->prev = zc;
    z->orphans = zc;
    end(z, zc);
}

void zmq_call_vanish_all(struct zmq_front *z, struct zmq_client *client)
{
    while (client->calls)
        vanish(z, client->calls);
}

void zmq_call_fail_all(struct zmq_front *z, struct zmq_client *client,
                       const struct api_fault *fault)
{
    struct zmq_call *next;

    for (struct zmq_call *call = client->calls; call; call = next) {
        next = call->next;
        zmq_call_fail(z, call, fault);
    }
}

void zmq_call_end_all(struct zmq_front *z)
{
    struct api_fault fault;

    api_refuse(&fault, 503, "server_draining", NULL, "The server is shutting down.");
    for (struct zmq_client *c = z->clients; c; c = c->next)
        zmq_call_fail_all(z, c, &fault);
}
