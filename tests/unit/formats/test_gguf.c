/* test_gguf.c - a sound GGUF file is read whole, and every fault in one is refused by name and place.
 * Method: images built field by field (gguf_image.h), each ending at an unmapped page; a table of faults with
 * status and words; every proper prefix of a sound file; every byte of it changed. */
#include "test.h"

#include <stdlib.h>

#include "gguf_image.h"

enum { DATA_BYTES = 128 + 34 };

/* Parses a guarded copy of the image; *tensors and *gguf are left open on success only. */
static enum status parse(const struct buf *b, unsigned char **copy, struct gguf *gguf,
                         struct tensor_list *tensors, struct error *err)
{
    enum status st;

    EXPECT_OK(buf_status(b));
    *tensors = (struct tensor_list){0};
    *copy = test_guarded_copy(b->ptr, b->len);
    st = gguf_parse(slice_of(*copy, b->len), "x.gguf", gguf, tensors, err);
    return st;
}

static void drop(unsigned char *copy, size_t len, struct gguf *gguf, struct tensor_list *tensors)
{
    gguf_fini(gguf);
    tensor_list_fini(tensors);
    test_guarded_free(copy, len);
}

/* A sound file with a value of every type and tensors of four kinds. */
static void build_sound(struct buf *b)
{
    const uint64_t two[2] = {32, 2}, four[4] = {2, 1, 2, 1};
    const int8_t i8 = -5;
    const int16_t i16 = -500;
    const int32_t i32 = -70000;
    const int64_t i64 = INT64_MIN;
    const uint64_t u64 = UINT64_MAX;
    const float f32 = 0.5f;
    const double f64 = -0.25;
    const uint8_t yes = 1;

    put_header(b, 3, 4, 14);
    put_key_str(b, "s", "h\xc3\xa9");
    put_key_u32(b, "u32", 4000000000u);
    put_scalar(b, "u8", GGUF_U8, "\xc8", 1);
    put_scalar(b, "i8", GGUF_I8, &i8, 1);
    put_key_u16(b, "u16", 60000);
    put_scalar(b, "i16", GGUF_I16, &i16, 2);
    put_scalar(b, "i32", GGUF_I32, &i32, 4);
    put_scalar(b, "u64", GGUF_U64, &u64, 8);
    put_scalar(b, "i64", GGUF_I64, &i64, 8);
    put_scalar(b, "f32", GGUF_F32, &f32, 4);
    put_scalar(b, "f64", GGUF_F64, &f64, 8);
    put_scalar(b, "b", GGUF_BOOL, &yes, 1);
    put_array(b, "words", GGUF_STRING, 3);
    put_str(b, "one");
    put_str(b, "");
    put_str(b, "\xff");
    put_array(b, "pair", GGUF_I32, 2);
    put_u32(b, 7);
    put_u32(b, (uint32_t)-7);
    put_tensor(b, "a", 3, 2, two, 0);          /* Q4_1: 2 rows of 20 bytes */
    put_tensor(b, "b.weight", 1, 4, four, 64); /* F16: 8 bytes */
    put_1d(b, "c", 0, 8, 96);                  /* F32: 32 bytes */
    put_1d(b, "d", 8, 32, 128);                /* Q8_0: 34 bytes, to the end of the file */
    put_data(b, 32, DATA_BYTES);
}

