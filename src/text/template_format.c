/* template_format.c - Python's two ways to format: '%s' % x, and '{}'.format(x) with its mini-language. Widths and
 * precisions come from templates, so each is checked before memory is taken for it. */
#include "text/template_ast.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"

enum { PRECISION_MAX = 300, WIDTH_MAX = 1 << 26 };

struct spec {
    uint32_t fill; /* code point */
    char align;    /* < > ^ =, or 0 */
    char sign;     /* + - space, or 0 */
    char grouping; /* , _ or 0 */
    char type;     /* or 0 */
    bool alternate, zero, fill_given;
    bool no_minus_zero;       /* z */
    int64_t width, precision; /* precision -1: not given */
};

static void check_spec(struct render *r, const struct spec *spec)
{
    if (spec->width > WIDTH_MAX || spec->precision > WIDTH_MAX)
        template_fail(r, TEMPLATE_LIMIT, "the width of a format is too large");
}

static void pad(struct sink *s, uint32_t fill, int64_t count)
{
    struct str one = {0};
    char bytes[4];

    if (count <= 0) return;
    one.ptr = bytes;
    one.len = utf8_encode(fill, bytes);
    sink_fill(s, &one, (uint64_t)count);
}

/* ascii(v): repr with everything beyond ASCII as an escape. */
static void sink_ascii(struct sink *s, struct value v)
{
    struct sink repr;
    struct value text;
    uint32_t hint = 0;

    sink_init(&repr, s->r);
    sink_repr(&repr, v);
    text = sink_value(&repr);
    for (uint32_t at = 0, next = 0; at < text.s->len; at = next) {
        uint32_t code = str_next(text.s->ptr, &next);
        char escape[12];
        if (code < 0x80) {
            sink_sub(s, text.s, at, next);
            continue;
        }
        snprintf(escape, sizeof escape,
                 code < 0x100     ? "\\x%02x"
                 : code < 0x10000 ? "\\u%04x"
                                  : "\\U%08x",
                 code);
        sink_put(s, escape, strlen(escape), str_marked_at(text.s, at, &hint));
    }
}

/* text[begin, end) padded to spec's width. */
static void put_padded(struct sink *s, const struct str *text, uint32_t begin, uint32_t end,
                       const struct spec *spec, char align)
{
    int64_t chars = str_index(text, end) - str_index(text, begin);
    int64_t room = spec->width > chars ? spec->width - chars : 0;
    int64_t left = align == '>' ? room : align == '^' ? room / 2 : 0;

    pad(s, spec->fill, left);
    sink_sub(s, text, begin, end);
    pad(s, spec->fill, room - left);
}

static void format_text(struct sink *s, struct value v, const struct spec *spec)
{
    uint32_t end = v.s->len;

    if (spec->precision >= 0 && spec->precision < str_chars(v.s))
        end = str_offset(v.s, (uint32_t)spec->precision);
    put_padded(s, v.s, 0, end, spec, spec->align ? spec->align : '<');
}

/* sign, prefix and digits of a number padded to spec's width, digits grouped. digits may have a point. */
static void put_number(struct sink *s, bool negative, const char *prefix, const char *digits,
                       const struct spec *spec, int group)
{
    char align = spec->align ? spec->align : spec->zero ? '=' : '>';
    uint32_t fill = spec->zero && !spec->align ? '0' : spec->fill;
    size_t whole = strcspn(digits, ".eE%in");
    struct sink body;
    struct str text = {0};
    int64_t room;
    char sign = negative ? '-' : spec->sign == '+' ? '+' : spec->sign == ' ' ? ' ' : 0;

    sink_init(&body, s->r);
    if (spec->grouping && fill == '0' && align == '=') { /* zeros take part in the grouping */
        size_t rest = strlen(digits) - whole + strlen(prefix) + (sign != 0);
        while ((int64_t)(whole + (whole - 1) / (size_t)group + rest) < spec->width &&
               body.len + whole < WIDTH_MAX) {
            int64_t have = (int64_t)(body.len + whole);
            if (have + (have - 1) / group + (int64_t)rest >= spec->width) break;
            sink_put(&body, "0", 1, false);
        }
    }
    sink_put(&body, digits, strlen(digits), false);
    whole += body.len - strlen(digits);
    text.len = body.len;
    text.ptr = body.ptr;
    text.chars = body.len;
    if (spec->grouping) {
        struct sink grouped;
        sink_init(&grouped, s->r);
        for (size_t i = 0; i < body.len; i++) {
            if (i && i < whole && (whole - i) % (size_t)group == 0)
                sink_put(&grouped, &spec->grouping, 1, false);
            sink_put(&grouped, body.ptr + i, 1, false);
        }
        text = (struct str){.ptr = grouped.ptr, .len = grouped.len, .chars = grouped.len};
    }
    room = spec->width - (int64_t)text.len - (int64_t)strlen(prefix) - (sign != 0);
    if (room < 0) room = 0;
    if (align != '=') pad(s, fill, align == '>' ? room : align == '^' ? room / 2 : 0);
    if (sign) sink_put(s, &sign, 1, false);
    sink_text(s, prefix);
    if (align == '=') pad(s, fill, room);
    sink_str(s, &text);
    if (align != '=') pad(s, fill, align == '<' ? room : align == '^' ? room - room / 2 : 0);
}

