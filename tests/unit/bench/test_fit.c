/* test_fit.c - a fit finds the terms that made the steps, and a daemon's words are read or refused by line.
 * Method: steps made from a model that is known, with and without chance, handed to fit_solve as numbers and as the lines of GET /admin/steps;
 * what comes back must tell the times of other steps as well. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/fit_solve.h"
#include "bench/log_line.h"
#include "bench/step_log.h"
#include "sched/cost_model.h"

static const struct device_model truth = {.point_count = 4,
                                          .rows = {1, 8, 64, 128},
                                          .rows_ns = {5e6, 8e6, 40e6, 80e6},
                                          .output_ns = 3e5,
                                          .kv_token_ns = 900,
                                          .pair_ns = 700,
                                          .rest_ns = 1e8,
                                          .rest_share = 0.2};

/* A step of decoding sequences, a third of the time with a chunk of a prompt. */
static struct device_work random_work(void)
{
    struct device_work w = {0};
    uint32_t decodes = 1 + test_rand_below(16), chunk = test_rand_below(3) ? 0 : 110;

    for (uint32_t i = 0; i < decodes; i++) {
        uint32_t context = 10 + test_rand_below(600);
        w.kv_tokens += context + 1;
        w.pairs += cost_pairs(context, 1);
    }
    if (chunk) chunk = 16 + test_rand_below(chunk - 15);
    w.rows = decodes + chunk;
    w.outputs = decodes + (chunk > 0 && test_rand_below(2));
    w.kv_tokens += chunk;
    w.pairs += cost_pairs(0, chunk);
    return w;
}

static void make_samples(struct fit_sample *samples, uint32_t count, double chance)
{
    for (uint32_t i = 0; i < count; i++) {
        struct device_work work = random_work();

        work.idle_ns = test_rand_below(10) ? 0 : 1e6 * (20 + test_rand_below(500));
        samples[i] = (struct fit_sample){
            .work = work,
            .ns = (double)device_model_step_ns(&truth, &work) *
                  (test_rand_below(4) ? 1 - chance / 3 : 1 + chance),
            .idle_ns = work.idle_ns,
        };
        samples[i].work.idle_ns = 0;
    }
}

/* The worst relative error over steps that the fit has not seen. */
static double worst_error(const struct device_model *m)
{
    double worst = 0;

    for (int i = 0; i < 300; i++) {
        struct device_work work = random_work();

        work.idle_ns = test_rand_below(2) * 3e8;
        double off =
            (double)device_model_step_ns(m, &work) / (double)device_model_step_ns(&truth, &work) -
            1;
        if (off < 0) off = -off;
        if (off > worst) worst = off;
    }
    return worst;
}

TEST(terms_that_made_the_steps_are_found)
{
    enum { COUNT = 3000 };
    struct fit_sample *samples = calloc(COUNT, sizeof *samples);
    struct device_model m = {0};
    struct fit_quality quality;
    struct error err = {0};

    make_samples(samples, COUNT, 0);
    EXPECT_OK_ERR(fit_solve(samples, COUNT, &m, &quality, &err), &err);
    EXPECT_TRUE(worst_error(&m) < 0.03);
    EXPECT_NEAR(m.rest_share, 0.2, 0.01);
    EXPECT_TRUE(quality.mean < 0.01);
    free(samples);
}

TEST(chance_is_told_as_a_spread_and_not_as_a_longer_step)
{
    enum { COUNT = 6000 };
    struct fit_sample *samples = calloc(COUNT, sizeof *samples);
    struct device_model m = {0};
    struct fit_quality quality;
    struct error err = {0};

    make_samples(samples, COUNT, 0.3); /* 0.9 three times of four, else 1.3: one in the mean */
    EXPECT_OK_ERR(fit_solve(samples, COUNT, &m, &quality, &err), &err);
    EXPECT_TRUE(worst_error(&m) < 0.12);
    for (int k = 0; k < MODEL_SPREADS; k++) {
        double sum = 0;

        EXPECT_EQ(m.spreads[k].count, SPREAD_PARTS);
        for (uint32_t i = 0; i < SPREAD_PARTS; i++)
            sum += m.spreads[k].ratios[i];
        EXPECT_NEAR(sum, SPREAD_PARTS, 1e-6);
        EXPECT_NEAR(m.spreads[k].ratios[SPREAD_PARTS / 4], 0.9, 0.05);
        EXPECT_NEAR(m.spreads[k].ratios[SPREAD_PARTS - 3], 1.3, 0.08);
    }
    free(samples);
}

