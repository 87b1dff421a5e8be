#include "base/status.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const names[STATUS_COUNT] = {
    [STATUS_OK] = "ok",
    [STATUS_INVALID] = "invalid",
    [STATUS_NOMEM] = "no memory",
    [STATUS_EXHAUSTED] = "exhausted",
    [STATUS_FULL] = "full",
    [STATUS_EMPTY] = "empty",
    [STATUS_NOT_FOUND] = "not found",
    [STATUS_UNSUPPORTED] = "unsupported",
    [STATUS_CORRUPT] = "corrupt",
    [STATUS_INCOMPLETE] = "incomplete",
    [STATUS_LIMIT] = "limit",
    [STATUS_IO] = "i/o",
    [STATUS_CANCELLED] = "cancelled",
    [STATUS_TIMEOUT] = "timeout",
    [STATUS_DEVICE] = "device",
    [STATUS_DEVICE_LOST] = "device lost",
    [STATUS_CLOSED] = "closed",
};

const char *status_name(enum status status)
{
    return (unsigned)status < STATUS_COUNT ? names[status] : "unknown status";
}

/* Drops the bytes of a character that the end of the array has cut. */
static void trim_cut_character(char *text, size_t len)
{
    size_t start = len;

    while (start > 0 && ((unsigned char)text[start - 1] & 0xc0) == 0x80)
        start--;
    if (start == 0) return;
    unsigned char lead = (unsigned char)text[start - 1];
    size_t need = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    if (len - (start - 1) < need) text[start - 1] = '\0';
}

enum status error_set(struct error *err, enum status status, const char *format, ...)
{
    va_list args;
    int n;

    assert(status != STATUS_OK);
    if (!err) return status;
    err->status = status;
    va_start(args, format);
    n = vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    if (n >= (int)sizeof err->message) trim_cut_character(err->message, strlen(err->message));
    return status;
}

enum status error_prefix(struct error *err, const char *format, ...)
{
    char prefix[256], rest[sizeof err->message];
    va_list args;

    if (!err) return STATUS_INVALID;
    va_start(args, format);
    vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    memcpy(rest, err->message, sizeof rest);
    return error_set(err, err->status, "%s: %s", prefix, rest);
}
