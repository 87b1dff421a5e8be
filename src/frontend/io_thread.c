#include "frontend/io_thread.h"

#include <errno.h>
#include <malloc.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "frontend/tls.h"

enum { EVENTS_PER_TURN = 256, CROWD = 512 };
static const int64_t second_ns = 1000000000;
/* What an event of our epoll set is about; any other data.ptr is a conn. */
static char tag_mhd, tag_wake, tag_bell, tag_linger;
char io_tag_listen;

void io_wake(struct io_thread *io)
{
    uint64_t one = 1;

    (void)!write(io->wake_fd, &one, sizeof one); /* EAGAIN: it is awake already */
}

static void drain_eventfd(int fd)
{
    uint64_t count;

    (void)!read(fd, &count, sizeof count);
}

bool io_watch(struct io_thread *io, int fd, uint32_t events, void *tag)
{
    struct epoll_event event = {.events = events, .data.ptr = tag};

    return epoll_ctl(io->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* --- calls --- */

struct output_bell *io_bell(struct io_thread *io)
{
    return &io->bell;
}

struct reports *io_reports(struct io_thread *io)
{
    return &io->reports;
}

const struct frontend_options *io_settings(const struct io_thread *io)
{
    return &io->settings->o;
}

void io_suspend(struct call *call)
{
    if (call->suspended) return;
    call->suspended = true;
    MHD_suspend_connection(call->conn->mhd);
}

void io_resume(struct call *call)
{
    if (!call->suspended) return;
    call->suspended = false;
    MHD_resume_connection(call->conn->mhd);
}

void io_watch_writable(struct call *call, bool on)
{
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET | (on ? EPOLLOUT : 0u),
                                .data.ptr = call->conn};

    epoll_ctl(call->conn->io->epoll_fd, EPOLL_CTL_MOD, call->conn->fd, &event);
}

void io_done(struct call *call)
{
    struct io_thread *io = call->conn->io;

    pthread_mutex_lock(&io->lock);
    bool first = io->done == NULL;

    call->next_done = io->done;
    io->done = call;
    pthread_mutex_unlock(&io->lock);
    if (first && !pthread_equal(pthread_self(), io->self)) io_wake(io);
}

bool io_may_open(struct call *call)
{
    struct io_thread *io = call->conn->io;

    return io->opened_here < OPEN_HERE_MAX && ++io->opened_here;
}

void io_again(struct call *call)
{
    struct io_thread *io = call->conn->io;

    if (call->in_again) return;
    call->in_again = true;
    call->next_again = io->again;
    io->again = call;
}

static void take_done(struct io_thread *io)
{
    struct call *call, *next, *oldest_first = NULL;

    pthread_mutex_lock(&io->lock);
    call = io->done;
    io->done = NULL;
    pthread_mutex_unlock(&io->lock);
    for (; call; call = next) {
        next = call->next_done;
        call->next_done = oldest_first;
        oldest_first = call;
    }
    for (call = oldest_first; call; call = next) {
        next = call->next_done;
        call_parsed(call);
    }
}

static void pump(struct call *call)
{
    bool more;

    if (call->state == CALL_STREAM && !call->suspended) return; /* libmicrohttpd will ask */
    if (call->state != CALL_STREAM && call->state != CALL_WAITING) return;
    if (call->direct) {
        sse_pump(call, &more);
        if (more) io_again(call);
        return;
    }
    call_pump(call, &more);
    if (call->state == CALL_STREAM && (call->out.len > call->out_at || call->ended))
        io_resume(call);
    if (call->state == CALL_WAITING && more) io_again(call);
}

static void take_again(struct io_thread *io)
{
    struct call *next, *call = io->again;

    io->again = NULL;
    for (; call; call = next) {
        next = call->next_again;
        call->in_again = false;
        pump(call);
    }
}

static void forget_again(struct io_thread *io, struct call *call)
{
    for (struct call **at = &io->again; *at; at = &(*at)->next_again)
        if (*at == call) {
            *at = call->next_again;
            return;
        }
}

/* Asks for what pump will touch of a stream that comes soon. */
static void fetch(const struct request *r)
{
    const struct call *call = r->frontend;

    output_ring_fetch(r->ring);
    if (call) __builtin_prefetch(&call->state);
    if (call) __builtin_prefetch(&call->api);
    if (call) __builtin_prefetch(&call->out);
}

static void answer_bell(struct io_thread *io)
{
    enum { FAR = 6, NEAR = 3 };
    struct request *next, *r = output_bell_take(&io->bell);
    const struct request *far = r, *near = r;

    for (int i = 0; far && i < FAR; i++) {
        if (i >= FAR - NEAR) near = output_bell_look(near);
        far = output_bell_look(far);
    }
    for (; r; r = next) {
        if (far) {
            fetch(near);
            near = output_bell_look(near);
            far = output_bell_look(far);
        }
        next = output_bell_next(r);
        struct call *call = r->frontend;

        /* while the text thread still has the call, call_parsed will look */
        if (call && call->state != CALL_PARSING) pump(call);
        request_unref(r);
    }
}

/* --- connections --- */

void io_link(struct io_thread *io, struct conn *conn)
{
    conn->prev = NULL;
    conn->next = io->conns;
    if (io->conns) io->conns->prev = conn;
    io->conns = conn;
    if (!io->conns_end) io->conns_end = conn;
}

void io_unlink(struct io_thread *io, struct conn *conn)
{
    *(conn->prev ? &conn->prev->next : &io->conns) = conn->next;
    *(conn->next ? &conn->next->prev : &io->conns_end) = conn->prev;
}

void io_touch(struct conn *conn)
{
    conn->since_ns = clock_mono_ns();
    io_unlink(conn->io, conn);
    io_link(conn->io, conn);
}

/* Reads away what the client still sends, so that the kernel delivers our answer instead of a reset. */
void io_linger(struct io_thread *io, int fd)
{
    if (io->linger_count == LINGERS_MAX || !io_watch(io, fd, EPOLLIN | EPOLLRDHUP, &tag_linger)) {
        close(fd);
        return;
    }
    shutdown(fd, SHUT_WR);
    io->lingers[io->linger_count++] = (struct leftover){fd, clock_mono_ns() + 2 * second_ns};
}

/* libmicrohttpd has done with it and closes the socket next. */
static void close_conn(struct io_thread *io, struct conn *conn)
{
    epoll_ctl(io->epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL);
    if (conn->call) { /* its head was never whole */
        if (conn->call->received_ns) atomic_fetch_sub(&io->frontend->busy, 1);
        forget_again(io, conn->call);
        call_destroy(conn->call);
    }
    if (conn->linger_fd >= 0) io_linger(io, conn->linger_fd);
    io_unlink(io, conn);
    io->conn_count--;
    if (conn->address) address_count_leave(io->frontend->addresses, conn->address);
    free(conn);
    atomic_fetch_add_explicit(&io->frontend->stats->connections_closed, 1, memory_order_relaxed);
}

static void on_connection(void *cls, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct io_thread *io = cls;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *context = io->arriving;
        if (io->arriving) io->arriving->mhd = mhd;
    } else if (*context) {
        close_conn(io, *context);
    }
}

