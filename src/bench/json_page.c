#include "bench/json_page.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum status json_page_check(const char *path, struct error *err)
{
    FILE *to = strcmp(path, "-") ? fopen(path, "ae") : stdout;

    if (!to) return error_set(err, STATUS_IO, "%s cannot be written: %s", path, strerror(errno));
    if (to != stdout) fclose(to);
    return STATUS_OK;
}

enum status json_page_write(const json_t *page, const char *path, int indent, int digits,
                            struct error *err)
{
    bool standard = strcmp(path, "-") == 0, ok;
    FILE *to = standard ? stdout : fopen(path, "we");
    size_t flags = JSON_INDENT((size_t)indent) | JSON_REAL_PRECISION((size_t)digits);

    ok = page && to && !json_dumpf(page, to, flags) && fputc('\n', to) >= 0;
    if (to && (standard ? fflush(to) : fclose(to))) ok = false;
    return ok ? STATUS_OK : error_set(err, STATUS_IO, "%s could not be written", path);
}
