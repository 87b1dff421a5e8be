/* call.c - what happens to a request between its last byte and the answer's first. */
#include "frontend/call.h"

#include <stdio.h>
#include <malloc.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "frontend/zmq.h"

enum {
    ANSWERS_PART = 2, /* 512 MiB at least: one of the longest answer, and as much for all others */
    SMALL_ANSWER = 64 << 10, /* as many as there may be connections */
};
enum { PUMP_OUTPUTS_MAX = 256, PUMP_BYTES_MAX = 64 << 10 }; /* of one call in one turn */

void call_fresh_id(char out[132])
{
    unsigned char bytes[12] = {0};

    (void)!getrandom(bytes, sizeof bytes, GRND_NONBLOCK);
    memcpy(out, "req-", 5);
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(out + 4 + 2 * i, 3, "%02x", bytes[i]);
}

struct call *call_create(struct conn *conn, const char *target)
{
    struct call *call = calloc(1, sizeof *call);

    if (!call || !(call->target = strdup(target))) {
        free(call);
        return NULL;
    }
    call->conn = conn;
    call->frontend = NULL;
    call->content_type = "application/json";
    call_fresh_id(call->request_id);
    return call;
}

static void release_body(struct call *call)
{
    bool large = call->body.cap > 1 << 20;

    buf_fini(&call->body);
    if (large) malloc_trim(0); /* what a large body and its JSON took goes back to the system */
    share_give(call->frontend->bodies, call->holder, call->body_reserved);
    call->body_reserved = 0;
}

/* 429 for what its sender can mend himself, 503 for what others have done. */
static bool refuse_share(struct api_fault *fault, enum status st, const char *own,
                         const char *others)
{
    if (st == STATUS_LIMIT) return api_refuse(fault, 429, "share_exceeded", NULL, "%s", own);
    return api_refuse(fault, 503, "service_unavailable", NULL, "%s", others);
}

bool call_reserve_body(struct call *call, uint64_t bytes, struct api_fault *fault)
{
    struct frontend *f = call->frontend;
    enum status st = share_take(f->bodies, call->holder, bytes, atomic_load(&f->body_bytes));

    if (st)
        return refuse_share(
            fault, st,
            "The requests that the server is reading from this key or address have their share of "
            "its memory; finish sending them first.",
            "The server is reading too many large requests; try again.");
    call->body_reserved += bytes;
    return true;
}

bool call_hold_answer(struct call *call, struct buf *answer)
{
    struct frontend *f = call->frontend;
    uint64_t limit = ANSWERS_PART * atomic_load(&f->body_bytes), bytes = answer->len;

    if (bytes <= SMALL_ANSWER) return true;
    enum status st = share_take(f->answers, call->holder, bytes, limit);

    if (!st) {
        call->answer_reserved += bytes;
        return true;
    }
    buf_fini(answer);
    buf_init(answer, 0);
    return refuse_share(
        &call->fault, st,
        "The large answers that this key or address has not read have their share of the server's "
        "memory; read them first.",
        "The server holds too many large answers that clients have not read; try again.");
}

/* Lets go of the engine's side. The request may live on there, without us. */
static void release_generation(struct call *call)
{
    struct request *request = call->api.request;

    api_stream_destroy(call->api.stream);
    call->api.stream = NULL;
    if (!request) return;
    live_leave(&call->frontend->stats->live, call->live);
    call->live = NULL;
    request->frontend = NULL;
    request_unref(request);
    call->api.request = NULL;
}

void call_destroy(struct call *call)
{
    if (call->submitted && !call->ended)
        engine_cancel(atomic_load(&call->frontend->engine), call->api.request);
    release_generation(call);
    buf_fini(&call->api.body);
    release_body(call);
    buf_fini(&call->out);
    share_give(call->frontend->answers, call->holder, call->answer_reserved);
    free(call->target);
    free(call);
}

/* --- counters --- */

static void count_rejected(struct http_stats *stats, const struct api_fault *fault)
{
    enum reject_reason reason;

    if (fault->http_status == 429)
        reason = fault->code && strcmp(fault->code, "share_exceeded") == 0 ? REJECT_SHARE
                                                                           : REJECT_QUEUE_FULL;
    else if (fault->http_status != 503)
        return;
    else if (fault->code && strcmp(fault->code, "model_loading") == 0)
        reason = REJECT_LOADING;
    else if (fault->code && strcmp(fault->code, "server_draining") == 0)
        reason = REJECT_DRAINING;
    else
        reason = REJECT_UNAVAILABLE;
    atomic_fetch_add_explicit(&stats->rejected[reason], 1, memory_order_relaxed);
}

