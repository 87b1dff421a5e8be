/* test_json_guard.c - what is not JSON is refused with the right status, what is comes out whole, and no
 * text costs more than its limits.
 * Method: tables of texts with their outcome, each ending at an unmapped page; every prefix of a text is
 * told to be incomplete; 20,000 mutated texts (long: 2,000,000) judged beside jansson's own reader; the
 * heap measured by counting allocators. */
#include "test.h"

#include <time.h>

#include <malloc.h>
#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/json_guard.h"
#include "base/utf8.h"

static const struct json_limits wide = {.depth_max = 64};

/* Parses a guarded copy. The caller drops *out. */
static enum status parse_as(const char *text, size_t len, const struct json_limits *limits,
                            json_t **out, struct error *err)
{
    unsigned char *copy = test_guarded_copy(text, len);
    struct slice s = slice_of(copy, len);
    enum status st = json_guard_parse(s, limits, out, err), checked;

    checked = json_guard_check(s, limits, NULL);
    if (!limits->unique_names) EXPECT_EQ(checked, st);
    test_guarded_free(copy, len);
    return st;
}

static enum status parse(const char *text, json_t **out, struct error *err)
{
    return parse_as(text, strlen(text), &wide, out, err);
}

static void expect_refused(const char *text, size_t len, enum status want, const char *word)
{
    struct error err = {0};
    json_t *value = NULL;
    enum status st = parse_as(text, len, &wide, &value, &err);

    if (st != want)
        fail_msg("%s gave '%s'; expected '%s' (%s)", text, status_name(st), status_name(want),
                 err.message);
    if (!strstr(err.message, word))
        fail_msg("%s: \"%s\" does not say \"%s\"", text, err.message, word);
    EXPECT_TRUE(value == NULL);
}

#ifdef INFERD_SANITIZED /* a sanitizer's code takes many times as long */
enum { seconds_max = 60 };
#else
enum { seconds_max = 2 };
#endif

/* CPU time, which other programs do not change. */
static int64_t cpu_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

