/* test_smollm2.c - SmolLM2-135M-Instruct Q4_1 gives the reference's greedy texts, in exact numerics.
 * Method: 20 prompts x 64 tokens (golden/smollm2, dequantised float32 by transformers). Teacher-forced: the likeliest token
 * is the reference's wherever its margin exceeds 0.01, and the five likeliest log probabilities are within 1e-3. Then one
 * prompt free-running, with steps in flight, as an engine does it. Skipped by name where the file is not installed. */
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "model_harness.h"
#include "smollm2.h"

enum { TOGETHER = 4, TOKENS_MAX = 4096 };

struct prompt {
    const json_t *item;
    int32_t tokens[TOKENS_MAX];
    uint32_t prompt, steps;
    float *logits; /* [steps + 1][vocab] from the prompt's last token on */
};

/* The worst difference of a log probability among the reference's five likeliest, at any step. */
static double check_prompt(const struct prompt *p, uint32_t vocab, uint32_t *compared)
{
    double worst = 0;

    for (uint32_t i = 0; i < p->steps; i++) {
        const float *row = p->logits + (size_t)i * vocab;
        double margin = json_number_value(json_array_get(json_object_get(p->item, "margin"), i));
        const json_t *ids = json_array_get(json_object_get(p->item, "top_ids"), i);
        const json_t *logprobs = json_array_get(json_object_get(p->item, "top_logprobs"), i);
        double total = log_total(row, vocab);
        if (margin > 0.01) {
            EXPECT_EQ(argmax(row, vocab), p->tokens[p->prompt + i]);
            ++*compared;
        }
        for (size_t k = 0; k < json_array_size(ids); k++) {
            double got = (double)row[json_integer_value(json_array_get(ids, k))] - total;
            double off = fabs(got - json_number_value(json_array_get(logprobs, k)));
            if (off > worst) worst = off;
        }
    }
    return worst;
}

static void run_prompts(struct harness *h, struct prompt *prompts, uint32_t count)
{
    struct harness_seq seqs[TOGETHER];

    for (uint32_t i = 0; i < count; i++) {
        struct prompt *p = &prompts[i];
        p->prompt = smollm2_ids(json_object_get(p->item, "prompt_ids"), p->tokens, TOKENS_MAX / 2);
        p->steps = smollm2_ids(json_object_get(p->item, "greedy_ids"), p->tokens + p->prompt,
                               TOKENS_MAX / 2);
        p->logits = malloc((size_t)(p->steps + 1) * h->plan->vocab_rows * sizeof(float));
        seqs[i] = (struct harness_seq){p->tokens, p->prompt + p->steps, p->prompt - 1, p->logits};
    }
    harness_run(h, seqs, count, (struct harness_cut){0});
}

TEST(teacher_forced_texts_are_the_references)
{
    struct harness_options options = {.device = {.kind = DEVICE_CPU, .threads = 2},
                                      .slots = TOGETHER,
                                      .logits_max = 65 * TOGETHER};
    static struct prompt prompts[TOGETHER];
    const char *path = smollm2_path();
    struct harness h;
    double worst = 0;
    uint32_t compared = 0, count = 0, total;

    if (!path) return;
    json_t *list = smollm2_json("smollm2/greedy.json.xz");
    harness_open(&h, path, &options);
    total = (uint32_t)json_array_size(list);
    EXPECT_TRUE(total >= 20);
    for (uint32_t i = 0; i < total; i++) {
        if (test_long() || i % 5 == 0) prompts[count++].item = json_array_get(list, i);
        if (count < TOGETHER && i + 1 < total) continue;
        run_prompts(&h, prompts, count);
        while (count > 0) {
            worst = fmax(worst, check_prompt(&prompts[--count], h.plan->vocab_rows, &compared));
            free(prompts[count].logits);
        }
    }
    print_message("  %u steps compared, worst log probability off by %.1e\n", compared, worst);
    EXPECT_TRUE(worst <= 1e-3 && compared > 200);
    harness_close(&h);
    json_decref(list);
}

TEST(a_free_running_text_is_the_references_until_a_close_call)
{
    struct harness_options options = {.device = {.kind = DEVICE_CPU, .threads = 2},
                                      .logits_max = 80};
    const char *path = smollm2_path();
    struct harness h;
    int32_t prompt[TOKENS_MAX], want[TOKENS_MAX], got[256];

    if (!path) return;
    json_t *root = smollm2_json("smollm2/greedy.json.xz");
    const json_t *item = json_array_get(root, 0);
    uint32_t n = smollm2_ids(json_object_get(item, "prompt_ids"), prompt, TOKENS_MAX / 2);
    uint32_t steps = smollm2_ids(json_object_get(item, "greedy_ids"), want, TOKENS_MAX / 2);
    if (!test_long()) steps = 24;
    harness_open(&h, path, &options);
    harness_greedy(&h, prompt, n, steps, got);
    for (uint32_t i = 0; i < steps; i++) {
        if (json_number_value(json_array_get(json_object_get(item, "margin"), i)) < 0.01) break;
        EXPECT_EQ(got[i], want[i]);
    }
    harness_close(&h);
    json_decref(root);
}
