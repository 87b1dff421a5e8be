/* json_guard.c - one pass over the text; what is open stands in an array, not on the call stack.
 *
 * A container is attached to its parent when it opens, so the only owner is the root, and an error frees
 * everything by dropping that. */
#include "base/json_guard.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/utf8.h"

/* What jansson 2.14 on a 64-bit glibc takes at its peak, counted from above: block headers, the table
 * that an array or hash starts with, and growing tables while old and new exist. Held to by
 * tests/unit/base/test_json_guard (the_tree_takes_no_more_memory_than_was_counted). */
enum {
    COST_ARRAY = 160,
    COST_OBJECT = 256,
    COST_NUMBER = 32,
    COST_STRING = 96, /* and its bytes */
    COST_ELEMENT = 24,
    COST_MEMBER = 136 /* and the name's bytes */
};

struct reader {
    const char *start, *at, *end;
    const struct json_limits *limits;
    struct error *err;
    uint64_t values, memory;
    bool build;
    uint32_t depth;
    struct buf plain;                   /* a string's bytes after unescaping */
    struct slice name;                  /* of the member that waits for its value */
    struct buf name_plain;              /* owns the name when it had escapes */
    json_t *root;                       /* owned; NULL while nothing is built */
    json_t *open[JSON_GUARD_DEPTH_MAX]; /* borrowed from root; unused when only checking */
    bool open_is_object[JSON_GUARD_DEPTH_MAX];
};

/* A sentence that starts with the place. */
#define FAIL(r, status, where, format, ...)                \
    error_set((r)->err, status, "JSON, byte %zu: " format, \
              (size_t)((where) - (r)->start) __VA_OPT__(, ) __VA_ARGS__)

/* The character at `at` as text for a sentence: printable ASCII as it is, other bytes as hex. */
static const char *shown(const struct reader *r, const char *at, char out[24])
{
    if (at == r->end)
        snprintf(out, 24, "the end of the text");
    else if (*at >= 0x20 && *at < 0x7f)
        snprintf(out, 24, "'%c'", *at);
    else
        snprintf(out, 24, "byte 0x%02x", (unsigned char)*at);
    return out;
}

static enum status expected(const struct reader *r, const char *what)
{
    char seen[24];

    return FAIL(r, r->at == r->end ? STATUS_INCOMPLETE : STATUS_INVALID, r->at,
                "expected %s, found %s", what, shown(r, r->at, seen));
}

static void skip_space(struct reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\r' || *r->at == '\t'))
        r->at++;
}

static enum status charge(struct reader *r, uint64_t bytes)
{
    uint64_t max = r->limits->memory_max;

    r->memory += bytes;
    if (max && r->memory > max)
        return FAIL(r, STATUS_LIMIT, r->at, "its values would take more than %llu bytes of memory",
                    (unsigned long long)max);
    return STATUS_OK;
}

static enum status count_value(struct reader *r)
{
    uint64_t max = r->limits->values_max;

    r->values++;
    if (max && r->values > max)
        return FAIL(r, STATUS_LIMIT, r->at, "more than %llu values", (unsigned long long)max);
    return STATUS_OK;
}

/* --- strings --- */

