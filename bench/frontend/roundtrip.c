/* roundtrip.c - what the front ends add to a request: open loop, Poisson arrivals, one token from the null device.
 *
 *   roundtrip-bench HOST PORT ENDPOINT RATE SECONDS [ROUNDS]
 *
 * In each round, one after the other with the same arrivals: a bare libzmq echo (a ROUTER in a child process that sends back what
 * comes; request and answer as large as inferd's), inferd over ZeroMQ with its own C client and with a DEALER of libzmq, inferd over
 * HTTP (connections kept alive). Each opens its connections anew, so that the scheduler places the threads anew. A round
 * trip counts from the moment that the arrival was due, sent late or not, to the last byte of the answer.
 * "Beyond the engine" is that less the queue, prefill and decode of the answer's own timings (engine/stage_times.h); of the
 * echo it is the whole. At the end medians of the rounds, and of each round's ratio and difference to its echo. */
#include <errno.h>
#include <inferd.pb-c.h>
#include <inferd/client.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "bench_util.h"

static const char prompt[] = "The quick brown fox jumps over the lazy dog";
static size_t arrival_count;
static double *arrivals_s; /* from the start */

struct result {
    size_t count;
    double *round_us, *beyond_us, *late_us; /* late: sent after it was due */
    double *own_us; /* of beyond_us, what the server knows: from the whole message to its answer */
};

static void make_arrivals(double rate, double seconds)
{
    uint64_t state = 88172645463325252u;
    double at = 0;

    arrivals_s = malloc((size_t)(rate * seconds * 2 + 1000) * sizeof *arrivals_s);
    while (at < seconds) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        at += -log(1 - (double)(state >> 11) * 0x1p-53) / rate;
        arrivals_s[arrival_count++] = at;
    }
}

static struct result result_make(void)
{
    return (struct result){.round_us = calloc(arrival_count, sizeof(double)),
                           .beyond_us = calloc(arrival_count, sizeof(double)),
                           .late_us = calloc(arrival_count, sizeof(double)),
                           .own_us = calloc(arrival_count, sizeof(double))};
}

static void note(struct result *r, int64_t due_ns, double engine_us, double total_us)
{
    double us = (double)(now_ns() - due_ns) * 1e-3;

    r->round_us[r->count] = us;
    r->beyond_us[r->count] = us - engine_us;
    r->own_us[r->count] = total_us - engine_us;
    r->count++;
}

/* --- rounds --- */

enum way { ECHO, CLIENT, DEALER, HTTP, WAYS };
enum figure { ROUND_P50, ROUND_P99, P50, P99, P999, OWN_P50, OWN_P99, LATE_P99, FIGURES };
enum { ROUNDS_MAX = 64 };
static const char *const way_names[WAYS] = {"libzmq echo", "zmq client", "zmq dealer", "http"};
static double figures[WAYS][ROUNDS_MAX][FIGURES];

static void take_figures(double out[FIGURES], struct result *r)
{
    sort_values(r->round_us, r->count);
    sort_values(r->beyond_us, r->count);
    sort_values(r->late_us, arrival_count);
    sort_values(r->own_us, r->count);
    out[ROUND_P50] = quantile(r->round_us, r->count, .5);
    out[ROUND_P99] = quantile(r->round_us, r->count, .99);
    out[P50] = quantile(r->beyond_us, r->count, .5);
    out[P99] = quantile(r->beyond_us, r->count, .99);
    out[P999] = quantile(r->beyond_us, r->count, .999);
    out[OWN_P50] = quantile(r->own_us, r->count, .5);
    out[OWN_P99] = quantile(r->own_us, r->count, .99);
    out[LATE_P99] = quantile(r->late_us, arrival_count, .99);
    free(r->round_us);
    free(r->beyond_us);
    free(r->late_us);
    free(r->own_us);
}

