/* zmq.h - the ZeroMQ front end: one thread that owns a ROUTER socket. Private to frontend/; docs/zmq.md is its contract.
 *
 * A request is a struct call as HTTP's is, without a connection: text threads open and submit it, its outputs ring this
 * thread's bell, call_pump makes them Responses. What a client is to get in one turn goes out as one message.
 *
 *     message ─► api_proto_head ─► zmq_call ─► text pool ─► engine ─► bell ─► call_pump ─► zmq_client.out ─► one message
 *
 * A client is known while it has requests open or answers unsent (over ipc: unread), by its routing id. It is gone when a send finds no such
 * peer (ROUTER_MANDATORY): heartbeats close dead connections after at most 1.3 s, and a client that is sent nothing for
 * 250 ms gets an empty Batch, so the work of a client that vanished ends within 2 s.
 *
 * Memory: bodies count against the limit of all bodies; of a client that does not read, the socket keeps at most
 * SNDHWM messages, large whole answers counted against the limit of all (call_hold_answer), `out` at most OUT_SOFT bytes and one turn's; then its rings fill and the engine blocks its sequences,
 * and after --client-stall-timeout-s its requests end (client_too_slow).
 * Thread: all of it belongs to the ZeroMQ thread, save what is marked. */
#pragma once

#include <semaphore.h>
#include <zmq.h>

#include "frontend/call.h"

enum {
    ZMQ_CALL_BUCKETS = 4096, /* of the tables of clients and of calls */
    ZMQ_CLIENT_BUCKETS = 1024,
    ZMQ_RELEASED = 1024,         /* counters of large messages, by a client's hash */
    ZMQ_ID_MAX = 255,            /* bytes of a routing id */
    ZMQ_CLIENT_CALLS_MAX = 4096, /* open at once; beyond it too_many_requests */
    ZMQ_OUT_SOFT = 256 << 10,
    ZMQ_OUT_HARD =
        16 << 20, /* of a client that the socket has no room for: nothing new is begun for it */
    ZMQ_COPY_BELOW =
        1 << 10, /* smaller messages are copied: cheaper than the reference count of a larger one */
    ZMQ_BLOCKS_MAX = 32, /* kept for the next messages, each of at most ZMQ_BLOCK_MAX bytes */
    ZMQ_BLOCK_MAX = 128 << 10,
    ZMQ_SEND_HWM = 64, /* messages in the socket per client */
    ZMQ_RECEIVE_HWM = 64,
    ZMQ_ENDPOINT_MAX = 256,
    ZMQ_LAZY_MS = 1,
};

struct zmq_client {
    unsigned char id[ZMQ_ID_MAX];
    uint8_t id_len;
    bool dirty, stuck; /* stuck: the socket has no room for it */
    bool lazy; /* dirty, with nothing but a Started, which waits a moment for what comes after it */
    bool out_failed; /* no memory for its answers */
    uint64_t hash;
    struct zmq_client *hash_next, *prev, *next;
    struct zmq_call *calls;
    uint32_t call_count;
    struct buf out;     /* Responses not yet given to the socket */
    uint64_t out_large; /* of frontend.answers, as `holder`: large whole answers in `out` */
    uint64_t holder;
    zmq_msg_t pending; /* built from out, not taken by the socket */
    bool has_pending;
    int64_t stuck_ns, sent_ns, lazy_ns;
    int fd; /* ipc: of its connection, libzmq's, and the socket's inode; 0: not of ipc (zmq_peer.c) */
    uint64_t inode;
    int unread;        /* bytes there at the last look, and since unread_ns: then these two were */
    uint32_t released; /* zmq_client_released */
    uint64_t sent_count, sent_before; /* messages that the socket took */
    int64_t unread_ns;
    bool waits; /* ipc: it has nothing open, and may not have read its last answers */
    struct zmq_client *dirty_next;
};

struct zmq_call {
    struct call call;          /* first: call.c frees it */
    struct zmq_client *client; /* NULL: it has gone */
    uint64_t id;
    enum zmq_kind kind;
    bool cancelled, in_again;
    zmq_msg_t message; /* the Request, until it has been opened */
    bool has_message;
    struct zmq_call *prev, *next; /* of the client, or of orphans */
    struct zmq_call *hash_next, *done_next, *again_next;
};

