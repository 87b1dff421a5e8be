/* log.h - one event a line, written when something ends.
 *
 *     log_info("request done", "id=%s prompt_tokens=%u ttft_ms=%.1f", id, tokens, ms);
 *
 * gives, on standard error and in one write, so that lines of several threads do not mix,
 *
 *     text   2026-11-29T19:20:01.123Z info request done id=7f3a prompt_tokens=812 ttft_ms=41.0
 *     JSON   {"time":"2026-11-29T19:20:01.123Z","level":"info","event":"request done","id":"7f3a",...}
 *
 * The keys are key=value with blanks between. A value with blanks stands in quotes, one that comes from outside goes through
 * log_quote(). In JSON a quoted value is a string always, a bare one is a number, true, false or a list of names (["a","b"]) where it reads as one. Never on the step path,
 * never prompts (but by --log-prompts) or keys. Thread: any; the settings from one, before the others. */
#pragma once

#include <stddef.h>

#include "base/slice.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_format { LOG_TEXT, LOG_JSON };
enum {
    LOG_LINE_MAX = 8192
}; /* bytes of a line; what does not fit is left out, whole keys of it in JSON */

void log_set_level(enum log_level level);
/* The same by name ("debug", "info", "warn", "error"); 0: there is no such level. */
int log_set_level_named(const char *name);
/* Whether a line of this level would be written: for lines that cost something to make. */
int log_enabled(enum log_level level);
void log_set_format(enum log_format format);
/* With timestamps each line starts with UTC time; off under systemd, whose journal has its own. */
void log_set_timestamps(int on);
/* Text for people: no JSON, no journal. */
int log_is_plain(void);
/* Each line starts with "<N>", its priority to the journal (sd-daemon(3)). */
void log_set_priorities(int on);

void log_event(enum log_level level, const char *event, const char *keys, ...)
    __attribute__((format(printf, 3, 4)));

#define log_debug(event, ...) log_event(LOG_DEBUG, event, __VA_ARGS__)
#define log_info(event, ...)  log_event(LOG_INFO, event, __VA_ARGS__)
#define log_warn(event, ...)  log_event(LOG_WARN, event, __VA_ARGS__)
#define log_error(event, ...) log_event(LOG_ERROR, event, __VA_ARGS__)

/* `text` in double quotes with control bytes, quotes and backslashes escaped, cut to fit `out`. Returns out. */
const char *log_quote(struct slice text, char *out, size_t out_size);

/* The line that log_event would write, line feed included: for a signal handler, and tests. Returns its length, at most LOG_LINE_MAX. */
size_t log_line(enum log_level level, const char *event, const char *keys, char out[LOG_LINE_MAX]);
