/* test_cuda_memory.c - what other processes hold, take and give back on a shared GPU is never taken for the driver's own; what the
 * device cannot run is refused; how decode attention is cut does not depend on how long sequences may be.
 * Method: figures as a GPU gave them to one process alone, and the same with others beside it; kernels/paged_decode.cuh's cut of a row written
 * down again, with the parts that a step of short sequences has and with those that all may have. No GPU is needed. */
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

/* --- parts of decode attention --- */

struct cut {
    uint32_t parts, groups; /* groups of 32 tokens of each */
};

/* part_at() of kernels/paged_decode.cuh for a row that sees `groups` groups; aim: of many rows, 32 or more. */
static struct cut cut_of(uint32_t groups, uint32_t splits_max, bool few, uint32_t aim)
{
    if (few) aim = 4;
    uint32_t round = few ? aim - 1 : aim / 2, splits = (groups + round) / aim;

    splits = splits > splits_max ? splits_max : splits < 1 ? 1 : splits;
    uint32_t each = ((groups + splits - 1) / splits + 3) / 4 * 4;
    return (struct cut){(groups + each - 1) / each, each};
}

static uint32_t groups_of(uint32_t position, uint32_t window)
{
    uint32_t first = window && position + 1 > window ? position + 1 - window : 0;

    return position / 32 - first / 32 + 1;
}

/* Of a row whose sequence has `tokens` tokens among others of at most `longest`: as where all of `limit` are thought of. */
static void same_cut(const struct device_options *options, uint32_t rows, uint32_t kv_heads,
                     uint32_t window, uint32_t tokens, uint32_t longest, uint32_t limit)
{
    bool few = rows <= CUDA_SKINNY_ROWS || options->batch_invariant;
    uint32_t all = cuda_decode_splits(options, limit, 0, rows, kv_heads),
             some = cuda_decode_splits(options, longest, window, rows, kv_heads),
             groups = groups_of(tokens - 1, window);

    EXPECT_TRUE(some >= 1 && some <= all);
    for (uint32_t aim = 32; aim <= 64; aim += few ? 64 : 8) {
        struct cut a = cut_of(groups, all, few, aim), b = cut_of(groups, some, few, aim);
        if (a.parts != b.parts || a.groups != b.groups)
            fail_msg("%u rows, %u KV heads, window %u, %u tokens of %u of %u: %u parts of %u, not "
                     "%u of %u",
                     rows, kv_heads, window, tokens, longest, limit, b.parts, b.groups, a.parts,
                     a.groups);
    }
}

TEST(how_a_row_is_cut_does_not_depend_on_how_long_the_others_are)
{
    static const uint32_t rows[] = {1, 2, 16, 17, 24, 64, 100, 512}, heads[] = {1, 3, 8, 40};
    static const uint32_t windows[] = {0, 1, 31, 32, 33, 34, 128, 512, 1024, 4096};

    for (int invariant = 0; invariant < 2; invariant++)
        for (int i = 0; i < 40000; i++) {
            struct device_options options = {.batch_invariant = invariant};
            uint32_t limit = 1 + test_rand_below(i % 2 ? 3000 : 140000),
                     longest = 1 + test_rand_below(limit), tokens = 1 + test_rand_below(longest);
            same_cut(&options, rows[i % 8], heads[i / 8 % 4], windows[test_rand_below(10)],
                     i % 3 ? tokens : longest, longest, limit);
        }
}

TEST(short_steps_have_a_graph_where_sequences_may_be_long)
{
    struct stage stages[2] = {{.kind = STAGE_ATTN, .attn = {.heads = 32, .kv_heads = 8}},
                              {.kind = STAGE_ATTN, .attn = {.heads = 32, .kv_heads = 8}}};
    struct device_options options = {.kind = DEVICE_CUDA}, invariant = {.batch_invariant = true};
    struct device_limits limits = {.rows_max = 512, .slots_max = 64, .context_tokens = 8192};
    struct plan plan = {.layers = 2, .stages = stages, .stage_count = 2, .group_count = 1};

    EXPECT_EQ(cuda_decode_splits(&options, CUDA_SHORT_TOKENS, 0, 64, 8), 1);
    EXPECT_EQ(cuda_decode_splits(&options, CUDA_SHORT_TOKENS + 1, 0, 64, 8), 2);
    EXPECT_TRUE(cuda_short_helps(&options, &plan, &limits, 64));
    EXPECT_TRUE(!cuda_short_helps(&options, &plan, &limits, CUDA_SKINNY_ROWS));
    EXPECT_TRUE(!cuda_short_helps(&options, &plan, &limits, 256)); /* nobody is cut */
    EXPECT_TRUE(!cuda_short_helps(&invariant, &plan, &limits, 64));
    uint64_t with = cuda_driver_memory(&options, &plan, &limits).graphs;
    plan.groups[0].window = 1024;
    EXPECT_TRUE(!cuda_short_helps(&options, &plan, &limits, 64));
    plan.groups[0].window = 0, limits.context_tokens = CUDA_SHORT_TOKENS;
    EXPECT_TRUE(!cuda_short_helps(&options, &plan, &limits, 64));
    EXPECT_TRUE(cuda_driver_memory(&options, &plan, &limits).graphs < with);
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
