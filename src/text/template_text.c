/* template_text.c - strings with marks, the sink that builds them, and their written forms: str(), repr(), JSON. */
#include "text/template_ast.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/utf8.h"

/* --- UTF-8 (the input is well-formed) --- */
uint32_t str_next(const char *ptr, uint32_t *offset)
{
    unsigned len;
    uint32_t code = utf8_read((const uint8_t *)ptr + *offset, &len);

    *offset += len;
    return code;
}

static uint32_t count_chars(const char *ptr, uint32_t len)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < len; i++)
        n += ((unsigned char)ptr[i] & 0xc0) != 0x80;
    return n;
}

/* --- strings --- */
uint32_t str_chars(const struct str *s)
{
    if (s->chars == STR_UNKNOWN) ((struct str *)s)->chars = count_chars(s->ptr, s->len);
    return s->chars;
}

uint32_t str_hash(struct str *s)
{
    if (!s->hash) {
        s->hash = (uint32_t)hash_bytes(s->ptr, s->len, hash_secret());
        if (!s->hash) s->hash = 1;
    }
    return s->hash;
}

bool str_equal(const struct str *a, const struct str *b)
{
    return a->len == b->len && (a->ptr == b->ptr || memcmp(a->ptr, b->ptr, a->len) == 0);
}

int str_compare(const struct str *a, const struct str *b)
{
    uint32_t n = a->len < b->len ? a->len : b->len;
    int order = n ? memcmp(a->ptr, b->ptr, n) : 0; /* UTF-8 sorts as its code points do */

    return order ? order : (a->len > b->len) - (a->len < b->len);
}

bool str_is(const struct str *s, const char *text)
{
    return s->len == strlen(text) && memcmp(s->ptr, text, s->len) == 0;
}

uint32_t str_offset(const struct str *s, uint32_t index)
{
    uint32_t at = 0;

    if (str_ascii(s)) return index < s->len ? index : s->len;
    for (; index > 0 && at < s->len; index--)
        str_next(s->ptr, &at);
    return at;
}

uint32_t str_index(const struct str *s, uint32_t offset)
{
    return str_ascii(s) ? offset : count_chars(s->ptr, offset);
}

bool str_marked_at(const struct str *s, uint32_t offset, uint32_t *hint)
{
    while (*hint < s->run_count && s->runs[*hint].end <= offset)
        ++*hint;
    return *hint < s->run_count && s->runs[*hint].begin <= offset;
}

struct value str_sub(struct render *r, const struct str *s, uint32_t begin, uint32_t end)
{
    bool all = s->run_count == 1 && s->runs[0].begin <= begin && s->runs[0].end >= end;
    struct value v;
    uint32_t count = 0;

    if (begin == 0 && end == s->len) return (struct value){.type = V_STR, .s = (struct str *)s};
    v = v_str(r, s->ptr + begin, end - begin, all);
    if (s->chars == s->len) v.s->chars = v.s->len;
    if (all || !s->run_count) return v;
    v.s->runs = render_alloc(r, s->run_count * sizeof *v.s->runs);
    for (uint32_t i = 0; i < s->run_count && s->runs[i].begin < end; i++) {
        struct run run = s->runs[i];
        if (run.end <= begin) continue;
        v.s->runs[count].begin = run.begin > begin ? run.begin - begin : 0;
        v.s->runs[count++].end = (run.end < end ? run.end : end) - begin;
    }
    v.s->run_count = count;
    return v;
}

static void room_bytes(struct render *r, struct str_room *room, const struct str *s, uint32_t extra)
{
    uint64_t cap = ((uint64_t)s->len + extra) * 2 + 32;

    if ((uint64_t)s->len + extra > STR_BYTES_MAX)
        template_fail(r, TEMPLATE_LIMIT, "a string is too long");
    if (cap > STR_BYTES_MAX) cap = STR_BYTES_MAX;
    room->ptr = render_alloc(r, cap);
    room->cap = (uint32_t)cap;
    room->used = s->len;
    if (s->len) memcpy(room->ptr, s->ptr, s->len);
}

static void room_runs(struct render *r, struct str_room *room, const struct str *s, uint32_t extra)
{
    room->run_cap = (s->run_count + extra) * 2;
    room->runs = render_alloc(r, room->run_cap * sizeof *room->runs);
    room->run_used = s->run_count;
    if (s->run_count) memcpy(room->runs, s->runs, s->run_count * sizeof *room->runs);
}

