/* test_windows.c - of layers with a window a sequence holds what the window reaches, and a shared beginning is used only where that is there.
 * Method: the real scheduler, driven by hand over two KV groups, full attention and a window; blocks are counted in each group and rows in each
 * step. Random schedules are test_sched.c's, bytes of answers test_invariance.c's. */
#include "test.h"

#include <stdlib.h>

#include "sched/sched_state.h"

enum { WINDOW = 64, CONTEXT = 4096, SLOTS = 8, ROWS = 128, FLIGHTS = 2, FULL = 0, NARROW = 1 };
enum { DECODE_BLOCKS = 5 }; /* of 64 tokens that begin anywhere */

struct world {
    struct plan plan;
    struct device_limits limits;
    struct sched *sched;
    struct step *step;
    struct sched_entry entries[FLIGHTS][SLOTS];
    struct sched_step flights[FLIGHTS];
    uint64_t planned, done, rows;
};

struct text {
    struct sequence seq;
    int32_t prompt[CONTEXT], sampled[CONTEXT];
    uint32_t guess; /* of what is cached, before it was added */
};

static void start(struct world *w, uint32_t full_blocks, uint32_t narrow_blocks)
{
    struct sched_options options = {
        .max_num_seqs = SLOTS, .max_num_batched_tokens = ROWS, .share_prefixes = true};
    struct error err;

    *w = (struct world){.plan = {.vocab_rows = 1000, .vocab_tokens = 1000, .group_count = 2}};
    w->plan.groups[FULL].block_tokens = w->plan.groups[NARROW].block_tokens = 16;
    w->plan.groups[NARROW].window = WINDOW;
    w->limits = (struct device_limits){.slots_max = SLOTS,
                                       .rows_max = ROWS,
                                       .logits_max = SLOTS,
                                       .steps_inflight = FLIGHTS,
                                       .context_tokens = CONTEXT,
                                       .kv_blocks = {full_blocks, narrow_blocks}};
    EXPECT_OK_ERR(sched_create(&options, &w->plan, &w->limits, &w->sched, &err), &err);
    w->step = step_init(aligned_alloc(64, step_bytes(&w->plan, &w->limits)), &w->plan, &w->limits);
    for (int i = 0; i < FLIGHTS; i++)
        w->flights[i].entries = w->entries[i];
}

static void stop(struct world *w)
{
    sched_destroy(w->sched);
    free(w->step);
}

/* The first `alike` tokens are those of text `like`, the rest its own. */
static struct text *add(struct world *w, uint32_t prompt_count, uint32_t max_new, int32_t like,
                        uint32_t alike)
{
    struct text *t = calloc(1, sizeof *t);
    struct error err;

    for (uint32_t i = 0; i < prompt_count; i++)
        t->prompt[i] = i < alike ? (like * 31 + (int32_t)i) % 1000 : (int32_t)test_rand_below(1000);
    t->seq = (struct sequence){.prompt = t->prompt,
                               .prompt_count = prompt_count,
                               .max_new = max_new,
                               .sampled = t->sampled,
                               .open = {.temperature = 1, .top_p = 1, .repetition_penalty = 1}};
    EXPECT_OK_ERR(sched_fits(w->sched, &t->seq, &err), &err);
    t->guess = sched_guess_cached(w->sched, &t->seq, false);
    sched_add(w->sched, &t->seq, (int64_t)w->planned);
    return t;
}

static bool plan(struct world *w)
{
    struct sched_step *flight = &w->flights[(w->planned + 1) % FLIGHTS];
    struct error err;

    if (w->planned - w->done == FLIGHTS ||
        !sched_plan(w->sched, w->planned + 1, (int64_t)w->planned, w->step, flight))
        return false;
    EXPECT_OK_ERR(step_check(w->step, &w->plan, &w->limits, &err), &err);
    w->planned++;
    w->rows += flight->row_count;
    sched_check(w->sched);
    return true;
}

static void finish(struct world *w)
{
    struct sched_step *flight = &w->flights[(w->done + 1) % FLIGHTS];

    for (uint32_t i = 0; i < flight->entry_count; i++) {
        struct sequence *seq = flight->entries[i].seq;

        if (!flight->entries[i].samples || seq->sampled_known == seq->max_new) continue;
        sequence_append(seq, 7);
        if (seq->sampled_known == seq->max_new) sched_end(w->sched, seq);
    }
    sched_step_done(w->sched, ++w->done);
}

/* Runs to the end of all, two steps in flight as the engine has them. */
static void run(struct world *w)
{
    do {
        while (plan(w))
            ;
        if (w->planned > w->done) finish(w);
        for (struct sequence *seq; (seq = sched_reap(w->sched));)
            free(seq);
    } while (w->planned > w->done || sched_counts(w->sched).waiting);
    EXPECT_EQ(sched_counts(w->sched).kv_blocks_used, 0);
}

