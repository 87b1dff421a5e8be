#include "bench/load_client.h"

#include <curl/curl.h>
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"

enum { EVENTS = 256, ANSWER_MAX = 16 << 20, LINE_MAX_BYTES = 4 << 20 };

struct flight {
    struct client *client;
    CURL *easy;
    uint32_t job;
    struct buf body, line;
    struct buf text; /* of the answer; of a refusal, its body */
    int64_t started_ns, last_ns;
    uint32_t chunks;
    bool failed; /* the stream told of an error */
};

struct client {
    const struct load_options *options;
    const struct load_job *jobs;
    struct load_result *results;
    uint32_t count, next_root, ended, flying;
    uint32_t *follower; /* [count] the job that waits for it + 1; 0: none */
    uint32_t *ready;    /* [count] followers whose turn has come, in order */
    uint32_t ready_head, ready_tail;
    bool stopped; /* nothing starts any more */
    CURLM *multi;
    int epoll_fd;
    int64_t timer_ns; /* when libcurl wants to be called; below 0: it does not */
    int64_t began_ns, last_end_ns;
    struct curl_slist *headers;
    char *url;
    CURL **idle; /* handles to use again */
    uint32_t idle_count, idle_cap;
    enum status status; /* of our own faults */
};

/* --- what the server sends --- */

static void token_arrived(struct flight *f, const char *text)
{
    struct load_result *r = &f->client->results[f->job];
    int64_t now = clock_mono_ns();

    f->chunks++;
    if (!r->ttft_s) {
        r->ttft_s = (double)(now - f->started_ns) * 1e-9;
    } else {
        if (r->gap_count == r->gap_cap) {
            uint32_t cap = r->gap_cap ? r->gap_cap * 2 : 64;
            float *grown = realloc(r->gaps_s, cap * sizeof *grown);
            if (!grown) {
                f->client->status = STATUS_NOMEM;
                return;
            }
            r->gaps_s = grown;
            r->gap_cap = cap;
        }
        r->gaps_s[r->gap_count++] = (float)((double)(now - f->last_ns) * 1e-9);
    }
    f->last_ns = now;
    if (f->client->options->keep_text) buf_append_str(&f->text, text);
}

static const char *choice_text(const json_t *event)
{
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    const json_t *delta = json_object_get(choice, "delta");
    const char *text = json_string_value(json_object_get(choice, "text"));

    if (!text) text = json_string_value(json_object_get(delta, "content"));
    if (!text) text = json_string_value(json_object_get(delta, "reasoning_content"));
    return text && *text ? text : NULL;
}

static void take_usage(struct load_result *r, const json_t *usage)
{
    const json_t *details = json_object_get(usage, "prompt_tokens_details");

    if (!json_is_object(usage)) return;
    r->prompt_tokens = (uint32_t)json_integer_value(json_object_get(usage, "prompt_tokens"));
    r->output_tokens = (uint32_t)json_integer_value(json_object_get(usage, "completion_tokens"));
    r->cached_tokens = (uint32_t)json_integer_value(json_object_get(details, "cached_tokens"));
}

static void take_event(struct flight *f, const char *data, size_t len)
{
    struct load_result *r = &f->client->results[f->job];
    json_t *event;
    const char *text;

    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) return;
    event = json_loadb(data, len, 0, NULL);
    if (!event || json_object_get(event, "error")) {
        f->failed = true;
        snprintf(r->error, sizeof r->error, "%s: %.*s", event ? "error in the stream" : "not JSON",
                 (int)(len < 120 ? len : 120), data);
    }
    text = choice_text(event);
    if (text) token_arrived(f, text);
    take_usage(r, json_object_get(event, "usage"));
    json_decref(event);
}

/* A line without its end. */
static void take_line(struct flight *f, const char *line, size_t len)
{
    if (len && line[len - 1] == '\r') len--;
    if (len < 5 || memcmp(line, "data:", 5) != 0) return;
    line += 5, len -= 5;
    while (len && *line == ' ')
        line++, len--;
    take_event(f, line, len);
}

