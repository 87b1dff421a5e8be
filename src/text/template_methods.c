/* template_methods.c - the methods of str. Positions are code points to the template and bytes inside. A method of
 * Markup gives Markup. */
#include "text/template_ast.h"

#include <stdio.h>

static struct value like(struct value self, struct value v)
{
    v.sub = self.sub;
    return v;
}

static bool absent(struct value v)
{
    return v.type == V_ABSENT || v.type == V_NONE;
}

/* An argument that is inserted into self: escaped where self is Markup. */
static struct str *inserted(struct render *r, struct value self, struct value v, const char *what)
{
    arg_str(r, v, what);
    return self.sub ? value_escape(r, v).s : v.s;
}

/* --- strip --- */
static bool strips(const struct str *chars, uint32_t code)
{
    if (!chars) return char_space(code);
    for (uint32_t at = 0; at < chars->len;)
        if (str_next(chars->ptr, &at) == code) return true;
    return false;
}

static struct value strip(struct render *r, struct value *a, bool left, bool right)
{
    const struct str *s = a[0].s,
                     *chars = absent(a[1]) ? NULL : arg_str(r, a[1], "strip's argument");
    uint32_t begin = 0, end = s->len;

    if (chars) render_step(r, (uint64_t)s->len * (chars->len / 64) / 64);
    while (left && begin < end) {
        uint32_t next = begin;
        if (!strips(chars, str_next(s->ptr, &next))) break;
        begin = next;
    }
    while (right && end > begin) {
        uint32_t at = end - 1, next;
        while (at > begin && ((unsigned char)s->ptr[at] & 0xc0) == 0x80)
            at--;
        next = at;
        if (!strips(chars, str_next(s->ptr, &next))) break;
        end = at;
    }
    return like(a[0], str_sub(r, s, begin, end));
}

#define METHOD(name)                                            \
    static struct value name(struct render *r, struct value *a, \
                             __attribute__((unused)) const struct args *args)

METHOD(str_strip)
{
    return strip(r, a, true, true);
}
METHOD(str_lstrip)
{
    return strip(r, a, true, false);
}
METHOD(str_rstrip)
{
    return strip(r, a, false, true);
}

/* --- split --- */
static void push_part(struct render *r, struct list *l, struct value self, uint32_t begin,
                      uint32_t end)
{
    list_push(r, l, like(self, str_sub(r, self.s, begin, end)));
}

static struct list *reversed(struct list *l)
{
    for (uint32_t i = 0; i < l->count / 2; i++) {
        struct value v = l->items[i];
        l->items[i] = l->items[l->count - 1 - i];
        l->items[l->count - 1 - i] = v;
    }
    return l;
}

static struct list *split_spaces(struct render *r, struct value self, int64_t max)
{
    const struct str *s = self.s;
    struct list *l = list_make(r, 0);
    uint32_t at = 0;

    for (;;) {
        uint32_t begin, next;
        for (next = at; at < s->len && char_space(str_next(s->ptr, &next)); at = next) {
        }
        if (at >= s->len) return l;
        begin = at;
        if (max == 0) {
            push_part(r, l, self, begin, s->len);
            return l;
        }
        for (next = at; at < s->len && !char_space(str_next(s->ptr, &next)); at = next) {
        }
        push_part(r, l, self, begin, at);
        max--;
    }
}

static uint32_t char_before(const struct str *s, uint32_t at, uint32_t *code)
{
    uint32_t begin = at - 1, next;

    while (begin > 0 && ((unsigned char)s->ptr[begin] & 0xc0) == 0x80)
        begin--;
    next = begin;
    *code = str_next(s->ptr, &next);
    return begin;
}

static struct list *rsplit_spaces(struct render *r, struct value self, int64_t max)
{
    const struct str *s = self.s;
    struct list *l = list_make(r, 0);
    uint32_t at = s->len, code, begin;

