/* test_cuda_device.c - whole models on the CUDA device.
 * Method: the tiny golden models (golden/README-models.md) through device_submit and device_wait. Models stored in bf16 or
 * f16 must be no farther from the float32 reference than transformers computing in that type (times 1.5, for luck);
 * others, rounded to f16 at load, within a fixed distance. Decode gives the same bytes alone and among 40, with graphs
 * and without, and again after a second open; so do a thousand steps of changing rows and tables. What runs ahead of its
 * tokens gives what does not. All layers in one launch give the bytes of a launch for each part, alone and in turns with them,
 * and what a run reads of the pages it has written itself. */
#include <math.h>
#include <stdlib.h>

#include "device/cuda/cuda_breakdown.h"
#include "device/device_memory.h"
#include "golden_read.h"
#include "gpu.h"
#include "model_harness.h"

enum { SEQS_MAX = 32 };

static bool have_gpu(void)
{
    struct device_options options = {.kind = DEVICE_CUDA, .compute_dtype = DTYPE_BF16};
    struct device *device;
    struct error err;

    if (device_open(&options, &device, &err)) {
        print_message("skipped: %s\n", err.message);
        return false;
    }
    print_message("on %s\n", device_description(device));
    device_close(device);
    return true;
}

struct distance {
    double worst, square, native_worst, native_square;
    size_t n;
    double margin; /* only leads above it are checked */
    uint32_t argmax_checked, argmax_wrong;
};

static void compare_seq(const char *expected, const char *name, const float *got, uint32_t vocab,
                        struct distance *d)
{
    char field[96];
    size_t positions, n;

    snprintf(field, sizeof field, "%s.positions", name);
    int32_t *at = golden_ids(expected, field, &positions);
    snprintf(field, sizeof field, "%s.logits", name);
    float *want = golden_tensor(expected, field, &n), *native = NULL, *margin;
    snprintf(field, sizeof field, "%s.logits_native", name);
    if (golden_has(expected, field)) native = golden_tensor(expected, field, &n);
    for (size_t p = 0; p < positions; p++)
        for (uint32_t v = 0; v < vocab; v++) {
            double w = (double)want[p * vocab + v],
                   off = fabs((double)got[(size_t)at[p] * vocab + v] - w);
            if (!(off <= d->worst)) d->worst = off;
            d->square += off * off;
            off = native ? fabs((double)native[p * vocab + v] - w) : 0;
            if (off > d->native_worst) d->native_worst = off;
            d->native_square += off * off;
            d->n++;
        }
    free(at), free(want), free(native);
    snprintf(field, sizeof field, "%s.margin", name);
    margin = golden_tensor(expected, field, &n);
    snprintf(field, sizeof field, "%s.argmax", name);
    int32_t *best = golden_ids(expected, field, &n);
    for (size_t p = 0; p < n; p++) {
        uint32_t top = 0;
        if ((double)margin[p] <= d->margin) continue;
        for (uint32_t v = 1; v < vocab; v++)
            if (got[p * vocab + v] > got[p * vocab + top]) top = v;
        d->argmax_checked++;
        d->argmax_wrong += top != (uint32_t)best[p];
    }
    free(margin), free(best);
}

static void check_model(const char *model, enum dtype type, uint32_t chunk, double limit)
{
    struct harness_options options = {.device = {.kind = DEVICE_CUDA, .compute_dtype = type}};
    struct distance d = {.margin = type == DTYPE_BF16 ? 0.5 : 0.1}; /* twice the worst error */
    char path[4096], expected[160];
    struct harness h;
    const char *found;

    snprintf(expected, sizeof expected, "models/%s", model);
    found = test_golden(expected);
    if (!found) {
        print_message("  skipped %s: not found\n", model);
        return;
    }
    snprintf(path, sizeof path, "%s", found);
    snprintf(expected, sizeof expected, "models/%s/expected.safetensors", model);
    harness_open(&h, path, &options);
    for (uint32_t kind = 0; kind < 2; kind++)
        for (uint32_t k = 0; k < SEQS_MAX; k++) {
            char name[48], field[64];
            size_t count;
            snprintf(name, sizeof name, "%s.%u", kind ? "batch" : "seq", k);
            snprintf(field, sizeof field, "%s.ids", name);
            if (!golden_has(expected, field)) break;
            int32_t *ids = golden_ids(expected, field, &count);
            float *logits = malloc(count * h.plan->vocab_rows * sizeof *logits);
            struct harness_seq seq = {ids, (uint32_t)count, 0, logits};
            harness_run(&h, &seq, 1, (struct harness_cut){.chunk_max = chunk, .random = chunk > 1});
            compare_seq(expected, name, logits, h.plan->vocab_rows, &d);
            free(ids), free(logits);
        }
    double rms = sqrt(d.square / (double)d.n), native = sqrt(d.native_square / (double)d.n);
    print_message("  %-22s %-4s chunk %3u: worst %.1e rms %.1e (transformers in that type %.1e, "
                  "%.1e), likeliest "
                  "%u wrong of %u\n",
                  model, dtype_info(type)->name, chunk, d.worst, rms, d.native_worst, native,
                  d.argmax_wrong, d.argmax_checked);
    EXPECT_TRUE(d.n > 0);
    if (native > 0) {
        if (!(rms <= 1.5 * native)) fail_msg("%s: rms %.2e, transformers %.2e", model, rms, native);
        if (!(d.worst <= 1.5 * d.native_worst))
            fail_msg("%s: worst %.2e, transformers %.2e", model, d.worst, d.native_worst);
    } else if (!(d.worst <= limit))
        fail_msg("%s: worst %.2e, limit %.2e", model, d.worst, limit);
    EXPECT_EQ(d.argmax_wrong, 0);
    EXPECT_EQ(device_health(h.device).late_allocations, 0);
    harness_close(&h);
}

