/* test_golden_models.c - every logit within 1e-3 of the float32 reference, on every model of a handled architecture; and the
 * same bytes alone, in a batch of 16 and with prompts cut at random.
 * Method: tiny random models with transformers' logits (golden/README-models.md), through device_submit and device_wait on
 * the CPU in exact numerics. Models that are not found are skipped by name: quick runs have one per architecture. */
#include "test.h"

#include <math.h>
#include <stdlib.h>

#include "golden_read.h"
#include "model_harness.h"

enum { SEQS_MAX = 32 };
static const double tolerance = 1e-3, margin_min = 0.01;

struct golden {
    char expected[256];
    uint32_t vocab;
    uint32_t count;
    struct {
        char name[32]; /* "seq.0" */
        int32_t *tokens;
        uint32_t token_count;
        float *alone; /* [token_count][vocab] */
    } seqs[SEQS_MAX];
    double worst;
};

static const char *field(const struct golden *g, uint32_t seq, const char *what)
{
    static char name[80];

    snprintf(name, sizeof name, "%s.%s", g->seqs[seq].name, what);
    return name;
}

static void add_seqs(struct golden *g, const char *kind)
{
    for (uint32_t k = 0; k < SEQS_MAX; k++) {
        char name[64];
        size_t count;
        snprintf(name, sizeof name, "%s.%u.ids", kind, k);
        if (!golden_has(g->expected, name) || g->count == SEQS_MAX) return;
        snprintf(g->seqs[g->count].name, sizeof g->seqs[0].name, "%s.%u", kind, k);
        g->seqs[g->count].tokens = golden_ids(g->expected, name, &count);
        g->seqs[g->count++].token_count = (uint32_t)count;
    }
}

/* greedy.K: prompt and continuation as one teacher-forced sequence. */
static void add_greedy(struct golden *g)
{
    for (uint32_t k = 0; k < SEQS_MAX && g->count < SEQS_MAX; k++) {
        char name[64];
        size_t prompt, count;
        snprintf(name, sizeof name, "greedy.%u.prompt", k);
        if (!golden_has(g->expected, name)) return;
        int32_t *a = golden_ids(g->expected, name, &prompt);
        snprintf(name, sizeof name, "greedy.%u.ids", k);
        int32_t *b = golden_ids(g->expected, name, &count);
        a = realloc(a, (prompt + count) * sizeof *a);
        memcpy(a + prompt, b, count * sizeof *a);
        free(b);
        snprintf(g->seqs[g->count].name, sizeof g->seqs[0].name, "greedy.%u", k);
        g->seqs[g->count].tokens = a;
        g->seqs[g->count++].token_count = (uint32_t)(prompt + count);
    }
}

static uint32_t argmax(const float *row, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

static double log_prob(const float *row, uint32_t n, uint32_t id)
{
    double top = (double)row[argmax(row, n)], sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)row[i] - top);
    return (double)row[id] - top - log(sum);
}

static void check_logits(struct golden *g, uint32_t s)
{
    size_t positions, values;
    int32_t *at = golden_ids(g->expected, field(g, s, "positions"), &positions);
    float *want = golden_tensor(g->expected, field(g, s, "logits"), &values);

    EXPECT_EQ(values, positions * g->vocab);
    for (size_t p = 0; p < positions; p++)
        for (uint32_t v = 0; v < g->vocab; v++) {
            double got = (double)g->seqs[s].alone[(size_t)at[p] * g->vocab + v];
            double off = fabs(got - (double)want[p * g->vocab + v]);
            if (!(off <= g->worst)) g->worst = off;
            if (!(off <= tolerance))
                fail_msg("%s %s: logit %u at position %d is %.6f; expected %.6f", g->expected,
                         g->seqs[s].name, v, at[p], got, (double)want[p * g->vocab + v]);
        }
    free(at);
    free(want);
}

