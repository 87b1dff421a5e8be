/* test_api_open.c - every field of a body lands in the request as it should, and every refusal is well formed.
 * Method: bodies beside the struct request that they must give; tables of refusals with status, code and param; then
 * mutated bodies: each gives a request or a fault whose body is JSON of the contract's shape. */
#include <jansson.h>
#include <stdlib.h>

#include "api/api.h"
#include "api/json_out.h"
#include "test.h"
#include "tiny_model.h"

static struct tiny_model model;

static struct tiny_model *the_model(void)
{
    static bool opened;

    if (!opened) tiny_model_open(&model, (const char *const[]){"hello", "world"}, 2, false);
    opened = true;
    return &model;
}

static void open_body(enum api_route route, const char *body, struct api_answer *answer)
{
    struct api_client client = {.tenant = 77, .received_ns = 5};

    api_open(&the_model()->api, route, API_READY, slice_str(body), &client, answer);
}

static void close_answer(struct api_answer *answer)
{
    api_stream_destroy(answer->stream);
    if (answer->request) request_unref(answer->request);
    buf_fini(&answer->body);
}

static struct request *sound(enum api_route route, const char *body, struct api_answer *answer)
{
    open_body(route, body, answer);
    if (answer->kind != API_GENERATE) fail_msg("refused: %s: %s", answer->fault.message, body);
    return answer->request;
}

TEST(defaults_are_those_of_the_contract)
{
    struct api_answer answer;
    struct request *r = sound(API_COMPLETIONS, "{\"prompt\":\"ab\"}", &answer);

    EXPECT_EQ(r->prompt_count, 1);
    EXPECT_EQ(r->prompts[0].count, 2);
    EXPECT_EQ(r->prompts[0].ids[1], 'b');
    EXPECT_EQ(r->best_of, 1);
    EXPECT_EQ(r->max_tokens, 16);
    EXPECT_EQ(r->min_tokens, 0);
    EXPECT_NEAR(r->sampling.temperature, 1, 0);
    EXPECT_NEAR(r->sampling.top_p, 1, 0);
    EXPECT_EQ(r->sampling.top_k, -1);
    EXPECT_NEAR(r->sampling.repetition_penalty, 1, 0);
    EXPECT_EQ(r->stop_id_count, 1);
    EXPECT_EQ(r->stop_ids[0], model.eos);
    EXPECT_TRUE(!r->want_logprobs && !r->prompt_scores && r->ring);
    EXPECT_EQ(r->tenant, 77);
    EXPECT_EQ(r->times.received_ns, 5);
    EXPECT_EQ(r->times.prompt_tokens, 2);
    EXPECT_TRUE(strncmp(r->id, "cmpl-", 5) == 0);
    close_answer(&answer);

    r = sound(API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"ab\"}]}", &answer);
    EXPECT_EQ(r->max_tokens, 256 - r->prompts[0].count); /* what is left of the context */
    EXPECT_TRUE(strncmp(r->id, "chatcmpl-", 9) == 0);
    close_answer(&answer);
}

