/* test_device_fault.c - each fault on purpose is seen as a real one would be.
 * Method: the null device with a fault at its third step; results, health and counters of the steps around it. */
#include "device/device_fault.h"

#include <stdlib.h>

#include "device/device.h"
#include "test.h"

static const struct plan plan = {
    .vocab_rows = 100,
    .vocab_tokens = 90,
    .context_tokens = 64,
    .group_count = 1,
    .groups = {{.block_tokens = 16}},
};
static const struct device_limits limits = {
    .slots_max = 1,
    .rows_max = 4,
    .logits_max = 1,
    .steps_inflight = 1,
    .context_tokens = 64,
    .kv_blocks = {4},
};

struct rig {
    struct device *device;
    struct step *step;
};

static void open_rig(struct rig *rig, const char *fault)
{
    struct device_options options = {.kind = DEVICE_NULL};
    struct error err;
    size_t bytes = (step_bytes(&plan, &limits) + 63) / 64 * 64;

    EXPECT_OK_ERR(device_fault_parse(fault, &options.fault, &err), &err);
    EXPECT_OK_ERR(device_open(&options, &rig->device, &err), &err);
    EXPECT_OK_ERR(device_compile(rig->device, &plan, &limits, &err), &err);
    rig->step = step_init(aligned_alloc(64, bytes), &plan, &limits);
}

static void close_rig(struct rig *rig)
{
    device_close(rig->device);
    free(rig->step);
}

/* One row; waits for timeout_ns. */
static enum status run_step(struct rig *rig, uint64_t seq_no, int64_t timeout_ns)
{
    const struct step_result *result;
    struct step *s = rig->step;
    enum status st;

    step_clear(s, seq_no);
    if (seq_no == 1) {
        step_opens(s)[s->open_count++] = (struct step_open){.top_p = 1, .repetition_penalty = 1};
        for (uint32_t i = 0; i < 4; i++)
            step_tables(s)[s->table_count++] = (struct step_table_change){0, 0, i, i};
    }
    step_segments(s)[s->segment_count++] =
        (struct step_segment){.rows = 1, .context_len = (uint32_t)seq_no - 1, .logits_count = 1};
    step_tokens(s)[0] = 7, step_targets(s)[0] = TARGET_SAMPLE;
    s->row_count = s->output_count = 1;
    EXPECT_OK(device_submit_body(rig->device, s));
    EXPECT_OK(device_submit_sample(rig->device, s, NULL));
    st = device_wait(rig->device, seq_no, timeout_ns, &result);
    if (st) return st;
    st = result->status;
    if (st) EXPECT_TRUE(strstr(result->error.message, "--inject-fault") != NULL);
    device_release(rig->device, seq_no);
    return st;
}

TEST(a_failed_step_is_the_only_one)
{
    struct rig rig;

    open_rig(&rig, "step@3");
    for (uint64_t n = 1; n <= 6; n++)
        EXPECT_EQ(run_step(&rig, n, -1), n == 3 ? STATUS_DEVICE : STATUS_OK);
    EXPECT_TRUE(device_health(rig.device).ok);
    EXPECT_EQ(device_health(rig.device).steps_done, 6);
    close_rig(&rig);
}

TEST(a_lost_device_stays_lost)
{
    struct rig rig;

    open_rig(&rig, "lost@3");
    for (uint64_t n = 1; n <= 6; n++) {
        EXPECT_EQ(run_step(&rig, n, -1), n >= 3 ? STATUS_DEVICE_LOST : STATUS_OK);
        EXPECT_EQ(device_health(rig.device).ok, n < 3);
    }
    EXPECT_TRUE(strlen(device_health(rig.device).reason) > 0);
    close_rig(&rig);
}

TEST(a_hanging_step_gives_no_result_and_the_device_still_closes)
{
    struct rig rig;

    open_rig(&rig, "hang@3");
    EXPECT_EQ(run_step(&rig, 1, -1), STATUS_OK);
    EXPECT_EQ(run_step(&rig, 2, -1), STATUS_OK);
    EXPECT_EQ(run_step(&rig, 3, 50000000), STATUS_TIMEOUT);
    EXPECT_EQ(device_health(rig.device).steps_done, 2);
    close_rig(&rig);
}

TEST(memory_that_a_device_takes_late_is_counted)
{
    struct rig rig;

#ifdef INFERD_SANITIZED
    skip(); /* the sanitizer's malloc is not counted */
#endif
    open_rig(&rig, "alloc@3");
    for (uint64_t n = 1; n <= 6; n++) {
        EXPECT_EQ(run_step(&rig, n, -1), STATUS_OK);
        EXPECT_EQ(device_health(rig.device).late_allocations, n >= 3 ? 1 : 0);
    }
    close_rig(&rig);
}

TEST(a_wrong_fault_is_refused_with_what_would_be_right)
{
    static const char *const wrong[] = {"step", "step@",   "step@0",  "step@x", "step@5x",
                                        "@5",   "crash@5", "lost@-1", "hang 5"};
    struct device_fault fault;
    struct error err;

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        EXPECT_EQ(device_fault_parse(wrong[i], &fault, &err), STATUS_INVALID);
        EXPECT_TRUE(strstr(err.message, "step@N, lost@N, hang@N or alloc@N") != NULL);
        EXPECT_EQ(fault.kind, FAULT_NONE);
    }
    EXPECT_OK(device_fault_parse(NULL, &fault, &err));
    EXPECT_OK(device_fault_parse("", &fault, &err));
    EXPECT_EQ(device_fault_at(&fault, 0), FAULT_NONE);
    EXPECT_OK(device_fault_parse("hang@18446744073709551615", &fault, &err));
    EXPECT_EQ(device_fault_at(&fault, UINT64_MAX), FAULT_HANG);
    EXPECT_EQ(device_fault_at(&fault, 5), FAULT_NONE);
}