TEST(golden_models_give_the_reference_logits)
{
    static const struct {
        const char *name;
        enum dtype type;
        double limit;
    } models[] = {
        {"llama_plain-bf16", DTYPE_BF16, 0},    {"qwen2_gqa7-bf16", DTYPE_BF16, 0},
        {"qwen3_qknorm-bf16", DTYPE_BF16, 0},   {"llama_plain-f16", DTYPE_F16, 0},
        {"qwen2_gqa7-f16", DTYPE_F16, 0},       {"qwen3_qknorm-f16", DTYPE_F16, 0},
        {"llama_plain", DTYPE_F16, 0.05},       {"llama_gqa9_3", DTYPE_F16, 0.05},
        {"llama_awkward", DTYPE_F16, 0.05},     {"llama_rope_linear", DTYPE_F16, 0.05},
        {"llama_rope_llama3", DTYPE_F16, 0.05}, {"mistral_window", DTYPE_F16, 0.05},
        {"gemma3_text", DTYPE_F16, 0.05},       {"gemma3_text", DTYPE_BF16, 0.4},
    };
    static const uint32_t chunks[] = {0, 1, 40};

    if (!have_gpu()) skip();
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (size_t c = 0; c < 3; c++)
            check_model(models[i].name, models[i].type, chunks[c], models[i].limit);
}

/* Both devices on the same ids; the distance over all logits, relative to their size. */
static double distance_from_cpu(const char *path, const struct harness_options *base,
                                uint32_t chunk)
{
    enum { SEQS = 3, TOKENS = 150 };
    struct harness_options options = *base;
    struct harness h;
    struct harness_seq seqs[SEQS];
    float *logits[2][SEQS];
    int32_t tokens[SEQS][TOKENS];
    double off = 0, size = 0;
    char name[160] = "";

    for (int cuda = 0; cuda < 2; cuda++) {
        options.device.kind = cuda ? DEVICE_CUDA : DEVICE_CPU;
        options.device.numerics = CPU_EXACT;
        harness_open(&h, path, &options);
        size_t values = (size_t)TOKENS * h.plan->vocab_rows;
        for (uint32_t i = 0; i < SEQS; i++) {
            for (uint32_t t = 0; t < TOKENS; t++)
                tokens[i][t] = (int32_t)((i * 131 + t * t * 7 + 3) % h.plan->vocab_tokens);
            logits[cuda][i] = malloc(values * sizeof(float));
            seqs[i] = (struct harness_seq){tokens[i], TOKENS - 7 * i, 0, logits[cuda][i]};
        }
        harness_run(&h, seqs, SEQS, (struct harness_cut){.chunk_max = chunk});
        for (uint32_t i = 0; cuda && i < SEQS; i++)
            for (size_t v = 0; v < (TOKENS - 7 * (size_t)i) * h.plan->vocab_rows; v++) {
                double a = (double)logits[0][i][v], b = (double)logits[1][i][v];
                off += (a - b) * (a - b), size += a * a;
            }
        snprintf(name, sizeof name, "%s", device_description(h.device));
        harness_close(&h);
    }
    for (uint32_t i = 0; i < SEQS; i++)
        free(logits[0][i]), free(logits[1][i]);
    off = sqrt(off / size);
    print_message("  %-40.40s %s, chunk %u: %.1e from the CPU's exact\n",
                  path + (strlen(path) > 40 ? strlen(path) - 40 : 0), name, chunk, off);
    return off;
}