TEST(what_is_not_json_is_refused_and_says_why)
{
    static const struct {
        const char *text, *word;
    } rows[] = {
        {"{} {}", "byte 3: expected nothing behind the value"},
        {"[1,]", "byte 3: expected a value, found ']'"},
        {"{\"a\":1,}", "byte 7: expected a name in double quotes, found '}'"},
        {"[1 2]", "byte 3: expected ',' or ']' in an array, found '2'"},
        {"{\"a\" 1}", "expected ':' behind a name"},
        {"{\"a\":1]", "',' or '}' in an object, found ']'"},
        {"[1}", "',' or ']' in an array, found '}'"},
        {"[1]//x", "found '/'"},
        {"/*x*/1", "expected a value, found '/'"},
        {"{'a':1}", "expected a name in double quotes, found '''"},
        {"{a:1}", "found 'a'"},
        {"{1:1}", "found '1'"},
        {"NaN", "found 'N'"},
        {"-NaN", "expected a digit"},
        {"Infinity", "found 'I'"},
        {"-Infinity", "expected a digit"},
        {"nul1", "expected a value, found 'n'"},
        {"True", "found 'T'"},
        {"truex", "expected nothing behind"},
        {"01", "leading zero"},
        {"-01", "leading zero"},
        {"00", "leading zero"},
        {"+1", "found '+'"},
        {".5", "found '.'"},
        {"1.e5", "a digit after the point"},
        {"1.x", "a digit after the point"},
        {"1e+x", "a digit of the exponent"},
        {"0x10", "found 'x'"},
        {"1e999", "too large for a double"},
        {"-1e999", "too large for a double"},
        {"[1.7976931348623159e308]", "byte 1: a number too large for a double"},
        {"\"a\tb\"", "byte 2: a control byte (0x09)"},
        {"\"a\nb\"", "a control byte (0x0a)"},
        {"\"\\a\"", "after a backslash, found 'a'"},
        {"\"\\x41\"", "after a backslash, found 'x'"},
        {"\"\\U0041\"", "after a backslash"},
        {"\"\\u12g4\"", "four hexadecimal digits"},
        {"\"\\u-123\"", "four hexadecimal digits"},
        {"\"\\ud800\"", "byte 1: a high surrogate escape without a low one"},
        {"\"\\ud800x\"", "a high surrogate escape"},
        {"\"\\ud800\\n\"", "a high surrogate escape"},
        {"\"\\ud800\\u0041\"", "a high surrogate escape"},
        {"\"\\ud800\\ud800\"", "a high surrogate escape"},
        {"\"\\udc00\"", "a low surrogate escape"},
        {"{\"a\\u0000b\":1}", "a name with a NUL"},
        {"\"\x80\"", "byte 1: bytes in a string that are not valid UTF-8"},
        {"\"\xc0\x80\"", "UTF-8"},
        {"\"\xc1\xbf\"", "UTF-8"},
        {"\"\xe0\x80\x80\"", "UTF-8"},
        {"\"\xe0\x9f\xbf\"", "UTF-8"},
        {"\"\xed\xa0\x80\"", "UTF-8"},
        {"\"\xed\xbf\xbf\"", "UTF-8"},
        {"\"\xf0\x80\x80\x80\"", "UTF-8"},
        {"\"\xf0\x8f\xbf\xbf\"", "UTF-8"},
        {"\"\xf4\x90\x80\x80\"", "UTF-8"},
        {"\"\xf5\x80\x80\x80\"", "UTF-8"},
        {"\"\xff\"", "UTF-8"},
        {"\"\xc3\"", "UTF-8"},
        {"\"\xe2\x82\"", "UTF-8"},
        {"\"\xe2\x82x\"", "UTF-8"},
        {"{\"\xff\":1}", "UTF-8"},
        {"\xff", "found byte 0xff"},
        {"\xef\xbb\xbf\xef\xbb\xbf{}", "byte 3: expected a value"},
        {"[\f1]", "found byte 0x0c"},
        {"[1\v]", "found byte 0x0b"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_refused(rows[i].text, strlen(rows[i].text), STATUS_INVALID, rows[i].word);
    expect_refused("[1\0]", 4, STATUS_INVALID, "found byte 0x00");
    expect_refused("{}\0", 3, STATUS_INVALID, "found byte 0x00");
    expect_refused("\"a\0\"", 4, STATUS_INVALID, "control byte (0x00)");
    expect_refused("\"\\\0\"", 4, STATUS_INVALID, "after a backslash, found byte 0x00");
}

TEST(an_overlong_number_is_refused_and_a_big_one_is_a_real)
{
    char digits[2001];
    json_t *value;
    struct error err;

    memset(digits, '9', 2000);
    digits[400] = '\0';
    expect_refused(digits, 400, STATUS_INVALID, "too large for a double");
    digits[400] = '9';
    expect_refused(digits, 2000, STATUS_LIMIT, "more than 1024 characters");

    EXPECT_OK_ERR(parse("9223372036854775807", &value, &err), &err);
    EXPECT_TRUE(json_is_integer(value) && json_integer_value(value) == INT64_MAX);
    json_decref(value);
    EXPECT_OK_ERR(parse("-9223372036854775808", &value, &err), &err);
    EXPECT_TRUE(json_is_integer(value) && json_integer_value(value) == INT64_MIN);
    json_decref(value);
    EXPECT_OK_ERR(parse("9223372036854775808", &value, &err), &err);
    EXPECT_TRUE(json_is_real(value) && json_real_value(value) == 0x1p63);
    json_decref(value);
    EXPECT_OK_ERR(parse("18446744073709551616", &value, &err), &err);
    EXPECT_TRUE(json_is_real(value) && json_real_value(value) == 0x1p64);
    json_decref(value);
}

TEST(numbers_keep_their_type_and_value)
{
    static const struct {
        const char *text;
        int integer;
        double value;
    } rows[] = {{"0", 1, 0},
                {"-0", 1, 0},
                {"7", 1, 7},
                {"-12", 1, -12},
                {"5.0", 0, 5},
                {"5e0", 0, 5},
                {"5E+1", 0, 50},
                {"125e-3", 0, 0.125},
                {"0.1", 0, 0.1},
                {"1e-999", 0, 0},
                {"-0.0", 0, -0.0},
                {"0e5", 0, 0},
                {"4.9e-324", 0, 0x1p-1074},
                {"1.7976931348623157e308", 0, 1.7976931348623157e308}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *value;
        struct error err;
        EXPECT_OK_ERR(parse(rows[i].text, &value, &err), &err);
        EXPECT_EQ(json_is_integer(value), rows[i].integer);
        EXPECT_TRUE(json_number_value(value) == rows[i].value);
        EXPECT_EQ(!!signbit(json_number_value(value)), !!signbit(rows[i].value));
        json_decref(value);
    }
}

static void expect_text(const char *text, const char *want, size_t want_len)
{
    json_t *value;
    struct error err;

    EXPECT_OK_ERR(parse(text, &value, &err), &err);
    EXPECT_TRUE(json_is_string(value));
    EXPECT_EQ(json_string_length(value), want_len);
    EXPECT_TRUE(memcmp(json_string_value(value), want, want_len + 1) == 0);
    json_decref(value);
}

TEST(strings_come_out_unescaped_and_whole)
{
    expect_text("\"\"", "", 0);
    expect_text("\"a longer plain string without escapes\"",
                "a longer plain string without escapes", 37);
    expect_text("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8);
    expect_text("\"a\\u0000b\\u0000\"", "a\0b\0", 4);
    expect_text("\"\\u0041\\u00e9\\u20AC\\ud83c\\udf36\"", "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x8c\xb6",
                10);
    expect_text("\"\\uDBFF\\uDFFF\\ud7ff\\ue000\\uffff\"",
                "\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf", 13);
    expect_text(
        "\"\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf\"",
        "\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", 21);
    expect_text("\"ab\\ncd\xf0\x9f\x8c\xb6\\tef\"", "ab\ncd\xf0\x9f\x8c\xb6\tef", 12);
    expect_text(" \r\n\t\"x\x7f\" ", "x\x7f", 2);
}

TEST(the_last_of_equal_names_counts_also_when_escaped)
{
    json_t *value;
    struct error err;
    struct json_limits unique = {.depth_max = 8, .unique_names = true};
    const char *twice = "{\"model\":1,\"x\":{\"model\":5},\"\\u006dodel\":[2]}";

    EXPECT_OK_ERR(parse(twice, &value, &err), &err);
    EXPECT_EQ(json_object_size(value), 2);
    EXPECT_TRUE(json_is_array(json_object_get(value, "model")));
    json_decref(value);
    EXPECT_EQ(parse_as(twice, strlen(twice), &unique, &value, &err), STATUS_INVALID);
    EXPECT_TRUE(strstr(err.message, "byte 27: the name \"model\" stands twice"));
    EXPECT_OK_ERR(parse_as("{\"a\":{\"a\":1},\"\":2}", 18, &unique, &value, &err), &err);
    EXPECT_EQ(json_integer_value(json_object_getn(value, "", 0)), 2);
    json_decref(value);
}

/* Every proper prefix of these is INCOMPLETE, and the whole is taken. (A prefix of a bare number may be a
 * number: none here.) */
TEST(a_text_that_ends_too_early_is_incomplete_not_wrong)
{
    static const char *const texts[] = {"{\"a\":[1,2.5e+3,-0.25,{\"b\":null}],\"c\":"
                                        "\"x\\n\\u00e9\\ud83c\\udf36\",\"d\":true,\"e\":false}",
                                        "[[[]],{},\"\",[{}]]", "\"\\\\\"", "null"};

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_t *value;
        struct error err;
        for (size_t len = 0; len < strlen(texts[i]); len++) {
            enum status st = parse_as(texts[i], len, &wide, &value, &err);
            if (st != STATUS_INCOMPLETE)
                fail_msg("'%.*s' gave '%s': %s", (int)len, texts[i], status_name(st), err.message);
        }
        EXPECT_OK_ERR(parse(texts[i], &value, &err), &err);
        json_decref(value);
    }
    expect_refused("", 0, STATUS_INCOMPLETE, "byte 0: expected a value, found the end of the text");
    EXPECT_EQ(json_guard_check((struct slice){NULL, 0}, &wide, NULL), STATUS_INCOMPLETE);
}

TEST(a_byte_order_mark_in_front_is_skipped)
{
    json_t *value;
    struct error err;

    EXPECT_OK_ERR(parse("\xef\xbb\xbf {}", &value, &err), &err);
    json_decref(value);
}

TEST(depth_is_limited_to_the_number_given)
{
    char text[3 * JSON_GUARD_DEPTH_MAX + 8];
    struct error err;

    for (uint32_t depth = 1; depth <= JSON_GUARD_DEPTH_MAX; depth = depth * 5 / 4 + 1) {
        struct json_limits limits = {.depth_max = depth};
        json_t *value;
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        EXPECT_OK_ERR(parse_as(text, 2 * depth, &limits, &value, &err), &err);
        json_decref(value);
        memset(text, '[', depth + 1);
        memset(text + depth + 1, ']', depth + 1);
        EXPECT_EQ(parse_as(text, 2 * depth + 2, &limits, &value, &err), STATUS_LIMIT);
        EXPECT_TRUE(strstr(err.message, "levels deep"));
    }
}

/* 16 MiB of one bracket: refused at the limit, whatever follows, with no recursion to run out of. */
TEST(a_body_of_brackets_is_refused_at_once)
{
    static const char *const pieces[] = {"[", "{\"\":", "[],", "[{\"a\":", "{},"};
    struct json_limits limits = {.depth_max = 512, .values_max = 2000000, .memory_max = 64 << 20};
    size_t len = 16 << 20;
    char *text = malloc(len);

    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        struct error err;
        json_t *value;
        int64_t start;
        size_t n = strlen(pieces[i]);
        text[0] = '[';
        for (size_t at = 1; at < len; at++)
            text[at] = pieces[i][(at - 1) % n];
        start = cpu_ns();
        EXPECT_EQ(json_guard_parse(slice_of(text, len), &limits, &value, &err), STATUS_LIMIT);
        EXPECT_TRUE(cpu_ns() - start < seconds_max * (int64_t)1000000000);
    }
    free(text);
}

TEST(a_million_values_pass_and_one_more_than_the_limit_does_not)
{
    struct json_limits limits = {.depth_max = 64, .values_max = 1000001};
    size_t len = 2 * 1000000 + 1;
    char *text = malloc(len + 2);
    json_t *value;
    struct error err;

    for (size_t i = 0; i < 1000000; i++)
        memcpy(text + 1 + 2 * i, "7,", 2);
    text[0] = '[';
    text[len - 1] = ']';
    EXPECT_OK_ERR(json_guard_parse(slice_of(text, len), &limits, &value, &err), &err);
    EXPECT_EQ(json_array_size(value), 1000000);
    json_decref(value);
    memcpy(text + len - 1, ",7]", 3);
    EXPECT_EQ(json_guard_parse(slice_of(text, len + 2), &limits, &value, &err), STATUS_LIMIT);
    EXPECT_TRUE(strstr(err.message, "more than 1000001 values"));
    free(text);
}

/* --- memory: jansson's allocations, counted --- */

static uint64_t heap_now, heap_peak;

static void *counted_alloc(size_t size)
{
    void *p = malloc(size);

    heap_now += malloc_usable_size(p) + 8;
    if (heap_now > heap_peak) heap_peak = heap_now;
    return p;
}

static void counted_free(void *p)
{
    if (p) heap_now -= malloc_usable_size(p) + 8;
    free(p);
}

/* Some text of one kind of value, `count` times. */
static char *many(const char *kind, size_t count, size_t *len)
{
    bool object = kind[0] == ':';
    char *text = malloc(count * (strlen(kind) + 24) + 3), *at = text;

    *at++ = object ? '{' : '[';
    for (size_t i = 0; i < count; i++) {
        if (i) *at++ = ',';
        at += object ? sprintf(at, "\"k%zu\"%s", i, kind) : sprintf(at, "%s", kind);
    }
    *at++ = object ? '}' : ']';
    *len = (size_t)(at - text);
    return text;
}

/* The smallest memory_max that a text passes under, found by halving, is at least what it really took. */
TEST(the_tree_takes_no_more_memory_than_was_counted)
{
    static const char *const kinds[] = {"[]",
                                        "{}",
                                        "7",
                                        "1.5",
                                        "\"\"",
                                        "\"abcdefghijklmnopqrstuvwxyz\"",
                                        "null",
                                        ":1",
                                        ":[]",
                                        ":{}",
                                        ":\"\"",
                                        "[1]",
                                        "{\"a\":1}",
                                        "[[1,2,3,4,5,6,7,8,9]]",
                                        "{\"a\":{\"b\":\"c\"}}"};

    json_set_alloc_funcs(counted_alloc, counted_free);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (size_t count = 1; count < 5000; count = count * 3 / 2 + 1) {
            struct json_limits limits = {.depth_max = 64};
            uint64_t low = 0, high = 1 << 30;
            size_t len;
            char *text = many(kinds[k], count, &len);
            json_t *value;
            while (high - low > 1) {
                limits.memory_max = low + (high - low) / 2;
                if (json_guard_check(slice_of(text, len), &limits, NULL))
                    low = limits.memory_max;
                else
                    high = limits.memory_max;
            }
            heap_peak = heap_now = 0;
            limits.memory_max = high;
            EXPECT_OK(json_guard_parse(slice_of(text, len), &limits, &value, NULL));
            if (heap_peak > high)
                fail_msg("%zu of %s took %llu bytes; %llu were counted", count, kinds[k],
                         (unsigned long long)heap_peak, (unsigned long long)high);
            json_decref(value);
            EXPECT_EQ(heap_now, 0);
            free(text);
        }
    }
    json_set_alloc_funcs(malloc, free);
}

