/* test_engine.c - a request gets exactly its tokens and leaves nothing behind, however it ends.
 * Method: the real engine over the fake device (fake_device.h), whose tokens are hashes of everything before them as read through the
 * block tables; clients compute the same hashes from what they sent and got. After each test the pool is full again, the
 * counters add up, and no memory was taken on the engine thread. */
#include "harness.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"

static enum status submit(struct rig *rig, struct request *r)
{
    struct error err;
    uint32_t retry;

    return engine_submit(rig->engine, r, &retry, &err);
}

TEST(one_request_gets_its_tokens_and_times)
{
    struct rig rig;
    struct client c;

    rig_init(&rig);
    rig_start(&rig);
    client_init(&c, client_request(1, 100, 1, 40, 64));
    EXPECT_OK(submit(&rig, c.request));
    client_finish(&c);
    EXPECT_EQ(c.choices[0].count, 40);
    EXPECT_EQ(c.choices[0].reason, FINISH_LENGTH);
    const struct stage_times *t = &c.request->times;
    EXPECT_TRUE(t->submitted_ns && t->scheduled_ns >= t->submitted_ns);
    EXPECT_TRUE(t->first_token_ns >= t->scheduled_ns && t->last_token_ns >= t->first_token_ns);
    EXPECT_TRUE(t->ended_ns >= t->last_token_ns);
    EXPECT_EQ(t->prompt_tokens, 100);
    EXPECT_EQ(t->completion_tokens, 40);
    EXPECT_EQ(t->prefill_chunks, 2); /* 64 rows a step */
    EXPECT_EQ(t->decode_steps, 39);
    EXPECT_EQ(t->batch_rows_sum, 100 + 39);
    client_fini(&c);
    rig_stop(&rig);
}

TEST(works_with_one_step_at_a_time_too)
{
    struct rig rig;
    struct client c;

    rig_init(&rig);
    rig.limits.steps_inflight = 1;
    rig_start(&rig);
    client_init(&c, client_request(1, 33, 1, 20, 64));
    EXPECT_OK(submit(&rig, c.request));
    client_finish(&c);
    EXPECT_EQ(c.choices[0].count, 20);
    client_fini(&c);
    rig_stop(&rig);
}

TEST(candidates_have_seeds_in_a_row)
{
    struct rig rig;
    struct client c;

    rig_init(&rig);
    rig_start(&rig);
    client_init(&c, client_request(2, 20, 4, 30, 64)); /* the harness expects seed + i */
    EXPECT_OK(submit(&rig, c.request));
    client_finish(&c);
    EXPECT_EQ(c.request->times.completion_tokens, 8 * 30);
    EXPECT_EQ(c.request->times.prompt_tokens, 40);
    client_fini(&c);
    rig_stop(&rig);
}

static const int32_t stops[4] = {3, 17, 29, 44};

TEST(a_stop_id_ends_a_choice_but_not_before_min_tokens)
{
    struct rig rig;

    rig_init(&rig);
    rig_start(&rig);
    for (int i = 0; i < 100; i++) {
        struct client c;
        client_init(&c, client_request(1, 5, 1, 200, 256));
        c.request->stop_ids = stops;
        c.request->stop_id_count = 4;
        c.request->min_tokens = i % 3 ? 30 : 0;
        EXPECT_OK(submit(&rig, c.request));
        client_finish(&c);
        if (c.choices[0].reason == FINISH_STOP_ID)
            EXPECT_TRUE(c.choices[0].count > c.request->min_tokens);
        EXPECT_EQ(c.request->times.completion_tokens, c.choices[0].count);
        client_fini(&c);
    }
    rig_stop(&rig);
}

TEST(an_answer_ends_at_the_end_of_the_context)
{
    struct rig rig;
    struct client c;

    rig_init(&rig);
    rig_start(&rig);
    client_init(&c, client_request(1, 250, 1, 100, 64));
    EXPECT_OK(submit(&rig, c.request));
    client_finish(&c);
    EXPECT_EQ(c.choices[0].count, 6);
    EXPECT_EQ(c.choices[0].reason, FINISH_LENGTH);
    client_fini(&c);
    rig_stop(&rig);
}

static void want_scores(struct request *r, uint32_t tops)
{
    struct prompt_scores *scores = arena_alloc(&r->arena, r->prompt_count * sizeof *scores);

    r->top_logprobs = tops;
    r->want_logprobs = true;
    for (uint32_t p = 0; p < r->prompt_count; p++) {
        scores[p].outputs = arena_alloc(&r->arena, r->prompts[p].count * sizeof *scores[p].outputs);
        scores[p].tops =
            arena_alloc(&r->arena, (size_t)r->prompts[p].count * tops * sizeof *scores[p].tops);
    }
    r->prompt_scores = scores;
}