static void check_beside_cpu(const char *path, const struct harness_options *base, uint32_t chunk,
                             double limit)
{
    double off = distance_from_cpu(path, base, chunk);

    if (!(off <= limit)) fail_msg("%s: %.2e from the CPU, limit %.2e", path, off, limit);
}

TEST(golden_models_give_what_the_cpu_gives_exactly)
{
    static const char *const models[] = {"gemma3_text",    "llama_awkward",    "llama_gqa9_3",
                                         "mistral_window", "qwen3_qknorm-f16", "llama_rope_llama3"};
    static const uint32_t chunks[] = {0, 1};

    if (!have_gpu()) skip();
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            for (size_t c = 0; c < 2; c++) {
                struct harness_options options = {
                    .device = {.compute_dtype = bf16 ? DTYPE_BF16 : DTYPE_F16}};
                char relative[64], path[4096];
                snprintf(relative, sizeof relative, "models/%s", models[i]);
                const char *found = test_golden(relative);
                if (!found) {
                    print_message("  skipped %s: not found\n", models[i]);
                    continue;
                }
                snprintf(path, sizeof path, "%s", found);
                check_beside_cpu(path, &options, chunks[c], bf16 ? 0.04 : 0.005);
            }
}

/* Behind the last attention of a step with a part of a prompt only rows that want logits are run, by the kernels for so few rows: the
 * logits are those of all rows to the number type's precision. */
TEST(rows_that_want_logits_have_them_whichever_they_are)
{
    enum { SEQS = 6, TOKENS = 500 };
    static const char *const models[] = {"llama_plain-f16", "qwen2_gqa7-bf16", "gemma3_text",
                                         "llama_awkward"};
    static const uint32_t chunks[] = {3, 40, 300};

    if (!have_gpu()) skip();
    for (int i = 0; i < 12; i++) {
        struct harness_options o = {.device = {.kind = DEVICE_CUDA, .compute_dtype = DTYPE_F32},
                                    .slots = SEQS,
                                    .rows_max = 2048,
                                    .context_tokens = TOKENS};
        struct harness_seq seqs[SEQS];
        int32_t tokens[SEQS][TOKENS];
        char name[80];
        struct harness h;

        snprintf(name, sizeof name, "models/%s", models[i % 4]);
        harness_open(&h, test_golden(name), &o);
        for (uint32_t s = 0; s < SEQS; s++) {
            uint32_t count = TOKENS / (1 + s);
            for (uint32_t t = 0; t < count; t++)
                tokens[s][t] = (int32_t)test_rand_below(h.plan->vocab_tokens);
            seqs[s] = (struct harness_seq){tokens[s], count, 0,
                                           malloc(count * h.plan->vocab_rows * sizeof(float))};
            harness_run(&h, &seqs[s], 1, (struct harness_cut){0});
        }
        struct harness_difference d = harness_compare_some(&h, seqs, SEQS, chunks[i / 4]);
        print_message("  %s, chunks to %u: %u rows, worst %.1e of %.1e\n", models[i % 4],
                      chunks[i / 4], d.rows, d.worst, d.scale);
        EXPECT_TRUE(d.rows > 100 && d.worst <= 0.05 * d.scale);
        EXPECT_EQ(device_health(h.device).late_allocations, 0);
        harness_close(&h);
        for (uint32_t s = 0; s < SEQS; s++)
            free(seqs[s].logits);
    }
}

TEST(made_up_weights_of_block_formats_are_the_cpus)
{
    static const enum dtype types[] = {DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q5_1, DTYPE_IQ4_NL};

    if (!have_gpu()) skip();
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct harness_options options = {
            .model = {.dummy = true, .dummy_dtype = types[i], .dummy_seed = 5},
            .slots = 3,
            .context_tokens = 256};
        check_beside_cpu(INFERD_SOURCE_DIR "/configs/models/SmolLM2-135M", &options, 0, 0.02);
    }
}

/* Heads of 256 with norms: the widest prefill kernel, and token by token, which the general kernel runs. f16, so that a fault
 * stands out from rounding: made-up weights behind norms before and after let each rounding of bf16 grow to 0.2. */
TEST(made_up_gemma_gives_what_the_cpu_gives)
{
    static const uint32_t chunks[] = {0, 40, 1};
    double off[3];

    if (!have_gpu()) skip();
    for (size_t i = 0; i < 3; i++) {
        struct harness_options options = {
            .device = {.compute_dtype = DTYPE_F16},
            .model = {.dummy = true, .dummy_dtype = DTYPE_F16, .dummy_seed = 6},
            .slots = 3,
            .context_tokens = 256};
        off[i] = distance_from_cpu(INFERD_SOURCE_DIR "/configs/models/Gemma-3-270M", &options,
                                   chunks[i]);
    }
    for (size_t i = 0; i < 3; i++)
        EXPECT_TRUE(off[i] <= 0.05);
}