static size_t on_bytes(char *bytes, size_t size, size_t n, void *arg)
{
    struct flight *f = arg;
    size_t len = size * n;
    long status = 0;

    curl_easy_getinfo(f->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200) {
        buf_append(&f->text, bytes, len < 4096 ? len : 4096);
        return len;
    }
    for (size_t at = 0; at < len;) {
        const char *end = memchr(bytes + at, '\n', len - at);
        size_t part = end ? (size_t)(end - bytes) - at : len - at;

        if (end && !f->line.len) {
            take_line(f, bytes + at, part); /* the usual case: nothing is copied */
        } else {
            buf_append(&f->line, bytes + at, part);
            if (end) {
                take_line(f, f->line.ptr, f->line.len);
                buf_clear(&f->line);
            }
        }
        at += part + (end != NULL);
    }
    return buf_status(&f->line) || buf_status(&f->text) ? 0 : len;
}

/* --- a request's life --- */

static CURL *take_handle(struct client *c)
{
    return c->idle_count ? c->idle[--c->idle_count] : curl_easy_init();
}

static void keep_handle(struct client *c, CURL *easy)
{
    curl_easy_reset(easy);
    if (c->idle_count == c->idle_cap) {
        uint32_t cap = c->idle_cap ? c->idle_cap * 2 : 64;
        CURL **grown = realloc(c->idle, cap * sizeof *grown);
        if (!grown) {
            curl_easy_cleanup(easy);
            return;
        }
        c->idle = grown;
        c->idle_cap = cap;
    }
    c->idle[c->idle_count++] = easy;
}

static void free_flight(struct flight *f)
{
    buf_fini(&f->body);
    buf_fini(&f->line);
    buf_fini(&f->text);
    free(f);
}

