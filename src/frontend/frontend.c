/* frontend.c - makes and ends what the I/O and text threads share. */
#include "frontend/frontend.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "frontend/call.h"
#include "frontend/io_thread.h"
#include "frontend/listen.h"
#include "frontend/zmq.h"

enum { TEXT_QUEUE_MAX = 4096, LONG_QUEUE_MAX = 256 };
static const uint64_t bodies_min = 256u << 20;

static bool uses_unix(const struct frontend_options *o)
{
    return o->uds && *o->uds;
}

/* A connection is a file descriptor: takes as many as the hard limit allows, and says so when that is too few. */
static void raise_file_limit(struct frontend_options *o)
{
    const uint64_t others = 256; /* model files, epoll sets, lingering sockets, logs */
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    uint64_t wanted = o->connections_max + others;

    if (limit.rlim_cur < wanted) {
        limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
        if (setrlimit(RLIMIT_NOFILE, &limit)) return;
    }
    if (limit.rlim_cur >= wanted) return;
    o->connections_max = limit.rlim_cur > 2 * others ? (uint32_t)(limit.rlim_cur - others)
                                                     : (uint32_t)(limit.rlim_cur / 2 + 1);
    log_warn("fewer connections",
             "connections=%u file_descriptors=%llu why=\"the hard limit, ulimit -Hn\"",
             o->connections_max, (unsigned long long)limit.rlim_cur);
}

static enum status start_all(struct frontend *f, struct error *err)
{
    const struct frontend_options *o = &f->options;
    const char *host = o->host && *o->host ? o->host : "127.0.0.1";
    enum status st = uses_unix(o) ? listen_unix(o->uds, &f->listen_fd, err)
                                  : listen_tcp(host, o->port, &f->listen_fd, &f->port, err);

    if (!st) st = text_pool_create(o->text_threads, TEXT_QUEUE_MAX, call_run, &f->pool, err);
    if (!st) st = text_pool_create(1, LONG_QUEUE_MAX, call_run, &f->long_pool, err);
    for (uint32_t i = 0; !st && i < o->io_threads; i++) {
        f->io_count++;
        st = io_create(f, &f->io[i], i, (o->connections_max + o->io_threads - 1) / o->io_threads,
                       err);
    }
    if (!st && o->zmq_endpoint_count) st = zmq_front_create(f, &f->zmq, err);
    return st;
}

enum status frontend_start(const struct frontend_options *options, struct frontend **out,
                           struct error *err)
{
    struct frontend *f = calloc(1, sizeof *f);

    if (!f) return error_set(err, STATUS_NOMEM, "no memory for the front end");
    f->options = *options;
    f->listen_fd = -1;
    if (!f->options.io_threads) f->options.io_threads = 1;
    if (!f->options.text_threads) f->options.text_threads = 1;
    f->body_bytes_total = 16 * options->body_bytes_max;
    if (f->body_bytes_total < bodies_min) f->body_bytes_total = bodies_min;
    f->stats = calloc(1, sizeof *f->stats);
    f->io = calloc(f->options.io_threads, sizeof *f->io);
    enum status st =
        f->stats && f->io ? STATUS_OK : error_set(err, STATUS_NOMEM, "no memory for the front end");

    signal(SIGPIPE, SIG_IGN);
    raise_file_limit(&f->options);
    if (!st) st = start_all(f, err);
    if (st) {
        frontend_stop(f);
        return st;
    }
    *out = f;
    return STATUS_OK;
}

const char *frontend_zmq_endpoint(const struct frontend *f, uint32_t i)
{
    return f->zmq->endpoints[i];
}

uint16_t frontend_port(const struct frontend *f)
{
    return f->port;
}

void frontend_set_ready(struct frontend *f, struct engine *engine, const struct api_model *model)
{
    f->model = *model;
    api_model_prepare(&f->model);
    atomic_store(&f->engine, engine); /* readers look at it first */
}

void frontend_drain(struct frontend *f)
{
    atomic_store(&f->draining, true);
}

uint32_t frontend_busy(const struct frontend *f)
{
    return atomic_load(&f->busy);
}

void frontend_stop(struct frontend *f)
{
    if (!f) return;
    atomic_store(&f->draining, true);
    for (uint32_t i = 0; i < f->io_count; i++)
        io_stop(&f->io[i]);
    zmq_front_stop(f->zmq);
    for (uint32_t i = 0; i < f->io_count; i++)
        io_destroy(&f->io[i]);
    zmq_front_destroy(f->zmq);
    text_pool_destroy(f->pool);
    text_pool_destroy(f->long_pool);
    if (f->listen_fd >= 0) close(f->listen_fd);
    if (uses_unix(&f->options) && f->listen_fd >= 0) unlink(f->options.uds);
    free(f->io);
    free(f->stats);
    free(f);
}