/* --- all layers in one launch --- */

static uint64_t hash_bytes(const void *bytes, size_t count)
{
    const uint32_t *at = bytes;
    uint64_t hash = 14695981039346656037ull;

    for (size_t i = 0; i < count / 4; i++)
        hash = (hash ^ at[i]) * 1099511628211ull;
    return hash;
}

/* Where two runs of one sequence in slot 0 part. */
struct sequence_run {
    float *logits;   /* [tokens, vocab_rows] */
    uint16_t *pages; /* block after block: [layers, kv heads, K 16 x D and V in eights of tokens] */
};

/* NaN everywhere, so that a run reads nothing but what it has written itself. */
static void poison_pages(struct harness *h)
{
    uint64_t bytes = device_kv_block_bytes(h->device, 0);
    void *nans = malloc(bytes);

    memset(nans, 0xff, bytes);
    for (uint32_t i = 0; i < h->limits.kv_blocks[0]; i++)
        EXPECT_OK(device_kv_copy_in(h->device, 0, i, nans));
    free(nans);
}

static uint16_t *copy_pages(struct harness *h, uint32_t tokens)
{
    uint64_t bytes = device_kv_block_bytes(h->device, 0);
    char *pages = malloc((tokens + 15) / 16 * bytes);

    for (uint32_t i = 0; i * 16 < tokens; i++)
        EXPECT_OK(device_kv_copy_out(h->device, 0, h->blocks[0][i], pages + i * bytes));
    return (uint16_t *)(void *)pages;
}

/* Element e of K or V of a token, of KV head g of a layer. */
static uint16_t page_element(const struct harness *h, const uint16_t *pages, uint32_t token,
                             uint32_t layer, uint32_t g, bool is_v, uint32_t e)
{
    const struct stage_attn_in *in = &h->plan->stages[1].attn_in;
    uint64_t D = in->head_dim, t = token % 16;
    uint64_t block = device_kv_block_bytes(h->device, 0) / 2, record = 2 * 16 * D;

    pages += token / 16 * block + ((uint64_t)layer * in->kv_heads + g) * record;
    return is_v ? pages[16 * D + (t / 8 * D + e) * 8 + t % 8] : pages[t * D + e];
}

/* The first token whose K or V differ, in its first layer: what went before in that layer, or the layer below, is at fault. */
static void say_first_page(const struct harness *h, const struct sequence_run *a,
                           const struct sequence_run *b, uint32_t tokens)
{
    const struct stage_attn_in *in = &h->plan->stages[1].attn_in;
    uint32_t n = in->kv_heads * in->head_dim, different = 0;

    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t l = 0; l < h->plan->layers; l++) {
            for (uint32_t i = 0; i < 2 * n; i++) {
                uint32_t g = i % n / in->head_dim, e = i % in->head_dim;
                uint16_t x = page_element(h, a->pages, t, l, g, i >= n, e);
                uint16_t y = page_element(h, b->pages, t, l, g, i >= n, e);
                if (x != y && !different++)
                    print_message("  token %u, layer %u: %s of head %u, element %u, is %#06x, not "
                                  "%#06x\n",
                                  t, l, i < n ? "K" : "V", g, e, y, x);
            }
            if (different) {
                print_message("  %u of %u differ there\n", different, 2 * n);
                return;
            }
        }
    print_message("  pages are the same\n");
}

static void say_first_logits(const struct harness *h, const struct sequence_run *a,
                             const struct sequence_run *b, uint32_t tokens)
{
    uint32_t vocab = h->plan->vocab_rows, bad_tokens = 0;

    for (uint32_t t = 0; t < tokens; t++) {
        const float *x = a->logits + (size_t)t * vocab, *y = b->logits + (size_t)t * vocab;
        uint32_t different = 0, first = 0;
        double most = 0;
        for (uint32_t v = 0; v < vocab; v++) {
            if (!memcmp(&x[v], &y[v], sizeof *x)) continue;
            if (!different++) first = v;
            most = fmax(most, fabs((double)x[v] - (double)y[v]));
        }
        if (different && !bad_tokens++)
            print_message("  token %u: %u of %u logits differ by up to %.3g; logit %u is %.9g, not "
                          "%.9g\n",
                          t, different, vocab, most, first, (double)y[first], (double)x[first]);
    }
    print_message("  logits of %u of %u tokens differ\n", bad_tokens, tokens);
}

