/* template_text_filters.c - filters on text and to text. */
#include "text/template_filter_impl.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The str method of that name on the value's text. */
struct value filter_by_method(struct render *r, const char *name, struct value *a, uint32_t count)
{
    struct str key = {.ptr = name, .len = (uint32_t)strlen(name)};
    struct value self = value_display(r, a[0]);
    struct args given = {.pos = a + 1};

    while (given.count < count && a[1 + given.count].type != V_ABSENT)
        given.count++;
    return call_builtin(r, method_find(V_STR, &key), &self, &given);
}

FILTER(capitalize)
{
    return filter_by_method(r, "capitalize", a, 0);
}
FILTER(lower)
{
    return filter_by_method(r, "lower", a, 0);
}
FILTER(upper)
{
    return filter_by_method(r, "upper", a, 0);
}
FILTER(trim)
{
    return filter_by_method(r, "strip", a, 1);
}

FILTER(center)
{
    if (a[1].type == V_ABSENT) a[1] = v_int(80);
    return filter_by_method(r, "center", a, 1);
}

FILTER(string)
{
    return value_display(r, a[0]);
}

FILTER(safe)
{
    struct value v = value_display(r, a[0]);

    v.sub = 1;
    return v;
}

FILTER(escape)
{
    return value_escape(r, a[0]);
}

FILTER(forceescape)
{
    struct value v = value_display(r, a[0]);

    v.sub = 0;
    return value_escape(r, v);
}

/* Capitalises after each run of -, white space, (, {, [ and <. */
FILTER(title)
{
    struct value v = value_display(r, a[0]);
    struct sink out;
    bool start = true;

    sink_init(&out, r);
    render_step(r, v.s->len / 8);
    for (uint32_t at = 0, next = 0; at < v.s->len; at = next) {
        uint32_t code = str_next(v.s->ptr, &next);
        bool between = char_space(code) || (code < 0x80 && code && strchr("-({[<", (int)code));
        if (between)
            sink_sub(&out, v.s, at, next);
        else
            sink_case(&out, v.s, at, next, start ? CASE_UPPER : CASE_LOWER);
        start = between;
    }
    struct value result = sink_value(&out);
    result.sub = v.sub;
    return result;
}

FILTER(replace)
{
    struct value v = value_display(r, a[0]);

    v.sub = 0;
    return str_replace(r, v, value_display(r, a[1]).s, value_display(r, a[2]).s,
                       arg_absent(a[3]) ? -1 : arg_int(r, a[3], -1, "replace's count"));
}

/* value | join(d, attribute) */
FILTER(join)
{
    struct value d = a[1].type == V_ABSENT ? v_text(r, "") : value_display(r, a[1]);
    struct value result, item;
    struct list *all;
    struct sink out;
    bool markup = false;

    all = value_items(r, a[0]);
    if (!arg_absent(a[2])) {
        struct list *parts = list_make(r, all->count);
        for (uint32_t i = 0; i < all->count; i++)
            list_push(r, parts, value_path(r, all->items[i], a[2], v_absent()));
        all = parts;
    }
    for (uint32_t i = 0; r->autoescape && i < all->count; i++)
        markup |= is_str(all->items[i]) && all->items[i].sub;
    markup |= r->autoescape && d.sub;
    if (markup) d = value_escape(r, d);
    sink_init(&out, r);
    for (uint32_t i = 0; i < all->count; i++) {
        render_step(r, 1 + d.s->len / 16);
        if (i) sink_str(&out, d.s);
        item = markup ? value_escape(r, all->items[i]) : all->items[i];
        sink_display(&out, item);
    }
    result = sink_value(&out);
    result.sub = markup;
    return result;
}

