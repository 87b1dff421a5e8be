#include "config/systemd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FIRST_FD = 3 };

static bool read_number(const char *name, uint64_t *out)
{
    const char *text = getenv(name);
    char *end;

    if (!text || *text < '0' || *text > '9') return false;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return !errno && !*end;
}

/* Whether NAME is absent or our own process id. */
static bool is_for_us(const char *name, bool absent)
{
    uint64_t pid;

    if (!getenv(name)) return absent;
    return read_number(name, &pid) && pid == (uint64_t)getpid();
}

static void copy(char *out, size_t size, const char *name)
{
    const char *text = getenv(name);

    if (text && strlen(text) < size) memcpy(out, text, strlen(text) + 1);
}

static bool is_listening(int fd)
{
    int on = 0;
    socklen_t len = sizeof on;

    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &len) == 0 && on;
}

static void read_sockets(struct systemd *s)
{
    uint64_t count;
    const char *names = getenv("LISTEN_FDNAMES");

    if (!is_for_us("LISTEN_PID", false) || !read_number("LISTEN_FDS", &count)) return;
    for (uint64_t i = 0; i < count && i < SYSTEMD_FDS_MAX; i++) {
        int fd = FIRST_FD + (int)i;
        size_t len = names ? strcspn(names, ":") : 0;
        char name[64] = "unknown";

        if (names && len && len < sizeof name) {
            memcpy(name, names, len);
            name[len] = '\0';
        }
        if (names) names += len + (names[len] == ':');
        if (!is_listening(fd)) continue;
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
        s->fds[s->fd_count].fd = fd;
        memcpy(s->fds[s->fd_count++].name, name, sizeof name);
    }
}

void systemd_read(struct systemd *out)
{
    static const char *const names[] = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID",
                                        "LISTEN_FDS",    "LISTEN_PID",    "LISTEN_FDNAMES"};
    uint64_t watchdog_us;

    *out = (struct systemd){0};
    copy(out->notify_socket, sizeof out->notify_socket, "NOTIFY_SOCKET");
    copy(out->credentials, sizeof out->credentials, "CREDENTIALS_DIRECTORY");
    if (is_for_us("WATCHDOG_PID", true) && read_number("WATCHDOG_USEC", &watchdog_us))
        out->watchdog_us = watchdog_us;
    read_sockets(out);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
}

int systemd_socket(const struct systemd *s, const char *name)
{
    for (uint32_t i = 0; i < s->fd_count; i++)
        if (strcmp(s->fds[i].name, name) == 0) return s->fds[i].fd;
    return -1;
}
