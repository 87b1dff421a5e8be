/* test_load.c - figures are what numpy would say, arrivals have the distribution asked for, traces survive a round trip and wrong ones
 * are refused by file, line and field, and a report counts each result once.
 * Method: known answers (numpy 2.1, python 3.12), moments over many draws within five standard errors, files in memory. */
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/load_prompts.h"
#include "bench/load_report.h"

TEST(percentiles_are_numpys)
{
    static const double values[] = {15, 20, 35, 40, 50, 3.5, 8};
    struct samples s = {0};

    EXPECT_EQ(samples_percentile(&s, 50), 0);
    for (int i = 0; i < 7; i++)
        EXPECT_OK(samples_add(&s, values[i]));
    /* numpy.percentile(values, [0, 25, 50, 90, 99, 100]); numpy.std(values); numpy.mean(values) */
    EXPECT_NEAR(samples_percentile(&s, 0), 3.5, 1e-12);
    EXPECT_NEAR(samples_percentile(&s, 25), 11.5, 1e-12);
    EXPECT_NEAR(samples_percentile(&s, 50), 20, 1e-12);
    EXPECT_NEAR(samples_percentile(&s, 90), 44, 1e-12);
    EXPECT_NEAR(samples_percentile(&s, 99), 49.4, 1e-12);
    EXPECT_NEAR(samples_percentile(&s, 100), 50, 1e-12);
    EXPECT_NEAR(samples_mean(&s), 24.5, 1e-12);
    EXPECT_NEAR(samples_std(&s), 16.144437343644316, 1e-9);
    samples_fini(&s);
}

TEST(gaps_are_gamma_with_the_mean_and_shape_asked_for)
{
    static const double shapes[] = {0.25, 1, 4};
    enum { N = 200000 };

    for (int k = 0; k < 3; k++) {
        struct random_state random = {test_rand()};
        double sum = 0, squares = 0, variance;
        for (int i = 0; i < N; i++) {
            double x = random_gamma(&random, shapes[k]);
            EXPECT_TRUE(x >= 0);
            sum += x;
            squares += x * x;
        }
        variance = squares / N - sum / N * (sum / N);
        EXPECT_NEAR(sum / N, 1, 5 / sqrt(shapes[k] * N));
        /* var 1/a; the sample variance's own deviation is 1/a * sqrt((2 + 6/a) / N) */
        EXPECT_NEAR(variance, 1 / shapes[k], 5 / shapes[k] * sqrt((2 + 6 / shapes[k]) / N));
    }
}

TEST(the_same_seed_gives_the_same_load_and_another_does_not)
{
    struct trace_item item = {.prompt_tokens = 64, .prefix_id = 3, .prefix_tokens = 20},
                      other = item;
    int32_t a[64], b[64];

    prompt_tokens_make(&item, 5, 7, 100, 999, a);
    prompt_tokens_make(&item, 5, 7, 100, 999, b);
    EXPECT_EQ(memcmp(a, b, sizeof a), 0);
    prompt_tokens_make(&item, 5, 8, 100, 999, b);
    EXPECT_EQ(memcmp(a, b, 20 * sizeof *a), 0); /* the shared beginning, and no more */
    EXPECT_TRUE(memcmp(a + 20, b + 20, 44 * sizeof *a) != 0);
    other.prefix_id = 4;
    prompt_tokens_make(&other, 5, 7, 100, 999, b);
    EXPECT_TRUE(memcmp(a, b, 20 * sizeof *a) != 0);
    prompt_tokens_make(&item, 6, 7, 100, 999, b);
    EXPECT_TRUE(memcmp(a, b, sizeof a) != 0);
    for (int i = 0; i < 64; i++)
        EXPECT_TRUE(a[i] >= 100 && a[i] <= 999);
}

