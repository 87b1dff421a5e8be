/* test_api_stream.c - outputs become the same answer streamed and whole, and what a client must not see is never sent.
 * Method: tables of tokens with the text, entries and ends that they must give (known faults kf-01, kf-02, kf-09, kf-23);
 * then random tokens, stop strings and flags, run through a stream cut at random places and through a whole answer, beside
 * a plain model that decodes all tokens at once and searches the stops in the result. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "api/api.h"
#include "test.h"

#include "base/clock.h"
#include "text/detok.h"
#include "tiny_model.h"

/* --- driving a stream --- */

struct run {
    struct api_answer answer;
    struct buf events; /* all bytes of a stream */
    bool stopped;      /* stop text ended choice 0 after `kept` tokens */
    uint32_t kept;
    uint32_t next_index[64];
};

static void run_open(struct run *run, struct tiny_model *m, enum api_route route, const char *body)
{
    struct api_client client = {0};

    memset(run, 0, sizeof *run);
    buf_init(&run->events, 0);
    api_open(&m->api, route, API_READY, slice_str(body), &client, &run->answer);
    if (run->answer.kind != API_GENERATE)
        fail_msg("refused: %s (%s)", run->answer.fault.message, body);
    api_stream_begin(run->answer.stream, &run->events);
}

static void push(struct run *run, const struct output *output)
{
    struct api_ended ended;

    if (!api_stream_push(run->answer.stream, output, &ended)) return;
    EXPECT_EQ(ended.choice, output->choice);
    if (ended.choice == 0) {
        run->stopped = true;
        run->kept = ended.kept_tokens;
    }
}

static void push_token(struct run *run, uint32_t choice, int32_t token, float logprob)
{
    struct output output = {.kind = OUTPUT_TOKEN,
                            .choice = choice,
                            .token = token,
                            .index = run->next_index[choice]++,
                            .logprob = logprob};

    push(run, &output);
}

static void finish(struct run *run, uint32_t choice, enum finish_reason reason)
{
    struct output output = {.kind = OUTPUT_FINISHED, .choice = choice, .reason = reason};

    push(run, &output);
}

static void flush(struct run *run)
{
    api_stream_flush(run->answer.stream, &run->events);
}

static void run_close(struct run *run)
{
    api_stream_destroy(run->answer.stream);
    request_unref(run->answer.request);
    buf_fini(&run->events);
}

/* The whole answer as JSON; the caller ends it. */
static json_t *whole(struct run *run)
{
    struct buf out;
    struct api_fault fault;

    buf_init(&out, 0);
    EXPECT_TRUE(api_stream_done(run->answer.stream));
    EXPECT_EQ(api_stream_answer(run->answer.stream, &out, &fault), 200);
    json_t *value = json_loadb(out.ptr, out.len, JSON_ALLOW_NUL, NULL);

    if (!value) fail_msg("no JSON: %.*s", (int)out.len, out.ptr);
    buf_fini(&out);
    return value;
}

/* The events as a JSON array, without [DONE], which must be last. */
static json_t *events(struct run *run)
{
    json_t *list = json_array();
    char *at = (char *)(uintptr_t)buf_cstr(&run->events), *end;
    bool done = false;

    EXPECT_EQ(strlen(at), run->events.len);
    for (; *at; at = end + 2) {
        end = strstr(at, "\n\n");
        EXPECT_TRUE(end && !done && strncmp(at, "data: ", 6) == 0);
        if (strncmp(at + 6, "[DONE]", 6) == 0) {
            done = true;
            continue;
        }
        json_t *event = json_loadb(at + 6, (size_t)(end - at - 6), JSON_ALLOW_NUL, NULL);

        if (!event) fail_msg("no JSON: %.*s", (int)(end - at), at);
        json_array_append_new(list, event);
    }
    EXPECT_TRUE(done);
    return list;
}

static json_t *choice_of(json_t *answer, size_t i)
{
    return json_array_get(json_object_get(answer, "choices"), i);
}

static const char *text_of(json_t *choice)
{
    json_t *message = json_object_get(choice, "message");

    return json_string_value(message ? json_object_get(message, "content")
                                     : json_object_get(choice, "text"));
}

/* The deltas of choice 0, each as a C string into `deltas`; returns how many carried text. */
static size_t deltas_of(json_t *list, const char **deltas, size_t max)
{
    size_t count = 0, i;
    json_t *event;

    json_array_foreach(list, i, event)
    {
        json_t *choice = choice_of(event, 0);
        const json_t *delta = json_object_get(choice, "delta");
        const char *text = delta ? json_string_value(json_object_get(delta, "content"))
                                 : json_string_value(json_object_get(choice, "text"));

        if (text && *text && count < max) deltas[count++] = text;
    }
    return count;
}

/* --- kf-01: characters --- */