static void on_completed(void *cls, struct MHD_Connection *mhd, void **con_cls,
                         enum MHD_RequestTerminationCode how)
{
    struct io_thread *io = cls;

    if (*con_cls) forget_again(io, *con_cls);
    http_completed(io->frontend, mhd, con_cls, how);
}

static void *on_request_line(void *cls, const char *target, struct MHD_Connection *mhd)
{
    struct io_thread *io = cls;

    return http_request_line(io->frontend, target, mhd);
}

static void hang_up(struct conn *conn)
{
    struct call *call = conn->call;

    if (!conn->mhd) {
        accept_drop(conn->io, conn);
        return;
    }
    conn->hung_up = true;
    conn->hung_up_ns = clock_mono_ns();
    /* while libmicrohttpd reads it sees the end itself; a sent answer needs nobody */
    if (call && call->state >= CALL_PARSING && call->state <= CALL_STREAM) call_vanish(call);
}

static void end_linger(struct io_thread *io, uint32_t i)
{
    close(io->lingers[i].fd);
    io->lingers[i] = io->lingers[--io->linger_count];
}

static void read_lingers(struct io_thread *io, int64_t now)
{
    char away[16384];

    for (uint32_t i = io->linger_count; i-- > 0;) {
        ssize_t got = 1;

        for (int turns = 0; turns < 16 && got > 0; turns++)
            got = recv(io->lingers[i].fd, away, sizeof away, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN) || now > io->lingers[i].until_ns)
            end_linger(io, i);
    }
}

/* --- time limits --- */

