/* test_window.c - the window is zero where holding back gains nothing, and no longer than fills the batch; the cost model finds the
 * step times that it is shown.
 * Method: arrivals at given rates on a made-up clock; step times from a known formula with noise. */
#include "test.h"

#include "sched/cost_model.h"
#include "sched/forecast.h"
#include "sched/window.h"

enum { MS = 1000000 };

static int64_t arrive(struct window *w, double rate, double seconds, int64_t now_ns)
{
    for (int64_t end_ns = now_ns + (int64_t)(seconds * 1e9); now_ns < end_ns;
         now_ns += (int64_t)(1e9 / rate))
        window_arrival(w, now_ns);
    return now_ns;
}

TEST(the_rate_is_found_and_forgotten)
{
    struct window w;

    window_init(&w, 2 * MS, 0);
    int64_t now_ns = arrive(&w, 1000, 6, 5 * MS);
    EXPECT_NEAR(window_rate(&w, now_ns), 1000, 30);
    EXPECT_TRUE(window_rate(&w, now_ns + 10000 * (int64_t)MS) < 1);
}

TEST(the_window_follows_the_rate)
{
    struct window w;

    window_init(&w, 2 * MS, 0);
    int64_t now_ns = arrive(&w, 100, 6, 0);
    EXPECT_EQ(window_length_ns(&w, 64, now_ns), 0); /* 0.2 more in 2 ms: not worth it */
    now_ns = arrive(&w, 2000, 6, now_ns);
    EXPECT_EQ(window_length_ns(&w, 64, now_ns), 2 * MS); /* four more */
    now_ns = arrive(&w, 100000, 6, now_ns);
    EXPECT_NEAR((double)window_length_ns(&w, 64, now_ns), 0.64 * MS, 0.05 * MS); /* a batch */
}

TEST(it_is_a_fiftieth_of_what_first_tokens_take_at_most)
{
    struct window w;

    window_init(&w, 2 * MS, 0);
    int64_t now_ns = arrive(&w, 2000, 6, 0);
    for (int i = 0; i < 200; i++)
        window_first_token(&w, 40 * MS);
    EXPECT_NEAR((double)window_length_ns(&w, 64, now_ns), 0.8 * MS, 0.01 * MS);
    for (int i = 0; i < 300; i++)
        window_first_token(&w, 500 * MS);
    EXPECT_EQ(window_length_ns(&w, 64, now_ns), 2 * MS);
}

TEST(a_fixed_one_holds_everybody_back)
{
    struct window w;

    window_init(&w, 2 * MS, 0);
    w.fixed = true;
    EXPECT_TRUE(!window_opens(&w, true, 1, 8, 5 * MS, 6 * MS, 0));
    EXPECT_TRUE(window_opens(&w, true, 1, 8, 5 * MS, 7 * MS, 0));
    EXPECT_TRUE(window_opens(&w, true, 8, 8, 5 * MS, 5 * MS, 0));
}

TEST(it_opens_when_idle_full_or_old)
{
    struct window w;

    window_init(&w, 2 * MS, 0);
    int64_t now_ns = arrive(&w, 2000, 6, 0);
    EXPECT_TRUE(!window_opens(&w, true, 0, 8, now_ns, now_ns, 0)); /* nobody waits */
    EXPECT_TRUE(!window_opens(&w, true, 3, 0, now_ns, now_ns, 0)); /* no room */
    EXPECT_TRUE(window_opens(&w, true, 1, 8, now_ns, now_ns, 0));
    EXPECT_TRUE(!window_opens(&w, false, 1, 8, now_ns, now_ns, 0));
    EXPECT_TRUE(window_opens(&w, false, 8, 8, now_ns, now_ns, 0));
    EXPECT_TRUE(!window_opens(&w, false, 1, 8, now_ns - MS, now_ns, 0));
    EXPECT_TRUE(window_opens(&w, false, 1, 8, now_ns - 2 * MS, now_ns, 0));
    EXPECT_TRUE(
        window_opens(&w, false, 1, 8, now_ns - MS, now_ns, MS)); /* the next chance is too late */
    w.fired[WINDOW_AGE]--;
    EXPECT_EQ(w.fired[WINDOW_IDLE], 1);
    EXPECT_EQ(w.fired[WINDOW_SIZE], 1);
    EXPECT_EQ(w.fired[WINDOW_AGE], 1);
    w.target = 1000; /* tokens a second, and none are computed */
    EXPECT_TRUE(window_opens(&w, false, 1, 8, now_ns, now_ns, 0));
    window_computed(&w, 900, now_ns);
    EXPECT_TRUE(!window_opens(&w, false, 1, 8, now_ns, now_ns, 0));
    EXPECT_EQ(w.fired[WINDOW_THROUGHPUT], 1);
}

