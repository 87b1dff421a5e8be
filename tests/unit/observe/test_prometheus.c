/* test_prometheus.c - /metrics is well formed and says what the counters hold.
 * Method: counters with known values; every line must be a comment or a sample of the family announced just before it, every family
 * announced once; the values are looked up by name. */
#include "test.h"

#include <stdlib.h>

#include "observe/metrics.h"

static struct buf render(const struct engine_stats *engine, const struct http_stats *http)
{
    struct metrics_sources sources = {engine, http};
    struct buf out = {0};

    metrics_prometheus(&sources, &out);
    return out;
}

static double value_of(const char *text, const char *sample)
{
    char line[256];

    snprintf(line, sizeof line, "\ninferd_%s ", sample);
    const char *at = strstr(text, line);
    if (!at) fail_msg("no sample %s", sample);
    return strtod(at + strlen(line), NULL);
}

TEST(every_line_belongs_to_the_family_above_it)
{
    struct http_stats *http = calloc(1, sizeof *http);
    struct buf out;
    char family[128] = "", help[256], *save = NULL;
    int families = 0;

    http_stats_count(http, HTTP_POST, ROUTE_CHAT, 200);
    histogram_add(&http->first_token, 3000000);
    out = render(NULL, http);
    char *copy = strdup(buf_cstr(&out));
    for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (strncmp(line, "# HELP ", 7) == 0) {
            EXPECT_EQ(sscanf(line, "# HELP %127s ", family), 1);
            snprintf(help, sizeof help, "# HELP %s ", family);
            EXPECT_TRUE(strstr(strstr(buf_cstr(&out), help) + 1, help) == NULL);
            families++;
        } else if (strncmp(line, "# TYPE ", 7) == 0) {
            EXPECT_TRUE(strncmp(line + 7, family, strlen(family)) == 0);
        } else {
            EXPECT_TRUE(strncmp(line, family, strlen(family)) == 0);
            EXPECT_TRUE(strchr(line, ' ') != NULL);
        }
    }
    EXPECT_TRUE(families > 30);
    free(copy);
    buf_fini(&out);
    free(http);
}

TEST(scheduler_numbers_are_shown)
{
    struct http_stats *http = calloc(1, sizeof *http);
    struct engine_stats e = {.preemptions = 3,
                             .recomputed_tokens = 512,
                             .prefix_blocks = 17,
                             .prefix_evictions = 5,
                             .prefix_pinned = 4,
                             .flooding = 2,
                             .kv_held_ns = 4000000000,
                             .kv_wasted_ns = 100000000,
                             .window_ns = 1500000,
                             .arrivals_per_ks = 2000000,
                             .holds = {0, 1, 2, 3, 4, 5},
                             .window_fired = {7, 8, 9, 10}};
    struct buf out = render(&e, http);
    const char *text = buf_cstr(&out);

    EXPECT_EQ(value_of(text, "preemptions_total"), 3);
    EXPECT_EQ(value_of(text, "recomputed_tokens_total"), 512);
    EXPECT_EQ(value_of(text, "prefix_cache_blocks"), 17);
    EXPECT_EQ(value_of(text, "admission_held_steps_total{reason=\"slots\"}"), 2);
    EXPECT_EQ(value_of(text, "admission_held_steps_total{reason=\"turn\"}"), 5);
    EXPECT_EQ(value_of(text, "prefix_cache_pinned_blocks"), 4);
    EXPECT_EQ(value_of(text, "flooding_keys"), 2);
    EXPECT_EQ(value_of(text, "prefix_cache_evictions_total"), 5);
    EXPECT_NEAR(value_of(text, "kv_waste_ratio"), 0.025, 1e-9);
    EXPECT_NEAR(value_of(text, "kv_wasted_seconds_total"), 0.1, 1e-9);
    EXPECT_NEAR(value_of(text, "admission_window_seconds"), 0.0015, 1e-9);
    EXPECT_NEAR(value_of(text, "arrival_rate"), 2000, 1e-6);
    EXPECT_NEAR(value_of(text, "admission_window_arrivals"), 3, 1e-6); /* rho */
    EXPECT_EQ(value_of(text, "admission_window_opened_total{trigger=\"idle\"}"), 7);
    EXPECT_EQ(value_of(text, "admission_window_opened_total{trigger=\"throughput\"}"), 10);
    buf_fini(&out);
    free(http);
}

TEST(recent_quantiles_forget_what_is_older_than_five_seconds)
{
    struct recent *r = calloc(1, sizeof *r);
    const int64_t s = 1000000000, start = 1000 * s;

    EXPECT_TRUE(recent_quantile(r, start, 0.5) < 0);
    for (int i = 0; i < 1000; i++)
        recent_add(r, start + i * s / 1000, i < 980 ? 10000000 : 700000000);
    EXPECT_NEAR(recent_quantile(r, start + s, 0.5), 1e7, 1e6);
    EXPECT_NEAR(recent_quantile(r, start + s, 0.99), 7e8, 7e7);
    for (int i = 0; i < 1000; i++)
        recent_add(r, start + 3 * s + i, 20000000);
    EXPECT_NEAR(recent_quantile(r, start + 4 * s, 0.25), 1e7, 1e6);
    EXPECT_NEAR(recent_quantile(r, start + 6 * s, 0.25), 2e7, 2e6); /* the first 1000 are too old */
    EXPECT_TRUE(recent_quantile(r, start + 9 * s, 0.5) < 0);
    recent_add(r, start + 6 * s, 0); /* the slot of the first second, anew */
    recent_add(r, start + 6 * s, INT64_MAX);
    EXPECT_TRUE(recent_quantile(r, start + 6 * s, 1) > 2e11);
    free(r);
}
