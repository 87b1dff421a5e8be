/* log.h - one event a line, written when something ends.
 *
 *     log_info("request done", "id=%s prompt_tokens=%u ttft_ms=%.1f", id, tokens, ms);
 *
 * gives `info request done id=7f3a prompt_tokens=812 ttft_ms=41.0` on standard error, in one write,
 * so that lines of several threads do not mix. Never on the step path, never prompts or keys. A value that
 * comes from outside goes through log_quote(). Thread: any. */
#pragma once

#include "base/slice.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

void log_set_level(enum log_level level);
/* With timestamps each line starts with UTC time; off under systemd, whose journal has its own. */
void log_set_timestamps(int on);

void log_event(enum log_level level, const char *event, const char *keys, ...)
    __attribute__((format(printf, 3, 4)));

#define log_debug(event, ...) log_event(LOG_DEBUG, event, __VA_ARGS__)
#define log_info(event, ...)  log_event(LOG_INFO, event, __VA_ARGS__)
#define log_warn(event, ...)  log_event(LOG_WARN, event, __VA_ARGS__)
#define log_error(event, ...) log_event(LOG_ERROR, event, __VA_ARGS__)

/* `text` in double quotes with control bytes, quotes and backslashes escaped, cut to fit `out`. Returns out. */
const char *log_quote(struct slice text, char *out, size_t out_size);