/* value | indent(width, first, blank) */
FILTER(indent)
{
    struct str space = {.ptr = " ", .len = 1};
    struct str *s;
    struct sink out, by;
    struct value v;
    uint32_t at = 0;

    s = arg_str(r, a[0], "what to indent");
    sink_init(&by, r);
    if (is_str(a[1])) {
        sink_str(&by, a[0].sub ? value_escape(r, a[1]).s : a[1].s);
    } else {
        int64_t width = arg_int(r, a[1], 4, "indent's width");
        sink_fill(&by, &space, width > 0 ? (uint64_t)width : 0);
    }
    struct value indention = sink_value(&by);
    sink_init(&out, r);
    if (arg_flag(a[2])) sink_str(&out, indention.s);
    for (bool first = true;; first = false) { /* a last newline is followed by an empty line */
        uint32_t end = at, next = at;
        bool ends = false;
        while (end < s->len && !ends) {
            uint32_t code = str_next(s->ptr, &next);
            ends = (code >= 0x0a && code <= 0x0d) || (code >= 0x1c && code <= 0x1e) ||
                   code == 0x85 || code == 0x2028 || code == 0x2029;
            if (ends && code == '\r' && next < s->len && s->ptr[next] == '\n') next++;
            if (!ends) end = next;
        }
        if (!first) {
            sink_text(&out, "\n");
            if (end > at || arg_flag(a[3])) sink_str(&out, indention.s);
        }
        sink_sub(&out, s, at, end);
        if (!ends || (next == s->len && s->ptr[next - 1] == '\r')) break;
        render_step(r, 1 + indention.s->len / 16);
        at = next;
    }
    v = sink_value(&out);
    v.sub = a[0].sub;
    return v;
}

/* value | truncate(length, killwords, end, leeway) */
FILTER(truncate)
{
    int64_t length = arg_int(r, a[1], 255, "truncate's length");
    int64_t leeway = arg_absent(a[4]) ? 5 : arg_int(r, a[4], 5, "truncate's leeway");
    struct value end = a[3].type == V_ABSENT ? v_text(r, "...") : a[3], v;
    struct str *tail = arg_str(r, end, "truncate's end");
    uint32_t cut, space;
    struct str *s;

    if (length < str_chars(tail) || leeway < 0)
        template_fail(r, TEMPLATE_RUNTIME, "truncate: the length must be at least that of the end");
    if (value_length(r, a[0]) <= length + leeway) return a[0];
    s = arg_str(r, a[0], "what to truncate");
    cut = str_offset(s, (uint32_t)(length - str_chars(tail)));
    if (!arg_flag(a[2])) {
        for (space = cut; space > 0 && s->ptr[space - 1] != ' ';)
            space--;
        if (space > 0) cut = space - 1;
    }
    v = str_sub(r, s, 0, cut);
    v.sub = a[0].sub;
    return value_add(r, v, end);
}

/* --- numbers --- */
/* The text without white space around it and with the digits of all scripts as ASCII, cut at `size`. */
static size_t plain_digits(const struct str *s, char *out, size_t size)
{
    uint32_t begin = 0, next = 0;
    size_t n = 0, end = 0;

    while (next < s->len && char_space(str_next(s->ptr, &next)))
        begin = next;
    for (next = begin; next < s->len && n + 1 < size;) {
        uint32_t code = str_next(s->ptr, &next), zero = code;
        if (code >= 0x80 && char_decimal(code)) {
            while (char_decimal(zero - 1)) /* they stand in runs of ten from a zero on */
                zero--;
            code = '0' + (code - zero) % 10;
        }
        out[n++] = code < 0x80 ? (char)code : '?';
        if (!char_space(code)) end = n;
    }
    if (next < s->len) end = n; /* too long: not a number that fits */
    out[end] = 0;
    return end;
}

