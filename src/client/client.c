/* client.c - the connection, and the requests that are open on it.
 *
 * libzmq connects again by itself, under a new routing id: the server then knows nothing of the old requests. So a monitor
 * tells of each end of a connection, and every open request ends with INFERD_LOST. It tells of handshakes that failed, too,
 * before the end of their connection: keys that do not fit are the usual reason. libzmq gives up after most of those, so the next
 * request connects anew. */
#include <inferd/client.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/client_private.h"

enum { HEARTBEAT_MS = 1000, SECRET_CHARS = 40 };
#define ENDED "the connection to the server ended"

int64_t client_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int client_fail(struct inferd_error *error, int status, const char *format, ...)
{
    va_list args;

    if (!error) return status;
    *error = (struct inferd_error){0};
    va_start(args, format);
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    return status;
}

/* --- life --- */

static bool set_int(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}

static int use_keys(struct inferd_client *c, const struct inferd_client_options *o,
                    struct inferd_error *error)
{
    char public_key[SECRET_CHARS + 1], secret[SECRET_CHARS + 1];

    if (!o->server_key) return INFERD_OK;
    if (strlen(o->server_key) != SECRET_CHARS)
        return client_fail(error, INFERD_INVALID, "server_key must be 40 characters of Z85");
    if (o->secret_key) {
        snprintf(secret, sizeof secret, "%s", o->secret_key);
        if (strlen(o->secret_key) != SECRET_CHARS || zmq_curve_public(public_key, secret))
            return client_fail(error, INFERD_INVALID, "secret_key must be 40 characters of Z85");
    } else if (zmq_curve_keypair(public_key, secret)) {
        return client_fail(error, INFERD_FAILED, "this libzmq has no CURVE");
    }
    c->has_keys = true;
    bool ok = !zmq_setsockopt(c->socket, ZMQ_CURVE_SERVERKEY, o->server_key, SECRET_CHARS + 1) &&
              !zmq_setsockopt(c->socket, ZMQ_CURVE_PUBLICKEY, public_key, sizeof public_key) &&
              !zmq_setsockopt(c->socket, ZMQ_CURVE_SECRETKEY, secret, sizeof secret);

    explicit_bzero(secret, sizeof secret);
    return ok ? INFERD_OK
              : client_fail(error, INFERD_INVALID, "server_key must be 40 characters of Z85");
}

static int open_monitor(struct inferd_client *c, struct inferd_error *error)
{
    static const char address[] =
        "inproc://inferd-client-monitor"; /* each client has a context of its own */

    if (zmq_socket_monitor(c->socket, address,
                           ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                               ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                               ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                               ZMQ_EVENT_HANDSHAKE_FAILED_AUTH))
        return client_fail(error, INFERD_FAILED, "no monitor: %s", zmq_strerror(errno));
    c->why_lost = ENDED;
    c->monitor = zmq_socket(c->context, ZMQ_PAIR);
    if (!c->monitor || !set_int(c->monitor, ZMQ_LINGER, 0) || zmq_connect(c->monitor, address))
        return client_fail(error, INFERD_FAILED, "no monitor: %s", zmq_strerror(errno));
    return INFERD_OK;
}

static int open_socket(struct inferd_client *c, const struct inferd_client_options *o,
                       struct inferd_error *error)
{
    c->context = zmq_ctx_new();
    c->socket = c->context ? zmq_socket(c->context, ZMQ_DEALER) : NULL;
    if (!c->socket)
        return client_fail(error, INFERD_FAILED, "no ZeroMQ socket: %s", zmq_strerror(errno));
    set_int(c->socket, ZMQ_LINGER, 0);
    set_int(c->socket, ZMQ_RCVHWM, 0); /* bounded by the server: it stops when we do not read */
    set_int(c->socket, ZMQ_HEARTBEAT_IVL, HEARTBEAT_MS);
    set_int(c->socket, ZMQ_HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS);
    int status = use_keys(c, o, error);

    if (!status) status = open_monitor(c, error);
    if (!status && zmq_connect(c->socket, o->endpoint))
        status = client_fail(error, INFERD_INVALID, "%.300s: %s", o->endpoint, zmq_strerror(errno));
    return status;
}