/* A file with this text; the name lives until the next call. */
static const char *file_of(const char *text)
{
    static char name[64];
    int fd;

    snprintf(name, sizeof name, "/tmp/inferd-test-XXXXXX");
    fd = mkstemp(name);
    EXPECT_TRUE(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    return name;
}

TEST(a_trace_survives_a_round_trip_sorted_by_arrival)
{
    struct trace trace, again;
    struct error err;
    char *text = NULL;
    size_t size;
    const char *name = file_of(
        "{\"arrival_s\": 2.5, \"prompt_tokens\": 9, \"max_tokens\": 3}\n\n"
        "{\"arrival_s\": 0.25, \"prompt_tokens\": 600, \"max_tokens\": 1, \"prefix_id\": 2, "
        "\"prefix_tokens\": 17, \"key\": 4, \"priority\": -1}");

    EXPECT_OK_ERR(trace_read(name, &trace, &err), &err);
    unlink(name);
    EXPECT_EQ(trace.count, 2);
    EXPECT_EQ(trace.items[0].prompt_tokens, 600);
    EXPECT_EQ(trace.items[0].priority, -1);
    FILE *to = open_memstream(&text, &size);
    EXPECT_OK_ERR(trace_write(&trace, to, &err), &err);
    fclose(to);
    name = file_of(text);
    EXPECT_OK_ERR(trace_read(name, &again, &err), &err);
    unlink(name);
    EXPECT_EQ(again.count, 2);
    EXPECT_EQ(memcmp(again.items, trace.items, 2 * sizeof *trace.items), 0);
    free(text);
    trace_fini(&trace);
    trace_fini(&again);
}

TEST(wrong_traces_are_refused_by_line_and_field)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "has no arrivals"},
        {"{\"arrival_s\": 1, \"prompt_tokens\": 1, \"max_tokens\": 1}\nnonsense",
         ":2: not a JSON object"},
        {"[1]", ":1: not a JSON object"},
        {"{\"prompt_tokens\": 1, \"max_tokens\": 1}", ":1: arrival_s must be a number of seconds"},
        {"{\"arrival_s\": -1, \"prompt_tokens\": 1, \"max_tokens\": 1}", ":1: arrival_s must be"},
        {"{\"arrival_s\": 1, \"prompt_tokens\": 0, \"max_tokens\": 1}",
         ":1: prompt_tokens must be a whole number, 1"},
        {"{\"arrival_s\": 1, \"prompt_tokens\": 1.5, \"max_tokens\": 1}",
         ":1: prompt_tokens must be"},
        {"{\"arrival_s\": 1, \"prompt_tokens\": 1}", ":1: max_tokens must be"},
        {"{\"arrival_s\": 1, \"prompt_tokens\": 1, \"max_tokens\": 1, \"prefix_tokens\": 2, "
         "\"prefix_id\": 1}",
         ":1: prefix_tokens must be at most prompt_tokens"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct trace trace = {0};
        struct error err = {0};
        const char *name = file_of(cases[i].text);

        EXPECT_EQ(trace_read(name, &trace, &err), STATUS_CORRUPT);
        if (!strstr(err.message, cases[i].says))
            fail_msg("\"%s\" does not say \"%s\"", err.message, cases[i].says);
        EXPECT_TRUE(!trace.items);
        unlink(name);
    }
    EXPECT_EQ(trace_read("no/such/trace", &(struct trace){0}, &(struct error){0}),
              STATUS_NOT_FOUND);
}

TEST(arrivals_are_told_by_the_log)
{
    const char *log =
        "2026-11-29T17:20:02.500Z info request done id=b prompt_tokens=7 cached_tokens=0 "
        "completion_tokens=5 "
        "ttft_ms=10.0 total_ms=500.0 make_us=3\n"
        "2026-11-29T17:20:02.600Z info memory total device_bytes=5\n"
        "2026-11-29T17:20:03.000Z info request done id=a prompt_tokens=90 completion_tokens=30 "
        "total_ms=1250.0\n"
        "info request done id=a prompt_tokens=90 completion_tokens=30 total_ms=1250.0\n"
        "2026-11-29T17:20:03.000Z info request done id=c prompt_tokens=0 completion_tokens=0 "
        "total_ms=1.0\n"
        "{\"time\":\"2026-11-29T17:20:04.000Z\",\"level\":\"info\",\"event\":\"request "
        "done\",\"prompt_tokens\":8,\"completion_tokens\":6,\"total_ms\":1000}\n"
        "{\"time\":\"2026-11-29T17:20:04.000Z\",\"event\":\"info request done \"}\n"
        "{\"time\":\"2026-11-29T17:20:04.000Z\",\"event\":\"request done\"}\n{broken\n";
    struct trace trace;
    struct error err;
    FILE *from = fmemopen((void *)(uintptr_t)log, strlen(log), "r");

    EXPECT_OK_ERR(trace_from_log(from, &trace, &err), &err);
    fclose(from);
    EXPECT_EQ(trace.count, 3); /* without a time, or without tokens, a line tells no arrival */
    EXPECT_EQ(trace.items[0].prompt_tokens, 90);
    EXPECT_EQ(trace.items[0].arrival_s, 0);
    EXPECT_NEAR(trace.items[1].arrival_s, 0.25, 1e-6);
    EXPECT_EQ(trace.items[1].max_tokens, 5);
    EXPECT_NEAR(trace.items[2].arrival_s, 1.25, 1e-6); /* of a log of JSON lines */
    EXPECT_EQ(trace.items[2].max_tokens, 6);
    trace_fini(&trace);
    from = fmemopen((void *)(uintptr_t) "nothing\n", 8, "r");
    EXPECT_EQ(trace_from_log(from, &trace, &err), STATUS_NOT_FOUND);
    fclose(from);
}