TEST(characters_are_held_until_their_last_byte_and_no_longer)
{
    static const struct {
        const char *tokens[6];
        int32_t ids[6]; /* 0: tokens[i] is an own token; else this id */
        uint32_t count;
        const char *deltas[6];
        const char *text;
    } rows[] = {
        {{"Hi ", "\xf0", "\x9f\x8c", "\xb6", "!"},
         {0},
         5,
         {"Hi ", "", "", "\U0001f336", "!"},
         "Hi \U0001f336!"},
        {{"A", "\xe4\xbd"}, {0}, 2, {"A", ""}, "A\ufffd"},
        {{"\xc3", "\xa9", "\xc3\xa9"}, {0}, 3, {"", "\u00e9", "\u00e9"}, "\u00e9\u00e9"},
        {{"\xff", "a", "\xe2\x82", "\xe2\x82\xac"},
         {0},
         4,
         {"\ufffd", "a", "", "\ufffd\u20ac"},
         "\ufffda\ufffd\u20ac"},
    };

    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct tiny_model m;
        struct run run;
        char body[64];

        tiny_model_open(&m, rows[r].tokens, rows[r].count, false);
        for (int stream = 0; stream < 2; stream++) {
            snprintf(body, sizeof body, "{\"prompt\":\"a\",\"stream\":%s}",
                     stream ? "true" : "false");
            run_open(&run, &m, API_COMPLETIONS, body);
            for (uint32_t i = 0; i < rows[r].count; i++) {
                size_t before = run.events.len;

                push_token(&run, 0, m.first + (int32_t)i, -1);
                flush(&run);
                /* an event goes out exactly with the tokens that make text certain */
                if (stream) EXPECT_EQ(run.events.len > before, rows[r].deltas[i][0] != 0);
            }
            finish(&run, 0, FINISH_LENGTH);
            flush(&run);
            if (stream) {
                const char *deltas[8];
                json_t *list = events(&run);
                char joined[64] = "";
                size_t count = deltas_of(list, deltas, 8), at = 0;

                for (uint32_t i = 0; i < rows[r].count; i++)
                    if (rows[r].deltas[i][0]) EXPECT_STR(deltas[at++], rows[r].deltas[i]);
                for (size_t i = 0; i < count; i++)
                    strcat(joined, deltas[i]);
                EXPECT_STR(joined, rows[r].text);
                json_decref(list);
            } else {
                json_t *answer = whole(&run);

                EXPECT_STR(text_of(choice_of(answer, 0)), rows[r].text);
                json_decref(answer);
            }
            run_close(&run);
        }
        tiny_model_close(&m);
    }
}

TEST(sentencepiece_strips_the_first_space_of_a_chat_answer)
{
    static const char *const tokens[] = {"\u2581Hello", "\u2581wor", "ld", "\u2581b", "\u2581a"};
    static const int32_t bytes[] = {3 + 0xf0, 3 + 0x9f, 3 + 0xa6, 3 + 0x99};
    struct tiny_model m;
    struct run run;
    json_t *answer;

    tiny_model_open(&m, tokens, 5, true);
    run_open(&run, &m, API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}");
    for (int i = 0; i < 3; i++)
        push_token(&run, 0, m.first + i, -1);
    finish(&run, 0, FINISH_LENGTH);
    answer = whole(&run);
    EXPECT_STR(text_of(choice_of(answer, 0)), "Hello world");
    json_decref(answer);
    run_close(&run);

    run_open(&run, &m, API_CHAT,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"logprobs\":true}");
    push_token(&run, 0, m.first + 3, -1);
    for (int i = 0; i < 4; i++)
        push_token(&run, 0, bytes[i], -1);
    push_token(&run, 0, m.first + 4, -1);
    finish(&run, 0, FINISH_LENGTH);
    answer = whole(&run);
    EXPECT_STR(text_of(choice_of(answer, 0)), "b\U0001f999 a");
    json_t *entries = json_object_get(json_object_get(choice_of(answer, 0), "logprobs"), "content");
    EXPECT_EQ(json_array_size(entries), 6);
    EXPECT_STR(json_string_value(json_object_get(json_array_get(entries, 0), "token")), "b");
    EXPECT_STR(json_string_value(json_object_get(json_array_get(entries, 5), "token")), " a");
    json_decref(answer);
    run_close(&run);

    /* a completion goes on from its prompt: the space stays */
    run_open(&run, &m, API_COMPLETIONS, "{\"prompt\":\"a\"}");
    push_token(&run, 0, m.first, -1);
    finish(&run, 0, FINISH_LENGTH);
    answer = whole(&run);
    EXPECT_STR(text_of(choice_of(answer, 0)), " Hello");
    json_decref(answer);
    run_close(&run);
    tiny_model_close(&m);
}

/* --- kf-02: stop strings --- */