/* An error in the middle gives everything back. */
TEST(a_refused_text_leaves_nothing_behind)
{
    static const char *const texts[] = {"{\"a\":[1,{\"b\":\"c\"},2.5,x",
                                        "[[[[[\"\\u00e9\",\"\\ud800\"", "{\"a\":{\"b\":1e999}}",
                                        "[\"abc", "{\"a\":1,\"a\":2,\"b\\n\":tru"};

    json_set_alloc_funcs(counted_alloc, counted_free);
    heap_now = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_t *value;
        struct error err;
        EXPECT_TRUE(parse(texts[i], &value, &err) != STATUS_OK);
        EXPECT_EQ(heap_now, 0);
    }
    json_set_alloc_funcs(malloc, free);
}

/* --- beside jansson's own reader --- */

static size_t mutate(char *text, size_t len)
{
    static const char alphabet[] =
        "{}[]:,\"\\/0123456789.eE+-truefalsn \n\t\x01\x7f\xc3\xa9\xed\xf0\x9f";

    for (uint32_t n = 1 + test_rand_below(4); n > 0; n--) {
        size_t at = test_rand_below((uint32_t)len + 1);
        char c = alphabet[test_rand_below(sizeof alphabet - 1)];
        switch (test_rand_below(4)) {
        case 0:
            if (at < len) text[at] = c;
            break;
        case 1:
            memmove(text + at + 1, text + at, len - at);
            text[at] = c;
            len++;
            break;
        case 2:
            if (at < len) memmove(text + at, text + at + 1, --len - at);
            break;
        default:
            if (test_rand_below(8) == 0) len = at;
        }
    }
    return len;
}