/* Python's int(text, base): true and *out where it is one. */
static bool read_int(struct render *r, const struct str *text, int64_t base, int64_t *out)
{
    char given[256], digits[80];
    size_t n = 0, at = 0, end = plain_digits(text, given, sizeof given);
    bool underscore = true;

    if (at < end && (given[at] == '-' || given[at] == '+')) digits[n++] = given[at++];
    if (end - at > 2 && given[at] == '0') {
        char kind = (char)(given[at + 1] | 0x20);
        int64_t named = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
        if (named && (base == 0 || base == named)) {
            base = named;
            at += 2;
            underscore = false;
        }
    }
    if (base == 0) base = 10;
    if (base < 2 || base > 36)
        template_fail(r, TEMPLATE_RUNTIME, "int() base must be >= 2 and <= 36, or 0");
    for (; at < end; at++) {
        unsigned char c = (unsigned char)given[at];
        int digit = isdigit(c) ? c - '0' : isalpha(c) && c < 0x80 ? (c | 0x20) - 'a' + 10 : 99;
        if (c == '_' && !underscore) {
            underscore = true;
            continue;
        }
        if (digit >= base) return false;
        underscore = false;
        if (n + 1 == sizeof digits)
            template_fail(r, TEMPLATE_LIMIT, "an integer does not fit 64 bits");
        digits[n++] = (char)c;
    }
    digits[n] = 0;
    if (underscore || n == 0) return false;
    errno = 0;
    *out = strtoll(digits, NULL, (int)base);
    if (errno) template_fail(r, TEMPLATE_LIMIT, "an integer does not fit 64 bits");
    return true;
}

/* Python's float(text). */
static bool read_float(const struct str *s, double *out)
{
    static const char *const words[] = {"inf", "infinity", "nan"};
    char given[256], text[256];
    size_t n = 0, start, at = 0, end = plain_digits(s, given, sizeof given);
    char *stop;

    for (; at < end; at++) {
        bool between = given[at] == '_' && at + 1 < end && n &&
                       isdigit((unsigned char)given[at - 1]) &&
                       isdigit((unsigned char)given[at + 1]);
        if (between) continue;
        if (n + 1 == sizeof text) return false;
        text[n++] = given[at];
    }
    text[n] = 0;
    start = n && (text[0] == '+' || text[0] == '-');
    if (isalpha((unsigned char)text[start])) {
        bool known = false;
        for (int i = 0; i < 3; i++)
            known |= strcasecmp(text + start, words[i]) == 0;
        if (!known) return false;
    } else if (strspn(text + start, "0123456789.eE+-") != n - start) {
        return false;
    }
    *out = strtod(text, &stop);
    return n > 0 && stop == text + n;
}

/* int(float): fails where Python's does. */
static bool int_of_float(struct render *r, double f, int64_t *out)
{
    if (isnan(f) || isinf(f)) return false;
    if (!(fabs(f) < 9.2233720368547758e18))
        template_fail(r, TEMPLATE_LIMIT, "an integer does not fit 64 bits");
    *out = (int64_t)f;
    return true;
}

/* value | int(default, base) */
FILTER(int)
{
    int64_t i;
    double f;

    if (a[0].type == V_UNDEFINED) fail_undefined(r, a[0]);
    if (is_integer(a[0])) return v_int(as_int(a[0]));
    if (is_str(a[0])) {
        if (read_int(r, a[0].s, arg_int(r, a[2], 10, "int's base"), &i)) return v_int(i);
        if (read_float(a[0].s, &f) && int_of_float(r, f, &i)) return v_int(i);
    } else if (a[0].type == V_FLOAT) {
        if (isinf(a[0].f))
            template_fail(r, TEMPLATE_LIMIT, "cannot convert float infinity to integer");
        if (int_of_float(r, a[0].f, &i)) return v_int(i);
    }
    return a[1].type == V_ABSENT ? v_int(0) : a[1];
}

FILTER(float)
{
    double f;

    if (a[0].type == V_UNDEFINED) fail_undefined(r, a[0]);
    if (is_number(a[0])) return v_float(as_float(a[0]));
    if (is_str(a[0]) && read_float(a[0].s, &f)) return v_float(f);
    return a[1].type == V_ABSENT ? v_float(0) : a[1];
}

