/* serve.c - `inferd serve MODEL`: makes every module in the order of a request and ends them in reverse.
 *
 *     options -> frontend (listens: /health 200, /ready 503 loading) -> weights -> tokenizer, chat -> device -> model, plan
 *     -> limits, memory plan -> compile -> engine -> frontend ready
 *     SIGHUP -> reload (reload.h)
 *     SIGTERM, SIGINT, SIGQUIT, SIGXCPU -> drain: no new work, running requests finish -> frontend stops -> engine -> device -> ... -> exit 0
 *     a second one or the end of --shutdown-timeout-s -> streams end with an error event -> the same
 *
 * Exit status: 0 stopped as asked; 1 could not start; 2 wrong usage; 3 the device or engine was lost while serving.
 * Threads: main waits for signals; the model loads on a thread of its own, so that a signal while loading ends it. */
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
#include "base/hash.h"
#include "base/log.h"
#include "cli/check.h"
#include "cli/cli.h"
#include "cli/io_cpus.h"
#include "cli/keys.h"
#include "cli/load.h"
#include "cli/observe_setup.h"
#include "cli/reload.h"
#include "cli/service.h"
#include "frontend/frontend.h"

enum { EXIT_LOST = 3, LOADING_LOG_MS = 1000 };
static const int64_t LOST_NS =
    5000000000; /* a lost device whose engine does not end: it hangs in the driver */

struct server {
    const struct config *config;
    struct loaded loaded;
    struct frontend *frontend;
    struct api_model model;
    struct metrics_model served; /* what labels tell of it */
    struct tracer *tracer;       /* NULL: no traces */
    struct systemd systemd;
    struct service service;
    struct reload reload;
    const char *names_one[1];
    char fingerprint[32];
    int64_t started_ns, logged_ns;
    int64_t lost_since_ns; /* the device; 0: it is well */
    bool stuck;            /* lost, and the engine says nothing */
    pthread_t loader;
    bool loader_joined;
    _Atomic int load_state; /* 0 loading, 1 loaded, 2 failed */
    struct error load_error;
    pthread_mutex_t progress_lock;
    bool
        stopping; /* under progress_lock: the front end hears no more of loading, it is being taken apart */
    _Atomic bool stop_asked; /* by the operator's socket */
    _Atomic bool ending;     /* a stop was asked for: a drain is not taken back any more */
};

/* Whose socket files would stay behind when a signal handler ends the process. */
static struct frontend *_Atomic bus_frontend;

/* Why it does not serve: where the log is for machines, as a line of it. */
static void tell_failure(const struct error *err)
{
    char quoted[1024];

    if (log_is_plain())
        cli_fail(err);
    else
        log_error("start failed", "reason=%s",
                  log_quote(slice_str(err->message), quoted, sizeof quoted));
}

