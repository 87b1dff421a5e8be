#include "frontend/zmq.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"

enum {
    MESSAGES_PER_TURN = 256,
    HEARTBEAT_MS =
        300, /* PING so often; a peer that sends nothing for SILENCE_MS after one is gone. */
    SILENCE_MS = 1000, /* With the sweep's 250 ms: noticed within 1.55 s */
    RETRY_MS = 5,      /* a stuck client is tried again */
    TURN_MS = 250,
    LINGER_MS = 2000, /* at the end: bytes on their way */
};
static const int64_t second_ns = 1000000000;

static void wake(struct zmq_front *z)
{
    uint64_t one = 1;

    (void)!write(z->wake_fd, &one, sizeof one); /* EAGAIN: it is awake already */
}

static void drain_eventfd(int fd)
{
    uint64_t count;

    (void)!read(fd, &count, sizeof count);
}

/* --- for call.c --- */

static struct zmq_call *of(struct call *call)
{
    return (struct zmq_call *)call; /* its first member */
}

struct output_bell *zmq_front_bell(struct call *call)
{
    return &call->zmq->bell;
}

void zmq_front_open(struct call *call, const struct api_model *model, enum api_state state,
                    const struct api_client *client)
{
    zmq_msg_t *message = &of(call)->message;
    struct api_client own = *client;

    own.message_id = of(call)->id;
    own.request_id = call->request_id;
    if (state == API_READY && atomic_load(&call->frontend->leaving)) state = API_DRAINING;
    api_proto_open(model, state, slice_of(zmq_msg_data(message), zmq_msg_size(message)), &own,
                   &call->api);
}

void zmq_front_done(struct call *call)
{
    struct zmq_front *z = call->zmq;

    pthread_mutex_lock(&z->lock);
    bool first = z->done == NULL;

    of(call)->done_next = z->done;
    z->done = of(call);
    pthread_mutex_unlock(&z->lock);
    if (first && !pthread_equal(pthread_self(), z->self)) wake(z);
}

/* --- a turn --- */

static void take_done(struct zmq_front *z)
{
    struct zmq_call *call, *next, *oldest_first = NULL;

    pthread_mutex_lock(&z->lock);
    call = z->done;
    z->done = NULL;
    pthread_mutex_unlock(&z->lock);
    for (; call; call = next) {
        next = call->done_next;
        call->done_next = oldest_first;
        oldest_first = call;
    }
    for (call = oldest_first; call; call = next) {
        next = call->done_next;
        zmq_call_opened(z, call);
    }
}

static void answer_bell(struct zmq_front *z)
{
    struct request *next, *r = output_bell_take(&z->bell);

    for (; r; r = next) {
        next = output_bell_next(r);
        /* while the text thread still has the call, zmq_call_opened will look */
        if (r->frontend) zmq_call_pump(z, of(r->frontend));
        request_unref(r);
    }
}

static void take_again(struct zmq_front *z)
{
    struct zmq_call *next, *call = z->again;

    z->again = NULL;
    for (; call; call = next) {
        next = call->again_next;
        call->in_again = false;
        zmq_call_pump(z, call); /* may end this one, never another */
    }
}

static void answer_visit(struct zmq_front *z)
{
    pthread_mutex_lock(&z->lock);
    if (z->visit) {
        z->visit(z, z->visit_ctx);
        z->visit = NULL;
        sem_post(z->visited);
    }
    pthread_mutex_unlock(&z->lock);
}

