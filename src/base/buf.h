/* buf.h - a growing run of bytes with a limit.
 *
 * A buf that could not grow (no memory, or over its limit) becomes `failed` and stays so: later
 * appends do nothing, so a writer checks once, at the end, with buf_status().
 * Thread: whoever holds it. Memory: doubles; given back by buf_fini. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/slice.h"
#include "base/status.h"

struct buf {
    char *ptr;    /* owned; not NUL-terminated unless buf_cstr() was called */
    size_t len;   /* bytes in use */
    size_t cap;   /* bytes allocated */
    size_t limit; /* len never exceeds it; 0 means no limit */
    enum status failed;
};

void buf_init(struct buf *buf, size_t limit);
void buf_fini(struct buf *buf);  /* idempotent; leaves an empty buf */
void buf_clear(struct buf *buf); /* keeps the memory, forgets content and failure */

/* Makes room for `extra` more bytes and returns where they go, or NULL (then failed). The caller
 * adds what it wrote to buf->len. */
char *buf_reserve(struct buf *buf, size_t extra);
void buf_append(struct buf *buf, const void *bytes, size_t len);
void buf_append_slice(struct buf *buf, struct slice s);
void buf_append_str(struct buf *buf, const char *text);
void buf_append_char(struct buf *buf, char c);
void buf_printf(struct buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* STATUS_OK, STATUS_NOMEM or STATUS_LIMIT. */
enum status buf_status(const struct buf *buf);
struct slice buf_slice(const struct buf *buf);

/* NUL-terminated content, borrowed until the next append. "" when failed. */
const char *buf_cstr(struct buf *buf);
