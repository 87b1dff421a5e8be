/* test_step.c - a step within its limits passes step_check(); each way out of them is refused.
 * Method: a sound step, then the same step with one field wrong; the sentence must name what is wrong. */
#include "test.h"

#include <math.h>
#include <stdlib.h>

#include "device/step.h"

static const struct plan plan = {
    .hidden = 8,
    .vocab_rows = 100,
    .vocab_tokens = 90,
    .context_tokens = 256,
    .group_count = 2,
    .groups = {{.block_tokens = 16}, {.block_tokens = 32, .window = 64}},
};
static const struct device_limits limits = {
    .slots_max = 4,
    .rows_max = 64,
    .logits_max = 8,
    .steps_inflight = 2,
    .context_tokens = 256,
    .top_logprobs_max = 5,
    .kv_blocks = {40, 20},
    .bias_max = 3,
    .banned_max = 2,
};

static struct step *sound_step(void)
{
    struct step *s = step_init(aligned_alloc(64, step_bytes(&plan, &limits)), &plan, &limits);

    step_clear(s, 7);
    step_segments(s)[0] = (struct step_segment){.slot = 2,
                                                .first_row = 0,
                                                .rows = 3,
                                                .context_len = 10,
                                                .logits_first = 2,
                                                .logits_count = 1};
    step_segments(s)[1] = (struct step_segment){.slot = 0,
                                                .first_row = 3,
                                                .rows = 1,
                                                .context_len = 255,
                                                .logits_count = 1,
                                                .output_first = 1};
    s->segment_count = 2, s->row_count = 4, s->output_count = 2;
    memcpy(step_tokens(s), (int32_t[]){5, 99, 0, TOKEN_OF(3, 1)}, 4 * sizeof(int32_t));
    memcpy(step_targets(s), (int32_t[]){TARGET_SAMPLE, 42}, 2 * sizeof(int32_t));
    step_tables(s)[0] = (struct step_table_change){2, 0, 15, 39};
    step_tables(s)[1] = (struct step_table_change){2, 1, 7, 19};
    s->table_count = 2;
    step_copies(s)[0] = (struct step_copy){1, 3, 4};
    s->copy_count = 1;
    memcpy(step_ids(s), (int32_t[]){1, 2, 3}, 3 * sizeof(int32_t));
    s->id_count = 3;
    step_biases(s)[0] = (struct step_bias){4, -1.5f};
    s->bias_count = 1;
    step_opens(s)[0] = (struct step_open){.slot = 2,
                                          .temperature = 0.7f,
                                          .top_p = 0.9f,
                                          .min_p = 0.05f,
                                          .top_k = 40,
                                          .repetition_penalty = 1.1f,
                                          .top_logprobs = 5,
                                          .want_logprobs = 1,
                                          .banned_first = 0,
                                          .banned_count = 2,
                                          .prompt_first = 2,
                                          .prompt_count = 1,
                                          .bias_count = 1};
    s->open_count = 1;
    return s;
}

TEST(a_sound_step_passes)
{
    struct step *s = sound_step();
    struct error err = {0};

    EXPECT_OK_ERR(step_check(s, &plan, &limits, &err), &err);
    EXPECT_EQ(token_is_ref(TOKEN_OF(3, 1)), 1);
    EXPECT_EQ(token_ref_slot(TOKEN_OF(3, 1)), 3);
    EXPECT_EQ(token_ref_index(TOKEN_OF(3, 1)), 1);
    free(s);
}