static void check_same_run(const struct harness *h, const struct sequence_run *want,
                           const struct sequence_run *got, uint32_t tokens, const char *how)
{
    size_t bytes = (size_t)tokens * h->plan->vocab_rows * sizeof(float),
           page_bytes = (tokens + 15) / 16 * device_kv_block_bytes(h->device, 0);

    if (!memcmp(want->logits, got->logits, bytes) && !memcmp(want->pages, got->pages, page_bytes))
        return;
    say_first_page(h, want, got, tokens);
    say_first_logits(h, want, got, tokens);
    fail_msg("one launch %s has other bytes than a launch for each part", how);
}

/* The model that has one launch for all layers; skips where there is no GPU that runs it. */
static void open_with_chain(struct harness *h, const struct harness_options *options)
{
    if (!have_gpu()) skip();
    harness_open(h, INFERD_SOURCE_DIR "/configs/models/SmolLM2-135M", options);
    if (cuda_use_chain(h->device, true)) return;
    harness_close(h);
    skip();
}

/* Token by token: launches, one launch, and that without graphs. Each run finds its pages empty. */
TEST(all_layers_in_one_launch_give_the_bytes_of_a_launch_for_each_part)
{
    enum { TOKENS = 150 };
    struct harness_options options = {.device = {.kind = DEVICE_CUDA, .compute_dtype = DTYPE_BF16},
                                      .model = {.dummy = true, .dummy_seed = 5},
                                      .slots = 2,
                                      .context_tokens = 256};
    int32_t tokens[TOKENS];
    struct sequence_run runs[3];
    struct harness h;

    open_with_chain(&h, &options);
    for (uint32_t t = 0; t < TOKENS; t++)
        tokens[t] = (int32_t)(t * t * 7 % h.plan->vocab_tokens);
    for (int i = 0; i < 3; i++) {
        runs[i].logits = malloc(TOKENS * h.plan->vocab_rows * sizeof(float));
        struct harness_seq seq = {tokens, TOKENS, 0, runs[i].logits};
        cuda_use_chain(h.device, i > 0);
        cuda_use_graphs(h.device, i < 2);
        poison_pages(&h);
        harness_run(&h, &seq, 1, (struct harness_cut){.chunk_max = 1});
        runs[i].pages = copy_pages(&h, TOKENS);
    }
    check_same_run(&h, &runs[0], &runs[1], TOKENS, "in a graph");
    check_same_run(&h, &runs[0], &runs[2], TOKENS, "without graphs");
    EXPECT_EQ(device_health(h.device).late_allocations, 0);
    harness_close(&h);
    for (int i = 0; i < 3; i++)
        free(runs[i].logits), free(runs[i].pages);
}

/* Steps of one row, by one launch for all layers, in turns with steps of two and three, by launches, over the same pages. */
enum { TURN_SLOTS = 3, TURN_TOKENS = 200, TURNS = 300, TURNS_LONG = 2000 };

static void take_turns(struct harness *h, uint32_t steps, uint64_t *hashes)
{
    uint32_t done[TURN_SLOTS] = {0}, state = 99;

    for (uint32_t k = 0; k < steps; k++) {
        struct step *step = harness_step(h);
        uint32_t drawn = (state = state * 1664525u + 1013904223u) / 65536, first = drawn / 8,
                 rows = drawn % 8 < 6 ? 1 : drawn % 8 - 4;
        step->flags = STEP_KEEP_LOGITS;
        for (uint32_t i = 0; i < rows; i++) {
            uint32_t slot = (first + i) % TURN_SLOTS;
            int32_t token = (int32_t)((k * 31 + slot * 7 + done[slot]) % h->plan->vocab_tokens);
            if (done[slot] == TURN_TOKENS) done[slot] = 0;
            if (!done[slot]) harness_open_slot(h, step, slot, NULL, TURN_TOKENS);
            harness_segment(step, slot, &token, 1, done[slot]++, 0, 1);
        }
        harness_submit(h, step);
        hashes[k] = hash_bytes(harness_wait(h, step->seq_no)->logits,
                               (size_t)rows * h->plan->vocab_rows * sizeof(float));
        device_release(h->device, step->seq_no);
    }
}

TEST(one_launch_and_launches_take_turns_over_the_same_pages)
{
    struct harness_options options = {.device = {.kind = DEVICE_CUDA, .compute_dtype = DTYPE_BF16},
                                      .model = {.dummy = true, .dummy_seed = 7},
                                      .slots = TURN_SLOTS,
                                      .context_tokens = 256};
    static uint64_t hashes[2][TURNS_LONG];
    uint32_t steps = test_long() ? TURNS_LONG : TURNS, bad = 0;
    struct harness h;

    open_with_chain(&h, &options);
    for (int chain = 0; chain < 2; chain++) {
        cuda_use_chain(h.device, chain);
        poison_pages(&h);
        take_turns(&h, steps, hashes[chain]);
    }
    for (uint32_t k = 0; k < steps; k++)
        if (hashes[0][k] != hashes[1][k] && !bad++)
            print_message("  step %u is the first with other logits\n", k);
    harness_close(&h);
    if (bad) fail_msg("%u of %u steps have other logits", bad, steps);
}

