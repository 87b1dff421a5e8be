/* prometheus.c - text format 0.0.4: one HELP and TYPE line per family, then its samples. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "observe/exposition.h"
#include "observe/metrics.h"
#include "observe/process_metrics.h"
#include "observe/vllm_metrics.h"

static void family(struct buf *out, const char *name, const char *type, const char *help)
{
    char full[80];

    snprintf(full, sizeof full, "inferd_%s", name);
    expo_family(out, full, type, help);
}

static void single(struct buf *out, const char *name, const char *type, const char *help,
                   uint64_t value)
{
    family(out, name, type, help);
    buf_printf(out, "inferd_%s %" PRIu64 "\n", name, value);
}

static void seconds(struct buf *out, const char *name, const char *help, uint64_t ns)
{
    family(out, name, "counter", help);
    buf_printf(out, "inferd_%s %.9f\n", name, (double)ns * 1e-9);
}

static void put_histogram(struct buf *out, const char *name, const char *help,
                          const struct histogram *h)
{
    char full[80];

    snprintf(full, sizeof full, "inferd_%s", name);
    family(out, name, "histogram", help);
    expo_histogram(out, full, "", h, BOUNDS_TIME, 0, false);
}

static void put_stages(struct buf *out, const struct http_stats *http)
{
    char label[40];

    family(out, "request_stage_seconds", "histogram",
           "Where the time of finished requests went: stages one behind the other.");
    for (int s = 0; s < STAGES; s++) {
        snprintf(label, sizeof label, "stage=\"%s\"", stage_name((enum request_stage)s));
        expo_histogram(out, "inferd_request_stage_seconds", label, &http->stages[s], BOUNDS_TIME, 0,
                       false);
    }
}

static void put_requests(struct buf *out, const struct http_stats *http)
{
    static const char *const methods[HTTP_METHODS] = {"GET", "POST", "HEAD", "OPTIONS", "other"};

    family(out, "http_requests_total", "counter", "Finished HTTP requests.");
    for (int m = 0; m < HTTP_METHODS; m++)
        for (int r = 0; r < HTTP_ROUTES; r++)
            for (int s = 0; s < HTTP_STATUSES; s++) {
                uint64_t count =
                    atomic_load_explicit(&http->requests[m][r][s], memory_order_relaxed);

                if (count)
                    buf_printf(out,
                               "inferd_http_requests_total{method=\"%s\",path=\"%s\","
                               "status=\"%u\"} %" PRIu64 "\n",
                               methods[m], http_route_pattern((enum http_route)r),
                               http_status_list[s], count);
            }
}

static void put_rejected(struct buf *out, const struct http_stats *http)
{
    static const char *const reasons[REJECT_REASONS] = {"queue_full", "share", "loading",
                                                        "draining", "unavailable"};

    family(out, "requests_rejected_total", "counter",
           "Requests refused with 429 or 503 before they were admitted.");
    for (int i = 0; i < REJECT_REASONS; i++)
        buf_printf(out, "inferd_requests_rejected_total{reason=\"%s\"} %" PRIu64 "\n", reasons[i],
                   atomic_load_explicit(&http->rejected[i], memory_order_relaxed));
}

static void real(struct buf *out, const char *name, const char *help, double value)
{
    family(out, name, "gauge", help);
    buf_printf(out, "inferd_%s %.9g\n", name, value);
}

static void put_window(struct buf *out, const struct engine_stats *e)
{
    static const char *const reasons[] = {"none", "window", "slots", "blocks", "rows", "turn"};
    static const char *const triggers[] = {"idle", "size", "age", "throughput"};
    double window_s = (double)e->window_ns * 1e-9, rate = e->arrivals_per_ks / 1000.0;

    real(out, "admission_window_seconds", "Admission window as last decided.", window_s);
    real(out, "arrival_rate", "Sequences arriving per second, averaged over about one.", rate);
    real(out, "admission_window_arrivals", "Arrivals in a window: rate times length.",
         rate * window_s);
    family(out, "admission_held_steps_total", "counter",
           "Steps after which somebody still waited, by what for.");
    for (int i = 1; i < 6; i++)
        buf_printf(out, "inferd_admission_held_steps_total{reason=\"%s\"} %" PRIu64 "\n",
                   reasons[i], e->holds[i]);
    family(out, "admission_window_opened_total", "counter",
           "Times that the window opened, by what opened it.");
    for (int i = 0; i < 4; i++)
        buf_printf(out, "inferd_admission_window_opened_total{trigger=\"%s\"} %" PRIu64 "\n",
                   triggers[i], e->window_fired[i]);
}

/* Sequences that wait, by what for: they wait as one list, so all for the same. */
static void put_waiting(struct buf *out, const struct engine_stats *e)
{
    static const char *const reasons[] = {"none", "window", "slots", "blocks", "rows", "turn"};

    family(out, "requests_waiting_by_reason", "gauge",
           "Sequences admitted but not started, by what they wait for.");
    for (int i = 0; i < 6; i++)
        buf_printf(out, "inferd_requests_waiting_by_reason{reason=\"%s\"} %u\n", reasons[i],
                   e->waiting_for && strcmp(e->waiting_for, reasons[i]) == 0 ? e->seqs_waiting : 0);
}

