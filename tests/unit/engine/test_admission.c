/* test_admission.c - who is let in, who is told to come back, and when.
 * Method: the engine over the fake device, with a queue that tests fill. */
#include <stdlib.h>

#include "base/clock.h"
#include "engine/engine_state.h"
#include "harness.h"
#include "sched/sequence.h"

enum { MOST = 64 };

static enum status submit(struct rig *rig, struct client *c, uint64_t tenant, uint32_t prompt,
                          uint32_t answer)
{
    struct error err;
    uint32_t retry;

    client_init(c, client_request(1, prompt, 1, answer, 64));
    c->request->tenant = tenant;
    enum status st = engine_submit(rig->engine, c->request, &retry, &err);
    if (st) {
        client_fini(c);
        c->request = NULL;
    }
    return st;
}

static void finish_all(struct client *clients, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (clients[i].request) {
            client_finish(&clients[i]);
            client_fini(&clients[i]);
        }
}

TEST(a_queue_that_one_tenant_has_filled_has_room_for_another)
{
    struct rig rig;
    struct client c[MOST];
    uint32_t n = 0, others = 0;
    atomic_bool hold = true; /* nobody ends while they come */

    rig_init(&rig);
    rig.options.max_num_seqs = 1;
    rig.options.queue_seqs_max = 8;
    rig.fake.hold = &hold;
    rig_start(&rig);
    while (submit(&rig, &c[n], 1, 10, 100) == STATUS_OK)
        n++;
    EXPECT_TRUE(n >= 8 && n <= 10);
    EXPECT_EQ(submit(&rig, &c[n], 1, 10, 10), STATUS_FULL);
    EXPECT_EQ(submit(&rig, &c[n], 2, 10, 10), STATUS_OK);
    while (submit(&rig, &c[n + 1 + others], 2, 10, 10) == STATUS_OK)
        others++;
    EXPECT_TRUE(others >= 3 && others <= 5); /* its share of 8 is 4 */
    atomic_store(&hold, false);
    for (uint32_t i = 0; i < n - 1; i++)
        engine_cancel(rig.engine, c[i].request);
    finish_all(c, n + 1 + others);
    rig_stop(&rig);
}

static enum status submit_within(struct rig *rig, struct client *c, int64_t ms, uint32_t *retry)
{
    struct error err;

    client_init(c, client_request(1, 60, 1, 1, 64));
    if (ms) c->request->deadline_ns = clock_mono_ns() + ms * 1000000;
    enum status st = engine_submit(rig->engine, c->request, retry, &err);
    if (st) {
        client_fini(c);
        c->request = NULL;
        EXPECT_TRUE(strstr(err.message, "first token") != NULL);
    }
    return st;
}

/* Rows of 150 us: fifty prompts of 60 tokens are 450 ms of work, of which none is done before all have come. */
TEST(what_would_be_late_is_refused_at_once)
{
    struct rig rig;
    struct client c[MOST];
    uint32_t retry = 0;
    atomic_bool hold = false;

    rig_init(&rig);
    rig.fake.row_ns = 150000;
    rig.fake.hold = &hold;
    rig_start(&rig);
    for (uint32_t i = 0; i < 40; i++) { /* it learns the pace */
        EXPECT_EQ(submit_within(&rig, &c[0], 0, &retry), STATUS_OK);
        finish_all(c, 1);
    }
    EXPECT_EQ(submit_within(&rig, &c[0], 1000, &retry), STATUS_OK);
    finish_all(c, 1);
    atomic_store(&hold, true);
    for (uint32_t i = 0; i < 50; i++)
        EXPECT_EQ(submit_within(&rig, &c[i], 0, &retry), STATUS_OK);
    EXPECT_EQ(submit_within(&rig, &c[50], 10, &retry), STATUS_FULL);
    EXPECT_TRUE(retry >= 1 && retry <= 60);
    EXPECT_EQ(submit_within(&rig, &c[50], 20000, &retry), STATUS_OK);
    atomic_store(&hold, false);
    finish_all(c, 51);
    EXPECT_EQ(c[50].error, false);
    rig_stop(&rig);
}

