/* test_cpu_device.c - the device's contract on a real (tiny) model: steps in flight, order, results, notify, memory, blocks.
 * Method: the calls of device.h through tests/model_harness, on made-up weights (no files needed but a config). */
#include "test.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "device/cpu/cpu_device.h"
#include "model_harness.h"

static struct harness_options tiny(enum cpu_numerics numerics)
{
    return (struct harness_options){
        .device = {.kind = DEVICE_CPU, .threads = 2, .numerics = numerics},
        .model = {.dummy = true, .dummy_seed = 5},
        .slots = 4,
        .rows_max = 64,
        .logits_max = 64,
        .context_tokens = 512,
        .top_logprobs_max = 5,
    };
}

static const char *tiny_path(void)
{
    const char *path = test_golden("models/llama_awkward");

    if (!path) fail_msg("models/llama_awkward is not there");
    return path;
}

static void fill(int32_t *tokens, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = (int32_t)test_rand_below(280);
}

TEST(steps_in_flight_are_bounded_ordered_and_released_in_turn)
{
    struct harness_options o = tiny(CPU_EXACT);
    struct harness h;
    int32_t token = 5, ref = TOKEN_OF(0, 0);
    const struct step_result *result;

    o.steps_inflight = 3;
    harness_open(&h, tiny_path(), &o);
    struct step *first = harness_step(&h);
    harness_open_slot(&h, first, 0, NULL, 100);
    harness_segment(first, 0, &token, 1, 0, 0, 1);
    EXPECT_OK(device_submit_body(h.device, first));
    EXPECT_EQ(device_wait(h.device, 1, 0, &result), STATUS_TIMEOUT);        /* no second half yet */
    EXPECT_EQ(device_wait(h.device, 1, 20000000, &result), STATUS_TIMEOUT); /* nor after 20 ms */
    for (uint32_t i = 1; i < 3; i++) {
        struct step *s = harness_step(&h);
        harness_segment(s, 0, &ref, 1, i, 0, 1);
        EXPECT_OK(device_submit_body(h.device, s));
    }
    EXPECT_EQ(device_submit_body(h.device, first), STATUS_FULL);
    EXPECT_OK(device_submit_sample(h.device, first, NULL));
    harness_wait(&h, 1);
    EXPECT_EQ(device_wait(h.device, 2, 0, &result), STATUS_TIMEOUT);
    EXPECT_OK(device_submit_sample(h.device, h.steps[2], NULL));
    EXPECT_OK(device_submit_sample(h.device, h.steps[0], NULL));
    EXPECT_EQ(harness_wait(&h, 3)->seq_no, 3);
    EXPECT_EQ(harness_wait(&h, 2)->seq_no, 2);
    for (uint64_t i = 1; i <= 3; i++)
        device_release(h.device, i);
    EXPECT_EQ(device_health(h.device).steps_done, 3);
    EXPECT_TRUE(device_health(h.device).ok && device_health(h.device).last_step_ns > 0);
    harness_close(&h);
}

/* TOKEN_OF gives the token that the step before drew: the same text as when the host passes it on. */
TEST(a_reference_to_a_token_is_that_token)
{
    struct harness_options o = tiny(CPU_EXACT);
    struct harness h;
    int32_t prompt[20], ahead[60], told[60];

    o.steps_inflight = 4;
    fill(prompt, 20);
    harness_open(&h, tiny_path(), &o);
    harness_greedy(&h, prompt, 20, 60, ahead);
    for (uint32_t i = 0; i < 60; i++) {
        struct step *s = harness_step(&h);
        if (i == 0) harness_open_slot(&h, s, 1, NULL, 100);
        if (i == 0)
            harness_segment(s, 1, prompt, 20, 0, 19, 1);
        else
            harness_segment(s, 1, &told[i - 1], 1, 19 + i, 0, 1);
        harness_submit(&h, s);
        told[i] = harness_wait(&h, s->seq_no)->outputs[0].token;
        device_release(h.device, s->seq_no);
    }
    EXPECT_TRUE(memcmp(ahead, told, sizeof told) == 0);
    harness_close(&h);
}