bool zmq_front_visit(struct zmq_front *z, void (*visit)(struct zmq_front *z, void *ctx), void *ctx)
{
    struct timespec until;
    sem_t visited;
    int waited;

    sem_init(&visited, 0, 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 2;
    pthread_mutex_lock(&z->lock);
    z->visit = visit;
    z->visit_ctx = ctx;
    z->visited = &visited;
    pthread_mutex_unlock(&z->lock);
    wake(z);
    while ((waited = sem_timedwait(&visited, &until)) && errno == EINTR)
        continue;
    pthread_mutex_lock(&z->lock); /* it may come to it just now */
    bool came = !waited || !z->visit;

    z->visit = NULL;
    pthread_mutex_unlock(&z->lock);
    sem_destroy(&visited);
    return came;
}

/* One message: the routing id that libzmq puts in front, and the client's frames. False: none is waiting. */
static bool receive(struct zmq_front *z)
{
    zmq_msg_t id, body, rest;
    bool extra = false;

    zmq_msg_init(&id);
    if (zmq_msg_recv(&id, z->router, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&id);
        return errno == EINTR;
    }
    zmq_msg_init(&body);
    if (zmq_msg_more(&id)) zmq_msg_recv(&body, z->router, ZMQ_DONTWAIT);
    for (bool more = zmq_msg_more(&body); more;) {
        extra = true;
        zmq_msg_init(&rest);
        more = zmq_msg_recv(&rest, z->router, ZMQ_DONTWAIT) >= 0 && zmq_msg_more(&rest);
        zmq_msg_close(&rest);
    }
    zmq_call_handle(z, slice_of(zmq_msg_data(&id), zmq_msg_size(&id)), &body, extra);
    zmq_msg_close(&id);
    zmq_msg_close(&body);
    return true;
}

static void turn(struct zmq_front *z, long ms)
{
    zmq_pollitem_t items[] = {{.socket = z->router, .events = ZMQ_POLLIN},
                              {.fd = z->wake_fd, .events = ZMQ_POLLIN},
                              {.fd = z->bell.event_fd, .events = ZMQ_POLLIN},
                              {.socket = z->zap, .events = ZMQ_POLLIN}};
    uint32_t taken = 0;

    if (z->stuck_count && ms > RETRY_MS) ms = RETRY_MS;
    if (z->lazy_left && ms > ZMQ_LAZY_MS) ms = ZMQ_LAZY_MS;
    if (zmq_poll(items, z->zap ? 4 : 3, z->again ? 0 : ms) < 0) return; /* EINTR */
    settings_follow(z->frontend, &z->settings);
    if (items[1].revents) drain_eventfd(z->wake_fd);
    if (items[2].revents) drain_eventfd(z->bell.event_fd);
    if (items[2].revents) answer_bell(z);
    if (items[1].revents) take_done(z);
    if (items[1].revents) answer_visit(z);
    if (z->zap && items[3].revents) zmq_auth_answer(z);
    take_again(z);
    zmq_client_flush_all(z); /* answers first */
    while (items[0].revents && taken++ < MESSAGES_PER_TURN && receive(z))
        continue;
    if (z->opened_here) take_done(z);
    z->opened_here = 0;
    if (z->stuck_count) zmq_client_retry(z);
    zmq_client_sweep(z, clock_mono_ns());
    zmq_client_flush_all(z);
    reports_tell(&z->reports, z->frontend);
}

/* Ends what is open, waits for the text threads, and a moment for the bytes. */
static void wind_down(struct zmq_front *z)
{
    int64_t until = clock_mono_ns() + 2 * second_ns;

    z->draining = true;
    z->swept_ns = 0; /* who has only something unread is not waited for */
    while (z->call_count) {
        zmq_call_end_all(z);
        turn(z, 20);
    }
    while (z->clients && clock_mono_ns() < until)
        turn(z, 20);
    zmq_client_drop_all(z);
}

static void *zmq_main(void *arg)
{
    struct zmq_front *z = arg;

    pthread_setname_np(pthread_self(), "inferd-zmq");
    z->self = pthread_self();
    while (!atomic_load(&z->stopping))
        turn(z, z->clients ? TURN_MS : -1); /* nobody there: nothing to look after */
    wind_down(z);
    return NULL;
}

/* --- life --- */

static bool set_int(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}

static enum status set_options(struct zmq_front *z, struct error *err)
{
    int64_t largest = (int64_t)z->frontend->options.body_bytes_max;
    /* A TCP connection in which nothing gets through for so long ends (TCP_USER_TIMEOUT), and what libzmq holds for it goes: after its
     * requests have been ended as too slow. Those of ipc: zmq_peer.c. */
    int unread_ms = 2 * (int)z->frontend->options.client_stall_s * 1000;
    void *s = z->router;

    if (!set_int(s, ZMQ_ROUTER_MANDATORY, 1) || !set_int(s, ZMQ_SNDHWM, ZMQ_SEND_HWM) ||
        !set_int(s, ZMQ_RCVHWM, ZMQ_RECEIVE_HWM) || !set_int(s, ZMQ_LINGER, LINGER_MS) ||
        !set_int(s, ZMQ_TCP_MAXRT, unread_ms) || !set_int(s, ZMQ_HEARTBEAT_IVL, HEARTBEAT_MS) ||
        !set_int(s, ZMQ_HEARTBEAT_TIMEOUT, SILENCE_MS) ||
        !set_int(s, ZMQ_HEARTBEAT_TTL, 10 * HEARTBEAT_MS) || !set_int(s, ZMQ_HANDSHAKE_IVL, 5000) ||
        zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &largest, sizeof largest))
        return error_set(err, STATUS_IO, "ZeroMQ refused a socket option: %s",
                         zmq_strerror(zmq_errno()));
    return STATUS_OK;
}

