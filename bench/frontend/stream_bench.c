/* stream_bench.c - many streams at once, counted: how late each event comes, what a token costs server and client.
 *
 *   stream-bench sse HOST PORT PID STREAMS TOKENS STEP_US [ROUNDS]   one connection per stream, events counted one by one
 *   stream-bench zmq ENDPOINT  PID STREAMS TOKENS STEP_US [ROUNDS]   all streams over one connection
 *
 * The server runs the null device at STEP_US a step (0: as fast as it can). All streams take part in every step, so a
 * token's lateness is its time less that of the first token of its step, whichever stream has it. Over HTTP it is told
 * twice: as sent (when the server's send() put it into the loopback: the kernel's time stamp of the packet) and as read (when
 * this program has it in hand), so that it can be seen who was late; whether the steps
 * themselves come at their pace is told by tokens/s.
 *
 * What the machine can do is measured in the same run: before each round of inferd's, a bare writer (bare_writer.h: a child
 * that does nothing but send() as many bytes into as many connections at the same pace) is read by the same reader. What
 * is late there is the kernel's and the reader's; inferd's figures are told beside it, medians of the rounds.
 *
 * Each stream must bring every token (counted by return_token_ids), the finish and the end; anything else ends the program. An
 * event of several tokens means that the server came late to them (docs/api.md 11.7): their number is printed. PID's CPU time is that of all its threads, the kernel's work for
 * its sends included. */
#include <errno.h>
#include <inferd.pb-c.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "bare_writer.h"
#include "bench_util.h"

struct stream {
    int fd;
    struct dechunk dechunk;
    uint32_t tokens, events; /* events: with tokens */
    uint32_t line_feeds;
    char kept[16];
    uint32_t kept_len; /* of the line's beginning */
    bool finished, done;
    int64_t *arrivals, *sent; /* [tokens] */
};

static uint32_t stream_count, token_count, open_count;
static int64_t step_ns;
static struct stream *streams;
static int64_t first_ns;

static void forget_streams(void)
{
    for (uint32_t i = 0; i < stream_count; i++)
        streams[i] = (struct stream){.arrivals = streams[i].arrivals, .sent = streams[i].sent};
    open_count = stream_count;
    first_ns = 0;
}

static int64_t sent_ns; /* of the bytes at hand; 0: not known */

static void note_tokens(struct stream *s, uint32_t count, int64_t now)
{
    if (s->tokens + count > token_count) die("a stream has more tokens than were asked for");
    if (!first_ns) first_ns = now;
    for (uint32_t i = 0; i < count; i++)
        s->sent[s->tokens] = sent_ns, s->arrivals[s->tokens++] = now;
    s->events += count > 0;
}

static uint32_t ids_of(const char *text, size_t len)
{
    const char *at = memmem(text, len, "\"token_ids\":[", 13), *end = text + len;
    uint32_t count = 1;

    if (!at || at[13] == ']') return 0;
    for (at += 13; at < end && *at != ']'; at++)
        count += *at == ',';
    return count;
}

/* --- server-sent events --- */

static void take_event(struct stream *s, const char *text, size_t len, int64_t now)
{
    if (len > 6 && text[6] == '[') {
        s->done = true;
        open_count--;
    } else if (memmem(text, len, "\"finish_reason\":null", 20)) {
        note_tokens(s, ids_of(text, len), now);
    } else if (memmem(text, len, "\"finish_reason\":\"length\"", 24)) {
        note_tokens(s, ids_of(text, len), now);
        s->finished = true;
    } else {
        die("not an event that was asked for: %.*s", (int)len, text);
    }
}

struct line_buffer {
    char bytes[65536];
    size_t len;
};

