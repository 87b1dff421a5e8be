/* log_line.h - a "request done" line of a daemon's log, in either format (--log-format text or json). */
#pragma once

#include <jansson.h>
#include <stdbool.h>

struct log_line {
    const char *text; /* borrowed: behind the event's name; NULL: it is an object */
    json_t *object;   /* owned */
    double time_s;    /* since 1970; below 0: there is none */
};

/* false: another line; nothing is to be ended then. */
bool log_line_read(const char *line, struct log_line *out);
void log_line_fini(struct log_line *line);
/* The number of a key, or `missing`. */
double log_line_number(const struct log_line *line, const char *key, double missing);
