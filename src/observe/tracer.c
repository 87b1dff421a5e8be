#include "observe/tracer.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "observe/otlp_encode.h"

enum { TRIES_MAX = 5, ANSWER_BYTES_MAX = 64 << 10, ANSWER_MS_MAX = 10000 };
static const int64_t second_ns = 1000000000, last_words_ns = 2000000000;

struct tracer {
    char *url, *shown_url, *service_name, *service_version, *resource_attributes;
    char instance_id[33];
    struct curl_slist *headers;
    double ratio;
    int64_t pause_ns;
    CURL *curl;
    pthread_t thread;
    bool thread_runs;

    pthread_mutex_t lock;
    pthread_cond_t some;          /* a batch is full, or it is time to end */
    struct request_record *queue; /* [TRACER_QUEUE_MAX], entry i at i % TRACER_QUEUE_MAX */
    uint64_t taken, put;
    bool stopping;
    _Atomic int64_t end_by_ns; /* once stopping */

    struct request_record *batch; /* [TRACER_BATCH_MAX]: the thread's */
    _Atomic uint64_t exported, unsampled, dropped_full, dropped_refused, dropped_lost, spans;
    bool complained; /* the thread's: the log knows that the collector does not answer */
};

/* --- offering --- */

static bool wanted(const struct tracer *t, const struct request_record *r)
{
    if (request_record_is_fault(r)) return true;
    if (r->trace.has_parent) return r->trace.parent_sampled;
    return trace_id_in_ratio(r->trace.trace_id, t->ratio);
}

void tracer_offer(struct tracer *t, const struct request_record *r)
{
    if (!t) return;
    if (!wanted(t, r)) {
        atomic_fetch_add_explicit(&t->unsampled, 1, memory_order_relaxed);
        return;
    }
    pthread_mutex_lock(&t->lock); /* held for the copy of one request, by whoever holds it */
    bool full = t->put - t->taken == TRACER_QUEUE_MAX;

    if (!full) t->queue[t->put++ % TRACER_QUEUE_MAX] = *r;
    bool batch = t->put - t->taken == TRACER_BATCH_MAX;
    pthread_mutex_unlock(&t->lock);
    if (full) atomic_fetch_add_explicit(&t->dropped_full, 1, memory_order_relaxed);
    if (batch && !full) pthread_cond_signal(&t->some);
}

void tracer_stats(struct tracer *t, struct tracer_stats *out)
{
    *out = (struct tracer_stats){0};
    if (!t) return;
    out->exported = atomic_load(&t->exported);
    out->unsampled = atomic_load(&t->unsampled);
    out->dropped_full = atomic_load(&t->dropped_full);
    out->dropped_refused = atomic_load(&t->dropped_refused);
    out->dropped_lost = atomic_load(&t->dropped_lost);
    out->spans = atomic_load(&t->spans);
}

/* --- the thread --- */

static struct timespec until(int64_t from_now_ns)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    int64_t ns = ts.tv_nsec + from_now_ns;
    ts.tv_sec += (time_t)(ns / second_ns);
    ts.tv_nsec = (long)(ns % second_ns);
    return ts;
}

/* Sleeps so long, or until the end; false: it is the end. */
static bool pause_for(struct tracer *t, int64_t ns)
{
    struct timespec end = until(ns);

    pthread_mutex_lock(&t->lock);
    while (!t->stopping && pthread_cond_timedwait(&t->some, &t->lock, &end) == 0)
        ;
    bool goes_on = !t->stopping;
    pthread_mutex_unlock(&t->lock);
    return goes_on;
}

/* Waits for a batch, or for part of one and the time. 0: it is the end, and nothing is left. */
static uint32_t take_batch(struct tracer *t)
{
    struct timespec end = until(t->pause_ns);
    uint32_t count = 0;

    pthread_mutex_lock(&t->lock);
    while (!t->stopping && t->put - t->taken < TRACER_BATCH_MAX) {
        if (pthread_cond_timedwait(&t->some, &t->lock, &end) == 0) continue;
        if (t->put != t->taken) break;
        end = until(t->pause_ns);
    }
    while (count < TRACER_BATCH_MAX && t->taken != t->put) {
        t->batch[count++] = t->queue[t->taken % TRACER_QUEUE_MAX];
        t->taken++;
    }
    pthread_mutex_unlock(&t->lock);
    return count;
}

static size_t take_answer(char *bytes, size_t size, size_t count, void *out)
{
    struct buf *answer = out;

    if (answer->len + size * count <= ANSWER_BYTES_MAX) buf_append(answer, bytes, size * count);
    return size * count;
}