TEST(a_sound_file_gives_every_value_and_tensor)
{
    struct buf b;
    unsigned char *copy;
    struct gguf gguf;
    struct tensor_list tensors;
    struct error err;
    int64_t i;
    uint64_t u;
    double f;
    bool flag;
    struct slice s;

    buf_init(&b, 0);
    build_sound(&b);
    EXPECT_OK_ERR(parse(&b, &copy, &gguf, &tensors, &err), &err);
    EXPECT_EQ(gguf.keys.count, 14);
    EXPECT_OK(gguf_str(gguf_find(&gguf, SLICE("s")), 0, &s));
    EXPECT_TRUE(slice_eq(s, SLICE("h\xc3\xa9")));
    EXPECT_OK(gguf_u64(gguf_find(&gguf, SLICE("u32")), 0, &u));
    EXPECT_EQ(u, 4000000000u);
    EXPECT_OK(gguf_u64(gguf_find(&gguf, SLICE("u8")), 0, &u));
    EXPECT_EQ(u, 200);
    EXPECT_OK(gguf_i64(gguf_find(&gguf, SLICE("i8")), 0, &i));
    EXPECT_EQ(i, -5);
    EXPECT_EQ(gguf_u64(gguf_find(&gguf, SLICE("i8")), 0, &u), STATUS_INVALID);
    EXPECT_OK(gguf_i64(gguf_find(&gguf, SLICE("u16")), 0, &i));
    EXPECT_EQ(i, 60000);
    EXPECT_OK(gguf_f64(gguf_find(&gguf, SLICE("i16")), 0, &f));
    EXPECT_TRUE(f == -500);
    EXPECT_OK(gguf_i64(gguf_find(&gguf, SLICE("i32")), 0, &i));
    EXPECT_EQ(i, -70000);
    EXPECT_OK(gguf_u64(gguf_find(&gguf, SLICE("u64")), 0, &u));
    EXPECT_TRUE(u == UINT64_MAX);
    EXPECT_EQ(gguf_i64(gguf_find(&gguf, SLICE("u64")), 0, &i), STATUS_INVALID);
    EXPECT_OK(gguf_i64(gguf_find(&gguf, SLICE("i64")), 0, &i));
    EXPECT_TRUE(i == INT64_MIN);
    EXPECT_OK(gguf_f64(gguf_find(&gguf, SLICE("f32")), 0, &f));
    EXPECT_TRUE(f == 0.5);
    EXPECT_OK(gguf_f64(gguf_find(&gguf, SLICE("f64")), 0, &f));
    EXPECT_TRUE(f == -0.25);
    EXPECT_EQ(gguf_i64(gguf_find(&gguf, SLICE("f64")), 0, &i), STATUS_INVALID);
    EXPECT_EQ(gguf_str(gguf_find(&gguf, SLICE("f64")), 0, &s), STATUS_INVALID);
    EXPECT_OK(gguf_bool(gguf_find(&gguf, SLICE("b")), 0, &flag));
    EXPECT_TRUE(flag);
    EXPECT_EQ(gguf_u64(gguf_find(&gguf, SLICE("b")), 0, &u), STATUS_INVALID);
    EXPECT_OK(gguf_str(gguf_find(&gguf, SLICE("words")), 1, &s));
    EXPECT_EQ(s.len, 0);
    EXPECT_EQ(gguf_str(gguf_find(&gguf, SLICE("words")), 2, &s), STATUS_CORRUPT);
    EXPECT_OK(gguf_i64(gguf_find(&gguf, SLICE("pair")), 1, &i));
    EXPECT_EQ(i, -7);
    EXPECT_TRUE(gguf_find(&gguf, SLICE("nothing")) == NULL);

    EXPECT_EQ(tensors.count, 4);
    EXPECT_EQ(tensors.bytes, 40 + 8 + 32 + 34);
    EXPECT_STR(tensors.views[1].name, "b.weight");
    EXPECT_EQ(tensors.views[0].dims[0], 2); /* turned round: rows first */
    EXPECT_EQ(tensors.views[0].dims[1], 32);
    EXPECT_EQ(tensors.views[0].dtype, DTYPE_Q4_1);
    EXPECT_EQ(*(const unsigned char *)tensors.views[2].data, 96);
    EXPECT_EQ((uintptr_t)((const unsigned char *)tensors.views[3].data - copy) % 32, 0);
    drop(copy, b.len, &gguf, &tensors);
    buf_fini(&b);
}

/* --- faults --- */

static void bad_magic(struct buf *b)
{
    buf_append(b, "GGML\3\0\0\0", 8);
}

static void version_1(struct buf *b)
{
    put_header(b, 1, 0, 0);
}

static void version_4(struct buf *b)
{
    put_header(b, 4, 0, 0);
}

static void big_endian(struct buf *b)
{
    put_header(b, 0x03000000, 0, 0);
}

static void keys_2_61(struct buf *b)
{
    put_header(b, 3, 0, (uint64_t)1 << 61);
}

static void tensors_2_62(struct buf *b)
{
    put_header(b, 3, (uint64_t)1 << 62, 0);
}

static void key_length_2_63(struct buf *b)
{
    put_header(b, 3, 0, 1);
    put_u64(b, (uint64_t)1 << 63);
    put_data(b, 1, 40);
}

static void key_of_70000_bytes(struct buf *b)
{
    put_header(b, 3, 0, 1);
    put_u64(b, 70000);
    for (int i = 0; i < 70000; i++)
        buf_append_char(b, 'k');
    put_data(b, 1, 40);
}

static void key_empty(struct buf *b)
{
    put_header(b, 3, 0, 1);
    put_key_u32(b, "", 1);
}

static void key_not_utf8(struct buf *b)
{
    put_header(b, 3, 0, 1);
    put_key_u32(b, "k\xff", 1);
}