void call_count(struct call *call, unsigned status)
{
    struct http_stats *stats = call->frontend->stats;

    if (call->counted) return;
    call->counted = true;
    if (call->zmq)
        zmq_stats_count(&stats->zmq, ((const struct zmq_call *)call)->kind, status);
    else
        http_stats_count(stats, call->method, call->route, status);
    if (call->fault.http_status && !call->submitted) count_rejected(stats, &call->fault);
    if (status == 499 && call_is_generation(call) && call->received_ns)
        atomic_fetch_add_explicit(&stats->aborted, 1, memory_order_relaxed);
    call_report(call, status, clock_mono_ns());
}

/* --- to a text thread, and on it --- */

enum status call_to_text(struct call *call, size_t bytes)
{
    enum text_lane lane = text_lane_of(bytes, !call_is_generation(call));

    return text_lanes_submit(&call->frontend->lanes, lane, call);
}

/* As the model sees it, cut: only where the operator asks. */
static void log_prompt(const struct call *call)
{
    const struct request *r = call->api.request;
    char quoted[2048];
    struct buf text;

    for (uint32_t p = 0; p < r->prompt_count; p++) {
        buf_init(&text, 0);
        if (api_prompt_text(&call->frontend->model, r, p, &text) == STATUS_OK)
            log_info("prompt", "id=%s request_id=\"%s\" number=%u text=%s", r->id, call->request_id,
                     p, log_quote(buf_slice(&text), quoted, sizeof quoted));
        buf_fini(&text);
    }
}

static void submit(struct call *call, struct engine *engine, enum api_route route)
{
    struct error err = {0};
    uint32_t retry_after_s = 1;
    struct request *request = call->api.request;

    request->frontend = call;
    if (call->timeout_ns) request->deadline_ns = call->received_ns + call->timeout_ns;
    request->bell = call->zmq ? zmq_front_bell(call) : io_bell(call->conn->io);
    enum status st = engine_submit(engine, request, &retry_after_s, &err);

    if (!st) {
        call->submitted = true;
        return;
    }
    struct engine_stats stats;

    engine_stats(engine, &stats);
    if (st == STATUS_CLOSED && !stats.alive)
        api_refuse(&call->api.fault, 503, "service_unavailable", NULL, "The engine has ended: %s.",
                   stats.dead_reason ? stats.dead_reason : "its device is lost");
    else
        api_submit_fault(st, &err, route, retry_after_s, &call->api.fault);
    call->api.kind = API_FAULT;
}

void call_run(void *job)
{
    static const enum api_route routes[HTTP_ROUTES] = {[ROUTE_CHAT] = API_CHAT,
                                                       [ROUTE_COMPLETIONS] = API_COMPLETIONS,
                                                       [ROUTE_TOKENIZE] = API_TOKENIZE,
                                                       [ROUTE_DETOKENIZE] = API_DETOKENIZE};
    struct call *call = job;
    struct frontend *f = call->frontend;
    struct api_client client = {
        .tenant = call->tenant, .received_ns = call->received_ns, .limits = call->limits};
    struct engine *engine = atomic_load(&f->engine);
    enum api_state state = service_state(f);

    if (!atomic_load(&call->gone)) {
        if (call->zmq)
            zmq_front_open(call, engine ? &f->model : NULL, state, &client);
        else
            api_open(engine ? &f->model : NULL, routes[call->route], state, buf_slice(&call->body),
                     &client, &call->api);
        if (call->api.kind == API_GENERATE && f->options.log_prompts) log_prompt(call);
        if (call->api.kind == API_GENERATE && !atomic_load(&call->gone))
            submit(call, engine, routes[call->route]);
    }
    release_body(call);
    if (call->zmq)
        zmq_front_done(call);
    else
        io_done(call);
}

/* --- on the I/O thread --- */