/* Positions of a prompt that were there already, once it has run, as had been guessed; computed and cached make the prompt. */
static uint32_t cached(struct world *w, uint32_t prompt_count, int32_t like, uint32_t alike)
{
    uint64_t rows = w->rows;

    uint32_t guess = add(w, prompt_count, 1, like, alike)->guess;
    run(w);
    EXPECT_EQ(guess, prompt_count - (w->rows - rows));
    return guess;
}

static uint32_t held(const struct text *t, uint32_t group)
{
    return t->seq.kv.tables[group].count - t->seq.kv.tables[group].first;
}

TEST(a_long_generation_holds_a_bounded_number_of_blocks)
{
    struct world w;
    uint32_t decodes = 0;

    start(&w, CONTEXT / 16, 13);
    EXPECT_EQ(plan_group_blocks(&w.plan.groups[NARROW], CONTEXT, ROWS), 13);
    EXPECT_EQ(plan_group_blocks(&w.plan.groups[NARROW], CONTEXT, 1), DECODE_BLOCKS);
    struct text *t = add(&w, 1000, 3000, 1, 0);
    while (decodes < 2990) {
        if (!plan(&w)) {
            finish(&w);
            continue;
        }
        bool decoded = w.step->row_count == 1;
        decodes += decoded;
        EXPECT_EQ(held(t, FULL), t->seq.computed < 1000 ? 62 + (t->seq.computed > 992)
                                                        : (t->seq.computed + 15) / 16);
        EXPECT_TRUE(held(t, NARROW) <= (decoded ? DECODE_BLOCKS : 13));
        if (decoded)
            EXPECT_EQ(sched_counts(w.sched).kv_blocks_used, held(t, FULL) + held(t, NARROW));
    }
    run(&w);
    EXPECT_EQ(w.rows, 3999);
    stop(&w);
}

TEST(sequences_share_a_pool_that_holds_their_windows)
{
    struct world w;
    struct sched_counts counts;

    /* 8 * 1000 tokens; with all of their blocks the window's pool would hold one of them */
    start(&w, SLOTS * 63, SLOTS * (DECODE_BLOCKS + 1) + 13);
    for (int i = 0; i < SLOTS; i++)
        add(&w, 800, 200, i, 0);
    for (int i = 0; i < 150; i++)
        if (!plan(&w)) finish(&w);
    counts = sched_counts(w.sched);
    EXPECT_EQ(counts.running, SLOTS);
    /* of the full attention's pool, which has less left than both together */
    EXPECT_TRUE(counts.kv_usage_ppm <= 1000000 &&
                (uint64_t)counts.kv_usage_ppm * counts.kv_blocks_total >
                    (uint64_t)counts.kv_blocks_used * 1000000);
    run(&w);
    EXPECT_EQ(sched_counts(w.sched).preemptions, 0);
    stop(&w);
}

TEST(a_beginning_is_shared_only_while_its_window_is_there)
{
    struct world w;

    start(&w, 256, 16);
    EXPECT_EQ(cached(&w, 176, 1, 160), 0);
    EXPECT_EQ(cached(&w, 176, 1, 160), 160);
    EXPECT_EQ(cached(&w, 100, 1, 100), 96); /* what a longer one had passed is there too */
    uint32_t entries = sched_counts(w.sched).prefix_entries;
    EXPECT_EQ(cached(&w, 900, 2, 900),
              0); /* takes every block of the window's pool, some of the other's */
    EXPECT_EQ(sched_counts(w.sched).prefix_entries, entries + 56);
    EXPECT_EQ(cached(&w, 176, 1, 160), 0); /* its entries are there, and of no use */
    /* they have got what the last one still held: its window, from 112 on */
    EXPECT_EQ(cached(&w, 176, 1, 160), 160);
    EXPECT_EQ(cached(&w, 900, 2, 896),
              896); /* the longest unused went first: not this one's last */
    stop(&w);
}

/* Two texts in turn, the second time as candidates of one prompt: whoever comes later waits, and begins behind the first. */
TEST(candidates_of_a_prompt_compute_it_once)
{
    struct world w;
    uint64_t rows;

    start(&w, 512, 64);
    for (int round = 0; round < 3; round++) {
        rows = w.rows;
        for (int i = 0; i < 4; i++)
            add(&w, 500, 40, 5 + round, 500);
        run(&w);
        /* 496 of the 500 once, the rest and 39 of each answer four times */
        EXPECT_EQ(w.rows - rows, 496 + 4 * (4 + 39));
    }
    stop(&w);
}

