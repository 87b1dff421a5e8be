#include "bench/trace.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"
#include "base/slice.h"
#include "bench/log_line.h"

enum { TRACE_BYTES_MAX = 1 << 30, TOKENS_MAX = 16777216, CACHED_PREFIX = 1 };

void trace_fini(struct trace *t)
{
    free(t->items);
    *t = (struct trace){0};
}

enum status trace_add(struct trace *t, const struct trace_item *item)
{
    if (t->count == t->cap) {
        uint32_t cap = t->cap ? t->cap * 2 : 256;
        struct trace_item *grown = realloc(t->items, cap * sizeof *grown);
        if (!grown) return STATUS_NOMEM;
        t->items = grown;
        t->cap = cap;
    }
    t->items[t->count++] = *item;
    return STATUS_OK;
}

static int by_arrival(const void *a, const void *b)
{
    const struct trace_item *x = a, *y = b;

    return x->arrival_s < y->arrival_s ? -1 : x->arrival_s > y->arrival_s;
}

/* --- files --- */

struct line {
    const char *path;
    unsigned number;
    const json_t *object;
    struct error *err;
};

static enum status wrong(const struct line *l, const char *field, const char *right)
{
    return error_set(l->err, STATUS_CORRUPT, "%s:%u: %s must be %s", l->path, l->number, field,
                     right);
}

static enum status get_count(const struct line *l, const char *field, bool required, uint32_t least,
                             uint32_t *out)
{
    const json_t *value = json_object_get(l->object, field);
    json_int_t n = json_integer_value(value);

    if (!value && !required) return STATUS_OK;
    if (!json_is_integer(value) || n < least || n > TOKENS_MAX)
        return wrong(l, field,
                     least ? "a whole number, 1 to 16777216" : "a whole number, 0 to 16777216");
    *out = (uint32_t)n;
    return STATUS_OK;
}

static enum status parse_item(const struct line *l, struct trace_item *out)
{
    const json_t *arrival = json_object_get(l->object, "arrival_s");
    enum status st;

    *out = (struct trace_item){.arrival_s = json_number_value(arrival)};
    if (!json_is_number(arrival) || !(out->arrival_s >= 0 && out->arrival_s < 1e9))
        return wrong(l, "arrival_s", "a number of seconds, 0 or more");
    st = get_count(l, "prompt_tokens", true, 1, &out->prompt_tokens);
    if (!st) st = get_count(l, "max_tokens", true, 1, &out->max_tokens);
    if (!st) st = get_count(l, "prefix_id", false, 0, &out->prefix_id);
    if (!st) st = get_count(l, "prefix_tokens", false, 0, &out->prefix_tokens);
    if (!st) st = get_count(l, "key", false, 0, &out->key);
    if (st) return st;
    out->priority = (int32_t)json_integer_value(json_object_get(l->object, "priority"));
    if (out->prefix_tokens > out->prompt_tokens)
        return wrong(l, "prefix_tokens", "at most prompt_tokens");
    if (!out->prefix_id) out->prefix_tokens = 0;
    return STATUS_OK;
}

static enum status parse_line(const char *path, unsigned number, const char *text, size_t len,
                              struct trace *out, struct error *err)
{
    json_error_t fault;
    json_t *object = json_loadb(text, len, JSON_REJECT_DUPLICATES, &fault);
    struct line line = {path, number, object, err};
    struct trace_item item;
    enum status st;

    if (!json_is_object(object))
        st = error_set(err, STATUS_CORRUPT, "%s:%u: not a JSON object: %s", path, number,
                       fault.text);
    else
        st = parse_item(&line, &item);
    if (!st && trace_add(out, &item)) st = error_set(err, STATUS_NOMEM, "no memory for the trace");
    json_decref(object);
    return st;
}

enum status trace_read(const char *path, struct trace *out, struct error *err)
{
    struct trace trace = {0};
    char *text = NULL;
    uint64_t len = 0;
    unsigned number = 0;
    enum status st = file_read(path, TRACE_BYTES_MAX, &text, &len, err);

    for (char *at = text, *next; !st && at && *at; at = next) {
        size_t n = strcspn(at, "\n");
        next = at + n + (at[n] == '\n');
        number++;
        if (strspn(at, " \t\r") >= n) continue;
        st = parse_line(path, number, at, n, &trace, err);
    }
    if (!st && !trace.count) st = error_set(err, STATUS_CORRUPT, "%s has no arrivals", path);
    free(text);
    if (st) {
        trace_fini(&trace);
        return st;
    }
    qsort(trace.items, trace.count, sizeof *trace.items, by_arrival);
    *out = trace;
    return STATUS_OK;
}

