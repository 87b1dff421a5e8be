/* io_thread.h - an I/O thread: one epoll loop over libmicrohttpd's own epoll set, a bell, a list of parsed calls, and
 * every connection's socket (for hang-ups only).
 *
 * libmicrohttpd takes a suspended connection out of its epoll set, so it would not notice a client that leaves; our own
 * set watches each socket for EPOLLRDHUP all the time. Once a second the thread looks at every connection's age.
 * Memory: a conn per connection, libmicrohttpd's pool per connection (MHD_POOL_BYTES, touched as used). */
#pragma once

#include <stdbool.h>

#include <semaphore.h>

#include "engine/output.h"
#include "frontend/call.h"

enum {
    /* Of each connection, for request line, headers and the answer's head: 16 KiB of them must work, 256 KiB must fail.
     * libmicrohttpd zeroes all of it after each request; above 32 KiB it is a mapping of its own (idle_memory.c). */
    MHD_POOL_BYTES = 36 << 10,
    OPEN_HERE_MAX = 16, /* in a turn: some 0.5 ms */
    LINGERS_MAX = 64,   /* closed connections whose leftovers are read away, at once */
};

struct leftover {
    int fd;
    int64_t until_ns;
};

struct io_thread {
    struct frontend *frontend;
    struct settings *settings; /* one reference; the newest at the last turn's begin */
    uint32_t conn_count, conns_max, conns_peak; /* peak: since memory was last given back */
    bool listens;                               /* the listening socket is watched */
    struct conn *arriving;                      /* during MHD_add_connection */
    int spare_fd; /* given up for a moment when descriptors run out, to close a connection properly */
    int64_t told_full_ns; /* last warning about it */
    pthread_t thread, self;
    bool started;
    uint32_t opened_here; /* requests of this turn that this thread opened itself */
    int epoll_fd, mhd_epoll_fd, wake_fd;
    struct MHD_Daemon *mhd;
    struct output_bell bell;
    struct reports reports;
    struct conn *conns,
        *conns_end; /* all connections of this thread, the last to have become active first */
    int64_t swept_ns;
    struct leftover lingers[LINGERS_MAX];
    uint32_t linger_count;
    struct call *again; /* to be pumped in the next turn */
    pthread_mutex_t lock;
    struct call *done;                              /* under lock: parsed, newest first */
    void (*visit)(struct io_thread *io, void *ctx); /* under lock: io_visit's */
    void *visit_ctx;
    sem_t *visited;
    _Atomic bool stopping;
};

/* --- accept.c: connections that have sent nothing yet --- */
/* Takes what waits at the listening socket, some at a time. */
void accept_some(struct io_thread *io);
/* Watches the listening socket or stops doing so, as frontend.accepting says. */
void accept_watch(struct io_thread *io);
/* The first bytes of a silent connection are there: hands it to libmicrohttpd. */
void accept_hand_over(struct io_thread *io, struct conn *conn);
/* Closes a silent connection. */
void accept_drop(struct io_thread *io, struct conn *conn);

/* --- idle_memory.c --- */
/* The first request line of a connection, as libmicrohttpd handed it over: shows where its buffer is. */
void idle_memory_note(struct conn *conn, const char *method);
/* Gives back what an idle connection's buffer holds. */
void idle_memory_drop(struct conn *conn);

/* --- io_thread.c, for accept.c --- */
bool io_watch(struct io_thread *io, int fd, uint32_t events, void *tag);
void io_link(struct io_thread *io, struct conn *conn); /* to the front of the list */
void io_unlink(struct io_thread *io, struct conn *conn);
void io_linger(struct io_thread *io, int fd); /* takes fd */
extern char io_tag_listen;