    for (;;) {
        uint32_t end;
        while (at > 0 && (begin = char_before(s, at, &code), char_space(code)))
            at = begin;
        if (at == 0) return reversed(l);
        end = at;
        if (max == 0) {
            push_part(r, l, self, 0, end);
            return reversed(l);
        }
        while (at > 0 && (begin = char_before(s, at, &code), !char_space(code)))
            at = begin;
        push_part(r, l, self, at, end);
        max--;
    }
}

METHOD(str_split)
{
    int64_t max = arg_int(r, a[2], -1, "maxsplit");
    struct str *sep;
    struct list *l;
    uint32_t from = 0, at;

    render_step(r, a[0].s->len / 16);
    if (absent(a[1])) return v_list(split_spaces(r, a[0], max));
    sep = arg_str(r, a[1], "the separator");
    if (!sep->len) template_fail(r, TEMPLATE_RUNTIME, "empty separator");
    l = list_make(r, 0);
    while (max-- != 0 && (at = str_find(r, a[0].s, sep, from)) != UINT32_MAX) {
        push_part(r, l, a[0], from, at);
        from = at + sep->len;
    }
    push_part(r, l, a[0], from, a[0].s->len);
    return v_list(l);
}

METHOD(str_rsplit)
{
    int64_t max = arg_int(r, a[2], -1, "maxsplit");
    struct str *sep;
    struct list *l;
    uint32_t end = a[0].s->len, at;

    render_step(r, a[0].s->len / 16);
    if (absent(a[1])) return v_list(rsplit_spaces(r, a[0], max));
    sep = arg_str(r, a[1], "the separator");
    if (!sep->len) template_fail(r, TEMPLATE_RUNTIME, "empty separator");
    l = list_make(r, 0);
    while (max-- != 0 && (at = str_rfind(r, a[0].s, sep, end)) != UINT32_MAX) {
        push_part(r, l, a[0], at + sep->len, end);
        end = at;
    }
    push_part(r, l, a[0], 0, end);
    return v_list(reversed(l));
}

/* The line that starts at `at`: where its text ends, and where the next one starts. */
static void line_at(const struct str *s, uint32_t at, uint32_t *end, uint32_t *next)
{
    for (uint32_t after = at; at < s->len; at = after) {
        uint32_t code = str_next(s->ptr, &after);
        bool breaks = (code >= 0x0a && code <= 0x0d) || (code >= 0x1c && code <= 0x1e) ||
                      code == 0x85 || code == 0x2028 || code == 0x2029;
        if (!breaks) continue;
        *end = at;
        *next = code == '\r' && after < s->len && s->ptr[after] == '\n' ? after + 1 : after;
        return;
    }
    *end = *next = s->len;
}

METHOD(str_splitlines)
{
    struct list *l = list_make(r, 0);
    bool keep = a[1].type != V_ABSENT && value_true(a[1]);

    render_step(r, a[0].s->len / 16);
    for (uint32_t at = 0, end, next; at < a[0].s->len; at = next) {
        line_at(a[0].s, at, &end, &next);
        push_part(r, l, a[0], at, keep ? next : end);
    }
    return v_list(l);
}

static struct value partition(struct render *r, struct value *a, bool last)
{
    struct str *s = a[0].s, *sep = arg_str(r, a[1], "the separator");
    struct list *l = list_make(r, 3);
    uint32_t at, rest;

    if (!sep->len) template_fail(r, TEMPLATE_RUNTIME, "empty separator");
    at = last ? str_rfind(r, s, sep, s->len) : str_find(r, s, sep, 0);
    if (at != UINT32_MAX)
        rest = at + sep->len;
    else
        at = rest = last ? 0 : s->len;
    push_part(r, l, a[0], 0, at);
    push_part(r, l, a[0], at, rest);
    push_part(r, l, a[0], rest, s->len);
    return v_tuple(l);
}

METHOD(str_partition)
{
    return partition(r, a, false);
}
METHOD(str_rpartition)
{
    return partition(r, a, true);
}

/* --- searching: (what, start, end) --- */
struct window {
    uint32_t begin, end; /* bytes */
    bool empty;          /* start lies behind end: nothing is found, not even "" */
};

