/* serve.c - `inferd serve MODEL`: makes every module in the order of a request and ends them in reverse.
 *
 *     options -> frontend (listens: /health 200, /ready 503 loading) -> weights -> tokenizer, chat -> device -> model, plan
 *     -> limits, memory plan -> compile -> engine -> frontend ready
 *     SIGTERM -> drain: no new work, running requests finish -> frontend stops -> engine -> device -> ... -> exit 0
 *
 * Exit status: 0 stopped as asked; 1 could not start; 2 wrong usage; 3 the device or engine was lost while serving.
 * Threads: main waits for signals; the model loads on a thread of its own, so that a signal while loading ends it. */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/api.h"
#include "base/clock.h"
#include "base/file_map.h"
#include "base/hash.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/load.h"
#include "frontend/frontend.h"

enum { EXIT_LOST = 3, LOADING_LOG_MS = 1000 };

struct server {
    const struct config *config;
    struct loaded loaded;
    struct frontend *frontend;
    struct api_model model;
    const char **keys; /* of the options and of the key file */
    uint32_t key_count;
    char *key_file; /* its text; keys point into it */
    const char *names_one[1];
    char fingerprint[32];
    int64_t started_ns, logged_ns;
    pthread_t loader;
    _Atomic int load_state; /* 0 loading, 1 loaded, 2 failed */
    struct error load_error;
};

static void log_progress(void *ctx, const char *phase, uint64_t done, uint64_t total)
{
    struct server *s = ctx;
    int64_t now = clock_mono_ns();

    if (now - s->logged_ns < (int64_t)LOADING_LOG_MS * 1000000) return;
    s->logged_ns = now;
    log_info("loading", "phase=\"%s\" percent=%u", phase,
             total ? (unsigned)(done * 100 / total) : 0);
}

/* Changes with the model's names, shapes, formats and first bytes, with the device's arithmetic and with our version. */
static void make_fingerprint(struct server *s)
{
    const struct weights *w = s->loaded.weights;
    uint64_t h = hash_bytes(INFERD_VERSION, strlen(INFERD_VERSION),
                            (uint64_t)s->loaded.device_options.numerics);
    const char *what = device_description(s->loaded.device);

    h = hash_bytes(what, strlen(what), h);
    for (uint32_t i = 0; i < weights_count(w); i++) {
        const struct weight_view *view = weights_at(w, i);
        h = hash_bytes(view->name, strlen(view->name), h ^ (uint64_t)view->dtype);
        h = hash_bytes(view->dims, sizeof *view->dims * view->dim_count, h);
        h = hash_bytes(view->data, view->bytes < 256 ? view->bytes : 256, h);
        weights_drop_pages(w, view); /* reading a byte brings its neighbours in */
    }
    weights_drop_files(w); /* names and tokens have been read as well */
    snprintf(s->fingerprint, sizeof s->fingerprint, "fp_%012llx", (unsigned long long)(h >> 16));
}

static enum status read_keys(struct server *s, struct error *err)
{
    const struct config *c = s->config;
    uint64_t len;
    uint32_t lines = 1;
    enum status st = STATUS_OK;

    if (c->api_key_file) st = file_read(c->api_key_file, 1 << 20, &s->key_file, &len, err);
    if (st) return st;
    for (const char *p = s->key_file; p && *p; p++)
        lines += *p == '\n';
    s->keys = calloc(c->api_key.count + lines, sizeof *s->keys);
    if (!s->keys) return error_set(err, STATUS_NOMEM, "no memory for the API keys");
    for (uint32_t i = 0; i < c->api_key.count; i++)
        s->keys[s->key_count++] = c->api_key.items[i];
    for (char *save = NULL, *line = s->key_file ? strtok_r(s->key_file, "\r\n", &save) : NULL; line;
         line = strtok_r(NULL, "\r\n", &save))
        s->keys[s->key_count++] = line;
    for (uint32_t i = 0; i < s->key_count; i++)
        if (!*s->keys[i])
            return error_set(err, STATUS_INVALID,
                             "an API key is empty; it must have at least one character");
    if (c->api_key_file && s->key_count == c->api_key.count)
        return error_set(err, STATUS_INVALID, "%s has no key; it must have one per line",
                         c->api_key_file);
    return STATUS_OK;
}

