/* test_cuda_bench_kernels.c - `bench kernels --only NAME` knows before it measures whether there is such a kernel here.
 * Method: contexts as an H200 and a device without clusters fill them, made up, for naming asks no GPU; names that there are, parts of
 * them, and one that there is not, whose sentence must lead to ones that there are. */
#include "test.h"

#include "bench/cuda_bench_parts.h"

static const struct kernel_context h200 = {.sm_count = 132,
                                           .capability = 90,
                                           .pdl = true,
                                           .clusters = {0, 132, 66, 40, 32, 24, 20, 16, 16}};
static const struct kernel_context ampere = {.sm_count = 108, .capability = 80};

static enum status named(const struct kernel_context *like, const char *only, struct error *err)
{
    struct kernel_context ctx = *like;

    return bench_kernels_named(&ctx, only, err);
}

TEST(kernels_that_there_are_are_found_by_any_part_of_their_names)
{
    static const char *const parts[] = {NULL,
                                        "",
                                        "decode ",
                                        "skinny",
                                        "medium 8B gate_up 28672x4096 M 64",
                                        "cut 8B",
                                        "library",
                                        "prefill 2048+",
                                        "sample",
                                        "top-p",
                                        "decode 48x8192 heads 32/8 d 128 mixed",
                                        "135M head",
                                        "rows 256",
                                        "cut"};
    struct error err = {0};

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        EXPECT_OK_ERR(named(&h200, parts[i], &err), &err);
}

TEST(a_kernel_that_there_is_not_is_refused_with_names_that_there_are)
{
    static const char *const kinds[] = {"'skinny ", "'medium ",  "'library ",
                                        "'decode ", "'prefill ", "'sample "};
    struct error err = {0};
    char name[96];

    EXPECT_EQ(named(&h200, "nosuch", &err), STATUS_NOT_FOUND);
    EXPECT_TRUE(strstr(err.message, "'nosuch'"));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct error again = {0};
        const char *at = strstr(err.message, kinds[i]);
        if (!at) fail_msg("no %s...' in: %s", kinds[i], err.message);
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at + 1, "'"), at + 1);
        EXPECT_OK_ERR(named(&h200, name, &again), &again);
    }
}

TEST(a_kernel_that_this_device_cannot_run_is_not_there)
{
    struct error err = {0};

    EXPECT_EQ(named(&ampere, "skinny", &err), STATUS_NOT_FOUND);
    EXPECT_TRUE(!strstr(err.message, "'skinny "));
    EXPECT_TRUE(strstr(err.message, "'decode "));
    EXPECT_EQ(named(&ampere, "cut 8B", &err), STATUS_NOT_FOUND);
    EXPECT_OK_ERR(named(&ampere, "decode ", &err), &err);
}
