/* stats_json.c - GET /stats: the same figures as one JSON object, for people and small tools that have no Prometheus. */
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "observe/metrics.h"

/* A text that may come from outside the program: never a reason for having no answer. */
static json_t *text(const char *s)
{
    json_t *value = s ? json_string(s) : json_null();

    return value ? value : json_string("(not UTF-8)");
}

static json_t *seconds_or_null(double ns)
{
    return ns < 0 ? json_null() : json_real(ns * 1e-9);
}

static json_t *quantiles(const struct recent *recent, int64_t now_ns)
{
    return json_pack("{s:o,s:o,s:o}", "p50", seconds_or_null(recent_quantile(recent, now_ns, 0.5)),
                     "p90", seconds_or_null(recent_quantile(recent, now_ns, 0.9)), "p99",
                     seconds_or_null(recent_quantile(recent, now_ns, 0.99)));
}

static json_t *latencies(const struct http_stats *h, int64_t now_ns)
{
    json_t *stages = json_object();

    for (int s = 0; s < STAGES; s++)
        json_object_set_new(stages, stage_name((enum request_stage)s),
                            quantiles(&h->recent_stages[s], now_ns));
    return json_pack("{s:o,s:o,s:o,s:o}", "first_token", quantiles(&h->recent_first_token, now_ns),
                     "inter_token", quantiles(&h->recent_inter_token, now_ns), "request",
                     quantiles(&h->recent_request, now_ns), "stages", stages);
}

static json_int_t total(const _Atomic uint64_t *counter)
{
    return (json_int_t)atomic_load((_Atomic uint64_t *)(uintptr_t)counter);
}

static json_t *requests(const struct http_stats *h, const struct engine_stats *e, int64_t now_ns)
{
    json_int_t rejected = 0;

    for (int i = 0; i < REJECT_REASONS; i++)
        rejected += total(&h->rejected[i]);
    return json_pack("{s:i,s:i,s:i,s:o,s:I,s:I,s:I,s:I,s:f}", "running", (int)e->seqs_running,
                     "waiting", (int)e->seqs_waiting, "blocked", (int)e->seqs_blocked,
                     "waiting_for", e->seqs_waiting ? text(e->waiting_for) : json_null(),
                     "finished_total",
                     total(&h->finished[FINISHED_STOP]) + total(&h->finished[FINISHED_LENGTH]),
                     "aborted_total", total(&h->finished[FINISHED_ABORT]), "failed_total",
                     total(&h->finished[FINISHED_ERROR]), "rejected_total", rejected,
                     "finished_per_second", recent_rate_get(&h->recent_finished, now_ns));
}

static json_t *tokens(const struct http_stats *h, const struct engine_stats *e, int64_t now_ns)
{
    return json_pack("{s:I,s:I,s:I,s:I,s:f,s:f}", "prompt_total", (json_int_t)e->prompt_tokens,
                     "cached_total", (json_int_t)e->cached_tokens, "computed_total",
                     (json_int_t)e->computed_tokens, "generated_total",
                     (json_int_t)e->generation_tokens, "prompt_per_second",
                     recent_rate_get(&h->recent_prompt_tokens, now_ns), "generated_per_second",
                     recent_rate_get(&h->recent_generated_tokens, now_ns));
}

static json_t *kv(const struct engine_stats *e)
{
    uint64_t prompts = e->cached_tokens + e->computed_tokens;

    return json_pack("{s:i,s:i,s:f,s:f,s:i,s:i,s:f,s:I,s:I}", "blocks", (int)e->kv_blocks_total,
                     "blocks_used", (int)e->kv_blocks_used, "usage", e->kv_usage, "fragmentation",
                     e->kv_places ? (double)(e->kv_places - e->kv_tokens) / (double)e->kv_places
                                  : 0.0,
                     "prefix_blocks", (int)e->prefix_blocks, "pinned_blocks", (int)e->prefix_pinned,
                     "prefix_hit_ratio", prompts ? (double)e->cached_tokens / (double)prompts : 0.0,
                     "preemptions_total", (json_int_t)e->preemptions, "recomputed_tokens_total",
                     (json_int_t)e->recomputed_tokens);
}

