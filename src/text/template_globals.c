/* template_globals.c - global functions, the methods of everything but strings, and the call of a builtin. */
#include "text/template_ast.h"

#include <stdio.h>
#include <time.h>

enum { RANGE_MAX = 100000 }; /* as jinja2's sandbox */

#define BUILTIN(name)                                                  \
    static struct value name(__attribute__((unused)) struct render *r, \
                             __attribute__((unused)) struct value *a,  \
                             __attribute__((unused)) const struct args *args)

/* --- calling --- */
/* The index of the parameter `name` in "one two three", or -1. */
static int param_index(const char *params, const struct str *name)
{
    for (int i = 0; *params; i++) {
        size_t len = strcspn(params, " ");
        if (len == name->len && memcmp(params, name->ptr, len) == 0) return i;
        params += len + (params[len] == ' ');
    }
    return -1;
}

static uint32_t param_count(const char *params)
{
    uint32_t n = *params != 0;

    for (; *params; params++)
        n += *params == ' ';
    return n;
}

struct value call_builtin(struct render *r, const struct builtin *b, struct value *first,
                          const struct args *args)
{
    struct value a[BUILTIN_PARAMS_MAX];
    uint32_t skip = first != NULL, count;
    struct value v;

    render_step(r, 1);
    for (int i = 0; i < BUILTIN_PARAMS_MAX; i++)
        a[i] = v_absent();
    if (first) a[0] = *first;
    if (b->params) {
        count = param_count(b->params);
        if (args->count > count)
            template_fail(r, TEMPLATE_RUNTIME, "%s takes at most %u arguments", b->name, count);
        for (uint32_t i = 0; i < args->count; i++)
            a[skip + i] = args->pos[i];
        for (uint32_t i = 0; i < args->named_count; i++) {
            const struct str *name = args->names[i].s;
            int at = param_index(b->params, name);
            if (at < 0 || a[skip + (uint32_t)at].type != V_ABSENT)
                template_fail(r, TEMPLATE_RUNTIME, "%s got an unexpected keyword argument '%.*s'",
                              b->name, (int)(name->len < 80 ? name->len : 80), name->ptr);
            a[skip + (uint32_t)at] = args->named[i];
        }
        for (uint32_t i = 0; i < b->required; i++)
            if (a[skip + i].type == V_ABSENT)
                template_fail(r, TEMPLATE_RUNTIME, "%s is missing a required argument", b->name);
    }
    render_enter(r);
    v = b->fn(r, a, args);
    render_leave(r);
    return v;
}

static const struct builtin *find_in(const struct builtin *table, struct slice name)
{
    for (; table->name; table++)
        if (slice_eq(slice_str(table->name), name)) return table;
    return NULL;
}

const struct builtin *filter_find(struct slice name)
{
    const struct builtin *b = find_in(template_list_filters, name);

    if (!b) b = find_in(template_text_filters, name);
    return b ? b : find_in(template_web_filters, name);
}

const struct builtin *test_find(struct slice name)
{
    return find_in(template_tests, name);
}

const struct builtin *global_find(struct slice name)
{
    return find_in(template_globals, name);
}

const struct builtin *method_find(uint8_t type, const struct str *name)
{
    const struct builtin *b = type == V_STR ? template_str_methods : template_other_methods;

    for (; b->name; b++)
        if (b->type == type && str_is(name, b->name)) return b;
    return NULL;
}

/* --- global functions --- */
BUILTIN(global_range)
{
    int64_t bounds[3] = {0, 0, 1};
    struct range *range = render_alloc(r, sizeof *range);
    __int128 span;

    if (args->named_count || args->count < 1 || args->count > 3)
        template_fail(r, TEMPLATE_RUNTIME, "range takes 1 to 3 arguments");
    for (uint32_t i = 0; i < args->count; i++)
        bounds[args->count == 1 ? 1 : i] = arg_int(r, args->pos[i], 0, "range's argument");
    if (bounds[2] == 0) template_fail(r, TEMPLATE_RUNTIME, "range() arg 3 must not be zero");
    span = bounds[2] > 0 ? (__int128)bounds[1] - bounds[0] : (__int128)bounds[0] - bounds[1];
    if (span > 0) {
        __int128 step = bounds[2] > 0 ? bounds[2] : -(__int128)bounds[2];
        span = (span + step - 1) / step;
        if (span > RANGE_MAX)
            template_fail(r, TEMPLATE_LIMIT, "range too big: the sandbox allows %d items",
                          RANGE_MAX);
    }
    *range = (struct range){bounds[0], bounds[1], bounds[2], span > 0 ? (uint32_t)span : 0};
    return (struct value){.type = V_RANGE, .range = range};
}