static bool is_plain_ascii(unsigned char c)
{
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

/* Skips plain ASCII, eight bytes at a time: each test sets a byte's top bit when it is not plain. */
static const char *skip_plain_ascii(const char *p, const char *end)
{
    const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;

    while (end - p >= 8) {
        uint64_t x, quote, slash;
        memcpy(&x, p, 8);
        quote = x ^ ones * '"';
        slash = x ^ ones * '\\';
        if ((x | (x - ones * 0x20) | (quote - ones) | (slash - ones)) & tops) break;
        p += 8;
    }
    while (p < end && is_plain_ascii((unsigned char)*p))
        p++;
    return p;
}

static enum status read_hex4(struct reader *r, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        char c = r->at < r->end ? *r->at : '\0';
        uint32_t digit;
        if (c >= '0' && c <= '9')
            digit = (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = (uint32_t)(c - 'a') + 10;
        else if (c >= 'A' && c <= 'F')
            digit = (uint32_t)(c - 'A') + 10;
        else
            return expected(r, "four hexadecimal digits after \\u");
        *out = *out << 4 | digit;
    }
    return STATUS_OK;
}

/* r->at is behind "\u". */
static enum status read_unicode_escape(struct reader *r, struct buf *plain)
{
    const char *where = r->at - 2;
    uint32_t high, low;
    char bytes[4];
    enum status st = read_hex4(r, &high);

    if (st) return st;
    if (high >= 0xdc00 && high <= 0xdfff)
        return FAIL(r, STATUS_INVALID, where,
                    "a low surrogate escape without a high one before it");
    if (high >= 0xd800 && high <= 0xdbff) {
        if (r->end - r->at < 2 && (r->at == r->end || *r->at == '\\')) {
            r->at = r->end;
            return expected(r, "a low surrogate escape");
        }
        if (r->at[0] != '\\' || r->at[1] != 'u')
            return FAIL(r, STATUS_INVALID, where,
                        "a high surrogate escape without a low one behind it");
        r->at += 2;
        st = read_hex4(r, &low);
        if (st) return st;
        if (low < 0xdc00 || low > 0xdfff)
            return FAIL(r, STATUS_INVALID, where,
                        "a high surrogate escape without a low one behind it");
        high = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    }
    buf_append(plain, bytes, utf8_encode(high, bytes));
    return STATUS_OK;
}

/* r->at is at the backslash. */
static enum status read_escape(struct reader *r, struct buf *plain)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *known;

    r->at++;
    if (r->at < r->end && *r->at == 'u') {
        r->at++;
        return read_unicode_escape(r, plain);
    }
    known = r->at < r->end && *r->at ? strchr(from, *r->at) : NULL;
    if (!known) return expected(r, "one of \" \\ / b f n r t u after a backslash");
    buf_append_char(plain, to[known - from]);
    r->at++;
    return STATUS_OK;
}

/* Something other than plain ASCII inside a string: UTF-8, or a fault. */
static enum status read_wide(struct reader *r)
{
    unsigned n;

    if (r->at == r->end) return expected(r, "the end of a string (\")");
    if ((unsigned char)*r->at < 0x20)
        return FAIL(r, STATUS_INVALID, r->at,
                    "a control byte (0x%02x) in a string; it must be escaped",
                    (unsigned char)*r->at);
    n = utf8_sequence_len(r->at, (size_t)(r->end - r->at));
    if (n == 0) return FAIL(r, STATUS_INVALID, r->at, "bytes in a string that are not valid UTF-8");
    r->at += n;
    return STATUS_OK;
}

/* r->at is behind the opening quote; leaves it behind the closing one. *out borrows from the text, or from
 * `plain` when there was an escape. */
static enum status read_string(struct reader *r, struct buf *plain, struct slice *out)
{
    const char *run = r->at; /* start of what is not yet in plain */
    bool escaped = false;
    enum status st = STATUS_OK;

    buf_clear(plain);
    for (;;) {
        r->at = skip_plain_ascii(r->at, r->end);
        if (r->at < r->end && *r->at == '"') break;
        if (r->at < r->end && *r->at == '\\') {
            escaped = true;
            buf_append(plain, run, (size_t)(r->at - run));
            st = read_escape(r, plain);
            run = r->at;
        } else {
            st = read_wide(r);
        }
        if (st) return st;
    }
    if (escaped) buf_append(plain, run, (size_t)(r->at - run));
    *out = escaped ? slice_of(plain->ptr, plain->len) : slice_of(run, (size_t)(r->at - run));
    r->at++;
    if (buf_status(plain)) return FAIL(r, STATUS_NOMEM, run, "no memory for a string");
    return STATUS_OK;
}

/* --- numbers --- */

static bool skip_digits(struct reader *r)
{
    const char *from = r->at;

    while (r->at < r->end && *r->at >= '0' && *r->at <= '9')
        r->at++;
    return r->at > from;
}

/* Walks one literal by the grammar of RFC 8259, section 6. */
static enum status scan_number(struct reader *r, bool *integral)
{
    const char *from = r->at;

