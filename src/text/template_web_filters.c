/* template_web_filters.c - filters that come from the web (URLs, tags, attributes) and wordwrap. */
#include "text/template_filter_impl.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

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

/* Python's chunk.strip() == '': blank in any script. */
static bool all_space(const struct str *s, struct chunk c)
{
    while (c.begin < c.end)
        if (!char_space(str_next(s->ptr, &c.begin))) return false;
    return true;
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
        if (!first && all_space(w->s, c)) { /* dropped at the start of a line but the first */
            c.begin = c.end;
            if (c.end == end) break;
            c.end = next_chunk(w, c.begin, end);
        }
        line = (struct chunk){c.begin, c.begin};
        for (;;) {
            render_step(w->r, 1 + (c.end - c.begin) / 16);
            chars = chunk_chars(w, c);
            if (used + chars > w->width) break;
            last_blank = all_space(w->s, c) ? c.begin : UINT32_MAX;
            used += chars;
            line.end = c.begin = c.end;
            if (c.end == end) break;
            c.end = next_chunk(w, c.begin, end);
        }
        if (c.begin < c.end && chars > w->width) {
            if (w->break_words) {
                line.end = c.begin = cut_word(w, c, w->width - used);
                last_blank = UINT32_MAX; /* textwrap drops only the cut word's empty start here */
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
    struct value newline = arg_absent(a[3]) ? v_text(r, "\n") : a[3], self[2] = {a[0], v_absent()};
    struct sink out;
    struct wrap w = {.r = r, .out = &out, .newline = arg_str(r, newline, "wrapstring")};
    struct list *lines = filter_by_method(r, "splitlines", self, 0).l;

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
    struct list *parts = filter_by_method(r, "split", words, 0).l;
    for (uint32_t i = 0; i < parts->count; i++) {
        if (i) sink_text(&out, " ");
        sink_str(&out, parts->items[i].s);
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

const struct builtin template_web_filters[] = {
    {"striptags", filter_striptags, "", 0, 0},
    {"urlencode", filter_urlencode, "", 0, 0},
    {"wordcount", filter_wordcount, "", 0, 0},
    {"wordwrap", filter_wordwrap, "width break_long_words wrapstring break_on_hyphens", 0, 0},
    {"xmlattr", filter_xmlattr, "autospace", 0, 0},
    {0},
};
