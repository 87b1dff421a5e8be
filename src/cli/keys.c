#include "cli/keys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file_map.h"

enum { FILE_BYTES_MAX = 1 << 20 };

static uint32_t line_count(const char *text)
{
    uint32_t lines = 1;

    for (; text && *text; text++)
        lines += *text == '\n';
    return lines;
}

static enum status add(struct keys *k, const char *key, struct error *err)
{
    if (!*key)
        return error_set(err, STATUS_INVALID,
                         "an API key is empty; it must have at least one character");
    k->items[k->count++] = key;
    return STATUS_OK;
}

static enum status add_file(struct keys *k, char *text, const char *path, struct error *err)
{
    uint32_t before = k->count;
    char *save = NULL;
    enum status st = STATUS_OK;

    if (!text) return STATUS_OK;
    for (char *line = strtok_r(text, "\r\n", &save); line && !st;
         line = strtok_r(NULL, "\r\n", &save)) {
        line += strspn(line, " \t");
        for (size_t len = strlen(line); len && strchr(" \t", line[len - 1]); len--)
            line[len - 1] = '\0';
        if (*line && *line != '#') st = add(k, line, err);
    }
    if (!st && k->count == before)
        st = error_set(err, STATUS_INVALID, "%s has no key; it must have one per line", path);
    return st;
}

enum status keys_read(const struct config *c, const char *credentials, struct keys *out,
                      struct error *err)
{
    char path[512] = "";
    enum status st = STATUS_OK;

    *out = (struct keys){0};
    if (*credentials) snprintf(path, sizeof path, "%s/api-keys", credentials);
    /* one that is there and cannot be read must not open the server */
    if (*path && access(path, F_OK) && errno == ENOENT) *path = '\0';
    if (c->api_key_file)
        st = file_read(c->api_key_file, FILE_BYTES_MAX, &out->texts[0], &out->text_bytes[0], err);
    if (!st && *path)
        st = file_read(path, FILE_BYTES_MAX, &out->texts[1], &out->text_bytes[1], err);
    if (!st) {
        out->items =
            calloc(c->api_key.count + line_count(out->texts[0]) + line_count(out->texts[1]),
                   sizeof *out->items);
        if (!out->items) st = error_set(err, STATUS_NOMEM, "no memory for the API keys");
    }
    for (uint32_t i = 0; !st && i < c->api_key.count; i++)
        st = add(out, c->api_key.items[i], err);
    if (!st) st = add_file(out, out->texts[0], c->api_key_file, err);
    if (!st) st = add_file(out, out->texts[1], path, err);
    if (st) keys_fini(out);
    return st;
}

void keys_fini(struct keys *k)
{
    for (int i = 0; i < 2; i++) {
        if (k->texts[i]) explicit_bzero(k->texts[i], k->text_bytes[i]);
        free(k->texts[i]);
    }
    free(k->items);
    *k = (struct keys){0};
}
