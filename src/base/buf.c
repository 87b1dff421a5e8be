#include "base/buf.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

void buf_init(struct buf *buf, size_t limit)
{
    *buf = (struct buf){.limit = limit};
}

void buf_fini(struct buf *buf)
{
    free(buf->ptr);
    buf_init(buf, buf->limit);
}

void buf_clear(struct buf *buf)
{
    buf->len = 0;
    buf->failed = STATUS_OK;
}

char *buf_reserve(struct buf *buf, size_t extra)
{
    size_t need, cap;
    char *grown;

    if (buf->failed) return NULL;
    if (extra > SIZE_MAX / 4 || (buf->limit && extra > buf->limit - buf->len)) {
        buf->failed = STATUS_LIMIT;
        return NULL;
    }
    need = buf->len + extra;
    if (buf->ptr && need <= buf->cap) return buf->ptr + buf->len;
    cap = buf->cap ? buf->cap : 64;
    while (cap < need)
        cap *= 2;
    grown = realloc(buf->ptr, cap);
    if (!grown) {
        buf->failed = STATUS_NOMEM;
        return NULL;
    }
    buf->ptr = grown;
    buf->cap = cap;
    return buf->ptr + buf->len;
}

void buf_append(struct buf *buf, const void *bytes, size_t len)
{
    char *to = len ? buf_reserve(buf, len) : NULL;

    if (!to) return;
    memcpy(to, bytes, len);
    buf->len += len;
}

void buf_append_slice(struct buf *buf, struct slice s)
{
    buf_append(buf, s.ptr, s.len);
}

void buf_append_str(struct buf *buf, const char *text)
{
    buf_append(buf, text, strlen(text));
}

void buf_append_char(struct buf *buf, char c)
{
    buf_append(buf, &c, 1);
}

void buf_printf(struct buf *buf, const char *format, ...)
{
    va_list args, again;
    int n;
    char *to;

    va_start(args, format);
    va_copy(again, args);
    n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n > 0 && (to = buf_reserve(buf, (size_t)n + 1))) {
        vsnprintf(to, (size_t)n + 1, format, again);
        buf->len += (size_t)n;
    }
    va_end(again);
}

enum status buf_status(const struct buf *buf)
{
    return buf->failed;
}

struct slice buf_slice(const struct buf *buf)
{
    return slice_of(buf->ptr, buf->failed ? 0 : buf->len);
}

const char *buf_cstr(struct buf *buf)
{
    size_t limit = buf->limit;
    char *end;

    buf->limit = 0; /* the terminator does not count */
    end = buf_reserve(buf, 1);
    buf->limit = limit;
    if (!end) return "";
    *end = '\0';
    return buf->ptr;
}
