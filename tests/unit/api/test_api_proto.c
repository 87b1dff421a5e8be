/* test_api_proto.c - a ZeroMQ message asks for the very request that the same JSON body asks for, and its answer is the same
 * text, entries and ends; what is no message is told from what is a wrong one.
 * Method: pairs of a Generate and a body, opened and compared field by field; then the same outputs through both streams.
 * Messages for the walk over the outer fields end at an unmapped page, cut at every length. */
#include <inferd.pb-c.h>
#include <jansson.h>

#include "api/api.h"
#include "test.h"

#include "tiny_model.h"

static struct tiny_model model;

static void open_model(void)
{
    if (!model.tok) tiny_model_open(&model, (const char *const[]){"hello", " world"}, 2, false);
}

static size_t pack(Inferd__V1__Generate *g, uint64_t id, uint8_t out[4096])
{
    Inferd__V1__Request request = INFERD__V1__REQUEST__INIT;

    request.has_id = true;
    request.id = id;
    request.api_key = (char *)(uintptr_t) "key";
    request.x_request_id = (char *)(uintptr_t) "trace-1";
    request.body_case = INFERD__V1__REQUEST__BODY_GENERATE;
    request.generate = g;
    EXPECT_TRUE(inferd__v1__request__get_packed_size(&request) <= 4096);
    return inferd__v1__request__pack(&request, out);
}

static ProtobufCBinaryData bytes(const char *text)
{
    return (ProtobufCBinaryData){strlen(text), (uint8_t *)(uintptr_t)text};
}

static struct api_answer open_message(Inferd__V1__Generate *g)
{
    struct api_client client = {.message_id = 7, .request_id = "trace-1", .received_ns = 5};
    uint8_t message[4096];
    struct api_answer answer;
    size_t len = pack(g, 7, message);

    api_proto_open(&model.api, API_READY, slice_of(message, len), &client, &answer);
    return answer;
}

static struct api_answer open_body(const char *body)
{
    struct api_client client = {.received_ns = 5};
    struct api_answer answer;

    api_open(&model.api, API_COMPLETIONS, API_READY, slice_str(body), &client, &answer);
    return answer;
}

static void drop(struct api_answer *answer)
{
    buf_fini(&answer->body);
    api_stream_destroy(answer->stream);
    if (answer->request) request_unref(answer->request);
}

static void expect_same_request(const struct request *a, const struct request *b)
{
    EXPECT_EQ(a->prompt_count, b->prompt_count);
    for (uint32_t p = 0; p < a->prompt_count; p++) {
        EXPECT_EQ(a->prompts[p].count, b->prompts[p].count);
        EXPECT_TRUE(!memcmp(a->prompts[p].ids, b->prompts[p].ids,
                            a->prompts[p].count * sizeof *a->prompts[p].ids));
    }
    EXPECT_EQ(a->best_of, b->best_of);
    EXPECT_EQ(a->max_tokens, b->max_tokens);
    EXPECT_EQ(a->min_tokens, b->min_tokens);
    EXPECT_EQ(a->top_logprobs, b->top_logprobs);
    EXPECT_EQ(a->want_logprobs, b->want_logprobs);
    EXPECT_EQ(a->stop_id_count, b->stop_id_count);
    EXPECT_EQ(a->sampling.seed, b->sampling.seed);
    EXPECT_TRUE(a->sampling.temperature == b->sampling.temperature);
    EXPECT_TRUE(a->sampling.top_p == b->sampling.top_p);
    EXPECT_TRUE(a->sampling.min_p == b->sampling.min_p);
    EXPECT_EQ(a->sampling.top_k, b->sampling.top_k);
    EXPECT_TRUE(a->sampling.repetition_penalty == b->sampling.repetition_penalty);
    EXPECT_TRUE(a->sampling.presence_penalty == b->sampling.presence_penalty);
    EXPECT_TRUE(a->sampling.frequency_penalty == b->sampling.frequency_penalty);
    EXPECT_EQ(a->sampling.bias_count, b->sampling.bias_count);
    for (uint32_t i = 0; i < a->sampling.bias_count; i++) {
        EXPECT_EQ(a->sampling.biases[i].id, b->sampling.biases[i].id);
        EXPECT_TRUE(a->sampling.biases[i].bias == b->sampling.biases[i].bias);
    }
}

