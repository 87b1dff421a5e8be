/* test_trace.c - traceparent is read by the letter, requests become spans without a gap, and the tracer never waits.
 * Method: headers right and wrong; the encoder's bytes decoded again; a tracer against a socket of ours that answers, refuses or
 * says nothing. */
#include "test.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "observe/otlp_encode.h"
#include "observe/otlp_trace.pb-c.h"
#include "observe/tracer.h"

#define PARENT "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

TEST(traceparent_is_read_by_the_letter)
{
    static const char *const wrong[] = {
        "",
        "00",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", /* version ff is none */
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", /* lower case only */
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", /* not of version 00 */
        "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01more",
        "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "0x-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    };
    struct trace_context c;
    char id[33], long_state[600];

    trace_context_read(PARENT, "a=1,b=2", &c);
    EXPECT_TRUE(c.has_parent && c.parent_sampled);
    trace_context_id(&c, id);
    EXPECT_STR(id, "0af7651916cd43dd8448eb211c80319c");
    EXPECT_EQ(c.parent_id[0], 0xb7);
    EXPECT_STR(c.state, "a=1,b=2");
    trace_context_read("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-what-comes", NULL,
                       &c);
    EXPECT_TRUE(c.has_parent && !c.parent_sampled);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        trace_context_read(wrong[i], "a=1", &c);
        EXPECT_TRUE(!c.has_parent && !c.state[0]);
        trace_context_id(&c, id);
        EXPECT_STR(id, "");
    }
    trace_context_read(NULL, "a=1", &c);
    EXPECT_TRUE(!c.has_parent);
    memset(long_state, 'x', sizeof long_state);
    long_state[TRACE_STATE_MAX + 1] = 0;
    trace_context_read(PARENT, long_state, &c);
    EXPECT_TRUE(c.has_parent && !c.state[0]);
    trace_context_read(PARENT, "a=\x01", &c);
    EXPECT_TRUE(c.has_parent && !c.state[0]);
}

TEST(a_fresh_trace_has_ids_and_a_callers_is_kept)
{
    struct trace_context a, b;
    char id[33];

    trace_context_read(NULL, NULL, &a);
    trace_context_begin(&a);
    trace_context_read(NULL, NULL, &b);
    trace_context_begin(&b);
    EXPECT_TRUE(memcmp(a.trace_id, b.trace_id, 16) != 0 && memcmp(a.span_id, b.span_id, 8) != 0);
    trace_context_read(PARENT, NULL, &a);
    trace_context_begin(&a);
    trace_context_id(&a, id);
    EXPECT_STR(id, "0af7651916cd43dd8448eb211c80319c");
}

TEST(the_ratio_keeps_its_share_and_only_looks_at_the_id)
{
    uint8_t id[16] = {0};
    int kept = 0;

    for (int i = 0; i < 10000; i++) {
        for (int b = 0; b < 16; b++)
            id[b] = (uint8_t)test_rand();
        bool in = trace_id_in_ratio(id, 0.25);
        kept += in;
        EXPECT_TRUE(!in || trace_id_in_ratio(id, 0.5)); /* a larger share has all of the smaller */
        EXPECT_TRUE(trace_id_in_ratio(id, 1) && !trace_id_in_ratio(id, 0));
    }
    EXPECT_TRUE(kept > 2200 && kept < 2800);
}

TEST(lists_of_pairs_are_percent_decoded)
{
    const char *list = " a = 1 ,,b=x%2Cy%20z,=no,none,c==,d=";
    char name[16], value[16], all[128] = "";

    while (otlp_next_pair(&list, name, sizeof name, value, sizeof value))
        snprintf(all + strlen(all), sizeof all - strlen(all), "[%s|%s]", name, value);
    EXPECT_STR(all, "[a|1][b|x,y z][c|=][d|]");
}

/* --- spans --- */

static struct request_record some_request(unsigned status)
{
    struct request_record r = {.id = "chatcmpl-1",
                               .request_id = "mine",
                               .client = "[::1]:4711",
                               .model = "tiny",
                               .route = "/v1/chat/completions",
                               .status = status,
                               .outcome = "stop",
                               .submitted = true,
                               .wall_ns = 1800000000000000000,
                               .times = {.received_ns = 1000,
                                         .opened_ns = 1100,
                                         .parsed_ns = 1200,
                                         .tokenized_ns = 1300,
                                         .submitted_ns = 1310,
                                         .scheduled_ns = 1500,
                                         .first_token_ns = 2000,
                                         .last_token_ns = 5000,
                                         .prompt_tokens = 12,
                                         .cached_tokens = 4,
                                         .queued_for = "slots"},
                               .n = 1,
                               .completion_tokens = 9};

