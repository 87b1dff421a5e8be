/* template_text_filters.c - filters on text and to text. */
#include "text/template_ast.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define FILTER(name)                                                     \
    static struct value filter_##name(struct render *r, struct value *a, \
                                      __attribute__((unused)) const struct args *args)

static bool absent(struct value v)
{
    return v.type == V_ABSENT || v.type == V_NONE;
}

static bool flag(struct value v)
{
    return v.type != V_ABSENT && value_true(v);
}

/* The str method of that name on the value's text. */
static struct value by_method(struct render *r, const char *name, struct value *a, uint32_t count)
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
    return by_method(r, "capitalize", a, 0);
}
FILTER(lower)
{
    return by_method(r, "lower", a, 0);
}
FILTER(upper)
{
    return by_method(r, "upper", a, 0);
}
FILTER(trim)
{
    return by_method(r, "strip", a, 1);
}

FILTER(center)
{
    if (a[1].type == V_ABSENT) a[1] = v_int(80);
    return by_method(r, "center", a, 1);
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
                       absent(a[3]) ? -1 : arg_int(r, a[3], -1, "replace's count"));
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
    if (!absent(a[2])) {
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
    if (flag(a[2])) sink_str(&out, indention.s);
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
            if (end > at || flag(a[3])) sink_str(&out, indention.s);
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
    int64_t leeway = absent(a[4]) ? 5 : arg_int(r, a[4], 5, "truncate's leeway");
    struct value end = a[3].type == V_ABSENT ? v_text(r, "...") : a[3], v;
    struct str *tail = arg_str(r, end, "truncate's end");
    uint32_t cut, space;
    struct str *s;

    if (length < str_chars(tail) || leeway < 0)
        template_fail(r, TEMPLATE_RUNTIME, "truncate: the length must be at least that of the end");
    if (value_length(r, a[0]) <= length + leeway) return a[0];
    s = arg_str(r, a[0], "what to truncate");
    cut = str_offset(s, (uint32_t)(length - str_chars(tail)));
    if (!flag(a[2])) {
        for (space = cut; space > 0 && s->ptr[space - 1] != ' ';)
            space--;
        if (space > 0) cut = space - 1;
    }
    v = str_sub(r, s, 0, cut);
    v.sub = a[0].sub;
    return value_add(r, v, end);
}

/* --- wordwrap: textwrap.wrap of each line, without tab expansion (em dashes aside) --- */
struct chunk { /* bytes of a line that stay together: white space, or a word */
    uint32_t begin, end;
};
struct wrap {
    struct render *r;
    const struct str *s;
    struct sink *out;
    const struct str *newline;
    int64_t width;
    bool break_words, break_hyphens;
    bool any; /* a line has been written */
};

static bool letter_at(const struct str *s, uint32_t at)
{
    unsigned char c = (unsigned char)s->ptr[at];

    return c >= 0x80 || isalpha(c) || c == '_';
}

/* Whether a line may be broken behind the hyphen at `at`: letters on both sides, two before it or a-b-. */
static bool breaks_after(const struct str *s, uint32_t at, uint32_t end)
{
    uint32_t next = at + 1;
    bool before =
        at >= 2 && letter_at(s, at - 1) &&
        (letter_at(s, at - 2) || (at >= 3 && s->ptr[at - 2] == '-' && letter_at(s, at - 3)));

    if (!before || next + 1 >= end || !letter_at(s, next)) return false;
    str_next(s->ptr, &next);
    if (next < end && s->ptr[next] == '-') next++;
    return next < end && letter_at(s, next);
}

static bool blank_at(const struct str *s, uint32_t at)
{
    return s->ptr[at] && strchr("\t\n\v\f\r ", s->ptr[at]);
}

static uint32_t next_chunk(const struct wrap *w, uint32_t at, uint32_t end)
{
    bool blank = blank_at(w->s, at);

    for (at++; at < end && blank_at(w->s, at) == blank; at++)
        if (!blank && w->break_hyphens && w->s->ptr[at] == '-' && breaks_after(w->s, at, end))
            return at + 1;
    return at;
}