TEST(a_logged_request_of_several_choices_is_several_arrivals_and_what_was_cached_is_shared)
{
    const char *log = "2026-11-29T17:20:02.000Z info request done id=a prompt_tokens=64 "
                      "cached_tokens=0 completion_tokens=35 choices=3 total_ms=100.0\n"
                      "2026-11-29T17:20:03.000Z info request done id=b prompt_tokens=64 "
                      "cached_tokens=48 completion_tokens=9 choices=1 total_ms=100.0\n"
                      "2026-11-29T17:20:04.000Z info request done id=c prompt_tokens=80 "
                      "cached_tokens=32 completion_tokens=2 choices=4 total_ms=100.0\n"
                      "2026-11-29T17:20:05.000Z info request done id=d prompt_tokens=8 "
                      "cached_tokens=9 completion_tokens=2 choices=1 total_ms=100.0\n";
    static const struct trace_item want[8] = {{0, 64, 12, 2, 64, 0, 0}, {0, 64, 12, 2, 64, 0, 0},
                                              {0, 64, 12, 2, 64, 0, 0}, {1, 64, 9, 1, 48, 0, 0},
                                              {2, 80, 1, 6, 80, 0, 0},  {2, 80, 1, 6, 80, 0, 0},
                                              {2, 80, 1, 6, 80, 0, 0},  {2, 80, 1, 6, 80, 0, 0}};
    struct trace trace;
    struct error err;
    FILE *from = fmemopen((void *)(uintptr_t)log, strlen(log), "r");

    EXPECT_OK_ERR(trace_from_log(from, &trace, &err), &err);
    fclose(from);
    EXPECT_EQ(trace.count, 8); /* more cached than there was is no request */
    for (uint32_t i = 0; i < 8; i++) {
        const struct trace_item *got = &trace.items[i];

        EXPECT_NEAR(got->arrival_s, want[i].arrival_s, 1e-6);
        EXPECT_EQ(got->prompt_tokens, want[i].prompt_tokens);
        EXPECT_EQ(got->max_tokens, want[i].max_tokens);
        EXPECT_EQ(got->prefix_id, want[i].prefix_id);
        EXPECT_EQ(got->prefix_tokens, want[i].prefix_tokens);
    }
    trace_fini(&trace);
}

TEST(the_shipped_trace_has_a_mean_context_of_600)
{
    struct trace trace;
    struct error err;
    double sum = 0;

    EXPECT_OK_ERR(trace_read(INFERD_SOURCE_DIR "/bench/traces/mixed.jsonl", &trace, &err), &err);
    for (uint32_t i = 0; i < trace.count; i++)
        sum += trace.items[i].prompt_tokens + trace.items[i].max_tokens;
    EXPECT_NEAR(sum / trace.count, 600, 1);
    trace_fini(&trace);
}