FILTER(filesizeformat)
{
    static const char *const units[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
    static const char *const binary[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
    double base = arg_flag(a[1]) ? 1024 : 1000, unit = base, bytes;
    struct sink out;
    int i = 0;

    if (a[0].type == V_UNDEFINED) fail_undefined(r, a[0]);
    if (is_number(a[0]))
        bytes = as_float(a[0]);
    else if (!is_str(a[0]) || !read_float(a[0].s, &bytes))
        template_fail(r, TEMPLATE_RUNTIME, "filesizeformat needs a number");
    sink_init(&out, r);
    if (bytes == 1) return v_text(r, "1 Byte");
    if (bytes < base) {
        sink_printf(&out, "%lld Bytes", (long long)bytes);
        return sink_value(&out);
    }
    for (; i < 7 && bytes >= unit * base; i++)
        unit *= base;
    sink_printf(&out, "%.1f %s", bytes / unit, (arg_flag(a[1]) ? binary : units)[i]);
    return sink_value(&out);
}

/* --- formats --- */
FILTER(format)
{
    struct value text = value_display(r, a[0]);
    struct list *l = list_make(r, args->count);
    struct dict *d;

    if (args->count && args->named_count)
        template_fail(r, TEMPLATE_RUNTIME,
                      "can't handle positional and keyword arguments at the same time");
    if (args->named_count) {
        d = dict_make(r, args->named_count);
        for (uint32_t i = 0; i < args->named_count; i++)
            dict_set(r, d, args->names[i], args->named[i]);
        return format_percent(r, text, v_dict(d), d);
    }
    for (uint32_t i = 0; i < args->count; i++)
        list_push(r, l, args->pos[i]);
    return format_percent(r, text, v_tuple(l), NULL);
}

FILTER(pprint)
{
    struct sink out;

    sink_init(&out, r);
    sink_repr(&out, a[0]);
    return sink_value(&out);
}

/* value | tojson(ensure_ascii, indent, separators, sort_keys) */
FILTER(tojson)
{
    struct json_style style = {.ascii = arg_flag(a[1]), .sort_keys = arg_flag(a[4])};
    struct str space = {.ptr = " ", .len = 1};
    struct value item = v_text(r, ", "), colon = v_text(r, ": ");
    struct sink indent, out;

    if (!arg_absent(a[2])) {
        sink_init(&indent, r);
        style.pretty = true;
        item = v_text(r, ",");
        if (is_str(a[2])) {
            sink_str(&indent, a[2].s);
        } else {
            int64_t width = arg_int(r, a[2], 0, "tojson's indent");
            sink_fill(&indent, &space, width > 0 ? (uint64_t)width : 0);
        }
        style.indent = sink_value(&indent).s;
    }
    if (!arg_absent(a[3])) {
        struct list *two = value_items(r, a[3]);
        if (two->count != 2)
            template_fail(r, TEMPLATE_RUNTIME, "tojson's separators must be a pair of strings");
        item = two->items[0];
        colon = two->items[1];
    }
    style.item_separator = arg_str(r, item, "a separator");
    style.key_separator = arg_str(r, colon, "a separator");
    sink_init(&out, r);
    sink_json(&out, a[0], &style, 0);
    return sink_value(&out);
}

const struct builtin template_text_filters[] = {
    {"capitalize", filter_capitalize, "", 0, 0},
    {"center", filter_center, "width", 0, 0},
    {"e", filter_escape, "", 0, 0},
    {"escape", filter_escape, "", 0, 0},
    {"filesizeformat", filter_filesizeformat, "binary", 0, 0},
    {"float", filter_float, "default", 0, 0},
    {"forceescape", filter_forceescape, "", 0, 0},
    {"format", filter_format, NULL, 0, 0},
    {"indent", filter_indent, "width first blank", 0, 0},
    {"int", filter_int, "default base", 0, 0},
    {"join", filter_join, "d attribute", 0, 0},
    {"lower", filter_lower, "", 0, 0},
    {"pprint", filter_pprint, "", 0, 0},
    {"replace", filter_replace, "old new count", 2, 0},
    {"safe", filter_safe, "", 0, 0},
    {"string", filter_string, "", 0, 0},
    {"title", filter_title, "", 0, 0},
    {"tojson", filter_tojson, "ensure_ascii indent separators sort_keys", 0, 0},
    {"trim", filter_trim, "chars", 0, 0},
    {"truncate", filter_truncate, "length killwords end leeway", 0, 0},
    {"upper", filter_upper, "", 0, 0},
    {0},
};
