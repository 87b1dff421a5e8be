/* config_file.c - the JSON file of --config: one object whose keys are option names. */
#include "config/config.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file_map.h"
#include "config/config_private.h"

enum { FILE_BYTES_MAX = 1 << 20 };

/* The line of the file on which the key stands (its first quoted occurrence), for the message. */
static unsigned line_of_key(const char *text, const char *key)
{
    unsigned line = 1;
    size_t len = strlen(key);

    for (const char *p = text; *p; p++) {
        if (*p == '\n') line++;
        if (*p == '"' && strncmp(p + 1, key, len) == 0 && p[1 + len] == '"') return line;
    }
    return 1;
}

/* A scalar as the text that a flag would have; false for what no option takes. */
static bool scalar_text(const json_t *value, struct buf *out)
{
    buf_clear(out);
    switch (json_typeof(value)) {
    case JSON_STRING: buf_append(out, json_string_value(value), json_string_length(value)); break;
    case JSON_INTEGER: buf_printf(out, "%lld", (long long)json_integer_value(value)); break;
    case JSON_REAL: buf_printf(out, "%.17g", json_real_value(value)); break;
    case JSON_TRUE: buf_append_str(out, "true"); break;
    case JSON_FALSE: buf_append_str(out, "false"); break;
    default: return false;
    }
    return !memchr(buf_cstr(out), '\0', out->len);
}

/* What a file may not say, though a flag may. seen: by option number, what it has said. */
static enum status check_member(const char *key, const json_t *value, bool *seen, const char *where,
                                struct error *err)
{
    int option = config_find(key);

    if (option < 0) return STATUS_OK; /* config_set tells */
    const struct option *o = &config_options[option];
    if (strcmp(o->field, "config") == 0)
        return error_set(err, STATUS_INVALID, "%s: a file cannot name another", where);
    if (seen[option])
        return error_set(err, STATUS_INVALID, "%s: the option is in the file twice", where);
    seen[option] = true;
    if (json_is_array(value) && o->type != OPT_STRINGS)
        return error_set(err, STATUS_INVALID, "%s must be one value, not a list", where);
    return STATUS_OK;
}

static enum status set_member(struct config *c, const char *key, const json_t *value,
                              const char *where, struct error *err)
{
    struct buf text;
    enum status st = STATUS_OK;

    buf_init(&text, 0);
    if (json_is_array(value)) {
        for (size_t i = 0; i < json_array_size(value) && !st; i++)
            st = scalar_text(json_array_get(value, i), &text)
                     ? config_set(c, key, buf_cstr(&text), CONFIG_FILE, where, err)
                     : error_set(err, STATUS_INVALID,
                                 "%s: entry %zu must be a string, number or boolean", where, i);
    } else if (!json_is_null(value)) { /* null: the default */
        st = scalar_text(value, &text)
                 ? config_set(c, key, buf_cstr(&text), CONFIG_FILE, where, err)
                 : error_set(err, STATUS_INVALID, "%s must be a string, number or boolean", where);
    }
    buf_fini(&text);
    return st;
}

/* The string that begins at *at, a quote, as it stands; *at moves behind it. No string where it has no end. */
static struct slice take_quoted(const char **at, const char *end)
{
    const char *from = ++*at;

    while (*at < end && **at != '"')
        *at += **at == '\\' && *at + 1 < end ? 2 : 1;
    struct slice text = slice_of(from, (size_t)(*at - from));

    if (*at >= end) return slice_of(NULL, 0);
    ++*at;
    return text;
}

static void skip_blanks(const char **at, const char *end)
{
    while (*at < end && strchr(" \t\r\n", **at))
        ++*at;
}

static bool names_option(struct slice key, int option)
{
    char name[80];

    if (!key.len || key.len >= sizeof name) return false;
    memcpy(name, key.ptr, key.len);
    name[key.len] = '\0';
    return config_find(name) == option;
}

const char *config_peek_file(const char *path, const char *field, char out[static 64])
{
    struct error err;
    json_error_t fault;
    char *text;
    uint64_t len;
    struct slice value = {0};

    if (file_read(path, FILE_BYTES_MAX, &text, &len, &err)) return NULL;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &fault);
    const char *at = text,
               *end = text + (root || fault.position > (int)len ? len : (size_t)fault.position);

    json_decref(root);
    while (!value.ptr && at < end) {
        if (*at != '"') {
            at++;
            continue;
        }
        struct slice key = take_quoted(&at, end);

        skip_blanks(&at, end);
        if (at == end || *at != ':' || !names_option(key, config_find(field))) continue;
        at++;
        skip_blanks(&at, end);
        if (at < end && *at == '"') value = take_quoted(&at, end);
    }
    bool found = value.ptr && value.len < 64;

    if (found) memcpy(out, value.ptr, value.len);
    if (found) out[value.len] = '\0';
    free(text);
    return found ? out : NULL;
}

enum status config_read_file(struct config *config, const char *path, struct error *err)
{
    char *text;
    uint64_t len;
    json_error_t fault;
    const char *key;
    json_t *value, *root;
    bool seen[sizeof config->source] = {false};
    enum status st = file_read(path, FILE_BYTES_MAX, &text, &len, err);

    if (st) return st;
    root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &fault);
    if (!root)
        st = error_set(err, STATUS_CORRUPT, "%s:%d: %s", path, fault.line, fault.text);
    else if (!json_is_object(root))
        st = error_set(err, STATUS_INVALID, "%s must hold one JSON object with options as keys",
                       path);
    else
        json_object_foreach(root, key, value)
        {
            char where[512];
            snprintf(where, sizeof where, "%.300s:%u: %.100s", path, line_of_key(text, key), key);
            st = check_member(key, value, seen, where, err);
            if (!st) st = set_member(config, key, value, where, err);
            if (st) break;
        }
    json_decref(root);
    free(text);
    return st;
}