TEST(mutated_texts_are_judged_as_jansson_judges_them)
{
    static const char *const seeds[] = {"{\"model\":\"m\",\"messages\":[{\"role\":\"user\","
                                        "\"content\":\"Hi \\u00e9\\ud83c\\udf36\"}],"
                                        "\"temperature\":0.7,\"stop\":null,\"stream\":true}",
                                        "[1,-2,3.5e2,[],{},\"\",[[\"\\n\\\\\"]],false,1E-5]",
                                        "{\"a\":{\"b\":{\"c\":[0,0.0,-0]}}}"};
    int rounds = test_long() ? 2000000 : 20000, taken = 0;

    for (int i = 0; i < rounds; i++) {
        const char *seed = seeds[test_rand_below(3)];
        char text[256];
        size_t len = strlen(seed);
        json_t *ours = NULL, *theirs;
        struct error err = {0};
        json_error_t json_err;
        memcpy(text, seed, len);
        len = mutate(text, len);
        enum status st = parse_as(text, len, &wide, &ours, &err);
        theirs = json_loadb(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &json_err);
        if (!theirs && json_error_code(&json_err) == json_error_numeric_overflow && !st) {
            /* an integer literal over int64 is a real here */
        } else if (!theirs != !!st) {
            fail_msg("%.*s: ours '%s' (%s), jansson '%s'", (int)len, text, status_name(st),
                     err.message, theirs ? "takes it" : json_err.text);
        } else if (theirs && !json_equal(ours, theirs)) {
            fail_msg("%.*s: other values than jansson's", (int)len, text);
        }
        taken += !st;
        if (!st) json_decref(ours);
        json_decref(theirs);
    }
    EXPECT_TRUE(taken > rounds / 100 && taken < rounds); /* both outcomes were tried */
}

