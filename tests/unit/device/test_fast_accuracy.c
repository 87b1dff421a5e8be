/* test_fast_accuracy.c - `fast` numerics stay as close to float32 as llama.cpp does, and give the same bytes however a
 * prompt is cut or batched.
 * Method: SmolLM2-135M Q4_1 teacher-forced on the ids of golden/smollm2 through `exact` and `fast`, logits against logits.
 * llama.cpp on the same file and ids (manifest.json there): top-1 agreement 97.3 %, mean KL 0.0026, perplexity + 0.8 %.
 * Ours must have agreement >= 96.8 %, mean KL <= 0.0033, perplexity within 1 %, slope of the top logits 1 +- 0.02. Quick
 * runs take a part of the prompts and of the text, whose chance deviations the bounds below allow for; --long takes all.
 * Skipped by name where the model is not installed. */
#include "test.h"

#include <math.h>
#include <stdlib.h>

#include "model_harness.h"
#include "smollm2.h"

enum { TOKENS_MAX = 4096, WINDOW = 256, TOP = 5, SEQS = 6 };

/* --- what is compared --- */

struct distance {
    uint32_t steps, agree;
    double kl;                 /* sum over steps */
    double exact_fast, exact2; /* sums of products of the top logits' distances from their mean */
    uint32_t scored;
    double exact_nll, fast_nll; /* of the next token of the text */
};

/* How the fast logits of the five likeliest tokens move with the exact ones. */
static void add_slope(struct distance *d, const float *exact, const float *fast, uint32_t n)
{
    uint32_t top[TOP];
    double mean_exact = 0, mean_fast = 0;

    for (uint32_t k = 0; k < TOP; k++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t i = 0; i < n; i++) {
            bool taken = false;
            for (uint32_t j = 0; j < k; j++)
                taken |= top[j] == i;
            if (!taken && (best == UINT32_MAX || exact[i] > exact[best])) best = i;
        }
        top[k] = best;
        mean_exact += (double)exact[best] / TOP;
        mean_fast += (double)fast[best] / TOP;
    }
    for (uint32_t k = 0; k < TOP; k++) {
        double e = (double)exact[top[k]] - mean_exact, f = (double)fast[top[k]] - mean_fast;
        d->exact_fast += e * f;
        d->exact2 += e * e;
    }
}

/* One step's logits; next < 0: there is no token to score. */
static void add_step(struct distance *d, const float *exact, const float *fast, uint32_t n,
                     int32_t next)
{
    double te = log_total(exact, n), tf = log_total(fast, n), kl = 0;

    for (uint32_t i = 0; i < n; i++) {
        double le = (double)exact[i] - te, lf = (double)fast[i] - tf;
        kl += exp(le) * (le - lf);
    }
    EXPECT_TRUE(isfinite(kl));
    d->steps++;
    d->agree += argmax(exact, n) == argmax(fast, n);
    d->kl += kl;
    add_slope(d, exact, fast, n);
    if (next < 0) return;
    d->scored++;
    d->exact_nll += te - (double)exact[next];
    d->fast_nll += tf - (double)fast[next];
}

/* --- running --- */

struct pair {
    struct harness exact, fast;
};

static bool open_pair(struct pair *p)
{
    struct harness_options options = {.device = {.kind = DEVICE_CPU, .numerics = CPU_EXACT},
                                      .slots = SEQS,
                                      .logits_max = WINDOW,
                                      .context_tokens = 2048};
    const char *path = smollm2_path();

    if (!path) return false;
    harness_open(&p->exact, path, &options);
    options.device.numerics = CPU_FAST;
    harness_open(&p->fast, path, &options);
    return true;
}

static void close_pair(struct pair *p)
{
    harness_close(&p->exact);
    harness_close(&p->fast);
}

/* Compares the logits from position `from` on; `scored`: the tokens after each are scored too. */
static void compare(struct pair *p, const int32_t *tokens, uint32_t count, uint32_t from,
                    bool scored, struct distance *d)
{
    const uint32_t vocab = p->exact.plan->vocab_rows, rows = count - from;
    float *exact = malloc((size_t)rows * vocab * sizeof(float));
    float *fast = malloc((size_t)rows * vocab * sizeof(float));
    struct harness_seq seq = {tokens, count, from, exact};

    harness_run(&p->exact, &seq, 1, (struct harness_cut){0});
    seq.logits = fast;
    harness_run(&p->fast, &seq, 1, (struct harness_cut){0});
    for (uint32_t i = 0; i < rows; i++)
        add_step(d, exact + (size_t)i * vocab, fast + (size_t)i * vocab, vocab,
                 scored && i + 1 < rows ? tokens[from + i + 1] : -1);
    free(exact);
    free(fast);
}