static json_t *steps(const struct engine_stats *e)
{
    double count = e->steps ? (double)e->steps : 1;

    return json_pack("{s:I,s:f,s:f,s:f}", "total", (json_int_t)e->steps, "mean_rows",
                     (double)e->step_rows_sum / count, "mean_seconds",
                     (double)e->step_ns_sum * 1e-9 / count, "admission_window_seconds",
                     (double)e->window_ns * 1e-9);
}

static json_t *stages_ms(const struct stage_ledger *ledger)
{
    json_t *object = json_object();

    for (int s = 0; s < STAGES; s++)
        json_object_set_new(object, stage_name((enum request_stage)s),
                            json_real((double)ledger->ns[s] * 1e-6));
    return object;
}

/* Under the table's lock. */
static json_t *running(const struct live *live, int64_t now_ns)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < LIVE_MAX; i++) {
        const struct live_request *r = &live->requests[i];

        if (!r->used) continue;
        json_array_append_new(
            list, json_pack("{s:s,s:s,s:s,s:f,s:i,s:i}", "id", r->id, "route", r->route, "stage",
                            live_stage(r), "age_seconds", (double)(now_ns - r->received_ns) * 1e-9,
                            "prompt_tokens", (int)r->prompt_tokens, "completion_tokens",
                            (int)atomic_load((_Atomic uint32_t *)(uintptr_t)&r->tokens)));
    }
    return list;
}

static json_t *ended(const struct live *live)
{
    uint64_t count = live->ended_count < LIVE_ENDED_MAX ? live->ended_count : LIVE_ENDED_MAX;
    json_t *list = json_array();

    for (uint64_t i = 0; i < count; i++) { /* newest first */
        const struct live_ended *e = &live->ended[(live->ended_count - 1 - i) % LIVE_ENDED_MAX];

        json_array_append_new(
            list, json_pack("{s:s,s:s,s:i,s:f,s:i,s:i,s:i,s:f,s:o}", "id", e->id, "outcome",
                            e->outcome, "status", (int)e->status, "ended",
                            (double)e->ended_wall_ns * 1e-9, "prompt_tokens", (int)e->prompt_tokens,
                            "cached_tokens", (int)e->cached_tokens, "completion_tokens",
                            (int)e->completion_tokens, "total_ms",
                            (double)e->ledger.total_ns * 1e-6, "stages_ms", stages_ms(&e->ledger)));
    }
    return list;
}

static json_t *model(const struct metrics_model *m)
{
    if (!m) return json_null();
    return json_pack("{s:o,s:o,s:o,s:i,s:I,s:s}", "name", text(m->name), "description",
                     text(m->description), "device", text(m->device), "max_model_len",
                     (int)m->context_tokens, "kv_tokens", (json_int_t)m->kv_tokens, "kv_format",
                     m->kv_format);
}

void metrics_stats_json(const struct metrics_sources *sources, const char *state, struct buf *out)
{
    static const struct engine_stats none;
    const struct engine_stats *e = sources->engine ? sources->engine : &none;
    struct live *live = &((struct http_stats *)(uintptr_t)sources->http)->live;
    int64_t now_ns = clock_mono_ns();

    pthread_mutex_lock(&live->lock);
    json_t *now = running(live, now_ns), *last = ended(live);
    pthread_mutex_unlock(&live->lock);
    json_t *object =
        json_pack("{s:s,s:I,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "state", state, "time",
                  (json_int_t)clock_wall_s(), "model", model(sources->model), "requests",
                  requests(sources->http, e, now_ns), "tokens", tokens(sources->http, e, now_ns),
                  "latency_seconds", latencies(sources->http, now_ns), "kv", kv(e), "steps",
                  steps(e), "running", now, "ended", last);
    char *bytes = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;

    buf_append_str(out, bytes ? bytes : "{}");
    free(bytes);
    json_decref(object);
}