static int64_t true_ns(uint32_t rows, uint64_t pairs, double speed)
{
    return (int64_t)((3e6 + 2.5e5 * rows + 40.0 * (double)pairs) * speed *
                     (1 + 0.05 * (test_rand_unit() - 0.5)));
}

static void observe(struct cost_model *m, int steps, double speed)
{
    for (int i = 0; i < steps; i++) {
        uint32_t rows = 1 + test_rand_below(test_rand_below(3) ? 16 : 512);
        uint64_t pairs = cost_pairs(test_rand_below(3000), rows);

        cost_model_observe(m, rows, pairs, true_ns(rows, pairs, speed));
    }
}

TEST(the_cost_model_predicts_what_it_has_seen_and_follows_a_change)
{
    struct cost_model m;

    cost_model_init(&m);
    EXPECT_TRUE(!cost_model_ready(&m));
    for (int speed = 1; speed <= 2; speed++) {
        observe(&m, 2000, speed);
        EXPECT_TRUE(cost_model_ready(&m));
        for (int i = 0; i < 100; i++) {
            uint32_t rows = 16 + test_rand_below(400);
            uint64_t pairs = cost_pairs(test_rand_below(2000), rows);
            double want = (double)true_ns(rows, pairs, speed);

            EXPECT_NEAR((double)cost_model_predict(&m, rows, pairs), want, 0.05 * want + 1e6);
        }
    }
    /* the most rows that stay within a time: one more would not */
    uint32_t rows = cost_model_rows(&m, 10, 1000, 500, 512, 60000000);
    EXPECT_TRUE(rows > 0 && rows < 512);
    EXPECT_TRUE(cost_model_predict(&m, 10 + rows, 1000 + cost_pairs(500, rows)) <= 60000000);
    EXPECT_TRUE(cost_model_predict(&m, 11 + rows, 1000 + cost_pairs(500, rows + 1)) > 60000000);
    EXPECT_EQ(cost_model_rows(&m, 10, 1000, 500, 512, 1000), 0);
}

TEST(the_cost_model_knows_after_ten_steps_and_forgives_the_first_two)
{
    struct cost_model m;

    cost_model_init(&m);
    cost_model_observe(&m, 7, cost_pairs(0, 7), true_ns(7, 28, 40)); /* cold: forty times as long */
    cost_model_observe(&m, 1, 8, true_ns(1, 8, 10));
    for (int i = 0; i < 8; i++) {
        uint32_t rows = i % 4 ? 1 : 100 + 40 * (uint32_t)i;

        EXPECT_TRUE(!cost_model_ready(&m));
        cost_model_observe(&m, rows, cost_pairs(200, rows),
                           true_ns(rows, cost_pairs(200, rows), 1));
    }
    EXPECT_TRUE(cost_model_ready(&m));
    for (uint32_t rows = 1; rows <= 512; rows += 73) {
        double want = (double)true_ns(rows, cost_pairs(200, rows), 1);

        EXPECT_NEAR((double)cost_model_predict(&m, rows, cost_pairs(200, rows)), want, 0.2 * want);
    }
}

TEST(steps_all_alike_do_not_blow_the_model_up)
{
    struct cost_model m;

    cost_model_init(&m);
    for (int i = 0; i < 1000000; i++)
        cost_model_observe(&m, 1, 100, 5000000);
    EXPECT_NEAR((double)cost_model_predict(&m, 1, 100), 5e6, 5e4);
    EXPECT_TRUE(cost_model_predict(&m, 512, 200000) < INT64_C(100000000000));
}

/* Rounding makes a covariance asymmetric, forgetting blows that up: unless it is kept symmetric the model is nonsense after some 60,000
 * steps and NaN after 300,000, and the server refuses everybody. Phases of equal steps are what a loaded server has. */
