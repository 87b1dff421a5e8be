#include "observe/vllm_metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "observe/exposition.h"

/* The labels of every sample, made once a scrape: engine="0",model_name="..." (their order is that of Python's client). */
struct writer {
    struct buf *out;
    char labels[400];
};

static void begin(struct writer *w, const struct metrics_sources *sources, struct buf *out)
{
    struct buf label;

    w->out = out;
    buf_init(&label, 0);
    expo_label(&label, sources->model->name);
    snprintf(w->labels, sizeof w->labels, "engine=\"0\",model_name=%.*s",
             label.len < 360 ? (int)label.len : 2, label.len < 360 ? label.ptr : "\"\"");
    buf_fini(&label);
}

/* extra: `,name="value"` or "". */
static void sample(struct writer *w, const char *name, const char *extra, double value)
{
    char text[40];

    expo_pythonic(value, text);
    buf_printf(w->out, "vllm:%s{%s%s} %s\n", name, w->labels, extra, text);
}

static void family(struct writer *w, const char *name, const char *type, const char *help)
{
    char full[80];

    snprintf(full, sizeof full, "vllm:%s", name);
    expo_family(w->out, full, type, help);
}

static void gauge(struct writer *w, const char *name, const char *help, double value)
{
    family(w, name, "gauge", help);
    sample(w, name, "", value);
}

static void counter(struct writer *w, const char *name, const char *help, uint64_t value)
{
    family(w, name, "counter", help);
    sample(w, name, "", (double)value);
}

static void put_scheduler(struct writer *w, const struct engine_stats *e)
{
    bool deferred = e->waiting_for &&
                    (strcmp(e->waiting_for, "window") == 0 || strcmp(e->waiting_for, "turn") == 0);
    double used = e->kv_usage;

    gauge(w, "num_requests_running", "Number of requests in model execution batches.",
          e->seqs_running);
    gauge(w, "num_requests_waiting", "Number of requests waiting to be processed.",
          e->seqs_waiting);
    family(w, "num_requests_waiting_by_reason", "gauge",
           "Requests waiting for room (capacity) or put off for a moment (deferred).");
    sample(w, "num_requests_waiting_by_reason", ",reason=\"capacity\"",
           deferred ? 0 : e->seqs_waiting);
    sample(w, "num_requests_waiting_by_reason", ",reason=\"deferred\"",
           deferred ? e->seqs_waiting : 0);
    gauge(w, "num_requests_swapped", "Number of requests swapped to the host; none ever is.", 0);
    family(w, "engine_sleep_state", "gauge", "Engine sleep state; this engine never sleeps.");
    sample(w, "engine_sleep_state", ",sleep_state=\"awake\"", 1);
    sample(w, "engine_sleep_state", ",sleep_state=\"weights_offloaded\"", 0);
    sample(w, "engine_sleep_state", ",sleep_state=\"discard_all\"", 0);
    gauge(w, "kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", used);
    gauge(w, "gpu_cache_usage_perc", "The same by its older name.", used);
    gauge(w, "cpu_cache_usage_perc", "KV-cache usage on the host; there is none.", 0);
    counter(w, "num_preemptions_total", "Cumulative number of preemption from the engine.",
            e->preemptions);
}

static void put_cache(struct writer *w, const struct engine_stats *e)
{
    uint64_t queries = e->computed_tokens + e->cached_tokens;

    counter(w, "prefix_cache_queries_total",
            "Prefix cache queries, in terms of number of queried tokens.", queries);
    counter(w, "prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.",
            e->cached_tokens);
    counter(w, "gpu_prefix_cache_queries_total", "The same by its older name.", queries);
    counter(w, "gpu_prefix_cache_hits_total", "The same by its older name.", e->cached_tokens);
    gauge(w, "gpu_prefix_cache_hit_rate", "Quotient of the two since the start.",
          queries ? (double)e->cached_tokens / (double)queries : 0);
    counter(w, "external_prefix_cache_queries_total", "There is no external cache.", 0);
    counter(w, "external_prefix_cache_hits_total", "There is no external cache.", 0);
    counter(w, "mm_cache_queries_total", "There are no multi-modal inputs.", 0);
    counter(w, "mm_cache_hits_total", "There are no multi-modal inputs.", 0);
}