int inferd_client_open(const struct inferd_client_options *o, struct inferd_client **out,
                       struct inferd_error *error)
{
    if (!o || !o->endpoint) return client_fail(error, INFERD_INVALID, "endpoint is missing");
    struct inferd_client *c = calloc(1, sizeof *c);

    if (!c) return client_fail(error, INFERD_FAILED, "no memory for a client");
    int status = INFERD_OK;

    if (!(c->endpoint = strdup(o->endpoint)) || (o->api_key && !(c->api_key = strdup(o->api_key))))
        status = client_fail(error, INFERD_FAILED, "no memory for a client");
    if (!status) status = open_socket(c, o, error);
    if (status) {
        inferd_client_close(c);
        return status;
    }
    *out = c;
    return INFERD_OK;
}

void inferd_client_close(struct inferd_client *c)
{
    if (!c) return;
    while (c->open) {
        struct open_request *next = c->open->next;

        free(c->open);
        c->open = next;
    }
    if (c->monitor) zmq_close(c->monitor);
    if (c->socket) zmq_close(c->socket);
    while (c->context && zmq_ctx_term(c->context) && errno == EINTR)
        continue;
    if (c->api_key) explicit_bzero(c->api_key, strlen(c->api_key));
    free(c->api_key);
    free(c->endpoint);
    free(c);
}

uint32_t inferd_client_open_count(const struct inferd_client *c)
{
    return c->open_count;
}

int inferd_client_fd(const struct inferd_client *c)
{
    int fd = -1;
    size_t size = sizeof fd;

    zmq_getsockopt(c->socket, ZMQ_FD, &fd, &size);
    return fd;
}

/* --- open requests --- */

static struct open_request *find(struct inferd_client *c, uint64_t id)
{
    struct open_request *r = c->open;

    while (r && r->id != id)
        r = r->next;
    return r && !r->over ? r : NULL;
}

/* While events are being delivered a request is only marked: its callback may be running. */
static void sweep(struct inferd_client *c)
{
    for (struct open_request **at = &c->open; *at;) {
        struct open_request *r = *at;

        if (r->over) {
            *at = r->next;
            free(r);
        } else {
            at = &r->next;
        }
    }
}

static void set_over(struct inferd_client *c, struct open_request *r)
{
    if (r->over) return;
    r->over = true;
    c->open_count--;
    if (!c->delivering) sweep(c);
}

bool client_is_open(struct inferd_client *c, uint64_t id)
{
    return find(c, id) != NULL;
}

void client_forget(struct inferd_client *c, uint64_t id)
{
    struct open_request *r = find(c, id);

    if (r) set_over(c, r);
}

static int send_packed(struct inferd_client *c, const Inferd__V1__Request *request,
                       struct inferd_error *error)
{
    zmq_msg_t message;

    if (zmq_msg_init_size(&message, inferd__v1__request__get_packed_size(request)))
        return client_fail(error, INFERD_FAILED, "no memory for the request");
    inferd__v1__request__pack(request, zmq_msg_data(&message));
    if (zmq_msg_send(&message, c->socket, ZMQ_DONTWAIT) >= 0) return INFERD_OK;
    int status = errno == EAGAIN ? INFERD_LOST : INFERD_FAILED;

    zmq_msg_close(&message);
    return client_fail(error, status, "the request could not be sent: %s", zmq_strerror(errno));
}

static void connect_anew(struct inferd_client *c)
{
    c->given_up = false;
    zmq_disconnect(c->socket, c->endpoint); /* gone already, as a rule */
    zmq_connect(c->socket, c->endpoint);
}

int client_send(struct inferd_client *c, Inferd__V1__Request *request, inferd_on_event *on_event,
                void *ctx, uint64_t *id, struct inferd_error *error)
{
    struct open_request *r = calloc(1, sizeof *r);

    if (!r) return client_fail(error, INFERD_FAILED, "no memory for the request");
    *r = (struct open_request){++c->last_id, on_event, ctx, false, c->open};
    request->has_id = true;
    request->id = r->id;
    request->api_key = c->api_key;
    if (c->given_up) connect_anew(c);
    int status = send_packed(c, request, error);

    if (status) {
        free(r);
        return status;
    }
    c->open = r;
    c->open_count++;
    if (id) *id = r->id;
    return INFERD_OK;
}

