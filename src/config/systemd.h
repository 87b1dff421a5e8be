/* systemd.h - what a service manager tells us in the environment: sockets, credentials, watchdog.
 *
 * Read once at start, then taken out of the environment so that no child inherits it. Variables meant for another
 * process (LISTEN_PID, WATCHDOG_PID) are ignored. Malformed ones too: a service must start. Thread: at start. */
#pragma once

#include <stdint.h>

enum { SYSTEMD_FDS_MAX = 16 };

struct systemd {
    char notify_socket[108]; /* "": none */
    char credentials[256];   /* $CREDENTIALS_DIRECTORY; "": none */
    uint64_t watchdog_us;    /* 0: no watchdog */
    uint32_t fd_count;       /* sockets handed over; fds 3, 4 ... */
    struct {
        int fd;
        char name[64]; /* FileDescriptorName=, "unknown" without */
    } fds[SYSTEMD_FDS_MAX];
};

void systemd_read(struct systemd *out);

/* The socket with this name, -1: none. */
int systemd_socket(const struct systemd *systemd, const char *name);