/* Steps without one kind of stage run, for products of few rows, of up to 64 and of more, with and without norms behind them: one step
 * of so many rows, then each kind left out, then none. */
enum { WITHOUT_ROWS = 80 };

static void step_of(struct harness *h, uint32_t rows, uint32_t position)
{
    struct step *step = harness_step(h);

    for (uint32_t i = 0; i < rows; i++) {
        int32_t token = (int32_t)(i % h->plan->vocab_tokens);
        if (!position) harness_open_slot(h, step, i, NULL, 64);
        harness_segment(step, i, &token, 1, position, 0, 1);
    }
    harness_submit(h, step);
    harness_wait(h, step->seq_no);
    device_release(h->device, step->seq_no);
}

TEST(steps_without_a_kind_of_stage_run_for_every_kind_of_product)
{
    static const char *models[] = {"models/llama_plain-f16", "models/gemma3_text"};
    static const uint32_t rows[] = {1, 9, 24, WITHOUT_ROWS};
    struct harness_options options = {.device = {.kind = DEVICE_CUDA, .compute_dtype = DTYPE_BF16},
                                      .slots = WITHOUT_ROWS,
                                      .logits_max = WITHOUT_ROWS,
                                      .context_tokens = 64};

    if (!have_gpu()) skip();
    for (size_t m = 0; m < 2; m++) {
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            struct harness h;
            uint32_t position = 0;
            harness_open(&h, test_golden(models[m]), &options);
            cuda_use_chain(h.device, false);
            step_of(&h, rows[i], position++);
            for (uint32_t kind = STAGE_EMBED + 1; kind < STAGE_SAMPLE; kind++) {
                EXPECT_TRUE(cuda_leave_out(h.device, rows[i], 1u << kind));
                step_of(&h, rows[i], position++);
            }
            EXPECT_TRUE(cuda_leave_out(h.device, rows[i], 0));
            step_of(&h, rows[i], position);
            EXPECT_TRUE(device_health(h.device).ok);
            harness_close(&h);
        }
    }
}

/* That launch has the bits of the products for few rows; where one kind of products runs up to 64 rows, it must not run at all. */
TEST(all_layers_in_one_launch_are_not_for_a_batch_invariant_device)
{
    struct harness_options options = {
        .device = {.kind = DEVICE_CUDA, .compute_dtype = DTYPE_BF16, .batch_invariant = true},
        .model = {.dummy = true, .dummy_seed = 5},
        .slots = 2,
        .context_tokens = 256};
    struct harness h;

    if (!have_gpu()) skip();
    harness_open(&h, INFERD_SOURCE_DIR "/configs/models/SmolLM2-135M", &options);
    bool sm_90 = strstr(device_description(h.device), "sm_90") != NULL;
    bool has_it = cuda_use_chain(h.device, true);
    harness_close(&h);
    if (!sm_90) skip();
    EXPECT_TRUE(!has_it);
}

TEST(the_type_of_computing_follows_the_weights)
{
    static const struct {
        const char *name;
        const char *says; /* of the device's description */
    } models[] = {{"models/qwen2_gqa7-bf16", ", bf16,"},
                  {"models/llama_plain-f16", ", f16,"},
                  {"models/llama_awkward", ", f16,"},
                  {"models/gemma3_text", ", bf16,"},
                  {"quants/llama_q4_k.gguf", ", f16,"}};

    if (!have_gpu()) skip();
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct harness_options options = {.device = {.kind = DEVICE_CUDA}};
        const char *found = test_golden(models[i].name);
        struct harness h;
        char path[4096];
        if (!found) continue;
        snprintf(path, sizeof path, "%s", found);
        harness_open(&h, path, &options);
        if (!strstr(device_description(h.device), models[i].says))
            fail_msg("%s: \"%s\"", models[i].name, device_description(h.device));
        harness_close(&h);
    }
}