/* What first tokens have taught is what later submissions go by, each kind for itself; a queue of one tenant's own is another kind than others'. */
static void expect_margins_told(struct engine *e)
{
    bool taught = false;

    for (int k = 0; k < FORECAST_KINDS; k++) {
        EXPECT_NEAR(atomic_load(&e->published.margin[k]), e->margin.factor[k], 0);
        taught |= k >= SEQ_CLASSES && e->margin.factor[k] != 1;
    }
    EXPECT_TRUE(taught);
}

TEST(the_servers_own_limit_counts_where_the_request_has_none)
{
    struct rig rig;
    struct client c[MOST];
    struct engine_stats s;
    uint32_t retry = 0;
    atomic_bool hold = false;

    rig_init(&rig);
    rig.fake.row_ns = 50000;
    rig.fake.hold = &hold;
    rig.options.ttft_limit_us = 100000;
    rig_start(&rig);
    for (uint32_t i = 0; i < 40; i++) {
        RIG_WAIT(&rig, s,
                 s.seqs_running == 0 && s.kv_blocks_used == 0); /* then nobody is refused */
        EXPECT_EQ(submit_within(&rig, &c[0], 0, &retry), STATUS_OK);
        finish_all(c, 1);
    }
    uint32_t n = 0;
    atomic_store(&hold, true); /* none is done before the last has come */
    while (n < MOST && submit_within(&rig, &c[n], 0, &retry) == STATUS_OK)
        n++;
    atomic_store(&hold, false);
    EXPECT_TRUE(n >= 1 && n < MOST);
    finish_all(c, n);
    expect_margins_told(rig.engine);
    rig_stop(&rig);
}

/* By the client's own clock. */
TEST(the_stages_of_a_request_add_up_to_the_time_it_took)
{
    struct rig rig;
    struct client c;
    struct error err;
    uint32_t retry;

    rig_init(&rig);
    rig.fake.row_ns = 1000000;
    rig_start(&rig);
    for (int i = 0; i < 3; i++) {
        client_init(&c, client_request(1, 100, 1, 50, 64));
        int64_t start_ns = clock_mono_ns();
        c.request->times.received_ns = start_ns;
        c.request->times.parsed_ns = c.request->times.tokenized_ns = clock_mono_ns();
        EXPECT_OK_ERR(engine_submit(rig.engine, c.request, &retry, &err), &err);
        client_finish(&c);
        int64_t now_ns = clock_mono_ns(), took_ns = now_ns - start_ns, sum_ns = 0;
        struct stage_ledger ledger = stage_ledger(&c.request->times, now_ns);
        for (int s = 0; s < STAGES; s++)
            sum_ns += ledger.ns[s];
        EXPECT_EQ(sum_ns, ledger.total_ns);
        EXPECT_EQ(sum_ns, took_ns);
        EXPECT_TRUE(ledger.ns[STAGE_PREFILL] > 0 && ledger.ns[STAGE_DECODE] > 40000000);
        client_fini(&c);
    }
    rig_stop(&rig);
}

TEST(a_request_that_was_never_scheduled_has_a_ledger_too)
{
    struct stage_times t = {.received_ns = 1000, .parsed_ns = 1100, .submitted_ns = 1500};
    struct stage_ledger ledger = stage_ledger(&t, 3000);

    EXPECT_EQ(ledger.total_ns, 2000);
    EXPECT_EQ(ledger.ns[STAGE_PARSE], 100);
    EXPECT_EQ(ledger.ns[STAGE_TOKENIZE], 0);
    EXPECT_EQ(ledger.ns[STAGE_SUBMIT], 400);
    EXPECT_EQ(ledger.ns[STAGE_QUEUE], 0);
    EXPECT_EQ(ledger.ns[STAGE_DELIVER], 1500);
}