static void log_progress(void *ctx, const char *phase, uint64_t done, uint64_t total)
{
    struct server *s = ctx;
    unsigned percent = total ? (unsigned)(done * 100 / total) : 0;
    int64_t now = clock_mono_ns();

    pthread_mutex_lock(&s->progress_lock);
    if (!s->stopping) frontend_set_progress(s->frontend, phase, percent);
    pthread_mutex_unlock(&s->progress_lock);
    service_loading(&s->service, phase, percent);
    if (now - s->logged_ns < (int64_t)LOADING_LOG_MS * 1000000) return;
    s->logged_ns = now;
    log_info("loading", "phase=\"%s\" percent=%u", phase, percent);
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

/* A model that is not there is told before anything listens. */
static enum status check_model(const struct config *config, struct error *err)
{
    char *path = NULL;
    enum status st = config_resolve_model(config->model, &path, err);

    free(path);
    return st;
}

/* --- the operator's socket: on its thread --- */

static void order_drain(void *ctx, bool stop)
{
    struct server *s = ctx;

    log_info("drain asked for by the operator", "stop=%d", stop);
    if (stop) {
        atomic_store(&s->stop_asked, true);
        kill(getpid(), SIGCHLD); /* wakes the main thread */
        return;
    }
    frontend_refuse(s->frontend); /* first: whom /ready has told is not served after it */
    frontend_drain(s->frontend);
}

static bool order_resume(void *ctx)
{
    struct server *s = ctx;

    if (atomic_load(&s->ending)) return false;
    log_info("resumed by the operator", "%s", "");
    frontend_resume(s->frontend);
    return true;
}

static bool order_reload(void *ctx, struct buf *report)
{
    struct server *s = ctx;

    return reload_run(&s->reload, s->frontend, report);
}

static bool order_log_level(void *ctx, const char *level)
{
    (void)ctx;
    return log_set_level_named(level);
}

/* --- starting --- */

static void log_listening(const struct server *s)
{
    const struct config *c = s->config;
    const char *when = c->reuse_port || c->listen_when_ready ? " when=ready" : "";
    unsigned port = frontend_port(s->frontend);
    char quoted[512];
    bool v6 = strchr(c->host, ':') != NULL; /* in brackets, or the URL's port would be part of it */

    if (port)
        log_info("listening", "url=http%s://%s%s%s:%u%s", c->tls_cert ? "s" : "", v6 ? "[" : "",
                 c->host, v6 ? "]" : "", port, when);
    else
        log_info("listening", "uds=%s%s",
                 c->uds ? log_quote(slice_str(c->uds), quoted, sizeof quoted) : "inherited", when);
    if (c->admin_socket)
        log_info("listening", "admin=%s",
                 log_quote(slice_str(c->admin_socket), quoted, sizeof quoted));
}

/* A name that we do not know would be a port that nobody answers at. */
static void log_unused_sockets(const struct systemd *systemd)
{
    static const char *const known[] = {"http", "inferd.socket", "admin"};

    for (uint32_t i = 0; i < systemd->fd_count; i++) {
        bool used = false;

        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            used |= strcmp(systemd->fds[i].name, known[k]) == 0;
        if (!used)
            log_warn("inherited socket not used",
                     "name=\"%s\" why=\"FileDescriptorName= must be http or admin\"",
                     systemd->fds[i].name);
    }
}

static enum status start_frontend(struct server *s, struct error *err)
{
    const struct config *c = s->config;
    struct keys keys;
    cpu_set_t io_set;
    const cpu_set_t *io_cpus;
    int http = systemd_socket(&s->systemd, "http"), admin = systemd_socket(&s->systemd, "admin");

    if (http < 0) http = systemd_socket(&s->systemd, "inferd.socket"); /* the name without one */
    struct frontend_options options = {
        .host = c->host,
        .port = (uint16_t)c->port,
        .uds = c->uds,
        .web_page = c->web_page,
        .socket_fd = http > 0 ? http : 0,
        .reuse_port = c->reuse_port,
        .listen_when_ready = c->listen_when_ready,
        .tls_cert = c->tls_cert,
        .tls_key = c->tls_key,
        .admin_path = c->admin_socket,
        .admin_fd = admin > 0 ? admin : 0,
        .operator= {s, order_drain, order_resume, order_reload, order_log_level},
        .connections_max = (uint32_t)c->max_connections,
        .progress_timeout_s = (uint32_t)c->progress_timeout_s,
        .io_threads = (uint32_t)c->io_threads,
        .text_threads = (uint32_t)c->text_threads,
        .vllm_metrics = c->vllm_metrics,
        .log_prompts = c->log_prompts,
        .tracer = s->tracer,
        .served = &s->served,
        .zmq_endpoints = c->zmq_listen.items,
        .zmq_endpoint_count = c->zmq_listen.count,
        .zmq_server_key_file = c->zmq_server_key_file,
        .zmq_client_keys_file = c->zmq_client_keys_file,
        .version = INFERD_VERSION,
    };
    enum status st = io_cpus_read(c, &io_set, &io_cpus, err);

    if (!st) st = keys_read(c, s->systemd.credentials, &keys, err);
    if (st) return st;
    options.io_cpus = io_cpus;
    reload_fill(c, &options);
    options.api_keys = keys.items;
    options.api_key_count = keys.count;
    s->reload.had_keys = keys.count > 0;
    st = frontend_start(&options, &s->frontend, err);
    keys_fini(&keys);
    if (!st) atomic_store(&bus_frontend, s->frontend);
    if (!st) log_listening(s);
    log_unused_sockets(&s->systemd);
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
 * any more; only calls that are safe in a signal handler, so the line was made before (without the time). */
static char bus_line[LOG_LINE_MAX];
static size_t bus_line_len;

static void on_bus_error(int signal_number)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;

    (void)signal_number;
    if (atomic_flag_test_and_set(&told))
        for (;;) /* another thread has met it too, and ends the process */
            pause();
    struct frontend *frontend = atomic_load(&bus_frontend);

    if (frontend) frontend_remove_files(frontend);
    if (write(STDERR_FILENO, bus_line, bus_line_len) < 0) _exit(EXIT_LOST);
    _exit(EXIT_LOST);
}

static void watch_bus_errors(const struct config *c)
{
    log_set_timestamps(0);
    bus_line_len = log_line(
        LOG_ERROR, "engine lost",
        "reason=\"a model file was cut short or cannot be read while it is served\"", bus_line);
    observe_setup_log(c);
    signal(SIGBUS, on_bus_error);
}

/* Everything that an answer needs is there. */
static enum status become_ready(struct server *s, struct error *err)
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
        .request_metrics = c->enable_per_request_metrics,
    };
    observe_describe(c, l, s->model.names[0], &s->served);
    enum status st = frontend_set_ready(s->frontend, l->engine, &s->model, err);
    char quoted[512];

    if (st) return st;
    service_ready(&s->service, s->model.names[0]);
    log_info("ready", "model=%s arch=\"%s\" device=\"%s\" load_ms=%.0f",
             log_quote(slice_str(s->model.names[0]), quoted, sizeof quoted),
             model_description(l->model), device_description(l->device),
             (double)(clock_mono_ns() - s->started_ns) * 1e-6);
    return STATUS_OK;
}