static int64_t chunk_chars(const struct wrap *w, struct chunk c)
{
    struct str part = {.ptr = w->s->ptr + c.begin, .len = c.end - c.begin, .chars = STR_UNKNOWN};

    return str_chars(&part);
}

/* Where a word that fits no line is cut so that `room` characters of it go on this one. */
static uint32_t cut_word(const struct wrap *w, struct chunk c, int64_t room)
{
    uint32_t at = c.begin, hyphen = 0;
    bool other = false;

    for (; room > 0 && at < c.end; room--) {
        if (w->s->ptr[at] == '-' && other) hyphen = at + 1;
        other |= w->s->ptr[at] != '-';
        str_next(w->s->ptr, &at);
    }
    return w->break_hyphens && hyphen ? hyphen : at;
}

static void wrap_line(struct wrap *w, uint32_t begin, uint32_t end)
{
    struct chunk c = {begin, begin}, line;
    bool first = true;

    while (c.end < end || c.begin < c.end) {
        int64_t used = 0, chars;
        uint32_t last_blank = UINT32_MAX;
        if (c.begin == c.end) c.end = next_chunk(w, c.begin, end);
        if (!first && blank_at(w->s, c.begin)) { /* dropped at the start of a line but the first */
            c.begin = c.end;
            if (c.end == end) break;
            c.end = next_chunk(w, c.begin, end);
        }
        line = (struct chunk){c.begin, c.begin};
        for (;;) {
            render_step(w->r, 1 + (c.end - c.begin) / 16);
            chars = chunk_chars(w, c);
            if (used + chars > w->width) break;
            last_blank = blank_at(w->s, c.begin) ? c.begin : UINT32_MAX;
            used += chars;
            line.end = c.begin = c.end;
            if (c.end == end) break;
            c.end = next_chunk(w, c.begin, end);
        }
        if (c.begin < c.end && chars > w->width) {
            if (w->break_words) {
                line.end = c.begin = cut_word(w, c, w->width - used);
                if (line.end > line.begin && w->width > used) last_blank = UINT32_MAX;
            } else if (line.begin == line.end) {
                line.end = c.begin = c.end;
            }
        }
        if (last_blank != UINT32_MAX) line.end = last_blank;
        if (line.begin == line.end) continue;
        if (w->any) sink_str(w->out, w->newline);
        w->any = true;
        first = false;
        sink_sub(w->out, w->s, line.begin, line.end);
    }
    if (!first) return;
    if (w->any) sink_str(w->out, w->newline); /* an empty line stays one */
    w->any = true;
}

/* value | wordwrap(width, break_long_words, wrapstring, break_on_hyphens) */
FILTER(wordwrap)
{
    struct str *s = arg_str(r, a[0], "what to wrap");
    struct value newline = absent(a[3]) ? v_text(r, "\n") : a[3], self[2] = {a[0], v_absent()};
    struct sink out;
    struct wrap w = {.r = r, .out = &out, .newline = arg_str(r, newline, "wrapstring")};
    struct list *lines = by_method(r, "splitlines", self, 0).l;

    (void)s;
    w.width = arg_int(r, a[1], 79, "wordwrap's width");
    w.break_words = a[2].type == V_ABSENT || value_true(a[2]);
    w.break_hyphens = a[4].type == V_ABSENT || value_true(a[4]);
    if (w.width <= 0) template_fail(r, TEMPLATE_RUNTIME, "invalid width (must be > 0)");
    sink_init(&out, r);
    for (uint32_t i = 0; i < lines->count; i++) {
        w.s = lines->items[i].s;
        wrap_line(&w, 0, w.s->len);
    }
    return sink_value(&out);
}

FILTER(wordcount)
{
    struct str *s = value_display(r, a[0]).s;
    int64_t n = 0;
    bool inside = false;

    render_step(r, s->len / 8);
    for (uint32_t at = 0; at < s->len;) {
        bool word = char_word(str_next(s->ptr, &at));
        n += word && !inside;
        inside = word;
    }
    return v_int(n);
}

