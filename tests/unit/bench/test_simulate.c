/* test_simulate.c - the simulation does the arithmetic of queues that can be worked out by hand, loses no request, and is the same twice.
 * Method: devices of constant step time, where each figure follows from counting steps; random traces on small pools, where every arrival
 * must be completed, refused or too large; speed by CPU time (release builds). */
#include "test.h"

#include <stdlib.h>
#include <unistd.h>

#include "bench/simulate.h"

static struct sim_options constant(double step_ms)
{
    return (struct sim_options){
        .device = {.name = "constant",
                   .kv_tokens = 160000,
                   .block_tokens = 16,
                   .max_model_len = 8192,
                   .point_count = 1,
                   .rows = {1},
                   .rows_ns = {step_ms * 1e6}},
        .max_num_seqs = 8,
        .max_num_batched_tokens = 64,
        .queue_seqs_max = 1000,
        .queue_tokens_max = 1000000,
        .replicas = 1,
        .speed = 1,
    };
}

static void add(struct trace *t, double at, uint32_t prompt, uint32_t max)
{
    struct trace_item item = {.arrival_s = at, .prompt_tokens = prompt, .max_tokens = max};

    EXPECT_OK(trace_add(t, &item));
}

static struct sim_result run(const struct sim_options *o, const struct trace *t)
{
    struct sim_result r;
    struct error err;

    EXPECT_OK_ERR(simulate(o, t, &r, &err), &err);
    return r;
}

TEST(a_lone_request_takes_a_step_per_chunk_and_per_token)
{
    struct sim_options o = constant(10);
    struct trace t = {0};

    add(&t, 0, 128, 5); /* two chunks of 64 rows; the second one samples */
    struct sim_result r = run(&o, &t);
    EXPECT_EQ(r.completed, 1);
    EXPECT_EQ(r.output_tokens, 5);
    EXPECT_NEAR(samples_mean(&r.ms[REPORT_TTFT]), 20, 1e-6);
    EXPECT_NEAR(samples_mean(&r.ms[REPORT_TPOT]), 10, 1e-6);
    EXPECT_NEAR(samples_mean(&r.ms[REPORT_E2EL]), 60, 1e-6);
    EXPECT_NEAR(log_histogram_percentile(r.itl_ms, 50), 10, 0.1);
    EXPECT_EQ(r.steps, 6);
    sim_result_fini(&r);
    o.device.request_ns = 3e6;
    o.device.reply_ns = 1e6;
    r = run(&o, &t);
    EXPECT_NEAR(samples_mean(&r.ms[REPORT_TTFT]), 24, 1e-6);
    EXPECT_NEAR(samples_mean(&r.ms[REPORT_TPOT]), 10, 1e-6);
    sim_result_fini(&r);
    trace_fini(&t);
}

TEST(sixteen_requests_on_eight_slots_are_two_batches)
{
    struct sim_options o = constant(10);
    struct trace t = {0};

    for (int i = 0; i < 16; i++)
        add(&t, 0, 8, 11);
    struct sim_result r = run(&o, &t);
    /* 8 prompts of 8 rows fill the first step, which samples; ten more steps; the others the same when the slots are free. */
    EXPECT_EQ(r.completed, 16);
    EXPECT_NEAR(samples_percentile(&r.ms[REPORT_E2EL], 0), 110, 1e-3);
    EXPECT_NEAR(samples_percentile(&r.ms[REPORT_E2EL], 100), 220, 1e-3);
    sim_result_fini(&r);
    o.replicas = 2;
    r = run(&o, &t);
    EXPECT_NEAR(samples_percentile(&r.ms[REPORT_E2EL], 100), 110,
                1e-6); /* two engines: each has its eight */
    sim_result_fini(&r);
    trace_fini(&t);
}

TEST(a_full_queue_refuses_and_what_never_fits_is_told_apart)
{
    struct sim_options o = constant(10);
    struct trace t = {0};

    o.max_num_seqs = 1;
    o.queue_seqs_max = 3;
    for (int i = 0; i < 10; i++)
        add(&t, 0.001 * i, 8, 50);
    add(&t, 0.002, 9000, 50);
    struct sim_result r = run(&o, &t);
    EXPECT_EQ(r.completed, 4); /* one runs, three wait */
    EXPECT_EQ(r.refused, 6);
    EXPECT_EQ(r.too_large, 1);
    sim_result_fini(&r);
    trace_fini(&t);
}

