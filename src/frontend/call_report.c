/* call_report.c - what is told of a request that is over: its record to the histograms, the log, /stats and the tracer. */
#include <netinet/in.h>
#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "frontend/call.h"
#include "frontend/zmq.h"
#include "observe/metrics.h"
#include "observe/tracer.h"

static const char *outcome_of(const struct call *call, unsigned status)
{
    if (status == 499) return "aborted";
    if (!call->submitted) return "refused";
    return status >= 400 ? "error" : api_stream_outcome(call->api.stream);
}

/* Whether the engine writes nothing more of it: before that only what it stores whole may be read. */
static bool is_at_rest(const struct call *call, unsigned status)
{
    const char *outcome = outcome_of(call, status);

    return strcmp(outcome, "stop") == 0 || strcmp(outcome, "length") == 0;
}

/* The times as far as they may be read; where the engine may still write, the I/O thread's own stand for its. */
static void take_times(const struct call *call, unsigned status, int64_t now_ns,
                       struct stage_times *out)
{
    const struct request *r = call->api.request;

    if (!r)
        *out = (struct stage_times){.received_ns = call->received_ns ? call->received_ns : now_ns};
    else if (call->submitted && is_at_rest(call, status))
        *out = r->times;
    else
        *out = (struct stage_times){
            .received_ns = r->times.received_ns,
            .opened_ns = r->times.opened_ns,
            .parsed_ns = r->times.parsed_ns,
            .rendered_ns = r->times.rendered_ns,
            .tokenized_ns = r->times.tokenized_ns,
            .submitted_ns = call->submitted ? r->times.submitted_ns : 0,
            .scheduled_ns = __atomic_load_n(&r->times.scheduled_ns, __ATOMIC_RELAXED),
            .first_token_ns = call->first_token_ns,
            .last_token_ns = call->last_token_ns,
            .prompt_tokens = r->times.prompt_tokens,
            .cached_tokens = STAGE_LOOK(r->times.cached_tokens),
            .completion_tokens = STAGE_LOOK(r->times.completion_tokens),
            .prefill_chunks = STAGE_LOOK(r->times.prefill_chunks),
            .decode_steps = STAGE_LOOK(r->times.decode_steps),
            .batch_rows_sum = STAGE_LOOK(r->times.batch_rows_sum),
            .preemptions = STAGE_LOOK(r->times.preemptions),
            .queued_for = STAGE_LOOK(r->times.queued_for),
        };
    out->detokenize_ns = (int64_t)call->make_ns;
    out->stall_ns = call->stall_ns;
}

static void put_client(const struct call *call, char *out, size_t size)
{
    const union MHD_ConnectionInfo *info =
        call->zmq ? NULL
                  : MHD_get_connection_info(call->conn->mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *from = info ? info->client_addr : NULL;
    char address[INET6_ADDRSTRLEN] = "";

    snprintf(out, size, "%s", call->zmq ? "zmq" : from && from->sa_family == AF_UNIX ? "unix" : "");
    if (from && from->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)from;

        inet_ntop(AF_INET, &in->sin_addr, address, sizeof address);
        snprintf(out, size, "%s:%u", address, ntohs(in->sin_port));
    } else if (from && from->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)(const void *)from;

        inet_ntop(AF_INET6, &in->sin6_addr, address, sizeof address);
        snprintf(out, size, "[%s]:%u", address, ntohs(in->sin6_port));
    }
}

static void put_parameters(const struct call *call, struct request_record *out)
{
    const struct request *r = call->api.request;
    const struct api_stream *s = call->api.stream;

    snprintf(out->id, sizeof out->id, "%s", r->id);
    out->streamed = api_stream_is_sse(s);
    out->n = api_stream_n(s);
    out->choices = request_choices(r);
    out->completion_tokens = api_stream_completion_tokens(s);
    out->longest_choice_tokens = api_stream_longest_choice(s);
    out->max_tokens = r->max_tokens;
    out->temperature = r->sampling.temperature;
    out->top_p = r->sampling.top_p;
    out->top_k = r->sampling.top_k;
    out->frequency_penalty = r->sampling.frequency_penalty;
    out->presence_penalty = r->sampling.presence_penalty;
}

static const char *route_name(const struct call *call)
{
    return call->zmq ? "zmq" : http_route_pattern(call->route);
}

static void fill(struct call *call, unsigned status, int64_t now_ns, struct request_record *out)
{
    const struct metrics_model *served = call->frontend->options.served;
    const char *code = call->fault.code;

    *out = (struct request_record){.route = route_name(call),
                                   .operation = call->route == ROUTE_CHAT ? OPERATION_CHAT
                                                                          : OPERATION_COMPLETION,
                                   .status = status,
                                   .submitted = call->submitted,
                                   .wall_ns = call->wall_ns ? call->wall_ns : clock_wall_ns(),
                                   .trace = call->trace};
    snprintf(out->request_id, sizeof out->request_id, "%s", call->request_id);
    snprintf(out->outcome, sizeof out->outcome, "%s", outcome_of(call, status));
    if (atomic_load(&call->frontend->engine) && served && served->name)
        snprintf(out->model, sizeof out->model, "%s", served->name);
    put_client(call, out->client, sizeof out->client);
    if (call->api.request && call->api.stream) put_parameters(call, out);
    if (call->submitted && !code) code = api_stream_error_code(call->api.stream);
    snprintf(out->code, sizeof out->code, "%s", code ? code : "");
    take_times(call, status, now_ns, &out->times);
    out->ledger = stage_ledger(&out->times, now_ns);
    if (call->first_token_ns) out->first_token_ns = call->first_token_ns - call->received_ns;
}

void call_show(struct call *call)
{
    const struct request *r = call->api.request;

    call->live = live_enter(&call->frontend->stats->live, r->id, route_name(call),
                            call->received_ns, &r->times);
}

void call_report(struct call *call, unsigned status, int64_t now_ns)
{
    struct frontend *f = call->frontend;
    struct reports *reports = call->zmq ? &call->zmq->reports : io_reports(call->conn->io);

    if (!call_is_generation(call) || call->method != HTTP_POST) return;
    if (f->options.tracer) trace_context_begin(&call->trace);
    if (reports->count == REPORTS_MAX) reports_tell(reports, f);
    struct request_record *record = &reports->records[reports->count++];

    fill(call, status, now_ns, record);
    if (record->submitted) {
        http_stats_finish(f->stats, record, now_ns);
        live_note_ended(&f->stats->live, record);
        live_leave(&f->stats->live, call->live);
        call->live = NULL;
    }
}

void reports_tell(struct reports *reports, struct frontend *f)
{
    for (uint32_t i = 0; i < reports->count; i++) {
        request_record_log(&reports->records[i]);
        tracer_offer(f->options.tracer, &reports->records[i]);
    }
    reports->count = 0;
}