TEST(stop_strings_end_the_text_before_their_first_byte)
{
    static const struct {
        const char *stop, *tokens[6];
        uint32_t count;
        const char *text, *reason;
    } rows[] = {
        {"END", {"The ", "E", "N", "D", " now"}, 5, "The ", "stop"},
        {"DE", {"ABC", "DEFG", "H"}, 3, "ABC", "stop"},
        {"</q>", {"x <", "/", "b>"}, 3, "x </b>", "length"},
        {"\\n\\n", {"a\n", "b\n", "\nc"}, 3, "a\nb", "stop"},
        {"aab", {"aa", "ab", "z"}, 3, "a", "stop"},
        {"zzz", {"a", "zz"}, 2, "azz", "length"},
    };

    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int stream = 0; stream < 2; stream++) {
            struct tiny_model m;
            struct run run;
            char body[128];

            tiny_model_open(&m, rows[r].tokens, rows[r].count, false);
            snprintf(body, sizeof body, "{\"prompt\":\"a\",\"stop\":[\"%s\"],\"stream\":%s}",
                     rows[r].stop, stream ? "true" : "false");
            run_open(&run, &m, API_COMPLETIONS, body);
            for (uint32_t i = 0; i < rows[r].count; i++) {
                push_token(&run, 0, m.first + (int32_t)i, -1);
                flush(&run);
            }
            finish(&run, 0, FINISH_LENGTH);
            flush(&run);
            EXPECT_EQ(run.stopped, strcmp(rows[r].reason, "stop") == 0);
            if (stream) {
                const char *deltas[8];
                json_t *list = events(&run);
                char joined[64] = "";
                size_t count = deltas_of(list, deltas, 8);

                for (size_t i = 0; i < count; i++)
                    strcat(joined, deltas[i]);
                EXPECT_STR(joined, rows[r].text);
                json_decref(list);
            } else {
                json_t *answer = whole(&run);

                EXPECT_STR(text_of(choice_of(answer, 0)), rows[r].text);
                EXPECT_STR(
                    json_string_value(json_object_get(choice_of(answer, 0), "finish_reason")),
                    rows[r].reason);
                json_decref(answer);
            }
            run_close(&run);
            tiny_model_close(&m);
        }
}

/* --- ends --- */

TEST(an_end_token_leaves_no_text_and_counts)
{
    struct tiny_model m;
    struct run run;

    tiny_model_open(&m, (const char *const[]){"ab", "<|"}, 2, false);
    run_open(&run, &m, API_CHAT,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"logprobs\":true,"
             "\"skip_special_tokens\":false,\"return_token_ids\":true}");
    push_token(&run, 0, m.first, -1);
    push_token(&run, 0, m.eos, -2);
    finish(&run, 0, FINISH_STOP_ID);
    json_t *answer = whole(&run), *choice = choice_of(answer, 0);

    EXPECT_STR(text_of(choice), "ab");
    EXPECT_STR(json_string_value(json_object_get(choice, "finish_reason")), "stop");
    EXPECT_TRUE(json_is_null(json_object_get(choice, "stop_reason")));
    EXPECT_EQ(json_array_size(json_object_get(choice, "token_ids")), 2);
    EXPECT_EQ(json_array_size(json_object_get(json_object_get(choice, "logprobs"), "content")), 1);
    EXPECT_EQ(
        json_integer_value(json_object_get(json_object_get(answer, "usage"), "completion_tokens")),
        2);
    json_decref(answer);
    run_close(&run);
    tiny_model_close(&m);
}

TEST(special_tokens_in_mid_text_have_a_name_and_no_bytes)
{
    struct tiny_model m;

    tiny_model_open(&m, (const char *const[]){"ab"}, 1, false);
    for (int skip = 0; skip < 2; skip++) {
        struct run run;
        char body[256];

        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"logprobs\":true,"
                 "\"ignore_eos\":true,\"skip_special_tokens\":%s}",
                 skip ? "true" : "false");
        run_open(&run, &m, API_CHAT, body);
        push_token(&run, 0, m.first, -1);
        push_token(&run, 0, m.eos, -1);
        push_token(&run, 0, m.first, -1);
        finish(&run, 0, FINISH_LENGTH);
        json_t *answer = whole(&run), *choice = choice_of(answer, 0);
        json_t *entry =
            json_array_get(json_object_get(json_object_get(choice, "logprobs"), "content"), 1);

        EXPECT_STR(text_of(choice), skip ? "abab" : "ab</s>ab");
        EXPECT_STR(json_string_value(json_object_get(entry, "token")), "</s>");
        EXPECT_EQ(json_array_size(json_object_get(entry, "bytes")), skip ? 0 : 4);
        json_decref(answer);
        run_close(&run);
    }
    tiny_model_close(&m);
}