/* dict(mapping or pairs, name=value ...) */
BUILTIN(global_dict)
{
    struct dict *d = dict_make(r, args->named_count);

    if (args->count > 1)
        template_fail(r, TEMPLATE_RUNTIME, "dict expected at most 1 argument, got %u", args->count);
    if (args->count && (args->pos[0].type == V_DICT || args->pos[0].type == V_NAMESPACE)) {
        const struct dict *from = args->pos[0].d;
        render_step(r, from->count);
        for (uint32_t i = 0; i < from->count; i++)
            dict_set(r, d, from->entries[i].key, from->entries[i].value);
    } else if (args->count) {
        struct list *pairs = value_items(r, args->pos[0]);
        for (uint32_t i = 0; i < pairs->count; i++) {
            struct list *pair = value_items(r, pairs->items[i]);
            if (pair->count != 2)
                template_fail(r, TEMPLATE_RUNTIME,
                              "dictionary update sequence element #%u has length %u; 2 is required",
                              i, pair->count);
            dict_set(r, d, pair->items[0], pair->items[1]);
        }
    }
    for (uint32_t i = 0; i < args->named_count; i++)
        dict_set(r, d, args->names[i], args->named[i]);
    return v_dict(d);
}

BUILTIN(global_namespace)
{
    struct value v = global_dict(r, a, args);

    for (uint32_t i = 0; i < v.d->count; i++) {
        struct value key = v.d->entries[i].key;
        if (is_str(key) && key.s->len && key.s->ptr[0] == '_')
            template_fail(r, TEMPLATE_SECURITY, "underscore-prefixed attribute of a namespace");
    }
    v.type = V_NAMESPACE;
    return v;
}

BUILTIN(global_raise)
{
    struct str *s = value_display(r, a[0]).s;

    r->raised = s; /* whole; error_set cuts a long one at a character's border */
    template_fail(r, TEMPLATE_RAISE, "%.*s", (int)s->len, s->ptr);
}

/* The time in UTC and the C locale. */
BUILTIN(global_strftime_now)
{
    static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                       "Thursday", "Friday", "Saturday"};
    static const char *const months[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};
    struct str *format = arg_str(r, a[0], "strftime_now's format");
    time_t now = (time_t)r->now;
    struct sink out;
    struct tm tm;

    if (!gmtime_r(&now, &tm)) template_fail(r, TEMPLATE_RUNTIME, "the time is out of range");
    sink_init(&out, r);
    for (uint32_t at = 0; at < format->len; at++) {
        char c = format->ptr[at], one[8] = "%", text[64];
        if (c != '%' || at + 1 == format->len) {
            sink_sub(&out, format, at, at + 1);
            continue;
        }
        c = format->ptr[++at];
        if (c == '-' && at + 1 < format->len) { /* no padding */
            one[1] = '-';
            c = format->ptr[++at];
        }
        one[strlen(one)] = c;
        switch (c) {
        case 'A': sink_text(&out, days[tm.tm_wday]); continue;
        case 'a': sink_put(&out, days[tm.tm_wday], 3, false); continue;
        case 'B': sink_text(&out, months[tm.tm_mon]); continue;
        case 'b':
        case 'h': sink_put(&out, months[tm.tm_mon], 3, false); continue;
        case 'p': sink_text(&out, tm.tm_hour < 12 ? "AM" : "PM"); continue;
        case 'f': sink_text(&out, "000000"); continue;
        case 'Z':
        case 'z': continue; /* a naive time has no zone */
        case 's': sink_printf(&out, "%lld", (long long)r->now); continue;
        case 'c':
            sink_printf(&out, "%.3s %.3s %2d %02d:%02d:%02d %d", days[tm.tm_wday],
                        months[tm.tm_mon], tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec,
                        tm.tm_year + 1900);
            continue;
        case 'x': strcpy(one, "%D"); break;
        case 'X': strcpy(one, "%T"); break;
        default:
            if (c && strchr("dmYyHIMSjUWuwGVgCeDFRTntkl%", c)) break;
            sink_text(&out, one); /* unknown: as it is */
            continue;
        }
        text[0] = 0;
        strftime(text, sizeof text, one, &tm);
        sink_text(&out, text);
    }
    return sink_value(&out);
}

BUILTIN(global_joiner)
{
    struct joiner *joiner = render_alloc(r, sizeof *joiner);

    joiner->separator = a[0].type == V_ABSENT ? v_text(r, ", ") : a[0];
    return (struct value){.type = V_JOINER, .joiner = joiner};
}

