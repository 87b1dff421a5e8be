/* test_tokenizer_golden.c - ids, decoded text and streamed pieces equal Hugging Face tokenizers'.
 *
 * Method: every line of tests/golden/tokenizer_vectors (made by make_tokenizer_vectors.py with
 * tokenizers 0.23.3) through tokenizer_encode, tokenizer_decode and struct detok. Long id lists are
 * compared by length, ends and SHA-256, as they stand there. */
#include "test.h"

#include <jansson.h>
#include <stdlib.h>

#include "text/detok.h"
#include "text_fixture.h"

/* --- SHA-256 (FIPS 180-4), for the id lists that the vectors give by hash --- */

static uint32_t rotate(uint32_t x, unsigned n)
{
    return x >> n | x << (32 - n);
}

static void sha256_block(uint32_t state[8], const uint8_t *block, const uint32_t k[64])
{
    uint32_t w[64], v[8];

    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + w[i - 7] +
               (rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3) +
               (rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t a = v[7] + (rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25)) +
                     ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
        uint32_t b = (rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22)) +
                     ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += a;
        v[0] = a + b;
    }
    for (int i = 0; i < 8; i++)
        state[i] += v[i];
}

/* The first 32 bits of the fractional parts of the roots of the first primes. */
static uint32_t root_bits(unsigned prime, int cube)
{
    long double x = prime, root = prime;

    for (int i = 0; i < 200; i++)
        root = cube ? root - (root * root * root - x) / (3 * root * root)
                    : root - (root * root - x) / (2 * root);
    return (uint32_t)(uint64_t)((root - (long double)(unsigned)root) * 4294967296.0L);
}

static void sha256_hex(const uint8_t *bytes, size_t len, char hex[65])
{
    uint32_t k[64], state[8];
    unsigned found = 0;
    size_t padded = (len + 9 + 63) / 64 * 64;
    uint8_t *message = calloc(padded, 1);

    for (unsigned n = 2; found < 64; n++) {
        unsigned d = 2;
        while (d * d <= n && n % d)
            d++;
        if (d * d <= n) continue;
        k[found] = root_bits(n, 1);
        if (found < 8) state[found] = root_bits(n, 0);
        found++;
    }
    memcpy(message, bytes, len);
    message[len] = 0x80;
    for (int i = 0; i < 8; i++)
        message[padded - 1 - i] = (uint8_t)((uint64_t)len * 8 >> 8 * i);
    for (size_t at = 0; at < padded; at += 64)
        sha256_block(state, message + at, k);
    free(message);
    for (int i = 0; i < 8; i++)
        snprintf(hex + 8 * i, 9, "%08x", state[i]);
}

/* --- comparing --- */

static int same_ids(const json_t *want, const int32_t *ids, size_t count)
{
    if (json_array_size(want) != count) return 0;
    for (size_t i = 0; i < count; i++)
        if (json_integer_value(json_array_get(want, i)) != ids[i]) return 0;
    return 1;
}

static void expect_ids(const char *name, long line, const json_t *row, const char *field,
                       const struct token_list *ids)
{
    char hex[65];

    if (json_object_get(row, field)) {
        if (same_ids(json_object_get(row, field), ids->ids, ids->count)) return;
        fprintf(stderr, "%s line %ld: %s wanted", name, line, field);
        for (size_t i = 0; i < json_array_size(json_object_get(row, field)) && i < 40; i++)
            fprintf(stderr, " %lld",
                    json_integer_value(json_array_get(json_object_get(row, field), i)));
        fprintf(stderr, "\n got");
        for (size_t i = 0; i < ids->count && i < 40; i++)
            fprintf(stderr, " %d", ids->ids[i]);
        fprintf(stderr, "\n");
        fail_msg("%s line %ld: other ids", name, line);
    }
    EXPECT_EQ(ids->count, json_integer_value(json_object_get(row, "ids_len")));
    EXPECT_TRUE(same_ids(json_object_get(row, "ids_head"), ids->ids, 16));
    EXPECT_TRUE(same_ids(json_object_get(row, "ids_tail"), ids->ids + ids->count - 16, 16));
    sha256_hex((const uint8_t *)ids->ids, ids->count * sizeof *ids->ids, hex);
    EXPECT_STR(hex, json_string_value(json_object_get(row, "ids_sha256")));
}

static void expect_text(const char *name, long line, const char *what, const json_t *want,
                        struct buf *got)
{
    if (json_string_length(want) == got->len &&
        memcmp(json_string_value(want), buf_cstr(got), got->len) == 0)
        return;
    fail_msg("%s line %ld: %s is \"%s\"; expected \"%s\"", name, line, what, buf_cstr(got),
             json_string_value(want));
}