/* A prompt of the text's first `count` tokens, to its end; returns how many were cached. */
static uint32_t run_text(struct rig *rig, const int32_t *text, uint32_t count, uint32_t pin_tokens,
                         uint32_t pin_s)
{
    struct request *r = client_request(1, count, 1, 2, 64);
    struct client c;
    struct error err;
    uint32_t retry, cached;

    memcpy((int32_t *)(uintptr_t)r->prompts[0].ids, text, count * sizeof *text);
    r->pin_tokens = pin_tokens;
    r->pin_s = pin_s;
    client_init(&c, r);
    EXPECT_OK_ERR(engine_submit(rig->engine, r, &retry, &err), &err);
    client_finish(&c);
    cached = r->times.cached_tokens;
    client_fini(&c);
    return cached;
}

static void random_text(int32_t text[CONTEXT])
{
    for (uint32_t i = 0; i < CONTEXT; i++)
        text[i] = (int32_t)test_rand_below(VOCAB);
}

/* Rows of 500 us: 200 tokens are 100 ms. The device stays busy with others' answers, and the pool is nowhere near its end. */
TEST(a_prompt_that_is_cached_is_admitted_where_another_would_be_late)
{
    struct rig rig;
    struct client busy, c;
    int32_t known[CONTEXT], fresh[CONTEXT];
    uint32_t retry = 0;
    atomic_bool hold = false;

    rig_init(&rig);
    rig.fake.row_ns = 500000;
    rig.fake.hold = &hold;
    rig.limits.kv_blocks[0] = rig.limits.kv_blocks[1] = 256;
    rig_start(&rig);
    random_text(known);
    for (uint32_t i = 0; i < 40; i++) { /* it learns the pace */
        EXPECT_EQ(submit_within(&rig, &c, 0, &retry), STATUS_OK);
        finish_all(&c, 1);
    }
    run_text(&rig, known, 200, 0, 0);
    atomic_store(&hold, true); /* busy until both have been asked for */
    EXPECT_EQ(submit(&rig, &busy, 1, 10, 200), STATUS_OK);
    for (int way = 0; way < 2; way++) { /* one that is there, and one that is not */
        struct request *r = client_request(1, 200, 1, 2, 64);
        struct error err;

        random_text(fresh);
        memcpy((int32_t *)(uintptr_t)r->prompts[0].ids, way ? fresh : known, 200 * sizeof *known);
        r->deadline_ns = clock_mono_ns() + 50 * 1000000;
        client_init(&c, r);
        EXPECT_EQ(engine_submit(rig.engine, r, &retry, &err), way ? STATUS_FULL : STATUS_OK);
        if (!way) engine_cancel(rig.engine, r);
        client_fini(&c);
    }
    atomic_store(&hold, false);
    engine_cancel(rig.engine, busy.request);
    client_fini(&busy);
    rig_stop(&rig);
}

/* The pool has 64 blocks of 16 tokens: what is used once is gone after twenty other texts. */
TEST(pinned_beginnings_stay_and_others_go)
{
    struct rig rig;
    struct engine_stats s;
    int32_t plain[CONTEXT], asked[CONTEXT], listed[CONTEXT], other[CONTEXT];
    struct engine_pin pin = {listed, 50};

    rig_init(&rig);
    rig.options.pins = &pin;
    rig.options.pin_count = 1;
    rig.options.pin_s = 1000;
    rig_start(&rig);
    random_text(plain);
    random_text(asked);
    random_text(listed);
    EXPECT_EQ(run_text(&rig, plain, 120, 0, 0), 0);
    EXPECT_EQ(run_text(&rig, asked, 120, 90, 1000), 0);
    EXPECT_EQ(run_text(&rig, listed, 120, UINT32_MAX, 0), 0); /* as api/ says "all" */
    for (int i = 0; i < 20; i++) {
        random_text(other);
        run_text(&rig, other, 120, 0, 0);
    }
    EXPECT_EQ(run_text(&rig, plain, 120, 0, 0), 0);
    EXPECT_EQ(run_text(&rig, asked, 120, 0, 0), 80); /* whole blocks of 90 */
    EXPECT_EQ(run_text(&rig, listed, 120, 0, 0), 48);
    engine_stats(rig.engine, &s);
    EXPECT_EQ(s.prefix_pinned, 5 + 3);
    rig_stop(&rig);
}