static void compare_prompts(struct pair *p, uint32_t every, struct distance *d)
{
    static int32_t tokens[TOKENS_MAX];
    json_t *root = smollm2_json("smollm2/greedy.json.xz");

    EXPECT_TRUE(json_array_size(root) >= 20);
    for (size_t i = 0; i < json_array_size(root); i += every) {
        const json_t *item = json_array_get(root, i);
        uint32_t prompt = smollm2_ids(json_object_get(item, "prompt_ids"), tokens, TOKENS_MAX / 2);
        uint32_t steps =
            smollm2_ids(json_object_get(item, "greedy_ids"), tokens + prompt, TOKENS_MAX / 2);
        compare(p, tokens, prompt + steps - 1, prompt - 1, false, d);
    }
    json_decref(root);
}

static void compare_text(struct pair *p, uint32_t windows, struct distance *d)
{
    static int32_t tokens[TOKENS_MAX];
    json_t *root = smollm2_json("smollm2/text.json.xz");
    uint32_t count = smollm2_ids(json_object_get(root, "ids"), tokens, TOKENS_MAX);

    /* with the whole text before it, a window of logits at a time */
    for (uint32_t w = 0; w < windows && w * WINDOW + 1 < count; w++) {
        uint32_t end = (w + 1) * WINDOW < count ? (w + 1) * WINDOW : count;
        compare(p, tokens, end, w * WINDOW, true, d);
    }
    json_decref(root);
}

static void report(const char *what, const struct distance *d)
{
    print_message("  %s, %u steps: top-1 agreement %.4f, mean KL %.5f, slope %.4f\n", what,
                  d->steps, (double)d->agree / d->steps, d->kl / d->steps,
                  d->exact_fast / d->exact2);
}

TEST(fast_is_about_as_close_to_float32_as_llama_cpp)
{
    const bool whole = test_long();
    struct distance prompts = {0}, text = {0};
    struct pair p;

    if (!open_pair(&p)) return;
    compare_prompts(&p, whole ? 1 : 6, &prompts);
    report("prompts", &prompts);
    compare_text(&p, whole ? 16 : 1, &text);
    report("text", &text);
    double ppl = exp((text.fast_nll - text.exact_nll) / text.scored);
    print_message("  perplexity of the text x %.4f\n", ppl);
    struct distance all = {.steps = prompts.steps + text.steps,
                           .agree = prompts.agree + text.agree,
                           .kl = prompts.kl + text.kl,
                           .exact_fast = prompts.exact_fast + text.exact_fast,
                           .exact2 = prompts.exact2 + text.exact2};
    report("all", &all);
    EXPECT_TRUE((double)all.agree / all.steps >= (whole ? 0.968 : 0.955));
    EXPECT_TRUE(all.kl / all.steps <= (whole ? 0.0033 : 0.0040));
    EXPECT_NEAR(all.exact_fast / all.exact2, 1.0, 0.02);
    EXPECT_NEAR(ppl, 1.0, whole ? 0.01 : 0.02);
    close_pair(&p);
}

TEST(fast_gives_the_same_bytes_alone_batched_and_chunked_on_every_instruction_set)
{
    static const char *const isas[] = {"amx", "avx512-vnni", "avx2"};
    static int32_t tokens[SEQS][TOKENS_MAX];
    const char *path = smollm2_path();
    float *alone[SEQS], *together[SEQS];
    struct harness_seq seqs[SEQS];

    if (!path) return;
    json_t *root = smollm2_json("smollm2/greedy.json.xz");
    for (uint32_t i = 0; i < 3; i++) {
        struct harness_options options = {
            .device = {.kind = DEVICE_CPU, .numerics = CPU_FAST, .isa = isas[i]},
            .slots = SEQS,
            .rows_max = 100,
            .context_tokens = 512};
        struct harness h;
        struct device *probe = NULL;
        if (device_open(&options.device, &probe, NULL) != STATUS_OK) {
            print_message("  skipped: no %s here\n", isas[i]);
            continue;
        }
        device_close(probe);
        harness_open(&h, path, &options);
        const size_t row = h.plan->vocab_rows * sizeof(float);
        for (uint32_t s = 0; s < SEQS; s++) {
            uint32_t n = smollm2_ids(json_object_get(json_array_get(root, s), "prompt_ids"),
                                     tokens[s], TOKENS_MAX / 2);
            alone[s] = malloc(8 * row);
            together[s] = malloc(8 * row);
            seqs[s] = (struct harness_seq){tokens[s], n, n - 8, alone[s]};
            harness_run(&h, &seqs[s], 1, (struct harness_cut){0});
            seqs[s].logits = together[s];
        }
        harness_run(&h, seqs, SEQS, (struct harness_cut){.chunk_max = 37, .random = true});
        for (uint32_t s = 0; s < SEQS; s++) {
            EXPECT_TRUE(memcmp(alone[s], together[s], 8 * row) == 0);
            free(alone[s]);
            free(together[s]);
        }
        harness_close(&h);
    }
    json_decref(root);
}