/* --- numbers --- */
/* Python's int(text, base): true and *out where it is one. */
static bool read_int(struct render *r, const struct str *s, int64_t base, int64_t *out)
{
    char digits[80];
    size_t n = 0;
    uint32_t at = 0, end = s->len;
    bool underscore = true;

    while (at < end && char_space((unsigned char)s->ptr[at]))
        at++;
    while (end > at && char_space((unsigned char)s->ptr[end - 1]))
        end--;
    if (at < end && (s->ptr[at] == '-' || s->ptr[at] == '+')) digits[n++] = s->ptr[at++];
    if (end - at > 2 && s->ptr[at] == '0') {
        char kind = (char)(s->ptr[at + 1] | 0x20);
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
        unsigned char c = (unsigned char)s->ptr[at];
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
    char text[128];
    size_t n = 0, start;
    uint32_t at = 0, end = s->len;
    char *stop;

    while (at < end && char_space((unsigned char)s->ptr[at]))
        at++;
    while (end > at && char_space((unsigned char)s->ptr[end - 1]))
        end--;
    for (; at < end; at++) {
        bool between = s->ptr[at] == '_' && at + 1 < end && n &&
                       isdigit((unsigned char)s->ptr[at - 1]) &&
                       isdigit((unsigned char)s->ptr[at + 1]);
        if (between) continue;
        if (n + 1 == sizeof text) return false;
        text[n++] = s->ptr[at];
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
    double base = flag(a[1]) ? 1024 : 1000, unit = base, bytes;
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
    sink_printf(&out, "%.1f %s", bytes / unit, (flag(a[1]) ? binary : units)[i]);
    return sink_value(&out);
}

/* --- the web's escapes --- */
static void quote_url(struct sink *out, const struct str *s, bool query)
{
    uint32_t hint = 0;

    for (uint32_t at = 0; at < s->len; at++) {
        unsigned char c = (unsigned char)s->ptr[at];
        bool plain = c < 0x80 && (isalnum(c) || (c && strchr("_.-~", c)) || (!query && c == '/'));
        bool marked = str_marked_at(s, at, &hint);
        char text[8];
        if (plain) {
            sink_put(out, s->ptr + at, 1, marked);
            continue;
        }
        if (query && c == ' ')
            snprintf(text, sizeof text, "+");
        else
            snprintf(text, sizeof text, "%%%02X", c);
        sink_put(out, text, strlen(text), marked);
    }
}

FILTER(urlencode)
{
    struct value over = a[0];
    struct list *pairs;
    struct sink out;

    sink_init(&out, r);
    if (is_str(over) || !value_iterable(over)) {
        quote_url(&out, value_display(r, over).s, false);
        return sink_value(&out);
    }
    if (over.type == V_DICT) over = (struct value){.type = V_VIEW, .sub = VIEW_ITEMS, .d = over.d};
    pairs = value_items(r, over);
    for (uint32_t i = 0; i < pairs->count; i++) {
        struct list *pair = value_items(r, pairs->items[i]);
        if (pair->count != 2)
            template_fail(r, TEMPLATE_RUNTIME, "urlencode needs pairs of key and value");
        if (i) sink_text(&out, "&");
        quote_url(&out, value_display(r, pair->items[0]).s, true);
        sink_text(&out, "=");
        quote_url(&out, value_display(r, pair->items[1]).s, true);
    }
    return sink_value(&out);
}

FILTER(xmlattr)
{
    struct sink out;
    bool any = false, space = a[1].type == V_ABSENT || value_true(a[1]);
    struct value v;

    if (a[0].type == V_UNDEFINED) fail_undefined(r, a[0]);
    if (a[0].type != V_DICT) template_fail(r, TEMPLATE_RUNTIME, "xmlattr needs a mapping");
    sink_init(&out, r);
    for (uint32_t i = 0; i < a[0].d->count; i++) {
        struct entry *e = &a[0].d->entries[i];
        struct str *key;
        if (e->value.type == V_NONE || e->value.type == V_UNDEFINED) continue;
        key = arg_str(r, e->key, "an attribute's name");
        for (uint32_t at = 0; at < key->len; at++)
            if (!key->ptr[at] || strchr(" \t\n\r\f\v/>=", key->ptr[at]))
                template_fail(r, TEMPLATE_RUNTIME, "invalid character in attribute name");
        if (any || space) sink_text(&out, " ");
        any = true;
        sink_str(&out, value_escape(r, e->key).s);
        sink_text(&out, "=\"");
        sink_str(&out, value_escape(r, e->value).s);
        sink_text(&out, "\"");
    }
    v = sink_value(&out);
    v.sub = r->autoescape;
    return v;
}

/* One HTML entity at `at` of s: its code and end; 0 where there is none. */
static uint32_t entity(const struct str *s, uint32_t at, uint32_t *end)
{
    static const struct {
        const char *name;
        uint32_t code;
    } named[] = {{"&amp;", '&'},  {"&lt;", '<'},    {"&gt;", '>'},
                 {"&quot;", '"'}, {"&apos;", '\''}, {"&nbsp;", 0xa0}};
    uint32_t code = 0, i = at + 2;
    bool hex;

    for (size_t n = 0; n < sizeof named / sizeof *named; n++) {
        size_t len = strlen(named[n].name);
        if (s->len - at < len || memcmp(s->ptr + at, named[n].name, len) != 0) continue;
        *end = at + (uint32_t)len;
        return named[n].code;
    }
    if (i >= s->len || s->ptr[at + 1] != '#') return 0;
    hex = (s->ptr[i] | 0x20) == 'x';
    i += hex;
    for (; i < s->len && code <= 0x10ffff; i++) {
        unsigned char c = (unsigned char)s->ptr[i];
        if (!(hex ? isxdigit(c) : isdigit(c))) break;
        code = code * (hex ? 16 : 10) + (uint32_t)(isdigit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (i < s->len && s->ptr[i] == ';') i++;
    *end = i;
    return code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : code;
}

/* The text without comments and tags, its entities read, its white space single blanks. */
FILTER(striptags)
{
    struct str *s = value_display(r, a[0]).s;
    struct sink bare, out;
    uint32_t hint = 0;
    struct value text;

    sink_init(&bare, r);
    render_step(r, s->len / 8);
    for (uint32_t at = 0, next = 0; at < s->len; at = next) {
        const char *close = NULL;
        if (s->len - at >= 4 && memcmp(s->ptr + at, "<!--", 4) == 0) {
            close = memmem(s->ptr + at, s->len - at, "-->", 3);
            next = close ? (uint32_t)(close - s->ptr) + 3 : s->len;
            render_step(r, 1);
            if (close) continue;
        }
        if (s->ptr[at] == '<' && (close = memchr(s->ptr + at, '>', s->len - at))) {
            next = (uint32_t)(close - s->ptr) + 1;
            continue;
        }
        uint32_t code = s->ptr[at] == '&' ? entity(s, at, &next) : 0;
        if (code) {
            sink_code(&bare, code, str_marked_at(s, at, &hint));
            continue;
        }
        next = at;
        str_next(s->ptr, &next);
        sink_sub(&bare, s, at, next);
    }
    text = sink_value(&bare);
    sink_init(&out, r);
    struct value words[2] = {text, v_absent()};
    struct list *parts = by_method(r, "split", words, 0).l;
    for (uint32_t i = 0; i < parts->count; i++) {
        if (i) sink_text(&out, " ");
        sink_str(&out, parts->items[i].s);
    }
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
    struct json_style style = {.ascii = flag(a[1]), .sort_keys = flag(a[4])};
    struct str space = {.ptr = " ", .len = 1};
    struct value item = v_text(r, ", "), colon = v_text(r, ": ");
    struct sink indent, out;

    if (!absent(a[2])) {
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
    if (!absent(a[3])) {
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
    {"striptags", filter_striptags, "", 0, 0},
    {"title", filter_title, "", 0, 0},
    {"tojson", filter_tojson, "ensure_ascii indent separators sort_keys", 0, 0},
    {"trim", filter_trim, "chars", 0, 0},
    {"truncate", filter_truncate, "length killwords end leeway", 0, 0},
    {"upper", filter_upper, "", 0, 0},
    {"urlencode", filter_urlencode, "", 0, 0},
    {"wordcount", filter_wordcount, "", 0, 0},
    {"wordwrap", filter_wordwrap, "width break_long_words wrapstring break_on_hyphens", 0, 0},
    {"xmlattr", filter_xmlattr, "autospace", 0, 0},
    {0},
};
