#include "observe/http_stats.h"

#include <math.h>

const uint16_t http_status_list[HTTP_STATUSES] = {200, 204, 400, 401, 404, 405, 408,
                                                  413, 415, 429, 499, 500, 503, 0};

int64_t histogram_bound_ns(uint32_t bucket)
{
    return 500000ll << bucket;
}

void histogram_add(struct histogram *histogram, int64_t value_ns)
{
    uint32_t bucket = 0;

    if (value_ns < 0) value_ns = 0;
    while (bucket < HISTOGRAM_BUCKETS && value_ns > histogram_bound_ns(bucket))
        bucket++;
    atomic_fetch_add_explicit(&histogram->counts[bucket], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&histogram->sum_ns, (uint64_t)value_ns, memory_order_relaxed);
}

static const double recent_first_ns = 1000; /* the first bucket's end; the last one's: 247 s */

static uint32_t recent_bucket(int64_t value_ns)
{
    if ((double)value_ns <= recent_first_ns) return 0;
    double octaves = log2((double)value_ns / recent_first_ns);
    uint32_t bucket = (uint32_t)(octaves * 8) + 1;

    return bucket < RECENT_BUCKETS ? bucket : RECENT_BUCKETS - 1;
}

void recent_add(struct recent *recent, int64_t now_ns, int64_t value_ns)
{
    int64_t second = now_ns / 1000000000 + 1;
    uint32_t slot = (uint32_t)(second % RECENT_SLOTS);
    int64_t seen = atomic_load_explicit(&recent->slots[slot].second, memory_order_relaxed);

    if (seen != second &&
        atomic_compare_exchange_strong(&recent->slots[slot].second, &seen, second))
        for (uint32_t b = 0; b < RECENT_BUCKETS; b++)
            atomic_store_explicit(&recent->slots[slot].counts[b], 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&recent->slots[slot].counts[recent_bucket(value_ns)], 1,
                              memory_order_relaxed);
}

double recent_quantile(const struct recent *recent, int64_t now_ns, double q)
{
    struct recent *r = (struct recent *)(uintptr_t)recent; /* atomic loads of C17 take no const */
    int64_t second = now_ns / 1000000000 + 1;
    uint64_t counts[RECENT_BUCKETS] = {0}, total = 0, seen = 0;

    for (uint32_t s = 0; s < RECENT_SLOTS; s++) {
        int64_t of = atomic_load_explicit(&r->slots[s].second, memory_order_relaxed);

        if (of == 0 || of > second || of <= second - RECENT_SECONDS) continue;
        for (uint32_t b = 0; b < RECENT_BUCKETS; b++)
            counts[b] += atomic_load_explicit(&r->slots[s].counts[b], memory_order_relaxed);
    }
    for (uint32_t b = 0; b < RECENT_BUCKETS; b++)
        total += counts[b];
    if (total == 0) return -1;
    for (uint32_t b = 0; b < RECENT_BUCKETS; b++) {
        seen += counts[b];
        if ((double)seen >= q * (double)total)
            return recent_first_ns * exp2((b - 0.5) / 8); /* the bucket's middle */
    }
    return -1;
}

void http_stats_count(struct http_stats *stats, enum http_method method, enum http_route route,
                      unsigned status)
{
    uint32_t i = 0;

    while (i < HTTP_STATUSES - 1 && http_status_list[i] != status)
        i++;
    atomic_fetch_add_explicit(&stats->requests[method][route][i], 1, memory_order_relaxed);
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
        [ROUTE_CHAT] = "/v1/chat/completions",
        [ROUTE_COMPLETIONS] = "/v1/completions",
        [ROUTE_TOKENIZE] = "/tokenize",
        [ROUTE_DETOKENIZE] = "/detokenize",
        [ROUTE_UNKNOWN] = "other",
    };

    return patterns[route];
}
