#include "observe/otlp_encode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "observe/otlp_trace.pb-c.h"

enum { ATTRIBUTES_MAX = 48, SPANS_PER_REQUEST = 1 + STAGES };

/* --- building: everything lies in one arena; a lack of memory shows at the end --- */

struct maker {
    struct arena arena;
    bool failed;
};

/* `size`, at most 4096, zeroed bytes. Without memory: a place that is written and never read, so that a build goes on to its end. */
static void *make(struct maker *m, size_t size)
{
    static _Thread_local _Alignas(16) char spill[4096];
    void *p = m->failed ? NULL : arena_alloc(&m->arena, size);

    m->failed |= !p;
    return p ? p : spill;
}

static char *make_text(struct maker *m, const char *text)
{
    size_t len = strlen(text);
    char *copy = len < 4096 ? make(m, len + 1) : make(m, 1);

    if (len < 4096 && !m->failed) memcpy(copy, text, len + 1);
    return copy;
}

struct attributes {
    struct maker *maker;
    Otlp__KeyValue **items; /* [ATTRIBUTES_MAX] */
    size_t count;
};

static struct attributes begin(struct maker *m)
{
    return (struct attributes){m, make(m, ATTRIBUTES_MAX * sizeof(Otlp__KeyValue *)), 0};
}

static Otlp__AnyValue *make_value(struct maker *m)
{
    Otlp__AnyValue *value = make(m, sizeof *value);

    otlp__any_value__init(value);
    return value;
}

static Otlp__AnyValue *add(struct attributes *a, const char *key)
{
    Otlp__KeyValue *pair = make(a->maker, sizeof *pair);
    Otlp__AnyValue *value = make_value(a->maker);

    if (a->maker->failed || a->count == ATTRIBUTES_MAX) return value;
    otlp__key_value__init(pair);
    pair->key = make_text(a->maker, key);
    pair->value = value;
    a->items[a->count++] = pair;
    return value;
}

static void add_text(struct attributes *a, const char *key, const char *text)
{
    if (!text || !*text) return;
    Otlp__AnyValue *value = add(a, key);

    value->value_case = OTLP__ANY_VALUE__VALUE_STRING_VALUE;
    value->string_value = make_text(a->maker, text);
}

static void add_int(struct attributes *a, const char *key, int64_t number)
{
    Otlp__AnyValue *value = add(a, key);

    value->value_case = OTLP__ANY_VALUE__VALUE_INT_VALUE;
    value->int_value = number;
}

static void add_double(struct attributes *a, const char *key, double number)
{
    Otlp__AnyValue *value = add(a, key);

    value->value_case = OTLP__ANY_VALUE__VALUE_DOUBLE_VALUE;
    value->double_value = number;
}

static void add_bool(struct attributes *a, const char *key, bool flag)
{
    Otlp__AnyValue *value = add(a, key);

    value->value_case = OTLP__ANY_VALUE__VALUE_BOOL_VALUE;
    value->bool_value = flag;
}

/* A list of one text. */
static void add_list(struct attributes *a, const char *key, const char *text)
{
    Otlp__AnyValue *value = add(a, key), *item = make_value(a->maker);
    Otlp__ArrayValue *array = make(a->maker, sizeof *array);
    Otlp__AnyValue **items = make(a->maker, sizeof *items);

    if (a->maker->failed) return;
    otlp__array_value__init(array);
    item->value_case = OTLP__ANY_VALUE__VALUE_STRING_VALUE;
    item->string_value = make_text(a->maker, text);
    items[0] = item;
    array->n_values = 1;
    array->values = items;
    value->value_case = OTLP__ANY_VALUE__VALUE_ARRAY_VALUE;
    value->array_value = array;
}

/* --- a request --- */

static const char *operation_name(const struct request_record *r)
{
    return r->operation == OPERATION_CHAT ? "chat" : "text_completion";
}

static double seconds(int64_t ns)
{
    return (double)ns * 1e-9;
}

