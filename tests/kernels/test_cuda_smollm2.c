/* test_cuda_smollm2.c - SmolLM2-135M-Instruct (Q4_1, rounded to f16 or bf16 at load) on the CUDA device against the float32
 * reference's greedy texts.
 * Method: 20 prompts x 64 tokens (golden/smollm2) teacher-forced, once with the prompt in chunks and once token by token
 * (the products of few rows): the likeliest token is the reference's wherever its margin exceeds 0.1 (in
 * bf16, whose products are eight times as coarse, but for 3 of 1,224). Skipped by name where
 * there is no GPU or the file is not found. */
#include <math.h>
#include <stdlib.h>

#include "model_harness.h"
#include "smollm2.h"
#include "test.h"

enum { TOKENS_MAX = 4096, TOGETHER = 10 };

struct tally {
    uint32_t compared, wrong;
    double worst_logprob;
};

static void check(const json_t *item, const float *logits, const int32_t *want, uint32_t steps,
                  uint32_t vocab, struct tally *t)
{
    for (uint32_t i = 0; i < steps; i++) {
        const float *row = logits + (size_t)i * vocab;
        const json_t *ids = json_array_get(json_object_get(item, "top_ids"), i);
        const json_t *logprobs = json_array_get(json_object_get(item, "top_logprobs"), i);
        double total = log_total(row, vocab);
        for (size_t k = 0; k < json_array_size(ids); k++) {
            double got = (double)row[json_integer_value(json_array_get(ids, k))] - total;
            t->worst_logprob =
                fmax(t->worst_logprob, fabs(got - json_number_value(json_array_get(logprobs, k))));
        }
        if (json_number_value(json_array_get(json_object_get(item, "margin"), i)) <= 0.1) continue;
        t->compared++;
        t->wrong += argmax(row, vocab) != (uint32_t)want[i];
    }
}

static void run(struct harness *h, const json_t *list, uint32_t chunk, uint32_t wrong_max)
{
    static int32_t tokens[TOGETHER][TOKENS_MAX];
    struct harness_seq seqs[TOGETHER];
    uint32_t prompts[TOGETHER], steps[TOGETHER], vocab = h->plan->vocab_rows;
    struct tally t = {0};

    for (uint32_t first = 0; first + TOGETHER <= json_array_size(list); first += TOGETHER) {
        for (uint32_t i = 0; i < TOGETHER; i++) {
            const json_t *item = json_array_get(list, first + i);
            prompts[i] =
                smollm2_ids(json_object_get(item, "prompt_ids"), tokens[i], TOKENS_MAX / 2);
            steps[i] = smollm2_ids(json_object_get(item, "greedy_ids"), tokens[i] + prompts[i],
                                   TOKENS_MAX / 2);
            seqs[i] = (struct harness_seq){tokens[i], prompts[i] + steps[i], prompts[i] - 1,
                                           malloc((size_t)(steps[i] + 1) * vocab * sizeof(float))};
        }
        harness_run(h, seqs, TOGETHER, (struct harness_cut){.chunk_max = chunk});
        for (uint32_t i = 0; i < TOGETHER; i++) {
            check(json_array_get(list, first + i), seqs[i].logits, tokens[i] + prompts[i], steps[i],
                  vocab, &t);
            free(seqs[i].logits);
        }
    }
    print_message(
        "  %s, chunk %u: %u of %u likeliest tokens wrong, worst log probability of the first "
        "five off by %.3f\n",
        device_description(h->device), chunk, t.wrong, t.compared, t.worst_logprob);
    EXPECT_TRUE(t.compared > 1000);
    EXPECT_TRUE(t.wrong <= wrong_max);
}

TEST(teacher_forced_texts_are_the_references)
{
    struct harness_options options = {.device = {.kind = DEVICE_CUDA, .compute_dtype = DTYPE_BF16},
                                      .slots = TOGETHER,
                                      .logits_max = 65 * TOGETHER,
                                      .rows_max = 1024};
    struct device *device;
    struct error err;
    struct harness h;

    if (device_open(&options.device, &device, &err)) {
        print_message("skipped: %s\n", err.message);
        skip();
    }
    device_close(device);
    const char *path = smollm2_path();
    if (!path) skip();
    json_t *list = smollm2_json("smollm2/greedy.json.xz");
    for (int bf16 = 0; bf16 < 2; bf16++) {
        options.device.compute_dtype = bf16 ? DTYPE_BF16 : DTYPE_F16;
        harness_open(&h, path, &options);
        run(&h, list, 0, bf16 ? 3 : 0);
        run(&h, list, 1, bf16 ? 3 : 0);
        harness_close(&h);
    }
    json_decref(list);
}