static int64_t clip_index(struct render *r, struct value v, int64_t fallback, int64_t chars)
{
    int64_t at = absent(v) ? fallback : arg_int(r, v, 0, "a position");

    if (at < 0) at += chars;
    return at < 0 ? 0 : at;
}

static struct window window_of(struct render *r, struct value *a)
{
    int64_t chars = str_chars(a[0].s), start = clip_index(r, a[2], 0, chars);
    int64_t end = clip_index(r, a[3], chars, chars);
    struct window w = {0};

    if (end > chars) end = chars;
    w.empty = start > end;
    if (w.empty) return w;
    w.begin = str_offset(a[0].s, (uint32_t)start);
    w.end = str_offset(a[0].s, (uint32_t)end);
    return w;
}

static int64_t find_in(struct render *r, struct value *a, bool last)
{
    struct window w = window_of(r, a);
    struct str *what = arg_str(r, a[1], "what to find"), part;
    uint32_t at;

    if (w.empty) return -1;
    part = (struct str){.ptr = a[0].s->ptr, .len = w.end};
    at = last ? str_rfind(r, &part, what, w.end) : str_find(r, &part, what, w.begin);
    if (at == UINT32_MAX || at < w.begin) return -1;
    return str_index(a[0].s, at);
}

METHOD(str_find_method)
{
    return v_int(find_in(r, a, false));
}
METHOD(str_rfind_method)
{
    return v_int(find_in(r, a, true));
}

static struct value found(struct render *r, int64_t at)
{
    if (at < 0) template_fail(r, TEMPLATE_RUNTIME, "substring not found");
    return v_int(at);
}

METHOD(str_index_method)
{
    return found(r, find_in(r, a, false));
}
METHOD(str_rindex)
{
    return found(r, find_in(r, a, true));
}

METHOD(str_count)
{
    struct window w = window_of(r, a);
    struct str *what = arg_str(r, a[1], "what to count"), part;
    int64_t n = 0;

    if (w.empty) return v_int(0);
    part = (struct str){.ptr = a[0].s->ptr, .len = w.end};
    if (!what->len) return v_int(str_index(a[0].s, w.end) - str_index(a[0].s, w.begin) + 1);
    for (uint32_t at = w.begin; (at = str_find(r, &part, what, at)) != UINT32_MAX; at += what->len)
        n++;
    return v_int(n);
}

static bool affix(struct render *r, struct value *a, bool end)
{
    struct window w = window_of(r, a);
    struct value one = a[1], *all = &one;
    uint32_t count = 1;

    if (a[1].type == V_TUPLE) {
        all = a[1].l->items;
        count = a[1].l->count;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct str *what = arg_str(r, all[i], "a prefix or suffix");
        if (w.empty || what->len > w.end - w.begin) continue;
        if (memcmp(a[0].s->ptr + (end ? w.end - what->len : w.begin), what->ptr, what->len) == 0)
            return true;
    }
    return false;
}

METHOD(str_startswith)
{
    return v_bool(affix(r, a, false));
}
METHOD(str_endswith)
{
    return v_bool(affix(r, a, true));
}

METHOD(str_removeprefix)
{
    struct str *what = arg_str(r, a[1], "the prefix");
    bool has = what->len <= a[0].s->len && memcmp(a[0].s->ptr, what->ptr, what->len) == 0;

    return like(a[0], str_sub(r, a[0].s, has ? what->len : 0, a[0].s->len));
}

METHOD(str_removesuffix)
{
    struct str *s = a[0].s, *what = arg_str(r, a[1], "the suffix");
    bool has =
        what->len <= s->len && memcmp(s->ptr + s->len - what->len, what->ptr, what->len) == 0;

    return like(a[0], str_sub(r, s, 0, has ? s->len - what->len : s->len));
}