/* curl asks several times a second: the end does not wait for a slow collector. */
static int must_end(void *cls, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    struct tracer *t = cls;
    int64_t end = atomic_load(&t->end_by_ns);

    (void)a, (void)b, (void)c, (void)d;
    return end && clock_mono_ns() > end;
}

enum sent { SENT, SENT_REFUSED, SENT_NOT };

static enum sent post(struct tracer *t, const struct buf *body, int64_t *retry_after_ns)
{
    struct buf answer;
    long status = 0;
    curl_off_t retry_after_s = 0;

    int64_t end_ns = atomic_load(&t->end_by_ns), left_ns = end_ns - clock_mono_ns();

    if (end_ns && left_ns <= 0) return SENT_NOT;
    buf_init(&answer, 0);
    curl_easy_setopt(t->curl, CURLOPT_TIMEOUT_MS,
                     end_ns ? (long)(left_ns / 1000000 + 1) : (long)ANSWER_MS_MAX);
    curl_easy_setopt(t->curl, CURLOPT_POSTFIELDS, body->ptr);
    curl_easy_setopt(t->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body->len);
    curl_easy_setopt(t->curl, CURLOPT_WRITEDATA, &answer);
    CURLcode code = curl_easy_perform(t->curl);

    buf_fini(&answer);
    if (code) {
        if (!t->complained)
            log_warn("traces not sent", "url=%s why=\"%s\"", t->shown_url,
                     curl_easy_strerror(code));
        t->complained = true;
        return SENT_NOT;
    }
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(t->curl, CURLINFO_RETRY_AFTER, &retry_after_s);
    *retry_after_ns = retry_after_s > 60 ? 60 * second_ns : retry_after_s * second_ns;
    if (status >= 200 && status < 300) {
        if (t->complained) log_info("traces sent again", "url=%s", t->shown_url);
        t->complained = false;
        return SENT;
    }
    if (!t->complained) log_warn("traces not taken", "url=%s status=%ld", t->shown_url, status);
    t->complained = true;
    return status == 429 || status == 502 || status == 503 || status == 504 ? SENT_NOT
                                                                            : SENT_REFUSED;
}

static enum sent send_with_patience(struct tracer *t, const struct buf *body)
{
    int64_t wait_ns = second_ns / 2, retry_after_ns = 0;
    enum sent sent = post(t, body, &retry_after_ns);

    for (int tries = 1; sent == SENT_NOT && tries < TRIES_MAX; tries++) {
        if (!pause_for(t, retry_after_ns > wait_ns ? retry_after_ns : wait_ns)) {
            retry_after_ns = 0;
            return post(t, body, &retry_after_ns); /* the last word */
        }
        wait_ns *= 2;
        retry_after_ns = 0;
        sent = post(t, body, &retry_after_ns);
    }
    return sent;
}

static void send_batch(struct tracer *t, uint32_t count)
{
    const struct otlp_resource resource = {t->service_name, t->service_version, t->instance_id,
                                           t->resource_attributes};
    struct buf body;
    uint32_t spans;
    enum sent sent = SENT_NOT;

    buf_init(&body, 0);
    if (!otlp_encode(&resource, t->batch, count, &body, &spans))
        sent = send_with_patience(t, &body);
    buf_fini(&body);
    atomic_fetch_add(sent == SENT           ? &t->exported
                     : sent == SENT_REFUSED ? &t->dropped_refused
                                            : &t->dropped_lost,
                     count);
    if (sent == SENT) atomic_fetch_add(&t->spans, spans);
}

static void *run(void *arg)
{
    struct tracer *t = arg;
    uint32_t count;

    pthread_setname_np(pthread_self(), "inferd-trace");
    while ((count = take_batch(t)) > 0)
        send_batch(t, count);
    return NULL;
}

/* --- life --- */

static bool add_header(struct tracer *t, const char *line)
{
    struct curl_slist *longer = curl_slist_append(t->headers, line);

    if (longer) t->headers = longer;
    return longer;
}

static bool make_headers(struct tracer *t, const char *list)
{
    char name[128], value[8192], line[8400]; /* a bearer token may be long */

    if (!add_header(t, "Content-Type: application/x-protobuf") || !add_header(t, "Expect:"))
        return false;
    while (otlp_next_pair(&list, name, sizeof name, value, sizeof value)) {
        if (strpbrk(name, "\r\n:") || strpbrk(value, "\r\n")) continue;
        snprintf(line, sizeof line, "%s: %s", name, value);
        if (!add_header(t, line)) return false;
    }
    return true;
}