TEST(prompts_are_scored_alone_or_before_an_answer)
{
    struct rig rig;

    rig_init(&rig);
    rig.limits.logits_max = 24; /* fewer than a chunk */
    rig_start(&rig);
    for (int i = 0; i < 60; i++) {
        struct client c;
        uint32_t prompt = i < 3 ? 1 + (uint32_t)i : 1 + test_rand_below(200);
        client_init(&c,
                    client_request(2, prompt, 1 + i % 3, i % 2 ? 0 : 1 + test_rand_below(9), 8));
        want_scores(c.request, (uint32_t)i % 5);
        EXPECT_OK(submit(&rig, c.request));
        client_finish(&c);
        EXPECT_TRUE(c.choices[0].scored && c.choices[c.request->best_of].scored);
        client_fini(&c);
    }
    rig_stop(&rig);
}

TEST(max_tokens_0_without_scores_ends_at_once)
{
    struct rig rig;
    struct client c;

    rig_init(&rig);
    rig_start(&rig);
    client_init(&c, client_request(1, CONTEXT, 2, 0, 1)); /* the ring takes one output at a time */
    EXPECT_OK(submit(&rig, c.request));
    client_finish(&c);
    EXPECT_EQ(c.choices[0].count + c.choices[1].count, 0);
    client_fini(&c);
    rig_stop(&rig);
}

/* The output side ends choices, early and after the engine has ended them: only kept tokens count. */
TEST(tokens_behind_stop_text_count_nowhere)
{
    struct rig rig;
    struct engine_stats s;
    uint64_t kept_sum = 0;

    rig_init(&rig);
    rig_start(&rig);
    for (int i = 0; i < 300; i++) {
        struct client c;
        uint32_t keep = 1 + test_rand_below(20);
        client_init(&c, client_request(1, 10, 2, 20, 64));
        EXPECT_OK(submit(&rig, c.request));
        if (i % 2) /* late: all are in the ring, ended by length, when the reader looks */
            RIG_WAIT(&rig, s, s.seqs_running == 0 && s.requests_finished == (uint64_t)i + 1);
        while (c.choices[1].count < keep)
            client_read(&c, 1);
        engine_end_choice(rig.engine, c.request, 1, keep);
        client_finish(&c);
        EXPECT_EQ(c.request->times.completion_tokens, 20 + keep);
        kept_sum += 20 + keep;
        client_fini(&c);
    }
    /* The total never falls, so it may stand a little high until the next tokens; then it is exact. */
    struct client last;
    client_init(&last, client_request(1, 10, 1, 40, 64));
    EXPECT_OK(submit(&rig, last.request));
    client_finish(&last);
    client_fini(&last);
    RIG_WAIT(&rig, s, s.generation_tokens == kept_sum + 40);
    rig_stop(&rig);
}

