/* test_cuda_memory.c - what other processes hold, take and give back on a shared GPU is never taken for the driver's own; what the
 * device cannot run is refused.
 * Method: figures as a GPU gave them to one process alone, and the same with others beside it; no GPU is needed. */
#include <string.h>

#include "device/cuda/cuda_layout.h"
#include "device/cuda/cuda_memory.h"
#include "test.h"

static const uint64_t MIB = 1 << 20, TOTAL = 150754820096;

/* One process alone with 19 GB of its own: docs/planning.md has these figures. */
static struct cuda_memory alone(void)
{
    struct cuda_memory m = {.taken_bytes = 19000000000, .total_bytes = TOTAL};
    int64_t gone = 0;

    m.phase_bytes[CUDA_PHASE_CONTEXT] = 554500000;
    m.phase_bytes[CUDA_PHASE_REGIONS] = (int64_t)m.taken_bytes + 9100000;
    m.phase_bytes[CUDA_PHASE_LIBRARY] = 4200000;
    m.phase_bytes[CUDA_PHASE_KERNELS] = 2100000;
    m.phase_bytes[CUDA_PHASE_GRAPHS] = 2100000;
    for (int p = 0; p < CUDA_PHASE_COUNT; p++)
        gone += m.phase_bytes[p];
    m.free_bytes = TOTAL - (uint64_t)gone;
    return m;
}

/* Others take so much, or give it back, while a phase goes on. */
static struct cuda_memory shared(enum cuda_phase phase, int64_t others_bytes)
{
    struct cuda_memory m = alone();

    m.phase_bytes[phase] += others_bytes;
    m.free_bytes -= (uint64_t)others_bytes;
    return m;
}

static struct cuda_driver_memory estimate(void)
{
    struct device_options options = {.kind = DEVICE_CUDA};
    struct device_limits limits = {.rows_max = 512, .slots_max = 64};
    struct plan plan = {.layers = 32};

    return cuda_driver_memory(&options, &plan, &limits);
}

TEST(what_a_process_alone_has_lost_is_the_drivers)
{
    struct cuda_driver_memory driver = estimate();
    struct cuda_memory m = alone();

    EXPECT_EQ(cuda_memory_beside(&m), 572000000);
    EXPECT_TRUE(!cuda_memory_others(&m, driver.context + driver.graphs));
}

TEST(what_others_hold_is_not_called_the_drivers)
{
    struct cuda_driver_memory driver = estimate();
    uint64_t planned = driver.context + driver.graphs;

    for (int p = 0; p < CUDA_PHASE_COUNT; p++) {
        struct cuda_memory m = shared(p, 8091326720 - 572000000);
        const char *others = cuda_memory_others(&m, planned);
        EXPECT_EQ(cuda_memory_beside(&m), 8091326720);
        EXPECT_TRUE(others && strstr(others, "other processes use this GPU"));
    }
}

TEST(what_others_give_back_meanwhile_is_seen)
{
    struct cuda_driver_memory driver = estimate();
    uint64_t planned = driver.context + driver.graphs;

    for (int p = CUDA_PHASE_REGIONS; p < CUDA_PHASE_COUNT; p++) {
        struct cuda_memory m = shared(CUDA_PHASE_CONTEXT, 3000000000);
        EXPECT_TRUE(cuda_memory_others(&m, planned) != NULL);
        m.phase_bytes[p] -= 3000000000, m.free_bytes += 3000000000;
        const char *others = cuda_memory_others(&m, planned);
        EXPECT_TRUE(others && strstr(others, "given back"));
    }
}

/* Small pieces may find room in pages that the driver has: a piece then costs less than its size. */
TEST(pieces_inside_pages_that_are_there_are_no_sign_of_others)
{
    struct cuda_driver_memory driver = estimate();
    struct cuda_memory m = shared(CUDA_PHASE_REGIONS, -(int64_t)(9100000 + 2 * MIB));

    EXPECT_TRUE(!cuda_memory_others(&m, driver.context + driver.graphs));
}

TEST(the_driver_is_left_its_room_whoever_holds_what)
{
    struct cuda_driver_memory driver = estimate();

    EXPECT_EQ(driver.context, 576 * MIB);
    EXPECT_EQ(cuda_driver_wants(&driver, 0), driver.context + driver.graphs);
    EXPECT_EQ(cuda_driver_wants(&driver, 554500000), driver.context - 554500000 + driver.graphs);
    EXPECT_EQ(cuda_driver_wants(&driver, 8091326720), driver.later + driver.graphs);
    EXPECT_TRUE(driver.later >= 9100000 + 6300000 + 2100000);
    for (uint64_t opened = 0; opened < 4096 * MIB; opened += MIB / 2)
        EXPECT_TRUE(cuda_driver_wants(&driver, opened) >= driver.later + driver.graphs &&
                    cuda_driver_wants(&driver, opened) <= driver.context + driver.graphs);
}

/* Tiles of a chunk are cut once for all layers. */
TEST(layers_with_other_numbers_of_heads_to_a_kv_head_are_refused)
{
    struct stage stages[2] = {{.kind = STAGE_ATTN, .attn = {.heads = 32, .kv_heads = 8}},
                              {.kind = STAGE_ATTN, .attn = {.heads = 16, .kv_heads = 4}}};
    struct device_options options = {.kind = DEVICE_CUDA, .compute_dtype = DTYPE_BF16};
    struct device_limits limits = {
        .rows_max = 16, .slots_max = 4, .logits_max = 4, .steps_inflight = 2, .context_tokens = 64};
    struct plan plan = {.layers = 2, .stages = stages, .stage_count = 2, .context_tokens = 64};
    struct error err = {0};

    EXPECT_OK_ERR(cuda_plan_check(&options, &plan, &limits, &err), &err);
    stages[1].layer = 1, stages[1].attn.kv_heads = 8;
    EXPECT_EQ(cuda_plan_check(&options, &plan, &limits, &err), STATUS_UNSUPPORTED);
    EXPECT_TRUE(strstr(err.message, "layer 1 has 2 heads to a KV head, others 4") != NULL);
}