/* The URL as logs may have it: no user, no password, no query. NULL: no memory. */
static char *without_secrets(const char *url)
{
    static const CURLUPart secrets[] = {CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_QUERY};
    CURLU *parts = curl_url();
    char *whole = NULL, *out;

    if (!parts) return NULL;
    if (!curl_url_set(parts, CURLUPART_URL, url, 0))
        for (size_t i = 0; i < sizeof secrets / sizeof *secrets; i++)
            curl_url_set(parts, secrets[i], NULL, 0);
    curl_url_get(parts, CURLUPART_URL, &whole, 0);
    out = strdup(whole ? whole : "");
    curl_free(whole);
    curl_url_cleanup(parts);
    return out;
}

const char *tracer_shown_url(const struct tracer *tracer)
{
    return tracer->shown_url;
}

static bool set_up_curl(struct tracer *t)
{
    t->curl = curl_easy_init();
    if (!t->curl) return false;
    curl_easy_setopt(t->curl, CURLOPT_URL, t->url);
    curl_easy_setopt(t->curl, CURLOPT_POST, 1L);
    curl_easy_setopt(t->curl, CURLOPT_HTTPHEADER, t->headers);
    curl_easy_setopt(t->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(t->curl, CURLOPT_CONNECTTIMEOUT_MS, 3000L);
    curl_easy_setopt(t->curl, CURLOPT_WRITEFUNCTION, take_answer);
    curl_easy_setopt(t->curl, CURLOPT_XFERINFOFUNCTION, must_end);
    curl_easy_setopt(t->curl, CURLOPT_XFERINFODATA, t);
    curl_easy_setopt(t->curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(t->curl, CURLOPT_USERAGENT, "inferd");
    return true;
}

static bool copy_options(struct tracer *t, const struct tracer_options *o)
{
    uint8_t bytes[16] = {0};

    t->ratio = o->ratio;
    t->pause_ns = o->pause_ms ? (int64_t)o->pause_ms * 1000000 : second_ns;
    t->url = strdup(o->url);
    t->shown_url = without_secrets(o->url);
    t->service_name = strdup(o->service_name ? o->service_name : "inferd");
    t->service_version = strdup(o->service_version ? o->service_version : "");
    t->resource_attributes = strdup(o->resource_attributes ? o->resource_attributes : "");
    (void)!getrandom(bytes, sizeof bytes, GRND_NONBLOCK);
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(t->instance_id + 2 * i, 3, "%02x", bytes[i]);
    return t->url && t->shown_url && t->service_name && t->service_version &&
           t->resource_attributes;
}

static bool start(struct tracer *t)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&t->some, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&t->lock, NULL);
    t->queue = calloc(TRACER_QUEUE_MAX, sizeof *t->queue);
    t->batch = calloc(TRACER_BATCH_MAX, sizeof *t->batch);
    t->thread_runs = t->queue && t->batch && pthread_create(&t->thread, NULL, run, t) == 0;
    return t->thread_runs;
}

enum status tracer_check_url(const char *text, struct error *err)
{
    CURLU *url = curl_url();
    bool http = strncasecmp(text, "http://", 7) == 0 || strncasecmp(text, "https://", 8) == 0;

    if (!url) return error_set(err, STATUS_NOMEM, "no memory for a URL");
    bool ok = http && !curl_url_set(url, CURLUPART_URL, text, 0);

    curl_url_cleanup(url);
    if (ok) return STATUS_OK;
    return error_set(err, STATUS_INVALID,
                     "--otlp-endpoint is \"%.200s\"; it must be a URL of http or https, as in "
                     "http://localhost:4318",
                     text);
}

enum status tracer_create(const struct tracer_options *options, struct tracer **out,
                          struct error *err)
{
    enum status st = tracer_check_url(options->url, err);

    if (st) return st;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    struct tracer *t = calloc(1, sizeof *t);

    if (!t || !copy_options(t, options) || !make_headers(t, options->headers) || !set_up_curl(t) ||
        !start(t)) {
        tracer_destroy(t);
        return error_set(err, STATUS_NOMEM, "no memory for sending traces");
    }
    *out = t;
    return STATUS_OK;
}

void tracer_destroy(struct tracer *t)
{
    if (!t) return;
    if (t->thread_runs) {
        atomic_store(&t->end_by_ns, clock_mono_ns() + last_words_ns);
        pthread_mutex_lock(&t->lock);
        t->stopping = true;
        pthread_mutex_unlock(&t->lock);
        pthread_cond_signal(&t->some);
        pthread_join(t->thread, NULL);
    }
    if (t->queue) { /* made together */
        pthread_cond_destroy(&t->some);
        pthread_mutex_destroy(&t->lock);
    }
    curl_slist_free_all(t->headers);
    if (t->curl) curl_easy_cleanup(t->curl);
    free(t->queue);
    free(t->batch);
    free(t->url);
    free(t->shown_url);
    free(t->service_name);
    free(t->service_version);
    free(t->resource_attributes);
    free(t);
}