struct zmq_blocks {
    pthread_mutex_t lock;
    void *list[ZMQ_BLOCKS_MAX];
    uint32_t count;
};

struct zmq_endpoint {
    char text[ZMQ_ENDPOINT_MAX]; /* as bound */
    uint64_t inode;              /* of the socket file of ipc; 0: none */
};

struct zmq_front {
    struct frontend *frontend;
    struct settings *settings; /* a reference; looked at once a turn */
    struct zmq_stats *stats;
    void *context, *router, *zap;
    struct zmq_auth *auth;
    struct zmq_endpoint *endpoints; /* [endpoint_count], bound */
    uint32_t endpoint_count;
    pthread_t thread;
    bool started;
    int wake_fd;
    struct output_bell bell;
    struct zmq_client *clients; /* list of all */
    struct zmq_client *client_table[ZMQ_CLIENT_BUCKETS];
    struct zmq_call *call_table[ZMQ_CALL_BUCKETS];
    uint32_t call_count, client_count, stuck_count;
    uint32_t opened_here; /* requests of this turn that this thread opened itself */
    pthread_t self;
    struct zmq_client *dirty;         /* with something to send */
    bool lazy_left;                   /* some of them wait */
    struct zmq_call *again, *orphans; /* orphans: with a text thread, their client gone */
    uint64_t secret;
    struct zmq_blocks blocks; /* memory of messages that have been sent */
    _Atomic uint32_t released[ZMQ_RELEASED];
    struct reports reports;
    int64_t swept_ns;
    bool draining; /* of the thread: it ends */
    pthread_mutex_t lock;
    struct zmq_call *done;                             /* under lock: opened, newest first */
    void (*visit)(struct zmq_front *front, void *ctx); /* under lock: zmq_front_visit's */
    void *visit_ctx;
    sem_t *visited;
    _Atomic bool stopping;
};

/* --- zmq.c: life, loop --- */

/* Binds all endpoints and starts the thread. Errors: STATUS_IO with the endpoint, STATUS_INVALID (keys), STATUS_NOMEM. */
enum status zmq_front_create(struct frontend *frontend, struct zmq_front **out, struct error *err);
void zmq_front_stop(struct zmq_front *front);    /* asks; any thread; takes NULL */
void zmq_front_destroy(struct zmq_front *front); /* waits; takes NULL; before the text pools end */
/* Runs visit(front, ctx) on the ZeroMQ thread between two turns and waits for it, 2 s at most. False: it did not come to it. */
bool zmq_front_visit(struct zmq_front *front, void (*visit)(struct zmq_front *front, void *ctx),
                     void *ctx);
/* For call.c, on a text thread. */
void zmq_front_open(struct call *call, const struct api_model *model, enum api_state state,
                    const struct api_client *client);
void zmq_front_done(struct call *call);
struct output_bell *zmq_front_bell(struct call *call);

/* --- zmq_client.c: who is there, what it is to get --- */

struct zmq_client *zmq_client_find(struct zmq_front *front, struct slice id);
struct zmq_client *zmq_client_open(struct zmq_front *front,
                                   struct slice id); /* found or made; NULL: no memory */
/* Notes that `out` has something. */
void zmq_client_touch(struct zmq_front *front, struct zmq_client *client);
/* The same for a Started: it goes with what comes after it, or alone after ZMQ_LAZY_MS. A message less for those whose answer is
 * there that soon. */
void zmq_client_touch_lazily(struct zmq_front *front, struct zmq_client *client);
/* Changes when libzmq has let go of a large message of the client, or of another of the same bucket. */
uint32_t zmq_client_released(const struct zmq_front *front, const struct zmq_client *client);
bool zmq_client_has_room(const struct zmq_client *client);
/* Sends what the socket takes, of all clients that were touched. */
void zmq_client_flush_all(struct zmq_front *front);
/* Every 250 ms: looks who is still there, tries stuck ones again, ends those that do not read. */
void zmq_client_sweep(struct zmq_front *front, int64_t now);
void zmq_client_retry(struct zmq_front *front);
void zmq_client_drop_all(struct zmq_front *front); /* at the end; no call is left */

