/* frontend.c - makes and ends what the I/O and text threads share. */
#include "frontend/frontend.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "base/place.h"
#include "frontend/admin.h"
#include "frontend/call.h"
#include "frontend/io_thread.h"
#include "frontend/listen.h"
#include "frontend/tls.h"
#include "frontend/zmq.h"

static const uint64_t bodies_min = 256u << 20;

static bool uses_unix(const struct frontend_options *o)
{
    return o->uds && *o->uds;
}

/* A connection is a file descriptor: takes all that the hard limit allows, and says so when that is too few. */
static void raise_file_limit(struct frontend_options *o)
{
    const uint64_t others = 256; /* model files, epoll sets, lingering sockets, logs */
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    uint64_t wanted = o->connections_max + others;

    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) && getrlimit(RLIMIT_NOFILE, &limit)) return;
    if (limit.rlim_cur >= wanted) return;
    o->connections_max = limit.rlim_cur > 2 * others ? (uint32_t)(limit.rlim_cur - others)
                                                     : (uint32_t)(limit.rlim_cur / 2 + 1);
    log_warn("fewer connections",
             "connections=%u file_descriptors=%llu why=\"the hard limit, ulimit -Hn\"",
             o->connections_max, (unsigned long long)limit.rlim_cur);
}

static bool shares_socket(const struct frontend *f)
{
    return f->options.socket_fd || f->options.reuse_port;
}

static enum status open_socket(struct frontend *f, struct error *err)
{
    const struct frontend_options *o = &f->options;
    const char *host = o->host && *o->host ? o->host : "127.0.0.1";
    enum status st = STATUS_OK;

    if (o->socket_fd)
        f->listen_fd = o->socket_fd;
    else
        st = uses_unix(o) ? listen_unix(o->uds, 0, &f->listen_fd, err)
                          : listen_tcp(host, o->port, o->reuse_port, &f->listen_fd, &f->port, err);
    if (st) return st;
    f->port = listen_port(f->listen_fd);
    f->tcp = f->port != 0;
    f->accepting = !o->reuse_port && !o->listen_when_ready;
    return STATUS_OK;
}

static enum status start_all(struct frontend *f, struct error *err)
{
    const struct frontend_options *o = &f->options;
    struct place place;
    enum status st = o->tls_cert ? tls_load(o->tls_cert, o->tls_key, err) : STATUS_OK;

    if (!st) st = open_socket(f, err);
    if (!st) st = text_lanes_create(o->text_threads, call_run, &f->lanes, err);
    place_begin(&place, o->io_cpus);
    for (uint32_t i = 0; !st && i < o->io_threads; i++) {
        f->io_count++;
        st = io_create(f, &f->io[i], i, (o->connections_max + o->io_threads - 1) / o->io_threads,
                       err);
    }
    if (!st && o->zmq_endpoint_count) st = zmq_front_create(f, &f->zmq, err);
    place_end(&place);
    f->options.io_cpus = NULL; /* borrowed until here */
    if (!st && (o->admin_path || o->admin_fd)) st = admin_start(f, &f->admin, err); /* asks all */
    return st;
}

static uint64_t bodies_total(const struct frontend_options *o)
{
    uint64_t total = 16 * o->body_bytes_max;

    return total < bodies_min ? bodies_min : total;
}

/* What the options leave open. */
static void fill_defaults(struct frontend_options *o)
{
    if (!o->io_threads) o->io_threads = 1;
    if (!o->text_threads) o->text_threads = 1;
    if (!o->progress_timeout_s) o->progress_timeout_s = 30;
    if (!o->body_timeout_s) o->body_timeout_s = o->header_timeout_s;
}

enum status frontend_start(const struct frontend_options *options, struct frontend **out,
                           struct error *err)
{
    struct frontend *f = calloc(1, sizeof *f);

    if (!f) return error_set(err, STATUS_NOMEM, "no memory for the front end");
    f->options = *options;
    f->listen_fd = -1;
    fill_defaults(&f->options);
    pthread_mutex_init(&f->lock, NULL);
    f->body_bytes = bodies_total(options);
    f->bodies = share_create();
    f->answers = share_create();
    f->stats = http_stats_create();
    f->io = calloc(f->options.io_threads, sizeof *f->io);
    f->addresses = address_count_create();
    f->settings_now = settings_create(&f->options);
    f->settings_newest = f->settings_now;
    enum status st = f->stats && f->io && f->addresses && f->bodies && f->answers && f->settings_now
                         ? STATUS_OK
                         : error_set(err, STATUS_NOMEM, "no memory for the front end");

    signal(SIGPIPE, SIG_IGN);
    raise_file_limit(&f->options);
    *out = f; /* the operator's orders may come before this returns */
    if (!st) st = start_all(f, err);
    if (st) {
        *out = NULL;
        frontend_stop(f);
        return st;
    }
    return STATUS_OK;
}

uint16_t frontend_port(const struct frontend *f)
{
    return f->port;
}

static void wake_all(struct frontend *f)
{
    for (uint32_t i = 0; i < f->io_count; i++)
        io_wake(&f->io[i]);
}