static void add_http(struct attributes *a, const struct request_record *r)
{
    if (r->route[0] == '/') {
        add_text(a, "http.request.method", "POST");
        add_text(a, "http.route", r->route);
        add_text(a, "url.path", r->route);
        add_int(a, "http.response.status_code", r->status);
    }
    char address[sizeof r->client];

    snprintf(address, sizeof address, "%s", r->client);
    char *colon = strrchr(address, ':');
    if (colon) {
        add_int(a, "client.port", strtol(colon + 1, NULL, 10));
        *colon = 0;
    }
    add_text(a, "client.address", address);
    add_text(a, "inferd.request_id", r->request_id);
}

static void add_parameters(struct attributes *a, const struct request_record *r)
{
    add_int(a, "gen_ai.request.max_tokens", r->max_tokens);
    add_double(a, "gen_ai.request.temperature", (double)r->temperature);
    add_double(a, "gen_ai.request.top_p", (double)r->top_p);
    if (r->top_k > 0) add_double(a, "gen_ai.request.top_k", r->top_k);
    add_double(a, "gen_ai.request.frequency_penalty", (double)r->frequency_penalty);
    add_double(a, "gen_ai.request.presence_penalty", (double)r->presence_penalty);
    if (r->n != 1) add_int(a, "gen_ai.request.choice.count", r->n);
    add_text(a, "gen_ai.output.type", "text");
    add_bool(a, "gen_ai.request.stream", r->streamed);
}

static void add_usage(struct attributes *a, const struct request_record *r)
{
    add_int(a, "gen_ai.usage.input_tokens", r->times.prompt_tokens);
    add_int(a, "gen_ai.usage.output_tokens", r->completion_tokens);
    add_int(a, "gen_ai.usage.cache_read.input_tokens", r->times.cached_tokens);
    if (strcmp(r->outcome, "stop") == 0 || strcmp(r->outcome, "length") == 0)
        add_list(a, "gen_ai.response.finish_reasons", r->outcome);
}

/* By the names of vLLM's own traces. */
static void add_latency(struct attributes *a, const struct request_record *r)
{
    const struct stage_ledger *l = &r->ledger;

    add_text(a, "gen_ai.request.id", r->id);
    add_double(a, "gen_ai.latency.e2e", seconds(l->total_ns));
    if (r->first_token_ns)
        add_double(a, "gen_ai.latency.time_to_first_token", seconds(r->first_token_ns));
    add_double(a, "gen_ai.latency.time_in_queue", seconds(l->ns[STAGE_QUEUE]));
    add_double(a, "gen_ai.latency.time_in_model_prefill", seconds(l->ns[STAGE_PREFILL]));
    add_double(a, "gen_ai.latency.time_in_model_decode", seconds(l->ns[STAGE_DECODE]));
    add_double(a, "gen_ai.latency.time_in_model_inference",
               seconds(l->ns[STAGE_PREFILL] + l->ns[STAGE_DECODE]));
}

static void add_fault(struct attributes *a, const struct request_record *r)
{
    char number[16];

    if (r->status < 400) return;
    snprintf(number, sizeof number, "%u", r->status);
    add_text(a, "error.type", r->code[0] ? r->code : number);
}

static ProtobufCBinaryData bytes_of(const uint8_t *bytes, size_t len)
{
    return (ProtobufCBinaryData){len, (uint8_t *)(uintptr_t)bytes};
}

static Otlp__Span *make_span(struct maker *m, const struct request_record *r, const char *name,
                             int64_t start_ns, int64_t end_ns)
{
    Otlp__Span *span = make(m, sizeof *span);

    otlp__span__init(span);
    span->trace_id = bytes_of(r->trace.trace_id, sizeof r->trace.trace_id);
    span->trace_state = make_text(m, r->trace.state);
    span->name = make_text(m, name);
    span->start_time_unix_nano = (uint64_t)start_ns;
    span->end_time_unix_nano = (uint64_t)end_ns;
    span->flags = 0x101; /* sampled; it is known whether the parent is remote */
    return span;
}