TEST(an_error_ends_a_stream_with_an_event_and_a_whole_answer_with_a_status)
{
    struct tiny_model m;
    struct run run;
    struct output output = {
        .kind = OUTPUT_ERROR, .status = STATUS_DEVICE, .error = "the device \"failed\""};

    tiny_model_open(&m, (const char *const[]){"ab"}, 1, false);
    run_open(&run, &m, API_COMPLETIONS, "{\"prompt\":\"a\",\"stream\":true,\"stop\":\"abc\"}");
    push_token(&run, 0, m.first, -1);
    flush(&run);
    push(&run, &output);
    flush(&run);
    json_t *list = events(&run), *last = json_array_get(list, json_array_size(list) - 1);

    EXPECT_STR(json_string_value(json_object_get(json_object_get(last, "error"), "code")),
               "internal_error");
    json_decref(list);
    run_close(&run);

    run_open(&run, &m, API_COMPLETIONS, "{\"prompt\":\"a\"}");
    push(&run, &output);
    struct buf out;
    struct api_fault fault;

    buf_init(&out, 0);
    EXPECT_EQ(api_stream_answer(run.answer.stream, &out, &fault), 500);
    EXPECT_STR(fault.type, "server_error");
    buf_fini(&out);
    run_close(&run);
    tiny_model_close(&m);
}

/* --- log probabilities --- */

/* kf-09: numbers as the engine gives them, bytes as the token has them. */
TEST(log_probabilities_are_exact_and_in_order)
{
    struct tiny_model m;
    struct run run;
    struct output output = {.kind = OUTPUT_TOKEN, .top_count = 3, .logprob = -0.4402f};

    tiny_model_open(&m, (const char *const[]){"\xf0\x9f", "b", "c"}, 3, false);
    for (int i = 0; i < 3; i++)
        output.tops[i] = (struct top_logprob){m.first + i, -0.4402f - (float)i};
    output.token = m.first;
    run_open(&run, &m, API_CHAT,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"logprobs\":true,\"top_"
             "logprobs\":3}");
    push(&run, &output);
    output.index = 1;
    output.logprob = -INFINITY;
    output.tops[2].logprob = -INFINITY;
    output.token = m.first + 2;
    push(&run, &output);
    finish(&run, 0, FINISH_LENGTH);
    json_t *answer = whole(&run);
    json_t *entries = json_object_get(json_object_get(choice_of(answer, 0), "logprobs"), "content");
    json_t *first = json_array_get(entries, 0), *second = json_array_get(entries, 1);
    json_t *tops = json_object_get(first, "top_logprobs");

    EXPECT_NEAR(json_number_value(json_object_get(first, "logprob")), -0.4402, 1e-6);
    EXPECT_EQ(json_integer_value(json_array_get(json_object_get(first, "bytes"), 0)), 240);
    EXPECT_EQ(json_integer_value(json_array_get(json_object_get(first, "bytes"), 1)), 159);
    EXPECT_STR(json_string_value(json_object_get(first, "token")), "\ufffd");
    EXPECT_EQ(json_array_size(tops), 3);
    for (int i = 0; i < 3; i++)
        EXPECT_NEAR(json_number_value(json_object_get(json_array_get(tops, (size_t)i), "logprob")),
                    -0.4402 - i, 1e-6);
    EXPECT_NEAR(json_number_value(json_object_get(second, "logprob")), -9999.0, 0);
    json_decref(answer);
    run_close(&run);
    tiny_model_close(&m);
}

TEST(completions_give_the_sampled_token_one_number_and_offsets_in_characters)
{
    struct tiny_model m;
    struct run run;
    struct output output = {.kind = OUTPUT_TOKEN, .top_count = 2, .logprob = -3.25f};

    tiny_model_open(&m, (const char *const[]){"\u00e9\u00e9", "b", "\xff", "\xfe"}, 4, false);
    run_open(&run, &m, API_COMPLETIONS, "{\"prompt\":\"a\",\"logprobs\":2}");
    /* two of the likeliest have the same text: the likelier stays, and the sampled one is added */
    output.tops[0] = (struct top_logprob){m.first + 2, -0.5f};
    output.tops[1] = (struct top_logprob){m.first + 3, -1.5f};
    output.token = m.first;
    push(&run, &output);
    output.index = 1;
    output.token = m.first + 1;
    output.tops[0] = (struct top_logprob){m.first + 1, -3.25f};
    push(&run, &output);
    finish(&run, 0, FINISH_LENGTH);
    json_t *answer = whole(&run), *l = json_object_get(choice_of(answer, 0), "logprobs");
    json_t *top = json_array_get(json_object_get(l, "top_logprobs"), 0);

    EXPECT_EQ(json_object_size(top), 2);
    EXPECT_NEAR(json_number_value(json_object_get(top, "\ufffd")), -0.5, 0);
    EXPECT_NEAR(json_number_value(json_object_get(top, "\u00e9\u00e9")), -3.25, 0);
    EXPECT_EQ(json_integer_value(json_array_get(json_object_get(l, "text_offset"), 0)), 0);
    EXPECT_EQ(json_integer_value(json_array_get(json_object_get(l, "text_offset"), 1)), 2);
    EXPECT_EQ(json_array_size(json_object_get(l, "tokens")), 2);
    EXPECT_EQ(json_array_size(json_object_get(l, "token_logprobs")), 2);
    json_decref(answer);
    run_close(&run);
    tiny_model_close(&m);
}