enum status frontend_set_ready(struct frontend *f, struct engine *engine,
                               const struct api_model *model, struct error *err)
{
    enum status st = f->options.reuse_port ? listen_start(f->listen_fd, err) : STATUS_OK;

    if (st) return st;
    f->model = *model;
    api_model_prepare(&f->model);
    atomic_store(&f->engine, engine); /* readers look at it first */
    if (!atomic_load(&f->draining)) atomic_store(&f->accepting, true);
    wake_all(f);
    return STATUS_OK;
}

void frontend_set_progress(struct frontend *f, const char *phase, unsigned percent)
{
    pthread_mutex_lock(&f->lock);
    snprintf(f->loading.phase, sizeof f->loading.phase, "%s", phase);
    f->loading.percent = percent;
    pthread_mutex_unlock(&f->lock);
}

enum status frontend_reload(struct frontend *f, const struct frontend_options *options,
                            bool *other_zmq_key, struct error *err)
{
    struct frontend_options merged = *options;

    fill_defaults(&merged);
    struct settings *settings = settings_create(&merged), *old;

    if (!settings) return error_set(err, STATUS_NOMEM, "no memory for the new settings");
    struct zmq_auth *auth = f->zmq ? f->zmq->auth : NULL;
    struct zmq_clients *clients = NULL;
    enum status st = auth ? zmq_auth_read(auth, &f->options, &clients, err) : STATUS_OK;

    *other_zmq_key = auth && !st && !zmq_auth_has_key(auth, f->options.zmq_server_key_file);
    if (!st && f->options.tls_cert) st = tls_load(f->options.tls_cert, f->options.tls_key, err);
    if (st) zmq_auth_drop(clients);
    if (st) {
        settings_unref(settings);
        return st;
    }
    if (clients) zmq_auth_take(auth, clients);
    if (f->options.tls_cert) log_info("certificate read", "tls_cert=\"%s\"", f->options.tls_cert);
    pthread_mutex_lock(&f->lock);
    old = f->settings_now;
    f->settings_now = settings;
    atomic_store(&f->settings_newest, settings);
    atomic_store(&f->body_bytes, bodies_total(options));
    pthread_mutex_unlock(&f->lock);
    settings_unref(old);
    wake_all(f);
    return STATUS_OK;
}

void frontend_drain(struct frontend *f)
{
    if (f->options.socket_fd) atomic_store(&f->accepting, false);
    if (f->options.reuse_port) listen_steer_away(f->listen_fd);
    atomic_store(&f->draining, true);
    wake_all(f);
}

void frontend_refuse(struct frontend *f)
{
    if (f->options.reuse_port) listen_steer_away(f->listen_fd);
    atomic_store(&f->leaving, true);
    if (shares_socket(f))
        atomic_store(&f->accepting, false);
    else
        atomic_store(&f->refusing, true);
    wake_all(f);
}

void frontend_resume(struct frontend *f)
{
    if (f->options.reuse_port) listen_steer_back(f->listen_fd);
    atomic_store(&f->draining, false);
    atomic_store(&f->refusing, false);
    atomic_store(&f->leaving, false);
    /* else frontend_set_ready does it: a socket that does not listen yet must not be watched */
    if (atomic_load(&f->engine) || !(f->options.listen_when_ready || f->options.reuse_port))
        atomic_store(&f->accepting, true);
    wake_all(f);
}

uint32_t frontend_busy(const struct frontend *f)
{
    return atomic_load(&f->busy);
}

void frontend_settle(struct frontend *f)
{
    struct engine *engine = atomic_load(&f->engine);

    if (engine) engine_settle(engine);
}

void frontend_remove_files(const struct frontend *f)
{
    if (uses_unix(&f->options) && !f->options.socket_fd && f->listen_fd >= 0)
        unlink(f->options.uds);
    if (f->admin) admin_remove_file(f->admin);
    if (f->zmq) zmq_listen_remove_files(f->zmq);
}

void frontend_stop(struct frontend *f)
{
    if (!f) return;
    admin_stop(f->admin);
    atomic_store(&f->draining, true);
    atomic_store(&f->refusing, true);
    for (uint32_t i = 0; i < f->io_count; i++)
        io_stop(&f->io[i]);
    zmq_front_stop(f->zmq);
    for (uint32_t i = 0; i < f->io_count; i++)
        io_join(&f->io[i]);
    frontend_settle(f); /* the engine may be about to ring a bell of theirs */
    for (uint32_t i = 0; i < f->io_count; i++)
        io_destroy(&f->io[i]);
    zmq_front_destroy(f->zmq);
    text_lanes_destroy(&f->lanes);
    if (f->listen_fd >= 0) close(f->listen_fd);
    if (uses_unix(&f->options) && !f->options.socket_fd && f->listen_fd >= 0)
        unlink(f->options.uds);
    if (f->options.tls_cert) tls_unload();
    settings_unref(f->settings_now);
    address_count_destroy(f->addresses);
    share_destroy(f->bodies);
    share_destroy(f->answers);
    pthread_mutex_destroy(&f->lock);
    free(f->io);
    http_stats_destroy(f->stats);
    free(f);
}