static void put_tokens(struct writer *w, const struct engine_stats *e)
{
    counter(w, "prompt_tokens_total", "Number of prefill tokens processed.",
            e->computed_tokens + e->cached_tokens);
    family(w, "prompt_tokens_by_source_total", "counter", "Number of prompt tokens by source.");
    sample(w, "prompt_tokens_by_source_total", ",source=\"local_compute\"",
           (double)e->computed_tokens);
    sample(w, "prompt_tokens_by_source_total", ",source=\"local_cache_hit\"",
           (double)e->cached_tokens);
    sample(w, "prompt_tokens_by_source_total", ",source=\"external_kv_transfer\"", 0);
    counter(w, "prompt_tokens_cached_total", "Number of cached prompt tokens.", e->cached_tokens);
    counter(w, "prompt_tokens_recomputed_total",
            "Number of cached tokens recomputed for forward pass; what is cached never is.", 0);
    counter(w, "generation_tokens_total", "Number of generation tokens processed.",
            e->generation_tokens);
}

static void put_finished(struct writer *w, const struct http_stats *http)
{
    static const char *const reasons[FINISHED_REASONS] = {"stop", "length", "abort", "error"};
    struct http_stats *h = (struct http_stats *)(uintptr_t)http;
    char extra[48];

    family(w, "request_success_total", "counter", "Count of successfully processed requests.");
    for (int i = 0; i < FINISHED_REASONS; i++) {
        snprintf(extra, sizeof extra, ",finished_reason=\"%s\"", reasons[i]);
        sample(w, "request_success_total", extra, (double)atomic_load(&h->finished[i]));
    }
    sample(w, "request_success_total", ",finished_reason=\"repetition\"", 0);
}

/* A histogram of steps by their rows, which the engine counts. */
static void put_iterations(struct writer *w, const struct engine_stats *e)
{
    uint64_t total = 0;
    char le[40];

    family(w, "iteration_tokens_total", "histogram",
           "Histogram of number of tokens per engine_step.");
    for (int i = 0; i < ENGINE_STEP_CLASSES - 1; i++) {
        total += e->step_classes[i];
        expo_pythonic(engine_step_rows[i], le);
        buf_printf(w->out, "vllm:iteration_tokens_total_bucket{%s,le=\"%s\"} %" PRIu64 ".0\n",
                   w->labels, le, total);
    }
    total += e->step_classes[ENGINE_STEP_CLASSES - 1];
    buf_printf(w->out, "vllm:iteration_tokens_total_bucket{%s,le=\"+Inf\"} %" PRIu64 ".0\n",
               w->labels, total);
    sample(w, "iteration_tokens_total_sum", "", (double)e->step_rows_sum);
    sample(w, "iteration_tokens_total_count", "", (double)total);
}

