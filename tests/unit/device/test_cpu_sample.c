/* test_cpu_sample.c - tokens are drawn as step.h says.
 * Method: a second sampler in float64 that sorts (`model_*` below), written from the comment of struct step_open, judges every
 * draw: the same kept set, the same token for the same Philox word. Frequencies by chi-square. */
#include "test.h"

#include <math.h>
#include <stdlib.h>

#include "base/hash.h"
#include "device/cpu/cpu_sample.h"

enum { VOCAB = 400, TOKENS = 390 }; /* ten rows of padding */

struct bench {
    float logits[VOCAB];
    float work[VOCAB], z[VOCAB], p[VOCAB];
    uint32_t ids[VOCAB];
    uint64_t heap[VOCAB];
    int32_t banned[8];
    struct step_bias biases[8];
    uint16_t seen[VOCAB];
    struct sample_slot slot;
    struct top_logprob tops[20];
    const uint32_t *mask;
};

static void bench_init(struct bench *b)
{
    memset(b, 0, sizeof *b);
    b->slot = (struct sample_slot){.banned = b->banned, .biases = b->biases, .seen = b->seen};
    b->slot.open.repetition_penalty = b->slot.open.top_p = 1;
    for (uint32_t i = 0; i < VOCAB; i++)
        b->logits[i] = (float)(test_rand_unit() * 8 - 4);
    for (uint32_t i = TOKENS; i < VOCAB; i++)
        b->logits[i] = 50; /* padding must never win */
}

static struct step_output sample(struct bench *b, uint32_t position, int32_t target)
{
    struct sample_scratch scratch = {b->work, b->z, b->p, b->ids, b->heap};
    struct step_output out;
    struct sample_row row = {.kernels = cpu_kernels(cpu_isa_best()),
                             .logits = b->logits,
                             .vocab_rows = VOCAB,
                             .vocab_tokens = TOKENS,
                             .mask = b->mask,
                             .position = position,
                             .target = target};

    sample_row(&row, &b->slot, &scratch, &out, b->tops);
    return out;
}

/* --- the float64 model --- */

struct candidate {
    double z, p;
    uint32_t id;
};

static int by_rank(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->z != y->z) return x->z > y->z ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static int by_id(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    return x->id < y->id ? -1 : 1;
}

static void model_change(const struct bench *b, uint32_t position, double out[TOKENS])
{
    const struct step_open *o = &b->slot.open;

    for (uint32_t i = 0; i < TOKENS; i++) {
        out[i] = (double)b->logits[i];
        if (b->mask && !(b->mask[i / 32] >> i % 32 & 1)) out[i] = -INFINITY;
    }
    for (uint32_t i = 0; i < b->slot.banned_count && position < o->ban_until; i++)
        out[b->banned[i]] = -INFINITY;
    for (uint32_t i = 0; i < b->slot.bias_count; i++)
        out[b->biases[i].id] += (double)b->biases[i].bias;
    for (uint32_t i = 0; i < TOKENS && b->slot.seen_used; i++) {
        uint32_t count = b->seen[i] & SEEN_COUNT_MAX;
        if (!b->seen[i]) continue;
        out[i] = out[i] > 0 ? out[i] / (double)o->repetition_penalty
                            : out[i] * (double)o->repetition_penalty;
        out[i] -= (double)o->frequency_penalty * count + (count ? (double)o->presence_penalty : 0);
    }
}