/* --- replace, join --- */
struct value str_replace(struct render *r, struct value self, struct str *old, struct str *new,
                         int64_t max)
{
    const struct str *s = self.s;
    struct sink out;
    uint32_t from = 0, at;

    sink_init(&out, r);
    if (!old->len) { /* between all characters, and at both ends */
        for (uint32_t next = 0; max != 0; max--) {
            sink_str(&out, new);
            if (from >= s->len) break;
            str_next(s->ptr, &next);
            sink_sub(&out, s, from, next);
            from = next;
            render_step(r, 1 + new->len / 16);
        }
    } else {
        if (str_find(r, s, old, 0) == UINT32_MAX) return self;
        for (; max != 0 && (at = str_find(r, s, old, from)) != UINT32_MAX; max--) {
            sink_sub(&out, s, from, at);
            sink_str(&out, new);
            from = at + old->len;
        }
    }
    sink_sub(&out, s, from, s->len);
    return like(self, sink_value(&out));
}

METHOD(str_replace_method)
{
    int64_t max = arg_int(r, a[3], -1, "replace's count");

    return str_replace(r, a[0], arg_str(r, a[1], "replace's argument"),
                       inserted(r, a[0], a[2], "replace's argument"), max);
}

METHOD(str_join)
{
    struct list *all;
    struct sink out;

    if (a[1].type != V_UNDEFINED && !value_iterable(a[1]))
        template_fail(r, TEMPLATE_RUNTIME, "can only join an iterable");
    all = value_items(r, a[1]);
    sink_init(&out, r);
    for (uint32_t i = 0; i < all->count; i++) {
        if (!is_str(all->items[i]))
            template_fail(r, TEMPLATE_RUNTIME, "sequence item %u: expected str instance, %s found",
                          i, type_name(all->items[i]));
        if (i) sink_str(&out, a[0].s);
        sink_str(&out, inserted(r, a[0], all->items[i], "an item to join"));
        render_step(r, 1 + a[0].s->len / 16);
    }
    return like(a[0], sink_value(&out));
}

/* --- case --- */
static struct value cased(struct render *r, struct value self, enum case_kind kind)
{
    struct sink out;

    sink_init(&out, r);
    render_step(r, self.s->len / 8);
    sink_case(&out, self.s, 0, self.s->len, kind);
    return like(self, sink_value(&out));
}

METHOD(str_lower)
{
    return cased(r, a[0], CASE_LOWER);
}
METHOD(str_upper)
{
    return cased(r, a[0], CASE_UPPER);
}
METHOD(str_casefold)
{
    return cased(r, a[0], CASE_FOLD);
}

METHOD(str_capitalize)
{
    struct sink out;
    uint32_t first = 0;

    sink_init(&out, r);
    render_step(r, a[0].s->len / 8);
    if (a[0].s->len) str_next(a[0].s->ptr, &first);
    sink_case(&out, a[0].s, 0, first, CASE_TITLE);
    sink_case(&out, a[0].s, first, a[0].s->len, CASE_LOWER);
    return like(a[0], sink_value(&out));
}

METHOD(str_title)
{
    struct sink out;
    bool inside = false;

    sink_init(&out, r);
    render_step(r, a[0].s->len / 8);
    for (uint32_t at = 0, next = 0; at < a[0].s->len; at = next) {
        bool letter = char_cased(str_next(a[0].s->ptr, &next));
        sink_case(&out, a[0].s, at, next, inside ? CASE_LOWER : CASE_TITLE);
        inside = letter;
    }
    return like(a[0], sink_value(&out));
}

METHOD(str_swapcase)
{
    struct sink out;

    sink_init(&out, r);
    render_step(r, a[0].s->len / 8);
    for (uint32_t at = 0, next = 0; at < a[0].s->len; at = next) {
        uint32_t code = str_next(a[0].s->ptr, &next);
        if (char_upper(code))
            sink_case(&out, a[0].s, at, next, CASE_LOWER);
        else if (char_lower(code))
            sink_case(&out, a[0].s, at, next, CASE_UPPER);
        else
            sink_sub(&out, a[0].s, at, next);
    }
    return like(a[0], sink_value(&out));
}

