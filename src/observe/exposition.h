/* exposition.h - building blocks of the Prometheus text format 0.0.4: one HELP and TYPE line per family, then its samples.
 * For the files of observe/ that write it. Names come with their prefix. */
#pragma once

#include "base/buf.h"
#include "observe/histogram.h"

/* "# HELP ..." and "# TYPE ...". */
void expo_family(struct buf *out, const char *name, const char *type, const char *help);
/* A label's value with quotes: backslash, quote and line feed escaped. */
void expo_label(struct buf *out, const char *value);
/* The samples of one histogram, family line not included. labels: `a="b"`, without braces, "" for none. bound_max: no bucket above it
 * is shown (0: all). pythonic: numbers as Python's client writes them ("1.0"), which is how vLLM's look. */
void expo_histogram(struct buf *out, const char *name, const char *labels,
                    const struct histogram *histogram, enum histogram_family family,
                    int64_t bound_max, int pythonic);
/* A number as Python's prometheus_client writes it: 1 is "1.0", a million "1e+06". */
void expo_pythonic(double value, char out[40]);