TEST(a_report_counts_each_result_once)
{
    float gaps[3] = {0.010f, 0.020f, 0.030f}, gap[1] = {0.5f};
    struct load_result results[] = {
        {.ended = true,
         .ok = true,
         .ttft_s = 0.1,
         .e2e_s = 0.16,
         .gaps_s = gaps,
         .gap_count = 3,
         .prompt_tokens = 10,
         .output_tokens = 4,
         .http_status = 200},
        {.ended = true,
         .ok = true,
         .started_s = 0.1,
         .ttft_s = 0.3,
         .e2e_s = 0.8,
         .gaps_s = gap,
         .gap_count = 1,
         .prompt_tokens = 20,
         .cached_tokens = 16,
         .output_tokens = 6,
         .http_status = 200},
        {.ended = true, .http_status = 429, .error = "HTTP 429: full"},
        {.ended = true, .error = "connection refused"},
        {.ended = true}, /* never started */
    };
    struct report_slo slo;
    struct load_report r;
    struct error err;

    EXPECT_OK_ERR(report_slo_parse("ttft:200, tpot:50", &slo, &err), &err);
    EXPECT_OK(report_make(results, 5, 2, &slo, &r));
    EXPECT_EQ(r.completed, 2);
    EXPECT_EQ(r.failed, 2);
    EXPECT_EQ(r.refused, 1);
    EXPECT_EQ(r.good, 1); /* the second one's first token came after 300 ms */
    EXPECT_EQ(r.input_tokens, 30);
    EXPECT_EQ(r.cached_tokens, 16);
    EXPECT_EQ(r.output_tokens, 10);
    EXPECT_EQ(r.peak_concurrent, 2);
    EXPECT_NEAR(samples_mean(&r.ms[REPORT_TTFT]), 200, 1e-9);
    EXPECT_NEAR(samples_mean(&r.ms[REPORT_TPOT]), (20.0 + 100.0) / 2, 1e-4);
    EXPECT_EQ(r.ms[REPORT_ITL].count, 4);
    EXPECT_STR(r.first_error, "HTTP 429: full");
    report_fini(&r);
}

TEST(objectives_that_are_not_understood_are_refused)
{
    static const char *const wrong[] = {"ttft",    "ttft:",   "ttft:x",        "itl:5",
                                        "ttft:-1", "speed:3", "ttft:200tpot:3"};
    struct report_slo slo;
    struct error err;

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        EXPECT_EQ(report_slo_parse(wrong[i], &slo, &err), STATUS_INVALID);
        EXPECT_TRUE(strstr(err.message, "it must be like"));
    }
    EXPECT_OK(report_slo_parse("", &slo, &err));
}

TEST(turns_of_a_conversation_carry_all_that_was_said)
{
    struct load_prompt_options o = {.dataset = LOAD_MULTI_TURN,
                                    .count = 6,
                                    .turns = 3,
                                    .input_tokens = 4,
                                    .output_tokens = 5,
                                    .rate = INFINITY,
                                    .burstiness = 1,
                                    .model = "m \"x\"",
                                    .words = true,
                                    .chat = true,
                                    .token_high = 99};
    struct load_result results[6] = {{.text = (char *)(uintptr_t) "first \n\"answer\""},
                                     {0},
                                     {.text = (char *)(uintptr_t) "second"}};
    struct load_prompts p;
    struct error err;
    struct buf body;
    json_t *page, *messages;

    EXPECT_OK_ERR(load_prompts_make(&o, &p, &err), &err);
    EXPECT_EQ(p.jobs[0].after, -1);
    EXPECT_EQ(p.jobs[4].after, 2);
    buf_init(&body, 0);
    EXPECT_TRUE(load_prompts_body(&p, 4, results, &body));
    page = json_loads(buf_cstr(&body), 0, NULL);
    messages = json_object_get(page, "messages");
    EXPECT_STR(json_string_value(json_object_get(page, "model")), "m \"x\"");
    EXPECT_EQ(json_array_size(messages), 5);
    EXPECT_STR(json_string_value(json_object_get(json_array_get(messages, 1), "content")),
               "first \n\"answer\"");
    EXPECT_STR(json_string_value(json_object_get(json_array_get(messages, 3), "content")),
               "second");
    EXPECT_STR(json_string_value(json_object_get(json_array_get(messages, 4), "role")), "user");
    json_decref(page);
    buf_fini(&body);
    load_prompts_fini(&p);
    o.count = 7;
    EXPECT_EQ(load_prompts_make(&o, &p, &err), STATUS_INVALID);
}
