/* io_thread.h - an I/O thread: one epoll loop over libmicrohttpd's own epoll set, a bell, a list of parsed calls, and
 * every connection's socket (for hang-ups only).
 *
 * libmicrohttpd takes a suspended connection out of its epoll set, so it would not notice a client that leaves; our own
 * set watches each socket for EPOLLRDHUP all the time. Once a second the thread looks at every connection's age.
 * Memory: a conn per connection, libmicrohttpd's pool per connection (MHD_POOL_BYTES, touched as used). */
#pragma once

#include <stdbool.h>

#include "engine/output.h"
#include "frontend/call.h"

enum {
    MHD_POOL_BYTES = 64 << 10, /* request line and headers: 16 KiB must work, 256 KiB must fail */
    LINGERS_MAX = 64,          /* closed connections whose leftovers are read away, at once */
};

struct leftover {
    int fd;
    int64_t until_ns;
};

struct io_thread {
    struct frontend *frontend;
    pthread_t thread;
    bool started;
    int epoll_fd, mhd_epoll_fd, wake_fd, listen_fd;
    struct MHD_Daemon *mhd;
    struct output_bell bell;
    struct conn *conns; /* all connections of this thread */
    int64_t swept_ns;
    struct leftover lingers[LINGERS_MAX];
    uint32_t linger_count;
    struct call *again; /* to be pumped in the next turn */
    bool
        closed_one; /* at its limit libmicrohttpd stops listening, and starts again in the turn after a close */
    pthread_mutex_t lock;
    struct call *done; /* under lock: parsed, newest first */
    _Atomic bool stopping;
};