/* The kept candidates, likeliest first; their number. *close: some border was too near to call in float32. */
static uint32_t model_keep(const struct bench *b, uint32_t position, struct candidate *c,
                           int *close)
{
    const struct step_open *o = &b->slot.open;
    double logits[TOKENS], top = -INFINITY, total = 0, sum = 0;
    uint32_t kept = 0, n = 0;

    model_change(b, position, logits);
    for (uint32_t i = 0; i < TOKENS; i++)
        top = fmax(top, logits[i]);
    for (uint32_t i = 0; i < TOKENS; i++) {
        double z = (logits[i] - top) / (double)o->temperature;
        if (logits[i] == -INFINITY) continue;
        if (o->min_p > 0 && fabs(z - log((double)o->min_p)) < 1e-5) *close = 1;
        if (o->min_p > 0 && z < log((double)o->min_p)) continue;
        c[n++] = (struct candidate){z, exp(z), i};
    }
    qsort(c, n, sizeof *c, by_rank);
    if (o->top_k > 0 && (uint32_t)o->top_k < n) n = (uint32_t)o->top_k;
    for (uint32_t i = 0; i < n; i++)
        total += c[i].p;
    for (kept = 0; kept < n && sum < (double)o->top_p * total; kept++) {
        sum += c[kept].p;
        if (fabs(sum - (double)o->top_p * total) < 1e-4 * total && o->top_p < 1) *close = 1;
    }
    return o->top_p < 1 ? kept : n;
}

static uint32_t model_draw(const struct bench *b, uint32_t position, struct candidate *c,
                           uint32_t n, int *close)
{
    uint32_t key[2] = {(uint32_t)b->slot.open.seed, (uint32_t)(b->slot.open.seed >> 32)};
    uint32_t counter[4] = {position, 0, 0, 0}, words[4];
    double total = 0, sum = 0, u;

    hash_philox4x32(key, counter, words);
    u = (words[0] + 0.5) / 4294967296.0;
    qsort(c, n, sizeof *c, by_id);
    for (uint32_t i = 0; i < n; i++)
        total += c[i].p;
    for (uint32_t i = 0; i < n; i++) {
        sum += c[i].p;
        if (fabs(sum - u * total) < 1e-5 * total) *close = 1;
        if (sum > u * total) return c[i].id;
    }
    return c[n - 1].id;
}

static void random_parameters(struct bench *b)
{
    struct step_open *o = &b->slot.open;

    o->temperature = 0.3f + (float)test_rand_unit() * 1.5f;
    o->top_p = test_rand_below(2) ? 1 : 0.05f + (float)test_rand_unit() * 0.9f;
    o->top_k = test_rand_below(2) ? 0 : (int32_t)test_rand_below(test_rand_below(2) ? 60 : 400);
    o->min_p = test_rand_below(2) ? 0 : (float)test_rand_unit() * 0.3f;
    o->seed = test_rand();
    if (test_rand_below(2)) {
        o->repetition_penalty = 0.7f + (float)test_rand_unit();
        o->frequency_penalty = (float)test_rand_unit() * 2 - 1;
        o->presence_penalty = (float)test_rand_unit() * 2 - 1;
        b->slot.seen_used = true;
        for (uint32_t i = 0; i < 60; i++)
            b->seen[test_rand_below(TOKENS)] =
                (uint16_t)(test_rand_below(4) | (test_rand_below(2) ? SEEN_PROMPT : 0));
    }
    b->slot.banned_count = test_rand_below(4);
    for (uint32_t i = 0; i < b->slot.banned_count; i++)
        b->banned[i] = (int32_t)test_rand_below(TOKENS);
    o->ban_until = test_rand_below(200);
    b->slot.bias_count = test_rand_below(4);
    for (uint32_t i = 0; i < b->slot.bias_count; i++)
        b->biases[i] =
            (struct step_bias){(int32_t)test_rand_below(TOKENS), (float)test_rand_unit() * 20 - 10};
}

TEST(every_draw_is_the_models)
{
    uint32_t rounds = test_long() ? 200000 : 10000, judged = 0;

    for (uint32_t round = 0; round < rounds; round++) {
        struct candidate kept[TOKENS];
        struct bench b;
        uint32_t position = test_rand_below(400), mask[(VOCAB + 31) / 32];
        int close = 0;
        bench_init(&b);
        random_parameters(&b);
        if (round % 3 == 0) {
            for (uint32_t i = 0; i < sizeof mask / sizeof *mask; i++)
                mask[i] = (uint32_t)test_rand();
            b.mask = mask;
        }
        uint32_t n = model_keep(&b, position, kept, &close);
        uint32_t want = model_draw(&b, position, kept, n, &close);
        struct step_output out = sample(&b, position, TARGET_SAMPLE);
        EXPECT_EQ(out.flags, 0);
        if (close) continue;
        EXPECT_EQ(out.token, want);
        judged++;
    }
    EXPECT_TRUE(judged > rounds * 9 / 10);
}

