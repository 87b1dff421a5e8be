#include "harness.h"

#include <stdlib.h>
#include <time.h>

#include "base/hash.h"

void rig_pause_us(uint32_t us)
{
    nanosleep(&(struct timespec){us / 1000000, (long)(us % 1000000) * 1000}, NULL);
}

void rig_init(struct rig *rig)
{
    memset(rig, 0, sizeof *rig);
    fake_plan(&rig->plan, 2, VOCAB, CONTEXT);
    rig->limits = (struct device_limits){
        .slots_max = 8,
        .rows_max = 64,
        .logits_max = 64,
        .steps_inflight = 2,
        .context_tokens = CONTEXT,
        .top_logprobs_max = 20,
        .kv_blocks = {64, 64},
        .bias_max = 4,
        .banned_max = 8,
    };
    rig->options = (struct engine_options){
        .max_num_seqs = 8,
        .max_num_batched_tokens = 64,
        .queue_seqs_max = 512,
        .queue_tokens_max = 1 << 20,
        .client_stall_ms = 10000,
        .context_tokens = CONTEXT,
    };
    rig->fake.seed = test_rand();
}

void rig_start(struct rig *rig)
{
    struct error err;

    rig->device = fake_device_open(&rig->fake);
    EXPECT_OK_ERR(device_compile(rig->device, &rig->plan, &rig->limits, &err), &err);
    EXPECT_OK_ERR(
        engine_create(&rig->options, rig->device, &rig->plan, &rig->limits, &rig->engine, &err),
        &err);
}

void rig_stop(struct rig *rig)
{
    struct engine_stats s;

    RIG_WAIT(rig, s,
             s.requests_submitted == s.requests_finished + s.requests_aborted + s.requests_failed &&
                 s.seqs_running + s.seqs_waiting + s.seqs_blocked == 0 && s.kv_blocks_used == 0);
    EXPECT_EQ(s.late_mallocs, 0);
    engine_destroy(rig->engine);
    device_close(rig->device);
}

/* Half of the prompts begin as others do, so that blocks are shared wherever that is possible. */
static void random_prompt(int32_t *ids, uint32_t count)
{
    uint32_t alike = test_rand_below(2) ? test_rand_below(count + 1) : 0;
    uint64_t text = test_rand_below(3);

    for (uint32_t i = 0; i < count; i++)
        ids[i] =
            (int32_t)(i < alike ? hash_mix64(text * 1000 + i + 1) % VOCAB : test_rand_below(VOCAB));
}

struct request *client_request(uint32_t prompts, uint32_t prompt_tokens, uint32_t best_of,
                               uint32_t max_tokens, uint32_t ring_capacity)
{
    struct request *r = request_create(0);
    struct request_prompt *list = arena_alloc(&r->arena, prompts * sizeof *list);

    for (uint32_t p = 0; p < prompts; p++) {
        int32_t *ids = arena_alloc(&r->arena, prompt_tokens * sizeof *ids);
        random_prompt(ids, prompt_tokens);
        list[p] = (struct request_prompt){ids, prompt_tokens};
    }
    r->prompt_count = prompts;
    r->prompts = list;
    r->best_of = best_of;
    r->max_tokens = max_tokens;
    r->sampling = (struct request_sampling){
        .temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = test_rand()};
    r->ring = output_ring_create(ring_capacity, 20);
    return r;
}

void client_init(struct client *client, struct request *request)
{
    memset(client, 0, sizeof *client);
    client->request = request;
}

void client_fini(struct client *client)
{
    request_unref(client->request);
}

static uint64_t history_of(const struct client *client, uint32_t choice, uint32_t tokens)
{
    const struct request *r = client->request;
    const struct request_prompt *prompt = &r->prompts[choice / r->best_of];
    uint64_t history = 0;

    for (uint32_t i = 0; i < tokens; i++)
        history = fake_history(history, i < prompt->count
                                            ? prompt->ids[i]
                                            : client->choices[choice].tokens[i - prompt->count]);
    return history;
}

