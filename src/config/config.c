/* config.c - the option table, and setting one option from text. */
#include "config/config.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config/config_private.h"

const struct option config_options[] = {
#define OPTION(field, type, def, low, high, unit, alias, group, sentence) \
    {#field, OPT_##type, def,   (double)(low), (double)(high),            \
     unit,   alias,      group, sentence,      offsetof(struct config, field)},
#include "config/options.def"
#undef OPTION
};
const uint32_t config_option_count = sizeof config_options / sizeof *config_options;
static_assert(sizeof config_options / sizeof *config_options <= sizeof((struct config *)0)->source,
              "a source per option");

const char *option_flag(const struct option *option, char out[static 64])
{
    size_t i;

    for (i = 0; option->field[i] && i < 63; i++)
        out[i] = option->field[i] == '_' ? '-' : option->field[i];
    out[i] = '\0';
    return out;
}

static bool same_name(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if (*a != *b && !((*a == '-' || *a == '_') && (*b == '-' || *b == '_'))) return false;
    return *a == *b;
}

static bool alias_has(const char *aliases, const char *name)
{
    size_t len = strlen(name);

    for (const char *p = aliases; *p; p += strcspn(p, " "), p += *p == ' ')
        if (strcspn(p, " ") == len && strncmp(p, name, len) == 0) return true;
    return false;
}

int config_find(const char *name)
{
    const char *bare = strncmp(name, "--", 2) == 0 ? name + 2 : name;

    for (uint32_t i = 0; i < config_option_count; i++)
        if (same_name(bare, config_options[i].field) || alias_has(config_options[i].alias, name))
            return (int)i;
    return -1;
}

/* Edit distance, transpositions counted as two; names are short. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[80], n = (unsigned)strlen(b);

    if (n >= 79 || strlen(a) >= 79) return 99;
    for (unsigned j = 0; j <= n; j++)
        row[j] = j;
    for (unsigned i = 1; a[i - 1]; i++) {
        unsigned diagonal = row[0];
        row[0] = i;
        for (unsigned j = 1; j <= n; j++) {
            unsigned up = row[j], cost = diagonal + !(a[i - 1] == b[j - 1] ||
                                                      (a[i - 1] == '_' && b[j - 1] == '-'));
            diagonal = up;
            if (up + 1 < cost) cost = up + 1;
            if (row[j - 1] + 1 < cost) cost = row[j - 1] + 1;
            row[j] = cost;
        }
    }
    return row[n];
}

const char *config_nearest_within(const char *name, unsigned edits_max)
{
    static char best[64];
    unsigned least = 99;
    char flag[64];
    const char *bare = name + strspn(name, "-");

    for (uint32_t i = 0; i < config_option_count; i++) {
        unsigned d = distance(bare, option_flag(&config_options[i], flag));
        if (strlen(bare) >= 4 && strncmp(flag, bare, strlen(bare)) == 0)
            d = 1; /* a beginning of it */
        if (d < least) {
            least = d;
            memcpy(best, flag, sizeof best);
        }
    }
    return least <= edits_max ? best : NULL;
}

static const char *nearest(const char *name)
{
    unsigned len = (unsigned)strlen(name + strspn(name, "-")), edits = 2 + len / 5;

    return config_nearest_within(name, edits < len / 2 ? edits
                                                       : len / 2); /* half of it is another word */
}

static enum status wrong(const struct option *o, const char *where, const char *text,
                         struct error *err)
{
    const char *unit = *o->unit ? o->unit : NULL;

