/* vllm_metrics.h - our counters under the names, labels and buckets that vLLM's /metrics has, so that its dashboards, autoscalers
 * (KEDA, the Gateway API's endpoint picker, the production stack's router) and benchmarks read them unchanged.
 *
 * Source: vllm/v1/metrics/loggers.py and buckets.py of vLLM 0.2x; names of the older V0 that dashboards still read are kept, too
 * (gpu_cache_usage_perc, gpu_prefix_cache_*, time_per_output_token_seconds). What we have no such thing of is a constant 0 where a
 * dashboard would otherwise miss its series, and left out where vLLM itself shows it only with the feature. */
#pragma once

#include "observe/metrics.h"

void vllm_metrics(const struct metrics_sources *sources, struct buf *out);