TEST(greedy_takes_the_largest_and_of_equals_the_smallest_id)
{
    struct bench b;

    bench_init(&b);
    b.logits[7] = b.logits[300] = b.logits[44] = 9;
    EXPECT_EQ(sample(&b, 0, TARGET_SAMPLE).token, 7);
    b.slot.open.temperature = 0.9e-5f;
    EXPECT_EQ(sample(&b, 0, TARGET_SAMPLE).token, 7);
    b.slot.banned_count = 1, b.banned[0] = 7, b.slot.open.ban_until = 10;
    EXPECT_EQ(sample(&b, 9, TARGET_SAMPLE).token, 44);
    EXPECT_EQ(sample(&b, 10, TARGET_SAMPLE).token, 7); /* not banned any more */
}

/* Equal logits at the border of top_k and top_p: the smaller ids stay. */
TEST(filters_keep_the_smaller_ids_of_equals)
{
    struct bench b;

    for (uint32_t round = 0; round < 400; round++) {
        bench_init(&b);
        for (uint32_t i = 0; i < TOKENS; i++)
            b.logits[i] = 1;
        b.slot.open.temperature = 1;
        b.slot.open.seed = round;
        b.slot.open.top_k = 5;
        EXPECT_TRUE(sample(&b, round, TARGET_SAMPLE).token < 5);
        b.slot.open.top_k = 0;
        b.slot.open.top_p = 39.5f / TOKENS;
        EXPECT_TRUE(sample(&b, round, TARGET_SAMPLE).token < 40);
        b.slot.open.top_k = 1, b.slot.open.top_p = 1;
        EXPECT_EQ(sample(&b, round, TARGET_SAMPLE).token, 0);
    }
}

/* Chi-square of draws over 39 likely tokens and the rest: 99.99 % of right samplers stay below the limit. */
TEST(frequencies_are_the_probabilities)
{
    uint32_t draws = test_long() ? 1000000 : 100000, counts[TOKENS] = {0};
    double p[TOKENS], total = 0, chi = 0, rest = 0, rest_p = 0;
    struct bench b;

    bench_init(&b);
    b.slot.open.temperature = 1.3f;
    b.slot.open.seed = test_rand();
    for (uint32_t i = 0; i < TOKENS; i++)
        total += p[i] = exp((double)b.logits[i] / (double)1.3f);
    for (uint32_t i = 0; i < draws; i++)
        counts[sample(&b, i, TARGET_SAMPLE).token]++;
    uint32_t bins = 0;
    for (uint32_t i = 0; i < TOKENS; i++) {
        double expected = draws * p[i] / total;
        if (expected < 20) {
            rest += counts[i], rest_p += expected;
            continue;
        }
        chi += (counts[i] - expected) * (counts[i] - expected) / expected;
        bins++;
    }
    if (rest_p > 5) chi += (rest - rest_p) * (rest - rest_p) / rest_p, bins++;
    EXPECT_TRUE(chi < bins + 4 * sqrt(2.0 * bins) + 10);
    EXPECT_TRUE(chi > bins - 5 * sqrt(2.0 * bins)); /* too even is wrong, too */
}