/* a's bytes are the end of what its room holds, and there is place for more: b goes right behind them. */
static bool in_place(const struct str *a, uint32_t extra)
{
    const struct str_room *room = a->room;

    return room && room->used == a->len && room->ptr == a->ptr && room->cap - room->used >= extra;
}

struct value str_concat(struct render *r, struct value a, struct value b)
{
    struct str *x = a.s, *y = b.s;
    struct value v;
    struct str_room *room = x->room;

    if (!y->len) return a;
    if (!x->len) return b;
    if (!in_place(x, y->len)) {
        room = render_alloc(r, sizeof *room);
        room_bytes(r, room, x, y->len);
    }
    memcpy(room->ptr + room->used, y->ptr, y->len);
    room->used += y->len;
    v = v_str(r, room->ptr, room->used, false);
    v.s->room = room;
    if (x->chars != STR_UNKNOWN && y->chars != STR_UNKNOWN) v.s->chars = x->chars + y->chars;
    if (!x->run_count && !y->run_count) return v;
    if (room->runs != x->runs || room->run_used != x->run_count ||
        room->run_cap - room->run_used < y->run_count)
        room_runs(r, room, x, y->run_count);
    for (uint32_t i = 0; i < y->run_count; i++)
        room->runs[room->run_used++] =
            (struct run){y->runs[i].begin + x->len, y->runs[i].end + x->len};
    v.s->runs = room->runs;
    v.s->run_count = room->run_used;
    return v;
}

uint32_t str_find(struct render *r, const struct str *s, const struct str *needle, uint32_t from)
{
    const char *at;

    if (from > s->len) return UINT32_MAX;
    render_step(r, 1 + (s->len - from) / 64);
    if (!needle->len) return from;
    at = memmem(s->ptr + from, s->len - from, needle->ptr, needle->len);
    return at ? (uint32_t)(at - s->ptr) : UINT32_MAX;
}

uint32_t str_rfind(struct render *r, const struct str *s, const struct str *needle, uint32_t end)
{
    if (needle->len > end) return UINT32_MAX;
    for (uint32_t at = end - needle->len;; at--) {
        if (memcmp(s->ptr + at, needle->ptr, needle->len) == 0) return at;
        if (at % 64 == 0) render_step(r, 1 + needle->len / 64);
        if (at == 0) return UINT32_MAX;
    }
}

/* --- the sink --- */
void sink_init(struct sink *s, struct render *r)
{
    *s = (struct sink){.r = r};
}

static void sink_reserve(struct sink *s, size_t extra)
{
    uint64_t need = (uint64_t)s->len + extra, cap = (uint64_t)s->cap * 2;
    char *more;

    if (extra > STR_BYTES_MAX || need > STR_BYTES_MAX)
        template_fail(s->r, TEMPLATE_LIMIT, "a string is too long");
    if (cap < need) cap = need;
    if (cap < 64) cap = 64;
    if (cap > STR_BYTES_MAX) cap = STR_BYTES_MAX;
    if (s->r->top && s == s->r->out && need > s->r->limits.output_max)
        template_fail(s->r, TEMPLATE_LIMIT, "the rendered text is longer than %llu bytes",
                      (unsigned long long)s->r->limits.output_max);
    if (need <= s->cap) return;
    more = render_alloc(s->r, cap);
    if (s->len) memcpy(more, s->ptr, s->len);
    s->ptr = more;
    s->cap = (uint32_t)cap;
}

static void sink_mark(struct sink *s, uint32_t begin, uint32_t end)
{
    if (s->run_count && s->runs[s->run_count - 1].end == begin) {
        s->runs[s->run_count - 1].end = end;
        return;
    }
    if (s->run_count == s->run_cap) {
        uint32_t cap = s->run_cap ? s->run_cap * 2 : 8;
        struct run *more = render_alloc(s->r, cap * sizeof *more);
        if (s->run_count) memcpy(more, s->runs, s->run_count * sizeof *more);
        s->runs = more;
        s->run_cap = cap;
    }
    s->runs[s->run_count++] = (struct run){begin, end};
}