/* Token by token: decode steps of 1 row, then of 40. */
static void check_company(const char *model, enum dtype type)
{
    enum { N = 40, TOKENS = 70 };
    struct harness_options options = {.device = {.kind = DEVICE_CUDA, .compute_dtype = type},
                                      .slots = N};
    struct harness_seq seqs[N];
    float *alone[N], *kept = NULL;
    struct harness h;
    char path[4096];
    const char *found = test_golden(model);

    if (!found) {
        print_message("  skipped %s: not found\n", model);
        return;
    }
    snprintf(path, sizeof path, "%s", found);
    options.device.batch_invariant = true; /* algorithms by rule, not by the clock */
    for (int run = 0; run < 3; run++) {    /* graphs; graphs again; launch by launch */
        options.device.enforce_eager = run == 2;
        harness_open(&h, path, &options);
        /* without TMA the library runs few rows too, and chooses by their number */
        bool invariant = strstr(device_description(h.device), "sm_90") != NULL;
        size_t bytes = (size_t)TOKENS * h.plan->vocab_rows * sizeof(float);
        for (uint32_t i = 0; i < N; i++) {
            int32_t *tokens = malloc(TOKENS * sizeof *tokens);
            uint32_t count = run == 0 && i == 3 ? 5 : TOKENS;
            for (uint32_t t = 0; t < TOKENS; t++)
                tokens[t] = (int32_t)((i * 131 + t * t * 7 + 3) % h.plan->vocab_tokens);
            alone[i] = malloc(bytes);
            seqs[i] = (struct harness_seq){tokens, count, 0, alone[i]};
            if (i % 5 == 0) harness_run(&h, &seqs[i], 1, (struct harness_cut){.chunk_max = 1});
            seqs[i].logits = malloc(bytes);
        }
        harness_run(&h, seqs, N, (struct harness_cut){.chunk_max = 1});
        for (uint32_t i = 0; i < N; i += 5)
            if (invariant && memcmp(seqs[i].logits, alone[i], bytes) != 0)
                fail_msg("%s: sequence %u of 40 has other bytes than alone (run %d)", model, i,
                         run);
        if (kept && memcmp(kept, seqs[0].logits, bytes) != 0)
            fail_msg("%s: other bytes %s", model,
                     run == 1 ? "after a second open" : "without graphs");
        if (!kept) {
            kept = malloc(bytes);
            memcpy(kept, seqs[0].logits, bytes);
        }
        for (uint32_t i = 0; i < N; i++)
            free(alone[i]), free(seqs[i].logits), free((void *)(uintptr_t)seqs[i].tokens);
        harness_close(&h);
    }
    free(kept);
}

TEST(decode_gives_the_same_bytes_in_any_company_and_without_graphs)
{
    if (!have_gpu()) skip();
    check_company("models/llama_plain-bf16", DTYPE_BF16);
    check_company("models/qwen2_gqa7-f16", DTYPE_F16);
    check_company("models/qwen3_qknorm-bf16", DTYPE_BF16);
    check_company("models/mistral_window", DTYPE_F16);
}

/* Decode steps of 1..16 rows at random, sequences that end and come back in other blocks: a hash of each step's logits. */
enum { REPLAYS = 1000, REPLAY_SLOTS = 16, REPLAY_TOKENS = 50 };

static void other_blocks(struct harness *h, uint32_t slot)
{
    for (uint32_t g = 0; g < h->plan->group_count; g++) {
        uint32_t *blocks = h->blocks[g] + slot * h->per_slot[g], first = blocks[0];
        memmove(blocks, blocks + 1, (h->per_slot[g] - 1) * sizeof *blocks);
        blocks[h->per_slot[g] - 1] = first;
    }
}

static void replay(const char *path, enum dtype type, bool eager, uint64_t hashes[REPLAYS])
{
    struct harness_options options = {
        .device = {.kind = DEVICE_CUDA, .compute_dtype = type, .enforce_eager = eager}};
    uint32_t done[REPLAY_SLOTS] = {0}, state = 4711;
    struct harness h;

    harness_open(&h, path, &options);
    for (uint32_t k = 0; k < REPLAYS; k++) {
        struct step *step = harness_step(&h);
        uint32_t rows = 1 + (state = state * 1664525u + 1013904223u) / 65536 % REPLAY_SLOTS;
        step->flags = STEP_KEEP_LOGITS;
        for (uint32_t i = 0; i < rows; i++) {
            uint32_t slot = (k * 3 + i) % REPLAY_SLOTS;
            int32_t token = (int32_t)((k * 31 + slot * 7 + done[slot]) % h.plan->vocab_tokens);
            if (done[slot] == REPLAY_TOKENS) done[slot] = 0;
            if (!done[slot]) {
                other_blocks(&h, slot);
                harness_open_slot(&h, step, slot, NULL, REPLAY_TOKENS);
            }
            harness_segment(step, slot, &token, 1, done[slot]++, 0, 1);
        }
        harness_submit(&h, step);
        hashes[k] = hash_bytes(harness_wait(&h, step->seq_no)->logits,
                               (size_t)rows * h.plan->vocab_rows * sizeof(float));
        device_release(h.device, step->seq_no);
    }
    harness_close(&h);
}

