/* recent.h - quantiles and rates over the last seconds.
 *
 * A second a slot; where a slot is taken over for a new second while others count into it, a few values may be lost. Zeroed memory
 * is a right start. Times are CLOCK_MONOTONIC nanoseconds. Thread: any. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

enum { RECENT_SECONDS = 5, RECENT_SLOTS = RECENT_SECONDS + 1, RECENT_BUCKETS = 224 };

/* Buckets of 2^(1/8). */
struct recent {
    struct {
        _Atomic int64_t second; /* + 1; 0: never used */
        _Atomic uint32_t counts[RECENT_BUCKETS];
    } slots[RECENT_SLOTS];
};
void recent_add(struct recent *recent, int64_t now_ns, int64_t value_ns);
/* In ns; negative: nothing in the last RECENT_SECONDS. */
double recent_quantile(const struct recent *recent, int64_t now_ns, double q);

struct recent_rate {
    struct {
        _Atomic int64_t second; /* + 1; 0: never used */
        _Atomic uint64_t sum;
    } slots[RECENT_SLOTS];
};
void recent_rate_add(struct recent_rate *rate, int64_t now_ns, uint64_t amount);
/* Per second, over the last RECENT_SECONDS - 1 whole ones and the one under way. */
double recent_rate_get(const struct recent_rate *rate, int64_t now_ns);