/* What can be known wrong before anything is opened. */
static enum status check_early(const struct config *config, struct error *err)
{
    struct device_options options;
    char *path = NULL;
    enum status st = load_device_options(config, &options, err);

    if (!st) st = config_resolve_model(config->model, &path, err);
    free(path);
    return st;
}

static enum status start_frontend(struct server *s, struct error *err)
{
    const struct config *c = s->config;
    struct frontend_options options = {
        .host = c->host,
        .port = (uint16_t)c->port,
        .uds = c->uds,
        .api_keys = s->keys,
        .api_key_count = s->key_count,
        .cors = c->cors,
        .connections_max = (uint32_t)c->max_connections,
        .body_bytes_max = c->max_body_bytes,
        .header_timeout_s = (uint32_t)c->header_timeout_s,
        .idle_timeout_s = (uint32_t)c->idle_timeout_s,
        .client_stall_s = (uint32_t)c->client_stall_timeout_s,
        .io_threads = (uint32_t)c->io_threads,
        .text_threads = (uint32_t)c->text_threads,
        .version = INFERD_VERSION,
    };
    enum status st = frontend_start(&options, &s->frontend, err);

    if (!st && c->uds) log_info("listening", "uds=%s", c->uds);
    if (!st && !c->uds)
        log_info("listening", "url=http://%s:%u", c->host, frontend_port(s->frontend));
    return st;
}

static void *load_thread(void *arg)
{
    struct server *s = arg;

    s->loaded.progress = log_progress;
    s->loaded.progress_ctx = s;
    s->load_state = load_open(s->config, &s->loaded, &s->load_error) ? 2 : 1;
    kill(getpid(), SIGCHLD); /* wakes the main thread, which has it blocked */
    return NULL;
}

/* A page of the model's file could not be read: somebody has cut the file short, or the disk fails. Nothing can be trusted
 * any more; only calls that are safe in a signal handler. */
static void on_bus_error(int signal_number)
{
    static const char text[] = "error engine lost reason=\"a model file was cut short or cannot be "
                               "read while it is served\"\n";

    (void)signal_number;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(EXIT_LOST);
    _exit(EXIT_LOST);
}

/* Everything that an answer needs is there. */
static void become_ready(struct server *s)
{
    struct loaded *l = &s->loaded;
    const struct config *c = s->config;

    make_fingerprint(s);
    malloc_trim(0); /* what loading took and gave back */
    s->names_one[0] = l->name;
    s->model = (struct api_model){
        .names = c->served_model_name.count ? c->served_model_name.items : s->names_one,
        .name_count = c->served_model_name.count ? c->served_model_name.count : 1,
        .created = clock_wall_s(),
        .tokenizer = l->tokenizer,
        .chat = l->chat,
        .context_tokens = l->limits.context_tokens,
        .vocab_size = tokenizer_vocab_size(l->tokenizer),
        .stop_ids_max = l->limits.banned_max,
        .bias_max = l->limits.bias_max,
        .sequences_max = (uint32_t)(c->max_queue_seqs < 512 ? c->max_queue_seqs : 512),
        .fingerprint = s->fingerprint,
        .no_logits = l->device_options.kind == DEVICE_NULL,
        .trust_content = c->trust_content,
    };
    frontend_set_ready(s->frontend, l->engine, &s->model);
    log_info("ready", "model=%s arch=\"%s\" device=\"%s\" load_ms=%.0f", s->model.names[0],
             model_description(l->model), device_description(l->device),
             (double)(clock_mono_ns() - s->started_ns) * 1e-6);
}

