/* test_invariance.c - on the CPU a request gets the same tokens and the same bytes of log probabilities whoever shares its batch.
 * Method: random requests on real models (of made-up weights with full attention; with sliding windows of 32 tokens beside it, and alone); each alone, its prompt in one piece, without prefix sharing; then all of them at
 * random times through engines that cut prompts, share beginnings and have too few KV blocks. The counters must show that all of that
 * happened; of those that gave way little may be computed again. In exact and in fast numerics. What a model with windows gave alone is what it gives to the same text through tables that keep all blocks. */
#include <math.h>
#include <stdlib.h>

#include "engine/engine.h"
#include "model_harness.h"
#include "test.h"

#include <time.h>

enum { SLOTS = 6, CONTEXT = 200, PROMPT_MAX = 100, ANSWER_MAX = 80, REQUESTS = 40 };

struct wish { /* a request, and what it got when it was alone */
    int32_t prompt[PROMPT_MAX];
    uint32_t prompt_count, max_tokens;
    struct request_sampling sampling;
    int32_t tokens[ANSWER_MAX];
    float logprobs[ANSWER_MAX];
};

static void random_wish(struct wish *w)
{
    uint32_t alike = test_rand_below(3) ? test_rand_below(PROMPT_MAX) : 0,
             text = test_rand_below(2);

    w->prompt_count = 1 + test_rand_below(PROMPT_MAX);
    w->max_tokens = 1 + test_rand_below(ANSWER_MAX);
    for (uint32_t i = 0; i < w->prompt_count; i++)
        w->prompt[i] = (int32_t)(i < alike ? (i * 7 + text * 5) % 280 : test_rand_below(280));
    w->sampling = (struct request_sampling){
        .temperature = test_rand_below(3) ? 1 : 0,
        .top_p = test_rand_below(2) ? 1 : 0.9f,
        .top_k = test_rand_below(3) ? 0 : 20,
        .repetition_penalty = test_rand_below(3) ? 1 : 1.2f,
        .frequency_penalty = test_rand_below(4) ? 0 : 0.5f,
        .seed = test_rand(),
    };
}

static struct request *make_request(const struct wish *w)
{
    struct request *r = request_create(0);
    struct request_prompt *prompt = arena_alloc(&r->arena, sizeof *prompt);

    *prompt = (struct request_prompt){w->prompt, w->prompt_count};
    r->prompt_count = r->best_of = 1;
    r->prompts = prompt;
    r->sampling = w->sampling;
    r->max_tokens = w->max_tokens;
    r->want_logprobs = true;
    r->tenant = 1;
    r->ring = output_ring_create(128, 0);
    return r;
}

struct subject {
    const char *model;
    bool dummy, windows, windows_alone;
    enum cpu_numerics numerics;
};

static struct engine *start(struct harness *h, const struct subject *subject, uint32_t rows,
                            uint32_t blocks, bool alone)
{
    struct harness_options o = {
        .device = {.kind = DEVICE_CPU, .threads = 2, .numerics = subject->numerics},
        .model = {.dummy = subject->dummy, .dummy_seed = 5},
        .slots = SLOTS,
        .rows_max = rows,
        .logits_max = SLOTS,
        .context_tokens = CONTEXT,
        .kv_blocks = blocks,
    };
    struct engine_options options = {.max_num_seqs = alone ? 1 : SLOTS,
                                     .max_num_batched_tokens = rows,
                                     .queue_seqs_max = 512,
                                     .queue_tokens_max = 1 << 20,
                                     .client_stall_ms = 60000,
                                     .context_tokens = CONTEXT,
                                     .no_prefix_sharing = alone};
    const char *path = test_golden(subject->model);
    struct engine *engine;
    struct error err;

    if (!path) fail_msg("%s is not there", subject->model);
    harness_open(h, path, &o);
    EXPECT_OK_ERR(engine_create(&options, h->device, h->plan, &h->limits, &engine, &err), &err);
    return engine;
}

static void submit(struct engine *engine, struct request *r)
{
    struct error err;
    uint32_t retry;

    EXPECT_OK_ERR(engine_submit(engine, r, &retry, &err), &err);
}

