/* frontend.h - sockets, connections, streaming. The door of src/frontend.
 *
 * Threads: `io_threads` I/O threads, each with an epoll loop, a libmicrohttpd daemon of its own in external mode and a
 * share of the connections; `text_threads` text threads that parse, render and tokenise (all but short prompts: a long
 * prompt must not stall other streams), and one more for each lane of long texts (text_pool.h). A request's life:
 *
 *     I/O thread            text pool                engine             I/O thread
 *     read ─► suspend ─►  api_open, engine_submit ─► outputs, bell ─► api_stream ─► resume, send
 *
 * The daemon listens before the model is loaded: frontend_start comes first (/health 200, /ready 503, everything else
 * 503 model_loading), frontend_set_ready when engine and model are there.
 * Life: start -> set_ready -> drain -> (busy falls to 0, or time is up) -> stop -> then engine_destroy.
 * Thread: all functions from the owner's one thread, frontend_busy from any. */
#pragma once

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/api.h"
#include "base/buf.h"
#include "base/status.h"
#include "engine/engine.h"

struct frontend; /* opaque */
struct tracer;
struct metrics_model;

/* What the operator's socket asks of the owner. Called on its thread, one at a time. */
struct frontend_operator {
    void *ctx;
    void (*drain)(void *ctx, bool stop); /* stop: as SIGTERM; else until resume */
    bool (*resume)(void *ctx);           /* false: the process is ending */
    bool (*reload)(void *ctx,
                   struct buf *report); /* JSON of what has changed, or an error's body */
    bool (*log_level)(void *ctx, const char *level); /* false: there is no such level */
};

/* Strings are borrowed until frontend_stop. */
struct frontend_options {
    const char *host; /* address to listen on; NULL or "": 127.0.0.1 */
    uint16_t port;    /* 0: any free one (frontend_port tells) */
    const char *uds;  /* path of a unix socket to listen on instead of TCP; NULL or "": none */
    int socket_fd;    /* a socket that listens already, from the service manager; 0: none. Taken */
    bool reuse_port;  /* SO_REUSEPORT; listens when ready */
    bool listen_when_ready;
    const char *tls_cert, *tls_key; /* PEM files; NULL: HTTP */
    const char *admin_path;         /* the operator's unix socket; NULL: none */
    int admin_fd;                   /* the same from the service manager; 0: none. Taken */
    struct frontend_operator operator;

    /* --- frontend_reload takes these anew --- */
    const char *const *api_keys; /* [api_key_count] */
    uint32_t api_key_count;      /* 0: no key is asked for */
    bool cors;
    uint64_t body_bytes_max; /* of one body; all bodies at once: 16 times that, at least 256 MiB */
    uint32_t address_connections_max; /* of one address; 0: no limit */
    uint32_t header_timeout_s;        /* incomplete head, or nothing at all */
    uint32_t body_timeout_s;          /* incomplete body */
    uint32_t idle_timeout_s;          /* keep-alive connection without a request */
    uint32_t client_stall_s;          /* a client that reads nothing of its answer */
    struct api_limits limits;

    /* --- and these not --- */
    bool web_page; /* the page at / */
    uint32_t
        progress_timeout_s; /* of an engine without progress; 0: 30. The owner probes an idle one */
    uint32_t connections_max; /* over all I/O threads */
    uint32_t io_threads, text_threads;
    const cpu_set_t *
        io_cpus; /* processors of I/O and ZeroMQ's threads; NULL: any. Read by frontend_start alone */
    bool vllm_metrics;     /* /metrics under vLLM's names too */
    bool log_prompts;      /* the text of each prompt goes to the log */
    struct tracer *tracer; /* where requests are reported as traces; NULL: nowhere */
    const struct metrics_model
        *served; /* what labels tell; filled before frontend_set_ready; NULL: nothing */
    const char *const
        *zmq_endpoints;          /* [zmq_endpoint_count] "tcp://127.0.0.1:5555", "ipc:///run/x" */
    uint32_t zmq_endpoint_count; /* 0: no ZeroMQ */
    const char
        *zmq_server_key_file; /* CURVE secret key; NULL or "": connections are in the clear */
    const char *zmq_client_keys_file; /* public keys of the clients; NULL or "": any client */
    const char *version;              /* "0.1.0" */
    const char *commit;               /* NULL: not told */
};

/* Whether a ZeroMQ endpoint can be listened on at all: "tcp://HOST:PORT" or "ipc://PATH". Errors: STATUS_INVALID, saying what would be
 * right. */
enum status frontend_check_endpoint(const char *endpoint, struct error *err);

/* Binds, listens (unless that waits for set_ready), starts the threads. Errors: STATUS_IO with address and port in the sentence (a taken port too, before
 * anything else is done), STATUS_NOMEM, STATUS_INVALID (host is no address). */
enum status frontend_start(const struct frontend_options *options, struct frontend **out,
                           struct error *err);
/* The TCP port in use, 0 for a unix socket. */
uint16_t frontend_port(const struct frontend *frontend);

/* From here on requests are answered. The engine and what *model points to are borrowed until frontend_stop. Once.
 * Errors: STATUS_IO, where listening waited for this. */
enum status frontend_set_ready(struct frontend *frontend, struct engine *engine,
                               const struct api_model *model, struct error *err);

/* For /ready while loading. phase is copied. Any thread. */
void frontend_set_progress(struct frontend *frontend, const char *phase, unsigned percent);
/* Takes the reloadable members of *options, keys and the content of the TLS files and of the list of ZeroMQ clients' keys; no
 * connection is dropped. Requests under way keep the limits that they came with. On an error nothing has changed. *other_zmq_key:
 * the file of the server's own CURVE key has not the one in force any more, which takes a restart and is logged. Any thread, one at a
 * time. */
enum status frontend_reload(struct frontend *frontend, const struct frontend_options *options,
                            bool *other_zmq_key, struct error *err);

/* /ready turns 503; a socket that another daemon shares is left to it; until frontend_refuse (with such a socket also after
 * it) each answer is the last of its connection. */
void frontend_drain(struct frontend *frontend);
/* New generation requests get 503 server_draining from here on; running ones go on. After frontend_drain, or just before it
 * where there is no grace: then all whom /ready tells are refused. Where another daemon shares the socket no new connection
 * is taken instead, and those that are there are served once more each. */
void frontend_refuse(struct frontend *frontend);
/* Takes both back. */
void frontend_resume(struct frontend *frontend);
/* Requests that have been read whole and are being computed or sent. */
uint32_t frontend_busy(const struct frontend *frontend);

enum { ZMQ_KEY_TEXT = 40 }; /* characters of a CURVE key: Z85 of 32 bytes */
/* A new pair of CURVE keys, each with its NUL. Errors: STATUS_UNSUPPORTED (a libzmq without CURVE). */
enum status frontend_make_zmq_keys(char public_text[ZMQ_KEY_TEXT + 1],
                                   char secret_text[ZMQ_KEY_TEXT + 1], struct error *err);

/* For an end without frontend_stop: removes the socket files. Safe in a signal handler. */
void frontend_remove_files(const struct frontend *frontend);
/* Ends open streams with an error event, other requests with 503, waits up to 2 s for bytes on their way, closes all
 * sockets, joins all threads. Takes NULL. */
void frontend_stop(struct frontend *frontend);