/* --- asking --- */
static struct value all_chars(struct value self, bool (*is)(uint32_t code), bool when_empty)
{
    if (!self.s->len) return v_bool(when_empty);
    for (uint32_t at = 0; at < self.s->len;)
        if (!is(str_next(self.s->ptr, &at))) return v_bool(false);
    return v_bool(true);
}

static bool alphanumeric(uint32_t code)
{
    return char_alpha(code) || char_numeric(code);
}

static bool ascii(uint32_t code)
{
    return code < 0x80;
}

#define ASK(name, is, when_empty)               \
    METHOD(name)                                \
    {                                           \
        render_step(r, a[0].s->len / 8);        \
        return all_chars(a[0], is, when_empty); \
    }
ASK(str_isdigit, char_digit, false)
ASK(str_isdecimal, char_decimal, false)
ASK(str_isnumeric, char_numeric, false)
ASK(str_isalpha, char_alpha, false)
ASK(str_isalnum, alphanumeric, false)
ASK(str_isspace, char_space, false)
ASK(str_isascii, ascii, true)
ASK(str_isprintable, char_printable, true)

METHOD(str_islower)
{
    return call_builtin(r, test_find(SLICE("lower")), a, &(struct args){0});
}
METHOD(str_isupper)
{
    return call_builtin(r, test_find(SLICE("upper")), a, &(struct args){0});
}

METHOD(str_istitle)
{
    bool inside = false, any = false;

    render_step(r, a[0].s->len / 8);
    for (uint32_t at = 0; at < a[0].s->len;) {
        uint32_t code = str_next(a[0].s->ptr, &at);
        bool capital = char_upper(code) || char_title(code), small = char_lower(code);
        if ((capital && inside) || (small && !inside)) return v_bool(false);
        any |= capital || small;
        inside = capital || small;
    }
    return v_bool(any);
}

METHOD(str_isidentifier)
{
    uint32_t at = 0, code;

    if (!a[0].s->len) return v_bool(false);
    code = str_next(a[0].s->ptr, &at);
    if (code != '_' && !char_alpha(code)) return v_bool(false);
    render_step(r, a[0].s->len / 8);
    while (at < a[0].s->len)
        if (!char_word(str_next(a[0].s->ptr, &at))) return v_bool(false);
    return v_bool(true);
}

/* --- padding: (width, fillchar) --- */
static struct value padded(struct render *r, struct value *a, int where)
{
    static const char space[] = " ";
    struct str one = {.ptr = space, .len = 1, .chars = 1}, *fill = &one;
    int64_t room = arg_int(r, a[1], 0, "the width") - str_chars(a[0].s), left;
    struct sink out;

    if (a[2].type != V_ABSENT) fill = arg_str(r, a[2], "the fill character");
    if (str_chars(fill) != 1)
        template_fail(r, TEMPLATE_RUNTIME, "the fill character must be exactly one character long");
    if (room <= 0) return a[0];
    left = where < 0 ? 0 : where > 0 ? room : room / 2 + (room & (room + str_chars(a[0].s)) & 1);
    sink_init(&out, r);
    sink_fill(&out, fill, (uint64_t)left);
    sink_str(&out, a[0].s);
    sink_fill(&out, fill, (uint64_t)(room - left));
    return like(a[0], sink_value(&out));
}

METHOD(str_ljust)
{
    return padded(r, a, -1);
}
METHOD(str_rjust)
{
    return padded(r, a, 1);
}
METHOD(str_center)
{
    return padded(r, a, 0);
}

METHOD(str_zfill)
{
    int64_t room = arg_int(r, a[1], 0, "the width") - str_chars(a[0].s);
    bool sign = a[0].s->len && (a[0].s->ptr[0] == '+' || a[0].s->ptr[0] == '-');
    struct str zero = {.ptr = "0", .len = 1};
    struct sink out;

    if (room <= 0) return a[0];
    sink_init(&out, r);
    sink_sub(&out, a[0].s, 0, sign);
    sink_fill(&out, &zero, (uint64_t)room);
    sink_sub(&out, a[0].s, sign, a[0].s->len);
    return like(a[0], sink_value(&out));
}