/* Reads an answer to its end: into w, or compared with what is there. */
static void read_answer(struct request *r, struct wish *w, bool compare)
{
    struct output out;
    uint32_t count = 0;

    for (;;) {
        if (output_ring_pop(r->ring, &out)) {
            nanosleep(&(struct timespec){0, 50000}, NULL);
            continue;
        }
        EXPECT_TRUE(out.kind != OUTPUT_ERROR);
        if (out.kind == OUTPUT_FINISHED) break;
        if (compare) {
            EXPECT_EQ(out.token, w->tokens[count]);
            EXPECT_TRUE(memcmp(&out.logprob, &w->logprobs[count], sizeof out.logprob) == 0);
        }
        w->tokens[count] = out.token;
        w->logprobs[count] = out.logprob;
        count++;
    }
    EXPECT_EQ(count, w->max_tokens);
    request_unref(r);
}

static void run_alone(struct wish *wishes, const struct subject *subject)
{
    struct harness h;
    struct engine *engine = start(&h, subject, PROMPT_MAX, 0, true);

    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct request *r = make_request(&wishes[i]);

        submit(engine, r);
        read_answer(r, &wishes[i], false);
    }
    engine_destroy(engine);
    harness_close(&h);
}

/* The same text at once, through tables that keep every block: the answers' tokens had these log probabilities. */
static void compare_with_all_blocks(const struct wish *wishes, const struct subject *subject)
{
    struct harness h;
    struct harness_options o = {
        .device = {.kind = DEVICE_CPU, .threads = 2, .numerics = subject->numerics},
        .model = {.dummy = subject->dummy, .dummy_seed = 5},
        .slots = 1,
        .rows_max = CONTEXT,
        .context_tokens = CONTEXT};

    harness_open(&h, test_golden(subject->model), &o);
    uint32_t vocab = h.plan->vocab_rows, text_count;
    float *logits = malloc((size_t)ANSWER_MAX * vocab * sizeof *logits);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        const struct wish *w = &wishes[i];
        int32_t text[PROMPT_MAX + ANSWER_MAX];

        memcpy(text, w->prompt, w->prompt_count * sizeof *text);
        memcpy(text + w->prompt_count, w->tokens, w->max_tokens * sizeof *text);
        text_count = w->prompt_count + w->max_tokens - 1;
        harness_run(&h, &(struct harness_seq){text, text_count, w->prompt_count - 1, logits}, 1,
                    (struct harness_cut){0});
        for (uint32_t t = 0; t < w->max_tokens; t++) {
            const float *row = logits + (size_t)t * vocab;
            double sum = 0;

            for (uint32_t v = 0; v < vocab; v++)
                sum += exp((double)row[v] - (double)row[w->tokens[t]]);
            EXPECT_NEAR(w->logprobs[t], -log(sum), 1e-5);
        }
    }
    free(logits);
    harness_close(&h);
}

static void run_together(struct wish *wishes, const struct subject *subject, uint32_t rows,
                         uint32_t blocks, struct engine_stats *sum)
{
    struct request *requests[REQUESTS];
    struct engine_stats stats;
    struct harness h;
    struct engine *engine = start(&h, subject, rows, blocks, false);

    for (uint32_t i = 0; i < REQUESTS; i++) {
        if (!blocks && test_rand_below(3) == 0)
            nanosleep(&(struct timespec){0, (long)test_rand_below(3000000)}, NULL);
        requests[i] = make_request(&wishes[i]);
        submit(engine, requests[i]);
    }
    for (uint32_t i = 0; i < REQUESTS; i++)
        read_answer(requests[i], &wishes[i], true);
    engine_stats(engine, &stats);
    sum->preemptions += stats.preemptions;
    sum->cached_tokens += stats.cached_tokens;
    engine_destroy(engine);
    harness_close(&h);
}