/* --- UTF-8 --- */

/* All 2^21 candidate scalars: encoded values pass, surrogates cannot be written; and all two-byte starts
 * against the definition. */
TEST(utf8_takes_every_scalar_value_and_nothing_else)
{
    char out[4], text[4];

    for (uint32_t c = 0; c <= 0x10ffff; c++) {
        if (c >= 0xd800 && c <= 0xdfff) continue;
        unsigned n = utf8_encode(c, out);
        if (utf8_sequence_len(out, n) != n || (n > 1 && utf8_sequence_len(out, n - 1) != 0))
            fail_msg("U+%04X", (unsigned)c);
    }
    /* every run of four bytes whose last two are 0x80..0xbf or not, decoded by the definition */
    for (uint32_t x = 0; x < 0x10000; x++) {
        unsigned a = x >> 8, b = x & 0xff, want = 0;
        uint32_t scalar;
        memcpy(text, (char[]){(char)a, (char)b, (char)0xbf, (char)0x80}, 4);
        if (a < 0x80) want = 1;
        if ((b & 0xc0) == 0x80) {
            if ((a & 0xe0) == 0xc0) want = (a & 0x1f) << 6 >= 0x80 ? 2 : 0;
            scalar = (a & 0xf) << 12 | (b & 0x3f) << 6 | 0x3f;
            if ((a & 0xf0) == 0xe0)
                want = scalar >= 0x800 && (scalar < 0xd800 || scalar > 0xdfff) ? 3 : 0;
            scalar = (a & 7) << 18 | (b & 0x3f) << 12 | 0x3f << 6;
            if ((a & 0xf8) == 0xf0) want = scalar >= 0x10000 && scalar <= 0x10ffff ? 4 : 0;
        }
        if (utf8_sequence_len(text, 4) != want) fail_msg("bytes %02x %02x", a, b);
    }
    EXPECT_EQ(utf8_valid_len(SLICE("plain ascii that is longer than eight \xe2\x82\xac \xff")), 42);
    EXPECT_TRUE(utf8_valid((struct slice){NULL, 0}));
}
