/* test_prometheus.c - /metrics is well formed and says what the counters hold.
 * Method: counters with known values; every line must be a comment or a sample of the family announced just before it, every family
 * announced once; the values are looked up by name. */
#include "test.h"

#include <stdlib.h>
#include <sys/resource.h>

#include <jansson.h>

#include "observe/exposition.h"
#include "observe/metrics.h"
#include "observe/process_metrics.h"
#include "observe/request_record.h"

static struct buf render(const struct engine_stats *engine, const struct http_stats *http)
{
    struct metrics_sources sources = {.engine = engine, .http = http};
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
    struct http_stats *http = http_stats_create();
    struct buf out;
    char family[128] = "", help[256], *save = NULL;
    int families = 0;

    http_stats_count(http, HTTP_POST, ROUTE_CHAT, 200);
    histogram_add(&http->first_token, BOUNDS_TIME, 3000000);
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
    http_stats_destroy(http);
}

TEST(scheduler_numbers_are_shown)
{
    struct http_stats *http = http_stats_create();
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
    http_stats_destroy(http);
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

TEST(a_histogram_puts_a_value_into_the_first_bucket_that_holds_it)
{
    for (int f = 0; f < BOUNDS_FAMILIES; f++) {
        struct histogram h = {0};
        uint32_t count;
        const int64_t *bounds = histogram_bounds((enum histogram_family)f, &count);

        EXPECT_TRUE(count > 0 && count <= HISTOGRAM_BUCKETS);
        for (uint32_t i = 1; i < count; i++)
            EXPECT_TRUE(bounds[i] > bounds[i - 1]);
        histogram_add(&h, (enum histogram_family)f, 0);
        histogram_add(&h, (enum histogram_family)f, bounds[0]);
        histogram_add(&h, (enum histogram_family)f, bounds[0] + 1);
        histogram_add(&h, (enum histogram_family)f, INT64_MAX);
        histogram_add(&h, (enum histogram_family)f, -5);
        EXPECT_EQ(h.counts[0], 3);
        EXPECT_EQ(h.counts[1], 1);
        EXPECT_EQ(h.counts[HISTOGRAM_BUCKETS], 1);
    }
}

/* --- vLLM's names --- */

static const struct metrics_model tiny = {.name = "org/tiny \"1\"",
                                          .device = "null",
                                          .version = "0",
                                          .context_tokens = 2048,
                                          .block_tokens = 16,
                                          .kv_tokens = 4096,
                                          .kv_format = "bfloat16",
                                          .prefix_caching = true};
#define LABELS "engine=\"0\",model_name=\"org/tiny \\\"1\\\"\""

static double vllm_value(const char *text, const char *name, const char *more)
{
    char line[256];

    snprintf(line, sizeof line, "\nvllm:%s{" LABELS "%s} ", name, more);
    const char *at = strstr(text, line);
    if (!at) fail_msg("no sample %s%s", name, more);
    return strtod(at + strlen(line), NULL);
}

static struct request_record finished_request(void)
{
    return (struct request_record){
        .outcome = "stop",
        .submitted = true,
        .status = 200,
        .choices = 2,
        .n = 2,
        .completion_tokens = 12,
        .longest_choice_tokens = 8,
        .max_tokens = 100,
        .times = {.prompt_tokens = 50, .cached_tokens = 32, .preemptions = 3},
        .ledger = {.ns = {[STAGE_QUEUE] = 400000000,
                          [STAGE_PREFILL] = 900000000,
                          [STAGE_DECODE] = 1000000000},
                   .total_ns = 2300000000}};
}

TEST(vllms_names_have_its_labels_and_buckets)
{
    struct http_stats *http = http_stats_create();
    struct engine_stats e = {.seqs_waiting = 4,
                             .seqs_running = 3,
                             .waiting_for = "slots",
                             .kv_blocks_total = 256,
                             .kv_blocks_used = 64,
                             .kv_usage = 0.25,
                             .cached_tokens = 30,
                             .computed_tokens = 70,
                             .preemptions = 2,
                             .step_rows_sum = 100,
                             .step_classes = {[0] = 5, [2] = 7, [13] = 1}};
    struct request_record r = finished_request();
    struct metrics_sources sources = {.engine = &e, .http = http, .model = &tiny, .vllm = true};
    struct buf out = {0};

    http_stats_finish(http, &r, 1000);
    http_stats_count(http, HTTP_POST, ROUTE_CHAT, 200);
    metrics_prometheus(&sources, &out);
    const char *text = buf_cstr(&out);
    EXPECT_EQ(vllm_value(text, "num_requests_waiting", ""), 4);
    EXPECT_EQ(vllm_value(text, "num_requests_waiting_by_reason", ",reason=\"capacity\""), 4);
    EXPECT_EQ(vllm_value(text, "num_requests_waiting_by_reason", ",reason=\"deferred\""), 0);
    EXPECT_NEAR(vllm_value(text, "kv_cache_usage_perc", ""), 0.25, 1e-9);
    EXPECT_NEAR(vllm_value(text, "gpu_cache_usage_perc", ""), 0.25, 1e-9);
    EXPECT_EQ(vllm_value(text, "prefix_cache_queries_total", ""), 100);
    EXPECT_EQ(vllm_value(text, "prefix_cache_hits_total", ""), 30);
    EXPECT_EQ(vllm_value(text, "prompt_tokens_by_source_total", ",source=\"local_compute\""), 70);
    EXPECT_EQ(vllm_value(text, "request_success_total", ",finished_reason=\"stop\""), 1);
    EXPECT_EQ(vllm_value(text, "request_success_total", ",finished_reason=\"length\""), 0);
    EXPECT_EQ(vllm_value(text, "e2e_request_latency_seconds_bucket", ",le=\"2.0\""), 0);
    EXPECT_EQ(vllm_value(text, "e2e_request_latency_seconds_bucket", ",le=\"2.5\""), 1);
    EXPECT_EQ(vllm_value(text, "e2e_request_latency_seconds_bucket", ",le=\"15.0\""), 1);
    EXPECT_NEAR(vllm_value(text, "request_inference_time_seconds_sum", ""), 1.9, 1e-9);
    EXPECT_NEAR(vllm_value(text, "request_time_per_output_token_seconds_sum", ""), 0.2, 1e-9);
    EXPECT_EQ(vllm_value(text, "request_prompt_tokens_bucket", ",le=\"20.0\""), 0);
    EXPECT_EQ(vllm_value(text, "request_prompt_tokens_bucket", ",le=\"50.0\""), 1);
    EXPECT_EQ(vllm_value(text, "request_prompt_tokens_bucket", ",le=\"2000.0\""), 1);
    EXPECT_TRUE(!strstr(text, "request_prompt_tokens_bucket{" LABELS ",le=\"5000.0\""));
    EXPECT_EQ(vllm_value(text, "request_prefill_kv_computed_tokens_sum", ""), 18);
    EXPECT_EQ(vllm_value(text, "request_max_num_generation_tokens_sum", ""), 8);
    EXPECT_EQ(vllm_value(text, "request_params_n_bucket", ",le=\"1.0\""), 0);
    EXPECT_EQ(vllm_value(text, "request_params_n_bucket", ",le=\"2.0\""), 1);
    EXPECT_EQ(vllm_value(text, "request_num_preemptions_bucket", ",le=\"3.0\""), 1);
    EXPECT_EQ(vllm_value(text, "iteration_tokens_total_bucket", ",le=\"1.0\""), 5);
    EXPECT_EQ(vllm_value(text, "iteration_tokens_total_bucket", ",le=\"16.0\""), 12);
    EXPECT_EQ(vllm_value(text, "iteration_tokens_total_bucket", ",le=\"+Inf\""), 13);
    EXPECT_TRUE(
        strstr(text, "\nvllm:cache_config_info{block_size=\"16\",cache_dtype=\"bfloat16\","));
    EXPECT_TRUE(strstr(text, "num_gpu_blocks=\"256\""));
    EXPECT_TRUE(strstr(text, "\nhttp_requests_total{handler=\"/v1/chat/completions\",method="
                             "\"POST\",status=\"2xx\"} 1.0\n"));
    e.waiting_for = "window";
    buf_clear(&out);
    metrics_prometheus(&sources, &out);
    text = buf_cstr(&out);
    EXPECT_EQ(vllm_value(text, "num_requests_waiting_by_reason", ",reason=\"deferred\""), 4);
    sources.vllm = false;
    buf_clear(&out);
    metrics_prometheus(&sources, &out);
    EXPECT_TRUE(!strstr(buf_cstr(&out), "vllm:") && strstr(buf_cstr(&out), "inferd_model_info{"));
    buf_fini(&out);
    http_stats_destroy(http);
}

TEST(what_failed_or_left_is_counted_but_not_timed)
{
    struct http_stats *http = http_stats_create();
    struct request_record r = finished_request();

    strcpy(r.outcome, "aborted");
    http_stats_finish(http, &r, 1000);
    strcpy(r.outcome, "error");
    http_stats_finish(http, &r, 1000);
    EXPECT_EQ(http->finished[FINISHED_ABORT], 1);
    EXPECT_EQ(http->finished[FINISHED_ERROR], 1);
    EXPECT_EQ(http->finished[FINISHED_STOP], 0);
    for (int i = 0; i < VLLM_HISTOGRAMS; i++)
        EXPECT_EQ(http->vllm[i].sum, 0);
    EXPECT_EQ(http->request.sum, 0);
    http_stats_destroy(http);
}

/* Python's floatToGoString, by its own examples. */
TEST(numbers_look_as_pythons_client_writes_them)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0, "0.0"},       {1, "1.0"},     {0.3, "0.3"},
                 {7680, "7680.0"}, {2.5, "2.5"},   {999999, "999999.0"},
                 {1e6, "1e+06"},   {2e6, "2e+06"}, {1234567, "1.234567e+06"},
                 {1e7, "1e+07"}};
    char text[40];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expo_pythonic(cases[i].value, text);
        EXPECT_STR(text, cases[i].text);
    }
}