    r.ledger = stage_ledger(&r.times, 5100);
    if (status >= 500) strcpy(r.code, "internal_error");
    trace_context_read(PARENT, "v=1", &r.trace);
    trace_context_begin(&r.trace);
    return r;
}

static const Otlp__AnyValue *attribute(const Otlp__Span *span, const char *key)
{
    for (size_t i = 0; i < span->n_attributes; i++)
        if (strcmp(span->attributes[i]->key, key) == 0) return span->attributes[i]->value;
    return NULL;
}

TEST(a_request_becomes_a_server_span_that_its_stages_cover_without_a_gap)
{
    struct otlp_resource resource = {"svc", "1.2", "me", "team=a,service.name=not"};
    struct request_record r[2] = {some_request(200), some_request(500)};
    struct buf out = {0};
    uint32_t spans;

    EXPECT_OK(otlp_encode(&resource, r, 2, &out, &spans));
    Otlp__ExportTraceServiceRequest *m =
        otlp__export_trace_service_request__unpack(NULL, out.len, (const uint8_t *)out.ptr);
    EXPECT_TRUE(m && m->n_resource_spans == 1);
    Otlp__Resource *res = m->resource_spans[0]->resource;
    EXPECT_STR(res->attributes[0]->value->string_value, "svc");
    EXPECT_STR(res->attributes[res->n_attributes - 1]->key, "team");
    Otlp__ScopeSpans *scope = m->resource_spans[0]->scope_spans[0];
    EXPECT_EQ(scope->n_spans, spans);
    EXPECT_EQ(spans, 2 * 9); /* the template's stage took nothing */
    Otlp__Span *root = scope->spans[0];
    EXPECT_STR(root->name, "chat tiny");
    EXPECT_STR(root->trace_state, "v=1");
    EXPECT_EQ(root->kind, OTLP__SPAN_KIND__SPAN_KIND_SERVER);
    EXPECT_EQ(root->parent_span_id.data[0], 0xb7);
    EXPECT_EQ(root->end_time_unix_nano - root->start_time_unix_nano, 4100);
    EXPECT_EQ(attribute(root, "gen_ai.usage.input_tokens")->int_value, 12);
    EXPECT_EQ(attribute(root, "gen_ai.usage.cache_read.input_tokens")->int_value, 4);
    EXPECT_STR(attribute(root, "client.address")->string_value, "[::1]");
    EXPECT_EQ(attribute(root, "client.port")->int_value, 4711);
    EXPECT_STR(
        attribute(root, "gen_ai.response.finish_reasons")->array_value->values[0]->string_value,
        "stop");
    EXPECT_TRUE(!root->status && !attribute(root, "error.type"));
    uint64_t at = root->start_time_unix_nano;
    for (size_t i = 1; i < spans / 2; i++) {
        Otlp__Span *stage = scope->spans[i];

        EXPECT_EQ(stage->start_time_unix_nano, at);
        at = stage->end_time_unix_nano;
        EXPECT_TRUE(memcmp(stage->parent_span_id.data, root->span_id.data, 8) == 0);
        EXPECT_TRUE(memcmp(stage->span_id.data, root->span_id.data, 8) != 0);
        if (strcmp(stage->name, "queue") == 0)
            EXPECT_STR(attribute(stage, "inferd.queued_for")->string_value, "slots");
    }
    EXPECT_EQ(at, root->end_time_unix_nano);
    Otlp__Span *failed = scope->spans[spans / 2];
    EXPECT_EQ(failed->status->code, OTLP__STATUS_CODE__STATUS_CODE_ERROR);
    EXPECT_STR(attribute(failed, "error.type")->string_value, "internal_error");
    otlp__export_trace_service_request__free_unpacked(m, NULL);
    buf_fini(&out);
}

/* --- the tracer --- */

struct collector {
    int fd;
    uint16_t port;
    const char *answer; /* NULL: none, the connection stays open */
    pthread_t thread;
    _Atomic int posts;
};

