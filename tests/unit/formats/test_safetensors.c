/* test_safetensors.c - a sound safetensors file is read whole; what the reference library refuses, and what
 * this build cannot hold, is refused by name and place.
 * Method: headers as text with so many data bytes, ending at an unmapped page; a table of faults; every proper
 * prefix of a sound file; every byte of it changed. */
#include "test.h"

#include <stdlib.h>

#include "base/buf.h"
#include "formats/safetensors.h"

static void build(struct buf *b, const char *header, size_t data_bytes)
{
    uint64_t len = strlen(header);

    buf_init(b, 0);
    buf_append(b, &len, sizeof len);
    buf_append_str(b, header);
    for (size_t i = 0; i < data_bytes; i++)
        buf_append_char(b, (char)(unsigned char)i);
    EXPECT_OK(buf_status(b));
}

static enum status parse(const struct buf *b, struct tensor_list *tensors, unsigned char **copy,
                         struct error *err)
{
    *tensors = (struct tensor_list){0};
    *copy = test_guarded_copy(b->ptr, b->len);
    return safetensors_parse(slice_of(*copy, b->len), "x.safetensors", tensors, err);
}

#define T(name, dtype, shape, begin, end)                                                          \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" begin "," end \
    "]}"

static const char sound[] =
    "{\"__metadata__\":{\"format\":\"pt\",\"a\":\"b\"}," T("a", "F32", "2,3", "0", "24") "," T(
        "b", "BF16", "", "26", "28") "," T("c.\\u00e9", "I8", "2", "24",
                                           "26") "," T("d", "F16", "0,4", "28", "28") "}   ";

TEST(a_sound_file_gives_every_tensor)
{
    struct buf b;
    unsigned char *copy;
    struct tensor_list tensors;
    struct error err;

    build(&b, sound, 28);
    EXPECT_OK_ERR(parse(&b, &tensors, &copy, &err), &err);
    EXPECT_EQ(tensors.count, 4);
    EXPECT_EQ(tensors.bytes, 28);
    EXPECT_STR(tensors.views[0].name, "a");
    EXPECT_EQ(tensors.views[0].dim_count, 2);
    EXPECT_EQ(tensors.views[0].dims[0], 2);
    EXPECT_EQ(tensors.views[0].dims[1], 3);
    EXPECT_EQ(tensors.views[1].dtype, DTYPE_BF16);
    EXPECT_EQ(tensors.views[1].dim_count, 1); /* a scalar */
    EXPECT_EQ(tensors.views[1].dims[0], 1);
    EXPECT_EQ(*(const unsigned char *)tensors.views[1].data, 26);
    EXPECT_EQ(name_table_find(&tensors.names, SLICE("c.\xc3\xa9")), 2);
    EXPECT_EQ(tensors.views[3].bytes, 0);
    EXPECT_EQ(safetensors_entry_offset(slice_of(copy, b.len), "b"),
              8 + strstr(sound, "\"b\":{") - sound);
    tensor_list_fini(&tensors);
    test_guarded_free(copy, b.len);
    buf_fini(&b);
}

TEST(an_empty_header_is_a_file_without_tensors)
{
    struct buf b;
    unsigned char *copy;
    struct tensor_list tensors;

    build(&b, "{}", 0);
    EXPECT_OK(parse(&b, &tensors, &copy, NULL));
    EXPECT_EQ(tensors.count, 0);
    tensor_list_fini(&tensors);
    test_guarded_free(copy, b.len);
    buf_fini(&b);
}

