/* service.c - /health, /ready, /version, /metrics, /v1/models and the page: docs/api.md section 6. */
#include <stdio.h>

#include "api/json_out.h"
#include "base/clock.h"
#include "frontend/call.h"
#include "frontend/web_page.h"
#include "observe/metrics.h"

enum api_state service_state(const struct frontend *f)
{
    if (!atomic_load(&f->engine)) return API_LOADING;
    return atomic_load(&f->refusing) ? API_DRAINING : API_READY;
}

static void put_error(struct call *call, const char *reason)
{
    call->status = 503;
    buf_append_str(&call->out, "{\"status\":\"error\",\"reason\":");
    json_out_string(&call->out, slice_str(reason ? reason : "the engine has ended"));
    buf_append_str(&call->out, "}");
}

static void answer_health(struct call *call, const struct engine_stats *stats)
{
    if (stats && !stats->alive)
        put_error(call, stats->dead_reason);
    else
        buf_append_str(&call->out, "{\"status\":\"ok\"}");
}

static void put_loading(struct call *call)
{
    struct frontend *f = call->frontend;
    struct loading loading;

    pthread_mutex_lock(&f->lock);
    loading = f->loading;
    pthread_mutex_unlock(&f->lock);
    buf_append_str(&call->out, "{\"status\":\"loading\",\"reason\":\"the model is being loaded\"");
    if (loading.phase[0]) {
        buf_append_str(&call->out, ",\"phase\":");
        json_out_string(&call->out, slice_str(loading.phase));
        buf_printf(&call->out, ",\"percent\":%u", loading.percent);
    }
    buf_append_char(&call->out, '}');
}

/* Why the engine cannot serve, into text[96]; NULL: it can. */
static const char *fault_of(const struct frontend *f, const struct engine_stats *stats, char *text)
{
    uint32_t limit_s = f->options.progress_timeout_s;

    if (!stats->alive) return stats->dead_reason ? stats->dead_reason : "the engine has ended";
    if (clock_mono_ns() - stats->last_progress_ns <= limit_s * INT64_C(1000000000)) return NULL;
    snprintf(text, 96, "the engine has made no progress for %u s", limit_s);
    return text;
}

const char *service_fault(const struct frontend *f, char text[96])
{
    struct engine *engine = atomic_load(&f->engine);
    struct engine_stats stats;

    if (!engine) return NULL;
    engine_stats(engine, &stats);
    return fault_of(f, &stats, text);
}

/* Loaded, not draining, and a step or a probe of the idle engine has ended not long ago. */
static void answer_ready(struct call *call, const struct engine_stats *stats)
{
    const struct frontend *f = call->frontend;
    char text[96];
    const char *fault = stats ? fault_of(f, stats, text) : NULL;

    if (fault) {
        put_error(call, fault);
        return;
    }
    if (stats && !atomic_load(&f->draining)) {
        buf_append_str(&call->out, "{\"status\":\"ready\"}");
        return;
    }
    call->status = 503;
    call->fault.retry_after_s = 1;
    if (atomic_load(&f->draining))
        buf_append_str(&call->out, "{\"status\":\"draining\",\"reason\":\"the server is "
                                   "finishing what it has and takes nothing new\"}");
    else
        put_loading(call);
}

static void answer_version(struct call *call)
{
    const struct frontend_options *o = &call->frontend->options;

    buf_append_str(&call->out, "{\"version\":");
    json_out_string(&call->out, slice_str(o->version));
    if (o->commit) {
        buf_append_str(&call->out, ",\"commit\":");
        json_out_string(&call->out, slice_str(o->commit));
    }
    buf_append_str(&call->out, "}");
}

static const char *state_name(const struct frontend *f, const struct engine_stats *stats)
{
    static const char *const names[] = {
        [API_READY] = "ready", [API_LOADING] = "loading", [API_DRAINING] = "draining"};

    return stats && !stats->alive ? "error" : names[service_state(f)];
}

static void answer_metrics(struct call *call, const struct engine_stats *stats)
{
    const struct frontend_options *o = &call->frontend->options;
    struct tracer_stats tracer;
    struct metrics_sources sources = {.engine = stats,
                                      .http = call->frontend->stats,
                                      .model = stats ? o->served : NULL,
                                      .tracer = o->tracer ? &tracer : NULL,
                                      .vllm = o->vllm_metrics};

    atomic_store(&call->frontend->stats->bodies_held, share_held(call->frontend->bodies));
    atomic_store(&call->frontend->stats->answers_held, share_held(call->frontend->answers));
    tracer_stats(o->tracer, &tracer);
    if (call->route == ROUTE_STATS) {
        metrics_stats_json(&sources, state_name(call->frontend, stats), &call->out);
        return;
    }
    call->content_type = "text/plain; version=0.0.4; charset=utf-8";
    metrics_prometheus(&sources, &call->out);
}

static void answer_page(struct call *call)
{
    if (!call->frontend->options.web_page) {
        api_refuse(&call->fault, 404, "not_found", NULL, "The page is switched off (--web-page).");
        return;
    }
    buf_append_slice(&call->out, web_page_file(call->route, &call->content_type));
}

static void answer_models(struct call *call)
{
    struct frontend *f = call->frontend;

    if (service_state(f) == API_LOADING) {
        api_refuse(&call->fault, 503, "model_loading", NULL, "The model is still loading.");
        return;
    }
    if (call->route == ROUTE_TOKENIZER_INFO)
        api_tokenizer_info_body(&f->model, &call->out);
    else if (call->route == ROUTE_MODELS)
        api_models_body(&f->model, &call->out);
    else
        api_model_body(&f->model, call->model_id, &call->out, &call->fault);
}

void service_answer(struct call *call)
{
    struct engine *engine = atomic_load(&call->frontend->engine);
    struct engine_stats stats;

    call->status = 200;
    if (call->method == HTTP_OPTIONS) {
        call->status = 204;
        return;
    }
    if (engine) engine_stats(engine, &stats);
    switch (call->route) {
    case ROUTE_HEALTH: answer_health(call, engine ? &stats : NULL); break;
    case ROUTE_READY: answer_ready(call, engine ? &stats : NULL); break;
    case ROUTE_VERSION: answer_version(call); break;
    case ROUTE_STATS:
    case ROUTE_METRICS: answer_metrics(call, engine ? &stats : NULL); break;
    case ROUTE_PAGE:
    case ROUTE_PAGE_CSS:
    case ROUTE_PAGE_JS: answer_page(call); break;
    default: answer_models(call); break;
    }
}
