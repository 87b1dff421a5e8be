#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/shown.h"
#include "base/utf8.h"

static _Atomic int min_level = LOG_INFO;
static _Atomic int line_format = LOG_TEXT;
static _Atomic int timestamps = 1;
static _Atomic int priorities = 0;
static const char *const level_names[] = {"debug", "info", "warn", "error"};
static const int level_priorities[] = {7, 6, 4, 3}; /* syslog(3) */

void log_set_level(enum log_level level)
{
    min_level = level;
}

int log_set_level_named(const char *name)
{
    for (int i = 0; i < (int)(sizeof level_names / sizeof *level_names); i++)
        if (strcmp(level_names[i], name) == 0) {
            log_set_level((enum log_level)i);
            return 1;
        }
    return 0;
}

int log_enabled(enum log_level level)
{
    return (int)level >= min_level;
}

void log_set_format(enum log_format format)
{
    line_format = format;
}

void log_set_timestamps(int on)
{
    timestamps = on;
}

void log_set_priorities(int on)
{
    priorities = on;
}

int log_is_plain(void)
{
    return line_format == LOG_TEXT && !priorities;
}

/* --- a line that is being made: what does not fit is not written, and `full` says so --- */

enum { LINE_END = 4 }; /* kept for what closes a line */

struct line {
    char *out;
    size_t len;
    bool full;
};

static void put(struct line *line, const char *bytes, size_t len)
{
    if (line->full || line->len + len > LOG_LINE_MAX - LINE_END) {
        line->full = true;
        return;
    }
    memcpy(line->out + line->len, bytes, len);
    line->len += len;
}

static void put_text(struct line *line, const char *text)
{
    put(line, text, strlen(text));
}

static void put_time(struct line *line)
{
    char text[40];
    struct timespec ts;
    struct tm tm;

    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(text + n, sizeof text - n, ".%03ldZ", ts.tv_nsec / 1000000);
    put_text(line, text);
}

/* --- key=value --- */

struct pair {
    struct slice key, value; /* value: without its quotes */
    bool quoted;
};

/* Whether the quote at `at` ends its value: the line ends behind it, or the next key comes. */
static bool is_last_quote(const char *at)
{
    if (!at[1]) return true;
    if (at[1] != ' ') return false;
    size_t key = strcspn(at + 2, "= \"");
    return !at[2] || (key && at[2 + key] == '=');
}

/* Takes the next pair off *text; false: there is none left. */
static bool next_pair(const char **text, struct pair *out)
{
    const char *at = *text + strspn(*text, " ");
    size_t key = strcspn(at, "= ");

    while (*at && at[key] != '=') { /* a word that is no pair */
        at += key;
        at += strspn(at, " ");
        key = strcspn(at, "= ");
    }
    if (!*at) return false;
    out->key = slice_of(at, key);
    at += key + 1;
    out->quoted = *at == '"';
    if (out->quoted) {
        const char *end = ++at;

        while (*end && !(*end == '"' && is_last_quote(end)))
            end += *end == '\\' && end[1] ? 2 : 1;
        out->value = slice_of(at, (size_t)(end - at));
        at = *end ? end + 1 : end;
    } else {
        out->value = slice_of(at, strcspn(at, " "));
        at += out->value.len;
    }
    *text = at;
    return true;
}

/* --- JSON --- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* RFC 8259: -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)? */
static bool is_number(struct slice text)
{
    size_t i = 0, n = text.len;
    const char *p = text.ptr;

    if (n > 32) return false;
    if (i < n && p[i] == '-') i++;
    if (i >= n || !is_digit(p[i]) || (p[i] == '0' && i + 1 < n && is_digit(p[i + 1]))) return false;
    while (i < n && is_digit(p[i]))
        i++;
    if (i < n && p[i] == '.') {
        if (++i >= n || !is_digit(p[i])) return false;
        while (i < n && is_digit(p[i]))
            i++;
    }
    if (i < n && (p[i] | 32) == 'e') {
        i++;
        if (i < n && (p[i] == '+' || p[i] == '-')) i++;
        if (i >= n || !is_digit(p[i])) return false;
        while (i < n && is_digit(p[i]))
            i++;
    }
    return i == n;
}

/* A list of names in brackets, ["a","b"], is one in JSON too. */
static bool is_list(struct slice value)
{
    size_t quotes = 0;

    if (value.len < 2 || value.ptr[0] != '[' || value.ptr[value.len - 1] != ']') return false;
    for (size_t i = 1; i + 1 < value.len; i++) {
        char c = value.ptr[i];
        bool plain = (c | 32) >= 'a' && (c | 32) <= 'z';

        if (c == '"') {
            if (quotes++ % 2 == 0 && value.ptr[i - 1] != '[' && value.ptr[i - 1] != ',')
                return false;
        } else if (c == ',') {
            if (quotes % 2 || value.ptr[i - 1] != '"' || value.ptr[i + 1] != '"') return false;
        } else if (!(quotes % 2) || !(plain || is_digit(c) || c == '_' || c == '-' || c == '.')) {
            return false;
        }
    }
    return quotes % 2 == 0;
}

static bool is_bare(struct slice value)
{
    return is_number(value) || is_list(value) || slice_eq(value, SLICE("true")) ||
           slice_eq(value, SLICE("false"));
}