static void print_head(void)
{
    printf(
        "us; %zu round trips each\n%-12s %17s | %26s | %17s | %9s\n%-12s %8s %8s | %8s %8s %8s | "
        "%8s %8s | %9s\n",
        arrival_count, "", "whole", "beyond the engine", "of it in server", "sent late", "", "P50",
        "P99", "P50", "P99", "P99.9", "P50", "P99", "P99");
}

static void print_row(const char *name, const double row[FIGURES])
{
    printf("%-12s %8.0f %8.0f | %8.0f %8.0f %8.0f | %8.0f %8.0f | %9.0f\n", name, row[ROUND_P50],
           row[ROUND_P99], row[P50], row[P99], row[P999], row[OWN_P50], row[OWN_P99],
           row[LATE_P99]);
    fflush(stdout);
}

static double median(double *values, unsigned count)
{
    sort_values(values, count);
    return quantile(values, count, .5);
}

static void print_medians(unsigned rounds)
{
    double row[FIGURES], values[ROUNDS_MAX];

    printf("\nmedians of %u rounds\n", rounds);
    print_head();
    for (int w = 0; w < WAYS; w++) {
        for (int f = 0; f < FIGURES; f++) {
            for (unsigned r = 0; r < rounds; r++)
                values[r] = figures[w][r][f];
            row[f] = median(values, rounds);
        }
        print_row(way_names[w], row);
    }
    printf("\nbeyond the engine, against the echo of the same round\n");
    for (int w = CLIENT; w < WAYS; w++) {
        printf("%-12s", way_names[w]);
        for (int f = P50; f <= P99; f++) {
            for (unsigned r = 0; r < rounds; r++)
                values[r] = figures[w][r][f] / figures[ECHO][r][f];
            printf("  %s x%.2f", f == P50 ? "P50" : "P99", median(values, rounds));
            for (unsigned r = 0; r < rounds; r++)
                values[r] = figures[w][r][f] - figures[ECHO][r][f];
            printf(" (%+.0f us)", median(values, rounds));
        }
        printf("\n");
    }
}

/* Waits for the epoll set until `until_ns`, to the ns. */
static int wait_until(int epoll_fd, struct epoll_event *events, int max, int64_t until_ns)
{
    int64_t left = until_ns - now_ns();
    struct timespec t = {0};

    if (left > 0) t = (struct timespec){left / 1000000000, left % 1000000000};
    return epoll_pwait2(epoll_fd, events, max, &t, NULL);
}

/* --- ZeroMQ: the echo and inferd --- */

static size_t request_bytes(uint64_t id, uint8_t out[256])
{
    Inferd__V1__Request request = INFERD__V1__REQUEST__INIT;
    Inferd__V1__Generate generate = INFERD__V1__GENERATE__INIT;
    ProtobufCBinaryData text = {sizeof prompt - 1, (uint8_t *)(uintptr_t)prompt};

    request.has_id = true;
    request.id = id;
    request.body_case = INFERD__V1__REQUEST__BODY_GENERATE;
    request.generate = &generate;
    generate.prompts = &text;
    generate.n_prompts = 1;
    generate.has_max_tokens = generate.has_ignore_eos = generate.has_return_timings = true;
    generate.max_tokens = 1;
    generate.ignore_eos = generate.return_timings = true;
    return inferd__v1__request__pack(&request, out);
}

static void take_batch(zmq_msg_t *message, int64_t start_ns, struct result *r)
{
    Inferd__V1__Batch *batch =
        inferd__v1__batch__unpack(NULL, zmq_msg_size(message), zmq_msg_data(message));

    if (!batch) die("not a batch");
    for (size_t i = 0; i < batch->n_responses; i++) {
        const Inferd__V1__Response *response = batch->responses[i];

        if (response->body_case == INFERD__V1__RESPONSE__BODY_ERROR)
            die("error: %s", response->error->message);
        if (response->body_case != INFERD__V1__RESPONSE__BODY_DONE) continue;
        const Inferd__V1__Timings *t = response->done->timings;

        note(r, start_ns + (int64_t)(arrivals_s[response->id] * 1e9),
             t->queue_us + t->prefill_us + t->decode_us, t->total_us);
    }
    inferd__v1__batch__free_unpacked(batch, NULL);
}

