/* prometheus.c - text format 0.0.4: one HELP and TYPE line per family, then its samples. */
#include <inttypes.h>

#include "base/clock.h"
#include "observe/metrics.h"

static void family(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP inferd_%s %s\n# TYPE inferd_%s %s\n", name, help, name, type);
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
    uint64_t total = 0;

    family(out, name, "histogram", help);
    for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
        total += atomic_load_explicit(&h->counts[i], memory_order_relaxed);
        buf_printf(out, "inferd_%s_bucket{le=\"%.10g\"} %" PRIu64 "\n", name,
                   (double)histogram_bound_ns(i) * 1e-9, total);
    }
    total += atomic_load_explicit(&h->counts[HISTOGRAM_BUCKETS], memory_order_relaxed);
    buf_printf(out, "inferd_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, total);
    buf_printf(out, "inferd_%s_sum %.9f\ninferd_%s_count %" PRIu64 "\n", name,
               (double)atomic_load_explicit(&h->sum_ns, memory_order_relaxed) * 1e-9, name, total);
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
    static const char *const reasons[REJECT_REASONS] = {"queue_full", "loading", "draining",
                                                        "unavailable"};

    family(out, "requests_rejected_total", "counter", "Requests refused with 429 or 503.");
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

/* The quotient of the two integrals is a mean from the start; that of their rates a mean over any span of time. */
static void put_kv(struct buf *out, const struct engine_stats *e)
{
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
    buf_printf(out, "inferd_kv_cache_usage_ratio %.6f\n",
               e->kv_blocks_total ? (double)e->kv_blocks_used / e->kv_blocks_total : 0.0);
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
}

static void put_recent_of(struct buf *out, const char *what, const struct recent *recent,
                          int64_t now_ns)
{
    static const double quantiles[] = {0.5, 0.99};

    for (int i = 0; i < 2; i++) {
        double ns = recent_quantile(recent, now_ns, quantiles[i]);

        buf_printf(out, "inferd_recent_seconds{what=\"%s\",quantile=\"%g\"} ", what, quantiles[i]);
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
    for (int s = STAGE_QUEUE; s <= STAGE_DECODE; s++)
        put_recent_of(out, stage_name((enum request_stage)s), &http->recent_stages[s], now_ns);
}

static void put_http(struct buf *out, const struct http_stats *http)
{
    uint64_t opened = atomic_load(&http->connections_accepted);
    uint64_t closed = atomic_load(&http->connections_closed);

    put_requests(out, http);
    put_rejected(out, http);
    single(out, "requests_aborted_total", "counter", "Generation requests ended by a disconnect.",
           atomic_load(&http->aborted));
    single(out, "connections", "gauge", "Open connections.", opened > closed ? opened - closed : 0);
    single(out, "connections_total", "counter", "Connections accepted.", opened);
    single(out, "connections_timed_out_total", "counter",
           "Connections closed for being slow or idle.", atomic_load(&http->connections_timed_out));
    single(out, "stream_tokens_total", "counter", "Tokens made into text.",
           atomic_load(&http->stream_tokens));
    seconds(out, "stream_seconds_total", "Time making text and events from tokens.",
            atomic_load(&http->stream_ns));
    put_histogram(out, "time_to_first_token_seconds", "From the full request to the first token.",
                  &http->first_token);
    put_histogram(out, "inter_token_seconds",
                  "Between tokens of a request's first choice, as they are sent.",
                  &http->inter_token);
    put_histogram(out, "request_seconds", "From the full request to the last byte.",
                  &http->request);
    put_recent(out, http);
}

void metrics_prometheus(const struct metrics_sources *sources, struct buf *out)
{
    static const struct engine_stats none;

    put_http(out, sources->http);
    put_engine(out, sources->engine ? sources->engine : &none);
    put_kv(out, sources->engine ? sources->engine : &none);
    put_window(out, sources->engine ? sources->engine : &none);
}
