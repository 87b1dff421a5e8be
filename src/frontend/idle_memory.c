/* idle_memory.c - the buffer of a connection that waits for its next request goes back to the system.
 *
 * libmicrohttpd takes one pool a connection, by mmap when it is larger than 32 KiB, and fills it with zeroes after every
 * request: all of its pages become resident and stay so (36 KiB a connection, and 64 before). A page of zeroes in a private
 * anonymous mapping reads the same after MADV_DONTNEED, so whatever libmicrohttpd has in mind for it, dropping it changes
 * nothing; pages with a byte of a request that has begun are kept. All that must be right is that the range is the pool's:
 * its first allocation is the read buffer, so the first request line of a connection starts where the pool does, unless empty
 * lines came before it (accept.c has looked) or another version does otherwise (then it starts on no page's border, or the
 * version is none that was looked at, and nothing is dropped). Thread: the connection's I/O thread, which alone runs libmicrohttpd. */
#include <assert.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "frontend/io_thread.h"

enum { PAGE_BYTES = 4096 };
static_assert(MHD_POOL_BYTES > 32 << 10 && MHD_POOL_BYTES % PAGE_BYTES == 0,
              "a mapping of its own");

void idle_memory_note(struct conn *conn, const char *method)
{
    if (!conn->fresh || conn->pool || !conn->starts_with_line) return;
    if (strncmp(MHD_get_version(), "0.9.7", 5) != 0) return;
    if ((uintptr_t)method % PAGE_BYTES == 0) conn->pool = (char *)(uintptr_t)method;
}

static bool is_zero(const char *page)
{
    return page[0] == 0 && memcmp(page, page + 1, PAGE_BYTES - 1) == 0;
}

void idle_memory_drop(struct conn *conn)
{
    size_t from = 0, at;

    if (conn->dropped || !conn->pool) return;
    conn->dropped = true;
    for (at = 0; at <= MHD_POOL_BYTES; at += PAGE_BYTES) { /* runs of zero pages */
        if (at < MHD_POOL_BYTES && is_zero(conn->pool + at)) continue;
        if (at > from) madvise(conn->pool + from, at - from, MADV_DONTNEED);
        from = at + PAGE_BYTES;
    }
}