/* Entries that lie wholly behind the start of a match are left out; one that begins before it stays. */
TEST(entries_behind_a_stop_are_left_out)
{
    static const struct {
        const char *tokens[5];
        uint32_t count;
        bool include;
        uint32_t entries;
    } rows[] = {
        {{"ab", "S", "TO", "P"}, 4, false, 1}, {{"ab", "cS", "TO", "P"}, 4, false, 2},
        {{"ab", "cS", "TO", "P"}, 4, true, 4}, {{"ab", "STOPx"}, 2, false, 1},
        {{"ab", "STOPx"}, 2, true, 2},         {{"STOP"}, 1, false, 0},
    };

    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int stream = 0; stream < 2; stream++) {
            struct tiny_model m;
            struct run run;
            char body[256];
            size_t entries = 0, i;
            json_t *event;

            tiny_model_open(&m, rows[r].tokens, rows[r].count, false);
            snprintf(
                body, sizeof body,
                "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"logprobs\":true,\"stop\":"
                "\"STOP\",\"include_stop_str_in_output\":%s,\"stream\":%s}",
                rows[r].include ? "true" : "false", stream ? "true" : "false");
            run_open(&run, &m, API_CHAT, body);
            for (uint32_t t = 0; t < rows[r].count; t++) {
                push_token(&run, 0, m.first + (int32_t)t, -1);
                flush(&run);
            }
            EXPECT_TRUE(run.stopped);
            finish(&run, 0, FINISH_ENDED);
            flush(&run);
            if (stream) {
                json_t *list = events(&run);

                json_array_foreach(list, i, event) entries += json_array_size(
                    json_object_get(json_object_get(choice_of(event, 0), "logprobs"), "content"));
                json_decref(list);
            } else {
                json_t *answer = whole(&run);

                entries = json_array_size(
                    json_object_get(json_object_get(choice_of(answer, 0), "logprobs"), "content"));
                json_decref(answer);
            }
            EXPECT_EQ(entries, rows[r].entries);
            run_close(&run);
            tiny_model_close(&m);
        }
}

TEST(echo_puts_the_prompts_entries_first)
{
    struct tiny_model m;

    tiny_model_open(&m, (const char *const[]){"xy"}, 1, false);
    for (int stream = 0; stream < 3; stream++) {
        struct run run;
        char body[128];
        struct output scored = {.kind = OUTPUT_PROMPT_SCORED, .choice = 0};

        snprintf(body, sizeof body,
                 "{\"prompt\":\"a\u00e9b\",\"echo\":true,\"logprobs\":1,\"stream\":%s}",
                 stream ? "true" : "false");
        run_open(&run, &m, API_COMPLETIONS, body);
        struct request *r = run.answer.request;

        EXPECT_EQ(r->prompts[0].count, 4);
        for (uint32_t i = 1; i < 4; i++) {
            r->prompt_scores[0].outputs[i] = (struct step_output){
                .token = r->prompts[0].ids[i], .logprob = -(float)i, .top_count = 1};
            r->prompt_scores[0].tops[i] = (struct top_logprob){r->prompts[0].ids[i], -(float)i};
        }
        push(&run, &scored);
        if (stream < 2)
            flush(&run); /* else the prompt's and the first token's entries come in one turn */
        push_token(&run, 0, m.first, -9);
        finish(&run, 0, FINISH_LENGTH);
        flush(&run);
        json_t *answer = stream ? events(&run) : whole(&run);
        json_t *choice = choice_of(stream ? json_array_get(answer, 0) : answer, 0);
        json_t *l = json_object_get(choice, "logprobs");

        EXPECT_STR(text_of(choice), stream ? "a\u00e9b" : "a\u00e9bxy");
        EXPECT_EQ(json_array_size(json_object_get(l, "tokens")), stream ? 4 : 5);
        EXPECT_TRUE(json_is_null(json_array_get(json_object_get(l, "token_logprobs"), 0)));
        EXPECT_TRUE(json_is_null(json_array_get(json_object_get(l, "top_logprobs"), 0)));
        EXPECT_NEAR(json_number_value(json_array_get(json_object_get(l, "token_logprobs"), 3)), -3,
                    0);
        EXPECT_EQ(json_integer_value(json_array_get(json_object_get(l, "text_offset"), 3)), 2);
        if (stream) l = json_object_get(choice_of(json_array_get(answer, 1), 0), "logprobs");
        json_t *offsets = json_object_get(l, "text_offset");

        EXPECT_EQ(json_integer_value(json_array_get(offsets, json_array_size(offsets) - 1)), 3);
        json_decref(answer);
        run_close(&run);
    }
    tiny_model_close(&m);
}