TEST(every_field_lands_in_the_request)
{
    struct api_answer answer;
    struct request *r =
        sound(API_COMPLETIONS,
              "{\"prompt\":[[1,2,3],[4]],\"n\":2,\"best_of\":3,\"temperature\":0.5,\"top_p\":0,"
              "\"top_k\":40,"
              "\"min_p\":0.25,\"presence_penalty\":-2,\"frequency_penalty\":1.5,\"repetition_"
              "penalty\":1.25,"
              "\"logit_bias\":{\"7\":-100,\"8\":0.5},\"seed\":-1,\"max_tokens\":9,\"min_tokens\":4,"
              "\"stop_token_ids\":[5,6,5],\"logprobs\":3,\"echo\":true}",
              &answer);

    EXPECT_EQ(r->prompt_count, 2);
    EXPECT_EQ(r->best_of, 3);
    EXPECT_EQ(request_choices(r), 6);
    EXPECT_EQ(r->prompts[1].ids[0], 4);
    EXPECT_NEAR(r->sampling.temperature, 0.5, 0);
    EXPECT_TRUE(r->sampling.top_p > 0 && r->sampling.top_p < 1e-30); /* 0: the likeliest only */
    EXPECT_EQ(r->sampling.top_k, 40);
    EXPECT_NEAR(r->sampling.min_p, 0.25, 0);
    EXPECT_NEAR(r->sampling.presence_penalty, -2, 0);
    EXPECT_NEAR(r->sampling.frequency_penalty, 1.5, 0);
    EXPECT_NEAR(r->sampling.repetition_penalty, 1.25, 0);
    EXPECT_EQ(r->sampling.bias_count, 2);
    EXPECT_EQ(r->sampling.biases[0].id, 7);
    EXPECT_NEAR(r->sampling.biases[1].bias, 0.5, 0);
    EXPECT_TRUE(r->sampling.seed == UINT64_MAX);
    EXPECT_EQ(r->max_tokens, 9);
    EXPECT_EQ(r->min_tokens, 4);
    EXPECT_EQ(r->stop_id_count, 3); /* each once, the end of sequence too */
    EXPECT_TRUE(r->want_logprobs && r->prompt_scores);
    EXPECT_EQ(r->top_logprobs, 3);
    close_answer(&answer);

    r = sound(API_COMPLETIONS, "{\"prompt\":\"a\",\"ignore_eos\":true}", &answer);
    EXPECT_EQ(r->stop_id_count, 0);
    close_answer(&answer);
    r = sound(API_COMPLETIONS,
              "{\"prompt\":[1,2,3,4],\"truncate_prompt_tokens\":2,\"max_tokens\":3}", &answer);
    EXPECT_EQ(r->prompts[0].count, 2);
    EXPECT_EQ(r->prompts[0].ids[0], 3);
    close_answer(&answer);
}

TEST(an_added_bos_is_no_part_of_an_echoed_text)
{
    struct api_answer answer;
    struct buf out;

    sound(API_COMPLETIONS, "{\"prompt\":\"<s>a\",\"echo\":true,\"max_tokens\":0,\"stream\":true}",
          &answer);
    EXPECT_EQ(answer.request->prompts[0].ids[0], model.bos); /* special text is the special token */
    EXPECT_EQ(answer.request->max_tokens, 0);
    buf_init(&out, 0);
    api_stream_begin(answer.stream, &out);
    EXPECT_TRUE(strstr(buf_cstr(&out), "\"text\":\"<s>a\"") != NULL);
    buf_fini(&out);
    close_answer(&answer);
}

TEST(without_a_seed_each_request_has_its_own)
{
    struct api_answer a, b;

    EXPECT_TRUE(sound(API_COMPLETIONS, "{\"prompt\":\"a\"}", &a)->sampling.seed !=
                sound(API_COMPLETIONS, "{\"prompt\":\"a\"}", &b)->sampling.seed);
    EXPECT_TRUE(strcmp(a.request->id, b.request->id) != 0);
    close_answer(&a);
    close_answer(&b);
}

/* The body of a fault has the four members, and says what the fault says. */
static void check_fault_body(const struct api_fault *fault)
{
    struct buf out;

    buf_init(&out, 0);
    api_fault_body(fault, &out);
    json_t *root = json_loadb(out.ptr, out.len, JSON_REJECT_DUPLICATES, NULL);
    json_t *error = json_object_get(root, "error");

    EXPECT_EQ(json_object_size(root), 1);
    EXPECT_EQ(json_object_size(error), 4);
    EXPECT_TRUE(json_is_string(json_object_get(error, "message")));
    EXPECT_TRUE(json_string_length(json_object_get(error, "message")) > 0);
    EXPECT_STR(json_string_value(json_object_get(error, "type")), fault->type);
    json_t *param = json_object_get(error, "param");

    EXPECT_TRUE(fault->param[0] ? json_is_string(param) : json_is_null(param));
    json_decref(root);
    buf_fini(&out);
}

TEST(refusals_come_in_the_order_of_the_contract)
{
    static const struct {
        enum api_state state;
        const char *body, *code;
        unsigned status;
    } rows[] = {
        {API_LOADING, "{", "invalid_json", 400},
        {API_LOADING, "{}", "model_loading", 503},
        {API_DRAINING, "{}", "server_draining", 503},
        {API_READY, "{\"prompt\":\"a\",\"n\":0,\"model\":\"x\",\"max_tokens\":9999}",
         "invalid_value", 400},
        {API_READY, "{\"prompt\":\"a\",\"model\":\"x\",\"max_tokens\":9999}", "model_not_found",
         404},
        {API_READY, "{\"prompt\":\"a\",\"max_tokens\":9999}", "context_length_exceeded", 400},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct api_answer answer;
        struct api_client client = {0};

        api_open(rows[i].state == API_LOADING ? NULL : &the_model()->api, API_COMPLETIONS,
                 rows[i].state, slice_str(rows[i].body), &client, &answer);
        EXPECT_EQ(answer.kind, API_FAULT);
        EXPECT_EQ(answer.fault.http_status, rows[i].status);
        EXPECT_STR(answer.fault.code, rows[i].code);
        EXPECT_EQ(answer.fault.retry_after_s > 0, rows[i].status == 503);
        check_fault_body(&answer.fault);
        close_answer(&answer);
    }
}

