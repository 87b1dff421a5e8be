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