TEST(who_would_be_late_is_refused_and_the_others_are_in_time)
{
    struct sim_options o = constant(10);
    struct trace t = {0};

    o.max_num_seqs = 4;
    for (int i = 0; i < 2000; i++) /* twice what it can do: 4 slots, 11 steps each */
        add(&t, i / 72.0, 32, 11);
    o.max_ttft_ms = 400;
    struct sim_result r = run(&o, &t);
    EXPECT_EQ(r.completed + r.refused + r.refused_late, t.count);
    EXPECT_TRUE(r.refused_late > 600 && r.refused == 0);
    EXPECT_TRUE(samples_percentile(&r.ms[REPORT_TTFT], 99) < 400 * 1.2);
    sim_result_fini(&r);
    o.max_ttft_ms = 0;
    r = run(&o, &t);
    EXPECT_EQ(r.refused_late, 0);
    EXPECT_TRUE(samples_percentile(&r.ms[REPORT_TTFT], 99) > 5000);
    sim_result_fini(&r);
    trace_fini(&t);
}

/* As a GPU's daemon, which is timed before READY: a crowd that is there at once is refused as well as one that comes later. */
TEST(a_device_that_was_timed_refuses_from_the_first_moment)
{
    struct trace t = {0};
    double worst[2];

    for (int i = 0; i < 600; i++)
        add(&t, i * 0.001, 64, 1);
    for (int timed = 0; timed < 2; timed++) {
        struct sim_options o = constant(10);

        o.max_ttft_ms = 400;
        o.calibrates = timed;
        struct sim_result r = run(&o, &t);
        worst[timed] = samples_percentile(&r.ms[REPORT_TTFT], 100);
        sim_result_fini(&r);
    }
    EXPECT_TRUE(worst[0] > 700); /* it learns while they come */
    EXPECT_TRUE(worst[1] < 600);
    trace_fini(&t);
}

/* Arrivals at 0.8, 1.5, 3 and 10 times what it can do, the limit being the very objective. */
TEST(goodput_stays_however_many_come)
{
    static const double loads[4] = {0.8, 1.5, 3, 10};
    double best = 0, goodput = 0;

    for (int l = 0; l < 4; l++) {
        struct sim_options o = constant(10);
        struct random_state random = {7};
        struct trace t = {0};
        double at = 0;

        o.max_num_batched_tokens = 512;
        o.max_ttft_ms = o.slo.ms[REPORT_TTFT] = 400;
        for (uint32_t i = 0; i < 3000 * loads[l]; i++) { /* 8 slots, 45 steps each in the mean */
            at += random_gamma(&random, 1) / (loads[l] * 8 / 0.45);
            add(&t, at, random_between(&random, 16, 400), random_between(&random, 4, 86));
        }
        struct sim_result r = run(&o, &t);
        goodput = r.good / r.seconds;
        if (goodput > best) best = goodput;
        EXPECT_TRUE(r.good >= 0.9 * r.completed);
        sim_result_fini(&r);
        trace_fini(&t);
    }
    EXPECT_TRUE(goodput >= 0.9 * best);
}

TEST(a_client_that_floods_is_told_apart_from_the_others)
{
    struct sim_options o = constant(10);
    struct trace t = {0};

    for (int i = 0; i < 3000; i++) {
        struct trace_item item = {
            .arrival_s = i * 0.005, .prompt_tokens = 16, .max_tokens = 10, .key = i % 60 ? 1 : 2};
        EXPECT_OK(trace_add(&t, &item));
    }
    struct sim_result r = run(&o, &t);
    EXPECT_EQ(r.key_ttft_ms[2].count, 50); /* none of the quiet one's is refused */
    EXPECT_TRUE(samples_percentile(&r.key_ttft_ms[2], 99) * 10 <
                samples_percentile(&r.key_ttft_ms[1], 99));
    EXPECT_EQ(r.key_ttft_ms[1].count + r.key_ttft_ms[2].count, r.completed);
    sim_result_fini(&r);
    trace_fini(&t);
}