static void format_integer(struct sink *s, int64_t i, const struct spec *spec, int64_t digits_min)
{
    char digits[80], *at = digits + sizeof digits - 1;
    uint64_t magnitude = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    unsigned base = spec->type == 'x' || spec->type == 'X' ? 16
                    : spec->type == 'o'                    ? 8
                    : spec->type == 'b'                    ? 2
                                                           : 10;
    const char *letters = spec->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    const char *prefix = !spec->alternate    ? ""
                         : spec->type == 'x' ? "0x"
                         : spec->type == 'X' ? "0X"
                         : spec->type == 'o' ? "0o"
                         : spec->type == 'b' ? "0b"
                                             : "";
    struct sink padded;

    *at = 0;
    do
        *--at = letters[magnitude % base];
    while (magnitude /= base);
    sink_init(&padded, s->r);
    pad(&padded, '0', digits_min - (int64_t)strlen(at));
    sink_put(&padded, at, strlen(at) + 1, false);
    put_number(s, i < 0, prefix, padded.ptr, spec, base == 10 ? 3 : 4);
}

static void format_double(struct sink *s, double f, const struct spec *spec)
{
    char text[400], format[16];
    int precision = spec->precision < 0 ? 6 : (int)spec->precision;
    char type = spec->type == '%' ? 'f' : spec->type == 'n' || !spec->type ? 'g' : spec->type;
    double magnitude = fabs(spec->type == '%' ? f * 100 : f);

    if (precision > PRECISION_MAX && !isinf(f) && !isnan(f)) /* more digits than a double has */
        template_fail(s->r, TEMPLATE_LIMIT, "the precision of a format is too large");
    if (isinf(f) || isnan(f)) {
        snprintf(text, sizeof text, "%s", isinf(f) ? "inf" : "nan");
        if (type < 'a')
            for (char *c = text; *c; c++)
                *c = (char)(*c & ~0x20);
    } else if (!spec->type && spec->precision < 0) {
        struct sink repr;
        sink_init(&repr, s->r);
        sink_float(&repr, magnitude);
        snprintf(text, sizeof text, "%.*s", (int)repr.len, repr.ptr);
    } else if ((type == 'f' || type == 'F') && magnitude > 1e50) {
        template_fail(s->r, TEMPLATE_LIMIT, "the number is too large for this format");
    } else {
        if (type == 'g' && precision == 0) precision = 1;
        snprintf(format, sizeof format, "%%%s.*%c", spec->alternate ? "#" : "", type);
        snprintf(text, sizeof text, format, precision, magnitude);
        if (!spec->type && !strpbrk(text, ".en")) strcat(text, ".0");
    }
    if (spec->type == '%') strcat(text, "%");
    bool negative = signbit(f) && !isnan(f);
    if (spec->no_minus_zero && strcspn(text, "123456789in") == strlen(text)) negative = false;
    put_number(s, negative, "", text, spec, 3);
}