/* Whether the kernel has had the same unsent bytes all the time that this answer is sent, and for longer than the limit. */
static bool is_stuck(struct call *call, int64_t now, int64_t limit_ns)
{
    int unsent = 0;

    if (ioctl(call->conn->fd, SIOCOUTQ, &unsent) || unsent == 0 || unsent != call->unsent) {
        call->unsent = unsent;
        call->unsent_ns = now;
        return false;
    }
    return now - call->unsent_ns > limit_ns;
}

static void sweep_conn(struct io_thread *io, struct conn *conn, int64_t now)
{
    const struct frontend_options *o = &io->settings->o;
    struct call *call = conn->call;
    int64_t age_ns = now - conn->since_ns;

    if (!call || call->state <= CALL_BODY) {
        bool idle = !call && !conn->fresh;

        if (conn->hung_up && now - conn->hung_up_ns > second_ns / 2) {
            shutdown(conn->fd,
                     SHUT_RDWR); /* an end that came with the data: libmicrohttpd has not seen it */
            return;
        }
        uint32_t limit_s = idle                               ? o->idle_timeout_s
                           : call && call->state == CALL_BODY ? o->body_timeout_s
                                                              : o->header_timeout_s;

        if (idle && age_ns > second_ns) idle_memory_drop(conn);
        if (age_ns < limit_s * second_ns) return;
        atomic_fetch_add_explicit(&io->frontend->stats->connections_timed_out, 1,
                                  memory_order_relaxed);
        if (!conn->mhd) {
            accept_drop(io, conn);
            return;
        }
        shutdown(conn->fd, SHUT_RDWR); /* libmicrohttpd sees the end and closes */
    } else if (call->state == CALL_STREAM && (call->direct ? call->blocked : !call->suspended) &&
               now - call->last_taken_ns > o->client_stall_s * second_ns) {
        log_info("client stalled", "request_id=%s", call->request_id);
        call_vanish(call);
    } else if (call->state == CALL_SENT && is_stuck(call, now, o->client_stall_s * second_ns)) {
        log_info("client stalled", "request_id=%s", call->request_id);
        shutdown(conn->fd, SHUT_RDWR);
    }
}

/* After a crowd has left, also one that was there between two sweeps only: libmicrohttpd's pools are of a size that malloc keeps.
 * Once more when most of the rest has left too. */
static void give_back(struct io_thread *io)
{
    if (io->conns_peak < CROWD || io->conn_count > io->conns_peak / 4) return;
    io->conns_peak = io->conn_count;
    if (io->conns_peak > CROWD / 4 && io->conns_peak < CROWD) io->conns_peak = CROWD;
    malloc_trim(0);
}

static void sweep(struct io_thread *io, int64_t now)
{
    struct conn *next;

    if (now - io->swept_ns < second_ns) return;
    io->swept_ns = now;
    for (struct conn *conn = io->conns; conn; conn = next) {
        next = conn->next;
        sweep_conn(io, conn, now);
    }
    read_lingers(io, now);
    give_back(io);
}

/* --- the loop --- */

static int wait_ms(struct io_thread *io)
{
    MHD_UNSIGNED_LONG_LONG mhd_ms;
    int ms = io->conns || io->linger_count || io->conns_peak >= CROWD || atomic_load(&io->stopping)
                 ? 1000
                 : -1;

    if (io->again) return 0;
    if (MHD_get_timeout(io->mhd, &mhd_ms) == MHD_YES && (ms < 0 || mhd_ms < (unsigned)ms))
        ms = mhd_ms > 1000 ? 1000 : (int)mhd_ms;
    return ms;
}

static void conn_event(struct io_thread *io, struct conn *conn, uint32_t events)
{
    if (!conn->mhd && events & EPOLLIN)
        accept_hand_over(io, conn);
    else if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        hang_up(conn);
    else if (events & EPOLLOUT && conn->call)
        sse_writable(conn->call);
}

/* What others have asked of this thread since the last turn. */
static void look_around(struct io_thread *io)
{
    struct frontend *f = io->frontend;

    settings_follow(f, &io->settings);
    accept_watch(io);
    pthread_mutex_lock(&io->lock);
    if (io->visit) {
        io->visit(io, io->visit_ctx);
        io->visit = NULL;
        sem_post(io->visited);
    }
    pthread_mutex_unlock(&io->lock);
}

