#include "bench/log_line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Seconds since 1970 of "2026-11-29T17:20:01.123Z"; below 0: there is none. */
static double time_of(const char *text)
{
    struct tm tm = {0};
    const char *rest = text ? strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) : NULL;

    return rest && *rest == '.' ? (double)timegm(&tm) + strtod(rest, NULL) : -1;
}

bool log_line_read(const char *line, struct log_line *out)
{
    static const char event[] = "info request done ";
    const char *at = strstr(line, event);

    *out = (struct log_line){0};
    if (*line == '{') {
        json_t *object = json_loads(line, 0, NULL);
        const char *name = json_string_value(json_object_get(object, "event"));

        if (name && strcmp(name, "request done") == 0) {
            out->object = object;
            out->time_s = time_of(json_string_value(json_object_get(object, "time")));
            return true;
        }
        json_decref(object);
        return false;
    }
    if (!at) return false;
    out->text = at + sizeof event - 2; /* its last space stands before the first key */
    out->time_s = time_of(line);
    return true;
}

void log_line_fini(struct log_line *line)
{
    json_decref(line->object);
}

double log_line_number(const struct log_line *line, const char *key, double missing)
{
    const json_t *value = json_object_get(line->object, key);
    char pattern[48];
    const char *at;

    if (line->object) return json_is_number(value) ? json_number_value(value) : missing;
    snprintf(pattern, sizeof pattern, " %s=", key);
    at = strstr(line->text, pattern);
    return at ? strtod(at + strlen(pattern), NULL) : missing;
}