static void put_code(struct sink *out, int64_t code)
{
    if (code < 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        template_fail(out->r, TEMPLATE_RUNTIME, "%%c arg not in range(0x110000)");
    sink_code(out, (uint32_t)code, false);
}

/* --- '%...' --- */
struct percent {
    struct render *r;
    struct value arg;         /* the right operand */
    const struct dict *named; /* or the mapping that %(name)s reads */
    const struct list *tuple; /* its items when it is a tuple, else NULL */
    uint32_t used;
};

static struct value next_arg(struct percent *p)
{
    if (p->tuple ? p->used >= p->tuple->count : p->used >= 1)
        template_fail(p->r, TEMPLATE_RUNTIME, "not enough arguments for format string");
    p->used++;
    return p->tuple ? p->tuple->items[p->used - 1] : p->arg;
}

/* Digits or '*' at *at. */
static int64_t read_count(struct percent *p, const struct str *s, uint32_t *at)
{
    int64_t n = 0;

    if (*at < s->len && s->ptr[*at] == '*') {
        ++*at;
        return arg_int(p->r, next_arg(p), 0, "* in a format");
    }
    for (; *at < s->len && s->ptr[*at] >= '0' && s->ptr[*at] <= '9'; ++*at)
        if (n <= WIDTH_MAX) n = n * 10 + s->ptr[*at] - '0';
    return n;
}

static struct value named_value(struct percent *p, const struct str *s, uint32_t *at)
{
    uint32_t begin = *at, depth = 1;
    struct value *v, key;

    while (*at < s->len && depth) {
        depth += s->ptr[*at] == '(';
        depth -= s->ptr[*at] == ')';
        ++*at;
    }
    if (depth) template_fail(p->r, TEMPLATE_RUNTIME, "incomplete format key");
    if (!p->named) template_fail(p->r, TEMPLATE_RUNTIME, "format requires a mapping");
    key = str_sub(p->r, s, begin, *at - 1);
    v = dict_find(p->r, p->named, key);
    if (!v)
        template_fail(p->r, TEMPLATE_RUNTIME, "no key '%.*s' for a format",
                      (int)(key.s->len < 80 ? key.s->len : 80), key.s->ptr);
    return *v;
}

static void percent_number(struct render *r, struct sink *out, struct value v, struct spec *spec)
{
    bool integer = strchr("diuxXo", spec->type) != NULL;

    if (v.type == V_UNDEFINED) fail_undefined(r, v);
    if (!is_number(v) || (v.type == V_FLOAT && strchr("xXo", spec->type)))
        template_fail(r, TEMPLATE_RUNTIME, "%%%c format: a number is required, not %s", spec->type,
                      type_name(v));
    if (!integer) {
        format_double(out, as_float(v), spec);
        return;
    }
    if (v.type == V_FLOAT) {
        if (!(fabs(v.f) < 9.2e18)) template_fail(r, TEMPLATE_LIMIT, "a number is too large");
        v = v_int((int64_t)v.f);
    }
    format_integer(out, as_int(v), spec, spec->precision);
}

static void percent_one(struct percent *p, struct sink *out, struct value v, struct spec *spec)
{
    struct sink text;

    if (spec->type == 's' || spec->type == 'r' || spec->type == 'a' || spec->type == 'c') {
        sink_init(&text, p->r);
        if (spec->type == 'c' && is_integer(v)) {
            put_code(&text, as_int(v));
        } else if (spec->type == 'c' && !(is_str(v) && str_chars(v.s) == 1)) {
            template_fail(p->r, TEMPLATE_RUNTIME, "%%c requires int or char");
        } else if (spec->type == 's' || spec->type == 'c') {
            sink_display(&text, v);
        } else if (spec->type == 'a') {
            sink_ascii(&text, v);
        } else {
            sink_repr(&text, v);
        }
        if (spec->align != '<') spec->align = '>';
        spec->fill = ' ';
        format_text(out, sink_value(&text), spec);
        return;
    }
    if (spec->align == '<') spec->zero = false;
    percent_number(p->r, out, v, spec);
}

static void percent_directive(struct percent *p, struct sink *out, const struct str *s,
                              uint32_t *at)
{
    struct spec spec = {.fill = ' ', .precision = -1};
    struct value v = v_absent();

    if (*at < s->len && s->ptr[*at] == '%') {
        ++*at;
        sink_text(out, "%");
        return;
    }
    if (*at < s->len && s->ptr[*at] == '(') {
        ++*at;
        v = named_value(p, s, at);
    }
    for (; *at < s->len && s->ptr[*at] && strchr("-+ #0", s->ptr[*at]); ++*at) {
        char f = s->ptr[*at];
        if (f == '-') spec.align = '<';
        if (f == '+' || (f == ' ' && !spec.sign)) spec.sign = f;
        if (f == '#') spec.alternate = true;
        if (f == '0') spec.zero = true;
    }
    spec.width = read_count(p, s, at);
    if (spec.width < 0) {
        spec.align = '<';
        spec.width = -spec.width;
    }
    if (*at < s->len && s->ptr[*at] == '.') {
        ++*at;
        spec.precision = read_count(p, s, at);
        if (spec.precision < 0) spec.precision = 0;
    }
    check_spec(p->r, &spec);
    while (*at < s->len && s->ptr[*at] && strchr("hlL", s->ptr[*at]))
        ++*at;
    if (*at >= s->len) template_fail(p->r, TEMPLATE_RUNTIME, "incomplete format");
    spec.type = s->ptr[(*at)++];
    if (!spec.type || !strchr("diuoxXeEfFgGcrsa", spec.type))
        template_fail(p->r, TEMPLATE_RUNTIME, "unsupported format character '%c'",
                      spec.type >= ' ' && spec.type < 127 ? spec.type : '?');
    percent_one(p, out, v.type == V_ABSENT ? next_arg(p) : v, &spec);
}

struct value format_percent(struct render *r, struct value format, struct value arg,
                            const struct dict *named)
{
    struct percent p = {.r = r, .arg = arg, .named = named};
    const struct str *s = format.s;
    struct sink out;
    struct value v;
    uint32_t from = 0;

    sink_init(&out, r);
    if (arg.type == V_TUPLE) p.tuple = arg.l;
    if (arg.type == V_DICT) p.named = arg.d;
    if (named) p.used = 1;
    for (uint32_t at = 0; at < s->len;) {
        if (s->ptr[at] != '%') {
            at++;
            continue;
        }
        sink_sub(&out, s, from, at++);
        percent_directive(&p, &out, s, &at);
        from = at;
    }
    sink_sub(&out, s, from, s->len);
    bool mapping =
        arg.type == V_DICT || arg.type == V_LIST || arg.type == V_RANGE || arg.type == V_UNDEFINED;
    if (!named && !mapping && p.used < (p.tuple ? p.tuple->count : 1))
        template_fail(r, TEMPLATE_RUNTIME, "not all arguments converted during string formatting");
    v = sink_value(&out);
    v.sub = format.sub;
    return v;
}

/* --- '{...}' --- */
struct braces {
    struct render *r;
    const struct args *args;
    const struct dict *map; /* format_map */
    int64_t next;           /* automatic numbering; -1: fields are numbered by hand */
    uint32_t depth;
};
static void braces_text(struct braces *b, struct sink *out, const struct str *s, uint32_t begin,
                        uint32_t end);

static bool all_digits(const struct str *s, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin; i < end; i++)
        if (s->ptr[i] < '0' || s->ptr[i] > '9') return false;
    return end > begin;
}