static void key_with_nul(struct buf *b)
{
    put_header(b, 3, 0, 1);
    put_slice(b, SLICE("k\0x"));
    put_u32(b, GGUF_U32);
    put_u32(b, 1);
}

static void key_twice(struct buf *b)
{
    put_header(b, 3, 0, 2);
    put_key_u32(b, "general.k", 1);
    put_key_u32(b, "general.k", 2);
}

static void value_type_13(struct buf *b)
{
    put_header(b, 3, 0, 1);
    put_scalar(b, "k", 13, "\0\0\0\0", 4);
}

static void array_type_99(struct buf *b)
{
    put_header(b, 3, 0, 1);
    put_array(b, "k", 99, 1);
    put_u32(b, 1);
}

static void array_of_arrays(struct buf *b)
{
    put_header(b, 3, 0, 1);
    put_array(b, "k", GGUF_ARRAY, 1);
    put_u32(b, GGUF_U8);
    put_u64(b, 1);
    buf_append(b, "x", 1);
}

static void array_of_2_62_strings(struct buf *b)
{
    put_header(b, 3, 0, 1);
    put_array(b, "k", GGUF_STRING, (uint64_t)1 << 62);
    put_u32(b, 1);
}

static void array_of_2_62_longs(struct buf *b) /* 8 times the count wraps to 0 */
{
    put_header(b, 3, 0, 1);
    put_array(b, "k", GGUF_U64, (uint64_t)1 << 61);
    put_u32(b, 1);
}

static void array_string_too_long(struct buf *b)
{
    put_header(b, 3, 0, 1);
    put_array(b, "k", GGUF_STRING, 2);
    put_str(b, "x");
    put_u64(b, UINT64_MAX);
    put_data(b, 1, 20);
}

static void alignment_0(struct buf *b)
{
    put_header(b, 3, 0, 1);
    put_key_u32(b, "general.alignment", 0);
}

static void alignment_48(struct buf *b)
{
    put_header(b, 3, 0, 1);
    put_key_u32(b, "general.alignment", 48);
}

static void alignment_text(struct buf *b)
{
    put_header(b, 3, 0, 1);
    put_key_str(b, "general.alignment", "32");
}

static void alignment_array(struct buf *b)
{
    put_header(b, 3, 0, 1);
    put_array(b, "general.alignment", GGUF_U32, 0);
    put_data(b, 1, 8);
}

static void one_tensor(struct buf *b, const char *name, uint32_t type, uint32_t dim_count,
                       const uint64_t *dims, uint64_t offset)
{
    put_header(b, 3, 1, 0);
    put_tensor(b, name, type, dim_count, dims, offset);
    put_data(b, 32, 4096);
}

static void no_dims(struct buf *b)
{
    one_tensor(b, "t", 0, 0, NULL, 0);
}

static void five_dims(struct buf *b)
{
    one_tensor(b, "t", 0, 5, (const uint64_t[]){1, 1, 1, 1, 1}, 0);
}

static void dim_0(struct buf *b)
{
    one_tensor(b, "t", 0, 2, (const uint64_t[]){4, 0}, 0);
}

static void dims_wrap(struct buf *b) /* 2^32 * 2^32 is 0 in 64 bits */
{
    one_tensor(b, "t", 0, 2, (const uint64_t[]){(uint64_t)1 << 32, (uint64_t)1 << 32}, 0);
}

static void bytes_wrap(struct buf *b) /* the count fits, four bytes each do not */
{
    one_tensor(b, "t", 0, 1, (const uint64_t[]){(uint64_t)1 << 62}, 0);
}

static void part_of_a_block(struct buf *b)
{
    one_tensor(b, "t", 2, 2, (const uint64_t[]){33, 32}, 0);
}

static void type_4(struct buf *b)
{
    one_tensor(b, "t", 4, 1, (const uint64_t[]){32}, 0);
}

static void offset_odd(struct buf *b)
{
    one_tensor(b, "t", 0, 1, (const uint64_t[]){8}, 8);
}

static void offset_past_end(struct buf *b)
{
    one_tensor(b, "t", 0, 1, (const uint64_t[]){8}, (uint64_t)1 << 40);
}

static void offset_wraps(struct buf *b)
{
    one_tensor(b, "t", 0, 1, (const uint64_t[]){8}, UINT64_MAX - 31);
}

static void data_too_short(struct buf *b)
{
    one_tensor(b, "t", 0, 1, (const uint64_t[]){1025}, 0);
}

static void name_of_65_bytes(struct buf *b)
{
    one_tensor(b, "ttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttt", 0, 1,
               (const uint64_t[]){8}, 0);
}