int32_t client_expects(const struct client *client, uint32_t choice)
{
    const struct request *r = client->request;
    uint32_t prompt_count = r->prompts[choice / r->best_of].count;
    uint32_t position = prompt_count + client->choices[choice].count;

    return fake_token(history_of(client, choice, position), r->sampling.seed + choice % r->best_of,
                      position, VOCAB, prompt_count + r->min_tokens, r->stop_ids,
                      r->min_tokens ? r->stop_id_count : 0);
}

static void check_token(struct client *client, const struct output *out)
{
    const struct request *r = client->request;
    struct got *got = &client->choices[out->choice];
    uint32_t position = r->prompts[out->choice / r->best_of].count + got->count;

    client->wrong += out->index != got->count || out->token != client_expects(client, out->choice);
    client->wrong += out->top_count != r->top_logprobs;
    if (r->want_logprobs) {
        uint64_t history = history_of(client, out->choice, position);
        client->wrong += out->logprob != fake_logprob(history, out->token);
        for (uint32_t i = 0; i < out->top_count; i++)
            client->wrong += out->tops[i].logprob != fake_logprob(history, out->tops[i].id);
    }
    if (got->count < CONTEXT) got->tokens[got->count++] = out->token;
}

static void check_scores(struct client *client, uint32_t choice)
{
    const struct request *r = client->request;
    uint32_t prompt = choice / r->best_of;
    const struct prompt_scores *scores = &r->prompt_scores[prompt];

    client->wrong += choice % r->best_of != 0 || client->choices[choice].scored ||
                     client->choices[choice].count > 0;
    for (uint32_t t = 1; t < r->prompts[prompt].count; t++) {
        uint64_t history = history_of(client, choice, t);
        client->wrong +=
            scores->outputs[t].token != r->prompts[prompt].ids[t] ||
            scores->outputs[t].logprob != fake_logprob(history, scores->outputs[t].token);
        for (uint32_t i = 0; i < r->top_logprobs; i++) {
            struct top_logprob top = scores->tops[t * r->top_logprobs + i];
            client->wrong += top.logprob != fake_logprob(history, top.id);
        }
    }
    client->choices[choice].scored = true;
}

/* The end must be the one that the tokens call for. */
static void check_finished(struct client *client, const struct output *out)
{
    const struct request *r = client->request;
    struct got *got = &client->choices[out->choice];
    uint32_t room = CONTEXT - r->prompts[out->choice / r->best_of].count;
    bool stop = false;

    got->finished = true;
    got->reason = out->reason;
    client->finished_count++;
    for (uint32_t i = 0; i < r->stop_id_count && got->count; i++)
        stop |= r->stop_ids[i] == got->tokens[got->count - 1];
    if (out->reason == FINISH_STOP_ID) client->wrong += !stop || got->count <= r->min_tokens;
    if (out->reason == FINISH_LENGTH)
        client->wrong += got->count != (r->max_tokens < room ? r->max_tokens : room);
    if (r->prompt_scores && out->choice % r->best_of == 0 && out->reason == FINISH_LENGTH)
        client->wrong += !got->scored;
}

static void take_output(struct client *client, const struct output *out)
{
    client->wrong += client->error;
    if (out->kind == OUTPUT_ERROR) {
        client->error = true;
        client->error_status = out->status;
        client->wrong += out->error == NULL || out->status == STATUS_OK;
        return;
    }
    client->wrong += client->choices[out->choice].finished;
    switch (out->kind) {
    case OUTPUT_TOKEN: check_token(client, out); break;
    case OUTPUT_PROMPT_SCORED: check_scores(client, out->choice); break;
    default: check_finished(client, out);
    }
}

uint32_t client_read(struct client *client, uint32_t most)
{
    struct output out;
    uint32_t count = 0;

    while (count < most && output_ring_pop(client->request->ring, &out) == STATUS_OK) {
        take_output(client, &out);
        count++;
    }
    return count;
}

void client_finish(struct client *client)
{
    uint32_t choices = request_choices(client->request);

    for (int tries = 0; !client->error && client->finished_count < choices; tries++) {
        if (tries == 600000) fail_msg("the request never ended");
        if (!client_read(client, UINT32_MAX)) rig_pause_us(100);
    }
    EXPECT_EQ(client->wrong, 0);
}