static int64_t digits_value(struct render *r, const struct str *s, uint32_t begin, uint32_t end)
{
    int64_t n = 0;

    if (end - begin > 15)
        template_fail(r, TEMPLATE_RUNTIME, "too many decimal digits in format string");
    for (uint32_t i = begin; i < end; i++)
        n = n * 10 + s->ptr[i] - '0';
    return n;
}

static struct value braces_first(struct braces *b, const struct str *s, uint32_t begin,
                                 uint32_t end)
{
    int64_t at;

    if (begin == end || all_digits(s, begin, end)) {
        if (begin == end) {
            if (b->next < 0)
                template_fail(
                    b->r, TEMPLATE_RUNTIME,
                    "cannot switch from manual field specification to automatic numbering");
            at = b->next++;
        } else {
            if (b->next > 0)
                template_fail(
                    b->r, TEMPLATE_RUNTIME,
                    "cannot switch from automatic numbering to manual field specification");
            b->next = -1;
            at = digits_value(b->r, s, begin, end);
        }
        if (b->map || at >= b->args->count)
            template_fail(b->r, TEMPLATE_RUNTIME,
                          "replacement index %lld out of range for positional args tuple",
                          (long long)at);
        return b->args->pos[at];
    }
    struct value name = str_sub(b->r, s, begin, end), *there;
    if (b->map) {
        there = dict_find(b->r, b->map, name);
        if (there) return *there;
    } else {
        for (uint32_t i = 0; i < b->args->named_count; i++)
            if (str_equal(b->args->names[i].s, name.s)) return b->args->named[i];
    }
    template_fail(b->r, TEMPLATE_RUNTIME, "no value named '%.*s' for a format",
                  (int)(name.s->len < 80 ? name.s->len : 80), name.s->ptr);
}