static void count_up(void *ctx)
{
    atomic_fetch_add((_Atomic int *)ctx, 1);
}

TEST(notify_comes_once_a_step_and_closing_ends_what_is_in_flight)
{
    struct harness_options o = tiny(CPU_FAST);
    struct harness h;
    _Atomic int notified = 0;
    int32_t tokens[30];

    fill(tokens, 30);
    harness_open(&h, tiny_path(), &o);
    device_set_notify(h.device, count_up, (void *)&notified);
    for (uint32_t i = 0; i < 20; i++) {
        struct step *s = harness_step(&h);
        harness_open_slot(&h, s, i % 4, NULL, 100);
        harness_segment(s, i % 4, tokens, 30, 0, 29, 1);
        harness_submit(&h, s);
        harness_wait(&h, s->seq_no);
        device_release(h.device, s->seq_no);
    }
    struct step *body_only = harness_step(&h);
    harness_segment(body_only, 0, tokens, 1, 30, 0, 1);
    EXPECT_OK(device_submit_body(h.device, body_only)); /* its sampling never comes */
    harness_close(&h);
    EXPECT_EQ(atomic_load(&notified), 20);
}

/* Behind the last attention only rows that want logits are run. Whichever these are, their logits are those of a step in which all rows
 * want them; and what was left out is not missed later. */
static void check_wanted_rows(const char *model, enum cpu_numerics numerics)
{
    enum { SEQS = 4, TOKENS = 90 };
    struct harness_options o = tiny(numerics);
    struct harness h;
    int32_t tokens[SEQS][TOKENS];
    struct harness_seq seqs[SEQS];

    harness_open(&h, test_golden(model), &o);
    for (uint32_t s = 0; s < SEQS; s++) {
        fill(tokens[s], TOKENS);
        seqs[s] = (struct harness_seq){tokens[s], TOKENS, 0,
                                       malloc(TOKENS * h.plan->vocab_rows * sizeof(float))};
        harness_run(&h, &seqs[s], 1, (struct harness_cut){0});
    }
    struct harness_difference d = harness_compare_some(&h, seqs, SEQS, 15);
    EXPECT_TRUE(d.rows > 20 && d.worst == 0);
    harness_close(&h);
    for (uint32_t s = 0; s < SEQS; s++)
        free(seqs[s].logits);
}

TEST(rows_that_want_logits_have_them_whichever_they_are)
{
    for (int i = 0; i < (test_long() ? 50 : 5); i++) {
        check_wanted_rows("models/llama_awkward", CPU_EXACT);
        check_wanted_rows("models/llama_awkward", CPU_FAST);
        check_wanted_rows("models/gemma3_text", CPU_EXACT); /* norms behind products, windows */
    }
}

/* A step with rows but no logits (the middle of a prompt), one with no rows at all, one that scores. */
TEST(steps_without_rows_or_logits_and_scoring_steps_work)
{
    struct harness_options o = tiny(CPU_EXACT);
    struct harness h;
    int32_t tokens[40];

    fill(tokens, 40);
    harness_open(&h, tiny_path(), &o);
    struct step *s = harness_step(&h);
    harness_open_slot(&h, s, 3, NULL, 100);
    harness_submit(&h, s);
    EXPECT_EQ(harness_wait(&h, s->seq_no)->output_count, 0);
    device_release(h.device, s->seq_no);
    s = harness_step(&h);
    harness_segment(s, 3, tokens, 20, 0, 0, 0);
    harness_submit(&h, s);
    EXPECT_EQ(harness_wait(&h, s->seq_no)->output_count, 0);
    device_release(h.device, s->seq_no);
    s = harness_step(&h);
    harness_segment(s, 3, tokens + 20, 20, 20, 0, 20);
    for (uint32_t i = 0; i < 19; i++)
        step_targets(s)[i] = tokens[21 + i];
    s->flags = STEP_KEEP_LOGITS;
    harness_submit(&h, s);
    const struct step_result *r = harness_wait(&h, s->seq_no);
    for (uint32_t i = 0; i < 19; i++) {
        const float *row = r->logits + (size_t)i * h.plan->vocab_rows;
        double total = 0;
        for (uint32_t v = 0; v < h.plan->vocab_rows; v++)
            total += exp((double)row[v]);
        EXPECT_EQ(r->outputs[i].token, tokens[21 + i]);
        EXPECT_NEAR(r->outputs[i].logprob, (double)row[tokens[21 + i]] - log(total), 1e-5);
    }
    device_release(h.device, s->seq_no);
    harness_close(&h);
}

