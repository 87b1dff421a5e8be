/* metrics.h - the door of src/observe: the counters of every module as one text, and as one JSON object.
 *
 * Reads the struct <stem>_stats that modules keep; holds nothing itself. Thread: any. */
#pragma once

#include "base/buf.h"
#include "engine/engine.h"
#include "observe/http_stats.h"
#include "observe/tracer.h"

/* What is served, as labels tell it. Strings are borrowed. */
struct metrics_model {
    const char *name;        /* the first served name */
    const char *description; /* "llama, 135 M parameters, ..." */
    const char *device;
    uint32_t context_tokens, block_tokens;
    uint64_t kv_tokens;    /* that the KV cache holds */
    const char *kv_format; /* "bf16" */
    bool prefix_caching;
    double memory_utilization; /* 0: not known */
    const char *version;
};

struct metrics_sources {
    const struct engine_stats *engine; /* NULL while the model loads: its values are 0 */
    const struct http_stats *http;
    const struct metrics_model *model; /* NULL while it loads */
    const struct tracer_stats *tracer; /* NULL: no traces are made */
    bool vllm;                         /* vLLM's names too; they need the model */
};

/* Appends the Prometheus text format 0.0.4: docs/api.md section 6. */
void metrics_prometheus(const struct metrics_sources *sources, struct buf *out);
/* Appends one object: docs/api.md section 6, GET /stats. state: "ready", "loading" ... */
void metrics_stats_json(const struct metrics_sources *sources, const char *state, struct buf *out);