/* The next of our signals, or 0 when none came in the time given. */
static int wait_signal(const sigset_t *signals, int ms)
{
    struct timespec timeout = {ms / 1000, (long)(ms % 1000) * 1000000};
    int got = sigtimedwait(signals, NULL, &timeout);

    return got < 0 ? 0 : got;
}

/* Asks the engine for a sign of life and hands it on. False: it has none. */
static bool check_engine(struct server *s)
{
    struct engine_stats stats;

    engine_probe(s->loaded.engine);
    engine_stats(s->loaded.engine, &stats);
    if (stats.alive) {
        service_alive(&s->service, stats.last_progress_ns,
                      (int64_t)s->config->progress_timeout_s * 1000000000);
        return true;
    }
    log_error("engine lost", "reason=\"%s\"", stats.dead_reason ? stats.dead_reason : "unknown");
    return false;
}

static bool is_stop(int got)
{
    return got == SIGTERM || got == SIGINT || got == SIGQUIT || got == SIGXCPU;
}

/* Then clients may still send on connections that they keep, and are not to be cut in the middle of it. */
static bool shares_socket(const struct server *s)
{
    return s->config->reuse_port || s->systemd.fd_count;
}

/* Waits until the time is up or, with `until_idle`, nothing is under way. True: a signal ends it at once. */
static bool drain_until(struct server *s, const sigset_t *signals, int64_t until, bool until_idle)
{
    const int64_t quiet_ns = shares_socket(s) ? 200000000 : 0;
    int64_t checked_ns = 0, busy_ns = clock_mono_ns();

    while (clock_mono_ns() < until) {
        if (frontend_busy(s->frontend)) busy_ns = clock_mono_ns();
        if (until_idle && clock_mono_ns() - busy_ns >= quiet_ns && !frontend_busy(s->frontend))
            return false;
        if (is_stop(wait_signal(signals, 20))) return true;
        if (clock_mono_ns() - checked_ns < (int64_t)service_period_ms(&s->service) * 1000000)
            continue;
        checked_ns = clock_mono_ns();
        service_draining(&s->service, frontend_busy(s->frontend));
        check_engine(s);
    }
    return false;
}

/* For the grace all goes on, so that balancers see /ready and clients move; then running requests may finish. A second
 * signal or the end of the time ends them. */
static void drain(struct server *s, const sigset_t *signals)
{
    const int64_t second_ns = 1000000000;
    int64_t now = clock_mono_ns();
    uint64_t grace_s, shutdown_s;

    atomic_store(&s->ending, true);
    reload_drain_times(&s->reload, &grace_s, &shutdown_s);
    log_info("draining", "busy=%u grace_s=%llu timeout_s=%llu", frontend_busy(s->frontend),
             (unsigned long long)grace_s, (unsigned long long)shutdown_s);
    service_stopping(&s->service);
    /* first, with no grace: nobody whom /ready has told of the drain is served after it */
    if (!grace_s) frontend_refuse(s->frontend);
    frontend_drain(s->frontend);
    now += (int64_t)grace_s * second_ns;
    if (drain_until(s, signals, now, false)) return;
    frontend_refuse(s->frontend);
    drain_until(s, signals, now + (int64_t)shutdown_s * second_ns, true);
}