void sink_put(struct sink *s, const char *ptr, size_t len, bool marked)
{
    if (!len) return;
    if (len > s->cap - s->len || s->r->top) sink_reserve(s, len);
    memcpy(s->ptr + s->len, ptr, len);
    s->len += (uint32_t)len;
    if (marked) sink_mark(s, s->len - (uint32_t)len, s->len);
}

void sink_code(struct sink *s, uint32_t code, bool marked)
{
    char bytes[4];

    sink_put(s, bytes, utf8_encode(code, bytes), marked);
}

void sink_sub(struct sink *s, const struct str *text, uint32_t begin, uint32_t end)
{
    uint32_t base = s->len;

    sink_put(s, text->ptr + begin, end - begin, false);
    for (uint32_t i = 0; i < text->run_count && text->runs[i].begin < end; i++) {
        struct run run = text->runs[i];
        if (run.end <= begin) continue;
        if (run.begin < begin) run.begin = begin;
        if (run.end > end) run.end = end;
        sink_mark(s, base + run.begin - begin, base + run.end - begin);
    }
}

void sink_str(struct sink *s, const struct str *text)
{
    sink_sub(s, text, 0, text->len);
}

void sink_fill(struct sink *s, const struct str *fill, uint64_t times)
{
    if (!fill->len || !times) return;
    if (times > STR_BYTES_MAX / fill->len)
        template_fail(s->r, TEMPLATE_LIMIT, "a string is too long");
    render_step(s->r, times * fill->len / 16);
    sink_reserve(s, times * fill->len);
    for (; times > 0; times--)
        sink_str(s, fill);
}

void sink_printf(struct sink *s, const char *format, ...)
{
    char text[400];
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    sink_put(s, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1, false);
}

struct value sink_value(struct sink *s)
{
    struct value v = v_str(s->r, s->ptr ? s->ptr : "", s->len, false);

    v.s->runs = s->runs;
    v.s->run_count = s->run_count;
    return v;
}