static void push_all(struct api_stream *stream, uint32_t choices)
{
    static const int32_t tokens[] = {'a', 256, 257, 'z'};
    struct api_ended ended;

    for (uint32_t c = 0; c < choices; c++) {
        for (uint32_t i = 0; i < 4; i++) {
            struct output output = {.kind = OUTPUT_TOKEN,
                                    .choice = c,
                                    .index = i,
                                    .token = tokens[i],
                                    .logprob = -0.5f,
                                    .top_count = 1,
                                    .tops = {{.id = tokens[i], .logprob = -0.5f}}};

            api_stream_push(stream, &output, &ended);
        }
        struct output end = {.kind = OUTPUT_FINISHED, .choice = c, .reason = FINISH_LENGTH};

        api_stream_push(stream, &end, &ended);
    }
}

TEST(a_message_asks_for_what_the_same_body_asks_for)
{
    Inferd__V1__Generate g = INFERD__V1__GENERATE__INIT;
    Inferd__V1__LogitBias bias = INFERD__V1__LOGIT_BIAS__INIT, *biases[] = {&bias};
    ProtobufCBinaryData prompts[] = {bytes("hello world"), bytes("ab")}, stop = bytes("Q");
    int32_t stop_ids[] = {98};

    open_model();
    bias.has_token = bias.has_bias = true;
    bias.token = 99;
    bias.bias = -1.5;
    g.prompts = prompts;
    g.n_prompts = 2;
    g.logit_bias = biases;
    g.n_logit_bias = 1;
    g.stop = &stop;
    g.n_stop = 1;
    g.stop_token_ids = stop_ids;
    g.n_stop_token_ids = 1;
#define SET(field, value) \
    g.has_##field = true; \
    g.field = value
    SET(max_tokens, 4);
    SET(min_tokens, 1);
    SET(n, 2);
    SET(best_of, 3);
    SET(temperature, 0.7);
    SET(top_p, 0.9);
    SET(top_k, 5);
    SET(min_p, 0.01);
    SET(presence_penalty, 0.5);
    SET(frequency_penalty, -0.5);
    SET(repetition_penalty, 1.1);
    SET(seed, -3);
    SET(logprobs, true);
    SET(top_logprobs, 2);
    SET(priority, 9);
    SET(timeout_s, 2.5);
    g.has_cache_salt = true;
    g.cache_salt = bytes("salt");
    struct api_answer message = open_message(&g);
    struct api_answer body = open_body(
        "{\"prompt\":[\"hello "
        "world\",\"ab\"],\"max_tokens\":4,\"min_tokens\":1,\"n\":2,\"best_of\":3,"
        "\"temperature\":0.7,\"top_p\":0.9,\"top_k\":5,\"min_p\":0.01,\"presence_penalty\":0.5,"
        "\"frequency_penalty\":-0.5,\"repetition_penalty\":1.1,\"seed\":-3,\"logprobs\":2,"
        "\"stop\":\"Q\",\"stop_token_ids\":[98],\"logit_bias\":{\"99\":-1.5}}");

    EXPECT_EQ(message.kind, API_GENERATE);
    EXPECT_EQ(body.kind, API_GENERATE);
    expect_same_request(message.request, body.request);
    EXPECT_EQ(message.request->priority, 9);
    EXPECT_EQ(message.request->deadline_ns, 2500000005);
    EXPECT_TRUE(message.request->cache_salt != 0 && body.request->cache_salt == 0);
    drop(&message);
    drop(&body);
}

/* The text of choice `index` in a Batch, and the last Response's case. */
static void read_batch(const struct buf *out, uint32_t index, char text[256],
                       Inferd__V1__Response__BodyCase *last, uint32_t *entries)
{
    Inferd__V1__Batch *batch = inferd__v1__batch__unpack(NULL, out->len, (uint8_t *)out->ptr);
    size_t len = 0;

    EXPECT_TRUE(batch != NULL);
    *entries = 0;
    for (size_t i = 0; i < batch->n_responses; i++) {
        const Inferd__V1__Response *r = batch->responses[i];

        EXPECT_EQ(r->id, 7);
        *last = r->body_case;
        if (r->body_case != INFERD__V1__RESPONSE__BODY_CHUNK || r->chunk->index != index) continue;
        if (r->chunk->text.len) memcpy(text + len, r->chunk->text.data, r->chunk->text.len);
        len += r->chunk->text.len;
        *entries += (uint32_t)r->chunk->n_logprobs;
    }
    text[len] = 0;
    inferd__v1__batch__free_unpacked(batch, NULL);
}