static void *collect(void *arg)
{
    struct collector *c = arg;
    char bytes[65536];
    int fd;

    while ((fd = accept(c->fd, NULL, NULL)) >= 0) {
        /* a head and a body: enough for these tests, whose bodies come at once */
        if (recv(fd, bytes, sizeof bytes, 0) > 0) atomic_fetch_add(&c->posts, 1);
        if (c->answer) {
            (void)!write(fd, c->answer, strlen(c->answer));
            usleep(20000);
        } else {
            (void)!recv(fd, bytes, sizeof bytes, 0); /* until the client gives up */
        }
        close(fd);
    }
    return NULL;
}

static void start_collector(struct collector *c, const char *answer)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;

    *c = (struct collector){.fd = socket(AF_INET, SOCK_STREAM, 0), .answer = answer};
    EXPECT_EQ(bind(c->fd, (struct sockaddr *)&at, sizeof at), 0);
    EXPECT_EQ(listen(c->fd, 16), 0);
    getsockname(c->fd, (struct sockaddr *)&at, &len);
    c->port = ntohs(at.sin_port);
    EXPECT_EQ(pthread_create(&c->thread, NULL, collect, c), 0);
}

static void stop_collector(struct collector *c)
{
    shutdown(c->fd, SHUT_RDWR);
    close(c->fd);
    pthread_join(c->thread, NULL);
}

static struct tracer *start_tracer(uint16_t port, double ratio)
{
    char url[64];
    struct tracer *t;
    struct error err;

    log_set_level(LOG_ERROR);
    snprintf(url, sizeof url, "http://127.0.0.1:%u/v1/traces", port);
    EXPECT_OK_ERR(
        tracer_create(&(struct tracer_options){.url = url, .ratio = ratio, .pause_ms = 10}, &t,
                      &err),
        &err);
    return t;
}

/* Waits for a count that other threads bring; the test's own time limit ends it. */
#define WAIT_FOR(condition)  \
    while (!(condition)) {   \
        usleep(2000);        \
        tracer_stats(t, &s); \
    }

TEST(what_is_offered_is_sent_and_counted)
{
    struct collector c;
    struct tracer_stats s = {0};
    struct request_record r = some_request(200);

    start_collector(&c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    struct tracer *t = start_tracer(c.port, 1);
    for (int i = 0; i < 3; i++)
        tracer_offer(t, &r);
    WAIT_FOR(s.exported == 3);
    EXPECT_EQ(s.spans, 27);
    r.trace.parent_sampled = false; /* the caller does not want it */
    tracer_offer(t, &r);
    r.status = 500; /* but of a fault all hear */
    tracer_offer(t, &r);
    WAIT_FOR(s.exported == 4);
    EXPECT_EQ(s.unsampled, 1);
    tracer_destroy(t);
    stop_collector(&c);
}

TEST(a_refusal_drops_at_once_and_an_overload_is_tried_again)
{
    struct collector c;
    struct tracer_stats s = {0};
    struct request_record r = some_request(200);

    start_collector(&c, "HTTP/1.1 400 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    struct tracer *t = start_tracer(c.port, 1);
    tracer_offer(t, &r);
    WAIT_FOR(s.dropped_refused == 1);
    EXPECT_EQ(atomic_load(&c.posts), 1);
    tracer_destroy(t);
    stop_collector(&c);
    start_collector(&c, "HTTP/1.1 503 Later\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    t = start_tracer(c.port, 1);
    tracer_offer(t, &r);
    WAIT_FOR(atomic_load(&c.posts) >= 2);
    EXPECT_EQ(s.dropped_lost, 0);
    tracer_destroy(t); /* does not wait for the pauses */
    stop_collector(&c);
}

TEST(a_collector_that_says_nothing_holds_up_nobody)
{
    struct collector c;
    struct tracer_stats s = {0};
    struct request_record r = some_request(200);

    start_collector(&c, NULL);
    struct tracer *t = start_tracer(c.port, 1);
    tracer_offer(t, &r);
    WAIT_FOR(atomic_load(&c.posts) == 1); /* the thread is stuck in its first post from here on */
    for (int i = 0; i < TRACER_QUEUE_MAX + 500; i++)
        tracer_offer(t, &r);
    tracer_stats(t, &s);
    EXPECT_EQ(s.dropped_full, 500);
    tracer_destroy(t);
    stop_collector(&c);
}

TEST(an_endpoint_that_is_no_url_is_refused)
{
    struct tracer *t;
    struct error err;

    EXPECT_EQ(tracer_create(&(struct tracer_options){.url = "localhost:4317"}, &t, &err),
              STATUS_INVALID);
    EXPECT_TRUE(strstr(err.message, "http://localhost:4318"));
    tracer_offer(NULL, NULL);
    tracer_destroy(NULL);
}