TEST(logprobs_are_of_the_raw_logits)
{
    struct bench b;
    double total = 0;

    bench_init(&b);
    for (uint32_t i = TOKENS; i < VOCAB; i++)
        b.logits[i] = -3;
    b.logits[20] = 6, b.logits[30] = 5, b.logits[31] = 5;
    for (uint32_t i = 0; i < VOCAB; i++)
        total += exp((double)b.logits[i]);
    b.slot.open.want_logprobs = 1;
    b.slot.open.top_logprobs = 3;
    b.slot.bias_count = 1;
    b.biases[0] = (struct step_bias){100, 1000};
    struct step_output out = sample(&b, 3, TARGET_SAMPLE);
    EXPECT_EQ(out.token, 100);
    EXPECT_NEAR(out.logprob, (double)b.logits[100] - log(total), 1e-5);
    EXPECT_EQ(out.top_count, 3);
    EXPECT_EQ(b.tops[0].id, 20);
    EXPECT_EQ(b.tops[1].id, 30);
    EXPECT_EQ(b.tops[2].id, 31);
    EXPECT_NEAR(b.tops[1].logprob, 5 - log(total), 1e-5);
    out = sample(&b, 3, 17); /* scored: nothing is drawn, padding would be allowed too */
    EXPECT_EQ(out.token, 17);
    EXPECT_NEAR(out.logprob, (double)b.logits[17] - log(total), 1e-5);
}

TEST(twenty_top_logprobs_are_in_order)
{
    struct bench b;

    for (uint32_t round = 0; round < 200; round++) {
        bench_init(&b);
        for (uint32_t i = 0; i < TOKENS; i++)
            b.logits[i] = (float)test_rand_below(30); /* many equals */
        b.slot.open.top_logprobs = 20;
        EXPECT_EQ(sample(&b, 0, TARGET_SAMPLE).top_count, 20);
        uint32_t better = 0; /* than the last one reported */
        for (uint32_t i = 0; i < 20; i++) {
            struct top_logprob a = b.tops[i], z = b.tops[19];
            if (i) EXPECT_TRUE(b.tops[i - 1].logprob > a.logprob || b.tops[i - 1].id < a.id);
            (void)z;
        }
        for (uint32_t i = 0; i < TOKENS; i++) {
            float last = b.logits[b.tops[19].id];
            better += b.logits[i] > last || (b.logits[i] == last && (int32_t)i < b.tops[19].id);
        }
        EXPECT_EQ(better, 19);
    }
}

TEST(bad_logits_are_flagged)
{
    struct bench b;
    uint32_t none[(VOCAB + 31) / 32] = {0}, one[(VOCAB + 31) / 32] = {0};

    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (uint32_t i = 0; i < 3; i++) {
        bench_init(&b);
        b.logits[test_rand_below(TOKENS)] = bad[i];
        EXPECT_EQ(sample(&b, 0, TARGET_SAMPLE).flags, OUTPUT_BAD_LOGITS);
        EXPECT_EQ(sample(&b, 0, 3).flags, OUTPUT_BAD_LOGITS);
    }
    bench_init(&b);
    b.mask = none;
    EXPECT_EQ(sample(&b, 0, TARGET_SAMPLE).flags, OUTPUT_BAD_LOGITS);
    one[3] = 1u << 5;
    b.mask = one;
    b.slot.open.temperature = 1;
    EXPECT_EQ(sample(&b, 0, TARGET_SAMPLE).token, 101);
    b.banned[0] = 101, b.slot.banned_count = 1, b.slot.open.ban_until = 5;
    EXPECT_EQ(sample(&b, 0, TARGET_SAMPLE).flags, OUTPUT_BAD_LOGITS);
}

/* What is drawn is counted, so a high frequency penalty drives every token out before one comes twice. */
TEST(drawn_tokens_are_counted)
{
    struct bench b;
    uint32_t seen[TOKENS] = {0};

    bench_init(&b);
    b.slot.open.frequency_penalty = 100;
    b.slot.seen_used = true;
    for (uint32_t i = 0; i < TOKENS; i++) {
        int32_t token = sample(&b, i, TARGET_SAMPLE).token;
        EXPECT_EQ(seen[token]++, 0);
    }
}