TEST(a_thousand_replays_with_changing_tables_give_the_bytes_of_single_launches)
{
    static const struct {
        const char *name;
        enum dtype type;
    } models[] = {{"models/llama_plain-f16", DTYPE_F16}, {"models/qwen2_gqa7-bf16", DTYPE_BF16}};
    static uint64_t hashes[3][REPLAYS];

    if (!have_gpu()) skip();
    for (size_t i = 0; i < 2; i++) {
        char path[4096];
        const char *found = test_golden(models[i].name);
        if (!found) {
            print_message("  skipped %s: not found\n", models[i].name);
            continue;
        }
        snprintf(path, sizeof path, "%s", found);
        for (int run = 0; run < 3; run++) /* graphs, graphs again, launch by launch */
            replay(path, models[i].type, run == 2, hashes[run]);
        for (uint32_t k = 0; k < REPLAYS; k++) {
            if (hashes[1][k] != hashes[0][k])
                fail_msg("%s: step %u has other bytes the second time", models[i].name, k);
            if (hashes[2][k] != hashes[0][k])
                fail_msg("%s: step %u has other bytes without graphs", models[i].name, k);
        }
    }
}

TEST(steps_that_run_ahead_draw_what_the_logits_say)
{
    enum { PROMPT = 40, COUNT = 60 };
    struct harness_options options = {.device = {.kind = DEVICE_CUDA, .compute_dtype = DTYPE_BF16},
                                      .steps_inflight = 3};
    const char *found = test_golden("models/llama_plain-bf16");
    int32_t tokens[PROMPT + COUNT];
    struct harness h;
    char path[4096];

    if (!have_gpu()) skip();
    if (!found) skip();
    snprintf(path, sizeof path, "%s", found);
    harness_open(&h, path, &options);
    for (uint32_t t = 0; t < PROMPT; t++)
        tokens[t] = (int32_t)((t * 37 + 11) % h.plan->vocab_tokens);
    harness_greedy(&h, tokens, PROMPT, COUNT, tokens + PROMPT);
    uint32_t vocab = h.plan->vocab_rows;
    float *logits = malloc((size_t)(PROMPT + COUNT) * vocab * sizeof *logits);
    struct harness_seq seq = {tokens, PROMPT + COUNT, 0, logits};
    harness_run(&h, &seq, 1, (struct harness_cut){.chunk_max = 1});
    for (uint32_t t = PROMPT - 1; t + 1 < PROMPT + COUNT; t++) {
        const float *row = logits + (size_t)t * vocab;
        float chosen = row[tokens[t + 1]], top = chosen;
        for (uint32_t v = 0; v < h.plan->vocab_tokens; v++)
            if (row[v] > top) top = row[v];
        /* the prompt went through other kernels: near ties may fall the other way */
        if (top - chosen > 0.05f)
            fail_msg("token %u: %g below the largest", t + 1, (double)(top - chosen));
    }
    free(logits);
    harness_close(&h);
}

TEST(a_block_copied_out_and_in_elsewhere_keeps_its_bytes)
{
    struct harness_options options = {.device = {.kind = DEVICE_CUDA, .compute_dtype = DTYPE_BF16}};
    const char *found = test_golden("models/llama_plain-bf16");
    int32_t tokens[20];
    struct harness h;
    char path[4096];

    if (!have_gpu()) skip();
    if (!found) skip();
    snprintf(path, sizeof path, "%s", found);
    harness_open(&h, path, &options);
    for (uint32_t t = 0; t < 20; t++)
        tokens[t] = (int32_t)t;
    float *logits = malloc(20 * h.plan->vocab_rows * sizeof *logits);
    struct harness_seq seq = {tokens, 20, 0, logits};
    harness_run(&h, &seq, 1, (struct harness_cut){0});
    uint64_t bytes = device_kv_block_bytes(h.device, 0);
    struct device_memory memory;
    struct error err;
    EXPECT_OK_ERR(device_memory_plan(&options.device, h.plan, &h.limits, &memory, &err), &err);
    EXPECT_EQ(memory.kv_block_bytes[0], bytes);
    unsigned char *a = malloc(bytes), *b = malloc(bytes);
    uint32_t from = h.blocks[0][0], to = h.blocks[0][h.limits.kv_blocks[0] - 1];
    EXPECT_OK(device_kv_copy_out(h.device, 0, from, a));
    EXPECT_OK(device_kv_copy_in(h.device, 0, to, a));
    EXPECT_OK(device_kv_copy_out(h.device, 0, to, b));
    EXPECT_TRUE(memcmp(a, b, bytes) == 0);
    uint32_t used = 0;
    for (uint64_t i = 0; i < bytes; i++)
        used += a[i] != 0;
    EXPECT_TRUE(used > bytes / 4);
    free(a), free(b), free(logits);
    harness_close(&h);
}
