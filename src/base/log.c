#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static _Atomic int min_level = LOG_INFO;
static _Atomic int timestamps = 1;
static const char *const level_names[] = {"debug", "info", "warn", "error"};

void log_set_level(enum log_level level)
{
    min_level = level;
}

void log_set_timestamps(int on)
{
    timestamps = on;
}

void log_event(enum log_level level, const char *event, const char *keys, ...)
{
    char line[2048];
    size_t len = 0;
    va_list args;
    int n;

    if ((int)level < min_level) return;
    if (timestamps) {
        struct timespec ts;
        struct tm tm;
        clock_gettime(CLOCK_REALTIME, &ts);
        gmtime_r(&ts.tv_sec, &tm);
        len = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &tm);
        len += (size_t)snprintf(line + len, sizeof line - len, ".%03ldZ ", ts.tv_nsec / 1000000);
    }
    len += (size_t)snprintf(line + len, sizeof line - len, "%s %.200s ", level_names[level], event);
    va_start(args, keys);
    n = vsnprintf(line + len, sizeof line - len, keys, args);
    va_end(args);
    if (n > 0) len += (size_t)n;
    if (len > sizeof line - 2) len = sizeof line - 2;
    while (len && line[len - 1] == ' ')
        len--;
    line[len++] = '\n';
    if (write(STDERR_FILENO, line, len) < 0) return; /* a full disk must not stop serving */
}

const char *log_quote(struct slice text, char *out, size_t out_size)
{
    size_t o = 0;

    out[o++] = '"';
    for (size_t i = 0; i < text.len && o + 6 < out_size; i++) {
        unsigned char c = (unsigned char)text.ptr[i];
        if (c == '"' || c == '\\')
            o += (size_t)snprintf(out + o, out_size - o, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            o += (size_t)snprintf(out + o, out_size - o, "\\x%02x", c);
        else
            out[o++] = (char)c;
    }
    out[o++] = '"';
    out[o] = '\0';
    return out;
}