/* Before READY the service manager hears nothing of it: the READY=1 after a reload would be taken for the first one. */
static void reload(struct server *s, bool ready)
{
    if (ready) service_reloading(&s->service);
    reload_run(&s->reload, s->frontend, NULL);
    if (ready) service_reloaded(&s->service, s->model.names[0]);
}

/* The device has been lost for LOST_NS, and the engine's thread says nothing: it hangs in the driver. */
static bool engine_is_stuck(struct server *s)
{
    struct device_health health = device_health(s->loaded.device);
    int64_t now = clock_mono_ns();

    if (health.ok) s->lost_since_ns = 0;
    if (health.ok) return false;
    if (!s->lost_since_ns) s->lost_since_ns = now;
    s->stuck = now - s->lost_since_ns > LOST_NS;
    if (s->stuck)
        log_error("engine lost", "reason=\"%s\" engine=\"does not answer\"", health.reason);
    return s->stuck;
}

/* Once it has told how loading ended; once more is nothing. */
static void join_loader(struct server *s)
{
    if (!s->loader_joined) pthread_join(s->loader, NULL);
    s->loader_joined = true;
}

/* Waits for a signal, or for the end of loading or of the engine. Returns the exit status. */
static int serve_until_told(struct server *s, const sigset_t *signals)
{
    bool ready = false;

    for (;;) {
        int got = wait_signal(signals, service_period_ms(&s->service));
        if (is_stop(got) || atomic_load(&s->stop_asked)) break;
        if (s->load_state == 1 && !ready) {
            ready = true;
            join_loader(s);
            if (become_ready(s, &s->load_error)) s->load_state = 2;
        }
        if (s->load_state == 2) {
            tell_failure(&s->load_error);
            return 1;
        }
        if (got == SIGHUP) reload(s, ready);
        if (!ready) continue;
        if (!check_engine(s)) {
            sleep(1); /* so that the last requests hear of it, and /health is seen to be 503 */
            return EXIT_LOST;
        }
        if (engine_is_stuck(s)) return EXIT_LOST;
    }
    if (ready) drain(s, signals);
    return 0;
}

enum engine_end { ENGINE_ANSWERS, ENGINE_SILENT, END_AT_ONCE };

/* Whether the engine, with nothing left to do, answers a probe within the time that a step may take, or a signal asks for an end at once. */
static enum engine_end ask_engine(struct server *s, const sigset_t *signals)
{
    int64_t asked = clock_mono_ns();
    int64_t until = asked + (int64_t)s->config->progress_timeout_s * 1000000000;
    struct engine_stats stats;

    while (s->loaded.engine && clock_mono_ns() < until) {
        engine_probe(s->loaded.engine);
        engine_stats(s->loaded.engine, &stats);
        if (!stats.alive || stats.last_progress_ns >= asked) return ENGINE_ANSWERS;
        if (is_stop(wait_signal(signals, 10))) return END_AT_ONCE;
    }
    return s->loaded.engine ? ENGINE_SILENT : ENGINE_ANSWERS;
}

/* The loading thread may still be at it. */
static void stop_frontend(struct server *s)
{
    pthread_mutex_lock(&s->progress_lock);
    s->stopping = true;
    pthread_mutex_unlock(&s->progress_lock);
    atomic_store(&bus_frontend, NULL);
    frontend_stop(s->frontend);
    s->frontend = NULL;
}

/* Those of a timer, a user, a limit: left alone they would end the process in the middle, and its socket files would stay. Whoever has a
 * handler for one (a profiler that was loaded before us) keeps it. */