void zmq_blocks_fini(struct zmq_blocks *blocks);

/* --- zmq_peer.c: where messages come from; connections of ipc in which nothing gets through --- */

/* A number for it, as address_key; of ipc for the user; 0: libzmq does not say. */
uint64_t zmq_peer_address(zmq_msg_t *message);
/* Where the client is, after its message. */
void zmq_peer_note(struct zmq_client *client, zmq_msg_t *message);
/* Whether the client has left something unread. UNREAD_TOO_LONG: nothing was read for limit_ns, and its connection has been ended. */
enum unread { UNREAD_NONE, UNREAD_SOME, UNREAD_TOO_LONG };
enum unread zmq_peer_look(struct zmq_front *front, struct zmq_client *client, int64_t now,
                          int64_t limit_ns);

/* --- zmq_call.c: requests --- */

/* One message of a client. Takes the message. extra: it had more frames than one. */
void zmq_call_handle(struct zmq_front *front, struct slice id, zmq_msg_t *message, bool extra);
void zmq_call_opened(struct zmq_front *front, struct zmq_call *call); /* after the text thread */
void zmq_call_pump(struct zmq_front *front, struct zmq_call *call);
void zmq_call_again(struct zmq_front *front, struct zmq_call *call);
/* The client has gone. */
void zmq_call_vanish_all(struct zmq_front *front, struct zmq_client *client);
/* Ends one that is not ended: its client gets the fault, the call is freed (with a text thread: when that gives it back). */
void zmq_call_fail(struct zmq_front *front, struct zmq_call *call, const struct api_fault *fault);
/* Ends all of a client's requests with this fault. */
void zmq_call_fail_all(struct zmq_front *front, struct zmq_client *client,
                       const struct api_fault *fault);
/* The end of the drain time. */
void zmq_call_end_all(struct zmq_front *front);

/* --- zmq_listen.c: endpoints --- */

/* Binds the router to all endpoints of the options. Errors: STATUS_INVALID (no endpoint), STATUS_IO, STATUS_NOMEM. */
enum status zmq_listen_all(struct zmq_front *front, struct error *err);
/* The socket files of ipc, but one that a newer daemon has put in its place. Safe in a signal handler. */
void zmq_listen_remove_files(const struct zmq_front *front);

/* --- zmq_auth.c: keys --- */

struct zmq_clients; /* a list of clients' keys */

/* Reads the files of the options and readies the sockets: CURVE on the router, the handler of ZAP where there is a list of
 * client keys. *out is NULL without keys. Errors: STATUS_INVALID, STATUS_IO, STATUS_NOT_FOUND. */
enum status zmq_auth_create(struct zmq_front *front, struct zmq_auth **out, struct error *err);
void zmq_auth_destroy(struct zmq_auth *auth); /* takes NULL */
/* Reads the list again; any thread. *out: for zmq_auth_take, or zmq_auth_drop; NULL: there is nothing to be taken. Errors: as above. */
enum status zmq_auth_read(const struct zmq_auth *auth, const struct frontend_options *options,
                          struct zmq_clients **out, struct error *err);
/* Whether the file has the server's own key that is in force; if not (or if it cannot be read) the log says why. That key stays: libzmq
 * takes another one only with all connections closed, so a file that has gone is no fault before the next start. */
bool zmq_auth_has_key(const struct zmq_auth *auth, const char *path);
/* The new list is in force, for handshakes and for messages. Takes `clients`. Any thread. */
void zmq_auth_take(struct zmq_auth *auth, struct zmq_clients *clients);
void zmq_auth_drop(struct zmq_clients *clients); /* takes NULL */
/* Answers the handshakes that wait at front->zap. */
void zmq_auth_answer(struct zmq_front *front);
/* Whether the client that sent the message, whose key was in the list when it connected, still is. */
bool zmq_auth_listed(struct zmq_auth *auth, zmq_msg_t *message);
/* Whether the Request carries one of the API keys; the same time whichever differs. */
bool zmq_auth_key_ok(const struct frontend_options *options, struct slice key);