bool io_visit(struct io_thread *io, void (*visit)(struct io_thread *io, void *ctx), void *ctx)
{
    struct timespec until;
    sem_t visited;

    sem_init(&visited, 0, 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 2;
    pthread_mutex_lock(&io->lock);
    io->visit = visit;
    io->visit_ctx = ctx;
    io->visited = &visited;
    pthread_mutex_unlock(&io->lock);
    io_wake(io);
    int waited;

    while ((waited = sem_timedwait(&visited, &until)) && errno == EINTR)
        ;
    pthread_mutex_lock(&io->lock); /* it may come to it just now */
    bool came = !waited || !io->visit;

    io->visit = NULL;
    pthread_mutex_unlock(&io->lock);
    sem_destroy(&visited);
    return came;
}

static void turn(struct io_thread *io, int ms)
{
    struct epoll_event events[EVENTS_PER_TURN];
    int count = epoll_wait(io->epoll_fd, events, EVENTS_PER_TURN, ms);
    bool bell = false, done = false, linger = false, arrived = false;

    /* hang-ups first: a conn is freed only within MHD_run, so every pointer here is alive */
    for (int i = 0; i < count; i++) {
        void *tag = events[i].data.ptr;

        if (tag == &tag_bell)
            bell = true;
        else if (tag == &tag_wake)
            done = true;
        else if (tag == &tag_linger)
            linger = true;
        else if (tag == &io_tag_listen)
            arrived = true;
        else if (tag != &tag_mhd)
            conn_event(io, tag, events[i].events);
    }
    if (done) drain_eventfd(io->wake_fd);
    if (bell) drain_eventfd(io->bell.event_fd);
    if (done) take_done(io);
    if (bell) answer_bell(io);
    take_again(io);
    if (arrived) accept_some(io);
    MHD_run(io->mhd);
    for (uint32_t taken = 0; taken != io->opened_here;) {
        taken = io->opened_here;
        take_done(io);
        MHD_run(io->mhd); /* answers that are there already; it may open a few more */
    }
    io->opened_here = 0;
    reports_tell(&io->reports, io->frontend);
    int64_t now = clock_mono_ns();

    if (linger) read_lingers(io, now);
    sweep(io, now);
}

static bool any_call(const struct io_thread *io, bool parsing_only)
{
    for (const struct conn *conn = io->conns; conn; conn = conn->next)
        if (conn->call && (!parsing_only || conn->call->suspended)) return true;
    return false;
}

/* Ends what is open: error events, then a grace for the bytes, then the sockets. */
static void wind_down(struct io_thread *io)
{
    int64_t until = clock_mono_ns() + 2 * second_ns;
    struct conn *next;

    for (struct conn *conn = io->conns; conn; conn = next) {
        next = conn->next;
        if (!conn->mhd) accept_drop(io, conn);
    }
    while (any_call(io, false) && clock_mono_ns() < until) {
        for (struct conn *conn = io->conns; conn; conn = conn->next)
            if (conn->call) call_end(conn->call, "server_draining", "The server is shutting down.");
        turn(io, 20);
    }
    /* libmicrohttpd must not end with suspended connections: text threads may still have some, and a run of it may suspend
     * one more (a request that came whole just now), so the last run is the one after which there is none. */
    do {
        for (struct conn *conn = io->conns; conn; conn = conn->next)
            if (conn->call) call_vanish(conn->call);
        while (any_call(io, true))
            turn(io, 20);
        MHD_run(io->mhd);
    } while (any_call(io, true));
}

static void *io_main(void *arg)
{
    struct io_thread *io = arg;

    pthread_setname_np(pthread_self(), "inferd-io");
    io->self = pthread_self();
    while (!atomic_load(&io->stopping)) {
        look_around(io);
        turn(io, wait_ms(io));
    }
    accept_watch(io);
    wind_down(io);
    MHD_stop_daemon(io->mhd);
    io->mhd = NULL;
    reports_tell(&io->reports, io->frontend);
    return NULL;
}

/* --- life --- */

/* libmicrohttpd 0.9.75 answers a Content-Length that is no number, or is too large for it, itself, and writes the head of that
 * answer twice. It tells its log before it does, in the middle of MHD_run, but not of which connection: the one whose head is being
 * read and has such a length. */
static void refuse_length(struct io_thread *io)
{
    struct conn *conn = io->conns;

    while (conn && !http_refuse_length(conn))
        conn = conn->next;
}

static void log_mhd(void *cls, const char *format, va_list args)
{
    char text[256];

    if (strstr(format, "Content-Length")) refuse_length(cls);
    vsnprintf(text, sizeof text, format, args);
    text[strcspn(text, "\n")] = 0;
    log_debug("http", "says=\"%s\"", text);
}

/* The target stays as it came: http_route.c decodes it. */
static size_t keep_escapes(void *cls, struct MHD_Connection *mhd, char *text)
{
    (void)cls;
    (void)mhd;
    return strlen(text);
}

static struct MHD_Daemon *start_mhd(struct io_thread *io, uint32_t connections_max)
{
    /* the limit proper is accept.c's; what is being closed still counts with libmicrohttpd for a moment */
    const unsigned limit = connections_max + 256;
    const unsigned flags =
        MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_CERT_CALLBACK, 0, (void *)(uintptr_t)tls_certificate},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)tls_priorities},
        {MHD_OPTION_END, 0, NULL}};
    bool https = io->frontend->options.tls_cert != NULL;

    return MHD_start_daemon(
        flags | (https ? MHD_USE_TLS : 0), 0, NULL, NULL, http_handle, io->frontend,
        MHD_OPTION_EXTERNAL_LOGGER, log_mhd, io, MHD_OPTION_CONNECTION_LIMIT, limit,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MHD_POOL_BYTES, MHD_OPTION_CONNECTION_TIMEOUT,
        0u, MHD_OPTION_NOTIFY_CONNECTION, on_connection, io, MHD_OPTION_NOTIFY_COMPLETED,
        on_completed, io, MHD_OPTION_URI_LOG_CALLBACK, on_request_line, io,
        MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1,
        MHD_OPTION_ARRAY, https ? tls : tls + 2, MHD_OPTION_END);
}