int inferd_client_submit(struct inferd_client *c, const struct inferd_generate *g,
                         inferd_on_event *on_event, void *ctx, uint64_t *id,
                         struct inferd_error *error)
{
    Inferd__V1__Request request = INFERD__V1__REQUEST__INIT;
    Inferd__V1__Generate message;

    if (!on_event) return client_fail(error, INFERD_INVALID, "on_event is missing");
    int status = client_message_of(g, &message, error);

    if (status) return status;
    request.body_case = INFERD__V1__REQUEST__BODY_GENERATE;
    request.generate = &message;
    request.x_request_id = (char *)(uintptr_t)g->request_id;
    status = client_send(c, &request, on_event, ctx, id, error);
    client_message_fini(&message);
    return status;
}

void inferd_client_cancel(struct inferd_client *c, uint64_t id)
{
    Inferd__V1__Request request = INFERD__V1__REQUEST__INIT;
    Inferd__V1__Cancel cancel = INFERD__V1__CANCEL__INIT;

    if (!find(c, id)) return;
    client_forget(c, id);
    request.has_id = true;
    request.id = ++c->last_id; /* its answer finds nobody */
    request.api_key = c->api_key;
    request.body_case = INFERD__V1__REQUEST__BODY_CANCEL;
    cancel.has_id = true;
    cancel.id = id;
    request.cancel = &cancel;
    send_packed(c, &request, NULL);
}

/* --- receiving --- */

static bool is_last(const Inferd__V1__Response *r)
{
    return r->body_case != INFERD__V1__RESPONSE__BODY_STARTED &&
           r->body_case != INFERD__V1__RESPONSE__BODY_CHUNK;
}

static void take_response(struct inferd_client *c, const Inferd__V1__Response *response)
{
    struct open_request *r = find(c, response->id);

    if (!r || !r->on_event) return;
    if (client_deliver(response, r->on_event, r->ctx)) inferd_client_cancel(c, r->id);
    if (is_last(response)) set_over(c, r);
}

static int take_message(struct inferd_client *c, zmq_msg_t *message, uint64_t wanted,
                        void (*take)(void *ctx, const Inferd__V1__Response *response), void *ctx)
{
    Inferd__V1__Batch *batch =
        inferd__v1__batch__unpack(NULL, zmq_msg_size(message), zmq_msg_data(message));

    if (!batch) return INFERD_PROTOCOL;
    c->delivering = true;
    for (size_t i = 0; i < batch->n_responses; i++) {
        const Inferd__V1__Response *r = batch->responses[i];

        if (take && r->id == wanted)
            take(ctx, r);
        else
            take_response(c, r);
    }
    c->delivering = false;
    sweep(c);
    inferd__v1__batch__free_unpacked(batch, NULL);
    return INFERD_OK;
}

static void lose_all(struct inferd_client *c)
{
    struct inferd_error error;

    client_fail(&error, INFERD_LOST, "%s", c->why_lost);
    c->delivering = true;
    for (struct open_request *r = c->open; r; r = r->next) {
        struct inferd_event event = {
            .kind = INFERD_ERROR, .id = r->id, .error = &error, .status = INFERD_LOST};

        if (r->over) continue;
        if (r->on_event) r->on_event(r->ctx, &event);
        set_over(c, r);
    }
    c->delivering = false;
    sweep(c);
}

/* What a failed handshake says, seen from a client that has keys or none. */
static const char *reason_of(const struct inferd_client *c, uint16_t event, uint32_t value)
{
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
        return "the server refused this client's key: its public one must be in the server's list";
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL &&
        value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
        return c->has_keys ? "the server has no CURVE key: server_key must not be given"
                           : "the server wants CURVE: server_key is missing";
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL)
        return c->has_keys ? "the handshake failed: server_key is not the server's public key"
                           : "the handshake failed: the endpoint does not speak ZeroMQ";
    /* the other side has seen it first */
    return c->has_keys ? "the server ended the handshake: server_key is not its public key, or it "
                         "has no CURVE key"
                       : "the server ended the handshake: it wants CURVE and server_key is "
                         "missing, or it does not speak ZeroMQ";
}