    if (!*text) text = "empty";
    switch (o->type) {
    case OPT_BOOL:
        return error_set(err, STATUS_INVALID, "%s is \"%s\"; it must be true or false", where,
                         text);
    case OPT_CHOICE:
        return error_set(err, STATUS_INVALID, "%s is \"%s\"; it must be one of: %s", where, text,
                         o->unit);
    case OPT_REAL:
        return error_set(err, STATUS_INVALID, "%s is %s; it must be %.10g to %.10g%s%s%s", where,
                         text, o->low, o->high, unit ? " (" : "", unit ? unit : "",
                         unit ? ")" : "");
    default:
        if (o->low == o->high)
            return error_set(err, STATUS_INVALID, "%s is %s; it must be %.0f", where, text, o->low);
        return error_set(
            err, STATUS_INVALID, "%s is %s; it must be %.0f to %.0f%s%s%s%s", where, text, o->low,
            o->high, unit ? " (" : "", unit ? unit : "", unit ? ")" : "",
            o->type == OPT_BYTES ? " bytes; KiB, MiB, GiB, kB, MB, GB may follow the number" : "");
    }
}

/* A decimal number: strtod would also take "0x10", " 5" and "nan". */
static bool parse_real(const char *text, char **end, double *out)
{
    size_t len = strspn(text, "+-.0123456789eE");

    *out = strtod(text, end);
    return *end > text && *text != ' ' && *end <= text + len;
}

static bool parse_uint(const char *text, uint64_t *out)
{
    char *end;

    if (*text < '0' || *text > '9') return false;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return !errno && *end == '\0';
}

/* "512MiB", "1.5 GB", "4096". GB = 10^9, GiB = 2^30; a bare K, M, G is binary, as llama-server has it. */
static bool parse_bytes(const char *text, uint64_t *out)
{
    static const struct {
        const char *name;
        double factor;
    } units[] = {{"", 1},       {"B", 1},          {"K", 1024},         {"KiB", 1024},
                 {"kB", 1e3},   {"KB", 1e3},       {"M", 1048576},      {"MiB", 1048576},
                 {"MB", 1e6},   {"G", 1073741824}, {"GiB", 1073741824}, {"GB", 1e9},
                 {"T", 0x1p40}, {"TiB", 0x1p40},   {"TB", 1e12}};
    char *end;
    double number;

    if (*text < '0' || *text > '9' || !parse_real(text, &end, &number)) return false;
    while (*end == ' ')
        end++;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].name) == 0) {
            number *= units[i].factor;
            if (!(number >= 0 && number < 0x1p63)) return false;
            *out = (uint64_t)number;
            return true;
        }
    return false;
}

static bool parse_bool(const char *text, bool *out)
{
    if (strcmp(text, "true") == 0 || strcmp(text, "1") == 0 || strcmp(text, "on") == 0 ||
        strcmp(text, "yes") == 0)
        *out = true;
    else if (strcmp(text, "false") == 0 || strcmp(text, "0") == 0 || strcmp(text, "off") == 0 ||
             strcmp(text, "no") == 0)
        *out = false;
    else
        return false;
    return true;
}

static enum status add_string(struct config *c, struct config_strings *list, const char *text)
{
    const char **grown = arena_alloc(&c->arena, (list->count + 1) * sizeof *grown);
    char *copy = arena_strdup(&c->arena, slice_str(text));

    if (!grown || !copy) return STATUS_NOMEM;
    if (list->count) memcpy(grown, list->items, list->count * sizeof *grown);
    grown[list->count++] = copy;
    list->items = grown;
    return STATUS_OK;
}

