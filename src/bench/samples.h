/* samples.h - a growing list of numbers and what is said of it. Percentiles interpolate linearly between the two nearest ranks, as
 * numpy does, so that figures can be laid beside those of `vllm bench serve`. */
#pragma once

#include <stddef.h>

#include "base/status.h"

struct samples {
    double *values; /* owned */
    size_t count, cap;
};

enum status samples_add(struct samples *s, double value); /* STATUS_NOMEM */
void samples_fini(struct samples *s);
void samples_sort(struct samples *s); /* rising */
double samples_sum(const struct samples *s);
double samples_mean(const struct samples *s); /* 0 when empty */
double samples_std(const struct samples *s);  /* of the population, as numpy's std */
double samples_percentile(const struct samples *s,
                          double percent); /* 0..100; sorts a copy; 0 when empty */