/* Two prompts, the second with everything of one kind taken by the first. */
static void expect_held(struct rig *rig, uint32_t prompt, uint32_t answer, const char *reason,
                        enum seq_hold hold)
{
    struct client c[2];
    struct engine_stats s;
    atomic_bool held = true; /* the first one does not end before the second is there */

    rig->fake.step_us = 3000;
    rig->fake.hold = &held;
    rig_start(rig);
    EXPECT_EQ(submit(rig, &c[0], 1, prompt, answer), STATUS_OK);
    RIG_WAIT(rig, s, s.seqs_running == 1);
    EXPECT_EQ(submit(rig, &c[1], 1, prompt, answer), STATUS_OK);
    atomic_store(&held, false);
    client_finish(&c[0]);
    client_finish(&c[1]);
    EXPECT_STR(c[0].request->times.queued_for, "none");
    EXPECT_STR(c[1].request->times.queued_for, reason);
    engine_stats(rig->engine, &s);
    EXPECT_TRUE(s.holds[hold] > 0);
    finish_all(c, 2);
    rig_stop(rig);
}

TEST(a_request_says_what_it_has_waited_for)
{
    struct rig rig;

    rig_init(&rig);
    rig.options.max_num_seqs = 1;
    expect_held(&rig, 10, 20, "slots", HOLD_SLOTS);
    rig_init(&rig);
    rig.limits.kv_blocks[0] = rig.limits.kv_blocks[1] = 16;
    expect_held(&rig, 200, 20, "blocks", HOLD_BLOCKS);
}

/* Rows of 50 us: a prompt of 60 tokens takes 3 ms. The very first request is judged. */
TEST(step_times_are_known_before_the_first_request)
{
    struct rig rig;
    struct client c[2];
    struct engine_stats s;
    uint32_t retry;

    rig_init(&rig);
    rig.fake.row_ns = 50000;
    rig.options.calibrate_ms = 5000;
    rig_start(&rig);
    engine_stats(rig.engine, &s);
    EXPECT_EQ(s.steps + s.prompt_tokens + s.generation_tokens, 0);
    EXPECT_EQ(submit_within(&rig, &c[0], 2, &retry), STATUS_FULL);
    EXPECT_EQ(submit_within(&rig, &c[0], 2000, &retry), STATUS_OK);
    finish_all(c, 1);
    rig_stop(&rig);
}

TEST(a_device_that_fails_on_trial_is_not_started)
{
    struct rig rig;
    struct error err;

    rig_init(&rig);
    rig.fake.fail_one_in = 1;
    rig.options.calibrate_ms = 1000;
    rig.device = fake_device_open(&rig.fake);
    EXPECT_OK_ERR(device_compile(rig.device, &rig.plan, &rig.limits, &err), &err);
    EXPECT_EQ(engine_create(&rig.options, rig.device, &rig.plan, &rig.limits, &rig.engine, &err),
              STATUS_DEVICE);
    EXPECT_TRUE(strstr(err.message, "on trial") != NULL);
    device_close(rig.device);
}

TEST(the_smallest_limits_can_be_tried_too)
{
    struct rig rig;

    for (uint32_t context = 7; context < 40; context++) {
        rig_init(&rig);
        rig.limits.kv_blocks[0] = rig.limits.kv_blocks[1] = 1 + context / 20;
        rig.options.context_tokens = context;
        rig.options.calibrate_ms = 100;
        rig_start(&rig);
        rig_stop(&rig);
    }
}