static enum status set_value(struct config *c, const struct option *o, const char *text,
                             const char *where, struct error *err)
{
    void *field = (char *)c + o->offset;
    uint64_t number = 0;
    double real;
    char *end;

    /* an empty text unsets an option that has no default; elsewhere it is most often a shell's variable that is not set,
     * and no host, say, would be all addresses */
    if (!*text && (o->type == OPT_STRINGS || (o->type == OPT_STRING && *o->def)))
        return error_set(err, STATUS_INVALID, "%s is empty; it must have at least one character",
                         where);
    switch (o->type) {
    case OPT_STRINGS:
        if (add_string(c, field, text))
            return error_set(err, STATUS_NOMEM, "no memory for %s", where);
        return STATUS_OK;
    case OPT_CHOICE:
        if (!*text || strchr(text, ' ') || !alias_has(o->unit, text))
            return wrong(o, where, text, err);
        /* fall through */
    case OPT_STRING:
        *(const char **)field = *text ? arena_strdup(&c->arena, slice_str(text)) : NULL;
        if (*text && !*(const char **)field)
            return error_set(err, STATUS_NOMEM, "no memory for %s", where);
        return STATUS_OK;
    case OPT_UINT:
    case OPT_BYTES:
        if (!(o->type == OPT_UINT ? parse_uint(text, &number) : parse_bytes(text, &number)) ||
            (double)number < o->low || (double)number > o->high)
            return wrong(o, where, text, err);
        *(uint64_t *)field = number;
        return STATUS_OK;
    case OPT_REAL:
        if (!parse_real(text, &end, &real) || *end || !(real >= o->low && real <= o->high))
            return wrong(o, where, text, err);
        *(double *)field = real;
        return STATUS_OK;
    case OPT_BOOL: return parse_bool(text, field) ? STATUS_OK : wrong(o, where, text, err);
    }
    return STATUS_INVALID;
}

enum status config_set(struct config *config, const char *name, const char *text,
                       enum config_source source, const char *where, struct error *err)
{
    int i = config_find(name);

    if (i < 0) {
        const char *near = nearest(name);
        const char *hint = config_hint(name);

        if (hint)
            return error_set(err, STATUS_INVALID, "%s: there is no such option; %s", where, hint);
        return error_set(err, STATUS_INVALID, "%s: there is no such option%s%s%s%s", where,
                         near ? "; did you mean " : "", near && source == CONFIG_FLAG ? "--" : "",
                         near ? near : "", near ? "?" : " (inferd serve --help lists them)");
    }
    const struct option *o = &config_options[i];
    if (source < config->source[i]) return STATUS_OK; /* a better source has spoken */
    if (o->type == OPT_STRINGS &&
        source > config->source[i]) /* a better source replaces the whole list */
        *(struct config_strings *)((char *)config + o->offset) = (struct config_strings){0};
    enum status st = set_value(config, o, text, where, err);
    if (!st) config->source[i] = (uint8_t)source;
    return st;
}

bool config_given(const struct config *config, const char *field)
{
    int i = config_find(field);

    return i >= 0 && config->source[i] != CONFIG_DEFAULT;
}

/* A GPU is at its full rate only with larger steps: 8B, a prompt of 8k on an H200: 219 ms in chunks of 2,048 rows, 243 in ones of 512. */
uint32_t config_batched_tokens(const struct config *config, bool gpu)
{
    if (gpu && !config_given(config, "max_num_batched_tokens")) return 2048;
    return (uint32_t)config->max_num_batched_tokens;
}

uint32_t config_count(void)
{
    return config_option_count;
}

const char *config_name(uint32_t option)
{
    return config_options[option].field;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

bool config_same(const struct config *a, const struct config *b, uint32_t option)
{
    const struct option *o = &config_options[option];
    const void *x = (const char *)a + o->offset, *y = (const char *)b + o->offset;
    const struct config_strings *xs = x, *ys = y;

    switch (o->type) {
    case OPT_STRING:
    case OPT_CHOICE: return same_text(*(const char *const *)x, *(const char *const *)y);
    case OPT_UINT:
    case OPT_BYTES: return *(const uint64_t *)x == *(const uint64_t *)y;
    case OPT_REAL: return *(const double *)x == *(const double *)y;
    case OPT_BOOL: return *(const bool *)x == *(const bool *)y;
    case OPT_STRINGS: break;
    }
    for (uint32_t i = 0; xs->count == ys->count && i < xs->count; i++)
        if (!same_text(xs->items[i], ys->items[i])) return false;
    return xs->count == ys->count;
}

void config_fini(struct config *config)
{
    arena_fini(&config->arena);
    memset(config, 0, sizeof *config);
}