static void put_histograms(struct writer *w, const struct http_stats *http, uint32_t context)
{
    static const struct {
        enum vllm_histogram histogram;
        enum histogram_family family;
        const char *name, *help;
    } table[] = {
        {VLLM_FIRST_TOKEN, BOUNDS_FIRST_TOKEN, "time_to_first_token_seconds",
         "Histogram of time to first token in seconds."},
        {VLLM_INTER_TOKEN, BOUNDS_INTER_TOKEN, "inter_token_latency_seconds",
         "Histogram of inter-token latency in seconds."},
        {VLLM_INTER_TOKEN, BOUNDS_INTER_TOKEN, "time_per_output_token_seconds",
         "The same by its older name."},
        {VLLM_TIME_PER_TOKEN, BOUNDS_INTER_TOKEN, "request_time_per_output_token_seconds",
         "Histogram of time_per_output_token_seconds per request."},
        {VLLM_E2E, BOUNDS_LATENCY, "e2e_request_latency_seconds",
         "Histogram of e2e request latency in seconds."},
        {VLLM_QUEUE, BOUNDS_LATENCY, "request_queue_time_seconds",
         "Histogram of time spent in WAITING phase for request."},
        {VLLM_INFERENCE, BOUNDS_LATENCY, "request_inference_time_seconds",
         "Histogram of time spent in RUNNING phase for request."},
        {VLLM_PREFILL, BOUNDS_LATENCY, "request_prefill_time_seconds",
         "Histogram of time spent in PREFILL phase for request."},
        {VLLM_DECODE, BOUNDS_LATENCY, "request_decode_time_seconds",
         "Histogram of time spent in DECODE phase for request."},
        {VLLM_PROMPT_TOKENS, BOUNDS_TOKENS, "request_prompt_tokens",
         "Number of prefill tokens processed."},
        {VLLM_GENERATION_TOKENS, BOUNDS_TOKENS, "request_generation_tokens",
         "Number of generation tokens processed."},
        {VLLM_PREFILL_COMPUTED, BOUNDS_TOKENS, "request_prefill_kv_computed_tokens",
         "Histogram of new KV tokens computed during prefill (excluding cached tokens)."},
        {VLLM_MAX_GENERATION, BOUNDS_TOKENS, "request_max_num_generation_tokens",
         "Histogram of maximum number of requested generation tokens."},
        {VLLM_N, BOUNDS_CHOICES, "request_params_n", "Histogram of the n request parameter."},
        {VLLM_MAX_TOKENS, BOUNDS_TOKENS, "request_params_max_tokens",
         "Histogram of the max_tokens request parameter."},
        {VLLM_PREEMPTIONS, BOUNDS_PREEMPTIONS, "request_num_preemptions",
         "Histogram of preemptions of a request."},
    };
    char name[80];

    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        snprintf(name, sizeof name, "vllm:%s", table[i].name);
        family(w, table[i].name, "histogram", table[i].help);
        expo_histogram(w->out, name, w->labels, &http->vllm[table[i].histogram], table[i].family,
                       table[i].family == BOUNDS_TOKENS ? context : 0, true);
    }
}

static void put_config(struct writer *w, const struct metrics_sources *sources)
{
    const struct metrics_model *m = sources->model;
    uint32_t blocks = sources->engine->kv_blocks_total;

    family(w, "cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
    buf_printf(w->out,
               "vllm:cache_config_info{block_size=\"%u\",cache_dtype=\"%s\","
               "enable_prefix_caching=\"%s\",engine=\"0\",gpu_memory_utilization=\"%g\","
               "kv_cache_size_tokens=\"%" PRIu64 "\",num_cpu_blocks=\"0\",num_gpu_blocks=\"%u\","
               "num_gpu_blocks_override=\"None\",sliding_window=\"None\"} 1.0\n",
               m->block_tokens, m->kv_format, m->prefix_caching ? "True" : "False",
               m->memory_utilization, m->kv_tokens, blocks);
}

/* What vLLM's web framework counts, in its classes. */
static void put_http(struct writer *w, const struct http_stats *http)
{
    static const char *const methods[HTTP_METHODS] = {"GET", "POST", "HEAD", "OPTIONS", "other"};
    struct http_stats *h = (struct http_stats *)(uintptr_t)http;

    expo_family(w->out, "http_requests_total", "counter",
                "Total number of requests by method, status and handler.");
    for (int m = 0; m < HTTP_METHODS; m++)
        for (int r = 0; r < HTTP_ROUTES; r++) {
            uint64_t classes[6] = {0};

            for (int s = 0; s < HTTP_STATUSES; s++)
                classes[http_status_list[s] / 100] += atomic_load(&h->requests[m][r][s]);
            for (int c = 1; c < 6; c++)
                if (classes[c])
                    buf_printf(w->out,
                               "http_requests_total{handler=\"%s\",method=\"%s\",status=\"%dxx\"} "
                               "%" PRIu64 ".0\n",
                               r == ROUTE_UNKNOWN ? "none" : http_route_pattern((enum http_route)r),
                               methods[m], c, classes[c]);
        }
}

void vllm_metrics(const struct metrics_sources *sources, struct buf *out)
{
    struct writer w;

    begin(&w, sources, out);
    put_scheduler(&w, sources->engine);
    put_cache(&w, sources->engine);
    put_tokens(&w, sources->engine);
    put_finished(&w, sources->http);
    put_iterations(&w, sources->engine);
    put_histograms(&w, sources->http, sources->model->context_tokens);
    put_config(&w, sources);
    put_http(&w, sources->http);
}