/* Blocks moved out, wiped, and moved back under other ids; and copied on the device: the same logits. */
TEST(kv_blocks_can_be_moved_and_copied)
{
    struct harness_options o = tiny(CPU_FAST);
    struct harness h;
    int32_t tokens[33];
    float want[320], got[320];

    fill(tokens, 33);
    harness_open(&h, tiny_path(), &o);
    uint32_t vocab = h.plan->vocab_rows;
    EXPECT_EQ(vocab, 320);
    uint64_t bytes = device_kv_block_bytes(h.device, 0);
    char *block = malloc(bytes);
    struct step *s = harness_step(&h);
    harness_open_slot(&h, s, 0, NULL, 48);
    harness_segment(s, 0, tokens, 32, 0, 0, 0);
    harness_submit(&h, s);
    harness_wait(&h, s->seq_no);
    device_release(h.device, s->seq_no);
    for (uint32_t round = 0; round < 2; round++) {
        s = harness_step(&h);
        s->flags = STEP_KEEP_LOGITS;
        if (round ==
            1) { /* slot 1 sees slot 0's blocks: one through the host, one copied by the step */
            harness_open_slot(&h, s, 1, NULL, 48);
            EXPECT_OK(device_kv_copy_out(h.device, 0, h.blocks[0][0], block));
            EXPECT_OK(device_kv_copy_in(h.device, 0, h.blocks[0][h.per_slot[0]], block));
            step_copies(s)[s->copy_count++] =
                (struct step_copy){0, h.blocks[0][1], h.blocks[0][h.per_slot[0] + 1]};
        }
        harness_segment(s, round, tokens + 32, 1, 32, 0, 1);
        harness_submit(&h, s);
        memcpy(round ? got : want, harness_wait(&h, s->seq_no)->logits, vocab * sizeof(float));
        device_release(h.device, s->seq_no);
    }
    EXPECT_TRUE(memcmp(want, got, vocab * sizeof(float)) == 0);
    free(block);
    harness_close(&h);
}

/* The memory plan is what compile took, region by region. */
TEST(the_memory_plan_is_what_is_allocated)
{
    static const char *const names[] = {"models/llama_awkward", "models/mistral_window",
                                        "models/qwen2_gqa7-bf16"};

    for (uint32_t i = 0; i < 6; i++) {
        struct harness_options o = tiny(i % 2 ? CPU_FAST : CPU_EXACT);
        struct harness h;
        struct device_memory memory;
        struct error err;
        const char *path = test_golden(names[i / 2]);
        uint64_t taken = 0;
        if (!path) continue;
        o.model.dummy = i == 0;
        harness_open(&h, path, &o);
        const struct cpu_device *d = (const struct cpu_device *)h.device;
        EXPECT_OK_ERR(device_memory_plan(&o.device, h.plan, &h.limits, &memory, &err), &err);
        for (uint32_t r = 0; r < CPU_REGION_COUNT; r++)
            taken += d->regions[r].bytes;
        EXPECT_EQ(memory.device_bytes, taken);
        EXPECT_EQ(memory.host_bytes, 0);
        EXPECT_EQ(memory.kv_block_bytes[0], device_kv_block_bytes(h.device, 0));
        harness_close(&h);
    }
}