TEST(best_of_returns_the_likeliest_per_token_best_first)
{
    struct tiny_model m;
    struct run run;

    tiny_model_open(&m, (const char *const[]){"A", "B", "C"}, 3, false);
    run_open(&run, &m, API_COMPLETIONS, "{\"prompt\":\"a\",\"n\":2,\"best_of\":3}");
    EXPECT_TRUE(run.answer.request->want_logprobs);
    push_token(&run, 0, m.first, -2);
    push_token(&run, 1, m.first + 1, -1);
    push_token(&run, 1, m.first + 1, -1); /* the sum is less than C's, the mean is not */
    push_token(&run, 1, m.first + 1, -1);
    push_token(&run, 2, m.first + 2, -1.5f);
    for (uint32_t c = 0; c < 3; c++)
        finish(&run, c, FINISH_LENGTH);
    json_t *answer = whole(&run);

    EXPECT_STR(text_of(choice_of(answer, 0)), "BBB");
    EXPECT_STR(text_of(choice_of(answer, 1)), "C");
    EXPECT_EQ(json_integer_value(json_object_get(choice_of(answer, 1), "index")), 1);
    EXPECT_EQ(
        json_integer_value(json_object_get(json_object_get(answer, "usage"), "completion_tokens")),
        5);
    json_decref(answer);
    run_close(&run);
    tiny_model_close(&m);
}

/* The stages of `timings` add up to its total; without the field there are none. */
static void check_timings(const json_t *answer)
{
    const json_t *timings = json_object_get(answer, "timings"), *ms;
    double sum = 0, total = json_number_value(json_object_get(timings, "total_ms"));
    const char *name;

    EXPECT_TRUE(json_is_object(timings));
    json_object_foreach(json_object_get(timings, "stages_ms"), name, ms) sum +=
        json_number_value(ms);
    EXPECT_NEAR(sum, total, 0.01 * total + 0.01);
    EXPECT_NEAR(json_number_value(json_object_get(timings, "prompt_ms")), 30, 1e-6);
    EXPECT_NEAR(json_number_value(json_object_get(timings, "predicted_ms")), 50, 1e-6);
    EXPECT_EQ(json_integer_value(json_object_get(timings, "prompt_n")), 3);
    EXPECT_EQ(json_integer_value(json_object_get(timings, "cache_n")), 16);
    EXPECT_EQ(json_integer_value(json_object_get(timings, "predicted_n")), 2);
    EXPECT_NEAR(json_number_value(json_object_get(timings, "predicted_per_second")), 40, 1e-3);
}

static void run_timed(struct run *run, const struct tiny_model *m)
{
    struct stage_times *t = &run->answer.request->times;

    int64_t start_ns = clock_mono_ns() - 100000000;

    *t = (struct stage_times){.received_ns = start_ns,
                              .parsed_ns = start_ns + 1000000,
                              .tokenized_ns = start_ns + 3000000,
                              .submitted_ns = start_ns + 3100000,
                              .scheduled_ns = start_ns + 10000000,
                              .first_token_ns = start_ns + 40000000,
                              .last_token_ns = start_ns + 90000000,
                              .prompt_tokens = 19,
                              .cached_tokens = 16};
    push_token(run, 0, m->first, -1);
    push_token(run, 0, m->first, -1);
    finish(run, 0, FINISH_LENGTH);
}

TEST(timings_are_given_on_request_and_add_up)
{
    struct tiny_model m;
    struct run run;
    json_t *answer;

    tiny_model_open(&m, (const char *const[]){"A"}, 1, false);
    run_open(&run, &m, API_COMPLETIONS, "{\"prompt\":\"a\",\"return_timings\":true}");
    run_timed(&run, &m);
    answer = whole(&run);
    check_timings(answer);
    json_decref(answer);
    run_close(&run);
    run_open(&run, &m, API_COMPLETIONS, "{\"prompt\":\"a\"}");
    run_timed(&run, &m);
    answer = whole(&run);
    EXPECT_TRUE(json_object_get(answer, "timings") == NULL);
    json_decref(answer);
    run_close(&run);
    run_open(&run, &m, API_COMPLETIONS,
             "{\"prompt\":\"a\",\"stream\":true,\"timings_per_token\":true}");
    run_timed(&run, &m);
    flush(&run);
    answer = events(&run);
    check_timings(json_array_get(answer, json_array_size(answer) - 1));
    EXPECT_TRUE(json_object_get(json_array_get(answer, json_array_size(answer) - 1), "usage") ==
                NULL);
    json_decref(answer);
    run_close(&run);
    tiny_model_close(&m);
}

