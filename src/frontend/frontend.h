/* frontend.h - sockets, connections, streaming. The door of src/frontend.
 *
 * Threads: `io_threads` I/O threads, each with an epoll loop, a libmicrohttpd daemon of its own in external mode and a
 * share of the connections; `text_threads` text threads that parse, render and tokenise (never in an I/O thread: a long
 * prompt must not stall other streams). A request's life:
 *
 *     I/O thread            text pool                engine             I/O thread
 *     read ─► suspend ─►  api_open, engine_submit ─► outputs, bell ─► api_stream ─► resume, send
 *
 * The daemon listens before the model is loaded: frontend_start comes first (/health 200, /ready 503, everything else
 * 503 model_loading), frontend_set_ready when engine and model are there.
 * Life: start -> set_ready -> drain -> (busy falls to 0, or time is up) -> stop -> then engine_destroy.
 * Thread: all functions from the owner's one thread, frontend_busy from any. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "api/api.h"
#include "base/status.h"
#include "engine/engine.h"

struct frontend; /* opaque */

/* Strings are borrowed until frontend_stop. */
struct frontend_options {
    const char *host; /* address to listen on; NULL or "": 127.0.0.1 */
    uint16_t port;    /* 0: any free one (frontend_port tells) */
    const char *uds;  /* path of a unix socket to listen on instead of TCP; NULL or "": none */
    const char *const *api_keys; /* [api_key_count] */
    uint32_t api_key_count;      /* 0: no key is asked for */
    bool cors;
    bool web_page;            /* the page at / */
    uint32_t connections_max; /* over all I/O threads */
    uint64_t body_bytes_max;  /* of one body; all bodies at once: 16 times that, at least 256 MiB */
    uint32_t header_timeout_s; /* incomplete request */
    uint32_t idle_timeout_s;   /* keep-alive connection without a request */
    uint32_t client_stall_s;   /* a client that reads nothing of its answer */
    uint32_t io_threads, text_threads;
    const char *const
        *zmq_endpoints;          /* [zmq_endpoint_count] "tcp://127.0.0.1:5555", "ipc:///run/x" */
    uint32_t zmq_endpoint_count; /* 0: no ZeroMQ */
    const char
        *zmq_server_key_file; /* CURVE secret key; NULL or "": connections are in the clear */
    const char *zmq_client_keys_file; /* public keys of the clients; NULL or "": any client */
    const char *version;              /* "0.1.0" */
    const char *commit;               /* NULL: not told */
};

/* Binds, listens, starts the threads. Errors: STATUS_IO with address and port in the sentence (a taken port too, before
 * anything else is done), STATUS_NOMEM, STATUS_INVALID (host is no address). */
enum status frontend_start(const struct frontend_options *options, struct frontend **out,
                           struct error *err);
/* The ZeroMQ endpoint as bound ("tcp://127.0.0.1:40123"), in the order of the options. */
const char *frontend_zmq_endpoint(const struct frontend *frontend, uint32_t i);
/* The TCP port in use, 0 for a unix socket. */
uint16_t frontend_port(const struct frontend *frontend);

/* From here on requests are answered. The engine and what *model points to are borrowed until frontend_stop. Once. */
void frontend_set_ready(struct frontend *frontend, struct engine *engine,
                        const struct api_model *model);

/* /ready turns 503, new generation requests get 503 server_draining; running ones go on. */
void frontend_drain(struct frontend *frontend);
/* Requests that have been read whole and are being computed or sent. */
uint32_t frontend_busy(const struct frontend *frontend);

/* Ends open streams with an error event, other requests with 503, waits up to 2 s for bytes on their way, closes all
 * sockets, joins all threads. Takes NULL. */
void frontend_stop(struct frontend *frontend);
