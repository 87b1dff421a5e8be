/* test_sample.c - the device draws what the CPU draws.
 * Method: random logits and random sampling parameters (penalties, bans, bias, masks, top-k, top-p, min-p, temperatures,
 * targets, logprobs); every row through src/device/cpu/cpu_sample.c and through both kernels. Tokens must agree but for
 * draws that fall within rounding of a border (under 1 in 500); filters alone are exact. */
#include <math.h>
#include <stdlib.h>

#include "device/cpu/cpu_sample.h"
#include "gpu.h"

#define sample_row gpu_sample_row /* both sides name their row so */
#include "sample.h"
#undef sample_row

enum { SLOTS = 24, BANNED = 4, BIAS = 6, TOPS = 20 };

struct bench {
    uint32_t V, tokens, stride;
    struct slot_params params[SLOTS];
    struct step_open opens[SLOTS];
    int32_t ids[SLOTS * (BANNED + 40)];
    struct slot_bias biases[SLOTS * BIAS];
    uint32_t id_count, bias_count;
};

static void random_params(struct bench *b, uint32_t slot, bool greedy)
{
    struct step_open *o = &b->opens[slot];
    float temperatures[] = {0.3f, 0.7f, 1, 1.5f}, top_ps[] = {1, 0.9f, 0.5f, 0.05f},
          min_ps[] = {0, 0.05f, 0.3f};
    int32_t top_ks[] = {0, 1, 5, 40, 1000, (int32_t)b->V + 5};

    *o = (struct step_open){.slot = slot,
                            .temperature = greedy ? 0 : temperatures[test_rand_below(4)],
                            .top_p = top_ps[test_rand_below(4)],
                            .min_p = min_ps[test_rand_below(3)],
                            .top_k = top_ks[test_rand_below(6)],
                            .repetition_penalty = 1,
                            .seed = test_rand(),
                            .top_logprobs = test_rand_below(2) * test_rand_below(TOPS + 1),
                            .want_logprobs = test_rand_below(2)};
    if (test_rand_below(2)) o->ban_until = 200, o->banned_count = test_rand_below(BANNED + 1);
    if (test_rand_below(2)) o->bias_count = test_rand_below(BIAS + 1);
    if (test_rand_below(2))
        o->repetition_penalty = 1.3f, o->frequency_penalty = 0.2f, o->presence_penalty = 0.4f,
        o->prompt_count = 20, o->sampled_count = 15;
    o->banned_first = b->id_count, b->id_count += o->banned_count;
    o->prompt_first = b->id_count, b->id_count += o->prompt_count;
    o->sampled_first = b->id_count, b->id_count += o->sampled_count;
    o->bias_first = b->bias_count, b->bias_count += o->bias_count;
    for (uint32_t i = o->banned_first; i < b->id_count; i++)
        b->ids[i] = (int32_t)test_rand_below(b->tokens);
    for (uint32_t i = o->bias_first; i < b->bias_count; i++)
        b->biases[i] = (struct slot_bias){(int32_t)test_rand_below(b->tokens),
                                          (float)(test_rand_unit() * 8 - 4)};
    b->params[slot] = (struct slot_params){.temperature = o->temperature,
                                           .top_p = o->top_p,
                                           .min_p_log = o->min_p > 0 ? logf(o->min_p) : -INFINITY,
                                           .top_k = o->top_k,
                                           .repetition_penalty = o->repetition_penalty,
                                           .frequency_penalty = o->frequency_penalty,
                                           .presence_penalty = o->presence_penalty,
                                           .ban_until = o->ban_until,
                                           .seed = o->seed,
                                           .top_logprobs = o->top_logprobs,
                                           .want_logprobs = o->want_logprobs,
                                           .banned_count = o->banned_count,
                                           .bias_count = o->bias_count,
                                           .counts_seen = sample_wants_seen(o),
                                           .slot = slot,
                                           .banned_first = o->banned_first,
                                           .prompt_first = o->prompt_first,
                                           .prompt_count = o->prompt_count,
                                           .sampled_first = o->sampled_first,
                                           .sampled_count = o->sampled_count,
                                           .bias_first = o->bias_first};
}