static void put_sources(struct buf *out, const struct engine_stats *e)
{
    family(out, "prompt_tokens_by_source_total", "counter",
           "Prompt tokens of requests that have started, by where their KV came from.");
    buf_printf(out, "inferd_prompt_tokens_by_source_total{source=\"computed\"} %" PRIu64 "\n",
               e->computed_tokens);
    buf_printf(out, "inferd_prompt_tokens_by_source_total{source=\"cached\"} %" PRIu64 "\n",
               e->cached_tokens);
}

static void put_model(struct buf *out, const struct metrics_model *m)
{
    family(out, "model_info", "gauge", "What is served; always 1.");
    buf_append_str(out, "inferd_model_info{model_name=");
    expo_label(out, m->name);
    buf_append_str(out, ",device=");
    expo_label(out, m->device);
    buf_append_str(out, ",version=");
    expo_label(out, m->version);
    buf_printf(out, ",max_model_len=\"%u\",kv_tokens=\"%" PRIu64 "\",kv_format=\"%s\"} 1\n",
               m->context_tokens, m->kv_tokens, m->kv_format);
}

static void put_tracer(struct buf *out, const struct tracer_stats *t)
{
    single(out, "traces_exported_total", "counter", "Requests whose trace the collector has taken.",
           t->exported);
    single(out, "trace_spans_exported_total", "counter", "Spans of these.", t->spans);
    single(out, "traces_unsampled_total", "counter", "Requests that were not to be traced.",
           t->unsampled);
    family(out, "traces_dropped_total", "counter", "Requests whose trace was lost, by why.");
    buf_printf(out,
               "inferd_traces_dropped_total{reason=\"queue_full\"} %" PRIu64 "\n"
               "inferd_traces_dropped_total{reason=\"refused\"} %" PRIu64 "\n"
               "inferd_traces_dropped_total{reason=\"unreachable\"} %" PRIu64 "\n",
               t->dropped_full, t->dropped_refused, t->dropped_lost);
}

/* The quotient of the two integrals is a mean from the start; that of their rates a mean over any span of time. */
static void put_kv(struct buf *out, const struct engine_stats *e)
{
    real(out, "kv_fragmentation_ratio",
         "Share of the places that sequences hold without a token, now.",
         e->kv_places ? (double)(e->kv_places - e->kv_tokens) / (double)e->kv_places : 0);
    single(out, "preemptions_total", "counter", "Sequences that gave up their KV for others.",
           e->preemptions);
    single(out, "recomputed_tokens_total", "counter", "Tokens computed again after preemption.",
           e->recomputed_tokens);
    single(out, "prefix_cache_blocks", "gauge", "KV blocks in the prefix index.", e->prefix_blocks);
    single(out, "prefix_cache_pinned_blocks", "gauge", "Of them, pinned for a time.",
           e->prefix_pinned);
    single(out, "prefix_cache_evictions_total", "counter",
           "Blocks that the prefix index let go for want of room.", e->prefix_evictions);
    seconds(out, "kv_held_seconds_total", "Time in which sequences held KV blocks.", e->kv_held_ns);
    seconds(out, "kv_wasted_seconds_total",
            "That time, weighted by the share of held places without a token.", e->kv_wasted_ns);
    real(out, "kv_waste_ratio", "Mean share of held places without a token, since the start.",
         e->kv_held_ns ? (double)e->kv_wasted_ns / (double)e->kv_held_ns : 0);
}

static void put_engine(struct buf *out, const struct engine_stats *e)
{
    single(out, "prompt_tokens_total", "counter", "Prompt tokens of admitted requests.",
           e->prompt_tokens);
    single(out, "generation_tokens_total", "counter", "Sampled tokens that count.",
           e->generation_tokens);
    single(out, "prefix_cache_hit_tokens_total", "counter",
           "Prompt tokens served from the prefix cache.", e->cached_tokens);
    single(out, "requests_running", "gauge", "Sequences being computed.", e->seqs_running);
    single(out, "requests_waiting", "gauge", "Sequences admitted but not started.",
           e->seqs_waiting);
    single(out, "requests_blocked", "gauge", "Sequences whose client does not read.",
           e->seqs_blocked);
    single(out, "flooding_keys", "gauge",
           "API keys held back because they take much more than their share.", e->flooding);
    family(out, "kv_cache_usage_ratio", "gauge", "Share of KV blocks that sequences hold.");
    buf_printf(out, "inferd_kv_cache_usage_ratio %.6f\n", e->kv_usage);
    single(out, "kv_cache_blocks", "gauge", "KV blocks in the pool.", e->kv_blocks_total);
    single(out, "requests_submitted_total", "counter", "Requests that the engine has taken.",
           e->requests_submitted);
    single(out, "requests_finished_total", "counter", "Requests that ended by stop or length.",
           e->requests_finished);
    single(out, "requests_failed_total", "counter", "Requests that ended by a fault.",
           e->requests_failed);
    single(out, "steps_total", "counter", "Steps of the device.", e->steps);
    single(out, "step_rows_total", "counter", "Rows over all steps.", e->step_rows_sum);
    seconds(out, "step_seconds_total", "Time of the device in steps.", e->step_ns_sum);
    seconds(out, "engine_busy_seconds_total", "Time of the engine thread outside waiting.",
            e->host_ns_sum);
    single(out, "step_path_allocations_total", "counter",
           "Allocations on the step path after start; stays 0.", e->late_mallocs);
    single(out, "device_late_allocations_total", "counter",
           "Memory that the device took after start; stays 0.", e->late_device_allocations);
    real(out, "device_memory_drift_bytes",
         "Free memory of the GPU at start less free memory when last looked at.",
         (double)e->device_memory_drift);
}