/* A pinned beginning keeps its last window and its names, whatever passes; not the windows in its middle. */
TEST(pins_keep_the_window_that_the_next_text_needs)
{
    struct world w;

    start(&w, 256, 32);
    struct text *t = add(&w, 320, 1, 9, 320);
    t->seq.pin_tokens = 320;
    t->seq.pin_s = 1000;
    run(&w);
    EXPECT_EQ(sched_counts(w.sched).prefix_pinned, 20);
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(cached(&w, 900, 20 + i, 900), 0);
    EXPECT_EQ(cached(&w, 400, 9, 320), 320);
    EXPECT_EQ(cached(&w, 300, 9, 200), 0); /* there is nothing at 192 any more */
    stop(&w);
}

/* One that had passed its pinned beginning, and lost that window, keeps it from when another computes it again. */
TEST(a_pin_gets_its_window_back)
{
    struct world w;

    start(&w, 512, 32);
    struct text *t = add(&w, 900, 1, 9, 320);
    t->seq.pin_tokens = 320;
    t->seq.pin_s = 1000;
    run(&w);
    EXPECT_EQ(cached(&w, 900, 20, 900), 0);
    EXPECT_EQ(cached(&w, 336, 9, 320), 0);
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(cached(&w, 900, 21 + i, 900), 0);
    EXPECT_EQ(cached(&w, 336, 9, 320), 320);
    stop(&w);
}

/* How many of its blocks in the group with a window somebody else refers to, the index included. */
static uint32_t shared(const struct world *w, const struct text *t)
{
    const struct kv_table *table = &t->seq.kv.tables[NARROW];
    uint32_t count = 0;

    for (uint32_t i = table->first; i < table->count; i++)
        count += kv_pool_refs(w->sched->kv.pools[NARROW], table->blocks[i]) > 1;
    return count;
}

/* One that was preempted three times is promised the blocks of its window over and over: each that it passes must come back to it, so it uses no
 * beginning that is there and lends none while it runs. One that was not does both. */
TEST(who_is_promised_all_shares_no_window_while_it_runs)
{
    struct world w;

    for (int promised = 0; promised < 2; promised++) {
        start(&w, 256, 64);
        EXPECT_EQ(cached(&w, 176, 1, 160), 0);
        struct text *t = add(&w, 320, 200, 1, 160);
        if (promised) t->seq.preemptions = SEQ_PREEMPTIONS_MAX;
        uint64_t rows = w.rows;
        uint32_t shares = 0;
        while (t->seq.sampled_planned < 20) {
            if (!plan(&w)) finish(&w);
            shares += shared(&w, t) > 0;
        }
        EXPECT_EQ(w.rows - rows - (t->seq.computed - 320), promised ? 320 : 160);
        EXPECT_TRUE(promised ? shares == 0 : shares > 0);
        /* another with the same text, longer than what was there before, while it runs */
        struct text *other = calloc(1, sizeof *other);
        memcpy(other, t, sizeof *other);
        other->seq = (struct sequence){.prompt = other->prompt,
                                       .prompt_count = 320,
                                       .max_new = 1,
                                       .sampled = other->sampled,
                                       .open = t->seq.open};
        sched_add(w.sched, &other->seq, (int64_t)w.planned);
        while (other->seq.sampled_planned == 0)
            if (!plan(&w)) finish(&w);
        EXPECT_EQ(other->seq.cached, promised ? 160 : 304);
        EXPECT_TRUE(!promised || shared(&w, t) == 0);
        run(&w);
        stop(&w);
    }
}

/* Two that outgrow the pool of full attention while the window's has room: one gives up its blocks and comes back. What the other takes are the
 * last of its blocks of full attention; it begins behind those that are left, since what it had passed of the window is still there. */
static struct sched_counts outgrow(uint32_t narrow_blocks, uint32_t preemptions)
{
    struct sched_counts counts;
    struct world w;

    start(&w, 100, narrow_blocks);
    struct text *first = add(&w, 100, 900, 1, 0), *second = add(&w, 110, 900, 2, 0);

    first->seq.preemptions = second->seq.preemptions = preemptions;
    run(&w);
    counts = sched_counts(w.sched);
    /* with the last token of each, whose row had not come yet */
    if (!preemptions)
        EXPECT_EQ(w.rows, 100 + 110 + 2 * 899 + counts.recomputed_tokens - counts.preemptions);
    stop(&w);
    return counts;
}

TEST(a_preempted_sequence_begins_behind_what_its_window_still_has)
{
    struct sched_counts roomy = outgrow(64, 0), tight = outgrow(28, 0), promised = outgrow(64, 3);

    EXPECT_TRUE(roomy.preemptions >= 1 && tight.preemptions >= 1);
    /* of some 800 tokens, what the other grew by meanwhile and one block */
    EXPECT_TRUE(roomy.recomputed_tokens <= 16 * 14 * roomy.preemptions);
    /* where the other needs the window's blocks too, nothing is left to begin behind */
    EXPECT_TRUE(tight.recomputed_tokens >= 500);
    EXPECT_EQ(promised.preemptions, 0);
}
