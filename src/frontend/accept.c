/* accept.c - connections from the listening socket to the first byte that the client sends.
 *
 *     accept_some --silent: a struct conn of ours, nothing else-- first bytes --accept_hand_over--> libmicrohttpd
 *                    |
 *                    +-- refused: over a limit
 *
 * So a client that connects and says nothing costs some 150 bytes here and no buffer, and is closed by us after
 * --header-timeout-s. At the limit of connections the one that has been idle longest makes room, so that idle ones
 * cannot keep others out. All on the I/O thread; several I/O threads share the listening socket. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "frontend/io_thread.h"

enum {
    ACCEPTS_PER_TURN = 64, /* so that running streams are not held up */
    EVICT_LOOKS = 64,      /* connections looked at for one to close */
};
static const int64_t second_ns = 1000000000, told_every_ns = 10000000000;

void accept_watch(struct io_thread *io)
{
    struct frontend *f = io->frontend;
    bool wanted = atomic_load(&f->accepting) && !atomic_load(&io->stopping);

    if (wanted == io->listens) return;
    if (wanted)
        io->listens = io_watch(io, f->listen_fd, EPOLLIN | EPOLLEXCLUSIVE, &io_tag_listen);
    else
        io->listens = epoll_ctl(io->epoll_fd, EPOLL_CTL_DEL, f->listen_fd, NULL) != 0;
}

static void set_socket(const struct io_thread *io, int fd)
{
    unsigned stall_ms = io->settings->o.client_stall_s * 1000;
    int on = 1;

    if (!atomic_load(&io->frontend->tcp)) return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    /* a peer that acknowledges nothing, or keeps its window shut, for so long is gone */
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &stall_ms, sizeof stall_ms);
}

/* --- limits --- */

static void tell_full(struct io_thread *io, const char *what)
{
    int64_t now = clock_mono_ns();

    if (io->told_full_ns && now - io->told_full_ns < told_every_ns) return;
    io->told_full_ns = now;
    log_warn("connections refused", "why=\"%s\" connections=%u", what, io->conn_count);
}

/* Closes the connection that has been without a request for longest, if that is a second or more. */
static bool evict_one(struct io_thread *io)
{
    int64_t now = clock_mono_ns();
    struct conn *conn = io->conns_end;

    for (int looks = 0; conn && looks < EVICT_LOOKS; looks++, conn = conn->prev) {
        if (conn->call || conn->hung_up || now - conn->since_ns < second_ns) continue;
        if (conn->mhd) {
            conn->hung_up = true;
            conn->hung_up_ns = now;
            shutdown(conn->fd, SHUT_RDWR); /* libmicrohttpd sees the end and closes */
        } else {
            accept_drop(io, conn);
        }
        return true;
    }
    return false;
}

static void refuse(struct io_thread *io, int fd)
{
    close(fd);
    atomic_fetch_add_explicit(&io->frontend->stats->connections_refused, 1, memory_order_relaxed);
}

/* No descriptor is left: the spare one is given up so that the client is closed and not left to wait. False: nothing waits. */
static bool refuse_without_descriptor(struct io_thread *io)
{
    int fd;

    tell_full(io, "no file descriptor is left: ulimit -Hn, LimitNOFILE=");
    evict_one(io);
    if (io->spare_fd < 0) return false;
    close(io->spare_fd);
    fd = accept4(io->frontend->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) refuse(io, fd);
    io->spare_fd = dup(io->wake_fd);
    return fd >= 0;
}

/* --- life of a silent connection --- */

static bool open_silent(struct io_thread *io, int fd, uint64_t address)
{
    struct conn *conn = calloc(1, sizeof *conn);

    if (!conn) return false;
    *conn = (struct conn){.io = io,
                          .fd = fd,
                          .address = address,
                          .linger_fd = -1,
                          .since_ns = clock_mono_ns(),
                          .fresh = true};
    if (!io_watch(io, fd, EPOLLIN | EPOLLRDHUP | EPOLLET, conn)) {
        free(conn);
        return false;
    }
    io_link(io, conn);
    io->conn_count++;
    if (io->conn_count > io->conns_peak) io->conns_peak = io->conn_count;
    set_socket(io, fd);
    atomic_fetch_add_explicit(&io->frontend->stats->connections_accepted, 1, memory_order_relaxed);
    return true;
}

static void take(struct io_thread *io, int fd, const struct sockaddr *from)
{
    struct frontend *f = io->frontend;
    uint64_t address = address_key(from);
    uint32_t limit = io->settings->o.address_connections_max;

    if (io->conn_count >= io->conns_max && !evict_one(io)) {
        tell_full(io, "--max-connections");
        refuse(io, fd);
        return;
    }
    if (address && !address_count_enter(f->addresses, address, limit)) {
        tell_full(io, "--max-connections-per-address");
        refuse(io, fd);
        return;
    }
    if (open_silent(io, fd, address)) return;
    if (address) address_count_leave(f->addresses, address);
    refuse(io, fd);
}

void accept_some(struct io_thread *io)
{
    for (int i = 0; i < ACCEPTS_PER_TURN && io->listens; i++) {
        struct sockaddr_storage from = {0};
        socklen_t len = sizeof from;
        int fd = accept4(io->frontend->listen_fd, (struct sockaddr *)&from, &len,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd >= 0)
            take(io, fd, (struct sockaddr *)&from);
        else if (errno == EMFILE || errno == ENFILE) {
            if (!refuse_without_descriptor(io)) return;
        } else if (errno != ECONNABORTED && errno != EINTR)
            return;
    }
}

/* Takes it out of our books; the socket is still open. */
static void forget(struct io_thread *io, struct conn *conn)
{
    epoll_ctl(io->epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL);
    io_unlink(io, conn);
    io->conn_count--;
    if (conn->address) address_count_leave(io->frontend->addresses, conn->address);
    free(conn);
    atomic_fetch_add_explicit(&io->frontend->stats->connections_closed, 1, memory_order_relaxed);
}

void accept_drop(struct io_thread *io, struct conn *conn)
{
    int fd = conn->fd;

    forget(io, conn);
    close(fd);
}

static bool starts_with_line(int fd)
{
    char first;

    return recv(fd, &first, 1, MSG_PEEK | MSG_DONTWAIT) == 1 && first != '\r' && first != '\n';
}

void accept_hand_over(struct io_thread *io, struct conn *conn)
{
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = conn};
    struct sockaddr_storage from = {0};
    socklen_t len = sizeof from;
    int fd = conn->fd;

    conn->starts_with_line = starts_with_line(fd);
    getpeername(fd, (struct sockaddr *)&from, &len);
    io_unlink(io, conn);
    io_link(io, conn);
    conn->since_ns = clock_mono_ns();
    io->arriving = conn;
    enum MHD_Result ok = MHD_add_connection(io->mhd, fd, (struct sockaddr *)&from, len);

    io->arriving = NULL;
    if (ok == MHD_YES && conn->mhd)
        epoll_ctl(io->epoll_fd, EPOLL_CTL_MOD, fd,
                  &event); /* reports a hang-up that is there already */
    else
        forget(io, conn); /* libmicrohttpd has closed the socket */
}
