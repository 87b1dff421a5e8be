/* metrics.h - the door of src/observe: the counters of every module as one text.
 *
 * Reads the struct <stem>_stats that modules keep; holds nothing itself. Thread: any. */
#pragma once

#include "base/buf.h"
#include "engine/engine.h"
#include "observe/http_stats.h"

struct metrics_sources {
    const struct engine_stats *engine; /* NULL while the model loads: its values are 0 */
    const struct http_stats *http;
};

/* Appends the Prometheus text format 0.0.4: docs/api.md section 6. */
void metrics_prometheus(const struct metrics_sources *sources, struct buf *out);