/* The echo's answer begins with the id; the rest is as large as inferd's two messages together. */
static void take_echo(zmq_msg_t *message, int64_t start_ns, struct result *r)
{
    uint64_t id;

    memcpy(&id, zmq_msg_data(message), sizeof id);
    note(r, start_ns + (int64_t)(arrivals_s[id] * 1e9), 0, 0);
}

static void receive_all(void *dealer, bool echo, int64_t start_ns, struct result *r)
{
    zmq_msg_t message;

    for (;;) {
        zmq_msg_init(&message);
        if (zmq_msg_recv(&message, dealer, ZMQ_DONTWAIT) < 0) break;
        if (zmq_msg_size(&message)) (echo ? take_echo : take_batch)(&message, start_ns, r);
        zmq_msg_close(&message);
    }
    zmq_msg_close(&message);
}

static void send_one(void *dealer, bool echo, uint64_t id)
{
    uint8_t bytes[256];
    size_t len = request_bytes(id, bytes);

    if (echo) memcpy(bytes, &id, sizeof id);
    if (zmq_send(dealer, bytes, len, 0) < 0) die("cannot send: %s", zmq_strerror(errno));
}

static struct result run_zmq(const char *endpoint, bool echo)
{
    void *context = zmq_ctx_new(), *dealer = zmq_socket(context, ZMQ_DEALER);
    struct result r = result_make();
    int zero = 0, fd, epoll_fd = epoll_create1(0);
    size_t size = sizeof fd, sent = 0;
    struct epoll_event event = {.events = EPOLLIN};

    zmq_setsockopt(dealer, ZMQ_LINGER, &zero, sizeof zero);
    if (zmq_connect(dealer, endpoint)) die("%s: %s", endpoint, zmq_strerror(errno));
    zmq_getsockopt(dealer, ZMQ_FD, &fd, &size);
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
    usleep(200000); /* the connection stands */
    int64_t start = now_ns();

    while (r.count < arrival_count) {
        int64_t due =
            sent < arrival_count ? start + (int64_t)(arrivals_s[sent] * 1e9) : now_ns() + 100000000;

        while (sent < arrival_count && due <= now_ns()) {
            r.late_us[sent] = (double)(now_ns() - due) * 1e-3;
            send_one(dealer, echo, sent++);
            if (sent < arrival_count) due = start + (int64_t)(arrivals_s[sent] * 1e9);
        }
        receive_all(dealer, echo, start, &r);
        int events;

        size = sizeof events;
        zmq_getsockopt(dealer, ZMQ_EVENTS, &events, &size);
        if (r.count < arrival_count && !(events & ZMQ_POLLIN)) wait_until(epoll_fd, &event, 1, due);
        if (now_ns() - start > (int64_t)((arrivals_s[arrival_count - 1] + 20) * 1e9))
            die("%zu answers of %zu came", r.count, arrival_count);
    }
    zmq_close(dealer);
    zmq_ctx_term(context);
    close(epoll_fd);
    return r;
}

/* --- ZeroMQ by include/inferd/client.h --- */

static int64_t client_start_ns;
static struct result *client_result;

static int on_event(void *ctx, const struct inferd_event *event)
{
    const double *arrival_s = ctx;

    if (event->kind == INFERD_ERROR) die("error: %s", event->error->message);
    if (event->kind == INFERD_DONE)
        note(client_result, client_start_ns + (int64_t)(*arrival_s * 1e9),
             event->queue_us + event->prefill_us + event->decode_us, event->total_us);
    return 0;
}