TEST(plans_and_limits_that_cannot_be_are_refused)
{
    struct harness_options o = tiny(CPU_EXACT);
    struct harness h;
    struct error err;
    struct device *device;

    harness_open(&h, tiny_path(), &o);
    struct device_limits limits = h.limits;
    struct device_memory memory;
    limits.context_tokens = h.plan->context_tokens + 1;
    EXPECT_EQ(device_memory_plan(&o.device, h.plan, &limits, &memory, &err), STATUS_INVALID);
    limits = h.limits, limits.kv_blocks[0] = 0;
    EXPECT_EQ(device_memory_plan(&o.device, h.plan, &limits, &memory, &err), STATUS_INVALID);
    limits = h.limits, limits.steps_inflight = 9;
    EXPECT_EQ(device_memory_plan(&o.device, h.plan, &limits, &memory, &err), STATUS_INVALID);
    limits = h.limits, limits.kv_blocks[0] = 1u << 30; /* petabytes */
    EXPECT_OK_ERR(device_open(&o.device, &device, &err), &err);
    EXPECT_EQ(device_compile(device, h.plan, &limits, &err), STATUS_NOMEM);
    EXPECT_TRUE(strstr(err.message, "KV pool") != NULL);
    device_close(device);
    struct plan odd = *h.plan;
    odd.groups[0].block_tokens = 10;
    EXPECT_EQ(device_memory_plan(&o.device, &odd, &h.limits, &memory, &err), STATUS_UNSUPPORTED);
    o.device.isa = "sse9";
    EXPECT_EQ(device_open(&o.device, &device, &err), STATUS_UNSUPPORTED);
    device_close(NULL);
    harness_close(&h);
}

/* --- null --- */

TEST(the_null_device_repeats_itself_and_keeps_away_from_what_is_banned)
{
    struct harness_options o = tiny(CPU_EXACT);
    struct harness h;
    int32_t prompt[3] = {1, 2, 3}, first[80], again[80];

    o.device = (struct device_options){.kind = DEVICE_NULL};
    harness_open(&h, tiny_path(), &o);
    harness_greedy(&h, prompt, 3, 80, first);
    harness_greedy(&h, prompt, 3, 80, again);
    EXPECT_TRUE(memcmp(first, again, sizeof first) == 0);
    uint32_t different = 0;
    for (uint32_t i = 0; i < 80; i++) {
        EXPECT_TRUE(first[i] >= 0 && (uint32_t)first[i] < h.plan->vocab_tokens);
        different += i && first[i] != first[i - 1];
    }
    EXPECT_TRUE(different > 40);
    struct step_open open = harness_greedy_open(0); /* the same seed, its first token banned */
    struct step *s = harness_step(&h);
    step_ids(s)[0] = first[0], s->id_count = 1;
    open.banned_count = 1, open.ban_until = 100;
    harness_open_slot(&h, s, 0, &open, 100);
    harness_segment(s, 0, prompt, 3, 0, 2, 1);
    harness_submit(&h, s);
    EXPECT_TRUE(harness_wait(&h, s->seq_no)->outputs[0].token != first[0]);
    device_release(h.device, s->seq_no);
    EXPECT_EQ(device_kv_copy_out(h.device, 0, 0, NULL), STATUS_UNSUPPORTED);
    harness_close(&h);
}

TEST(the_null_device_keeps_its_pace)
{
    struct harness_options o = tiny(CPU_EXACT);
    struct harness h;
    int32_t prompt[3] = {1, 2, 3}, out[50];
    struct timespec a, b;

    o.device = (struct device_options){.kind = DEVICE_NULL, .null_step_us = 2000};
    harness_open(&h, tiny_path(), &o);
    clock_gettime(CLOCK_MONOTONIC, &a);
    harness_greedy(&h, prompt, 3, 50, out);
    clock_gettime(CLOCK_MONOTONIC, &b);
    double ms = (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6;
    EXPECT_TRUE(ms >= 99); /* never faster; how much slower is the machine's affair */
    harness_close(&h);
}

TEST(a_build_without_cuda_says_so)
{
    struct device_options options = {.kind = (enum device_kind)77};
    struct device *device;
    struct error err;

    EXPECT_EQ(device_open(&options, &device, &err), STATUS_UNSUPPORTED);
#ifndef INFERD_HAVE_CUDA
    options.kind = DEVICE_CUDA;
    EXPECT_EQ(device_open(&options, &device, &err), STATUS_UNSUPPORTED);
    EXPECT_TRUE(strstr(err.message, "CUDA") != NULL);
#endif
}