static void put_recent_of(struct buf *out, const char *what, const struct recent *recent,
                          int64_t now_ns)
{
    static const double quantiles[] = {0.5, 0.99};

    for (int i = 0; i < 2; i++) {
        double ns = recent_quantile(recent, now_ns, quantiles[i]);

        buf_printf(out, "inferd_recent_seconds{what=\"%s\",q=\"%g\"} ", what, quantiles[i]);
        if (ns < 0)
            buf_append_str(out, "NaN\n");
        else
            buf_printf(out, "%.6g\n", ns * 1e-9);
    }
}

static void put_recent(struct buf *out, const struct http_stats *http)
{
    int64_t now_ns = clock_mono_ns();

    family(out, "recent_seconds", "gauge", "Quantiles over the last 5 s.");
    put_recent_of(out, "first_token", &http->recent_first_token, now_ns);
    put_recent_of(out, "inter_token", &http->recent_inter_token, now_ns);
    put_recent_of(out, "request", &http->recent_request, now_ns);
    for (int s = 0; s < STAGES; s++)
        put_recent_of(out, stage_name((enum request_stage)s), &http->recent_stages[s], now_ns);
}

static void put_http(struct buf *out, const struct http_stats *http)
{
    uint64_t opened = atomic_load(&http->connections_accepted);
    uint64_t closed = atomic_load(&http->connections_closed);

    put_requests(out, http);
    put_rejected(out, http);
    single(out, "requests_aborted_total", "counter",
           "Generation requests that their client ended: it left, or cancelled.",
           atomic_load(&http->aborted));
    single(out, "connections", "gauge", "Open connections.", opened > closed ? opened - closed : 0);
    single(out, "connections_total", "counter", "Connections accepted.", opened);
    single(out, "connections_timed_out_total", "counter",
           "Connections closed for being slow or idle.", atomic_load(&http->connections_timed_out));
    single(out, "connections_refused_total", "counter",
           "Connections closed unheard: over a limit, or no descriptor.",
           atomic_load(&http->connections_refused));
    single(out, "stream_tokens_total", "counter", "Tokens made into text.",
           atomic_load(&http->stream_tokens));
    single(out, "request_bytes_held", "gauge", "Bytes of requests being read or parsed.",
           atomic_load(&http->bodies_held));
    single(out, "answer_bytes_held", "gauge", "Bytes of large whole answers not read yet.",
           atomic_load(&http->answers_held));
    seconds(out, "stream_seconds_total", "Time making text and events from tokens.",
            atomic_load(&http->stream_ns));
    seconds(out, "socket_stall_seconds_total",
            "Time in which sockets would not take what there was.", atomic_load(&http->stalled_ns));
    put_histogram(out, "time_to_first_token_seconds", "From the full request to the first token.",
                  &http->first_token);
    put_histogram(out, "inter_token_seconds",
                  "Between tokens of a request's first choice, as they are sent.",
                  &http->inter_token);
    put_histogram(out, "request_seconds", "From the full request to the last byte.",
                  &http->request);
    put_stages(out, http);
    put_recent(out, http);
    real(out, "recent_generation_tokens_per_second", "Tokens sent on, over the last 5 s.",
         recent_rate_get(&http->recent_generated_tokens, clock_mono_ns()));
    real(out, "recent_prompt_tokens_per_second",
         "Prompt tokens that gave a first token, over the last 5 s.",
         recent_rate_get(&http->recent_prompt_tokens, clock_mono_ns()));
}

void metrics_prometheus(const struct metrics_sources *sources, struct buf *out)
{
    static const struct engine_stats none;

    put_http(out, sources->http);
    zmq_stats_put(&sources->http->zmq, out);
    put_engine(out, sources->engine ? sources->engine : &none);
    put_kv(out, sources->engine ? sources->engine : &none);
    put_window(out, sources->engine ? sources->engine : &none);
    put_waiting(out, sources->engine ? sources->engine : &none);
    put_sources(out, sources->engine ? sources->engine : &none);
    if (sources->model) put_model(out, sources->model);
    if (sources->tracer) put_tracer(out, sources->tracer);
    process_metrics(out);
    if (sources->vllm && sources->model && sources->engine) vllm_metrics(sources, out);
}
