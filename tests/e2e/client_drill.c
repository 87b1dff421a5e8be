/* client_drill.c - every function of include/inferd/client.h against a daemon; driven by test_zmq_client.py.
 *
 *   client_drill ENDPOINT             all of it; prints "passed"
 *   client_drill ENDPOINT lost        one long request; prints "running", then what ended it
 *   client_drill ENDPOINT health MS   prints the status of one health question, and why */
#include <inferd/client.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                             \
    do {                                                                                        \
        if (what) break;                                                                        \
        fprintf(stderr, "client_drill.c:%d: not so: %s (%s %s)\n", __LINE__, #what, error.code, \
                error.message);                                                                 \
        exit(1);                                                                                \
    } while (0)

static struct inferd_error error;

struct seen {
    char text[65536];
    size_t len;
    int started, chunks, done, errors, stop_after, status;
    uint32_t completion_tokens, ids, index_max;
    double total_us;
    enum inferd_finish finish;
};

static int on_event(void *ctx, const struct inferd_event *event)
{
    struct seen *s = ctx;

    s->started += event->kind == INFERD_STARTED;
    s->done += event->kind == INFERD_DONE;
    s->errors += event->kind == INFERD_ERROR;
    if (event->kind == INFERD_ERROR) s->status = event->status;
    if (event->kind == INFERD_DONE) {
        s->completion_tokens = event->completion_tokens;
        s->total_us = event->total_us;
    }
    if (event->kind != INFERD_CHUNK) return 0;
    if (event->index > s->index_max) s->index_max = event->index;
    if (s->len + event->text_len < sizeof s->text && event->text_len) {
        memcpy(s->text + s->len, event->text, event->text_len);
        s->len += event->text_len;
    }
    s->ids += (uint32_t)event->token_id_count;
    if (event->finish) s->finish = event->finish;
    return ++s->chunks == s->stop_after;
}

static struct inferd_generate plain(int64_t tokens)
{
    struct inferd_generate g;

    inferd_generate_init(&g);
    g.prompt = "Once upon a time";
    g.max_tokens = tokens;
    g.seed = 5;
    g.ignore_eos = true;
    return g;
}

static void check_generate(struct inferd_client *c)
{
    struct inferd_generate g = plain(12);
    struct seen whole = {0}, streamed = {0}, chat = {0};
    struct inferd_message turn = {.role = "user", .content = "Hello"};
    const char *stop;

    CHECK(!inferd_client_generate(c, &g, on_event, &whole, 60000, &error));
    CHECK(whole.started == 1 && whole.chunks == 1 && whole.done == 1 && whole.len);
    CHECK(whole.finish == INFERD_LENGTH && whole.completion_tokens == 12);
    g.stream = g.return_token_ids = g.return_timings = true;
    CHECK(!inferd_client_generate(c, &g, on_event, &streamed, 60000, &error));
    CHECK(streamed.len == whole.len && !memcmp(streamed.text, whole.text, whole.len));
    CHECK(streamed.ids == 12 && streamed.chunks && streamed.total_us > 0);
    g.prompt = NULL;
    g.messages = &turn;
    g.message_count = 1;
    g.n = 3;
    CHECK(!inferd_client_generate(c, &g, on_event, &chat, 60000, &error));
    CHECK(chat.completion_tokens == 36 && chat.index_max == 2);

    struct seen stopped = {0};
    char cut[4] = {0};

    memcpy(cut, whole.text + whole.len / 2, 3);
    stop = cut;
    g = plain(12);
    g.stops = &stop;
    g.stop_count = 1;
    CHECK(!inferd_client_generate(c, &g, on_event, &stopped, 60000, &error));
    CHECK(stopped.finish == INFERD_STOP && stopped.len < whole.len);
}

static void check_refusals(struct inferd_client *c)
{
    struct inferd_generate g = plain(4);
    struct seen seen = {0};

    g.temperature = 9;
    CHECK(inferd_client_generate(c, &g, on_event, &seen, 60000, &error) == INFERD_INVALID);
    CHECK(error.http_status == 400 && !strcmp(error.param, "temperature") && seen.errors == 1);
    g = plain(4);
    g.model = "another";
    CHECK(inferd_client_generate(c, &g, NULL, NULL, 60000, &error) == INFERD_INVALID);
    CHECK(error.http_status == 404 && !strcmp(error.code, "model_not_found"));
}

static void check_ends(struct inferd_client *c)
{
    struct inferd_generate g = plain(1500);
    struct seen stopped = {.stop_after = 3}, late = {0}, cancelled = {0};
    uint64_t id;

    g.stream = g.return_token_ids = true;
    CHECK(inferd_client_generate(c, &g, on_event, &stopped, 60000, &error) == INFERD_STOPPED);
    CHECK(stopped.chunks == 3 && !stopped.done);
    CHECK(stopped.ids < 1500); /* not the whole answer in one of them */
    CHECK(inferd_client_generate(c, &g, on_event, &late, 1000, &error) == INFERD_TIMEOUT);
    CHECK(!late.done && late.started == 1);
    CHECK(!inferd_client_submit(c, &g, on_event, &cancelled, &id, &error));
    while (cancelled.chunks < 2)
        CHECK(!inferd_client_poll(c, 60000));
    inferd_client_cancel(c, id);
    CHECK(inferd_client_open_count(c) == 0);
    inferd_client_cancel(c, id); /* no fault */
}