METHOD(str_expandtabs)
{
    int64_t size = arg_int(r, a[1], 8, "the tab size"), column = 0;
    struct str space = {.ptr = " ", .len = 1};
    struct sink out;

    sink_init(&out, r);
    for (uint32_t at = 0, next = 0; at < a[0].s->len; at = next) {
        uint32_t code = str_next(a[0].s->ptr, &next);
        if (code == '\t') {
            int64_t n = size > 0 ? size - column % size : 0;
            sink_fill(&out, &space, (uint64_t)n);
            column += n;
        } else {
            sink_sub(&out, a[0].s, at, next);
            column = code == '\n' || code == '\r' ? 0 : column + 1;
        }
    }
    return like(a[0], sink_value(&out));
}

METHOD(str_format)
{
    return format_braces(r, a[0], args, NULL);
}

METHOD(str_format_map)
{
    if (args->count != 1 || args->pos[0].type != V_DICT)
        template_fail(r, TEMPLATE_RUNTIME, "format_map() takes exactly one mapping");
    return format_braces(r, a[0], &(struct args){0}, args->pos[0].d);
}

const struct builtin template_str_methods[] = {
    {"capitalize", str_capitalize, "", 0, V_STR},
    {"casefold", str_casefold, "", 0, V_STR},
    {"center", str_center, "width fillchar", 1, V_STR},
    {"count", str_count, "sub start end", 1, V_STR},
    {"endswith", str_endswith, "suffix start end", 1, V_STR},
    {"expandtabs", str_expandtabs, "tabsize", 0, V_STR},
    {"find", str_find_method, "sub start end", 1, V_STR},
    {"format", str_format, NULL, 0, V_STR},
    {"format_map", str_format_map, NULL, 0, V_STR},
    {"index", str_index_method, "sub start end", 1, V_STR},
    {"isalnum", str_isalnum, "", 0, V_STR},
    {"isalpha", str_isalpha, "", 0, V_STR},
    {"isascii", str_isascii, "", 0, V_STR},
    {"isdecimal", str_isdecimal, "", 0, V_STR},
    {"isdigit", str_isdigit, "", 0, V_STR},
    {"isidentifier", str_isidentifier, "", 0, V_STR},
    {"islower", str_islower, "", 0, V_STR},
    {"isnumeric", str_isnumeric, "", 0, V_STR},
    {"isprintable", str_isprintable, "", 0, V_STR},
    {"isspace", str_isspace, "", 0, V_STR},
    {"istitle", str_istitle, "", 0, V_STR},
    {"isupper", str_isupper, "", 0, V_STR},
    {"join", str_join, "iterable", 1, V_STR},
    {"ljust", str_ljust, "width fillchar", 1, V_STR},
    {"lower", str_lower, "", 0, V_STR},
    {"lstrip", str_lstrip, "chars", 0, V_STR},
    {"partition", str_partition, "sep", 1, V_STR},
    {"removeprefix", str_removeprefix, "prefix", 1, V_STR},
    {"removesuffix", str_removesuffix, "suffix", 1, V_STR},
    {"replace", str_replace_method, "old new count", 2, V_STR},
    {"rfind", str_rfind_method, "sub start end", 1, V_STR},
    {"rindex", str_rindex, "sub start end", 1, V_STR},
    {"rjust", str_rjust, "width fillchar", 1, V_STR},
    {"rpartition", str_rpartition, "sep", 1, V_STR},
    {"rsplit", str_rsplit, "sep maxsplit", 0, V_STR},
    {"rstrip", str_rstrip, "chars", 0, V_STR},
    {"split", str_split, "sep maxsplit", 0, V_STR},
    {"splitlines", str_splitlines, "keepends", 0, V_STR},
    {"startswith", str_startswith, "prefix start end", 1, V_STR},
    {"strip", str_strip, "chars", 0, V_STR},
    {"swapcase", str_swapcase, "", 0, V_STR},
    {"title", str_title, "", 0, V_STR},
    {"upper", str_upper, "", 0, V_STR},
    {"zfill", str_zfill, "width", 1, V_STR},
    {0},
};