BUILTIN(global_cycler)
{
    struct cycler *cycler = render_alloc(r, sizeof *cycler);

    if (!args->count || args->named_count)
        template_fail(r, TEMPLATE_RUNTIME, "at least one item has to be provided");
    cycler->items = list_make(r, args->count);
    for (uint32_t i = 0; i < args->count; i++)
        list_push(r, cycler->items, args->pos[i]);
    return (struct value){.type = V_CYCLER, .cycler = cycler};
}

/* --- methods --- */
BUILTIN(cycler_next)
{
    struct cycler *cycler = a[0].cycler;
    struct value v = cycler->items->items[cycler->at];

    cycler->at = (cycler->at + 1) % cycler->items->count;
    return v;
}

BUILTIN(cycler_reset)
{
    a[0].cycler->at = 0;
    return v_none();
}

BUILTIN(loop_cycle)
{
    if (!args->count || args->named_count)
        template_fail(r, TEMPLATE_RUNTIME, "no items for cycling given");
    return args->pos[a[0].loop->at % args->count];
}

BUILTIN(loop_changed)
{
    struct list *l = list_make(r, args->count);
    struct value now = v_tuple(l);

    for (uint32_t i = 0; i < args->count; i++)
        list_push(r, l, args->pos[i]);
    if (a[0].loop->changed.type != V_ABSENT && value_equal(r, a[0].loop->changed, now))
        return v_bool(false);
    a[0].loop->changed = now;
    return v_bool(true);
}

static struct value view(struct value d, enum view_kind kind)
{
    d.type = V_VIEW;
    d.sub = (uint8_t)kind;
    return d;
}

BUILTIN(dict_keys)
{
    return view(a[0], VIEW_KEYS);
}
BUILTIN(dict_values)
{
    return view(a[0], VIEW_VALUES);
}
BUILTIN(dict_items)
{
    return view(a[0], VIEW_ITEMS);
}

BUILTIN(dict_get)
{
    struct value *there = dict_find(r, a[0].d, a[1]);

    if (there) return *there;
    return a[2].type == V_ABSENT ? v_none() : a[2];
}

BUILTIN(copy)
{
    return a[0]; /* nothing can change it */
}

BUILTIN(list_count)
{
    struct list *l = value_items(r, a[0]);
    int64_t n = 0;

    for (uint32_t i = 0; i < l->count; i++)
        n += value_equal(r, l->items[i], a[1]);
    return v_int(n);
}

BUILTIN(list_index)
{
    struct list *l = value_items(r, a[0]);
    int64_t count = l->count, from = arg_int(r, a[2], 0, "a position");
    int64_t to = arg_int(r, a[3], count, "a position");

    if (from < 0 && (from += count) < 0) from = 0;
    if (to < 0) to += count;
    for (int64_t i = from; i < to && i < count; i++)
        if (value_equal(r, l->items[i], a[1])) return v_int(i);
    template_fail(r, TEMPLATE_RUNTIME, "the value is not in the list");
}

const struct builtin template_globals[] = {
    {"cycler", global_cycler, NULL, 0, 0},
    {"dict", global_dict, NULL, 0, 0},
    {"joiner", global_joiner, "sep", 0, 0},
    {"namespace", global_namespace, NULL, 0, 0},
    {"raise_exception", global_raise, "message", 1, 0},
    {"range", global_range, NULL, 0, 0},
    {"strftime_now", global_strftime_now, "format", 1, 0},
    {0},
};

const struct builtin template_other_methods[] = {
    {"next", cycler_next, "", 0, V_CYCLER},
    {"reset", cycler_reset, "", 0, V_CYCLER},
    {"cycle", loop_cycle, NULL, 0, V_LOOP},
    {"changed", loop_changed, NULL, 0, V_LOOP},
    {"keys", dict_keys, "", 0, V_DICT},
    {"values", dict_values, "", 0, V_DICT},
    {"items", dict_items, "", 0, V_DICT},
    {"get", dict_get, "key default", 1, V_DICT},
    {"copy", copy, "", 0, V_DICT},
    {"copy", copy, "", 0, V_LIST},
    {"count", list_count, "value", 1, V_LIST},
    {"index", list_index, "value start stop", 1, V_LIST},
    {"count", list_count, "value", 1, V_TUPLE},
    {"index", list_index, "value start stop", 1, V_TUPLE},
    {"count", list_count, "value", 1, V_RANGE},
    {"index", list_index, "value", 1, V_RANGE},
    {0},
};
