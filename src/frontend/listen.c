#include "frontend/listen.h"

#include <errno.h>
#include <linux/filter.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 4096 }; /* the kernel cuts it to net.core.somaxconn */

uint16_t listen_port(int fd)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof address;

    if (getsockname(fd, (struct sockaddr *)&address, &len)) return 0;
    if (address.ss_family != AF_INET && address.ss_family != AF_INET6) return 0;
    return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                               : ((struct sockaddr_in *)&address)->sin_port);
}

/* Without SO_REUSEPORT, unless asked for: a second daemon on the same port must fail, not share it. */
static int try_address(const struct addrinfo *a, bool reuse_port)
{
    int on = 1, fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (reuse_port) setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && (reuse_port || listen(fd, BACKLOG) == 0))
        return fd;
    int saved = errno;

    close(fd);
    errno = saved;
    return -1;
}

enum status listen_start(int fd, struct error *err)
{
    if (listen(fd, BACKLOG) == 0) return STATUS_OK;
    return error_set(err, STATUS_IO, "cannot listen: %s", strerror(errno));
}

/* The group's sockets are numbered in the order in which they began to listen, so with two of them the newer one is 1. A
 * number that no socket has leaves the choice to the kernel's hash, as without a program. What is in our queue already
 * stays ours to accept, and so does what is in the middle of its handshake. */
void listen_steer_away(int fd)
{
    struct sock_filter code[] = {{BPF_RET | BPF_K, 0, 0, 1}};
    struct sock_fprog program = {1, code};

    setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program);
}

void listen_steer_back(int fd)
{
    int unused = 0;

    setsockopt(fd, SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, &unused, sizeof unused);
}

enum status listen_tcp(const char *host, uint16_t port, bool reuse_port, int *fd,
                       uint16_t *bound_port, struct error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list;
    char service[8];

    snprintf(service, sizeof service, "%u", port);
    int fault = getaddrinfo(host, service, &hints, &list);

    if (fault)
        return error_set(err, STATUS_INVALID, "host %s is no address to listen on: %s", host,
                         gai_strerror(fault));
    *fd = -1;
    for (const struct addrinfo *a = list; a && *fd < 0; a = a->ai_next)
        *fd = try_address(a, reuse_port);
    freeaddrinfo(list);
    if (*fd < 0)
        return error_set(
            err, STATUS_IO, "cannot listen on %s port %u: %s%s", host, port, strerror(errno),
            errno == EADDRINUSE ? "; stop what is using it or choose another --port" : "");
    *bound_port = listen_port(*fd);
    return STATUS_OK;
}

/* Whether somebody accepts on the socket at this address. */
static int is_alive(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), alive;

    if (fd < 0) return 0;
    alive = connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 ||
            errno == EAGAIN; /* its queue is full */
    close(fd);
    return alive;
}

enum status listen_clear(const char *path, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat st;

    if (strlen(path) >= sizeof address.sun_path)
        return error_set(err, STATUS_INVALID,
                         "the path of a unix socket may have at most %zu bytes: %s",
                         sizeof address.sun_path - 1, path);
    strcpy(address.sun_path, path);
    if (stat(path, &st) == 0 && S_ISSOCK(st.st_mode)) {
        if (is_alive(&address))
            return error_set(err, STATUS_IO, "another process listens on %s", path);
        unlink(path);
    } else if (stat(path, &st) == 0) {
        return error_set(err, STATUS_IO,
                         "%s exists and is no socket; move it away or choose another path", path);
    }
    return STATUS_OK;
}

enum status listen_unix(const char *path, unsigned mode, int *fd, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    enum status cleared = listen_clear(path, err);

    if (cleared) return cleared;
    strcpy(address.sun_path, path);
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    mode_t mask = mode ? umask(~(mode_t)mode & 0777) : 0; /* from its first moment on */
    bool bound = *fd >= 0 && bind(*fd, (struct sockaddr *)&address, sizeof address) == 0;

    if (mode) umask(mask);
    if (bound && listen(*fd, BACKLOG) == 0) return STATUS_OK;
    error_set(err, STATUS_IO, "cannot listen on %s: %s", path, strerror(errno));
    if (*fd >= 0) close(*fd);
    *fd = -1;
    return STATUS_IO;
}