static int hex_value(char c)
{
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c) : NULL;

    return at ? (int)(at - digits) : -1;
}

static void put_json_byte(struct line *line, unsigned char c)
{
    char text[8];

    if (c == '"' || c == '\\')
        snprintf(text, sizeof text, "\\%c", c);
    else if (c < 0x20 || c == 0x7f)
        snprintf(text, sizeof text, "\\u%04x", c);
    else
        snprintf(text, sizeof text, "%c", c);
    put_text(line, text);
}

/* What log_quote escaped is what it was again; bytes that are no UTF-8 become U+FFFD. */
static void put_json_string(struct line *line, struct slice s)
{
    put(line, "\"", 1);
    for (size_t i = 0; i < s.len;) {
        const char *at = s.ptr + i;
        size_t left = s.len - i;
        unsigned n = utf8_sequence_len(at, left);

        if (left >= 4 && at[0] == '\\' && at[1] == 'x' && hex_value(at[2]) >= 0 &&
            hex_value(at[2]) < 8 && hex_value(at[3]) >= 0) {
            put_json_byte(line, (unsigned char)(hex_value(at[2]) * 16 + hex_value(at[3])));
            i += 4;
        } else if (left >= 2 && at[0] == '\\' && (at[1] == '"' || at[1] == '\\')) {
            put_json_byte(line, (unsigned char)at[1]);
            i += 2;
        } else if (n > 1) {
            unsigned read;
            uint32_t c = utf8_read((const uint8_t *)at, &read);
            char escaped[8];

            if (shown_is_control(c)) {
                snprintf(escaped, sizeof escaped, "\\u%04x", c & 0xffff);
                put_text(line, escaped);
            } else {
                put(line, at, n);
            }
            i += n;
        } else {
            if (n)
                put_json_byte(line, (unsigned char)*at);
            else
                put_text(line, "\xef\xbf\xbd");
            i++;
        }
    }
    put(line, "\"", 1);
}

/* A member that does not fit whole is left out, and with it all that follow. */
static void put_member(struct line *line, struct slice key, struct slice value, bool number)
{
    size_t before = line->len;

    if (line->len && line->out[line->len - 1] != '{') put(line, ",", 1);
    put_json_string(line, key);
    put(line, ":", 1);
    if (number)
        put(line, value.ptr, value.len);
    else
        put_json_string(line, value);
    if (line->full) line->len = before;
}

static void put_json(struct line *line, enum log_level level, const char *event, const char *keys)
{
    struct pair pair;

    put(line, "{", 1);
    if (timestamps) {
        put_text(line, "\"time\":\"");
        put_time(line);
        put(line, "\"", 1);
    }
    put_member(line, SLICE("level"), slice_str(level_names[level]), false);
    put_member(line, SLICE("event"), slice_str(event), false);
    while (!line->full && next_pair(&keys, &pair))
        put_member(line, pair.key, pair.value, !pair.quoted && is_bare(pair.value));
    line->out[line->len++] = '}';
}

/* --- text --- */

/* Printable ASCII at the beginning: nearly always all of it. */
static size_t plain_len(struct slice text)
{
    size_t n = 0;

    while (n < text.len && text.ptr[n] >= ' ' && text.ptr[n] <= '~')
        n++;
    return n;
}

/* What came unquoted has no control characters all the same: a line is one line, and nothing on a terminal obeys it. */
static void put_shown(struct line *line, struct slice text)
{
    char one[SHOWN_MAX];
    size_t len, room = LOG_LINE_MAX - LINE_END;

    while (text.len) {
        size_t n = plain_len(text);

        if (n) {
            put(line, text.ptr, n < room - line->len ? n : room - line->len);
        } else {
            n = shown_next(text, one, &len);
            if (line->len + len > room) return;
            put(line, one, len);
        }
        text = slice_of(text.ptr + n, text.len - n);
    }
}

static void put_plain(struct line *line, enum log_level level, const char *event, const char *keys)
{

    if (timestamps) {
        put_time(line);
        put(line, " ", 1);
    }
    put_text(line, level_names[level]);
    put(line, " ", 1);
    put_text(line, event);
    put(line, " ", 1);
    put_shown(line, slice_str(keys));
    while (line->len && line->out[line->len - 1] == ' ')
        line->len--;
}

size_t log_line(enum log_level level, const char *event, const char *keys, char out[LOG_LINE_MAX])
{
    struct line line = {.out = out};
    char priority[8];

    if (priorities) {
        snprintf(priority, sizeof priority, "<%d>", level_priorities[level]);
        put_text(&line, priority);
    }
    if (line_format == LOG_JSON)
        put_json(&line, level, event, keys);
    else
        put_plain(&line, level, event, keys);
    line.out[line.len++] = '\n';
    return line.len;
}

void log_event(enum log_level level, const char *event, const char *keys, ...)
{
    char text[LOG_LINE_MAX], line[LOG_LINE_MAX];
    va_list args;

    if ((int)level < min_level) return;
    va_start(args, keys);
    int n = vsnprintf(text, sizeof text, keys, args);
    va_end(args);
    if (n < 0) text[0] = 0;
    size_t len = log_line(level, event, text, line);
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