    *integral = true;
    if (*r->at == '-') r->at++;
    from = r->at;
    if (!skip_digits(r)) return expected(r, "a digit");
    if (*from == '0' && r->at - from > 1)
        return FAIL(r, STATUS_INVALID, from, "a number with a leading zero");
    if (r->at < r->end && *r->at == '.') {
        r->at++;
        *integral = false;
        if (!skip_digits(r)) return expected(r, "a digit after the point");
    }
    if (r->at < r->end && (*r->at == 'e' || *r->at == 'E')) {
        r->at++;
        *integral = false;
        if (r->at < r->end && (*r->at == '+' || *r->at == '-')) r->at++;
        if (!skip_digits(r)) return expected(r, "a digit of the exponent");
    }
    return STATUS_OK;
}

static bool to_int64(const char *p, const char *end, json_int_t *out)
{
    bool negative = *p == '-';
    uint64_t sum = 0, max = negative ? (uint64_t)1 << 63 : INT64_MAX;

    for (p += negative; p < end; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        if (sum > (max - digit) / 10) return false;
        sum = sum * 10 + digit;
    }
    *out = negative ? (json_int_t)(0 - sum) : (json_int_t)sum;
    return true;
}

static enum status read_number(struct reader *r, json_t **out)
{
    const char *from = r->at;
    char text[JSON_GUARD_NUMBER_CHARS + 1];
    bool integral;
    json_int_t integer;
    double real;
    enum status st = scan_number(r, &integral);
    size_t len = (size_t)(r->at - from);

    if (st) return st;
    if (integral && to_int64(from, r->at, &integer)) {
        if (r->build) *out = json_integer(integer);
        return charge(r, COST_NUMBER);
    }
    if (len > JSON_GUARD_NUMBER_CHARS)
        return FAIL(r, STATUS_LIMIT, from, "a number of more than %d characters",
                    JSON_GUARD_NUMBER_CHARS);
    memcpy(text, from, len);
    text[len] = '\0';
    real = strtod(text, NULL);
    if (!isfinite(real))
        return FAIL(r, STATUS_INVALID, from, "a number too large for a double (over 1.8e308)");
    if (r->build) *out = json_real(real);
    return charge(r, COST_NUMBER);
}

/* --- values --- */

static enum status read_word(struct reader *r, json_t **out)
{
    static const struct slice words[] = {{"null", 4}, {"true", 4}, {"false", 5}};
    struct slice rest = slice_of(r->at, (size_t)(r->end - r->at));

    for (int i = 0; i < 3; i++) {
        if (!slice_starts(rest, words[i])) continue;
        r->at += words[i].len;
        *out = i == 0 ? json_null() : json_boolean(i == 1);
        return STATUS_OK;
    }
    for (int i = 0; i < 3; i++)
        if (rest.len && slice_starts(words[i], rest)) r->at = r->end; /* cut within a word */
    return expected(r, "a value");
}

static enum status read_string_value(struct reader *r, json_t **out)
{
    struct slice s;
    enum status st;

    r->at++;
    st = read_string(r, &r->plain, &s);
    if (!st) st = charge(r, COST_STRING + s.len);
    if (!st && r->build) *out = json_stringn_nocheck(s.len ? s.ptr : "", s.len);
    return st;
}

static enum status open_container(struct reader *r, json_t **out)
{
    bool object = *r->at == '{';

    if (r->depth == r->limits->depth_max)
        return FAIL(r, STATUS_LIMIT, r->at, "nested more than %u levels deep",
                    (unsigned)r->limits->depth_max);
    if (r->build) *out = object ? json_object() : json_array();
    r->open[r->depth] = *out;
    r->open_is_object[r->depth++] = object;
    r->at++;
    return charge(r, object ? COST_OBJECT : COST_ARRAY);
}

/* Hands a new value (owned) to its parent; at level 0 to the root. */
static enum status attach(struct reader *r, json_t *value, uint32_t level)
{
    json_t *parent = level ? r->open[level - 1] : NULL;
    int failed;

    if (!r->build) return STATUS_OK;
    if (!value) return FAIL(r, STATUS_NOMEM, r->at, "no memory for a value");
    if (!parent) {
        r->root = value;
        return STATUS_OK;
    }
    if (json_is_array(parent))
        failed = json_array_append_new(parent, value);
    else
        failed = json_object_setn_new_nocheck(parent, r->name.len ? r->name.ptr : "", r->name.len,
                                              value);
    return failed ? FAIL(r, STATUS_NOMEM, r->at, "no memory for a value") : STATUS_OK;
}

static enum status read_value(struct reader *r)
{
    uint32_t level = r->depth;
    json_t *value = NULL;
    char c = r->at < r->end ? *r->at : '\0';
    enum status st = count_value(r);

