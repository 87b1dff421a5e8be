#include "observe/histogram.h"

#define MS(x) ((int64_t)((x)*1000000ll))
#define S(x)  ((int64_t)((x)*1000000000ll))

#define COUNT_OF(array) ((uint32_t)(sizeof(array) / sizeof *(array)))

/* vLLM's are those of its vllm/v1/metrics/buckets.py. */
static const int64_t time_bounds[] = {MS(0.5),   MS(1),     MS(2),     MS(4),      MS(8),
                                      MS(16),    MS(32),    MS(64),    MS(128),    MS(256),
                                      MS(512),   MS(1024),  MS(2048),  MS(4096),   MS(8192),
                                      MS(16384), MS(32768), MS(65536), MS(131072), MS(262144)};
static const int64_t latency_bounds[] = {
    MS(300), MS(500), MS(800), S(1),  S(1.5), S(2),   S(2.5), S(5),   S(10),   S(15),  S(20),
    S(30),   S(40),   S(50),   S(60), S(120), S(240), S(480), S(960), S(1920), S(7680)};
static const int64_t first_token_bounds[] = {
    MS(1), MS(5),  MS(10), MS(20), MS(40), MS(60), MS(80), MS(100), MS(250), MS(500), MS(750),
    S(1),  S(2.5), S(5),   S(7.5), S(10),  S(20),  S(40),  S(80),   S(160),  S(640),  S(2560)};
static const int64_t inter_token_bounds[] = {
    MS(10),  MS(25), MS(50), MS(75), MS(100), MS(150), MS(200), MS(300), MS(400), MS(500),
    MS(750), S(1),   S(2.5), S(5),   S(7.5),  S(10),   S(20),   S(40),   S(80)};
static const int64_t token_bounds[] = {
    1,    2,     5,     10,    20,     50,     100,    200,     500,     1000,    2000,
    5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 2000000, 5000000, 10000000};
static const int64_t choice_bounds[] = {1, 2, 5, 10, 20};
static const int64_t preemption_bounds[] = {1, 2, 3, 4, 5, 10, 20};

static const struct {
    const int64_t *bounds;
    uint32_t count;
    double unit;
} families[BOUNDS_FAMILIES] = {
    [BOUNDS_TIME] = {time_bounds, COUNT_OF(time_bounds), 1e9},
    [BOUNDS_LATENCY] = {latency_bounds, COUNT_OF(latency_bounds), 1e9},
    [BOUNDS_FIRST_TOKEN] = {first_token_bounds, COUNT_OF(first_token_bounds), 1e9},
    [BOUNDS_INTER_TOKEN] = {inter_token_bounds, COUNT_OF(inter_token_bounds), 1e9},
    [BOUNDS_TOKENS] = {token_bounds, COUNT_OF(token_bounds), 1},
    [BOUNDS_CHOICES] = {choice_bounds, COUNT_OF(choice_bounds), 1},
    [BOUNDS_PREEMPTIONS] = {preemption_bounds, COUNT_OF(preemption_bounds), 1},
};

const int64_t *histogram_bounds(enum histogram_family family, uint32_t *count)
{
    *count = families[family].count;
    return families[family].bounds;
}

double histogram_unit(enum histogram_family family)
{
    return families[family].unit;
}

void histogram_add(struct histogram *histogram, enum histogram_family family, int64_t value)
{
    const int64_t *bounds = families[family].bounds;
    uint32_t count = families[family].count, bucket = 0;

    if (value < 0) value = 0;
    while (bucket < count && value > bounds[bucket])
        bucket++;
    if (bucket == count) bucket = HISTOGRAM_BUCKETS;
    atomic_fetch_add_explicit(&histogram->counts[bucket], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&histogram->sum, (uint64_t)value, memory_order_relaxed);
}