/* first(.name | [index])* */
static struct value braces_field(struct braces *b, const struct str *s, uint32_t begin,
                                 uint32_t end)
{
    uint32_t at = begin;
    struct value v;

    while (at < end && s->ptr[at] != '.' && s->ptr[at] != '[')
        at++;
    v = braces_first(b, s, begin, at);
    while (at < end) {
        char kind = s->ptr[at++];
        uint32_t from = at;
        while (at < end &&
               (kind == '.' ? s->ptr[at] != '.' && s->ptr[at] != '[' : s->ptr[at] != ']'))
            at++;
        if ((kind != '.' && kind != '[') || at == from || (kind == '[' && at == end))
            template_fail(b->r, TEMPLATE_RUNTIME, "malformed field in a format string");
        if (kind == '.') {
            v = get_attr(b->r, v, str_sub(b->r, s, from, at));
        } else {
            v = get_item(b->r, v,
                         all_digits(s, from, at) ? v_int(digits_value(b->r, s, from, at))
                                                 : str_sub(b->r, s, from, at));
            at++;
        }
        if (v.type == V_UNDEFINED) fail_undefined(b->r, v);
    }
    return v;
}

static bool is_align(uint32_t code)
{
    return code == '<' || code == '>' || code == '^' || code == '=';
}

static void parse_spec(struct render *r, const struct str *s, struct spec *spec)
{
    uint32_t at = 0, second = 0, third, first;

    *spec = (struct spec){.fill = ' ', .precision = -1};
    if (s->len) {
        first = str_next(s->ptr, &second);
        third = second;
        if (second < s->len && is_align(str_next(s->ptr, &third))) {
            spec->fill = first;
            spec->fill_given = true;
            spec->align = s->ptr[second];
            at = third;
        } else if (is_align(first)) {
            spec->align = (char)first;
            at = 1;
        }
    }
    if (at < s->len && memchr("+- ", s->ptr[at], 3)) spec->sign = s->ptr[at++];
    if (at < s->len && s->ptr[at] == 'z') spec->no_minus_zero = s->ptr[at++] != 0;
    if (at < s->len && s->ptr[at] == '#') spec->alternate = s->ptr[at++] != 0;
    if (at < s->len && s->ptr[at] == '0') {
        at++;
        spec->zero = true;
        if (spec->align)
            spec->zero = false; /* the given alignment wins; the fill is 0 unless given */
        if (spec->align && !spec->fill_given) spec->fill = '0';
    }
    for (; at < s->len && s->ptr[at] >= '0' && s->ptr[at] <= '9'; at++)
        if (spec->width <= WIDTH_MAX) spec->width = spec->width * 10 + s->ptr[at] - '0';
    if (at < s->len && (s->ptr[at] == ',' || s->ptr[at] == '_')) spec->grouping = s->ptr[at++];
    if (at < s->len && s->ptr[at] == '.') {
        uint32_t start = ++at;
        for (spec->precision = 0; at < s->len && s->ptr[at] >= '0' && s->ptr[at] <= '9'; at++)
            if (spec->precision <= WIDTH_MAX)
                spec->precision = spec->precision * 10 + s->ptr[at] - '0';
        if (at == start) template_fail(r, TEMPLATE_RUNTIME, "format specifier missing precision");
    }
    if (at < s->len) spec->type = s->ptr[at++];
    if (at < s->len) template_fail(r, TEMPLATE_RUNTIME, "invalid format specifier");
    check_spec(r, spec);
}

static void format_character(struct render *r, struct sink *out, struct value v, struct spec *spec)
{
    struct sink one;

    if (spec->sign || spec->grouping || spec->precision >= 0 || spec->alternate)
        template_fail(r, TEMPLATE_RUNTIME, "invalid format specifier for a character");
    if (spec->zero && !spec->align) spec->fill = '0';
    if (!spec->align) spec->align = '>';
    if (spec->align == '=') spec->align = '>';
    sink_init(&one, r);
    put_code(&one, as_int(v));
    format_text(out, sink_value(&one), spec);
}