TEST(the_cost_model_stays_right_for_ever)
{
    struct cost_model m;

    cost_model_init(&m);
    for (int i = 0; i < 400000; i++) {
        bool phase = i % 100000 < 50000;
        uint32_t rows = phase ? 60 + test_rand_below(3) : 1 + test_rand_below(512);
        uint64_t pairs = phase ? 36000 + test_rand_below(500) : test_rand_below(600000);
        double ns = 4e6 + rows * 20000.0 + (double)pairs * 1.3;

        if (i > 100) EXPECT_NEAR((double)cost_model_predict(&m, rows, pairs) / ns, 1, 0.05);
        cost_model_observe(&m, rows, pairs, (int64_t)ns);
    }
}

/* Steps of 4 ms and 10 us a row; nothing decodes. */
static const struct forecast plain = {
    .ready = true, .step_ns = 4 * MS, .row_ns = 10000, .rows_max = 512, .kv_tokens = 10000};

TEST(what_is_cached_is_not_predicted_to_take_time_unless_it_may_be_put_out)
{
    struct forecast_queue queue = {.sharers = 1};
    struct forecast_prompt all = {2000, 0}, part = {2000, 1984};
    struct forecast f = plain;

    f.free_slots = 1;
    EXPECT_EQ(forecast_work(&f, &queue, &all), 2000);
    EXPECT_EQ(forecast_work(&f, &queue, &part), 16);
    int64_t computed_ns = forecast_queued(&f, &queue, CLASS_FAST, &all);
    int64_t cached_ns = forecast_queued(&f, &queue, CLASS_FAST, &part);
    EXPECT_NEAR((double)computed_ns, 5 * 4e6 + 2000 * 1e4, 2e5);
    EXPECT_NEAR((double)cached_ns, 2 * 4e6 + 16 * 1e4, 2e5);
    queue.prompt_tokens = 3000; /* with its own, half of the places */
    EXPECT_EQ(forecast_work(&f, &queue, &part), 16);
    queue.prompt_tokens = 3001;
    EXPECT_EQ(forecast_work(&f, &queue, &part), 2000);
}

/* Two slots are wanted. At ten starts a second that is 200 ms; two of those that run end after three more steps, or in nobody's sight. */
TEST(slots_are_predicted_by_the_pace_or_sooner_by_what_ends)
{
    struct forecast_queue queue = {.seqs = {1}, .sharers = 1, .own_seqs = 1, .starts_per_s = 10};
    struct forecast_prompt prompt = {16, 0};
    struct forecast f = plain;

    f.ends[0] = 1;
    EXPECT_NEAR((double)forecast_queued(&f, &queue, CLASS_FAST, &prompt), 208e6, 1e6);
    f.ends[2] = 1;
    EXPECT_NEAR((double)forecast_queued(&f, &queue, CLASS_FAST, &prompt), 5 * 4e6, 1e6);
    f.ends[2] = 0;
    f.ends[FORECAST_STEPS - 1] = 1;
    queue.starts_per_s = 1000; /* the pace says sooner */
    EXPECT_NEAR((double)forecast_queued(&f, &queue, CLASS_FAST, &prompt), 10e6, 1e6);
}

/* Predictions that are half of what comes, or twice of it, give or take a third, under more arrivals than the limit lets in. */
TEST(the_margin_of_predictions_is_learnt_and_few_are_late)
{
    for (int way = 0; way < 2; way++) {
        struct forecast_margin m;
        uint32_t late = 0, admitted = 0;

        forecast_margin_init(&m);
        for (int i = 0; i < 40000; i++) {
            int64_t predicted_ns = 1 + test_rand_below(1000 * MS), limit_ns = 400 * MS;
            double noise = 0.67 + test_rand_below(660) * 0.001;
            int64_t took_ns = (int64_t)((double)predicted_ns * (way ? 0.5 : 2) * noise);

            if (!forecast_in_time(&m, CLASS_NORMAL, predicted_ns, limit_ns)) continue;
            forecast_margin_learn(&m, CLASS_NORMAL, predicted_ns, limit_ns, took_ns);
            if (i < 10000) continue;
            admitted++;
            late += took_ns > limit_ns;
        }
        EXPECT_TRUE(late <= admitted / 20);
        EXPECT_TRUE(admitted > (way ? 10000 : 2500)); /* and not by refusing nearly all */
        EXPECT_TRUE(m.factor[CLASS_FAST] == 1);
    }
}