/* True: a connection has ended. */
static bool read_monitor(struct inferd_client *c)
{
    bool lost = false;

    for (;;) {
        zmq_msg_t event, address;
        uint16_t kind = 0;
        uint32_t value = 0;

        zmq_msg_init(&event);
        if (zmq_msg_recv(&event, c->monitor, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&event);
            return lost;
        }
        if (zmq_msg_size(&event) == sizeof kind + sizeof value) {
            memcpy(&kind, zmq_msg_data(&event), sizeof kind);
            memcpy(&value, (char *)zmq_msg_data(&event) + sizeof kind, sizeof value);
        }
        zmq_msg_init(&address);
        if (zmq_msg_more(&event)) zmq_msg_recv(&address, c->monitor, 0);
        zmq_msg_close(&event);
        zmq_msg_close(&address);
        if (kind == ZMQ_EVENT_DISCONNECTED)
            lost = true;
        else
            c->why_lost = kind == ZMQ_EVENT_HANDSHAKE_SUCCEEDED ? ENDED : reason_of(c, kind, value);
        if (kind == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH || kind == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL)
            c->given_up = true;
        else if (kind == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
            c->given_up = false; /* it did try again: what runs on this connection stays */
    }
}

int client_turn(struct inferd_client *c, int timeout_ms, uint64_t wanted,
                void (*take)(void *ctx, const Inferd__V1__Response *response), void *ctx)
{
    zmq_pollitem_t items[] = {{.socket = c->socket, .events = ZMQ_POLLIN},
                              {.socket = c->monitor, .events = ZMQ_POLLIN}};
    int status = INFERD_OK, got;
    zmq_msg_t message;

    if (zmq_poll(items, 2, timeout_ms) <= 0) return INFERD_TIMEOUT;
    /* what came before the end of the connection first */
    do {
        zmq_msg_init(&message);
        got = zmq_msg_recv(&message, c->socket, ZMQ_DONTWAIT);
        if (got > 0) status = take_message(c, &message, wanted, take, ctx);
        zmq_msg_close(&message);
    } while (got >= 0 && !status);
    if (items[1].revents && read_monitor(c)) lose_all(c);
    return status;
}

int inferd_client_poll(struct inferd_client *c, int timeout_ms)
{
    return client_turn(c, timeout_ms, 0, NULL, NULL);
}

/* --- one request, to its end --- */

struct one {
    inferd_on_event *on_event;
    void *ctx;
    int status;
    bool ended;
    struct inferd_error *error;
};

static int on_one(void *ctx, const struct inferd_event *event)
{
    struct one *one = ctx;
    int stop = one->on_event ? one->on_event(one->ctx, event) : 0;

    if (event->kind == INFERD_DONE || event->kind == INFERD_ERROR) {
        one->ended = true;
        one->status = event->kind == INFERD_DONE ? INFERD_OK : event->status;
        if (event->kind == INFERD_ERROR && one->error) *one->error = *event->error;
    } else if (stop) {
        one->ended = true;
        one->status = client_fail(one->error, INFERD_STOPPED, "on_event has stopped the request");
    }
    return stop;
}

int inferd_client_generate(struct inferd_client *c, const struct inferd_generate *g,
                           inferd_on_event *on_event, void *ctx, int timeout_ms,
                           struct inferd_error *error)
{
    struct one one = {.on_event = on_event, .ctx = ctx, .error = error};
    int64_t until = client_now_ms() + timeout_ms;
    uint64_t id;
    int status = inferd_client_submit(c, g, on_one, &one, &id, error);

    while (!status && !one.ended) {
        int64_t left = timeout_ms < 0 ? -1 : until - client_now_ms();

        if (timeout_ms >= 0 && left <= 0) {
            inferd_client_cancel(c, id);
            return client_fail(error, INFERD_TIMEOUT, "no end of the answer within %d ms",
                               timeout_ms);
        }
        if (client_turn(c, (int)left, 0, NULL, NULL) == INFERD_PROTOCOL) {
            inferd_client_cancel(c, id);
            return client_fail(error, INFERD_PROTOCOL, "the server sent what is no message");
        }
    }
    return status ? status : one.status;
}