TEST(what_can_never_run_is_refused_with_a_sentence)
{
    struct rig rig;
    struct client c;
    struct error err;
    uint32_t retry;
    static const int32_t bad_id = VOCAB;

    rig_init(&rig);
    rig.limits.kv_blocks[1] = 8; /* 128 tokens */
    rig.options.queue_seqs_max = 4;
    rig.options.queue_tokens_max = 300;
    rig_start(&rig);
    struct {
        uint32_t prompts, tokens, best_of, max_tokens;
    } bad[] = {{1, 100, 1, 100}, {1, 10, 5, 1}, {2, 10, 3, 1}, {1, CONTEXT, 1, 1}, {2, 80, 2, 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        client_init(&c, client_request(bad[i].prompts, bad[i].tokens, bad[i].best_of,
                                       bad[i].max_tokens, 64));
        EXPECT_EQ(engine_submit(rig.engine, c.request, &retry, &err), STATUS_INVALID);
        EXPECT_TRUE(strlen(err.message) > 20);
        client_fini(&c);
    }
    client_init(&c, client_request(1, 10, 1, 1, 64));
    c.request->stop_ids = &bad_id;
    c.request->stop_id_count = 1;
    EXPECT_EQ(engine_submit(rig.engine, c.request, &retry, &err), STATUS_INVALID);
    c.request->stop_id_count = 0;
    ((int32_t *)(uintptr_t)c.request->prompts[0].ids)[9] = -1;
    EXPECT_EQ(engine_submit(rig.engine, c.request, &retry, &err), STATUS_INVALID);
    client_fini(&c);
    client_init(&c, client_request(1, 60, 4, 69, 64)); /* exactly what fits */
    EXPECT_OK(engine_submit(rig.engine, c.request, &retry, &err));
    client_finish(&c);
    client_fini(&c);
    rig_stop(&rig);
}

TEST(a_full_queue_refuses_at_once_and_says_when_to_come_back)
{
    struct rig rig;
    struct client c[20];
    struct engine_stats s;
    struct error err;
    uint32_t retry = 0, taken = 0;
    atomic_bool hold = true; /* nobody ends while they come */

    rig_init(&rig);
    rig.options.max_num_seqs = 2;
    rig.options.queue_seqs_max = 6;
    rig.fake.hold = &hold;
    rig_start(&rig);
    for (int i = 0; i < 20; i++) {
        client_init(&c[i], client_request(1, 10, 1, 20, 64));
        enum status st = engine_submit(rig.engine, c[i].request, &retry, &err);
        if (st) {
            EXPECT_EQ(st, STATUS_FULL);
            EXPECT_TRUE(retry >= 1 && retry <= 60);
            client_fini(&c[i]);
            c[i].request = NULL;
        } else {
            taken++;
        }
    }
    EXPECT_TRUE(taken >= 6 && taken <= 8);
    engine_stats(rig.engine, &s);
    EXPECT_EQ(s.requests_rejected, 20 - taken);
    atomic_store(&hold, false);
    for (int i = 0; i < 20; i++)
        if (c[i].request) {
            client_finish(&c[i]);
            client_fini(&c[i]);
        }
    rig_stop(&rig);
}

TEST(a_cancelled_request_is_gone_within_steps_at_every_stage)
{
    struct rig rig;
    struct engine_stats s;

    rig_init(&rig);
    rig_start(&rig);
    for (int i = 0; i < 500; i++) {
        struct client c;
        uint32_t stage = test_rand_below(30);
        client_init(&c, client_request(1, 200, 2, 50, 128));
        if (stage == 0) engine_cancel(rig.engine, c.request); /* before it is submitted */
        while (submit(&rig, c.request) == STATUS_FULL)
            rig_pause_us(100);
        for (uint32_t k = 0; k < stage; k++)
            client_read(&c, 1);
        engine_cancel(rig.engine, c.request);
        engine_cancel(rig.engine, c.request);
        EXPECT_EQ(c.wrong, 0);
        client_fini(&c);
    }
    RIG_WAIT(&rig, s, s.requests_aborted + s.requests_finished == 500 && s.kv_blocks_used == 0);
    EXPECT_TRUE(s.requests_aborted > 0);
    rig_stop(&rig);
}

TEST(a_slow_reader_blocks_itself_only_and_loses_nothing)
{
    struct rig rig;
    struct client slow, fast;
    struct engine_stats s;

    rig_init(&rig);
    rig_start(&rig);
    client_init(&slow, client_request(1, 10, 2, 100, 8));
    EXPECT_OK(submit(&rig, slow.request));
    RIG_WAIT(&rig, s, s.seqs_blocked == 2);
    client_init(&fast, client_request(1, 10, 1, 100, 64));
    EXPECT_OK(submit(&rig, fast.request));
    client_finish(&fast);
    client_fini(&fast);
    engine_stats(rig.engine, &s);
    EXPECT_EQ(s.seqs_blocked, 2);
    EXPECT_EQ(s.requests_aborted, 0);
    while (slow.finished_count < 2) {
        client_read(&slow, 1 + test_rand_below(3));
        rig_pause_us(50);
    }
    EXPECT_EQ(slow.wrong, 0);
    EXPECT_EQ(slow.choices[0].count + slow.choices[1].count, 200);
    client_fini(&slow);
    rig_stop(&rig);
}

TEST(a_reader_that_stands_still_is_cut)
{
    struct rig rig;
    struct client c;
    struct engine_stats s;

    rig_init(&rig);
    rig.options.client_stall_ms = 60;
    rig_start(&rig);
    client_init(&c, client_request(1, 10, 1, 100, 8));
    EXPECT_OK(submit(&rig, c.request));
    RIG_WAIT(&rig, s, s.requests_aborted == 1);
    EXPECT_EQ(s.kv_blocks_used, 0);
    EXPECT_TRUE(atomic_load(&c.request->stalled));
    client_finish(&c); /* if it reads after all, it learns the end */
    EXPECT_EQ(c.choices[0].count, 8);
    EXPECT_EQ(c.choices[0].reason, FINISH_CANCELLED);
    client_fini(&c);
    rig_stop(&rig);
}

TEST(a_request_past_its_deadline_ends_with_an_error)
{
    struct rig rig;
    struct client c;

    rig_init(&rig);
    rig.fake.step_us = 5000;
    rig_start(&rig);
    client_init(&c, client_request(1, 10, 1, 200, 256));
    c.request->deadline_ns = clock_mono_ns() + 300000000; /* of 1 s that it would take */
    EXPECT_OK(submit(&rig, c.request));
    client_finish(&c);
    EXPECT_TRUE(c.error && c.error_status == STATUS_TIMEOUT);
    client_fini(&c);
    rig_stop(&rig);
}

TEST(a_failed_step_ends_its_requests_and_no_others)
{
    struct rig rig;
    struct client c[8];
    struct engine_stats s;
    uint32_t failed = 0, finished = 0;

    rig_init(&rig);
    rig.fake.fail_one_in = 100;
    rig.fake.refuse_one_in = 150;
    rig.fake.bad_logits_one_in = 1000;
    rig_start(&rig);
    for (int round = 0; round < 40; round++) {
        for (int i = 0; i < 8; i++) {
            client_init(&c[i], client_request(1, 1 + test_rand_below(60), 1 + test_rand_below(2),
                                              1 + test_rand_below(30), 64));
            EXPECT_OK(submit(&rig, c[i].request));
        }
        for (int i = 0; i < 8; i++) {
            client_finish(&c[i]);
            failed += c[i].error;
            finished += !c[i].error;
            if (c[i].error) EXPECT_EQ(c[i].error_status, STATUS_DEVICE);
            client_fini(&c[i]);
        }
    }
    EXPECT_TRUE(failed > 0 && finished > 0);
    RIG_WAIT(&rig, s, s.requests_failed == failed && s.requests_finished == finished);
    EXPECT_TRUE(s.alive);
    rig_stop(&rig);
}

TEST(a_lost_device_ends_all_and_refuses_the_rest)
{
    for (uint64_t at = 1; at < 30; at += 4) {
        struct rig rig;
        struct client c[6], late;
        struct engine_stats s;

        rig_init(&rig);
        rig.options.max_num_seqs = 3;
        rig.fake.lose_at = at;
        rig_start(&rig);
        for (int i = 0; i < 6; i++) {
            client_init(&c[i], client_request(1, 40, 1, 100, i == 0 ? 4 : 128));
            EXPECT_TRUE(submit(&rig, c[i].request) != STATUS_FULL);
        }
        RIG_WAIT(&rig, s, !s.alive);
        EXPECT_TRUE(s.dead_reason != NULL);
        for (int i = 0; i < 6; i++) {
            if (c[i].request->engine) {
                client_finish(&c[i]);
                EXPECT_TRUE(c[i].error && c[i].error_status == STATUS_DEVICE_LOST);
            }
            client_fini(&c[i]);
        }
        client_init(&late, client_request(1, 10, 1, 1, 8));
        EXPECT_EQ(submit(&rig, late.request), STATUS_CLOSED);
        client_fini(&late);
        rig_stop(&rig);
    }
}

TEST(destroy_cancels_what_is_left)
{
    for (int i = 0; i < 20; i++) {
        struct rig rig;
        struct client c[12];

        rig_init(&rig);
        rig.fake.step_us = 300;
        rig_start(&rig);
        for (int k = 0; k < 12; k++) {
            client_init(&c[k], client_request(1, 50, 1, 100, 256));
            EXPECT_OK(submit(&rig, c[k].request));
        }
        rig_pause_us(test_rand_below(8000));
        engine_destroy(rig.engine);
        device_close(rig.device);
        for (int k = 0; k < 12; k++) {
            client_finish(&c[k]);
            client_fini(&c[k]);
        }
    }
}

TEST(an_idle_engine_uses_no_cpu)
{
    struct rig rig;
    struct client c;
    struct rusage before, after;

    rig_init(&rig);
    rig_start(&rig);
    client_init(&c, client_request(1, 10, 1, 10, 64));
    EXPECT_OK(submit(&rig, c.request));
    client_finish(&c);
    client_fini(&c);
    getrusage(RUSAGE_SELF, &before);
    rig_pause_us(300000);
    getrusage(RUSAGE_SELF, &after);
    EXPECT_TRUE(after.ru_nvcsw - before.ru_nvcsw < 20); /* it does not wake */
    rig_stop(&rig);
}

/* With nothing to do an engine that is asked to shows that it lives. While a step runs there is no progress until it ends, however often one
 * asks: steps of 300 ms on average, looked at while they run. */
TEST(idle_counts_as_progress_and_a_running_step_does_not)
{
    struct rig rig;
    struct client c;
    struct engine_stats s, later;
    int64_t asked_ns;

    rig_init(&rig);
    rig.fake.step_us = 300000;
    rig_start(&rig);
    client_init(&c, client_request(1, 10, 1, 100, 8));
    for (int i = 0; i < 3; i++) {
        asked_ns = clock_mono_ns();
        engine_probe(rig.engine);
        RIG_WAIT(&rig, s, s.last_progress_ns >= asked_ns);
        EXPECT_TRUE(s.last_progress_ns <= clock_mono_ns());
    }
    EXPECT_OK(submit(&rig, c.request));
    RIG_WAIT(&rig, s, s.seqs_running == 1);
    do { /* until no step has ended in between */
        engine_stats(rig.engine, &s);
        asked_ns = clock_mono_ns();
        engine_probe(rig.engine);
        rig_pause_us(20000);
        int64_t progress_ns = (engine_stats(rig.engine, &later), later.last_progress_ns);

        rig_pause_us(1000);
        engine_stats(rig.engine, &later);
        if (later.steps == s.steps) EXPECT_TRUE(progress_ns < asked_ns);
    } while (later.steps != s.steps);
    engine_cancel(rig.engine, c.request);
    asked_ns = clock_mono_ns();
    RIG_WAIT(&rig, s, (engine_probe(rig.engine), s.last_progress_ns >= asked_ns));
    client_fini(&c);
    rig_stop(&rig);
}

/* --- shared prefixes ---------------------------------------------------------------------------------------------- */

static struct request *request_of(const int32_t *ids, uint32_t count, uint32_t best_of,
                                  uint32_t max_tokens)
{
    struct request *r = client_request(1, count, best_of, max_tokens, 256);

    memcpy((int32_t *)(uintptr_t)r->prompts[0].ids, ids, count * sizeof *ids);
    return r;
}

static void run_alone(struct rig *rig, struct client *c, struct request *r)
{
    client_init(c, r);
    EXPECT_OK(submit(rig, r));
    client_finish(c);
}

TEST(a_prompt_that_was_there_before_is_not_computed_again)
{
    struct rig rig;
    struct client c;
    struct engine_stats s;
    int32_t ids[CONTEXT];

    rig_init(&rig);
    rig_start(&rig);
    for (uint32_t i = 0; i < CONTEXT; i++)
        ids[i] = (int32_t)test_rand_below(VOCAB);
    run_alone(&rig, &c, request_of(ids, 100, 1, 60));
    EXPECT_EQ(c.request->times.cached_tokens, 0);
    memcpy(ids + 100, c.choices[0].tokens, 60 * sizeof *ids);
    client_fini(&c);
    run_alone(&rig, &c, request_of(ids, 100, 1, 5));
    EXPECT_EQ(c.request->times.cached_tokens, 96); /* whole blocks of 16 */
    client_fini(&c);
    run_alone(&rig, &c, request_of(ids, 96, 1, 5));
    EXPECT_EQ(c.request->times.cached_tokens, 80); /* one token is left to compute */
    client_fini(&c);
    /* the next turn of a conversation: the answer is there too, but for its last token */
    run_alone(&rig, &c, request_of(ids, 170, 1, 5));
    EXPECT_EQ(c.request->times.cached_tokens, 144);
    client_fini(&c);
    /* another tenant learns nothing */
    struct request *other = request_of(ids, 100, 1, 5);
    other->tenant = 7;
    run_alone(&rig, &c, other);
    EXPECT_EQ(c.request->times.cached_tokens, 0);
    client_fini(&c);
    engine_stats(rig.engine, &s);
    EXPECT_EQ(s.cached_tokens, 96 + 80 + 144);
    rig_stop(&rig);
}

TEST(tokens_behind_stop_text_are_not_found_later)
{
    struct rig rig;
    struct client c;
    struct engine_stats s;
    int32_t ids[CONTEXT];

    rig_init(&rig);
    rig.fake.step_us = 200;
    rig_start(&rig);
    for (uint32_t i = 0; i < CONTEXT; i++)
        ids[i] = (int32_t)test_rand_below(VOCAB);
    /* A small ring blocks the sequence, so that it cannot end by length before the stop text is told. */
    struct request *request = request_of(ids, 32, 1, 150);
    output_ring_destroy(request->ring);
    request->ring = output_ring_create(8, 20);
    client_init(&c, request);
    EXPECT_OK(submit(&rig, c.request));
    while (c.choices[0].count < 100)
        client_read(&c, 100);
    engine_end_choice(rig.engine, c.request, 0, 20);
    client_finish(&c);
    EXPECT_EQ(c.request->times.completion_tokens, 20);
    memcpy(ids + 32, c.choices[0].tokens, 100 * sizeof *ids);
    client_fini(&c);
    RIG_WAIT(&rig, s, s.kv_blocks_used == 0); /* the step that was one too many is done */
    run_alone(&rig, &c, request_of(ids, 132, 1, 1));
    EXPECT_EQ(c.request->times.cached_tokens, 48); /* 32 + 20, whole blocks */
    client_fini(&c);
    rig_stop(&rig);
}

TEST(candidates_and_twins_compute_their_prompt_once)
{
    struct rig rig;
    struct client c, twin;
    int32_t ids[CONTEXT];

    rig_init(&rig);
    rig_start(&rig);
    for (uint32_t i = 0; i < CONTEXT; i++)
        ids[i] = (int32_t)test_rand_below(VOCAB);
    client_init(&c, request_of(ids, 200, 4, 10));
    client_init(&twin, request_of(ids, 200, 1, 10));
    EXPECT_OK(submit(&rig, c.request)); /* the twin comes while its prompt is under way */
    EXPECT_OK(submit(&rig, twin.request));
    client_finish(&c);
    client_finish(&twin);
    EXPECT_EQ(twin.request->times.cached_tokens, 192);
    EXPECT_EQ(c.request->times.cached_tokens, 0); /* a prompt counts once whatever n is */
    EXPECT_EQ(fake_device_counts(rig.device).rows, 200 + 4 * 8 + 5 * 9);
    client_fini(&c);
    client_fini(&twin);
    rig_stop(&rig);
}

TEST(sharing_can_be_turned_off)
{
    struct rig rig;
    struct client c;
    int32_t ids[CONTEXT] = {0};

    rig_init(&rig);
    rig.options.no_prefix_sharing = true;
    rig_start(&rig);
    for (int i = 0; i < 2; i++) {
        run_alone(&rig, &c, request_of(ids, 100, 2, 5));
        EXPECT_EQ(c.request->times.cached_tokens, 0);
        client_fini(&c);
    }
    rig_stop(&rig);
}

/* --- preemption --------------------------------------------------------------------------------------------------- */

/* Answers that need three times the pool, together: some give up their blocks on the way, and all get exactly their tokens. */
TEST(sequences_that_outgrow_the_pool_take_turns)
{
    for (int sharing = 0; sharing < 2; sharing++) {
        struct rig rig;
        struct client c[8];
        struct engine_stats s;
        uint32_t preemptions = 0;

        rig_init(&rig);
        rig.limits.kv_blocks[0] = rig.limits.kv_blocks[1] = 36;
        rig.options.no_prefix_sharing = !sharing;
        rig_start(&rig);
        for (int i = 0; i < 8; i++) {
            client_init(&c[i], client_request(1, 30, 1, 200, 256));
            c[i].request->sampling.presence_penalty = i % 2 ? 0.5f : 0;
            EXPECT_OK(submit(&rig, c[i].request));
        }
        for (int i = 0; i < 8; i++) {
            client_finish(&c[i]);
            EXPECT_EQ(c[i].choices[0].count, 200);
            EXPECT_EQ(c[i].request->times.completion_tokens, 200);
            preemptions += c[i].request->times.preemptions;
            client_fini(&c[i]);
        }
        /* read from the rings without the bell, the last tokens are here before they are published */
        RIG_WAIT(&rig, s, s.generation_tokens == 8 * 200);
        EXPECT_TRUE(s.preemptions > 0);
        EXPECT_EQ(s.preemptions, preemptions);
        EXPECT_TRUE(s.recomputed_tokens < 8 * 200); /* no thrash: less than half of the work */
        rig_stop(&rig);
    }
}

/* --- a storm ---------------------------------------------------------------------------------------------------- */

enum { READERS = 2 };

enum plan_of { READ_ALL, CANCEL_AT, END_AT, READ_SLOWLY, PLANS, LEAVE_AT_ONCE };
struct guest {
    struct client client;
    enum plan_of plan;
    uint32_t at; /* CANCEL_AT, END_AT: after so many outputs */
    uint32_t seen;
    bool over;
    bool ended[CHOICES_MAX];
};
struct reader {
    struct rig *rig;
    struct output_bell bell;
    pthread_t thread;
    _Atomic uint32_t over; /* guests that have ended */
    _Atomic uint32_t stop;
    _Atomic uint64_t kept; /* tokens that count, of finished requests */
    uint32_t wrong, errors, cancelled;
    uint64_t random;
};

static uint32_t reader_below(struct reader *reader, uint32_t bound)
{
    reader->random = reader->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((reader->random >> 33) % bound);
}

static void guest_over(struct reader *reader, struct guest *guest)
{
    const struct request *r = guest->client.request;
    uint32_t tokens = 0;

    guest->over = true;
    reader->wrong += guest->client.wrong;
    reader->errors += guest->client.error;
    if (!guest->client.error && guest->plan != CANCEL_AT) {
        for (uint32_t i = 0; i < request_choices(r); i++)
            tokens += guest->ended[i] ? (guest->client.choices[i].count < guest->at
                                             ? guest->client.choices[i].count
                                             : guest->at)
                                      : guest->client.choices[i].count;
        reader->wrong += tokens != r->times.completion_tokens;
    }
    atomic_fetch_add(&reader->over, 1);
}

static void guest_turn(struct reader *reader, struct guest *guest)
{
    struct client *c = &guest->client;
    struct engine *engine = reader->rig->engine;

    if (guest->over) return;
    while (client_read(c, 1)) {
        guest->seen++;
        if (guest->plan == CANCEL_AT && guest->seen >= guest->at) {
            engine_cancel(engine, c->request);
            reader->cancelled++;
            guest_over(reader, guest);
            return;
        }
        for (uint32_t i = 0; guest->plan == END_AT && i < request_choices(c->request); i++)
            if (!guest->ended[i] && c->choices[i].count >= guest->at) {
                guest->ended[i] = true;
                engine_end_choice(engine, c->request, i, guest->at);
            }
        if (guest->plan == READ_SLOWLY && reader_below(reader, 8) == 0) rig_pause_us(200);
    }
    if (c->error || c->finished_count == request_choices(c->request)) guest_over(reader, guest);
}

static void *reader_thread(void *arg)
{
    struct reader *reader = arg;
    uint64_t rings;

    while (!atomic_load(&reader->stop)) {
        struct request *next;
        if (read(reader->bell.event_fd, &rings, sizeof rings) < 0) rig_pause_us(100);
        for (struct request *r = output_bell_take(&reader->bell); r; r = next) {
            next = output_bell_next(r);
            guest_turn(reader, r->frontend);
            request_unref(r);
        }
    }
    return NULL;
}

static void random_guest(struct guest *guest, struct reader *reader)
{
    bool scored = test_rand_below(10) == 0;
    uint32_t prompts = 1 + (test_rand_below(8) == 0),
             best_of = 1 + (test_rand_below(5) == 0 ? test_rand_below(4) : 0);
    uint32_t prompt = 1 + test_rand_below(test_rand_below(4) ? 40 : 200);
    uint32_t max_tokens = 1 + test_rand_below(test_rand_below(4) ? 10 : CONTEXT - prompt);
    static const uint32_t rings[4] = {4, 16, 64, 256};
    struct request *r = client_request(prompts, prompt, best_of,
                                       scored && best_of == 1 ? test_rand_below(3) : max_tokens,
                                       rings[test_rand_below(4)]);

    memset(guest, 0, sizeof *guest);
    client_init(&guest->client, r);
    if (scored) want_scores(r, test_rand_below(3));
    if (test_rand_below(2)) {
        r->stop_ids = stops;
        r->stop_id_count = 4;
        r->min_tokens = r->max_tokens ? test_rand_below(r->max_tokens + 1) / 2 : 0;
    }
    r->sampling.repetition_penalty = test_rand_below(4) ? 1 : 1.1f;
    r->priority = (int32_t)test_rand_below(3) - 1;
    r->tenant = test_rand_below(3);
    r->pin_tokens = test_rand_below(CONTEXT);
    r->pin_s = test_rand_below(4) == 0;
    r->bell = &reader->bell;
    r->frontend = guest;
    guest->plan = test_rand_below(PLANS);
    guest->at = 1 + test_rand_below(20);
}

/* `count` requests from this thread to READERS reader threads; the engine's numbers at the end must be the clients' own. */
static void storm(struct rig *rig, uint32_t count)
{
    struct reader *readers = calloc(READERS, sizeof *readers);
    struct guest *guests = calloc(count, sizeof *guests);
    uint32_t taken = 0, full = 0, over = 0, left = 0;
    struct engine_stats s;
    struct error err;

    rig_start(rig);
    for (int i = 0; i < READERS; i++) {
        readers[i].rig = rig;
        readers[i].random = test_rand();
        EXPECT_OK(output_bell_init(&readers[i].bell));
        pthread_create(&readers[i].thread, NULL, reader_thread, &readers[i]);
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t retry;
        random_guest(&guests[i], &readers[i % READERS]);
        if (test_rand_below(40) == 0) { /* the client leaves while it waits or is in prefill */
            guests[i].plan = LEAVE_AT_ONCE;
            guests[i].over = true; /* for its reader */
        }
        enum status st = engine_submit(rig->engine, guests[i].client.request, &retry, &err);
        if (st && st != STATUS_FULL) fail_msg("%s", err.message);
        taken += !st;
        full += st == STATUS_FULL;
        if (st) {
            client_fini(&guests[i].client);
            guests[i].client.request = NULL;
            rig_pause_us(500);
        } else if (guests[i].plan == LEAVE_AT_ONCE) {
            rig_pause_us(test_rand_below(300));
            engine_cancel(rig->engine, guests[i].client.request);
            left++;
        }
    }
    for (int tries = 0; over < taken; tries++) {
        if (tries > 600000) fail_msg("%u of %u requests never ended", taken - over, taken);
        rig_pause_us(100);
        over = left;
        for (int i = 0; i < READERS; i++)
            over += atomic_load(&readers[i].over);
    }
    RIG_WAIT(rig, s, s.requests_finished + s.requests_aborted + s.requests_failed == taken);
    EXPECT_EQ(s.requests_submitted, taken);
    EXPECT_EQ(s.requests_rejected, full);
    for (int i = 0; i < READERS; i++) {
        atomic_store(&readers[i].stop, 1);
        pthread_join(readers[i].thread, NULL);
        EXPECT_EQ(readers[i].wrong, 0);
    }
    rig_stop(rig); /* the numbers are there before the last bell has been rung */
    for (int i = 0; i < READERS; i++)
        output_bell_fini(&readers[i].bell);
    for (uint32_t i = 0; i < count; i++)
        if (guests[i].client.request) client_fini(&guests[i].client);
    free(guests);
    free(readers);
}

TEST(storm_of_requests_on_a_sound_device)
{
    struct rig rig;

    rig_init(&rig);
    storm(&rig, test_long() ? 20000 : 1500);
}

TEST(storm_with_a_window_and_bounded_steps)
{
    struct rig rig;

    rig_init(&rig);
    rig.options.max_batch_wait_us = 3000;
    rig.options.max_itl_us = 300;
    rig.options.class_age_us = 2000;
    rig.options.calibrate_ms = 50;
    rig.fake.row_ns = 3000;
    storm(&rig, test_long() ? 5000 : 400);
}

TEST(storm_with_a_pool_smaller_than_the_demand)
{
    struct rig rig;

    rig_init(&rig);
    rig.limits.kv_blocks[0] = rig.limits.kv_blocks[1] = CONTEXT / 16 + 3;
    rig.options.queue_seqs_max = 40;
    storm(&rig, test_long() ? 10000 : 800);
}

TEST(storm_with_failing_steps)
{
    struct rig rig;

    rig_init(&rig);
    rig.fake.fail_one_in = 300;
    rig.fake.refuse_one_in = 500;
    rig.fake.bad_logits_one_in = 20000;
    rig.fake.step_us = 20;
    storm(&rig, test_long() ? 10000 : 800);
}

TEST(storm_with_few_rows_and_a_queue_that_fills)
{
    struct rig rig;

    rig_init(&rig);
    rig.options.max_num_batched_tokens = 5; /* fewer than slots: decodes take turns */
    rig.limits.logits_max = 3;
    rig.options.queue_seqs_max = 16;
    storm(&rig, test_long() ? 5000 : 400);
}

/* A front end that stops cancels what it has and ends its bells, while the engine is in the midst of steps of these requests. */
TEST(a_bell_ends_only_when_the_engine_cannot_ring_it_any_more)
{
    struct rig rig;
    struct error err;
    uint32_t retry;

    rig_init(&rig);
    rig.fake.step_us = 500;
    rig_start(&rig);
    for (int round = 0; round < 40; round++) {
        struct output_bell *bell =
            malloc(sizeof *bell); /* of its own, so that a use after its end shows */
        struct request *requests[4];

        EXPECT_OK(output_bell_init(bell));
        for (int i = 0; i < 4; i++) {
            requests[i] = client_request(1, 20, 1, 200, 16);
            requests[i]->bell = bell;
            EXPECT_OK(engine_submit(rig.engine, requests[i], &retry, &err));
        }
        rig_pause_us(test_rand_below(3000));
        for (int i = 0; i < 4; i++) {
            engine_cancel(rig.engine, requests[i]);
            request_unref(requests[i]);
        }
        output_bell_fini(bell);
        memset(bell, 0xff, sizeof *bell);
        free(bell);
    }
    rig_stop(&rig);
}
