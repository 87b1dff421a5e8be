#include "observe/http_stats.h"

#include <stdlib.h>
#include <string.h>

#include "observe/request_record.h"

const uint16_t http_status_list[HTTP_STATUSES] = {200, 204, 400, 401, 404, 405, 408,
                                                  413, 415, 429, 499, 500, 503, 0};

struct http_stats *http_stats_create(void)
{
    struct http_stats *stats = calloc(1, sizeof *stats);

    if (stats) live_init(&stats->live);
    return stats;
}

void http_stats_destroy(struct http_stats *stats)
{
    if (!stats) return;
    live_fini(&stats->live);
    free(stats);
}

void http_stats_count(struct http_stats *stats, enum http_method method, enum http_route route,
                      unsigned status)
{
    uint32_t i = 0;

    while (i < HTTP_STATUSES - 1 && http_status_list[i] != status)
        i++;
    atomic_fetch_add_explicit(&stats->requests[method][route][i], 1, memory_order_relaxed);
}

void http_stats_first_token(struct http_stats *stats, int64_t now_ns, int64_t since_received_ns)
{
    histogram_add(&stats->first_token, BOUNDS_TIME, since_received_ns);
    histogram_add(&stats->vllm[VLLM_FIRST_TOKEN], BOUNDS_FIRST_TOKEN, since_received_ns);
    recent_add(&stats->recent_first_token, now_ns, since_received_ns);
}

void http_stats_inter_token(struct http_stats *stats, int64_t now_ns, int64_t since_last_ns)
{
    histogram_add(&stats->inter_token, BOUNDS_TIME, since_last_ns);
    histogram_add(&stats->vllm[VLLM_INTER_TOKEN], BOUNDS_INTER_TOKEN, since_last_ns);
    recent_add(&stats->recent_inter_token, now_ns, since_last_ns);
}

static enum finished_reason finished_reason(const struct request_record *r)
{
    if (strcmp(r->outcome, "stop") == 0) return FINISHED_STOP;
    if (strcmp(r->outcome, "length") == 0) return FINISHED_LENGTH;
    return strcmp(r->outcome, "aborted") == 0 ? FINISHED_ABORT : FINISHED_ERROR;
}

/* vLLM's histograms of finished requests, by its own definitions: queue to the first step, inference from there to the last token. */
static void add_vllm(struct http_stats *stats, const struct request_record *r)
{
    const struct stage_ledger *l = &r->ledger;
    struct histogram *h = stats->vllm;
    int64_t decode_ns = l->ns[STAGE_DECODE], choices = r->choices ? r->choices : 1;

    histogram_add(&h[VLLM_E2E], BOUNDS_LATENCY, l->total_ns);
    histogram_add(&h[VLLM_QUEUE], BOUNDS_LATENCY, l->ns[STAGE_QUEUE]);
    histogram_add(&h[VLLM_INFERENCE], BOUNDS_LATENCY, l->ns[STAGE_PREFILL] + decode_ns);
    histogram_add(&h[VLLM_PREFILL], BOUNDS_LATENCY, l->ns[STAGE_PREFILL]);
    histogram_add(&h[VLLM_DECODE], BOUNDS_LATENCY, decode_ns);
    histogram_add(&h[VLLM_PROMPT_TOKENS], BOUNDS_TOKENS, r->times.prompt_tokens);
    histogram_add(&h[VLLM_GENERATION_TOKENS], BOUNDS_TOKENS, r->completion_tokens);
    histogram_add(&h[VLLM_PREFILL_COMPUTED], BOUNDS_TOKENS,
                  (int64_t)r->times.prompt_tokens - r->times.cached_tokens);
    histogram_add(&h[VLLM_MAX_GENERATION], BOUNDS_TOKENS, r->longest_choice_tokens);
    histogram_add(&h[VLLM_N], BOUNDS_CHOICES, r->n);
    histogram_add(&h[VLLM_MAX_TOKENS], BOUNDS_TOKENS, r->max_tokens);
    histogram_add(&h[VLLM_PREEMPTIONS], BOUNDS_PREEMPTIONS, r->times.preemptions);
    if (r->completion_tokens > choices)
        histogram_add(&h[VLLM_TIME_PER_TOKEN], BOUNDS_INTER_TOKEN,
                      decode_ns * choices / (r->completion_tokens - choices));
}

void http_stats_finish(struct http_stats *stats, const struct request_record *r, int64_t now_ns)
{
    enum finished_reason reason = finished_reason(r);

    atomic_fetch_add_explicit(&stats->finished[reason], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&stats->stream_ns, (uint64_t)r->times.detokenize_ns,
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&stats->stalled_ns, (uint64_t)r->times.stall_ns,
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&stats->stream_tokens, r->completion_tokens, memory_order_relaxed);
    recent_rate_add(&stats->recent_finished, now_ns, 1);
    if (reason > FINISHED_LENGTH) return;
    histogram_add(&stats->request, BOUNDS_TIME, r->ledger.total_ns);
    recent_add(&stats->recent_request, now_ns, r->ledger.total_ns);
    for (int s = 0; s < STAGES; s++) {
        histogram_add(&stats->stages[s], BOUNDS_TIME, r->ledger.ns[s]);
        recent_add(&stats->recent_stages[s], now_ns, r->ledger.ns[s]);
    }
    add_vllm(stats, r);
}

const char *http_route_pattern(enum http_route route)
{
    static const char *const patterns[HTTP_ROUTES] = {
        [ROUTE_HEALTH] = "/health",
        [ROUTE_READY] = "/ready",
        [ROUTE_VERSION] = "/version",
        [ROUTE_METRICS] = "/metrics",
        [ROUTE_PAGE] = "/",
        [ROUTE_PAGE_CSS] = "/page.css",
        [ROUTE_PAGE_JS] = "/page.js",
        [ROUTE_MODELS] = "/v1/models",
        [ROUTE_MODEL] = "/v1/models/{id}",
        [ROUTE_STATS] = "/stats",
        [ROUTE_CHAT] = "/v1/chat/completions",
        [ROUTE_COMPLETIONS] = "/v1/completions",
        [ROUTE_TOKENIZE] = "/tokenize",
        [ROUTE_DETOKENIZE] = "/detokenize",
        [ROUTE_UNKNOWN] = "other",
    };

    return patterns[route];
}