void call_parsed(struct call *call)
{
    bool more;

    if (call->state == CALL_GONE) {
        if (call->submitted) engine_cancel(atomic_load(&call->frontend->engine), call->api.request);
        call_count(call, 499);
        call->ended = true;
        io_resume(call);
        return;
    }
    if (call->api.kind != API_GENERATE) {
        call->fault = call->api.fault;
        call->status = 200;
        call->out = call->api.body;
        buf_init(&call->api.body, 0);
        call->state = CALL_ANSWER;
        io_resume(call);
        return;
    }
    call->last_taken_ns = clock_mono_ns();
    call_show(call);
    if (!api_stream_is_sse(call->api.stream)) {
        call->state = CALL_WAITING;
        call_pump(call, &more);
        if (more) io_again(call);
        return;
    }
    call->state = CALL_STREAM;
    api_stream_begin(call->api.stream, &call->out);
    io_resume(call);
}

static void note_token(struct call *call, const struct output *output, int64_t now)
{
    struct http_stats *stats = call->frontend->stats;

    if (output->kind != OUTPUT_TOKEN) return;
    if (call->live) atomic_fetch_add_explicit(&call->live->tokens, 1, memory_order_relaxed);
    if (!call->first_token_ns) {
        call->first_token_ns = call->last_token_ns = now;
        http_stats_first_token(stats, now, now - call->received_ns);
        recent_rate_add(&stats->recent_prompt_tokens, now, call->api.request->times.prompt_tokens);
    } else if (output->choice == 0) {
        http_stats_inter_token(stats, now, now - call->last_token_ns);
        call->last_token_ns = now;
    }
}

static void finish_whole(struct call *call)
{
    call->status = api_stream_answer(call->api.stream, &call->out, &call->fault);
    call->state = CALL_ANSWER;
    io_resume(call);
}

/* The api side has given up (a fault of its own) while the engine still computes. */
static void note_done(struct call *call)
{
    if (call->ended || !api_stream_done(call->api.stream)) return;
    if (strcmp(api_stream_outcome(call->api.stream), "error") == 0)
        engine_cancel(atomic_load(&call->frontend->engine), call->api.request);
    call->ended = true;
}

void call_pump(struct call *call, bool *more)
{
    struct request *request = call->api.request;
    struct api_stream *stream = call->api.stream;
    struct output output;
    struct api_ended ended;
    int64_t start = clock_mono_ns();
    uint32_t taken = 0, tokens = 0;

    *more = false;
    while (!call->ended && taken < PUMP_OUTPUTS_MAX &&
           output_ring_pop(request->ring, &output) == STATUS_OK) {
        taken++;
        tokens += output.kind == OUTPUT_TOKEN;
        note_token(call, &output, start);
        if (api_stream_push(stream, &output, &ended))
            engine_end_choice(atomic_load(&call->frontend->engine), request, ended.choice,
                              ended.kept_tokens);
        note_done(call);
    }
    if (!taken) return;
    if (tokens) recent_rate_add(&call->frontend->stats->recent_generated_tokens, start, tokens);
    *more = taken == PUMP_OUTPUTS_MAX && !call->ended;
    api_stream_flush(stream, &call->out);
    call->make_ns += (uint64_t)(clock_mono_ns() - start);
    if (call->ended && call->state == CALL_STREAM)
        call_count(call, 200); /* before its last byte goes */
    if (call->ended && call->state == CALL_WAITING) finish_whole(call);
}

void call_vanish(struct call *call)
{
    if (call->state == CALL_GONE) return;
    bool parsing = call->state == CALL_PARSING;

    atomic_store(&call->gone, true);
    call->state = CALL_GONE;
    shutdown(call->conn->fd, SHUT_RDWR);
    if (parsing) return; /* call_parsed ends it: until then the text thread has it */
    call_count(call, 499);
    if (call->submitted && !call->ended) {
        engine_cancel(atomic_load(&call->frontend->engine), call->api.request);
        call->ended = true;
    }
    if (call->suspended) io_resume(call);
}

void call_end(struct call *call, const char *code, const char *why)
{
    struct api_fault fault;

    if (call->state != CALL_WAITING && call->state != CALL_STREAM) return;
    if (call->ended) return;
    api_refuse(&fault, 503, code, NULL, "%s", why);
    if (call->direct)
        sse_fail(call, &fault);
    else
        api_stream_fail(call->api.stream, &fault, &call->out);
    engine_cancel(atomic_load(&call->frontend->engine), call->api.request);
    call->ended = true;
    call_count(call, 503);
    if (call->state == CALL_WAITING)
        finish_whole(call);
    else if (call->direct)
        sse_flush(call);
    else if (call->suspended)
        io_resume(call);
}