/* vLLM's fields by its definitions: with the whole answer, or with the usage of a stream; null for several choices. */
TEST(vllms_metrics_are_given_where_asked_for)
{
    struct tiny_model m;
    struct run run;
    json_t *answer, *metrics;

    tiny_model_open(&m, (const char *const[]){"A"}, 1, false);
    run_open(&run, &m, API_COMPLETIONS, "{\"prompt\":\"a\",\"include_metrics\":true}");
    run_timed(&run, &m);
    answer = whole(&run);
    metrics = json_object_get(answer, "metrics");
    EXPECT_EQ(json_object_size(metrics), 5);
    double prefill = json_real_value(json_object_get(metrics, "time_to_first_token_ms"));
    double decode = json_real_value(json_object_get(metrics, "generation_time_ms"));
    EXPECT_TRUE(prefill > 0 && decode > 0);
    EXPECT_NEAR(json_real_value(json_object_get(metrics, "mean_itl_ms")), decode,
                1e-6); /* of two */
    EXPECT_NEAR(json_real_value(json_object_get(metrics, "tokens_per_second")),
                2e3 / (prefill + decode), 1e-2);
    json_decref(answer);
    run_close(&run);
    run_open(&run, &m, API_COMPLETIONS,
             "{\"prompt\":\"a\",\"stream\":true,\"include_metrics\":true,\"stream_options\":{"
             "\"include_usage\":true}}");
    run_timed(&run, &m);
    flush(&run);
    answer = events(&run);
    EXPECT_EQ(json_object_size(
                  json_object_get(json_array_get(answer, json_array_size(answer) - 1), "metrics")),
              5);
    json_decref(answer);
    run_close(&run);
    run_open(&run, &m, API_COMPLETIONS, "{\"prompt\":\"a\"}");
    run_timed(&run, &m);
    answer = whole(&run);
    EXPECT_TRUE(!json_object_get(answer, "metrics"));
    json_decref(answer);
    run_close(&run);
    tiny_model_close(&m);
}

/* --- random runs beside a plain model --- */

static const char *const pieces[] = {"a",        "b",      "ab",   "ba",   "aab",
                                     " ",        "\u00e9", "\xc3", "\xa9", "\xf0\x9f",
                                     "\x8c\xb6", "\xff",   "\"\\", "\n",   "abab"};
enum { PIECES = sizeof pieces / sizeof *pieces, TOKENS_MAX = 24 };

struct plan_of_run {
    int32_t ids[TOKENS_MAX];
    uint32_t count, min_tokens;
    const char *stops[3];
    uint32_t stop_count;
    bool include, skip;
};

static void random_plan(struct plan_of_run *p, const struct tiny_model *m)
{
    static const char *const stops[] = {"ab", "ba", "bb",     "aaba", "\u00e9",
                                        " a", "\n", "\ufffd", "b a"};

    p->count = 1 + test_rand_below(TOKENS_MAX);
    for (uint32_t i = 0; i < p->count; i++)
        p->ids[i] = test_rand_below(12) == 0 ? m->x : m->first + (int32_t)test_rand_below(PIECES);
    p->stop_count = test_rand_below(4);
    for (uint32_t i = 0; i < p->stop_count; i++)
        p->stops[i] = stops[test_rand_below(sizeof stops / sizeof *stops)];
    p->min_tokens = test_rand_below(3) ? 0 : test_rand_below(p->count + 1);
    p->include = test_rand_below(2);
    p->skip = test_rand_below(2);
}

static size_t decoded(const struct tiny_model *m, const struct plan_of_run *p, uint32_t count,
                      struct buf *out)
{
    buf_clear(out);
    EXPECT_OK(tokenizer_decode(m->tok, p->ids, count, p->skip, out));
    return out->len;
}

/* How long the text is once `count` tokens are certain: what may still change at its end is not. */
static size_t certain(const struct tiny_model *m, const struct plan_of_run *p, uint32_t count,
                      struct buf *scratch)
{
    struct detok d;

    detok_init(&d, m->tok, p->skip);
    buf_clear(scratch);
    for (uint32_t i = 0; i < count; i++)
        detok_push(&d, p->ids[i], scratch);
    return scratch->len;
}

/* The right answer: decode everything, then look for the match that ends first (the longest of those), not counting
 * matches that end within the text of the first min_tokens tokens. */
static void expected(const struct tiny_model *m, const struct plan_of_run *p, struct buf *text,
                     bool *stopped)
{
    struct buf scratch;
    size_t armed_from;

    buf_init(&scratch, 0);
    armed_from = p->min_tokens ? certain(m, p, p->min_tokens, &scratch) : 0;
    decoded(m, p, p->count, text);
    *stopped = false;
    if (p->min_tokens >= p->count) armed_from = text->len; /* what is flushed is theirs, too */
    for (size_t end = armed_from + 1; end <= text->len && !*stopped; end++) {
        size_t longest = 0;

        for (uint32_t i = 0; i < p->stop_count; i++) {
            size_t len = strlen(p->stops[i]);

            if (len <= end && len > longest && memcmp(text->ptr + end - len, p->stops[i], len) == 0)
                longest = len;
        }
        if (!longest) continue;
        *stopped = true;
        text->len = p->include ? end : end - longest;
    }
    buf_fini(&scratch);
}

