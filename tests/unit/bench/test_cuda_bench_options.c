/* test_cuda_bench_options.c - a run of the GPU's benchmarks is held to its model's context before there is a device, to the token.
 * Method: options as the command line gives them, and contexts one token too short and just long enough, worked out here from the
 * order of the steps; what a sentence says would be right is tried in turn. The sentences of the command line: tests/e2e/test_bench_gpu.py. */
#include "test.h"

#include <stdlib.h>

#include "bench/cuda_bench_options.h"

/* The last position that a run asks for, plus one. */
static uint64_t longest(const struct cuda_bench_options *o)
{
    uint64_t most = 0;

    if (o->what == CUDA_BENCH_PREFILL) return o->prompt;
    if (o->what == CUDA_BENCH_GRAPHS) { /* both begin at the context */
        for (uint32_t i = 0; i < CUDA_BENCH_WARM_UP; i++)
            most = o->context + i + 1u;
        return o->context + o->steps > most ? o->context + o->steps : most;
    }
    for (uint32_t set = 0; set < CUDA_BENCH_SETS; set++)
        most = o->context + (uint64_t)set * o->steps + o->steps;
    return most;
}

/* The number behind `word` in a sentence. */
static uint32_t told(const struct error *err, const char *word)
{
    const char *at = strstr(err->message, word);

    if (!at) fail_msg("'%s' does not say '%s'", err->message, word);
    return (uint32_t)strtoul(at + strlen(word), NULL, 10);
}

TEST(a_run_fits_a_context_of_its_own_tokens_and_none_that_is_shorter)
{
    static const enum cuda_bench whats[] = {CUDA_BENCH_DECODE, CUDA_BENCH_BREAKDOWN,
                                            CUDA_BENCH_GRAPHS, CUDA_BENCH_PREFILL};

    for (int i = 0; i < 2000; i++) {
        struct cuda_bench_options o = {.what = whats[i % 4],
                                       .context = 1 + test_rand_below(10000),
                                       .prompt = 1 + test_rand_below(10000),
                                       .steps = 1 + test_rand_below(i % 3 ? 12 : 4000)};
        uint32_t need = (uint32_t)longest(&o);
        struct error err = {0};

        EXPECT_EQ(cuda_bench_tokens(&o), need);
        EXPECT_OK_ERR(cuda_bench_fits(&o, need, &err), &err);
        if (need > 1) EXPECT_EQ(cuda_bench_fits(&o, need - 1, &err), STATUS_LIMIT);
    }
}

TEST(what_a_refusal_says_is_the_most_that_is_right)
{
    for (int i = 0; i < 2000; i++) {
        struct cuda_bench_options o = {.what = i % 2 ? CUDA_BENCH_DECODE : CUDA_BENCH_GRAPHS,
                                       .context = 1 + test_rand_below(2000),
                                       .steps = 1 + test_rand_below(i % 4 < 2 ? 2000 : 100)};
        uint32_t context_tokens = 64 + test_rand_below(1000), most;
        struct error err = {0};

        if (!cuda_bench_fits(&o, context_tokens, &err)) continue;
        if (strstr(err.message, "--steps at most ")) {
            most = told(&err, "--steps at most ");
            EXPECT_TRUE(most >= 1 && most < o.steps);
            o.steps = most;
            if (o.context >= context_tokens) continue; /* the context is what one is told of next */
        } else {
            most = told(&err, "--context at most ");
            EXPECT_TRUE(most >= 1 && most < o.context);
            o.context = most;
            EXPECT_OK_ERR(cuda_bench_fits(&o, context_tokens, &err), &err);
            o.context++;
            EXPECT_EQ(cuda_bench_fits(&o, context_tokens, &err), STATUS_LIMIT);
        }
    }
}

TEST(an_absurd_number_of_tokens_is_refused_and_does_not_wrap)
{
    struct cuda_bench_options o = {
        .what = CUDA_BENCH_DECODE, .context = UINT32_MAX, .steps = UINT32_MAX};
    struct error err = {0};

    EXPECT_EQ(cuda_bench_tokens(&o), UINT32_MAX + 5ull * UINT32_MAX);
    EXPECT_EQ(cuda_bench_fits(&o, UINT32_MAX, &err), STATUS_LIMIT);
}

TEST(a_limit_past_the_models_context_is_refused)
{
    struct cuda_bench_options o = {
        .what = CUDA_BENCH_DECODE, .context = 1024, .steps = 16, .limit = 8192};
    struct error err = {0};

    EXPECT_OK_ERR(cuda_bench_fits(&o, 8192, &err), &err);
    EXPECT_EQ(cuda_bench_fits(&o, 8191, &err), STATUS_LIMIT);
    EXPECT_STR(err.message, "--limit 8192 is more than this model's 8191 tokens");
}

/* words ends with NULL, as argv does. */
static int ask(struct cuda_bench_options *o, const char *const words[])
{
    int count = 0;

    while (words[count])
        count++;
    return cuda_bench_options(count, (char **)words, o);
}

TEST(the_command_line_gives_these_options_and_no_other)
{
    struct cuda_bench_options o;
    EXPECT_EQ(ask(&o, (const char *[]){"kernels", "--only", "decode 1x", "--f16=1", NULL}), -1);
    EXPECT_EQ(o.what, CUDA_BENCH_KERNELS);
    EXPECT_STR(o.only, "decode 1x");
    EXPECT_TRUE(o.f16 && o.chain && !o.cold && !o.eager);
    EXPECT_EQ(ask(&o, (const char *[]){"limits", NULL}), -1);
    EXPECT_EQ(o.what, CUDA_BENCH_LIMITS);
    EXPECT_EQ(ask(&o, (const char *[]){"decode", "--bogus", "--help", NULL}), 0);
    EXPECT_EQ(ask(&o, (const char *[]){"decode", "--bogus", "1", NULL}), 2);
    EXPECT_EQ(ask(&o, (const char *[]){NULL}), 2);
}

TEST(batches_are_read_in_their_order)
{
    struct cuda_bench_options o;
    const char *model = INFERD_SOURCE_DIR "/configs/models/SmolLM2-135M";
    static const uint32_t expected[] = {64, 1, 1024, 8};

    EXPECT_EQ(
        ask(&o, (const char *[]){"graphs", "--model", model, "--batches", "64,1,1024,8", NULL}),
        -1);
    EXPECT_EQ(o.batch_count, 4);
    for (int i = 0; i < 4; i++)
        EXPECT_EQ(o.batch_list[i], expected[i]);
}
