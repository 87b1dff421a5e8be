/* process_metrics.h - process_*: what Prometheus client libraries say of every process (memory, CPU time, files, start). */
#pragma once

#include "base/buf.h"

/* Reads /proc/self; what cannot be read is left out. */
void process_metrics(struct buf *out);