static void name_empty(struct buf *b)
{
    one_tensor(b, "", 0, 1, (const uint64_t[]){8}, 0);
}

static void name_twice(struct buf *b)
{
    put_header(b, 3, 2, 0);
    put_1d(b, "t", 0, 8, 0);
    put_1d(b, "t", 0, 8, 32);
    put_data(b, 32, 64);
}

static void overlap(struct buf *b)
{
    put_header(b, 3, 3, 0);
    put_1d(b, "u", 0, 8, 64);
    put_1d(b, "v", 0, 9, 32);
    put_1d(b, "w", 0, 8, 0);
    put_data(b, 32, 128);
}

static void same_bytes(struct buf *b)
{
    put_header(b, 3, 2, 0);
    put_1d(b, "u", 0, 8, 0);
    put_1d(b, "v", 0, 8, 0);
    put_data(b, 32, 128);
}

TEST(each_fault_is_refused_with_its_name_and_place)
{
    static const struct {
        void (*build)(struct buf *);
        enum status want;
        const char *words;
    } rows[] = {
        {bad_magic, STATUS_CORRUPT, "x.gguf: offset 0: magic"},
        {version_1, STATUS_UNSUPPORTED, "offset 4: version 1"},
        {version_4, STATUS_UNSUPPORTED, "offset 4: version is 4; 2 and 3 are known"},
        {big_endian, STATUS_UNSUPPORTED, "big-endian"},
        {keys_2_61, STATUS_CORRUPT, "offset 16: kv_count"},
        {tensors_2_62, STATUS_CORRUPT, "offset 8: tensor_count"},
        {key_length_2_63, STATUS_INCOMPLETE, "offset 24: key of 9223372036854775808 bytes"},
        {key_of_70000_bytes, STATUS_LIMIT, "offset 24: key of 70000 bytes; at most 65535"},
        {key_empty, STATUS_CORRUPT, "offset 24: key is empty"},
        {key_not_utf8, STATUS_CORRUPT, "offset 24: key"},
        {key_with_nul, STATUS_CORRUPT, "offset 24: key"},
        {key_twice, STATUS_CORRUPT,
         "offset 49: key \"general.k\" is there a second time (first at offset 24)"},
        {value_type_13, STATUS_CORRUPT, "offset 33: key \"k\": value type 13"},
        {array_type_99, STATUS_CORRUPT, "key \"k\": value type 99"},
        {array_of_arrays, STATUS_UNSUPPORTED, "key \"k\": arrays of arrays"},
        {array_of_2_62_strings, STATUS_INCOMPLETE, "key \"k\": an array of 4611686018427387904"},
        {array_of_2_62_longs, STATUS_INCOMPLETE, "key \"k\": an array of 2305843009213693952"},
        {array_string_too_long, STATUS_INCOMPLETE,
         "key \"k\": string 1 has 18446744073709551615 bytes"},
        {alignment_0, STATUS_CORRUPT, "offset 24: general.alignment must be a power of two"},
        {alignment_48, STATUS_CORRUPT, "general.alignment"},
        {alignment_text, STATUS_CORRUPT, "general.alignment"},
        {alignment_array, STATUS_CORRUPT, "general.alignment"},
        {no_dims, STATUS_CORRUPT, "offset 33: tensor \"t\" has 0 dimensions; 1 to 4 are right"},
        {five_dims, STATUS_CORRUPT, "tensor \"t\" has 5 dimensions"},
        {dim_0, STATUS_CORRUPT, "tensor \"t\" has a dimension of 0"},
        {dims_wrap, STATUS_CORRUPT,
         "offset 24: tensor \"t\": its dimensions multiply to more bytes"},
        {bytes_wrap, STATUS_CORRUPT, "tensor \"t\": its dimensions multiply to more bytes"},
        {part_of_a_block, STATUS_CORRUPT, "tensor \"t\": its rows are no whole number of blocks"},
        {type_4, STATUS_UNSUPPORTED, "tensor \"t\" is of ggml type 4"},
        {offset_odd, STATUS_CORRUPT, "tensor \"t\": offset 8 is no multiple of 32"},
        {offset_past_end, STATUS_INCOMPLETE, "tensor \"t\": its 32 bytes from 1099511627776 on"},
        {offset_wraps, STATUS_INCOMPLETE, "tensor \"t\": its 32 bytes"},
        {data_too_short, STATUS_INCOMPLETE,
         "tensor \"t\": its 4100 bytes from 0 on are not all there"},
        {name_of_65_bytes, STATUS_LIMIT, "tensor name of 65 bytes; at most 64"},
        {name_empty, STATUS_CORRUPT, "tensor name is empty"},
        {name_twice, STATUS_CORRUPT, "tensor \"t\" is there a second time"},
        {overlap, STATUS_CORRUPT,
         "tensor \"v\" (described at offset 57) and tensor \"u\" (at offset 24) share"},
        {same_bytes, STATUS_CORRUPT, "share bytes"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf b;
        unsigned char *copy;
        struct gguf gguf;
        struct tensor_list tensors;
        struct error err = {0};
        buf_init(&b, 0);
        rows[i].build(&b);
        enum status st = parse(&b, &copy, &gguf, &tensors, &err);
        if (st != rows[i].want || err.status != st || !strstr(err.message, rows[i].words))
            fail_msg("row %zu gave '%s': %s; expected '%s': %s", i, status_name(st), err.message,
                     status_name(rows[i].want), rows[i].words);
        drop(copy, b.len, &gguf, &tensors);
        buf_fini(&b);
    }
}

/* Cut anywhere, a sound file is incomplete: never taken, never called wrong. */
TEST(every_prefix_of_a_sound_file_is_incomplete)
{
    struct buf b;

    buf_init(&b, 0);
    build_sound(&b);
    size_t whole = b.len;
    for (b.len = 0; b.len < whole; b.len++) {
        unsigned char *copy;
        struct gguf gguf;
        struct tensor_list tensors;
        struct error err = {0};
        enum status st = parse(&b, &copy, &gguf, &tensors, &err);
        /* a count that the rest of the file cannot hold is called corrupt */
        if (st != STATUS_INCOMPLETE && !(st == STATUS_CORRUPT && strstr(err.message, "_count is")))
            fail_msg("%zu of %zu bytes gave '%s': %s", b.len, whole, status_name(st), err.message);
        drop(copy, b.len, &gguf, &tensors);
    }
    buf_fini(&b);
}

/* Each byte of the directory changed to 0, 1, 0x7f, 0x80, 0xff and by each bit: whatever the outcome, no
 * access leaves the file (the unmapped page, and the sanitizers) and each tensor lies inside it. */
TEST(a_changed_byte_never_leads_outside_the_file)
{
    static const unsigned char tries[] = {0, 1, 0x7f, 0x80, 0xff};
    struct buf b;

    buf_init(&b, 0);
    build_sound(&b);
    for (size_t at = 0; at + DATA_BYTES < b.len; at++) {
        char before = b.ptr[at];
        for (int t = 0; t < 13; t++) {
            unsigned char *copy;
            struct gguf gguf;
            struct tensor_list tensors;
            b.ptr[at] = (char)(t < 5 ? tries[t] : before ^ (1 << (t - 5)));
            if (!parse(&b, &copy, &gguf, &tensors, NULL)) {
                for (uint32_t i = 0; i < tensors.count; i++) {
                    const struct weight_view *view = &tensors.views[i];
                    EXPECT_TRUE((const unsigned char *)view->data >= copy &&
                                (const unsigned char *)view->data + view->bytes <= copy + b.len);
                }
                struct buf text;
                buf_init(&text, 0);
                for (uint32_t i = 0; i < gguf.keys.count; i++)
                    gguf_value_text(&gguf.values[i], &text);
                buf_fini(&text);
            }
            drop(copy, b.len, &gguf, &tensors);
        }
        b.ptr[at] = before;
    }
    buf_fini(&b);
}

TEST(values_print_as_short_text)
{
    static const struct {
        const char *key, *text;
    } rows[] = {{"s", "\"h\xc3\xa9\""},
                {"u32", "4000000000"},
                {"u64", "18446744073709551615"},
                {"i64", "-9223372036854775808"},
                {"f64", "-0.25"},
                {"b", "true"},
                {"words", "[3] \"one\", \"\", \"(not UTF-8)\""},
                {"pair", "[2] 7, -7"}};
    struct buf b, text;
    unsigned char *copy;
    struct gguf gguf;
    struct tensor_list tensors;

    buf_init(&b, 0);
    buf_init(&text, 0);
    build_sound(&b);
    EXPECT_OK(parse(&b, &copy, &gguf, &tensors, NULL));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        buf_clear(&text);
        gguf_value_text(gguf_find(&gguf, slice_str(rows[i].key)), &text);
        EXPECT_STR(buf_cstr(&text), rows[i].text);
    }
    drop(copy, b.len, &gguf, &tensors);
    buf_fini(&text);
    buf_fini(&b);
}