TEST(steps_that_tell_nothing_are_refused)
{
    struct fit_sample few[9];
    struct device_model m = {0};
    struct fit_quality quality;
    struct error err = {0};

    for (int i = 0; i < 9; i++)
        few[i] = (struct fit_sample){.work = {.rows = 1}, .ns = 100, .idle_ns = i < 2 ? 1e9 : 0};
    EXPECT_EQ(fit_solve(few, 9, &m, &quality, &err), STATUS_INVALID);
    EXPECT_TRUE(strstr(err.message, "7 steps") != NULL);
}

/* --- a daemon's words --- */

static char written[] = "/tmp/inferd-test-XXXXXX";

static const char *write_text(const char *text)
{
    int fd;

    strcpy(written + sizeof written - 7, "XXXXXX");
    fd = mkstemp(written);
    EXPECT_TRUE(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    return written;
}

#define STEP(step, planned, started, ended)                                            \
    "{\"step\":" #step ",\"planned_ns\":" #planned ",\"started_ns\":" #started         \
    ",\"ended_ns\":" #ended ",\"rows\":5,\"sequences\":2,\"prompts\":1,\"outputs\":1," \
    "\"kv_tokens\":9,\"pairs\":12}\n"

TEST(a_step_lasts_from_its_predecessors_end_or_from_its_own_start)
{
    struct step_log log;
    struct error err = {0};
    const char *path = write_text(STEP(1, 10, 20, 120) STEP(2, 30, 125, 230) /* was queued */
                                  STEP(3, 1000, 1040, 1100)                  /* after a rest */
                                  STEP(7, 1200, 1210, 1300) /* who was before it is not told */
                                  STEP(8, 1250, 1300, 1400));

    EXPECT_OK_ERR(step_log_read(path, &log, &err), &err);
    unlink(path);
    EXPECT_EQ(log.count, 3);
    EXPECT_NEAR(log.samples[0].ns, 110, 0);
    EXPECT_NEAR(log.samples[0].idle_ns, 0, 0);
    EXPECT_NEAR(log.samples[1].ns, 60, 0);
    EXPECT_NEAR(log.samples[1].idle_ns, 810, 0);
    EXPECT_NEAR(log.samples[2].ns, 100, 0);
    EXPECT_NEAR(log.wake_ns, 40, 0);
    EXPECT_EQ(log.samples[0].work.rows, 5);
    EXPECT_EQ(log.samples[0].work.pairs, 12);
    step_log_fini(&log);
}

TEST(other_lines_than_steps_are_refused_by_number)
{
    static const char *const bad[] = {
        "{}\n", "nonsense\n", "[1]\n",
        "{\"step\":2,\"planned_ns\":1,\"started_ns\":1,\"ended_ns\":2,"
        "\"rows\":0,\"outputs\":0,\"kv_tokens\":0,\"pairs\":0}\n"};
    struct step_log log;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct error err = {0};
        char text[1024];
        const char *path;

        snprintf(text, sizeof text, "%s%s", STEP(1, 10, 20, 120), bad[i]);
        path = write_text(text);
        EXPECT_EQ(step_log_read(path, &log, &err), STATUS_CORRUPT);
        EXPECT_TRUE(strstr(err.message, ":2 is not a line of GET /admin/steps") != NULL);
        unlink(path);
    }
}

TEST(what_the_front_end_adds_is_read_from_either_log)
{
    struct error err = {0};
    double request_ns, reply_ns;
    const char *path = write_text(
        "2026-11-29T22:44:19.951Z info listening url=http://x\n"
        "2026-11-29T22:44:19.951Z info request done id=a prompt_tokens=3 accept_ms=0.08 "
        "parse_ms=0.05 "
        "template_ms=0.00 tokenize_ms=0.03 submit_ms=0.04 queue_ms=9 deliver_ms=0.50 total_ms=40\n"
        "{\"time\":\"2026-11-29T22:44:20.000Z\",\"level\":\"info\",\"event\":\"request done\","
        "\"accept_ms\":0.1,\"parse_ms\":0.1,\"tokenize_ms\":0.1,\"submit_ms\":0.1,\"deliver_ms\":0."
        "7}\n");

    EXPECT_OK_ERR(front_from_log(path, &request_ns, &reply_ns, &err), &err);
    EXPECT_NEAR(request_ns, 300000, 1);
    EXPECT_NEAR(reply_ns, 600000, 1);
    unlink(path);
    path = write_text("nothing of the kind\n");
    EXPECT_EQ(front_from_log(path, &request_ns, &reply_ns, &err), STATUS_NOT_FOUND);
    unlink(path);
}