static void check_many(struct inferd_client *c)
{
    enum { MANY = 64 };
    struct inferd_generate g = plain(20);
    struct seen *seen = calloc(MANY, sizeof *seen);

    g.stream = true;
    for (int i = 0; i < MANY; i++)
        CHECK(!inferd_client_submit(c, &g, on_event, &seen[i], NULL, &error));
    while (inferd_client_open_count(c))
        CHECK(!inferd_client_poll(c, 60000));
    for (int i = 0; i < MANY; i++)
        CHECK(seen[i].done == 1 && seen[i].len == seen[0].len &&
              !memcmp(seen[i].text, seen[0].text, seen[0].len));
    free(seen);
}

/* Whole, cut, of messages, and of what has no text; `ids` are those of the text. */
static void tokenize_as(struct inferd_client *c, const char *text, size_t len, const int32_t *ids,
                        size_t count)
{
    struct inferd_message turns[] = {{"user", "Hello there", 0}, {"assistant", "I am", 0}};
    struct inferd_generate g;
    int32_t *whole, *cut;
    size_t whole_count, cut_count;

    inferd_generate_init(&g);
    g.prompt = text;
    g.prompt_len = len;
    CHECK(!inferd_client_tokenize_as(c, &g, 60000, &whole, &whole_count, &error));
    CHECK(whole_count == count && !memcmp(whole, ids, count * sizeof *ids));
    g.truncate_prompt_tokens = 3;
    CHECK(!inferd_client_tokenize_as(c, &g, 60000, &cut, &cut_count, &error));
    CHECK(cut_count == 3 && !memcmp(cut, whole + count - 3, 3 * sizeof *cut));
    free(whole);
    free(cut);
    g.truncate_prompt_tokens = 0;
    CHECK(inferd_client_tokenize_as(c, &g, 60000, &cut, &cut_count, &error) == INFERD_INVALID);
    CHECK(!strcmp(error.param, "truncate_prompt_tokens") && error.http_status == 400);
    g.truncate_prompt_tokens = INFERD_UNSET;
    g.messages = turns;
    g.message_count = 2;
    CHECK(inferd_client_tokenize_as(c, &g, 60000, &cut, &cut_count, &error) == INFERD_INVALID);
    g.prompt = NULL;
    CHECK(!inferd_client_tokenize_as(c, &g, 60000, &whole, &whole_count, &error));
    g.continue_final_message = true; /* no generation prompt, no end of turn */
    CHECK(!inferd_client_tokenize_as(c, &g, 60000, &cut, &cut_count, &error));
    CHECK(cut_count < whole_count && !memcmp(cut, whole, cut_count * sizeof *cut));
    free(whole);
    free(cut);
    g.message_count = 0;
    g.ids = ids;
    g.id_count = count;
    CHECK(inferd_client_tokenize_as(c, &g, 60000, &cut, &cut_count, &error) == INFERD_INVALID);
    CHECK(error.http_status == 0);
}

static void check_questions(struct inferd_client *c)
{
    enum inferd_health health;
    struct inferd_load load;
    struct inferd_model model;
    static const char text[] = "Gr\xc3\xbc\xc3\x9f\x65\0 from C";
    int32_t *ids;
    size_t count, len;
    char *back;

    CHECK(!inferd_client_health(c, 60000, &health, &error) && health == INFERD_READY);
    CHECK(!inferd_client_load(c, 60000, &load, &error) && load.kv_blocks_total > 0);
    CHECK(load.generation_tokens > 0 && load.requests_finished > 0);
    CHECK(!inferd_client_model(c, 60000, &model, &error) && model.context_tokens && model.name[0]);
    CHECK(!inferd_client_tokenize(c, text, sizeof text - 1, 60000, &ids, &count, &error) && count);
    CHECK(!inferd_client_detokenize(c, ids, count, 60000, &back, &len, &error));
    CHECK(len == sizeof text - 1 && !memcmp(back, text, len)); /* the NUL inside too */
    free(back);
    tokenize_as(c, text, sizeof text - 1, ids, count);
    free(ids);
}

static int lose(struct inferd_client *c)
{
    struct inferd_generate g = plain(1900);
    struct seen seen = {0};

    g.stream = true;
    CHECK(!inferd_client_submit(c, &g, on_event, &seen, NULL, &error));
    while (!seen.chunks)
        CHECK(!inferd_client_poll(c, 60000));
    puts("running");
    fflush(stdout);
    while (inferd_client_open_count(c))
        inferd_client_poll(c, 1000);
    printf("ended %d\n", seen.status);
    return 0;
}

int main(int argc, char **argv)
{
    struct inferd_client_options options = {.endpoint = argc > 1 ? argv[1] : "",
                                            .api_key = getenv("INFERD_API_KEY"),
                                            .server_key = getenv("INFERD_SERVER_KEY"),
                                            .secret_key = getenv("INFERD_CLIENT_SECRET")};
    struct inferd_client *c;
    enum inferd_health health;

    CHECK(!inferd_client_open(&options, &c, &error));
    if (argc == 4) {
        int status = inferd_client_health(c, atoi(argv[3]), &health, &error);

        printf("%d\n%s\n", status, status ? error.message : "");
    } else if (argc == 3) {
        lose(c);
    } else {
        check_generate(c);
        check_refusals(c);
        check_ends(c);
        check_many(c);
        check_questions(c);
        puts("passed");
    }
    inferd_client_close(c);
    return 0;
}
