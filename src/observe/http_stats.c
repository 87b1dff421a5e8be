#include "observe/http_stats.h"

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