static void format_value(struct render *r, struct sink *out, struct value v, const struct str *text)
{
    struct spec spec;

    if (!text->len) {
        sink_display(out, v);
        return;
    }
    parse_spec(r, text, &spec);
    if (spec.no_minus_zero && v.type != V_FLOAT)
        template_fail(r, TEMPLATE_RUNTIME, "'z' is for floating-point numbers");
    if (is_str(v)) {
        if (spec.zero && !spec.align) spec.fill = '0';
        if ((spec.type && spec.type != 's') || spec.sign || spec.align == '=' || spec.grouping)
            template_fail(r, TEMPLATE_RUNTIME, "invalid format specifier for a string");
        format_text(out, v, &spec);
        return;
    }
    if (!is_number(v))
        template_fail(r, TEMPLATE_RUNTIME, "unsupported format string passed to %s.__format__",
                      type_name(v));
    if (v.type != V_FLOAT && spec.type == 'c') {
        format_character(r, out, v, &spec);
    } else if (v.type != V_FLOAT && (!spec.type || strchr("dnbxXo", spec.type))) {
        if (spec.precision >= 0)
            template_fail(r, TEMPLATE_RUNTIME, "precision not allowed in integer format specifier");
        format_integer(out, as_int(v), &spec, 0);
    } else if (!spec.type || strchr("eEfFgGn%", spec.type)) {
        format_double(out, as_float(v), &spec);
    } else {
        template_fail(r, TEMPLATE_RUNTIME, "unknown format code '%c' for an object of type '%s'",
                      spec.type >= ' ' && spec.type < 127 ? spec.type : '?', type_name(v));
    }
}

/* The contents of one pair of braces. */
static void braces_replace(struct braces *b, struct sink *out, const struct str *s, uint32_t begin,
                           uint32_t end)
{
    uint32_t name = begin, brackets = 0;
    char conversion = 0;
    struct sink spec;
    struct value v, text;

    for (; name < end && (brackets || (s->ptr[name] != ':' && s->ptr[name] != '!')); name++) {
        brackets += s->ptr[name] == '[';
        if (s->ptr[name] == ']') brackets = 0;
    }
    v = braces_field(b, s, begin, name);
    if (name < end && s->ptr[name] == '!') {
        if (name + 1 >= end || !memchr("rsa", s->ptr[name + 1], 3) ||
            (name + 2 < end && s->ptr[name + 2] != ':'))
            template_fail(b->r, TEMPLATE_RUNTIME, "unknown conversion in a format string");
        conversion = s->ptr[name + 1];
        name += 2;
    }
    sink_init(&spec, b->r);
    if (name < end) braces_text(b, &spec, s, name + 1, end);
    if (conversion) {
        struct sink shown;
        sink_init(&shown, b->r);
        if (conversion == 's')
            sink_display(&shown, v);
        else if (conversion == 'a')
            sink_ascii(&shown, v);
        else
            sink_repr(&shown, v);
        v = sink_value(&shown);
    }
    text = sink_value(&spec);
    format_value(b->r, out, v, text.s);
}

static void braces_text(struct braces *b, struct sink *out, const struct str *s, uint32_t begin,
                        uint32_t end)
{
    uint32_t from = begin;

    if (++b->depth > 3) template_fail(b->r, TEMPLATE_RUNTIME, "max string recursion exceeded");
    for (uint32_t at = begin; at < end; at++) {
        char c = s->ptr[at];
        uint32_t open = 1, close = at + 1;
        if (c != '{' && c != '}') continue;
        sink_sub(out, s, from, at);
        if (close < end && s->ptr[close] == c && b->depth == 1) { /* {{ and }} */
            from = close;
            at = close;
            continue;
        }
        if (c == '}')
            template_fail(b->r, TEMPLATE_RUNTIME, "single '}' encountered in format string");
        for (; close < end; close++) {
            open += s->ptr[close] == '{';
            open -= s->ptr[close] == '}';
            if (!open) break;
        }
        if (open) template_fail(b->r, TEMPLATE_RUNTIME, "expected '}' before end of string");
        braces_replace(b, out, s, at + 1, close);
        at = close;
        from = close + 1;
    }
    sink_sub(out, s, from, end);
    b->depth--;
}

struct value format_braces(struct render *r, struct value format, const struct args *args,
                           const struct dict *map)
{
    struct braces b = {.r = r, .args = args, .map = map};
    struct sink out;
    struct value v;

    sink_init(&out, r);
    braces_text(&b, &out, format.s, 0, format.s->len);
    v = sink_value(&out);
    v.sub = format.sub;
    return v;
}