enum status trace_write(const struct trace *t, FILE *to, struct error *err)
{
    for (uint32_t i = 0; i < t->count; i++) {
        const struct trace_item *it = &t->items[i];
        fprintf(to, "{\"arrival_s\": %.4f, \"prompt_tokens\": %u, \"max_tokens\": %u",
                it->arrival_s, it->prompt_tokens, it->max_tokens);
        if (it->prefix_id)
            fprintf(to, ", \"prefix_id\": %u, \"prefix_tokens\": %u", it->prefix_id,
                    it->prefix_tokens);
        if (it->key) fprintf(to, ", \"key\": %u", it->key);
        if (it->priority) fprintf(to, ", \"priority\": %d", it->priority);
        fputs("}\n", to);
    }
    if (fflush(to) || ferror(to))
        return error_set(err, STATUS_IO, "the trace could not be written");
    return STATUS_OK;
}

/* --- the daemon's log --- */

/* The first of `choices` alike; 0: the line tells no arrival. */
static uint32_t parse_done(const char *text, struct trace_item *out)
{
    struct log_line line;
    bool usable;

    if (!log_line_read(text, &line)) return 0;
    double total_ms = log_line_number(&line, "total_ms", -1),
           prompt = log_line_number(&line, "prompt_tokens", 0),
           cached = log_line_number(&line, "cached_tokens", 0),
           completion = log_line_number(&line, "completion_tokens", 0),
           choices = log_line_number(&line, "choices", 1);
    usable = line.time_s >= 0 && total_ms >= 0 && prompt >= 1 && completion >= 1 && choices >= 1 &&
             cached >= 0 && cached <= prompt;
    if (usable)
        *out = (struct trace_item){.arrival_s = line.time_s - total_ms * 1e-3,
                                   .prompt_tokens = (uint32_t)prompt,
                                   .max_tokens = (uint32_t)(completion / choices + 0.5),
                                   .prefix_id = cached > 0 ? CACHED_PREFIX : 0,
                                   .prefix_tokens = (uint32_t)cached};
    log_line_fini(&line);
    if (usable && out->max_tokens < 1) out->max_tokens = 1;
    return usable ? (uint32_t)choices : 0;
}

/* Several choices share their whole prompt, and with nobody else. */
static enum status add_choices(struct trace *trace, struct trace_item item, uint32_t choices)
{
    enum status st = STATUS_OK;

    if (choices > 1) {
        item.prefix_id = CACHED_PREFIX + 1 + trace->count;
        item.prefix_tokens = item.prompt_tokens;
    }
    for (uint32_t i = 0; !st && i < choices; i++)
        st = trace_add(trace, &item);
    return st;
}

enum status trace_from_log(FILE *log, struct trace *out, struct error *err)
{
    struct trace trace = {0};
    struct trace_item item;
    char *line = NULL;
    size_t cap = 0;
    enum status st = STATUS_OK;

    while (!st && getline(&line, &cap, log) >= 0) {
        uint32_t choices = parse_done(line, &item);
        if (choices) st = add_choices(&trace, item, choices);
    }
    free(line);
    if (st) {
        trace_fini(&trace);
        return error_set(err, st, "no memory for the trace");
    }
    if (!trace.count)
        return error_set(err, STATUS_NOT_FOUND,
                         "the log has no \"request done\" line with a timestamp; inferd writes one "
                         "per request at "
                         "--log-level info with --log-timestamps");
    qsort(trace.items, trace.count, sizeof *trace.items, by_arrival);
    for (uint32_t i = trace.count; i-- > 0;)
        trace.items[i].arrival_s -= trace.items[0].arrival_s;
    *out = trace;
    return STATUS_OK;
}

/* --- making --- */

void trace_spread(struct trace_item *items, uint32_t count, double rate, double burstiness,
                  struct random_state *random)
{
    double at = 0;

    for (uint32_t i = 0; i < count; i++) {
        items[i].arrival_s = at;
        at += isinf(rate) ? 0 : random_gamma(random, burstiness) / rate;
    }
}

void prompt_tokens_make(const struct trace_item *item, uint64_t seed, uint32_t index, int32_t low,
                        int32_t high, int32_t *out)
{
    struct random_state prefix = {hash_mix64(seed ^ 0x9f1c5a77) ^ hash_mix64(item->prefix_id)};
    struct random_state own = {hash_mix64(seed) ^ hash_mix64(((uint64_t)index + 1) << 32)};

    for (uint32_t i = 0; i < item->prompt_tokens; i++)
        out[i] = (int32_t)random_between(i < item->prefix_tokens ? &prefix : &own, (uint32_t)low,
                                         (uint32_t)high);
}