static Otlp__Span *make_root(struct maker *m, const struct request_record *r)
{
    char name[192];
    struct attributes a = begin(m);

    snprintf(name, sizeof name, "%s %s", operation_name(r), r->model);
    Otlp__Span *span = make_span(m, r, name, r->wall_ns, r->wall_ns + r->ledger.total_ns);
    span->span_id = bytes_of(r->trace.span_id, sizeof r->trace.span_id);
    if (r->trace.has_parent) {
        span->parent_span_id = bytes_of(r->trace.parent_id, sizeof r->trace.parent_id);
        span->flags |= 0x200; /* the parent is remote */
    }
    span->kind = OTLP__SPAN_KIND__SPAN_KIND_SERVER;
    add_text(&a, "gen_ai.operation.name", operation_name(r));
    add_text(&a, "gen_ai.provider.name", "inferd");
    add_text(&a, "gen_ai.request.model", r->model);
    add_text(&a, "gen_ai.response.model", r->submitted ? r->model : NULL);
    add_text(&a, "gen_ai.response.id", r->id);
    add_http(&a, r);
    if (r->submitted) {
        add_parameters(&a, r);
        add_usage(&a, r);
        add_latency(&a, r);
    }
    add_text(&a, "inferd.outcome", r->outcome);
    add_fault(&a, r);
    span->attributes = a.items;
    span->n_attributes = a.count;
    if (request_record_is_fault(r)) {
        span->status = make(m, sizeof *span->status);
        otlp__status__init(span->status);
        span->status->code = OTLP__STATUS_CODE__STATUS_CODE_ERROR;
        span->status->message = make_text(m, r->code);
    }
    return span;
}

static void add_stage(struct attributes *a, const struct request_record *r,
                      enum request_stage stage)
{
    const struct stage_times *t = &r->times;
    uint32_t steps = t->prefill_chunks + t->decode_steps;

    switch (stage) {
    case STAGE_QUEUE:
        add_text(a, "inferd.queued_for", t->queued_for);
        add_int(a, "inferd.preemptions", t->preemptions);
        break;
    case STAGE_PREFILL:
        add_int(a, "inferd.prompt_tokens", t->prompt_tokens);
        add_int(a, "inferd.cached_tokens", t->cached_tokens);
        add_int(a, "inferd.prefill_chunks", t->prefill_chunks);
        break;
    case STAGE_DECODE:
        add_int(a, "inferd.decode_steps", t->decode_steps);
        if (steps) add_double(a, "inferd.mean_batch_rows", (double)t->batch_rows_sum / steps);
        break;
    case STAGE_DELIVER:
        add_double(a, "inferd.detokenize_seconds", seconds(t->detokenize_ns));
        add_double(a, "inferd.socket_stall_seconds", seconds(t->stall_ns));
        break;
    default: break;
    }
}

/* The span id of a stage: the request's own with the stage counted on, so that no further random bytes are needed. */
static uint8_t *stage_id(struct maker *m, const struct request_record *r, int stage)
{
    uint8_t *id = make(m, 8);

    memcpy(id, r->trace.span_id, 8);
    id[7] = (uint8_t)(id[7] + stage + 1);
    if (!id[0]) id[0] = 1; /* eight zeros are no id */
    return id;
}

static size_t make_spans(struct maker *m, const struct request_record *r, Otlp__Span **spans)
{
    int64_t at_ns = r->wall_ns;
    size_t count = 0;

    spans[count++] = make_root(m, r);
    for (int s = 0; s < STAGES && !m->failed; s++) {
        if (r->ledger.ns[s] <= 0) continue;
        struct attributes a = begin(m);
        Otlp__Span *span =
            make_span(m, r, stage_name((enum request_stage)s), at_ns, at_ns + r->ledger.ns[s]);

        at_ns += r->ledger.ns[s];
        span->span_id = bytes_of(stage_id(m, r, s), 8);
        span->parent_span_id = bytes_of(r->trace.span_id, sizeof r->trace.span_id);
        span->kind = OTLP__SPAN_KIND__SPAN_KIND_INTERNAL;
        add_stage(&a, r, (enum request_stage)s);
        span->attributes = a.items;
        span->n_attributes = a.count;
        spans[count++] = span;
    }
    return count;
}

/* --- the service --- */