TEST(each_fault_is_refused_with_its_name_and_place)
{
    static const struct {
        const char *header;
        size_t data_bytes;
        enum status want;
        const char *words;
    } rows[] = {
        {"", 0, STATUS_CORRUPT, "offset 8: the header must begin with '{'"},
        {"[]", 0, STATUS_CORRUPT, "offset 8: the header must begin with '{'"},
        {" {}", 0, STATUS_CORRUPT, "must begin with '{'"},
        {"{} x", 0, STATUS_CORRUPT, "JSON, byte 3"},
        {"{\"a\":", 0, STATUS_CORRUPT, "header (from offset 8 on): JSON, byte 5"},
        {"{\"\xff\":1}", 0, STATUS_CORRUPT, "UTF-8"},
        {"{\"a\":{\"b\":{\"c\":{\"d\":{\"e\":{\"f\":{\"g\":{\"h\":{}}}}}}}}}", 0, STATUS_LIMIT,
         "nested"},
        {"{" T("a", "I8", "1", "0", "1") "," T("a", "I8", "1", "1", "2") "}", 2, STATUS_CORRUPT,
         "\"a\" stands twice"},
        {"{\"a\":{\"dtype\":\"I8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
         STATUS_CORRUPT, "\"dtype\" stands twice"},
        {"{\"a\\u0000b\":1}", 0, STATUS_CORRUPT, "NUL"},
        {"{\"a\":[]}", 0, STATUS_CORRUPT, "offset 9: tensor \"a\": its entry is no object"},
        {"{\"a\":{}}", 0, STATUS_CORRUPT, "tensor \"a\": it has no \"dtype\""},
        {"{\"a\":{\"dtype\":5}}", 0, STATUS_CORRUPT, "no \"dtype\" string"},
        {"{" T("a", "F4", "2", "0", "1") "}", 1, STATUS_UNSUPPORTED,
         "tensor \"a\": its dtype \"F4\""},
        {"{" T("a", "f32", "1", "0", "4") "}", 4, STATUS_UNSUPPORTED, "\"f32\""},
        {"{" T("a", "Q4_1", "32", "0", "20") "}", 20, STATUS_UNSUPPORTED, "\"Q4_1\""},
        {"{\"a\":{\"dtype\":\"I8\",\"data_offsets\":[0,1]}}", 1, STATUS_CORRUPT, "no \"shape\""},
        {"{\"a\":{\"dtype\":\"I8\",\"shape\":[1]}}", 1, STATUS_CORRUPT, "data_offsets must be two"},
        {"{\"a\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, STATUS_CORRUPT,
         "two integers"},
        {"{\"a\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}", 1, STATUS_CORRUPT,
         "two integers"},
        {"{" T("a", "I8", "1.0", "0", "1") "}", 1, STATUS_CORRUPT, "shape must be integers"},
        {"{" T("a", "I8", "-1", "0", "1") "}", 1, STATUS_CORRUPT, "shape must be integers"},
        {"{" T("a", "I8", "\"1\"", "0", "1") "}", 1, STATUS_CORRUPT, "shape must be integers"},
        {"{" T("a", "I8", "1e1", "0", "10") "}", 10, STATUS_CORRUPT, "shape must be integers"},
        {"{" T("a", "I8", "1,1,1,1,1", "0", "1") "}", 1, STATUS_UNSUPPORTED,
         "5 dimensions; at most 4"},
        {"{" T("a", "I8", "99999999999999999999", "0", "1") "}", 1, STATUS_CORRUPT,
         "shape must be"},
        {"{" T("a", "I8", "4294967296,4294967296", "0", "0") "}", 0, STATUS_CORRUPT, "64 bits"},
        {"{" T("a", "F32", "4611686018427387904", "0", "0") "}", 0, STATUS_CORRUPT, "64 bits"},
        {"{" T("a", "I8", "2", "0", "1") "}", 1, STATUS_CORRUPT,
         "shape and dtype make 2 bytes, data_offsets 1"},
        {"{" T("a", "I8", "1", "1", "0") "}", 1, STATUS_CORRUPT, "end (0) before they begin (1)"},
        {"{" T("a", "I8", "1", "-1", "0") "}", 1, STATUS_CORRUPT, "two integers from 0 on"},
        {"{" T("a", "I8", "1", "0.0", "1") "}", 1, STATUS_CORRUPT, "two integers from 0 on"},
        {"{" T("a", "I8", "2", "0", "2") "}", 1, STATUS_INCOMPLETE,
         "data_offsets end at 2, but the data"},
        {"{" T("a", "I8", "1", "9223372036854775806", "9223372036854775807") "}", 1,
         STATUS_INCOMPLETE, "data_offsets end at 9223372036854775807"},
        {"{" T("a", "I8", "2", "0", "2") "," T("b", "I8", "2", "1", "3") "}", 3, STATUS_CORRUPT,
         "tensor \"a\" (described at offset 9) and tensor \"b\" (at offset 61) share bytes"},
        {"{" T("a", "I8", "2", "0", "2") "," T("b", "I8", "2", "0", "2") "}", 2, STATUS_CORRUPT,
         "share"},
        {"{" T("a", "I8", "1", "0", "1") "," T("b", "I8", "1", "2", "3") "}", 3, STATUS_CORRUPT,
         "bytes that belong to no tensor"},
        {"{" T("a", "I8", "1", "1", "2") "}", 2, STATUS_CORRUPT, "bytes that belong to no tensor"},
        {"{" T("a", "I8", "1", "0", "1") "}", 2, STATUS_CORRUPT, "bytes that belong to no tensor"},
        {"{}", 1, STATUS_CORRUPT, "bytes that belong to no tensor"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf b;
        unsigned char *copy;
        struct tensor_list tensors;
        struct error err = {0};
        build(&b, rows[i].header, rows[i].data_bytes);
        enum status st = parse(&b, &tensors, &copy, &err);
        if (st != rows[i].want || err.status != st || !strstr(err.message, rows[i].words) ||
            !strstr(err.message, "x.safetensors"))
            fail_msg("%s gave '%s': %s; expected '%s': %s", rows[i].header, status_name(st),
                     err.message, status_name(rows[i].want), rows[i].words);
        tensor_list_fini(&tensors);
        test_guarded_free(copy, b.len);
        buf_fini(&b);
    }
}

TEST(a_header_length_over_the_reference_limit_or_the_file_is_refused)
{
    static const struct {
        uint64_t len;
        enum status want;
    } rows[] = {{UINT64_MAX, STATUS_LIMIT},
                {UINT64_MAX - 7, STATUS_LIMIT}, /* 8 more wraps to 0 */
                {100000001, STATUS_LIMIT},
                {100000000, STATUS_INCOMPLETE},
                {3, STATUS_INCOMPLETE}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf b;
        unsigned char *copy;
        struct tensor_list tensors;
        struct error err = {0};
        build(&b, "{}", 0);
        memcpy(b.ptr, &rows[i].len, 8);
        EXPECT_EQ(parse(&b, &tensors, &copy, &err), rows[i].want);
        EXPECT_TRUE(strstr(err.message, "offset 0: header length is"));
        tensor_list_fini(&tensors);
        test_guarded_free(copy, b.len);
        buf_fini(&b);
    }
}

TEST(every_prefix_of_a_sound_file_is_incomplete)
{
    struct buf b;

    build(&b, sound, 28);
    for (size_t whole = b.len, len = 0; len < whole; len++) {
        unsigned char *copy;
        struct tensor_list tensors;
        struct error err = {0};
        b.len = len;
        enum status st = parse(&b, &tensors, &copy, &err);
        if (st != STATUS_INCOMPLETE)
            fail_msg("%zu bytes gave '%s': %s", len, status_name(st), err.message);
        tensor_list_fini(&tensors);
        test_guarded_free(copy, b.len);
    }
    buf_fini(&b);
}

TEST(a_changed_byte_never_leads_outside_the_file)
{
    struct buf b;

    build(&b, sound, 28);
    for (size_t at = 0; at + 28 < b.len; at++) {
        char before = b.ptr[at];
        for (int t = 0; t < 96; t++) {
            unsigned char *copy;
            struct tensor_list tensors;
            b.ptr[at] = (char)(t + 0x1f);
            if (!parse(&b, &tensors, &copy, NULL))
                for (uint32_t i = 0; i < tensors.count; i++) {
                    const struct weight_view *view = &tensors.views[i];
                    EXPECT_TRUE((const unsigned char *)view->data >= copy &&
                                (const unsigned char *)view->data + view->bytes <= copy + b.len);
                }
            tensor_list_fini(&tensors);
            test_guarded_free(copy, b.len);
        }
        b.ptr[at] = before;
    }
    buf_fini(&b);
}

/* 50,000 tensors in well under a second, though a search for each would be quadratic. */
TEST(many_tensors_are_read_in_linear_time)
{
    enum { MANY = 50000 };
    struct buf header, b;
    unsigned char *copy;
    struct tensor_list tensors;
    struct error err;

    buf_init(&header, 0);
    for (int i = 0; i < MANY; i++)
        buf_printf(&header, "%c\"t%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                   i ? ',' : '{', i, i, i + 1);
    buf_append_char(&header, '}');
    build(&b, buf_cstr(&header), MANY);
    EXPECT_OK_ERR(parse(&b, &tensors, &copy, &err), &err);
    EXPECT_EQ(tensors.count, MANY);
    EXPECT_EQ(name_table_find(&tensors.names, SLICE("t49999")), 49999);
    EXPECT_EQ(name_table_find(&tensors.names, SLICE("t50000")), NAME_NONE);
    tensor_list_fini(&tensors);
    test_guarded_free(copy, b.len);
    buf_fini(&b);
    buf_fini(&header);
}