static void check_likeliest(struct golden *g, uint32_t s)
{
    size_t n;
    int32_t *best = golden_ids(g->expected, field(g, s, "argmax"), &n);
    float *margin = golden_tensor(g->expected, field(g, s, "margin"), &n);
    float *next = golden_has(g->expected, field(g, s, "next_logprob"))
                      ? golden_tensor(g->expected, field(g, s, "next_logprob"), &n)
                      : NULL;
    const float *row = g->seqs[s].alone;

    for (uint32_t p = 0; p < g->seqs[s].token_count; p++, row += g->vocab) {
        if ((double)margin[p] > margin_min) EXPECT_EQ(argmax(row, g->vocab), best[p]);
        if (next && p + 1 < g->seqs[s].token_count)
            EXPECT_NEAR(log_prob(row, g->vocab, (uint32_t)g->seqs[s].tokens[p + 1]), next[p],
                        2 * tolerance);
    }
    free(best);
    free(margin);
    free(next);
}

static void check_greedy(struct golden *g, uint32_t s)
{
    size_t count;
    float *margin = golden_tensor(g->expected, field(g, s, "margin"), &count);
    uint32_t first = g->seqs[s].token_count - (uint32_t)count;

    for (uint32_t i = 0; i < count; i++) {
        const float *row = g->seqs[s].alone + (size_t)(first + i - 1) * g->vocab;
        if ((double)margin[i] > margin_min)
            EXPECT_EQ(argmax(row, g->vocab), g->seqs[s].tokens[first + i]);
    }
    free(margin);
}

/* All sequences together, each repeated until 16 slots are taken: the same bytes as alone. */
static void check_together(struct golden *g, struct harness *h, struct harness_cut cut,
                           const char *how)
{
    struct harness_seq seqs[16];

    for (uint32_t first = 0; first < g->count; first += 16) {
        for (uint32_t i = 0; i < 16; i++) {
            uint32_t s = (first + i) % g->count;
            size_t bytes = (size_t)g->seqs[s].token_count * g->vocab * sizeof(float);
            seqs[i] =
                (struct harness_seq){g->seqs[s].tokens, g->seqs[s].token_count, 0, malloc(bytes)};
        }
        harness_run(h, seqs, 16, cut);
        for (uint32_t i = 0; i < 16; i++) {
            uint32_t s = (first + i) % g->count;
            size_t bytes = (size_t)g->seqs[s].token_count * g->vocab * sizeof(float);
            if (memcmp(seqs[i].logits, g->seqs[s].alone, bytes) != 0)
                fail_msg("%s %s: other bytes %s than alone", g->expected, g->seqs[s].name, how);
            free(seqs[i].logits);
        }
    }
}

/* `exact`: against the reference; else only the bytes are kept, for check_together. */
static void check_alone(struct golden *g, struct harness *h, bool exact)
{
    for (uint32_t s = 0; s < g->count; s++) {
        size_t rows = g->seqs[s].token_count;
        g->seqs[s].alone = malloc(rows * g->vocab * sizeof(float));
        struct harness_seq seq = {g->seqs[s].tokens, (uint32_t)rows, 0, g->seqs[s].alone};
        harness_run(h, &seq, 1, (struct harness_cut){0});
        if (!exact) continue;
        if (strncmp(g->seqs[s].name, "greedy", 6) == 0) {
            check_greedy(g, s);
            continue;
        }
        check_logits(g, s);
        check_likeliest(g, s);
    }
}

static void check_model(const char *model, const char *expected, const char *isa,
                        enum cpu_numerics numerics)
{
    struct harness_options options = {
        .device = {.kind = DEVICE_CPU, .threads = 2, .isa = isa, .numerics = numerics}};
    struct golden g = {0};
    struct harness h;
    const char *path = test_golden(model);
    char kept[4096];