TEST(rates_are_of_the_last_five_seconds)
{
    struct recent_rate *rate = calloc(1, sizeof *rate);
    const int64_t s = 1000000000, start = 1000 * s;

    EXPECT_EQ(recent_rate_get(rate, start), 0);
    for (int i = 0; i < 10; i++)
        recent_rate_add(rate, start + i * s / 2, 50);
    EXPECT_NEAR(recent_rate_get(rate, start + 5 * s - 1), 100, 0.1);
    EXPECT_NEAR(recent_rate_get(rate, start + 7 * s), 200.0 / 4,
                0.1); /* seconds 3 and 4 are left */
    EXPECT_EQ(recent_rate_get(rate, start + 20 * s), 0);
    free(rate);
}

TEST(the_table_of_live_requests_gives_places_and_takes_them_back)
{
    struct http_stats *http = http_stats_create();
    struct live *live = &http->live;
    struct stage_times times = {.prompt_tokens = 7};
    struct live_request *places[LIVE_MAX];

    for (int i = 0; i < LIVE_MAX; i++)
        EXPECT_TRUE((places[i] = live_enter(live, "id", "/x", 1, &times)));
    EXPECT_TRUE(!live_enter(live, "id", "/x", 1, &times));
    live_leave(live, NULL);
    live_leave(live, places[200]);
    live_leave(live, places[3]);
    EXPECT_TRUE(live_enter(live, "a", "/x", 1, &times) == places[3]);
    EXPECT_TRUE(live_enter(live, "b", "/x", 1, &times) == places[200]);
    EXPECT_TRUE(!live_enter(live, "c", "/x", 1, &times));
    EXPECT_STR(live_stage(places[0]), "queue");
    times.scheduled_ns = 5;
    EXPECT_STR(live_stage(places[0]), "prefill");
    places[0]->tokens = 1;
    EXPECT_STR(live_stage(places[0]), "decode");
    http_stats_destroy(http);
}