static void check(const struct subject *subject)
{
    struct wish *wishes = calloc(REQUESTS, sizeof *wishes);
    struct engine_stats sum = {0};
    int rounds = test_long() ? 20 : 2;

    for (int round = 0; round < rounds; round++) {
        for (uint32_t i = 0; i < REQUESTS; i++)
            random_wish(&wishes[i]);
        run_alone(wishes, subject);
        if (subject->windows) compare_with_all_blocks(wishes, subject);
        run_together(wishes, subject, 32, 0, &sum);
        run_together(wishes, subject, 16 + test_rand_below(100), (PROMPT_MAX + ANSWER_MAX) / 16 + 2,
                     &sum);
    }
    /* with windows alone a sequence gets at its start all that it will hold at once, and nobody has to give way */
    EXPECT_TRUE(subject->windows_alone || sum.preemptions > 0);
    EXPECT_TRUE(sum.cached_tokens > 0);
    free(wishes);
}

TEST(answers_do_not_depend_on_company_in_exact_numerics)
{
    check(&(struct subject){"models/llama_awkward", true, false, false, CPU_EXACT});
}

TEST(answers_do_not_depend_on_company_in_fast_numerics)
{
    check(&(struct subject){"models/llama_awkward", true, false, false, CPU_FAST});
}

TEST(nor_where_some_layers_have_a_window)
{
    check(&(struct subject){"models/gemma3_text", false, true, false, CPU_EXACT});
    check(&(struct subject){"models/gemma3_text", false, true, false, CPU_FAST});
}

TEST(nor_where_all_layers_have_a_window)
{
    check(&(struct subject){"models/mistral_window", false, true, true, CPU_EXACT});
}

/* Two answers that outgrow the blocks of full attention: one gives way, and comes back behind what the index still has of it, its window
 * included. How much it computes again is counted; its bits are those that it had alone. */
static void outgrow(const struct subject *subject)
{
    enum { PAIR = 2, BLOCKS = 12, AGAIN_MAX = 48 }; /* blocks of 16; 13 or 14 would do */
    struct wish wishes[PAIR];
    struct request *requests[PAIR];
    struct engine_stats stats;
    struct harness h;
    uint64_t preemptions = 0, recomputed = 0;

    int rounds = test_long() ? 50 : 4;

    /* where the second came when the first had ended there was nothing to give way for */
    for (int round = 0; round < rounds || (!preemptions && round < 200); round++) {
        struct engine *engine = start(&h, subject, 64, 0, true);

        for (uint32_t i = 0; i < PAIR; i++) {
            random_wish(&wishes[i]);
            wishes[i].prompt_count = 26 + test_rand_below(6);
            for (uint32_t t = 0; t < wishes[i].prompt_count; t++)
                wishes[i].prompt[t] = (int32_t)(t ? test_rand_below(280) : i); /* nothing shared */
            wishes[i].max_tokens = ANSWER_MAX;
            requests[i] = make_request(&wishes[i]);
            submit(engine, requests[i]);
            read_answer(requests[i], &wishes[i], false);
        }
        engine_destroy(engine);
        harness_close(&h);
        engine = start(&h, subject, 64, BLOCKS, false);
        for (uint32_t i = 0; i < PAIR; i++) {
            requests[i] = make_request(&wishes[i]);
            submit(engine, requests[i]);
        }
        for (uint32_t i = 0; i < PAIR; i++)
            read_answer(requests[i], &wishes[i], true);
        engine_stats(engine, &stats);
        preemptions += stats.preemptions;
        recomputed += stats.recomputed_tokens;
        engine_destroy(engine);
        harness_close(&h);
    }
    EXPECT_TRUE(preemptions > 0);
    if (recomputed > AGAIN_MAX * preemptions)
        fail_msg("%u tokens were computed again for %u preemptions of some 95 tokens each",
                 (unsigned)recomputed, (unsigned)preemptions);
}

TEST(nor_on_giving_way_and_little_is_computed_again)
{
    outgrow(&(struct subject){"models/gemma3_text", false, true, false, CPU_EXACT});
    outgrow(&(struct subject){"models/gemma3_text", false, true, false, CPU_FAST});
    outgrow(&(struct subject){"models/llama_awkward", true, false, false, CPU_EXACT});
}