    if (!path) {
        print_message("  skipped %s: not found\n", model);
        return;
    }
    snprintf(kept, sizeof kept, "%s", path);
    snprintf(g.expected, sizeof g.expected, "%s", expected);
    harness_open(&h, kept, &options);
    g.vocab = h.plan->vocab_rows;
    add_seqs(&g, "seq");
    add_seqs(&g, "batch");
    add_greedy(&g);
    EXPECT_TRUE(g.count >= 3);
    check_alone(&g, &h, numerics == CPU_EXACT);
    check_together(&g, &h, (struct harness_cut){0}, "in a batch of 16");
    check_together(&g, &h, (struct harness_cut){.chunk_max = 40, .random = true},
                   "in random chunks");
    check_together(&g, &h, (struct harness_cut){.chunk_max = 1}, "token by token");
    if (numerics == CPU_EXACT)
        print_message("  %-32s worst error %.1e over %u sequences%s%s\n", model, g.worst, g.count,
                      isa ? ", " : "", isa ? isa : "");
    for (uint32_t s = 0; s < g.count; s++) {
        free(g.seqs[s].tokens);
        free(g.seqs[s].alone);
    }
    harness_close(&h);
}

static void check_folder(const char *name, const char *isa)
{
    char model[128], expected[160];

    snprintf(model, sizeof model, "models/%s", name);
    snprintf(expected, sizeof expected, "models/%s/expected.safetensors", name);
    check_model(model, expected, isa, CPU_EXACT);
}

TEST(folders_give_the_reference_logits)
{
    static const char *const names[] = {
        "llama_plain",       "llama_plain-bf16",  "llama_plain-f16",   "llama_gqa9_3",
        "llama_awkward",     "llama_rope_linear", "llama_rope_llama3", "mistral_window",
        "qwen2_gqa7",        "qwen2_gqa7-bf16",   "qwen2_gqa7-f16",    "qwen3_qknorm",
        "qwen3_qknorm-bf16", "qwen3_qknorm-f16",  "gemma3_text"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_folder(names[i], NULL);
}

TEST(gguf_files_give_the_reference_logits)
{
    check_model("quants/llama_mix.gguf", "quants/llama_mix.expected.safetensors", NULL, CPU_EXACT);
    check_model("quants/qwen2_mix.gguf", "quants/qwen2_mix.expected.safetensors", NULL, CPU_EXACT);
    check_model("quants/llama_q4_k.gguf", "quants/llama_q4_k.expected.safetensors", NULL,
                CPU_EXACT);
}

TEST(every_instruction_set_gives_the_reference_logits)
{
    static const char *const sets[] = {"generic", "avx2", "avx512"};

    for (uint32_t i = 0; i < 3; i++) {
        struct device_options options = {.kind = DEVICE_CPU, .threads = 1, .isa = sets[i]};
        struct device *device;
        struct error err;
        if (device_open(&options, &device, &err)) {
            EXPECT_EQ(err.status, STATUS_UNSUPPORTED);
            print_message("  skipped %s: %s\n", sets[i], err.message);
            continue;
        }
        device_close(device);
        check_folder("llama_awkward", sets[i]);
        check_folder("mistral_window", sets[i]);
        check_folder("gemma3_text", sets[i]);
    }
}

/* Fast numerics are judged by their distance on a real model (test_smollm2); here only that nobody else in the batch and no
 * cut of the prompt changes a byte. */
TEST(fast_numerics_give_the_same_bytes_in_any_company)
{
    check_model("quants/llama_mix.gguf", "quants/llama_mix.expected.safetensors", NULL, CPU_FAST);
    check_model("quants/qwen2_mix.gguf", "quants/qwen2_mix.expected.safetensors", NULL, CPU_FAST);
    check_model("quants/llama_q4_k.gguf", "quants/llama_q4_k.expected.safetensors", NULL, CPU_FAST);
    check_model("models/qwen2_gqa7-bf16", "models/qwen2_gqa7-bf16/expected.safetensors", NULL,
                CPU_FAST);
}
