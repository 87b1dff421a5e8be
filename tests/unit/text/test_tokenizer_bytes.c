/* test_tokenizer_bytes.c - the built-in tokenizer: a token is a byte, and ids and text are each other's exact image.
 *
 * Method: every byte by itself; random well-formed texts of all lengths beside their own bytes; the end token where it is
 * read and where it is not; pieces of a stream; what a folder without a tokenizer is told. */
#include "test.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/utf8.h"
#include "formats/weights.h"
#include "text/chat.h"
#include "text/detok.h"
#include "text/tokenizer.h"

static struct tokenizer *open_bytes(void)
{
    struct tokenizer *tok = NULL;
    struct error err;

    EXPECT_OK_ERR(tokenizer_open_bytes(&tok, &err), &err);
    return tok;
}

TEST(each_byte_is_its_own_token)
{
    struct tokenizer *tok = open_bytes();
    uint32_t ends;

    EXPECT_EQ(tokenizer_vocab_size(tok), 257);
    for (int id = 0; id < 256; id++) {
        struct slice bytes = tokenizer_token_bytes(tok, id);
        EXPECT_EQ(bytes.len, 1);
        EXPECT_EQ((uint8_t)bytes.ptr[0], id);
        EXPECT_TRUE(!tokenizer_is_special(tok, id) && !tokenizer_is_added(tok, id));
    }
    EXPECT_TRUE(
        slice_eq(tokenizer_token_bytes(tok, TOKENIZER_BYTES_END), SLICE(TOKENIZER_BYTES_END_TEXT)));
    EXPECT_TRUE(tokenizer_is_special(tok, TOKENIZER_BYTES_END));
    EXPECT_EQ(tokenizer_find(tok, SLICE(TOKENIZER_BYTES_END_TEXT)), TOKENIZER_BYTES_END);
    EXPECT_EQ(tokenizer_eos(tok), TOKENIZER_BYTES_END);
    EXPECT_EQ(tokenizer_eos_list(tok, &ends)[0], TOKENIZER_BYTES_END);
    EXPECT_EQ(ends, 1);
    EXPECT_EQ(tokenizer_bos(tok), -1);
    EXPECT_TRUE(!tokenizer_adds_bos(tok));
    tokenizer_close(tok);
}

/* A character of one to four bytes, no surrogate. */
static void append_random(struct buf *text)
{
    static const uint32_t ranges[][2] = {
        {0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, 0x10ffff}};
    const uint32_t *r = ranges[test_rand() % 5];
    uint32_t c = r[0] + (uint32_t)(test_rand() % (r[1] - r[0] + 1));

    if (c < 0x80) {
        buf_append_char(text, (char)c);
        return;
    }
    int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    buf_append_char(text, (char)((more == 1 ? 0xc0 : more == 2 ? 0xe0 : 0xf0) | c >> (6 * more)));
    while (more--)
        buf_append_char(text, (char)(0x80 | (c >> (6 * more) & 0x3f)));
}

TEST(ids_of_a_text_are_its_bytes_and_give_it_back)
{
    struct tokenizer *tok = open_bytes();
    const unsigned flags = TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL;

    for (size_t round = 0; round < 200; round++) {
        const size_t chars = round < 100 ? round : test_rand() % 20000;
        struct token_list ids = {0};
        struct buf text, back;
        buf_init(&text, 0), buf_init(&back, 0);
        for (size_t i = 0; i < chars; i++)
            append_random(&text);
        EXPECT_TRUE(utf8_valid(buf_slice(&text)));
        EXPECT_OK(tokenizer_encode(tok, buf_slice(&text), flags, NULL, 0, &ids));
        EXPECT_EQ(ids.count, text.len);
        for (size_t i = 0; i < ids.count; i++)
            EXPECT_EQ(ids.ids[i], (uint8_t)text.ptr[i]);
        EXPECT_OK(tokenizer_decode(tok, ids.ids, ids.count, true, &back));
        EXPECT_TRUE(slice_eq(buf_slice(&text), buf_slice(&back)));
        token_list_fini(&ids);
        buf_fini(&text), buf_fini(&back);
    }
    tokenizer_close(tok);
}

static void expect_count(const struct tokenizer *tok, const char *text, unsigned flags,
                         const struct text_range *untrusted, size_t count)
{
    struct token_list ids = {0};

    EXPECT_OK(tokenizer_encode(tok, slice_str(text), flags, untrusted, untrusted ? 1 : 0, &ids));
    EXPECT_EQ(ids.count, count);
    token_list_fini(&ids);
}