static enum status open_all(struct zmq_front *z, struct error *err)
{
    if (output_bell_init(&z->bell)) return error_set(err, STATUS_IO, "no eventfd for ZeroMQ");
    z->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (z->wake_fd < 0) return error_set(err, STATUS_IO, "no eventfd for ZeroMQ");
    z->context = zmq_ctx_new();
    z->router = z->context ? zmq_socket(z->context, ZMQ_ROUTER) : NULL;
    if (!z->router)
        return error_set(err, STATUS_NOMEM, "ZeroMQ gave no socket: %s", zmq_strerror(zmq_errno()));
    enum status st = set_options(z, err);

    if (!st) st = zmq_auth_create(z, &z->auth, err);
    return st ? st : zmq_listen_all(z, err);
}

enum status zmq_front_create(struct frontend *frontend, struct zmq_front **out, struct error *err)
{
    struct zmq_front *z = calloc(1, sizeof *z);

    if (!z) return error_set(err, STATUS_NOMEM, "no memory for the ZeroMQ front end");
    z->frontend = frontend;
    z->stats = &frontend->stats->zmq;
    z->wake_fd = z->bell.event_fd = -1;
    z->settings = frontend->settings_now;
    settings_ref(z->settings);
    z->secret = hash_secret();
    pthread_mutex_init(&z->lock, NULL);
    pthread_mutex_init(&z->blocks.lock, NULL);
    enum status st = open_all(z, err);

    if (!st && pthread_create(&z->thread, NULL, zmq_main, z))
        st = error_set(err, STATUS_NOMEM, "no room for the ZeroMQ thread");
    if (st) {
        zmq_front_destroy(z);
        return st;
    }
    z->started = true;
    *out = z;
    return STATUS_OK;
}

void zmq_front_stop(struct zmq_front *z)
{
    if (!z) return;
    atomic_store(&z->stopping, true);
    wake(z);
}

void zmq_front_destroy(struct zmq_front *z)
{
    if (!z) return;
    if (z->started) pthread_join(z->thread, NULL);
    frontend_settle(z->frontend);
    if (z->router) zmq_close(z->router);
    if (z->zap) zmq_close(z->zap);
    while (z->context && zmq_ctx_term(z->context) && errno == EINTR)
        continue;               /* it waits LINGER_MS at most */
    zmq_listen_remove_files(z); /* libzmq leaves them behind */
    zmq_auth_destroy(z->auth);
    if (z->bell.event_fd >= 0) output_bell_fini(&z->bell);
    if (z->wake_fd >= 0) close(z->wake_fd);
    pthread_mutex_destroy(&z->lock);
    zmq_blocks_fini(&z->blocks); /* libzmq has let go of all messages */
    settings_unref(z->settings);
    free(z->endpoints);
    free(z);
}