static enum status open_all(struct io_thread *io, uint32_t connections_max, struct error *err)
{
    io->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    io->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    io->spare_fd = dup(io->wake_fd);
    if (io->epoll_fd < 0 || io->wake_fd < 0 || io->spare_fd < 0)
        return error_set(err, STATUS_IO, "no file descriptor for an I/O thread: %s",
                         strerror(errno));
    io->mhd = start_mhd(io, connections_max);
    if (!io->mhd) return error_set(err, STATUS_NOMEM, "libmicrohttpd could not start");
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(io->mhd, MHD_DAEMON_INFO_EPOLL_FD);

    io->mhd_epoll_fd = info->listen_fd; /* the union's int */
    if (!io_watch(io, io->mhd_epoll_fd, EPOLLIN, &tag_mhd) ||
        !io_watch(io, io->wake_fd, EPOLLIN, &tag_wake) ||
        !io_watch(io, io->bell.event_fd, EPOLLIN, &tag_bell))
        return error_set(err, STATUS_IO, "epoll_ctl: %s", strerror(errno));
    return STATUS_OK;
}

enum status io_create(struct frontend *frontend, struct io_thread *io, uint32_t number,
                      uint32_t connections_max, struct error *err)
{
    (void)number;
    io->frontend = frontend;
    io->epoll_fd = io->wake_fd = io->spare_fd = -1;
    io->conns_max = connections_max;
    io->settings = frontend->settings_now;
    settings_ref(io->settings);
    pthread_mutex_init(&io->lock, NULL);
    enum status st = output_bell_init(&io->bell);

    if (st) return error_set(err, st, "no eventfd for an I/O thread");
    st = open_all(io, connections_max, err);
    if (!st && pthread_create(&io->thread, NULL, io_main, io))
        st = error_set(err, STATUS_NOMEM, "no room for an I/O thread");
    io->started = !st;
    return st;
}

void io_stop(struct io_thread *io)
{
    atomic_store(&io->stopping, true);
    if (io->wake_fd >= 0) io_wake(io);
}

void io_join(struct io_thread *io)
{
    if (io->started) pthread_join(io->thread, NULL);
    io->started = false;
}

void io_destroy(struct io_thread *io)
{
    if (!io->frontend) return; /* never made */
    io_join(io);
    if (io->mhd) MHD_stop_daemon(io->mhd);
    while (io->linger_count)
        end_linger(io, io->linger_count - 1);
    if (io->bell.event_fd >= 0) output_bell_fini(&io->bell);
    if (io->spare_fd >= 0) close(io->spare_fd);
    settings_unref(io->settings);
    if (io->wake_fd >= 0) close(io->wake_fd);
    if (io->epoll_fd >= 0) close(io->epoll_fd);
    pthread_mutex_destroy(&io->lock);
}