TEST(the_end_is_read_as_a_token_only_where_it_may_be)
{
    struct tokenizer *tok = open_bytes();
    const char text[] = "a" TOKENIZER_BYTES_END_TEXT "b";
    const struct text_range all = {0, sizeof text - 1};

    expect_count(tok, text, TOKENIZE_PARSE_SPECIAL, NULL, 3);
    expect_count(tok, text, 0, NULL, sizeof text - 1);
    expect_count(tok, text, TOKENIZE_PARSE_SPECIAL | TOKENIZE_NO_ADDED, NULL, sizeof text - 1);
    expect_count(tok, text, TOKENIZE_PARSE_SPECIAL, &all, sizeof text - 1);
    tokenizer_close(tok);
}

TEST(pieces_of_any_ids_are_whole_characters)
{
    struct tokenizer *tok = open_bytes();

    for (int round = 0; round < 1000; round++) {
        struct detok d;
        struct buf piece;
        detok_init(&d, tok, true);
        buf_init(&piece, 0);
        for (int i = 0; i < 64; i++) {
            detok_push(&d, (int32_t)(test_rand() % 257), &piece);
            EXPECT_TRUE(utf8_valid(buf_slice(&piece)));
            buf_clear(&piece);
        }
        detok_flush(&d, &piece);
        EXPECT_TRUE(utf8_valid(buf_slice(&piece)));
        buf_fini(&piece);
    }
    tokenizer_close(tok);
}

TEST(ids_outside_are_refused)
{
    struct tokenizer *tok = open_bytes();
    const int32_t wrong[] = {-1, 257};
    struct buf out;

    buf_init(&out, 0);
    for (int i = 0; i < 2; i++)
        EXPECT_EQ(tokenizer_decode(tok, &wrong[i], 1, true, &out), STATUS_INVALID);
    EXPECT_EQ(out.len, 0);
    buf_fini(&out);
    tokenizer_close(tok);
}

/* A folder with a config.json only, as those of configs/models: the built-in tokenizer is nobody's by itself. */
TEST(a_folder_without_a_tokenizer_is_told_what_would_be_right)
{
    char folder[] = "/tmp/inferd-test-XXXXXX", path[64];
    struct weights *weights = NULL;
    struct tokenizer *tok = NULL;
    struct error err;

    EXPECT_TRUE(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *file = fopen(path, "w");
    fputs("{\"eos_token_id\": 0}", file);
    fclose(file);
    EXPECT_OK_ERR(weights_open(folder, WEIGHTS_CONFIG_ONLY, &weights, &err), &err);
    EXPECT_EQ(tokenizer_open(weights, &tok, &err), STATUS_NOT_FOUND);
    EXPECT_TRUE(tok == NULL && err.status == STATUS_NOT_FOUND);
    EXPECT_TRUE(strstr(err.message, folder) != NULL);
    EXPECT_TRUE(strstr(err.message, "has no tokenizer.json") != NULL);
    EXPECT_TRUE(strstr(err.message, "--load-format dummy") != NULL);

    tok = open_bytes(); /* and with it a conversation passes through the plain template */
    struct chat *chat = NULL;
    struct token_list ids = {0};
    struct buf text;
    json_t *messages =
        json_loads("[{\"role\": \"user\", \"content\": \"h\\u00e9\"}, "
                   "{\"role\": \"system\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, "
                   "{\"type\": \"text\", \"text\": \"b\"}]}, "
                   "{\"role\": \"assistant\", \"content\": null}]",
                   0, NULL);
    struct chat_request request = {.messages = messages, .add_generation_prompt = true};
    buf_init(&text, 0);
    EXPECT_OK_ERR(chat_open(weights, tok, slice_str(chat_plain_template), &chat, &err), &err);
    EXPECT_OK_ERR(chat_encode(chat, &request, &ids, &text, &err), &err);
    EXPECT_STR(buf_cstr(&text), "user: h\xc3\xa9\nsystem: ab\nassistant: \nassistant: ");
    EXPECT_EQ(ids.count, text.len);
    buf_fini(&text);
    token_list_fini(&ids);
    json_decref(messages);
    chat_close(chat);
    tokenizer_close(tok);
    weights_close(weights);
    unlink(path);
    rmdir(folder);
}