TEST(the_engines_refusals_have_their_status)
{
    static const struct {
        enum status status;
        unsigned http;
    } rows[] = {{STATUS_FULL, 429},
                {STATUS_INVALID, 400},
                {STATUS_CLOSED, 503},
                {STATUS_NOMEM, 503},
                {STATUS_DEVICE_LOST, 500}};
    struct error err = {STATUS_INVALID, "needs 13 blocks; the pool has 8"};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct api_fault fault;

        api_submit_fault(rows[i].status, &err, API_CHAT, 3, &fault);
        EXPECT_EQ(fault.http_status, rows[i].http);
        if (rows[i].http == 429) EXPECT_EQ(fault.retry_after_s, 3);
        check_fault_body(&fault);
    }
}

TEST(what_a_message_quotes_stays_valid_utf8)
{
    struct api_fault fault;

    api_refuse(&fault, 400, "invalid_value", "messages", "%.3s and \x01 \"", "a\u00e9\u00e9");
    check_fault_body(&fault);
}

TEST(numbers_are_written_so_that_json_reads_them_back)
{
    static const float values[] = {0.0f, -0.0f, 0.5f, -1e-9f, -0.44019f, -12.25f, -9998.5f, -1e30f};
    struct buf out;

    buf_init(&out, 0);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        double want = values[i] > 0 ? 0 : values[i] < -9999 ? -9999 : (double)values[i];

        buf_clear(&out);
        json_out_logprob(&out, values[i]);
        json_t *number = json_loadb(out.ptr, out.len, JSON_DECODE_ANY, NULL);

        EXPECT_TRUE(json_is_real(number));
        EXPECT_NEAR(json_number_value(number), want, 1e-8);
        json_decref(number);
    }
    buf_fini(&out);
}

TEST(strings_are_escaped_so_that_json_reads_them_back)
{
    struct buf out;

    buf_init(&out, 0);
    for (int turn = 0; turn < 300; turn++) {
        char text[64];
        size_t len = test_rand_below(sizeof text);

        for (size_t i = 0; i < len; i++)
            text[i] = (char)test_rand_below(128);
        buf_clear(&out);
        json_out_string(&out, slice_of(text, len));
        json_t *value = json_loadb(out.ptr, out.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);

        EXPECT_EQ(json_string_length(value), len);
        EXPECT_TRUE(memcmp(json_string_value(value), text, len) == 0);
        json_decref(value);
    }
    buf_fini(&out);
}

TEST(mutated_bodies_give_a_request_or_a_well_formed_fault)
{
    static const char *const seeds[] = {
        "{\"prompt\":\"ab\",\"n\":2,\"stop\":[\"x\"],\"logit_bias\":{\"5\":1},\"max_tokens\":3,"
        "\"logprobs\":2,\"echo\":true}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}],"
        "\"stream\":true,\"top_logprobs\":1,"
        "\"logprobs\":true,\"stream_options\":{\"include_usage\":true}}",
        "{\"prompt\":[[1,2],[3]],\"seed\":1e3,\"temperature\":0.1,\"stop_token_ids\":[1],\"best_"
        "of\":4}",
        "{\"tokens\":[1,2,300]}",
    };

    for (int turn = 0; turn < (test_long() ? 300000 : 20000); turn++) {
        char body[512];
        enum api_route route = (enum api_route)test_rand_below(4);
        struct api_answer answer;

        snprintf(body, sizeof body, "%s", seeds[test_rand_below(4)]);
        for (uint32_t edits = test_rand_below(4); edits > 0; edits--)
            body[test_rand_below((uint32_t)strlen(body))] =
                "0123456789-\"{}[]:,aetns\\.\xc3"[test_rand_below(25)];
        open_body(route, body, &answer);
        if (answer.kind == API_FAULT) check_fault_body(&answer.fault);
        close_answer(&answer);
    }
}
