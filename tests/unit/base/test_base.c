/* test_base.c - the small tools behave at their edges: limits, cuts, known answers. */
#include "test.h"

#include <stdlib.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/file_map.h"
#include "base/hash.h"
#include "base/log.h"

TEST(a_buf_over_its_limit_fails_once_and_keeps_failing)
{
    struct buf b;

    buf_init(&b, 10);
    buf_append_str(&b, "123456789");
    EXPECT_OK(buf_status(&b));
    buf_append_str(&b, "0");
    EXPECT_STR(buf_cstr(&b), "1234567890");
    buf_append_str(&b, "x");
    EXPECT_EQ(buf_status(&b), STATUS_LIMIT);
    buf_clear(&b);
    buf_printf(&b, "%d-%s", 12, "ab");
    EXPECT_STR(buf_cstr(&b), "12-ab");
    buf_fini(&b);
    buf_fini(&b);
}

TEST(an_arena_over_its_limit_gives_null)
{
    struct arena a;

    arena_init(&a, 1000);
    EXPECT_TRUE(arena_alloc(&a, 512));
    EXPECT_TRUE(!arena_alloc(&a, 512));
    EXPECT_STR(arena_strdup(&a, SLICE("hello")), "hello");
    EXPECT_TRUE(!arena_alloc(&a, SIZE_MAX));
    arena_fini(&a);
}

TEST(an_error_sentence_is_cut_at_a_character)
{
    struct error err;
    char text[600];

    for (size_t i = 0; i < sizeof text - 3; i += 3)
        memcpy(text + i, "\xe2\x82\xac", 4);
    EXPECT_EQ(error_set(&err, STATUS_IO, "%s", text), STATUS_IO);
    EXPECT_EQ(strlen(err.message) % 3, 0);
    EXPECT_EQ(error_prefix(&err, "file %d", 3), STATUS_IO);
    EXPECT_TRUE(strncmp(err.message, "file 3: \xe2\x82\xac", 11) == 0);
}

/* Known answers from the authors' distribution of Random123 (kat_vectors, philox 4x32 10). */
TEST(philox_gives_the_published_answers)
{
    uint32_t out[4];
    const uint32_t zero[4] = {0}, ones[4] = {~0u, ~0u, ~0u, ~0u};

    hash_philox4x32(zero, zero, out);
    EXPECT_EQ(out[0], 0x6627e8d5u);
    EXPECT_EQ(out[3], 0x9b00dbd8u);
    hash_philox4x32(ones, ones, out);
    EXPECT_EQ(out[0], 0x408f276du);
    EXPECT_EQ(out[3], 0x6d5451fdu);
}

TEST(a_missing_file_and_a_folder_are_told_apart)
{
    struct error err;
    struct file_map map;
    char *bytes;
    uint64_t len;

    EXPECT_EQ(file_map_open("/nonexistent/x", &map, &err), STATUS_NOT_FOUND);
    EXPECT_EQ(file_map_open("/", &map, &err), STATUS_IO);
    EXPECT_OK_ERR(file_map_open(INFERD_SOURCE_DIR "/tests/unit/base/test_base.c", &map, &err),
                  &err);
    EXPECT_OK_ERR(
        file_read(INFERD_SOURCE_DIR "/tests/unit/base/test_base.c", 1 << 20, &bytes, &len, &err),
        &err);
    EXPECT_EQ(len, map.len);
    EXPECT_TRUE(memcmp(bytes, map.ptr, len) == 0);
    free(bytes);
    EXPECT_EQ(file_read(INFERD_SOURCE_DIR "/tests/unit/base/test_base.c", 10, &bytes, &len, &err),
              STATUS_LIMIT);
    file_map_close(&map);
}

TEST(quoting_escapes_what_could_forge_a_log_line)
{
    char out[32];

    EXPECT_STR(log_quote(SLICE("a\n\"b"), out, sizeof out), "\"a\\x0a\\\"b\"");
}

static const char *made(enum log_format format, const char *keys)
{
    static char line[LOG_LINE_MAX + 1];

    log_set_timestamps(0);
    log_set_format(format);
    line[log_line(LOG_WARN, "it happened", keys, line)] = 0;
    log_set_format(LOG_TEXT);
    return line;
}

TEST(a_log_line_is_text_or_one_json_object)
{
    char quoted[64];
    char keys[128];

    EXPECT_STR(made(LOG_TEXT, "a=1 b=\"x y\""), "warn it happened a=1 b=\"x y\"\n");
    EXPECT_STR(made(LOG_JSON, "a=1 b=\"x y\" c=-2.5e3 d=1.2.3 e=007 f= g=\"12\" h=true"),
               "{\"level\":\"warn\",\"event\":\"it happened\",\"a\":1,\"b\":\"x y\",\"c\":-2.5e3,"
               "\"d\":\"1.2.3\",\"e\":\"007\",\"f\":\"\",\"g\":\"12\",\"h\":true}\n");
    snprintf(keys, sizeof keys, "v=%s w=2",
             log_quote(SLICE("a\"b\\ c\n\x7f\xff \xe2\x82\xac"), quoted, sizeof quoted));
    EXPECT_STR(made(LOG_JSON, keys),
               "{\"level\":\"warn\",\"event\":\"it happened\",\"v\":\"a\\\"b\\\\ "
               "c\\u000a\\u007f\xef\xbf\xbd \xe2\x82\xac\",\"w\":2}\n");
    EXPECT_STR(made(LOG_JSON, "r=\"he said \"no\" twice\" s=1"),
               "{\"level\":\"warn\",\"event\":\"it happened\",\"r\":\"he said \\\"no\\\" "
               "twice\",\"s\":1}\n");
    EXPECT_STR(made(LOG_JSON, ""), "{\"level\":\"warn\",\"event\":\"it happened\"}\n");
    EXPECT_STR(
        made(LOG_JSON, "l=[\"a_b\",\"c-1.2\"] e=[] f=[\"a\"\"b\"] g=[\"a\",] h=[a] i=[,] j=[\"a]"),
        "{\"level\":\"warn\",\"event\":\"it happened\",\"l\":[\"a_b\",\"c-1.2\"],\"e\":[],"
        "\"f\":\"[\\\"a\\\"\\\"b\\\"]\",\"g\":\"[\\\"a\\\",]\",\"h\":\"[a]\",\"i\":\"[,]\","
        "\"j\":\"[\\\"a]\"}\n");
    EXPECT_STR(made(LOG_JSON, "word x=\"open"),
               "{\"level\":\"warn\",\"event\":\"it happened\",\"x\":\"open\"}\n");
}

TEST(a_log_line_that_is_too_long_loses_whole_members_and_stays_an_object)
{
    char *keys = malloc(20000);
    size_t n = 0;

    for (int i = 0; n < 15000; i++)
        n += (size_t)sprintf(keys + n, "key%d=\"value %d\" ", i, i);
    const char *line = made(LOG_JSON, keys);
    size_t len = strlen(line);
    EXPECT_TRUE(len <= LOG_LINE_MAX && len > LOG_LINE_MAX - 40);
    EXPECT_STR(line + len - 3, "\"}\n");
    EXPECT_EQ(strlen(made(LOG_TEXT, keys)), LOG_LINE_MAX - 3);
    free(keys);
}

TEST(under_the_journal_a_line_begins_with_its_priority)
{
    log_set_priorities(1);
    const char *line = made(LOG_JSON, "a=1");
    log_set_priorities(0);
    EXPECT_STR(line, "<4>{\"level\":\"warn\",\"event\":\"it happened\",\"a\":1}\n");
}