static bool start_job(struct client *c, uint32_t job)
{
    struct flight *f = calloc(1, sizeof *f);
    bool ok = f && (f->easy = take_handle(c));

    if (!ok) {
        free(f);
        return false;
    }
    f->client = c;
    f->job = job;
    buf_init(&f->body, 0);
    buf_init(&f->line, LINE_MAX_BYTES);
    buf_init(&f->text, ANSWER_MAX);
    ok = c->options->make_body(c->options->ctx, job, c->results, &f->body) && !buf_status(&f->body);
    curl_easy_setopt(f->easy, CURLOPT_URL, c->url);
    curl_easy_setopt(f->easy, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(f->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)f->body.len);
    curl_easy_setopt(f->easy, CURLOPT_POSTFIELDS, buf_cstr(&f->body));
    curl_easy_setopt(f->easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(f->easy, CURLOPT_WRITEDATA, f);
    curl_easy_setopt(f->easy, CURLOPT_PRIVATE, f);
    curl_easy_setopt(f->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(f->easy, CURLOPT_TIMEOUT, (long)c->options->target.timeout_s);
    f->started_ns = clock_mono_ns();
    c->results[job].started_s = (double)(f->started_ns - c->began_ns) * 1e-9;
    ok = ok && curl_multi_add_handle(c->multi, f->easy) == CURLM_OK;
    if (!ok) {
        curl_easy_cleanup(f->easy);
        free_flight(f);
        return false;
    }
    c->flying++;
    return true;
}

/* Its follower may start, or will never. */
static void job_ended(struct client *c, uint32_t job)
{
    struct load_result *r = &c->results[job];

    for (;;) {
        uint32_t next = c->follower[job];
        r->ended = true;
        c->ended++;
        c->last_end_ns = clock_mono_ns();
        if (!next) return;
        if (r->ok && !c->stopped) {
            c->ready[c->ready_tail++] = next - 1;
            return;
        }
        job = next - 1;
        r = &c->results[job];
        snprintf(r->error, sizeof r->error, "the turn before it failed");
    }
}

static void judge(struct flight *f, CURLcode code)
{
    struct load_result *r = &f->client->results[f->job];

    curl_easy_getinfo(f->easy, CURLINFO_RESPONSE_CODE, &r->http_status);
    if (code != CURLE_OK)
        snprintf(r->error, sizeof r->error, "%s", curl_easy_strerror(code));
    else if (r->http_status != 200)
        snprintf(r->error, sizeof r->error, "HTTP %ld: %.*s", r->http_status,
                 (int)(f->text.len < 120 ? f->text.len : 120), f->text.ptr ? f->text.ptr : "");
    else if (!f->failed && !f->chunks)
        snprintf(r->error, sizeof r->error, "the answer had no text");
    else
        r->ok = !f->failed;
    r->e2e_s = (double)((f->chunks ? f->last_ns : clock_mono_ns()) - f->started_ns) * 1e-9;
    if (!r->output_tokens) r->output_tokens = f->chunks;
    if (r->ok && f->client->options->keep_text) r->text = strdup(buf_cstr(&f->text));
}

static void reap(struct client *c)
{
    CURLMsg *message;
    int left;

    while ((message = curl_multi_info_read(c->multi, &left))) {
        CURLcode code = message->data.result;
        CURL *easy = message->easy_handle;
        struct flight *f;
        uint32_t job;

        if (message->msg != CURLMSG_DONE) continue;
        curl_easy_getinfo(easy, CURLINFO_PRIVATE, (char **)&f);
        judge(f, code);
        curl_multi_remove_handle(c->multi, easy);
        keep_handle(c, easy);
        job = f->job;
        free_flight(f);
        c->flying--;
        job_ended(c, job);
    }
}

/* --- the loop --- */

static void skip_followed_jobs(struct client *c)
{
    while (c->next_root < c->count && c->jobs[c->next_root].after >= 0)
        c->next_root++;
}

static int64_t due_ns(const struct client *c, uint32_t job)
{
    return c->began_ns + (int64_t)(c->jobs[job].due_s * 1e9);
}

/* Those that never started have ended too. */
static void stop_starting(struct client *c)
{
    c->stopped = true;
    for (; c->next_root < c->count; c->next_root++) {
        if (c->jobs[c->next_root].after >= 0) continue;
        job_ended(c, c->next_root);
    }
    while (c->ready_head < c->ready_tail)
        job_ended(c, c->ready[c->ready_head++]);
}

static bool start_due(struct client *c)
{
    const struct load_options *o = c->options;
    int64_t now = clock_mono_ns();

    if (!c->stopped && o->stop_after_s > 0 && now - c->began_ns >= (int64_t)(o->stop_after_s * 1e9))
        stop_starting(c);
    while (!c->stopped && (!o->max_concurrency || c->flying < o->max_concurrency)) {
        uint32_t job;
        skip_followed_jobs(c);
        if (c->ready_head < c->ready_tail)
            job = c->ready[c->ready_head++];
        else if (c->next_root < c->count && due_ns(c, c->next_root) <= now)
            job = c->next_root++;
        else
            break;
        if (!start_job(c, job)) return false;
    }
    return true;
}

/* How long the loop may sleep: until the next job is due or libcurl's timer; below 0: until something happens. */
static int64_t sleep_ns(struct client *c, int64_t now)
{
    const struct load_options *o = c->options;
    int64_t until = c->timer_ns;
    bool room = !o->max_concurrency || c->flying < o->max_concurrency;

    skip_followed_jobs(c);
    if (!c->stopped && room && c->next_root < c->count &&
        (until < 0 || due_ns(c, c->next_root) < until))
        until = due_ns(c, c->next_root);
    if (!c->stopped && o->stop_after_s > 0) {
        int64_t stop = c->began_ns + (int64_t)(o->stop_after_s * 1e9);
        if (until < 0 || stop < until) until = stop;
    }
    return until < 0 ? -1 : until > now ? until - now : 0;
}

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *known)
{
    struct client *c = arg;
    struct epoll_event event = {.data.fd = fd};

    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
        return 0;
    }
    if (what & CURL_POLL_IN) event.events |= EPOLLIN;
    if (what & CURL_POLL_OUT) event.events |= EPOLLOUT;
    if (epoll_ctl(c->epoll_fd, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event))
        c->status = STATUS_IO;
    curl_multi_assign(c->multi, fd, c);
    return 0;
}

static int on_timer(CURLM *multi, long ms, void *arg)
{
    struct client *c = arg;

    (void)multi;
    c->timer_ns = ms < 0 ? -1 : clock_mono_ns() + (int64_t)ms * 1000000;
    return 0;
}

