#include "observe/recent.h"

#include <math.h>

static const double first_ns = 1000; /* the first bucket's end; the last one's: 247 s */
static const int64_t second_ns = 1000000000;

static uint32_t bucket_of(int64_t value_ns)
{
    if ((double)value_ns <= first_ns) return 0;
    double octaves = log2((double)value_ns / first_ns);
    uint32_t bucket = (uint32_t)(octaves * 8) + 1;

    return bucket < RECENT_BUCKETS ? bucket : RECENT_BUCKETS - 1;
}

/* Whether the caller is the one who takes the slot over for this second. */
static int takes_over(_Atomic int64_t *second, int64_t now)
{
    int64_t seen = atomic_load_explicit(second, memory_order_relaxed);

    return seen != now && atomic_compare_exchange_strong(second, &seen, now);
}

static int is_recent(int64_t of, int64_t now)
{
    return of != 0 && of <= now && of > now - RECENT_SECONDS;
}

void recent_add(struct recent *recent, int64_t now_ns, int64_t value_ns)
{
    int64_t second = now_ns / second_ns + 1;
    uint32_t slot = (uint32_t)(second % RECENT_SLOTS);

    if (takes_over(&recent->slots[slot].second, second))
        for (uint32_t b = 0; b < RECENT_BUCKETS; b++)
            atomic_store_explicit(&recent->slots[slot].counts[b], 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&recent->slots[slot].counts[bucket_of(value_ns)], 1,
                              memory_order_relaxed);
}

double recent_quantile(const struct recent *recent, int64_t now_ns, double q)
{
    struct recent *r = (struct recent *)(uintptr_t)recent; /* atomic loads of C17 take no const */
    int64_t second = now_ns / second_ns + 1;
    uint64_t counts[RECENT_BUCKETS] = {0}, total = 0, seen = 0;

    for (uint32_t s = 0; s < RECENT_SLOTS; s++) {
        if (!is_recent(atomic_load_explicit(&r->slots[s].second, memory_order_relaxed), second))
            continue;
        for (uint32_t b = 0; b < RECENT_BUCKETS; b++)
            counts[b] += atomic_load_explicit(&r->slots[s].counts[b], memory_order_relaxed);
    }
    for (uint32_t b = 0; b < RECENT_BUCKETS; b++)
        total += counts[b];
    if (total == 0) return -1;
    for (uint32_t b = 0; b < RECENT_BUCKETS; b++) {
        seen += counts[b];
        if ((double)seen >= q * (double)total)
            return first_ns * exp2((b - 0.5) / 8); /* the bucket's middle */
    }
    return -1;
}

void recent_rate_add(struct recent_rate *rate, int64_t now_ns, uint64_t amount)
{
    int64_t second = now_ns / second_ns + 1;
    uint32_t slot = (uint32_t)(second % RECENT_SLOTS);

    if (takes_over(&rate->slots[slot].second, second))
        atomic_store_explicit(&rate->slots[slot].sum, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&rate->slots[slot].sum, amount, memory_order_relaxed);
}

double recent_rate_get(const struct recent_rate *rate, int64_t now_ns)
{
    struct recent_rate *r = (struct recent_rate *)(uintptr_t)rate;
    int64_t second = now_ns / second_ns + 1;
    uint64_t sum = 0;

    for (uint32_t s = 0; s < RECENT_SLOTS; s++)
        if (is_recent(atomic_load_explicit(&r->slots[s].second, memory_order_relaxed), second))
            sum += atomic_load_explicit(&r->slots[s].sum, memory_order_relaxed);
    return (double)sum * 1e9 / (double)((RECENT_SECONDS - 1) * second_ns + now_ns % second_ns);
}