/* The next of our signals, or 0 when none came in the time given. */
static int wait_signal(const sigset_t *signals, int ms)
{
    struct timespec timeout = {ms / 1000, (long)(ms % 1000) * 1000000};
    int got = sigtimedwait(signals, NULL, &timeout);

    return got < 0 ? 0 : got;
}

/* Running requests may finish; a second signal or the end of the time ends them. */
static void drain(struct server *s, const sigset_t *signals)
{
    int64_t until = clock_mono_ns() + (int64_t)s->config->shutdown_timeout_s * 1000000000;

    log_info("draining", "busy=%u timeout_s=%llu", frontend_busy(s->frontend),
             (unsigned long long)s->config->shutdown_timeout_s);
    frontend_drain(s->frontend);
    while (frontend_busy(s->frontend) && clock_mono_ns() < until) {
        int got = wait_signal(signals, 20);
        if (got == SIGTERM || got == SIGINT) break;
    }
}

/* Waits for a signal, or for the end of loading or of the engine. Returns the exit status. */
static int serve_until_told(struct server *s, const sigset_t *signals)
{
    struct engine_stats stats;
    bool ready = false;

    for (;;) {
        int got = wait_signal(signals, 500);
        if (got == SIGTERM || got == SIGINT) break;
        if (s->load_state == 2) {
            cli_fail(&s->load_error);
            return 1;
        }
        if (s->load_state == 1 && !ready) {
            ready = true;
            become_ready(s);
        }
        if (!ready) continue;
        engine_stats(s->loaded.engine, &stats);
        if (!stats.alive) {
            log_error("engine lost", "reason=\"%s\"",
                      stats.dead_reason ? stats.dead_reason : "unknown");
            sleep(1); /* so that the last requests hear of it, and /health is seen to be 503 */
            return EXIT_LOST;
        }
    }
    if (ready) drain(s, signals);
    return 0;
}

static int serve(struct server *s, struct error *err)
{
    sigset_t signals;
    int status = 1;

    signal(SIGPIPE, SIG_IGN);
    signal(SIGBUS, on_bus_error);
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &signals,
                    NULL); /* inherited by every thread: main alone takes them */
    s->started_ns = s->logged_ns = clock_mono_ns();
    if (check_early(s->config, err) || read_keys(s, err) || start_frontend(s, err)) {
        cli_fail(err);
    } else if (pthread_create(&s->loader, NULL, load_thread, s)) {
        fprintf(stderr, "inferd: no thread for loading: %s\n", strerror(errno));
    } else {
        status = serve_until_told(s, &signals);
        frontend_stop(s->frontend);
        s->frontend = NULL;
        if (!s->load_state) {
            log_info("stopped while loading", "%s", "");
            _exit(0); /* the loading thread holds what it holds; nothing outlives the process */
        }
        pthread_join(s->loader, NULL);
        load_close(&s->loaded);
        log_info("stopped", "status=%d", status);
    }
    frontend_stop(s->frontend);
    free(s->keys);
    free(s->key_file);
    return status;
}

int cli_serve(int argc, char **argv)
{
    static const char *const levels[] = {"debug", "info", "warn", "error"};
    struct config config;
    struct server s = {.config = &config};
    struct error err;
    int status;

    if (config_parse(argc, argv, &config, &err)) return cli_fail(&err) + 1;
    if (config.help) {
        printf("usage: inferd serve MODEL [options]\n");
        config_print_help(stdout);
        status = 0;
    } else if (!config.model) {
        fprintf(stderr, "inferd: serve needs a MODEL: a GGUF file, a Hugging Face folder or an id "
                        "(inferd serve --help)\n");
        status = 2;
    } else if (config.rest.count) {
        fprintf(stderr, "inferd: serve takes one model; '%.100s' is too many\n",
                config.rest.items[0]);
        status = 2;
    } else {
        for (int i = 0; i < 4; i++)
            if (strcmp(config.log_level, levels[i]) == 0) log_set_level((enum log_level)i);
        log_set_timestamps(config.log_timestamps);
        status = serve(&s, &err);
    }
    config_fini(&config);
    return status;
}