static void ignore_signal(int number)
{
    struct sigaction now;

    if (!sigaction(number, NULL, &now) && !(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL)
        signal(number, SIG_IGN);
}

/* Inherited by every thread: main alone takes them, when it waits for them. */
static void block_signals(sigset_t *signals)
{
    static const int ours[] = {SIGTERM, SIGINT, SIGQUIT, SIGXCPU, SIGCHLD, SIGHUP};
    static const int nobodys[] = {SIGPIPE, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM,
                                  SIGPROF, SIGXFSZ, SIGIO,   SIGPWR,  SIGSTKFLT};

    sigemptyset(signals);
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        sigaddset(signals, ours[i]);
    pthread_sigmask(SIG_BLOCK, signals, NULL);
    for (size_t i = 0; i < sizeof nobodys / sizeof *nobodys; i++)
        ignore_signal(nobodys[i]);
    for (int i = SIGRTMIN; i <= SIGRTMAX; i++)
        ignore_signal(i);
}

static int serve(struct server *s, struct error *err)
{
    sigset_t signals;
    int status = 1, fault;

    watch_bus_errors(s->config);
    block_signals(&signals);
    s->started_ns = s->logged_ns = clock_mono_ns();
    if (check_model(s->config, err) || observe_open_tracer(s->config, &s->tracer, err) ||
        start_frontend(s, err)) {
        tell_failure(err);
    } else if ((fault = pthread_create(&s->loader, NULL, load_thread, s))) {
        error_set(err, STATUS_NOMEM, "no thread for loading: %s", strerror(fault));
        tell_failure(err);
    } else {
        status = serve_until_told(s, &signals);
        if (status == EXIT_LOST) {
            /* A device that hangs would hold every call that ends it; nothing outlives the process. */
            if (s->stuck) {
                frontend_remove_files(s->frontend);
            } else {
                stop_frontend(s);
                tracer_destroy(
                    s->tracer); /* the requests that it took along are the ones to be seen */
            }
            log_info("stopped", "status=%d", status);
            fflush(NULL);
            _exit(status);
        }
        stop_frontend(s);
        if (!s->load_state) {
            log_info("stopped while loading", "%s", "");
            pthread_detach(s->loader); /* it holds what it holds; nothing outlives the process */
            _exit(0);
        }
        join_loader(s);
        enum engine_end end = ask_engine(s, &signals);

        if (end != ENGINE_ANSWERS) { /* it cannot be joined; nothing outlives the process */
            if (end == ENGINE_SILENT) {
                log_error("engine lost", "reason=\"it does not end\"%s", "");
                status = EXIT_LOST;
            }
            tracer_destroy(s->tracer);
            log_info("stopped", "status=%d", status);
            fflush(NULL);
            _exit(status);
        }
        load_close(&s->loaded);
        log_info("stopped", "status=%d", status);
    }
    stop_frontend(s);
    tracer_destroy(s->tracer);
    service_close(&s->service);
    return status;
}

static enum status check_usage(const struct config *config, struct error *err)
{
    if (!config->model)
        return error_set(err, STATUS_INVALID,
                         "serve needs a MODEL: a GGUF file, a Hugging Face folder or an id "
                         "(inferd serve --help)");
    if (config->rest.count)
        return error_set(err, STATUS_INVALID, "serve takes one model; '%.100s' is too many",
                         config->rest.items[0]);
    return check_options(config, err);
}

static void warn_of_variable(const char *name)
{
    log_warn("environment variable not used", "name=%s why=\"there is no such option\"", name);
}

int cli_serve(int argc, char **argv)
{
    struct config config;
    struct server s = {.config = &config, .progress_lock = PTHREAD_MUTEX_INITIALIZER};
    struct error err;
    sigset_t signals;
    char form[64];
    int status;

    block_signals(
        &signals); /* before anything else: one that comes early is heard later, and kills nobody */
    if (config_parse(argc, argv, &config, &err)) {
        observe_setup_form(config_peek(argc, argv, "log_format", form));
        tell_failure(&err);
        return 2;
    }
    if (config.help) {
        printf("usage: inferd serve MODEL [options]\n");
        config_print_help(stdout);
        status = 0;
    } else if (observe_setup_log(&config), check_usage(&config, &err)) {
        tell_failure(&err);
        status = 2;
    } else {
        config_unknown_variables(warn_of_variable);
        systemd_read(&s.systemd);
        service_open(&s.service, &s.systemd);
        reload_init(&s.reload, argc, argv, &config, s.systemd.credentials);
        status = serve(&s, &err);
        reload_fini(&s.reload);
    }
    config_fini(&config);
    return status;
}