    if (!st && level)
        st = charge(r, r->open_is_object[level - 1] ? COST_MEMBER + r->name.len : COST_ELEMENT);
    if (st) return st;
    if (c == '{' || c == '[')
        st = open_container(r, &value);
    else if (c == '"')
        st = read_string_value(r, &value);
    else if (c == '-' || (c >= '0' && c <= '9'))
        st = read_number(r, &value);
    else
        st = read_word(r, &value);
    if (st) {
        json_decref(value); /* takes NULL */
        return st;
    }
    return attach(r, value, level);
}

/* r->at is at the opening quote of a name; leaves it at the value. */
static enum status read_name(struct reader *r)
{
    const char *where = r->at;
    enum status st;

    if (r->at == r->end || *r->at != '"') return expected(r, "a name in double quotes");
    r->at++;
    st = read_string(r, &r->name_plain, &r->name);
    if (st) return st;
    if (r->name.len && memchr(r->name.ptr, '\0', r->name.len))
        return FAIL(r, STATUS_INVALID, where, "a name with a NUL character (\\u0000)");
    if (r->build && r->limits->unique_names &&
        json_object_getn(r->open[r->depth - 1], r->name.len ? r->name.ptr : "", r->name.len))
        return FAIL(r, STATUS_INVALID, where, "the name \"%.*s\" stands twice in one object",
                    (int)(r->name.len < 100 ? r->name.len : 100), r->name.ptr);
    skip_space(r);
    if (r->at == r->end || *r->at != ':') return expected(r, "':' behind a name");
    r->at++;
    skip_space(r);
    return STATUS_OK;
}

/* Behind a value: closes what ends here, and leaves r->at at the next value, or at the end of the text
 * with depth 0. */
static enum status next_value(struct reader *r)
{
    while (r->depth) {
        bool object = r->open_is_object[r->depth - 1];
        char c;

        skip_space(r);
        c = r->at < r->end ? *r->at : '\0';
        if (c == ',') {
            r->at++;
            skip_space(r);
            return object ? read_name(r) : STATUS_OK;
        }
        if (c != (object ? '}' : ']'))
            return expected(r, object ? "',' or '}' in an object" : "',' or ']' in an array");
        r->at++;
        r->depth--;
    }
    skip_space(r);
    return r->at == r->end ? STATUS_OK : expected(r, "nothing behind the value");
}

/* Behind an opening bracket: leaves r->at at the first value, or tells that there is none. */
static enum status first_value(struct reader *r, bool *empty)
{
    bool object = r->open_is_object[r->depth - 1];

    skip_space(r);
    *empty = r->at < r->end && *r->at == (object ? '}' : ']');
    return object && !*empty ? read_name(r) : STATUS_OK;
}

static enum status read_text(struct reader *r)
{
    enum status st;

    if (r->end - r->at >= 3 && memcmp(r->at, "\xef\xbb\xbf", 3) == 0) r->at += 3;
    skip_space(r);
    do {
        uint32_t level = r->depth;
        bool empty = true;
        st = read_value(r);
        if (!st && r->depth > level) st = first_value(r, &empty);
        if (!st && empty) st = next_value(r);
    } while (!st && r->depth);
    return st;
}

static enum status run(struct slice text, const struct json_limits *limits, bool build,
                       json_t **out, struct error *err)
{
    struct reader r = {
        .start = text.ptr ? text.ptr : "", .limits = limits, .err = err, .build = build};
    enum status st;

    assert(limits->depth_max >= 1 && limits->depth_max <= JSON_GUARD_DEPTH_MAX);
    r.at = r.start;
    r.end = r.start + text.len;
    buf_init(&r.plain, 0);
    buf_init(&r.name_plain, 0);
    st = read_text(&r);
    buf_fini(&r.plain);
    buf_fini(&r.name_plain);
    if (st)
        json_decref(r.root);
    else if (build)
        *out = r.root;
    return st;
}

enum status json_guard_check(struct slice text, const struct json_limits *limits, struct error *err)
{
    return run(text, limits, false, NULL, err);
}

enum status json_guard_parse(struct slice text, const struct json_limits *limits, json_t **out,
                             struct error *err)
{
    return run(text, limits, true, out, err);
}