static void body_of(const struct plan_of_run *p, bool chat, bool stream, char *out, size_t size)
{
    struct buf body;
    json_t *stops = json_array();

    buf_init(&body, 0);
    for (uint32_t i = 0; i < p->stop_count; i++)
        json_array_append_new(stops, json_string(p->stops[i]));
    char *list = json_dumps(stops, 0);

    snprintf(out, size,
             "{%s,\"stop\":%s,\"include_stop_str_in_output\":%s,\"skip_special_tokens\":%s,"
             "\"stream\":%s,"
             "\"min_tokens\":%u,\"max_tokens\":%u,\"logprobs\":%s,\"return_token_ids\":true,"
             "\"ignore_eos\":true}",
             chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]" : "\"prompt\":\"a\"",
             list, p->include ? "true" : "false", p->skip ? "true" : "false",
             stream ? "true" : "false", p->min_tokens, p->count, chat ? "true" : "0");
    free(list);
    json_decref(stops);
    buf_fini(&body);
}

static void feed(struct run *run, const struct plan_of_run *p)
{
    for (uint32_t i = 0; i < p->count && !run->stopped; i++) {
        push_token(run, 0, p->ids[i], -1);
        if (test_rand_below(2)) flush(run);
    }
    finish(run, 0, run->stopped ? FINISH_ENDED : FINISH_LENGTH);
    flush(run);
}

/* Joins text, ids and entries of a stream; entries' bytes too. */
static void join(json_t *list, struct buf *text, json_t *ids, json_t *entries)
{
    json_t *event, *value;
    size_t i, j;

    json_array_foreach(list, i, event)
    {
        json_t *choice = choice_of(event, 0), *delta = json_object_get(choice, "delta");
        json_t *part = delta ? json_object_get(delta, "content") : json_object_get(choice, "text");
        json_t *l = json_object_get(choice, "logprobs");

        if (part) buf_append(text, json_string_value(part), json_string_length(part));
        json_array_foreach(json_object_get(choice, "token_ids"), j, value)
            json_array_append(ids, value);
        l = json_object_get(l, delta ? "content" : "tokens");
        json_array_foreach(l, j, value) json_array_append(entries, value);
    }
}

/* All `bytes` of chat entries together are the text, where that has no U+FFFD. */
static void check_bytes(json_t *entries, struct slice text)
{
    struct buf bytes;
    json_t *entry, *byte;
    size_t i, j;

    if (!text.len || memmem(text.ptr, text.len, "\xef\xbf\xbd", 3)) return;
    buf_init(&bytes, 0);
    json_array_foreach(entries, i, entry)
        json_array_foreach(json_object_get(entry, "bytes"), j, byte)
            buf_append_char(&bytes, (char)json_integer_value(byte));
    EXPECT_TRUE(bytes.len >= text.len && memcmp(bytes.ptr, text.ptr, text.len) == 0);
    buf_fini(&bytes);
}

TEST(streamed_whole_and_plain_agree_on_random_runs)
{
    struct tiny_model m;

    tiny_model_open(&m, pieces, PIECES, false);
    for (int turn = 0; turn < (test_long() ? 100000 : 4000); turn++) {
        struct plan_of_run p;
        struct run streamed, full;
        struct buf want, got;
        char body[1024];
        bool chat = test_rand_below(2), stopped;

        random_plan(&p, &m);
        buf_init(&want, 0);
        buf_init(&got, 0);
        expected(&m, &p, &want, &stopped);
        body_of(&p, chat, true, body, sizeof body);
        run_open(&streamed, &m, chat ? API_CHAT : API_COMPLETIONS, body);
        feed(&streamed, &p);
        body_of(&p, chat, false, body, sizeof body);
        run_open(&full, &m, chat ? API_CHAT : API_COMPLETIONS, body);
        feed(&full, &p);

        json_t *list = events(&streamed), *answer = whole(&full), *choice = choice_of(answer, 0);
        json_t *ids = json_array(), *entries = json_array();
        json_t *l =
            json_object_get(json_object_get(choice, "logprobs"), chat ? "content" : "tokens");

        join(list, &got, ids, entries);
        if (!slice_eq(buf_slice(&got), buf_slice(&want)))
            fail_msg("streamed '%.*s', expected '%.*s': %s", (int)got.len, got.ptr, (int)want.len,
                     want.ptr, body);
        EXPECT_STR(text_of(choice), buf_cstr(&want));
        EXPECT_EQ(streamed.kept, full.kept);
        EXPECT_TRUE(json_equal(ids, json_object_get(choice, "token_ids")));
        EXPECT_TRUE(json_equal(entries, l));
        if (chat) check_bytes(entries, buf_slice(&want));
        EXPECT_STR(json_string_value(json_object_get(choice, "finish_reason")),
                   stopped ? "stop" : "length");
        json_decref(ids);
        json_decref(entries);
        json_decref(list);
        json_decref(answer);
        run_close(&streamed);
        run_close(&full);
        buf_fini(&want);
        buf_fini(&got);
    }
    tiny_model_close(&m);
}