static void take_bytes(struct stream *s, struct line_buffer *line, const char *bytes, size_t len,
                       int64_t now)
{
    const char *at = bytes, *end = bytes + len, *cut;

    while (at < end && (cut = memmem(at, (size_t)(end - at), "\n\n", 2))) {
        if (line->len) {
            memcpy(line->bytes + line->len, at, (size_t)(cut - at));
            take_event(s, line->bytes, line->len + (size_t)(cut - at), now);
            line->len = 0;
        } else {
            take_event(s, at, (size_t)(cut - at), now);
        }
        at = cut + 2;
    }
    if (line->len + (size_t)(end - at) > sizeof line->bytes) die("an event of over 64 KiB");
    memcpy(line->bytes + line->len, at, (size_t)(end - at));
    line->len += (size_t)(end - at);
}

static int64_t realtime_less_mono_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec - now_ns();
}

/* As recv, and sets sent_ns. */
static ssize_t receive(int fd, char *to, size_t size)
{
    static int64_t offset_ns;
    union {
        char bytes[256];
        struct cmsghdr align;
    } control;
    struct iovec part = {to, size};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT);
    struct timespec t;

    if (!offset_ns) offset_ns = realtime_less_mono_ns();
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); got > 0 && c; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_TIMESTAMPNS) continue;
        memcpy(&t, CMSG_DATA(c), sizeof t);
        sent_ns = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec - offset_ns;
    }
    return got;
}

static void read_stream(struct stream *s, struct line_buffer *line)
{
    static char raw[65536], body[65536];

    for (;;) {
        ssize_t got = receive(s->fd, raw, sizeof raw);
        int64_t now = now_ns();

        if (got < 0 && errno == EAGAIN) return;
        if (got <= 0) die("the server closed a stream after %u tokens", s->tokens);
        size_t len = dechunk(&s->dechunk, raw, (size_t)got, body);

        if (s->dechunk.status && s->dechunk.status != 200) die("status %u", s->dechunk.status);
        take_bytes(s, line, body, len, now);
        if ((size_t)got < sizeof raw) return;
    }
}

static void run_sse(const char *host, uint16_t port)
{
    struct line_buffer *lines = calloc(stream_count, sizeof *lines);
    struct epoll_event events[256];
    char json[256], text[1024];
    int epoll_fd = epoll_create1(0);

    snprintf(json, sizeof json,
             "{\"prompt\":\"a b\",\"max_tokens\":%u,\"ignore_eos\":true,\"stream\":true,"
             "\"return_token_ids\":true}",
             token_count);
    size_t len = post_text(text, sizeof text, "/v1/completions", json);

    for (uint32_t i = 0; i < stream_count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};

        int on = 1;

        streams[i].fd = connect_tcp(host, port);
        setsockopt(streams[i].fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, streams[i].fd, &event);
    }
    for (uint32_t i = 0; i < stream_count; i++)
        if (write(streams[i].fd, text, len) != (ssize_t)len) die("cannot send a request");
    while (open_count) {
        int count = epoll_wait(epoll_fd, events, 256, 10000);

        if (count == 0) die("nothing came for 10 s");
        for (int e = 0; e < count; e++)
            read_stream(&streams[events[e].data.u32], &lines[events[e].data.u32]);
    }
    for (uint32_t i = 0; i < stream_count; i++)
        close(streams[i].fd);
    close(epoll_fd);
    free(lines);
}

/* --- ZeroMQ --- */

static void send_request(void *dealer, uint32_t number)
{
    Inferd__V1__Request request = INFERD__V1__REQUEST__INIT;
    Inferd__V1__Generate generate = INFERD__V1__GENERATE__INIT;
    ProtobufCBinaryData prompt = {3, (uint8_t *)(uintptr_t) "a b"};
    uint8_t bytes[256];

    request.has_id = true;
    request.id = number;
    request.body_case = INFERD__V1__REQUEST__BODY_GENERATE;
    request.generate = &generate;
    generate.prompts = &prompt;
    generate.n_prompts = 1;
    generate.has_max_tokens = generate.has_ignore_eos = generate.has_stream =
        generate.has_return_token_ids = true;
    generate.max_tokens = token_count;
    generate.ignore_eos = generate.stream = generate.return_token_ids = true;
    size_t len = inferd__v1__request__pack(&request, bytes);

    if (zmq_send(dealer, bytes, len, 0) < 0) die("cannot send: %s", zmq_strerror(errno));
}