/* Makes a sound step, runs `change` on it, and wants a refusal with `word` in its sentence. */
#define REFUSED(word, change)                                             \
    do {                                                                  \
        struct step *s = sound_step();                                    \
        struct step_segment *seg = step_segments(s);                      \
        struct step_open *open = step_opens(s);                           \
        struct error err = {0};                                           \
        (void)seg, (void)open;                                            \
        change;                                                           \
        if (step_check(s, &plan, &limits, &err) != STATUS_INVALID)        \
            fail_msg("accepted: %s", #change);                            \
        if (!strstr(err.message, word))                                   \
            fail_msg("%s: the sentence is \"%s\"", #change, err.message); \
        free(s);                                                          \
    } while (0)

TEST(headers_and_counts_out_of_range_are_refused)
{
    REFUSED("seq_no", s->seq_no = 0);
    REFUSED("layout", s->tokens_at += 64);
    REFUSED("layout", s->row_cap++);
    REFUSED("layout", s->bytes -= 64);
    REFUSED("flags", s->flags = 0x80);
    REFUSED("capacity", s->segment_count = UINT32_MAX);
    REFUSED("capacity", s->row_count = s->row_cap + 1);
    REFUSED("capacity", s->output_count = s->output_cap + 1);
    REFUSED("capacity", s->table_count = s->table_cap + 1);
    REFUSED("capacity", s->copy_count = s->copy_cap + 1);
    REFUSED("capacity", s->open_count = s->open_cap + 1);
    REFUSED("capacity", s->id_count = s->id_cap + 1);
    REFUSED("capacity", s->bias_count = s->bias_cap + 1);
}

TEST(segments_out_of_range_are_refused)
{
    REFUSED("slot", seg[0].slot = 4);
    REFUSED("second", seg[1].slot = 2);
    REFUSED("rows", seg[0].rows = 0);
    REFUSED("rows", seg[0].first_row = 1);
    REFUSED("rows", seg[0].rows = UINT32_MAX);
    REFUSED("rows", seg[1].rows = 2);
    REFUSED("position", seg[1].context_len = 256);
    REFUSED("position", seg[1].context_len = UINT32_MAX);
    REFUSED("logits", seg[0].logits_first = 3);
    REFUSED("logits", seg[0].logits_count = UINT32_MAX);
    REFUSED("outputs", seg[1].output_first = 0);
    REFUSED("outputs", s->output_count = 1);
    REFUSED("outputs", s->output_count = 3);
    REFUSED("adapter", seg[0].adapter = 1);
}

TEST(tokens_and_ids_out_of_range_are_refused)
{
    REFUSED("token", step_tokens(s)[0] = 100);
    REFUSED("token", step_tokens(s)[0] = TOKEN_OF(4, 0));
    REFUSED("target", step_targets(s)[1] = 100);
    REFUSED("target", step_targets(s)[1] = -2);
    REFUSED("id", step_ids(s)[0] = 100);
    REFUSED("id", step_ids(s)[0] = -1);
    REFUSED("bias", step_biases(s)[0].id = -1);
    REFUSED("bias", step_biases(s)[0].bias = NAN);
    REFUSED("bias", step_biases(s)[0].bias = INFINITY);
}

TEST(tables_and_copies_out_of_range_are_refused)
{
    REFUSED("table", step_tables(s)[0].slot = 4);
    REFUSED("table", step_tables(s)[0].group = 2);
    REFUSED("table", step_tables(s)[0].index = 16);
    REFUSED("table", step_tables(s)[1].index = 8);
    REFUSED("table", step_tables(s)[0].block = 40);
    REFUSED("table", step_tables(s)[1].block = 20);
    REFUSED("copy", step_copies(s)[0].group = 2);
    REFUSED("copy", step_copies(s)[0].from = 20);
    REFUSED("copy", step_copies(s)[0].to = 3);
}

TEST(sampling_parameters_out_of_range_are_refused)
{
    REFUSED("slot", open->slot = 4);
    REFUSED("temperature", open->temperature = -1);
    REFUSED("temperature", open->temperature = NAN);
    REFUSED("top_p", open->top_p = 0);
    REFUSED("top_p", open->top_p = 1.5f);
    REFUSED("min_p", open->min_p = 2);
    REFUSED("penalties", open->repetition_penalty = 0);
    REFUSED("penalties", open->frequency_penalty = INFINITY);
    REFUSED("top logprobs", open->top_logprobs = 6);
    REFUSED("top logprobs", open->want_logprobs = 2);
    REFUSED("banned", open->banned_count = 3);
    REFUSED("biases", open->bias_count = 4);
    REFUSED("names ids", open->banned_first = 2);
    REFUSED("names ids", open->prompt_count = UINT32_MAX);
    REFUSED("names ids", open->sampled_first = 4);
    REFUSED("names ids", open->bias_first = 1);
}

/* Any bytes in the arrays, sound counts or not: step_check ends with a verdict and reads nothing outside of the block. */
TEST(random_bytes_are_judged_without_harm)
{
    size_t bytes = step_bytes(&plan, &limits);
    struct step *s = sound_step();

    for (uint32_t round = 0; round < (test_long() ? 200000u : 20000u); round++) {
        struct error err;
        unsigned char *copy = test_guarded_copy(s, bytes);
        for (uint32_t i = 0; i <= round % 4; i++) {
            size_t at = test_rand_below(4) ? test_rand_below(600) : test_rand() % bytes;
            copy[at % bytes] = (unsigned char)test_rand();
        }
        step_check((const struct step *)(const void *)copy, &plan, &limits, &err);
        test_guarded_free(copy, bytes);
    }
    free(s);
}