static void cpu_open(const struct bench *b, uint32_t slot, struct sample_slot *out)
{
    size_t bytes = sizeof(struct step) + sizeof b->opens + sizeof b->ids + sizeof b->biases;
    struct step *step = calloc(1, bytes);

    step->opens_at = sizeof *step, step->ids_at = step->opens_at + sizeof b->opens;
    step->biases_at = step->ids_at + sizeof b->ids;
    memcpy(step_opens(step), b->opens, sizeof b->opens);
    memcpy(step_ids(step), b->ids, sizeof b->ids);
    memcpy(step_biases(step), b->biases, sizeof b->biases);
    sample_slot_open(out, step, slot, b->V);
    free(step);
}

/* kind: 0 normal, 1 steps of a coarse grid (ties), 2 all equal, 3 one NaN, 4 one infinity */
static void fill_logits(float *x, uint32_t V, int kind)
{
    for (uint32_t i = 0; i < V; i++) {
        double u = test_rand_unit() + test_rand_unit() + test_rand_unit() - 1.5;
        x[i] = kind == 2 ? 1.5f : kind == 1 ? (float)floor(u * 6) : (float)(u * 8);
    }
    if (kind == 3) x[test_rand_below(V)] = NAN;
    if (kind == 4) x[test_rand_below(V)] = INFINITY;
}

static void compare(uint32_t V, uint32_t tokens, bool greedy, int kinds, bool clusters,
                    uint32_t *drawn, uint32_t *different)
{
    NEED_GPU(KERNEL_BF16);
    if (!clusters)
        ctx.capability = 80; /* the way of other devices and of very large vocabularies */
    struct bench *b = calloc(1, sizeof *b);
    uint32_t mask_words = (V + 31) / 32, stride = (V + 63) / 64 * 64;
    float *logits = calloc((size_t)SLOTS * stride, sizeof *logits);
    uint32_t *masks = malloc((size_t)SLOTS * mask_words * 4);
    struct gpu_sample_row rows[SLOTS];

    b->V = V, b->tokens = tokens, b->stride = stride;
    for (uint32_t i = 0; i < SLOTS * mask_words; i++)
        masks[i] = (uint32_t)test_rand();
    for (uint32_t s = 0; s < SLOTS; s++) {
        random_params(b, s, greedy);
        fill_logits(logits + (size_t)s * stride, V, (int)(s % (uint32_t)kinds));
        rows[s] =
            (struct gpu_sample_row){.slot = (int32_t)s,
                                    .position = 100 + s * 20,
                                    .drawn = 0,
                                    .round = 0,
                                    .target = test_rand_below(6) ? -1 : (int32_t)test_rand_below(V),
                                    .mask = test_rand_below(4) ? -1 : (int32_t)s};
    }
    uint32_t chunks = (V + SAMPLE_CHUNK - 1) / SAMPLE_CHUNK;
    struct slot_state state = {gpu_scratch(sizeof b->params),
                               gpu_scratch(SLOTS * BANNED * 4),
                               gpu_scratch(SLOTS * BIAS * sizeof(struct slot_bias)),
                               gpu_scratch((size_t)SLOTS * (V + (V & 1)) * 2),
                               gpu_poisoned(SLOTS * STATE_REFS * 4),
                               SLOTS,
                               BANNED,
                               BIAS,
                               V + (V & 1)};
    struct sample_args a = {.rows = SLOTS,
                            .in = gpu_upload(rows, sizeof rows),
                            .logits = gpu_upload(logits, (size_t)SLOTS * stride * 4),
                            .stride = stride,
                            .vocab_rows = V,
                            .vocab_tokens = tokens,
                            .masks = gpu_upload(masks, (size_t)SLOTS * mask_words * 4),
                            .mask_words = mask_words,
                            .state = state,
                            .work = gpu_scratch((size_t)SLOTS * stride * 4),
                            .partials = gpu_scratch(SLOTS * chunks * sizeof(struct sample_partial)),
                            .counters = gpu_zeroed(SLOTS * 4),
                            .out = gpu_poisoned(SLOTS * sizeof(struct sample_output)),
                            .tops = gpu_poisoned(SLOTS * TOPS * sizeof(struct sample_top)),
                            .top_stride = TOPS};
    EXPECT_CUDA(state_open(&ctx, &state, gpu_upload(b->params, sizeof b->params), SLOTS,
                           gpu_upload(b->ids, sizeof b->ids),
                           gpu_upload(b->biases, sizeof b->biases)));
    EXPECT_CUDA(sample_rows(&ctx, &a));
    struct sample_output out[SLOTS];
    struct sample_top tops[SLOTS * TOPS];
    int32_t last[SLOTS * STATE_REFS];
    gpu_download(&ctx, a.out, out, sizeof out);
    gpu_download(&ctx, a.tops, tops, sizeof tops);
    gpu_download(&ctx, state.last, last, sizeof last);

    struct sample_scratch scratch = {malloc(V * 4), malloc(V * 4), malloc(V * 4), malloc(V * 4),
                                     malloc(V * 8)};
    for (uint32_t s = 0; s < SLOTS; s++) {
        struct sample_slot slot = {.banned = malloc(BANNED * 4),
                                   .biases = malloc(BIAS * sizeof(struct step_bias)),
                                   .seen = calloc(V, 2)};
        struct step_output want;
        struct top_logprob want_tops[TOPS];
        cpu_open(b, s, &slot);
        struct sample_row row = {.kernels = cpu_kernels(CPU_ISA_GENERIC),
                                 .logits = logits + (size_t)s * stride,
                                 .vocab_rows = V,
                                 .vocab_tokens = tokens,
                                 .mask = rows[s].mask >= 0 ? masks + (size_t)s * mask_words : NULL,
                                 .position = rows[s].position,
                                 .target = rows[s].target};
        sample_row(&row, &slot, &scratch, &want, want_tops);
        EXPECT_EQ(out[s].flags, want.flags);
        if (!want.flags) {
            *drawn += 1;
            if (out[s].token != want.token) {
                print_message("V %u slot %u: token %d, CPU %d (T %g k %d p %g min_p %g)\n", V, s,
                              out[s].token, want.token, (double)b->opens[s].temperature,
                              b->opens[s].top_k, (double)b->opens[s].top_p,
                              (double)b->opens[s].min_p);
                *different += 1;
            } else {
                EXPECT_NEAR(out[s].logprob, want.logprob, 1e-4);
                if (rows[s].target < 0) EXPECT_EQ(last[s * STATE_REFS], want.token);
            }
            EXPECT_EQ(out[s].top_count, want.top_count);
            for (uint32_t i = 0; i < want.top_count; i++) {
                EXPECT_EQ(tops[s * TOPS + i].id, want_tops[i].id);
                EXPECT_NEAR(tops[s * TOPS + i].logprob, want_tops[i].logprob, 1e-4);
            }
        }
        free(slot.banned), free(slot.biases), free(slot.seen);
    }
    free(scratch.work), free(scratch.z), free(scratch.p), free(scratch.ids), free(scratch.heap);
    free(logits), free(masks), free(b);
    gpu_end(&ctx);
}