static void take_response(const Inferd__V1__Response *r, int64_t now)
{
    if (r->id >= stream_count) die("a response to nothing");
    struct stream *s = &streams[r->id];

    switch (r->body_case) {
    case INFERD__V1__RESPONSE__BODY_STARTED: break;
    case INFERD__V1__RESPONSE__BODY_CHUNK:
        note_tokens(s, (uint32_t)r->chunk->n_token_ids, now);
        if (r->chunk->has_finish_reason) s->finished = true;
        break;
    case INFERD__V1__RESPONSE__BODY_DONE:
        s->done = true;
        open_count--;
        break;
    case INFERD__V1__RESPONSE__BODY_ERROR: die("error: %s", r->error->message);
    default: die("a response of another kind");
    }
}

static void run_zmq(const char *endpoint)
{
    void *context = zmq_ctx_new(), *dealer = zmq_socket(context, ZMQ_DEALER);
    int zero = 0;

    zmq_setsockopt(dealer, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(dealer, ZMQ_RCVHWM, &zero, sizeof zero);
    if (zmq_connect(dealer, endpoint)) die("%s: %s", endpoint, zmq_strerror(errno));
    for (uint32_t i = 0; i < stream_count; i++)
        send_request(dealer, i);
    while (open_count) {
        zmq_msg_t message;

        zmq_msg_init(&message);
        if (zmq_msg_recv(&message, dealer, 0) < 0) die("recv: %s", zmq_strerror(errno));
        int64_t now = now_ns();
        Inferd__V1__Batch *batch =
            inferd__v1__batch__unpack(NULL, zmq_msg_size(&message), zmq_msg_data(&message));

        if (!batch) die("not a batch");
        for (size_t i = 0; i < batch->n_responses; i++)
            take_response(batch->responses[i], now);
        inferd__v1__batch__free_unpacked(batch, NULL);
        zmq_msg_close(&message);
    }
    zmq_close(dealer);
    zmq_ctx_term(context);
}

/* --- figures --- */

static int64_t time_of(const struct stream *s, uint32_t token, bool sent)
{
    return sent && s->sent[token] ? s->sent[token] : s->arrivals[token];
}

/* How far a stream is behind the first one, in steps: all are in every step from then on, so their same tokens are so far apart, give
 * or take what a token is late; the median of that is not moved by those that are. */
static double behind_first(const struct stream *s, double *apart)
{
    for (uint32_t k = 0; k < token_count; k++)
        apart[k] = (double)(time_of(s, k, true) - time_of(&streams[0], k, true));
    sort_values(apart, token_count);
    return quantile(apart, token_count, .5) / (double)step_ns;
}

/* The streams of a step come one after the other, then there is a pause: where in a step the pause ends. */
static double end_of_pause(const double *behind)
{
    double *place = calloc(stream_count + 1, sizeof *place), widest = 0, end = 0;

    for (uint32_t i = 0; i < stream_count; i++)
        place[i] = behind[i] - floor(behind[i]);
    sort_values(place, stream_count);
    place[stream_count] = place[0] + 1;
    for (uint32_t i = 0; i < stream_count; i++)
        if (place[i + 1] - place[i] > widest) {
            widest = place[i + 1] - place[i];
            end = place[i + 1];
        }
    free(place);
    return end;
}

static int64_t *find_first(const int32_t *behind, int32_t least, uint32_t steps)
{
    int64_t *first = calloc(steps, sizeof *first);

    for (uint32_t i = 0; i < stream_count; i++)
        for (uint32_t k = 0; k < token_count; k++) {
            uint32_t step = k + (uint32_t)(behind[i] - least);
            int64_t at = time_of(&streams[i], k, true);

            if (!first[step] || at < first[step]) first[step] = at;
        }
    return first;
}

/* Fills late (ms) of every token from the step on in which all streams take part: its time as sent or as read, less that of the
 * first of its step as sent. */
static size_t find_late(bool sent, double *late)
{
    int32_t *behind = calloc(stream_count, sizeof *behind), least = INT32_MAX, most = INT32_MIN;
    double *apart = calloc(token_count, sizeof *apart),
           *steps = calloc(stream_count, sizeof *steps);
    size_t count = 0;

    for (uint32_t i = 0; i < stream_count; i++)
        steps[i] = behind_first(&streams[i], apart);
    double begin = end_of_pause(steps) - 1e-6;

    for (uint32_t i = 0; i < stream_count; i++) {
        behind[i] = (int32_t)floor(steps[i] - begin);
        if (behind[i] < least) least = behind[i];
        if (behind[i] > most) most = behind[i];
    }
    int64_t *first = find_first(behind, least, token_count + (uint32_t)(most - least));

    for (uint32_t i = 0; i < stream_count; i++)
        for (uint32_t k = (uint32_t)(most - behind[i]); k < token_count; k++)
            late[count++] =
                (double)(time_of(&streams[i], k, sent) - first[k + (uint32_t)(behind[i] - least)]) *
                1e-6;
    if (!count) die("no step has all streams: more tokens are needed");
    sort_values(late, count);
    free(first);
    free(steps);
    free(apart);
    free(behind);
    return count;
}

enum figure {
    TOKENS_PER_S,
    SENT_P50,
    SENT_P99,
    SENT_MAX,
    SENT_OVER,
    READ_P50,
    READ_P99,
    READ_MAX,
    READ_OVER,
    EVENTS,
    SERVER_US,
    CLIENT_US,
    FIGURES
};
static const char *const figure_names[FIGURES] = {"tokens/s", "sent P50", "P99 ms",    "max ms",
                                                  ">step %",  "read P50", "P99 ms",    "max ms",
                                                  ">step %",  "events %", "server us", "client us"};

static void note_late(bool sent, double out[4])
{
    double *late = calloc((size_t)stream_count * token_count, sizeof *late);
    size_t count = find_late(sent, late), over = 0;

    for (size_t i = count; i > 0 && late[i - 1] > (double)step_ns * 1e-6; i--)
        over++;
    out[0] = quantile(late, count, .5);
    out[1] = quantile(late, count, .99);
    out[2] = late[count - 1];
    out[3] = 100. * (double)over / (double)count;
    free(late);
}

static void take_figures(double out[FIGURES], int64_t server_ns, int64_t client_ns)
{
    size_t count = (size_t)stream_count * token_count, events = 0;
    int64_t last_ns = 0;

    for (uint32_t i = 0; i < stream_count; i++) {
        const struct stream *s = &streams[i];

        if (s->tokens != token_count || !s->finished || !s->done)
            die("stream %u is not whole: %u tokens of %u", i, s->tokens, token_count);
        events += s->events;
        if (s->arrivals[token_count - 1] > last_ns) last_ns = s->arrivals[token_count - 1];
    }
    memset(out, 0, FIGURES * sizeof *out);
    out[TOKENS_PER_S] = (double)count / ((double)(last_ns - first_ns) * 1e-9);
    if (step_ns && streams[0].sent[0]) note_late(true, &out[SENT_P50]);
    if (step_ns) note_late(false, &out[READ_P50]);
    out[EVENTS] = 100. * (double)events / (double)count;
    out[SERVER_US] = (double)server_ns * 1e-3 / (double)count;
    out[CLIENT_US] = (double)client_ns * 1e-3 / (double)count;
}

static void print_row(const char *name, const double row[FIGURES])
{
    printf("%-14s %9.0f ", name, row[TOKENS_PER_S]);
    for (int i = SENT_P50; i < FIGURES; i++)
        printf(i == SENT_OVER || i == READ_OVER ? " %8.3f |" : " %8.2f", row[i]);
    printf("\n");
    fflush(stdout);
}

/* --- rounds --- */

enum { ROUNDS_MAX = 32 };
struct source {
    const char *name, *host; /* host: NULL: ZeroMQ, at `endpoint` */
    uint16_t port;
    const char *endpoint;
    int pid;
    double rounds[ROUNDS_MAX][FIGURES];
};

static void run_round(struct source *s, unsigned round)
{
    forget_streams();
    int64_t server_ns = cpu_of(s->pid), client_ns = cpu_of(getpid());

    if (s->host)
        run_sse(s->host, s->port);
    else
        run_zmq(s->endpoint);
    take_figures(s->rounds[round], cpu_of(s->pid) - server_ns, cpu_of(getpid()) - client_ns);
    print_row(s->name, s->rounds[round]);
}

static void run_bare(struct source *s, unsigned round)
{
    s->pid = bare_writer_start(stream_count, token_count, step_ns, &s->port);
    run_round(s, round);
    bare_writer_end(s->pid);
}

static void print_median(const struct source *s, unsigned rounds)
{
    double row[FIGURES], values[ROUNDS_MAX];
    char name[32];

    for (int i = 0; i < FIGURES; i++) {
        for (unsigned r = 0; r < rounds; r++)
            values[r] = s->rounds[r][i];
        sort_values(values, rounds);
        row[i] = quantile(values, rounds, .5);
    }
    snprintf(name, sizeof name, "%s, median", s->name);
    print_row(name, row);
}

int main(int argc, char **argv)
{
    static struct source bare = {.name = "bare", .host = "127.0.0.1"}, inferd = {.name = "inferd"};
    bool sse = argc > 1 && strcmp(argv[1], "sse") == 0;

    if (argc < (sse ? 8 : 7) || argc > (sse ? 9 : 8) || (!sse && strcmp(argv[1], "zmq") != 0))
        die("usage: stream-bench sse HOST PORT PID STREAMS TOKENS STEP_US [ROUNDS]\n"
            "       stream-bench zmq ENDPOINT PID STREAMS TOKENS STEP_US [ROUNDS]");
    char **rest = argv + (sse ? 4 : 3);
    unsigned rounds = rest[4] ? (unsigned)atoi(rest[4]) : 1;

    inferd.host = sse ? argv[2] : NULL;
    inferd.port = sse ? (uint16_t)atoi(argv[3]) : 0;
    inferd.endpoint = argv[2];
    inferd.pid = atoi(rest[0]);
    stream_count = (uint32_t)atoi(rest[1]);
    token_count = (uint32_t)atoi(rest[2]);
    step_ns = atoll(rest[3]) * 1000;
    if (stream_count < 1 || stream_count > 4096 || token_count < 1) die("1 to 4096 streams");
    if (rounds < 1 || rounds > ROUNDS_MAX) die("1 to %d rounds", ROUNDS_MAX);
    streams = calloc(stream_count, sizeof *streams);
    for (uint32_t i = 0; i < stream_count; i++)
        streams[i].arrivals = calloc(token_count, sizeof *streams[i].arrivals),
        streams[i].sent = calloc(token_count, sizeof *streams[i].sent);
    printf("%u streams of %u tokens over %s", stream_count, token_count, argv[1]);
    if (step_ns) printf(", pace %.0f tokens/s", stream_count * 1e9 / (double)step_ns);
    printf("; CPU per token\n%-14s %9s ", "", figure_names[0]);
    for (int i = SENT_P50; i < FIGURES; i++)
        printf(i == SENT_OVER || i == READ_OVER ? " %8s |" : " %8s", figure_names[i]);
    printf("\n");
    bool has_peer = sse && step_ns;

    for (unsigned r = 0; r < rounds; r++) {
        if (has_peer) run_bare(&bare, r);
        run_round(&inferd, r);
    }
    if (rounds > 1 && has_peer) print_median(&bare, rounds);
    if (rounds > 1) print_median(&inferd, rounds);
    return 0;
}