static struct result run_client(const char *endpoint)
{
    struct inferd_client_options options = {.endpoint = endpoint};
    struct inferd_client *client;
    struct inferd_error error;
    struct inferd_generate g;
    struct result r = result_make();
    enum inferd_health health;
    struct epoll_event event = {.events = EPOLLIN};
    int epoll_fd = epoll_create1(0);
    size_t sent = 0;

    inferd_generate_init(&g);
    g.prompt = prompt;
    g.max_tokens = 1;
    g.ignore_eos = g.return_timings = true;
    if (inferd_client_open(&options, &client, &error) ||
        inferd_client_health(client, 5000, &health, &error))
        die("%s: %s", endpoint, error.message);
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, inferd_client_fd(client), &event);
    client_result = &r;
    client_start_ns = now_ns();
    while (r.count < arrival_count) {
        int64_t due = sent < arrival_count ? client_start_ns + (int64_t)(arrivals_s[sent] * 1e9)
                                           : now_ns() + 100000000;

        while (sent < arrival_count && due <= now_ns()) {
            r.late_us[sent] = (double)(now_ns() - due) * 1e-3;
            if (inferd_client_submit(client, &g, on_event, &arrivals_s[sent], NULL, &error))
                die("%s", error.message);
            if (++sent < arrival_count) due = client_start_ns + (int64_t)(arrivals_s[sent] * 1e9);
        }
        if (inferd_client_poll(client, 0) ==
            INFERD_TIMEOUT) /* its fd is edge-triggered: nothing must be left */
            wait_until(epoll_fd, &event, 1, due);
        if (now_ns() - client_start_ns > (int64_t)((arrivals_s[arrival_count - 1] + 20) * 1e9))
            die("%zu answers of %zu came", r.count, arrival_count);
    }
    inferd_client_close(client);
    close(epoll_fd);
    return r;
}

static void echo_server(void)
{
    void *context = zmq_ctx_new(), *router = zmq_socket(context, ZMQ_ROUTER);
    char id[256], bytes[256 + 208] = {0};

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (zmq_bind(router, "tcp://127.0.0.1:15555")) die("echo: %s", zmq_strerror(errno));
    for (;;) {
        int id_len = zmq_recv(router, id, sizeof id, 0), len = zmq_recv(router, bytes, 256, 0);

        zmq_send(router, id, (size_t)id_len, ZMQ_SNDMORE);
        zmq_send(router, bytes, (size_t)len + 208, 0);
    }
}

/* --- HTTP --- */

enum { CONNECTIONS_MAX = 256, ANSWER_MAX = 4096 };
struct connection {
    int fd;
    bool busy;
    size_t request, len;
    char bytes[ANSWER_MAX + 1];
};

static double number_behind(const char *text, const char *name)
{
    const char *at = strstr(text, name);

    if (!at) die("no %s in %s", name, text);
    return strtod(at + strlen(name), NULL);
}

/* True: the answer is whole. */
static bool take_answer(struct connection *c, int64_t start_ns, struct result *r)
{
    ssize_t got = recv(c->fd, c->bytes + c->len, ANSWER_MAX - c->len, MSG_DONTWAIT);

    if (got < 0 && errno == EAGAIN) return false;
    if (got <= 0) die("the server closed a connection");
    c->len += (size_t)got;
    c->bytes[c->len] = 0;
    const char *body = strstr(c->bytes, "\r\n\r\n"),
               *length = strcasestr(c->bytes, "content-length:");

    if (!body || !length) return false;
    if (c->len < (size_t)(body + 4 - c->bytes) + strtoul(length + 15, NULL, 10)) return false;
    if (strncmp(c->bytes, "HTTP/1.1 200", 12) != 0) die("%s", c->bytes);
    const char *stages = strstr(body, "\"stages_ms\"");

    if (!stages) die("no timings in %s", body);
    note(r, start_ns + (int64_t)(arrivals_s[c->request] * 1e9),
         1e3 * (number_behind(stages, "\"queue\":") + number_behind(stages, "\"prefill\":") +
                number_behind(stages, "\"decode\":")),
         1e3 * number_behind(stages, "\"total_ms\":"));
    c->busy = false;
    c->len = 0;
    return true;
}