TEST(greedy_rows_are_those_of_the_cpu)
{
    uint32_t drawn = 0, different = 0;

    for (int i = 0; i < 8; i += gpu_small() ? 5 : 1)
        compare(i % 2 ? 49152 : 300, i % 2 ? 49152 : 260, true, i % 4 < 2 ? 1 : 5, i < 4, &drawn,
                &different);
    EXPECT_EQ(different, 0);
}

TEST(draws_are_those_of_the_cpu)
{
    uint32_t drawn = 0, different = 0;

    for (int i = 0; i < 48; i += gpu_small() && i % 4 == 2 ? 10 : 1)
        compare((uint32_t[]){300, 5000, 49153, 151936}[i % 4],
                (uint32_t[]){260, 5000, 49152, 151646}[i % 4], false, i % 24 < 12 ? 1 : 5, i < 24,
                &drawn, &different);
    EXPECT_TRUE(drawn == 0 || different * 250 <= drawn);
}

/* Vocabularies smaller than what a block or a cluster takes at once. */
TEST(a_vocabulary_of_a_few_tokens_is_drawn_from_as_the_cpu_does)
{
    static const uint32_t sizes[][2] = {{1, 1}, {2, 1}, {5, 3}, {33, 33}, {64, 60}};
    uint32_t drawn = 0, different = 0;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int clusters = 0; clusters < 2; clusters++)
            compare(sizes[i][0], sizes[i][1], i % 2, 1, clusters, &drawn, &different);
    EXPECT_TRUE(different * 100 <= drawn);
}
