/* log_histogram.h - percentiles of many positive numbers in constant memory, to better than 1 %: a bucket per 1/128 of an octave's
 * mantissa, read straight from the bits of the double. */
#pragma once

#include <stdint.h>
#include <string.h>

enum {
    LOG_HISTOGRAM_BITS = 7,
    LOG_HISTOGRAM_BUCKETS = 64 << LOG_HISTOGRAM_BITS,
    LOG_HISTOGRAM_LOW = 1023 - 32
};

struct log_histogram {
    uint64_t count;
    double sum;
    uint64_t
        buckets[LOG_HISTOGRAM_BUCKETS]; /* 2^-32 .. 2^32; what lies outside counts at its end */
};

static inline void log_histogram_add(struct log_histogram *h, double value)
{
    uint64_t bits;
    int64_t at;

    memcpy(&bits, &value, sizeof bits);
    at = (int64_t)(bits >> (52 - LOG_HISTOGRAM_BITS)) -
         ((int64_t)LOG_HISTOGRAM_LOW << LOG_HISTOGRAM_BITS);
    h->buckets[at < 0 || value <= 0          ? 0
               : at >= LOG_HISTOGRAM_BUCKETS ? LOG_HISTOGRAM_BUCKETS - 1
                                             : at]++;
    h->count++;
    h->sum += value;
}

/* The middle of the bucket that holds the rank; 0 when empty. */
static inline double log_histogram_percentile(const struct log_histogram *h, double percent)
{
    double rank = percent / 100 * (double)(h->count ? h->count - 1 : 0);
    uint64_t seen = 0, bits;
    double low, high;

    if (!h->count) return 0;
    for (uint64_t i = 0; i < LOG_HISTOGRAM_BUCKETS; i++) {
        seen += h->buckets[i];
        if ((double)seen <= rank) continue;
        bits = (i + ((uint64_t)LOG_HISTOGRAM_LOW << LOG_HISTOGRAM_BITS))
               << (52 - LOG_HISTOGRAM_BITS);
        memcpy(&low, &bits, sizeof low);
        bits += (uint64_t)1 << (52 - LOG_HISTOGRAM_BITS);
        memcpy(&high, &bits, sizeof high);
        return (low + high) / 2;
    }
    return 0;
}