static void turn(struct client *c)
{
    struct epoll_event events[EVENTS];
    struct pollfd waiting = {.fd = c->epoll_fd, .events = POLLIN};
    int64_t wait = sleep_ns(c, clock_mono_ns());
    struct timespec at = {wait / 1000000000, wait % 1000000000};
    int running, n = 0;

    if (ppoll(&waiting, 1, wait < 0 ? NULL : &at, NULL) > 0)
        n = epoll_wait(c->epoll_fd, events, EVENTS, 0);
    for (int i = 0; i < n; i++) {
        int flags = (events[i].events & EPOLLIN ? CURL_CSELECT_IN : 0) |
                    (events[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                    (events[i].events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
        curl_multi_socket_action(c->multi, events[i].data.fd, flags, &running);
    }
    if (c->timer_ns >= 0 && clock_mono_ns() >= c->timer_ns) {
        c->timer_ns = -1;
        curl_multi_socket_action(c->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
    reap(c);
}

static char *join_url(const struct load_target *t, const char *path)
{
    struct buf url;
    size_t len = strlen(t->url);
    char *text;

    while (len && t->url[len - 1] == '/')
        len--;
    /* as the OpenAI clients have it: what they call base_url ends in /v1 */
    if (strncmp(path, "/v1/", 4) == 0 && len > 3 && strncmp(t->url + len - 3, "/v1", 3) == 0)
        len -= 3;
    buf_init(&url, 0);
    buf_append(&url, t->url, len);
    buf_append_str(&url, path);
    text = strdup(buf_cstr(&url));
    buf_fini(&url);
    return text;
}

static struct curl_slist *make_headers(const struct load_target *t)
{
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    struct buf line;

    headers = curl_slist_append(headers, "Expect:"); /* no round trip before a large body */
    buf_init(&line, 0);
    buf_printf(&line, "Authorization: Bearer %s", t->api_key ? t->api_key : "");
    if (t->api_key) headers = curl_slist_append(headers, buf_cstr(&line));
    buf_fini(&line);
    return headers;
}

static enum status open_client(struct client *c, struct error *err)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
    c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    c->multi = curl_multi_init();
    c->headers = make_headers(&c->options->target);
    c->url = join_url(&c->options->target, c->options->target.endpoint);
    c->follower = calloc(c->count + 1, sizeof *c->follower);
    c->ready = calloc(c->count + 1, sizeof *c->ready);
    c->timer_ns = -1;
    if (c->epoll_fd < 0) return error_set(err, STATUS_IO, "no epoll: %s", strerror(errno));
    if (!c->multi || !c->headers || !c->url || !c->follower || !c->ready)
        return error_set(err, STATUS_NOMEM, "no memory for %u requests", c->count);
    curl_multi_setopt(c->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(c->multi, CURLMOPT_SOCKETDATA, c);
    curl_multi_setopt(c->multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(c->multi, CURLMOPT_TIMERDATA, c);
    curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, 4096L); /* kept alive between requests */
    for (uint32_t i = 0; i < c->count; i++)
        if (c->jobs[i].after >= 0) c->follower[c->jobs[i].after] = i + 1;
    return STATUS_OK;
}

static void close_client(struct client *c)
{
    for (uint32_t i = 0; i < c->idle_count; i++)
        curl_easy_cleanup(c->idle[i]);
    if (c->multi) curl_multi_cleanup(c->multi);
    curl_slist_free_all(c->headers);
    if (c->epoll_fd >= 0) close(c->epoll_fd);
    free(c->idle);
    free(c->url);
    free(c->follower);
    free(c->ready);
}

enum status load_run(const struct load_options *options, const struct load_job *jobs,
                     uint32_t count, struct load_result *results, double *seconds,
                     struct error *err)
{
    struct client c = {.options = options, .jobs = jobs, .results = results, .count = count};
    enum status st = open_client(&c, err);

    c.began_ns = c.last_end_ns = clock_mono_ns();
    while (!st && c.ended < count) {
        if (!start_due(&c)) c.status = STATUS_NOMEM;
        if (c.status)
            st = error_set(err, c.status, "the load client failed: %s", status_name(c.status));
        else if (c.ended < count)
            turn(&c);
    }
    *seconds = (double)(c.last_end_ns - c.began_ns) * 1e-9;
    close_client(&c);
    return st;
}

void load_results_fini(struct load_result *results, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        free(results[i].gaps_s);
        free(results[i].text);
    }
}

static size_t on_body(char *bytes, size_t size, size_t n, void *arg)
{
    buf_append(arg, bytes, size * n);
    return buf_status(arg) ? 0 : size * n;
}

enum status load_get(const struct load_target *target, const char *path, struct buf *out,
                     struct error *err)
{
    CURL *easy = curl_easy_init();
    struct curl_slist *headers = make_headers(target);
    char *url = join_url(target, path);
    long http_status = 0;
    enum status st = STATUS_OK;
    CURLcode code;

    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, out);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT, 30L);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    code = curl_easy_perform(easy);
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &http_status);
    if (code != CURLE_OK)
        st = error_set(err, STATUS_IO, "%s: %s", url, curl_easy_strerror(code));
    else if (http_status != 200)
        st = error_set(err, STATUS_IO, "%s: HTTP %ld; 200 was expected", url, http_status);
    curl_easy_cleanup(easy);
    curl_slist_free_all(headers);
    free(url);
    return st;
}