static void put_decoded(const char *from, size_t len, char *out, size_t size)
{
    size_t n = 0;

    for (size_t i = 0; i < len && n + 1 < size; i++) {
        unsigned byte;

        if (from[i] == '%' && i + 2 < len && sscanf(from + i + 1, "%2x", &byte) == 1) {
            out[n++] = (char)byte;
            i += 2;
        } else {
            out[n++] = from[i];
        }
    }
    out[n] = 0;
}

static size_t trimmed(const char *text, size_t len)
{
    while (len && text[len - 1] == ' ')
        len--;
    return len;
}

bool otlp_next_pair(const char **list, char *name, size_t name_size, char *value, size_t value_size)
{
    while (*list && **list) {
        const char *at = *list + strspn(*list, " ");
        size_t len = strcspn(at, ","), key = strcspn(at, "=,");

        *list = at + len + (at[len] == ',');
        if (key == 0 || key >= len) continue;
        const char *from = at + key + 1;
        size_t left = len - key - 1, blanks = strspn(from, " ");

        if (blanks > left) blanks = left;
        put_decoded(at, trimmed(at, key), name, name_size);
        put_decoded(from + blanks, trimmed(from + blanks, left - blanks), value, value_size);
        return true;
    }
    return false;
}

static Otlp__Resource *make_resource(struct maker *m, const struct otlp_resource *r)
{
    Otlp__Resource *resource = make(m, sizeof *resource);
    struct attributes a = begin(m);
    const char *list = r->attributes;
    char name[128], value[512];

    otlp__resource__init(resource);
    add_text(&a, "service.name", r->service_name);
    add_text(&a, "service.version", r->service_version);
    add_text(&a, "service.instance.id", r->instance_id);
    add_text(&a, "telemetry.sdk.name", "inferd");
    add_text(&a, "telemetry.sdk.language", "c");
    while (otlp_next_pair(&list, name, sizeof name, value, sizeof value))
        if (strcmp(name, "service.name") != 0) add_text(&a, name, value);
    resource->attributes = a.items;
    resource->n_attributes = a.count;
    return resource;
}

static void build(struct maker *m, const struct otlp_resource *r,
                  const struct request_record *records, uint32_t count,
                  Otlp__ExportTraceServiceRequest *message, uint32_t *spans)
{
    Otlp__ResourceSpans *resource = make(m, sizeof *resource),
                        **resources = make(m, sizeof *resources);
    Otlp__ScopeSpans *scope = make(m, sizeof *scope), **scopes = make(m, sizeof *scopes);
    Otlp__Span **list = arena_alloc(&m->arena, (size_t)count * SPANS_PER_REQUEST * sizeof *list);

    m->failed |= !list;
    if (m->failed) return;
    otlp__resource_spans__init(resource);
    otlp__scope_spans__init(scope);
    resource->resource = make_resource(m, r);
    scope->scope = make(m, sizeof *scope->scope);
    otlp__instrumentation_scope__init(scope->scope);
    scope->scope->name = make_text(m, "inferd");
    scope->scope->version = make_text(m, r->service_version ? r->service_version : "");
    scope->spans = list;
    for (uint32_t i = 0; i < count && !m->failed; i++)
        scope->n_spans += make_spans(m, &records[i], list + scope->n_spans);
    scopes[0] = scope;
    resource->n_scope_spans = 1;
    resource->scope_spans = scopes;
    resources[0] = resource;
    message->n_resource_spans = 1;
    message->resource_spans = resources;
    *spans = (uint32_t)scope->n_spans;
}

enum status otlp_encode(const struct otlp_resource *resource, const struct request_record *records,
                        uint32_t count, struct buf *out, uint32_t *spans)
{
    Otlp__ExportTraceServiceRequest message = OTLP__EXPORT_TRACE_SERVICE_REQUEST__INIT;
    struct maker m = {0};
    enum status st = STATUS_NOMEM;

    *spans = 0;
    arena_init(&m.arena, 64 << 20);
    build(&m, resource, records, count, &message, spans);
    if (!m.failed) {
        size_t len = otlp__export_trace_service_request__get_packed_size(&message);
        char *to = buf_reserve(out, len);

        if (to) out->len += otlp__export_trace_service_request__pack(&message, (uint8_t *)to);
        st = buf_status(out);
    }
    arena_fini(&m.arena);
    return st;
}
