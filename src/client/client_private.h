/* client_private.h - what the files of the client share. */
#pragma once

#include <inferd.pb-c.h>
#include <zmq.h>

#include <inferd/client.h>

struct open_request {
    uint64_t id;
    inferd_on_event *on_event; /* NULL: a question (client_ask.c) */
    void *ctx;
    bool over; /* cancelled or ended while its event was being delivered */
    struct open_request *next;
};

struct inferd_client {
    void *context, *socket, *monitor;
    char *endpoint, *api_key; /* api_key: NULL: none */
    uint64_t last_id;
    struct open_request *open; /* newest first */
    uint32_t open_count;
    bool delivering, has_keys;
    bool given_up; /* a handshake failed in a way after which libzmq does not try again */
    const char *
        why_lost; /* what INFERD_LOST says: the last handshake's fault, or that the connection ended */
};

/* --- client.c --- */
int client_fail(struct inferd_error *error, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Sends `request` with the next id; registers it. */
int client_send(struct inferd_client *client, Inferd__V1__Request *request,
                inferd_on_event *on_event, void *ctx, uint64_t *id, struct inferd_error *error);
bool client_is_open(struct inferd_client *client, uint64_t id);
void client_forget(struct inferd_client *client, uint64_t id);
int64_t client_now_ms(void);
/* Receives and delivers for up to timeout_ms; a Response to request `wanted` that has no on_event is handed to take(). */
int client_turn(struct inferd_client *client, int timeout_ms, uint64_t wanted,
                void (*take)(void *ctx, const Inferd__V1__Response *response), void *ctx);

/* --- client_message.c --- */
/* Packs and sends nothing: fills `message` with pointers into generate and memory that client_message_fini frees. */
int client_message_of(const struct inferd_generate *generate, Inferd__V1__Generate *message,
                      struct inferd_error *error);
void client_message_fini(Inferd__V1__Generate *message);
/* Delivers a Response of a generation. Its return is on_event's. */
int client_deliver(const Inferd__V1__Response *response, inferd_on_event *on_event, void *ctx);
/* Fills *error from an Error; returns the enum inferd_status. */
int client_error_of(const Inferd__V1__Error *message, struct inferd_error *error);