static struct connection *free_connection(struct connection *all, size_t *count, const char *host,
                                          uint16_t port, int epoll_fd)
{
    for (size_t i = 0; i < *count; i++)
        if (!all[i].busy) return &all[i];
    if (*count == CONNECTIONS_MAX)
        die("over %d requests are open: the server does not keep up", CONNECTIONS_MAX);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = *count};

    all[*count].fd = connect_tcp(host, port);
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, all[*count].fd, &event);
    return &all[(*count)++];
}

static struct result run_http(const char *host, uint16_t port)
{
    static struct connection all[CONNECTIONS_MAX];
    struct result r = result_make();
    size_t count = 0, sent = 0;
    int epoll_fd = epoll_create1(0);
    struct epoll_event events[64];
    char json[256], text[1024];

    snprintf(json, sizeof json,
             "{\"prompt\":\"%s\",\"max_tokens\":1,\"ignore_eos\":true,\"return_timings\":true}",
             prompt);
    size_t len = post_text(text, sizeof text, "/v1/completions", json);

    for (int i = 0; i < 16; i++) /* opened before the start, as a client that runs has them */
        free_connection(all, &count, host, port, epoll_fd)->busy = true;
    for (size_t i = 0; i < count; i++)
        all[i].busy = false;
    usleep(200000);
    int64_t start = now_ns();

    while (r.count < arrival_count) {
        int64_t due =
            sent < arrival_count ? start + (int64_t)(arrivals_s[sent] * 1e9) : now_ns() + 100000000;

        while (sent < arrival_count && due <= now_ns()) {
            struct connection *c = free_connection(all, &count, host, port, epoll_fd);

            r.late_us[sent] = (double)(now_ns() - due) * 1e-3;
            c->busy = true;
            c->request = sent++;
            if (write(c->fd, text, len) != (ssize_t)len) die("cannot send");
            if (sent < arrival_count) due = start + (int64_t)(arrivals_s[sent] * 1e9);
        }
        int got = wait_until(epoll_fd, events, 64, due);

        for (int i = 0; i < got; i++)
            take_answer(&all[events[i].data.u64], start, &r);
        if (now_ns() - start > (int64_t)((arrivals_s[arrival_count - 1] + 20) * 1e9))
            die("%zu answers of %zu came", r.count, arrival_count);
    }
    for (size_t i = 0; i < count; i++)
        close(all[i].fd);
    close(epoll_fd);
    return r;
}

int main(int argc, char **argv)
{
    unsigned rounds = argc == 7 ? (unsigned)atoi(argv[6]) : 1;

    if (argc < 6 || argc > 7 || rounds < 1 || rounds > ROUNDS_MAX)
        die("usage: roundtrip-bench HOST PORT ENDPOINT RATE SECONDS [ROUNDS]");
    prctl(PR_SET_TIMERSLACK, 1000);
    make_arrivals(atof(argv[4]), atof(argv[5]));
    pid_t echo = fork();

    if (!echo) echo_server();
    usleep(200000);
    print_head();
    for (unsigned round = 0; round < rounds; round++)
        for (int way = 0; way < WAYS; way++) {
            struct result r = way == ECHO     ? run_zmq("tcp://127.0.0.1:15555", true)
                              : way == CLIENT ? run_client(argv[3])
                              : way == DEALER ? run_zmq(argv[3], false)
                                              : run_http(argv[1], (uint16_t)atoi(argv[2]));

            take_figures(figures[way][round], &r);
            print_row(way_names[way], figures[way][round]);
        }
    kill(echo, SIGKILL);
    waitpid(echo, NULL, 0);
    if (rounds > 1) print_medians(rounds);
    return 0;
}