TEST(shared_beginnings_are_computed_once)
{
    struct sim_options o = constant(10);
    struct trace t = {0};

    for (int i = 0; i < 10; i++) {
        struct trace_item item = {.arrival_s = i,
                                  .prompt_tokens = 300,
                                  .max_tokens = 2,
                                  .prefix_id = 1,
                                  .prefix_tokens = 256};
        EXPECT_OK(trace_add(&t, &item));
    }
    struct sim_result r = run(&o, &t);
    EXPECT_EQ(r.cached_tokens, 9 * 256);
    sim_result_fini(&r);
    o.no_prefix_sharing = true;
    r = run(&o, &t);
    EXPECT_EQ(r.cached_tokens, 0);
    sim_result_fini(&r);
    trace_fini(&t);
}

static struct trace random_trace(uint32_t count, double rate)
{
    struct trace t = {0};
    struct random_state random = {test_rand()};

    for (uint32_t i = 0; i < count; i++) {
        struct trace_item item = {.prompt_tokens = random_between(&random, 1, 400),
                                  .max_tokens = random_between(&random, 1, 60),
                                  .priority = (int32_t)random_between(&random, 0, 2)};
        if (random_between(&random, 0, 1)) {
            item.prefix_id = random_between(&random, 1, 3);
            item.prefix_tokens = item.prompt_tokens / 2;
        }
        EXPECT_OK(trace_add(&t, &item));
    }
    trace_spread(t.items, count, rate, 0.5, &random);
    return t;
}

TEST(no_request_is_lost_on_a_small_pool_and_two_runs_are_equal)
{
    for (int i = 0; i < (test_long() ? 200 : 12); i++) {
        struct trace t = random_trace(300, 1 + test_rand_below(200));
        struct sim_options o = constant(5);
        o.device.kv_tokens = 480 + 16 * test_rand_below(200);
        o.device.host_ns = 1e5;
        o.max_num_seqs = 1 + test_rand_below(32);
        o.max_num_batched_tokens = 16 + test_rand_below(500);
        o.queue_seqs_max = 1 + test_rand_below(300);
        o.max_batch_wait_ms = test_rand_below(2) * 5;
        o.max_itl_ms = test_rand_below(2) * 20;
        o.replicas = 1 + test_rand_below(3);
        struct sim_result a = run(&o, &t), b = run(&o, &t);
        EXPECT_EQ(a.completed + a.refused + a.too_large, t.count);
        EXPECT_EQ(a.too_large, 0); /* the pool holds the longest */
        EXPECT_TRUE(a.busy > 0 && a.busy <= 1.0001 && a.waste >= 0 && a.waste < 1);
        EXPECT_EQ(a.steps, b.steps);
        EXPECT_EQ(a.sequence_steps, b.sequence_steps);
        EXPECT_EQ(a.preemptions, b.preemptions);
        EXPECT_TRUE(a.seconds == b.seconds);
        EXPECT_TRUE(samples_sum(&a.ms[REPORT_E2EL]) == samples_sum(&b.ms[REPORT_E2EL]));
        EXPECT_EQ(a.output_tokens - a.completed, a.itl_ms->count);
        sim_result_fini(&a);
        sim_result_fini(&b);
        trace_fini(&t);
    }
}

TEST(the_shipped_trace_wastes_little_and_is_simulated_fast)
{
    struct sim_options o = constant(0.004e3);
    struct trace t;
    struct error err;

    EXPECT_OK_ERR(trace_read(INFERD_SOURCE_DIR "/bench/traces/mixed.jsonl", &t, &err), &err);
    o.max_num_seqs = 128;
    o.max_num_batched_tokens = 512;
    o.speed = 4;
    struct sim_result r = run(&o, &t);
    EXPECT_EQ(r.completed, t.count);
    EXPECT_TRUE(r.waste <= 0.032);
    print_message("waste %.4f, %.2f M sequence-steps a second\n", r.waste,
                  (double)r.sequence_steps * 1e3 / (double)r.cpu_ns);
#ifndef INFERD_SANITIZED
    EXPECT_TRUE((double)r.sequence_steps * 1e9 / (double)r.cpu_ns >
                1e6); /* the figure itself is a benchmark's */
#endif
    sim_result_fini(&r);
    trace_fini(&t);
}

