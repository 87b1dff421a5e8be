/* histogram.h - counts of values by size, over one of a few families of bounds.
 *
 * Values are integers: nanoseconds, tokens or plain counts. All members only grow; relaxed order suffices, each is true by itself.
 * Zeroed memory is a right start. Thread: any. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

enum histogram_family {
    BOUNDS_TIME,    /* ours: 0.5 ms to 262 s in powers of two */
    BOUNDS_LATENCY, /* vLLM's, from here on: of whole requests and their phases */
    BOUNDS_FIRST_TOKEN,
    BOUNDS_INTER_TOKEN,
    BOUNDS_TOKENS, /* 1, 2, 5, 10 ...: shown up to the longest sequence */
    BOUNDS_CHOICES,
    BOUNDS_PREEMPTIONS,
    BOUNDS_FAMILIES
};
enum { HISTOGRAM_BUCKETS = 22 };

struct histogram {
    _Atomic uint64_t counts[HISTOGRAM_BUCKETS + 1]; /* not cumulative; the last one is +Inf */
    _Atomic uint64_t sum;                           /* in the values' unit */
};

/* Upper bounds of the family's buckets, ascending; *count of them, at most HISTOGRAM_BUCKETS. */
const int64_t *histogram_bounds(enum histogram_family family, uint32_t *count);
/* How many of the values' units make one of the unit that is shown: 1e9 for times (seconds), else 1. */
double histogram_unit(enum histogram_family family);
/* A negative value counts as 0. */
void histogram_add(struct histogram *histogram, enum histogram_family family, int64_t value);