static void check_decode(const struct tokenizer *tok, const char *name, long line,
                         const json_t *row, const struct token_list *ids, const char *field)
{
    struct buf text;

    buf_init(&text, 0);
    EXPECT_OK(tokenizer_decode(tok, ids->ids, ids->count, strcmp(field, "decode") != 0, &text));
    expect_text(name, line, field, json_object_get(row, field), &text);
    buf_fini(&text);
}

/* The text as a copy that ends at an unmapped page. */
static void encode_row(const struct tokenizer *tok, const json_t *row, unsigned flags,
                       struct token_list *ids)
{
    const json_t *text = json_object_get(row, "text");
    size_t len = json_string_length(text);
    unsigned char *copy = test_guarded_copy(json_string_value(text), len);

    flags |= json_is_true(json_object_get(row, "add_special")) ? TOKENIZE_ADD_SPECIAL : 0u;
    flags |= json_is_true(json_object_get(row, "parse_special")) ? TOKENIZE_PARSE_SPECIAL : 0u;
    EXPECT_OK(tokenizer_encode(tok, slice_of(copy, len), flags, NULL, 0, ids));
    test_guarded_free(copy, len);
}

static void check_row(const struct tokenizer *tok, const char *name, long line, const json_t *row)
{
    struct token_list ids = {0}, bare = {0};

    encode_row(tok, row, 0, &ids);
    expect_ids(name, line, row, "ids", &ids);
    check_decode(tok, name, line, row, &ids, "decode");
    check_decode(tok, name, line, row, &ids, "decode_skip_special");
    if (json_object_get(row, "ids_no_added")) {
        encode_row(tok, row, TOKENIZE_NO_ADDED, &bare);
        expect_ids(name, line, row, "ids_no_added", &bare);
    }
    token_list_fini(&ids);
    token_list_fini(&bare);
}

static void check_stream_row(const struct tokenizer *tok, const char *name, long line,
                             const json_t *row)
{
    const json_t *ids = json_object_get(row, "ids"), *pieces = json_object_get(row, "pieces");
    struct detok d;
    struct buf text;

    buf_init(&text, 0);
    detok_init(&d, tok, json_is_true(json_object_get(row, "skip_special")));
    for (size_t i = 0; i < json_array_size(ids); i++, buf_clear(&text)) {
        detok_push(&d, (int32_t)json_integer_value(json_array_get(ids, i)), &text);
        expect_text(name, line, "a piece", json_array_get(pieces, i), &text);
    }
    detok_flush(&d, &text);
    expect_text(name, line, "the flush", json_object_get(row, "flush"), &text);
    buf_fini(&text);
}

static void each_line(const struct tokenizer *tok, const char *name, const char *suffix,
                      void (*check)(const struct tokenizer *, const char *, long, const json_t *))
{
    char relative[256], *line = NULL;
    size_t cap = 0;
    int pipe;
    long number = 0;

    snprintf(relative, sizeof relative, "tokenizer_vectors/%s%s", name, suffix);
    FILE *file = fixture_lines(relative, &pipe);
    EXPECT_TRUE(file != NULL);
    for (; getline(&line, &cap, file) > 0; number++) {
        json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL);
        EXPECT_TRUE(row != NULL);
        check(tok, name, number + 1, row);
        json_decref(row);
    }
    EXPECT_TRUE(number > 30);
    fixture_close(file, pipe);
    free(line);
}

static void check_vectors(struct tokenizer *tok, const char *name)
{
    if (!tok) {
        fprintf(stderr, "skipped: the tokenizer %s is not there\n", name);
        skip();
    }
    each_line(tok, name, ".jsonl", check_row);
    each_line(tok, name, ".stream.jsonl", check_stream_row);
    tokenizer_close(tok);
}

static void check_all(const char *name)
{
    check_vectors(fixture_tokenizer(name), name);
}

TEST(llama3_1_equals_the_vectors)
{
    check_all("llama3_1");
}

TEST(qwen3_equals_the_vectors)
{
    check_all("qwen3");
}

TEST(deepseek_v3_equals_the_vectors)
{
    check_all("deepseek_v3");
}

TEST(mistral_v1_equals_the_vectors)
{
    check_all("mistral_v1");
}

TEST(smollm2_from_its_gguf_equals_the_vectors)
{
    check_all("smollm2");
}

TEST(the_same_tokenizers_from_gguf_metadata_equal_the_vectors)
{
    check_vectors(fixture_tokenizer_as_gguf("llama3_1", "llama-bpe", 128000), "llama3_1");
    check_vectors(fixture_tokenizer_as_gguf("qwen3", "qwen2", -1), "qwen3");
    check_vectors(fixture_tokenizer_as_gguf("deepseek_v3", "deepseek-v3", 0), "deepseek_v3");
}

TEST(sentencepiece_merges_from_scores_equal_the_vectors)
{
    check_vectors(fixture_tokenizer_as_gguf("mistral_v1", NULL, 1), "mistral_v1");
}