TEST(streamed_and_whole_answers_are_one_text)
{
    open_model();
    for (int stream = 0; stream < 2; stream++) {
        Inferd__V1__Generate g = INFERD__V1__GENERATE__INIT;
        ProtobufCBinaryData prompt = bytes("hello");
        Inferd__V1__Response__BodyCase last = INFERD__V1__RESPONSE__BODY__NOT_SET;
        struct api_fault fault;
        struct buf out;
        char text[256];
        uint32_t entries;

        g.prompts = &prompt;
        g.n_prompts = 1;
        SET(max_tokens, 4);
        SET(n, 2);
        SET(logprobs, true);
        SET(top_logprobs, 1);
        SET(stream, stream);
        struct api_answer answer = open_message(&g);

        EXPECT_EQ(answer.kind, API_GENERATE);
        buf_init(&out, 0);
        api_stream_begin(answer.stream, &out);
        EXPECT_TRUE(out.len > 0); /* Started comes first, whole or not */
        push_all(answer.stream, 2);
        api_stream_flush(answer.stream, &out);
        if (!stream) EXPECT_EQ(api_stream_answer(answer.stream, &out, &fault), 200);
        for (uint32_t c = 0; c < 2; c++) {
            read_batch(&out, c, text, &last, &entries);
            EXPECT_STR(text, "ahello worldz");
            EXPECT_EQ(entries, 4);
            EXPECT_EQ(last, INFERD__V1__RESPONSE__BODY_DONE);
        }
        buf_fini(&out);
        drop(&answer);
    }
}

TEST(the_outer_fields_are_read_from_any_bytes)
{
    Inferd__V1__Generate g = INFERD__V1__GENERATE__INIT;
    ProtobufCBinaryData prompt = bytes("hello");
    uint8_t message[4096];
    struct api_head head;

    g.prompts = &prompt;
    g.n_prompts = 1;
    size_t len = pack(&g, 1ull << 60, message);

    for (size_t cut = 0; cut <= len; cut++) {
        unsigned char *copy = test_guarded_copy(message, cut);
        bool ok = api_proto_head(slice_of(copy, cut), &head);

        if (cut == len) {
            EXPECT_TRUE(ok && head.id == 1ull << 60 && head.kind == API_MESSAGE_GENERATE);
            EXPECT_TRUE(slice_eq(head.api_key, SLICE("key")) && head.plain);
            EXPECT_TRUE(slice_eq(head.request_id, SLICE("trace-1")));
        }
        test_guarded_free(copy, cut);
    }
    static const char endless[] = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff";
    static const char group[] = "\x0b\x0c", number_zero[] = "\x00\x01", long_field[] = "\x52\x7f";

    EXPECT_TRUE(!api_proto_head(SLICE(endless), &head));
    EXPECT_TRUE(!api_proto_head(SLICE(group), &head));
    EXPECT_TRUE(!api_proto_head(SLICE(number_zero), &head));
    EXPECT_TRUE(!api_proto_head(SLICE(long_field), &head));
}

TEST(refusals_name_the_message_s_own_fields)
{
    Inferd__V1__Generate g = INFERD__V1__GENERATE__INIT;
    ProtobufCBinaryData bad = bytes("\xff"), good[] = {bytes("a"), bytes("\xc0\x80")};
    struct api_answer answer;

    open_model();
    answer = open_message(&g);
    EXPECT_EQ(answer.kind, API_FAULT);
    EXPECT_STR(answer.fault.code, "missing_required_parameter");
    EXPECT_STR(answer.fault.param, "prompts");
    g.prompts = &bad;
    g.n_prompts = 1;
    answer = open_message(&g);
    EXPECT_STR(answer.fault.param, "prompts");
    g.prompts = good;
    g.n_prompts = 2;
    answer = open_message(&g);
    EXPECT_STR(answer.fault.param, "prompts[1]");
    g.n_prompts = 1;
    SET(priority, 101);
    answer = open_message(&g);
    EXPECT_STR(answer.fault.param, "priority");
    SET(priority, 0);
    SET(top_logprobs, 3);
    answer = open_message(&g);
    EXPECT_STR(answer.fault.param, "top_logprobs");
}