TEST(a_step_time_is_read_between_the_points)
{
    struct device_model m = {.point_count = 3,
                             .rows = {1, 10, 20},
                             .rows_ns = {100, 100, 300},
                             .output_ns = 5,
                             .kv_token_ns = 2,
                             .pair_ns = 1};

    EXPECT_EQ(device_model_step_ns(&m, &(struct device_work){.rows = 1}), 100);
    EXPECT_EQ(device_model_step_ns(&m, &(struct device_work){.rows = 15}), 200);
    EXPECT_EQ(device_model_step_ns(&m, &(struct device_work){.rows = 30}),
              500); /* goes on as the last piece */
    EXPECT_EQ(device_model_step_ns(
                  &m, &(struct device_work){.rows = 10, .outputs = 4, .kv_tokens = 7, .pairs = 3}),
              137);
}

TEST(a_step_after_a_rest_is_longer_and_chance_has_the_mean_one)
{
    struct device_model m = {
        .point_count = 1, .rows = {1}, .rows_ns = {1000}, .rest_ns = 100, .rest_share = 0.5};
    double sum = 0;

    EXPECT_EQ(device_model_step_ns(&m, &(struct device_work){.rows = 1}), 1000);
    EXPECT_EQ(device_model_step_ns(&m, &(struct device_work){.rows = 1, .idle_ns = 50}), 1250);
    EXPECT_EQ(device_model_step_ns(&m, &(struct device_work){.rows = 1, .idle_ns = 1e9}), 1500);
    EXPECT_NEAR(device_model_luck(&m, SPREAD_PROMPTS, 7), 1, 0);
    m.spreads[SPREAD_PROMPTS] = (struct model_spread){{0.5, 0.75, 1.75}, 3};
    for (uint64_t n = 0; n < 3000; n++)
        sum += device_model_luck(&m, SPREAD_PROMPTS, n);
    EXPECT_NEAR(sum / 3000, 1, 0.03);
    EXPECT_NEAR(device_model_luck(&m, SPREAD_PROMPTS, 9), device_model_luck(&m, SPREAD_PROMPTS, 9),
                0);
    EXPECT_NEAR(device_model_luck(&m, SPREAD_DECODES, 9), 1, 0);
}

TEST(wrong_devices_are_refused_by_key)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "not a JSON object"},
        {"{}", "name must be a string"},
        {"{\"name\": \"x\", \"rows_ns\": [[1, 1]]}", "kv_tokens must be a whole number, 16 to"},
        {"{\"name\": \"x\", \"kv_tokens\": 16}", "rows_ns must be 1 to 32 pairs"},
        {"{\"name\": \"x\", \"kv_tokens\": 16, \"rows_ns\": [[2, 1], [2, 1]]}", "rising rows"},
        {"{\"name\": \"x\", \"kv_tokens\": 16, \"rows_ns\": [[1, -1]]}", "rows_ns must be pairs"},
        {"{\"name\": \"x\", \"kv_tokens\": 16, \"rows_ns\": [[1, 1]], \"pair_ns\": \"a\"}",
         "pair_ns must be nanoseconds"},
        {"{\"name\": \"x\", \"kv_tokens\": 16, \"rows_ns\": [[1, 1]], \"rest_share\": -1}",
         "rest_share must be a number"},
        {"{\"name\": \"x\", \"kv_tokens\": 16, \"rows_ns\": [[1, 1]], \"rest_share\": 0.1}",
         "rest_ns must be more than 0"},
        {"{\"name\": \"x\", \"kv_tokens\": 16, \"rows_ns\": [[1, 1]], \"spread\": [0.5, 1]}",
         "spread must be 1 to 64 numbers whose mean is 1"},
        {"{\"name\": \"x\", \"kv_tokens\": 16, \"rows_ns\": [[1, 1]], \"prompt_spread\": []}",
         "prompt_spread must be 1 to 64"},
        {"{\"name\": \"x\", \"kv_tokens\": 16, \"rows_ns\": [[1, 1]], \"kind\": \"tpu\"}",
         "kind must be cpu or cuda"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[] = "/tmp/inferd-test-XXXXXX";
        int fd = mkstemp(name);
        struct device_model model;
        struct error err = {0};

        EXPECT_TRUE(fd >= 0 && write(fd, cases[i].text, strlen(cases[i].text)) ==
                                   (ssize_t)strlen(cases[i].text));
        close(fd);
        EXPECT_EQ(device_model_read(name, &model, &err), STATUS_CORRUPT);
        if (!strstr(err.message, cases[i].says))
            fail_msg("\"%s\" does not say \"%s\"", err.message, cases[i].says);
        unlink(name);
    }
}