/* --- written forms --- */
void sink_float(struct sink *s, double f)
{
    char digits[40], *e;
    int precision = 1, exponent, count;

    if (isnan(f) || isinf(f)) {
        sink_text(s, isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
        return;
    }
    if (f == floor(f) && fabs(f) < 1e15) {
        sink_printf(s, "%.1f", f);
        return;
    }
    do /* the fewest digits that read back as f */
        snprintf(digits, sizeof digits, "%.*e", precision - 1, f);
    while (strtod(digits, NULL) != f && precision++ < 17);
    e = strchr(digits, 'e');
    exponent = atoi(e + 1);
    if (exponent < -4 || exponent >= 16) {
        *e = 0;
        sink_printf(s, "%se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    count = precision - 1 - exponent;
    sink_printf(s, "%.*f", count > 1 ? count : 1, f);
}

static void sink_int(struct sink *s, int64_t i)
{
    char digits[24], *at = digits + sizeof digits;
    uint64_t left = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;

    do
        *--at = (char)('0' + left % 10);
    while (left /= 10);
    if (i < 0) *--at = '-';
    sink_put(s, at, (size_t)(digits + sizeof digits - at), false);
}

/* A string as Python's repr writes it. */
static void sink_repr_str(struct sink *s, const struct str *text)
{
    bool single = memchr(text->ptr, '\'', text->len), twice = memchr(text->ptr, '"', text->len);
    char quote = single && !twice ? '"' : '\'';
    uint32_t hint = 0;

    sink_put(s, &quote, 1, false);
    for (uint32_t at = 0, next = 0; at < text->len; at = next) {
        uint32_t code = str_next(text->ptr, &next);
        bool marked = str_marked_at(text, at, &hint);
        char escape[12];
        if (code == (unsigned char)quote || code == '\\')
            snprintf(escape, sizeof escape, "\\%c", (int)code);
        else if (code == '\n' || code == '\r' || code == '\t')
            snprintf(escape, sizeof escape, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
        else if (char_printable(code)) {
            sink_put(s, text->ptr + at, next - at, marked);
            continue;
        } else
            snprintf(escape, sizeof escape,
                     code < 0x100     ? "\\x%02x"
                     : code < 0x10000 ? "\\u%04x"
                                      : "\\U%08x",
                     code);
        sink_put(s, escape, strlen(escape), marked);
    }
    sink_put(s, &quote, 1, false);
}

static void sink_repr_items(struct sink *s, const char *open, const struct list *l,
                            const char *close)
{
    sink_text(s, open);
    for (uint32_t i = 0; i < l->count; i++) {
        if (i) sink_text(s, ", ");
        sink_repr(s, l->items[i]);
    }
    sink_text(s, close);
}

static void sink_repr_dict(struct sink *s, const struct dict *d)
{
    sink_text(s, "{");
    for (uint32_t i = 0; i < d->count; i++) {
        if (i) sink_text(s, ", ");
        sink_repr(s, d->entries[i].key);
        sink_text(s, ": ");
        sink_repr(s, d->entries[i].value);
    }
    sink_text(s, "}");
}

static void sink_repr_macro(struct sink *s, const struct macro *m)
{
    struct value name = m->node->value;

    sink_text(s, "<Macro ");
    if (is_str(name))
        sink_repr(s, name);
    else
        sink_text(s, "anonymous");
    sink_text(s, ">");
}

static void sink_repr_other(struct sink *s, struct value v)
{
    static const char *const views[] = {"dict_keys([", "dict_values([", "dict_items(["};

    switch (v.type) {
    case V_LIST: sink_repr_items(s, "[", v.l, "]"); break;
    case V_TUPLE: sink_repr_items(s, "(", v.l, v.l->count == 1 ? ",)" : ")"); break;
    case V_DICT: sink_repr_dict(s, v.d); break;
    case V_VIEW: sink_repr_items(s, views[v.sub], value_items(s->r, v), "])"); break;
    case V_NAMESPACE:
        sink_text(s, "<Namespace ");
        sink_repr_dict(s, v.d);
        sink_text(s, ">");
        break;
    case V_RANGE:
        sink_printf(s, v.range->step == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)",
                    (long long)v.range->start, (long long)v.range->stop, (long long)v.range->step);
        break;
    case V_MACRO: sink_repr_macro(s, v.macro); break;
    case V_LOOP: sink_printf(s, "<LoopContext %u/%u>", v.loop->at + 1, v.loop->items->count); break;
    case V_ITER: sink_printf(s, "<generator object %s>", v.iter->name); break;
    default: sink_printf(s, "<%s>", type_name(v)); break;
    }
}

void sink_repr(struct sink *s, struct value v)
{
    render_step(s->r, 1);
    switch (v.type) {
    case V_UNDEFINED: sink_text(s, "Undefined"); return;
    case V_NONE: sink_text(s, "None"); return;
    case V_BOOL: sink_text(s, v.b ? "True" : "False"); return;
    case V_INT: sink_int(s, v.i); return;
    case V_FLOAT: sink_float(s, v.f); return;
    case V_STR:
        if (v.sub) sink_text(s, "Markup(");
        sink_repr_str(s, v.s);
        if (v.sub) sink_text(s, ")");
        return;
    default: break;
    }
    render_enter(s->r);
    sink_repr_other(s, v);
    render_leave(s->r);
}

void sink_display(struct sink *s, struct value v)
{
    if (v.type == V_STR)
        sink_str(s, v.s);
    else if (v.type != V_UNDEFINED)
        sink_repr(s, v);
}

struct value value_display(struct render *r, struct value v)
{
    struct sink s;

    if (is_str(v)) return v;
    sink_init(&s, r);
    sink_display(&s, v);
    return sink_value(&s);
}

void sink_escaped(struct sink *s, const struct str *text)
{
    uint32_t from = 0, hint = 0;

    for (uint32_t at = 0; at < text->len; at++) {
        const char *entity;
        switch (text->ptr[at]) {
        case '&': entity = "&amp;"; break;
        case '<': entity = "&lt;"; break;
        case '>': entity = "&gt;"; break;
        case '"': entity = "&#34;"; break;
        case '\'': entity = "&#39;"; break;
        default: continue;
        }
        sink_sub(s, text, from, at);
        sink_put(s, entity, strlen(entity), str_marked_at(text, at, &hint));
        from = at + 1;
    }
    sink_sub(s, text, from, text->len);
}

struct value value_escape(struct render *r, struct value v)
{
    struct sink s;

    if (is_str(v) && v.sub) return v;
    v = value_display(r, v);
    sink_init(&s, r);
    sink_escaped(&s, v.s);
    v = sink_value(&s);
    v.sub = 1;
    return v;
}