TEST(stats_is_one_object_that_tells_running_and_ended_requests)
{
    struct http_stats *http = http_stats_create();
    struct engine_stats e = {.seqs_waiting = 1, .waiting_for = "blocks"};
    struct metrics_sources sources = {.engine = &e, .http = http, .model = &tiny};
    struct stage_times times = {.prompt_tokens = 7};
    struct request_record r = finished_request();
    struct buf out = {0};

    live_enter(&http->live, "chatcmpl-1", "/v1/chat/completions", 1, &times);
    strcpy(r.id, "chatcmpl-0");
    live_note_ended(&http->live, &r);
    metrics_stats_json(&sources, "ready", &out);
    json_t *o = json_loads(buf_cstr(&out), 0, NULL);
    EXPECT_TRUE(o);
    EXPECT_STR(json_string_value(json_object_get(o, "state")), "ready");
    EXPECT_STR(json_string_value(
                   json_object_get(json_array_get(json_object_get(o, "running"), 0), "stage")),
               "queue");
    const json_t *ended = json_array_get(json_object_get(o, "ended"), 0);
    EXPECT_STR(json_string_value(json_object_get(ended, "id")), "chatcmpl-0");
    EXPECT_NEAR(json_real_value(json_object_get(json_object_get(ended, "stages_ms"), "prefill")),
                900, 1e-6);
    EXPECT_STR(json_string_value(json_object_get(json_object_get(o, "requests"), "waiting_for")),
               "blocks");
    json_decref(o);
    buf_clear(&out);
    sources = (struct metrics_sources){.http = http};
    metrics_stats_json(&sources, "loading", &out); /* while the model loads */
    o = json_loads(buf_cstr(&out), 0, NULL);
    EXPECT_TRUE(o && json_is_null(json_object_get(o, "model")));
    json_decref(o);
    buf_fini(&out);
    http_stats_destroy(http);
}

/* The figure matters most when no descriptor is left, and then /proc/self/fd cannot be listed. */
TEST(open_files_are_told_when_there_is_none_left_to_count_them_with)
{
    struct rlimit kept, few;
    struct buf out = {0};
    double open_files, most;
    const char *at;

    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &kept), 0);
    process_metrics(&out);
    at = strstr(buf_cstr(&out), "\nprocess_open_fds ");
    EXPECT_TRUE(at && sscanf(at, " process_open_fds %lf", &open_files) == 1 && open_files >= 3);
    buf_clear(&out);
    few = (struct rlimit){3, kept.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    process_metrics(&out);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &kept), 0);
    at = strstr(buf_cstr(&out), "\nprocess_open_fds ");
    EXPECT_TRUE(at && sscanf(at, " process_open_fds %lf", &open_files) == 1);
    at = strstr(buf_cstr(&out), "\nprocess_max_fds ");
    EXPECT_TRUE(at && sscanf(at, " process_max_fds %lf", &most) == 1 && open_files == most);
    buf_fini(&out);
}
