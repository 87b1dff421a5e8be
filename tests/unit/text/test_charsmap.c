/* test_charsmap.c - SentencePiece's table of replacements is read as both of its readers read it, and never beyond its end.
 *
 * Method: tables made here with a builder that spends 256 units on a node, beside a plain search of the list of
 * sequences; tables with bytes changed at random, which must be refused or read without a fault; and a model that
 * SentencePiece trained (tests/golden/unigram, made by tests/tools/compare_tokenizers.py --write with sentencepiece 0.2.3
 * and tokenizers 0.23.3), as tokenizer.json against `tokenizers` and as GGUF against SentencePiece. */
#include "test.h"

#include <jansson.h>
#include <stdlib.h>

#include "base/buf.h"
#include "text/charsmap.h"
#include "text_fixture.h"

enum { NODES_MAX = 64, UNITS = NODES_MAX * 256, ENTRIES = 8, KEY_MAX = 4, TEXT_MAX = 40 };

/* --- a table of a list of sequences --- */

struct entry {
    char key[KEY_MAX + 1], with[4];
};

struct table {
    uint32_t units[UNITS];
    uint32_t nodes; /* each has the units of one block */
    struct buf texts;
};

/* The unit of a node whose children stand in block `block`. */
static uint32_t unit_of(uint32_t at, uint32_t block, uint8_t label, bool ends)
{
    return (at ^ block * 256) << 10 | (uint32_t)ends << 8 | label;
}

static void add_key(struct table *t, const struct entry *entry)
{
    uint32_t block = 1; /* of the root's children */

    for (size_t i = 0; entry->key[i]; i++) {
        uint8_t byte = (uint8_t)entry->key[i];
        uint32_t at = (block * 256) ^ byte;
        if (!(t->units[at] & 0xff)) {
            EXPECT_TRUE(t->nodes < NODES_MAX);
            t->units[at] = unit_of(at, t->nodes++, byte, false);
        }
        block = (at ^ t->units[at] >> 10) / 256;
        if (entry->key[i + 1]) continue;
        t->units[at] |= 1u << 8;
        t->units[block * 256] = 0x80000000u | (uint32_t)t->texts.len;
    }
    buf_append(&t->texts, entry->with, strlen(entry->with) + 1);
}

/* Bytes of the table; the caller ends the buf. */
static struct buf make_table(const struct entry *entries, size_t count)
{
    struct table *t = calloc(1, sizeof *t);
    struct buf out;
    uint32_t size;

    buf_init(&out, 0);
    buf_init(&t->texts, 0);
    t->nodes = 2;
    t->units[0] = unit_of(0, 1, 0, false);
    for (size_t i = 0; i < count; i++)
        add_key(t, &entries[i]);
    size = t->nodes * 256 * 4;
    buf_append(&out, &size, sizeof size);
    buf_append(&out, t->units, size);
    buf_append_slice(&out, buf_slice(&t->texts));
    buf_fini(&t->texts);
    free(t);
    return out;
}

/* Different keys of the letters a to c, replacements of capitals; some are empty. */
static void make_entries(struct entry *entries)
{
    for (int i = 0; i < ENTRIES; i++) {
        bool again = true;
        while (again) {
            size_t len = 1 + test_rand_below(KEY_MAX);
            memset(&entries[i], 0, sizeof entries[i]);
            for (size_t k = 0; k < len; k++)
                entries[i].key[k] = (char)('a' + test_rand_below(3));
            again = false;
            for (int k = 0; k < i; k++)
                again = again || strcmp(entries[k].key, entries[i].key) == 0;
        }
        for (uint32_t k = test_rand_below(4); k > 0; k--)
            entries[i].with[k - 1] = (char)('A' + i);
    }
}

static struct charsmap *open_table(const struct buf *bytes)
{
    struct charsmap *map = NULL;
    struct error err;
    unsigned char *copy = test_guarded_copy(bytes->ptr, bytes->len);

    EXPECT_OK_ERR(charsmap_open(slice_of(copy, bytes->len), &map, &err), &err);
    test_guarded_free(copy, bytes->len);
    return map;
}

static void apply(const struct charsmap *map, const char *text, bool by_clusters, struct buf *out)
{
    const uint8_t *p = (const uint8_t *)text, *end = p + strlen(text);
    struct charsmap_reading reading = {map, end, NULL, by_clusters};
    struct slice with;
    size_t len;

    buf_clear(out);
    for (; p < end; p += len) {
        if (charsmap_next(&reading, p, &len, &with))
            buf_append_slice(out, with);
        else
            buf_append(out, p, len);
        EXPECT_TRUE(len > 0 && len <= (size_t)(end - p));
    }
}

TEST(the_longest_sequence_of_the_table_counts)
{
    struct entry entries[ENTRIES];
    struct buf out, want;

    buf_init(&out, 0);
    buf_init(&want, 0);
    for (int round = 0; round < 300; round++) {
        char text[TEXT_MAX + 1] = {0};
        make_entries(entries);
        struct buf bytes = make_table(entries, ENTRIES);
        struct charsmap *map = open_table(&bytes);
        for (uint32_t i = test_rand_below(TEXT_MAX + 1); i > 0; i--)
            text[i - 1] = "aabbccx "[test_rand_below(8)];
        buf_clear(&want);
        for (size_t at = 0; text[at];) {
            const struct entry *best = NULL;
            for (int i = 0; i < ENTRIES; i++)
                if (strncmp(text + at, entries[i].key, strlen(entries[i].key)) == 0 &&
                    (!best || strlen(entries[i].key) > strlen(best->key)))
                    best = &entries[i];
            if (best)
                buf_append_str(&want, best->with);
            else
                buf_append_char(&want, text[at]);
            at += best ? strlen(best->key) : 1;
        }
        apply(map, text, false, &out);
        EXPECT_STR(buf_cstr(&out), buf_cstr(&want));
        charsmap_close(map);
        buf_fini(&bytes);
    }
    buf_fini(&out);
    buf_fini(&want);
}

/* e + acute is a cluster of 3 bytes: looked up whole, and the shortest sequence takes all of it. With two more marks it
 * has 7 and is read character by character. */
TEST(clusters_are_replaced_whole_while_they_are_short)
{
    static const struct entry entries[] = {{"e\xcc\x81", "E"}, {"f", "F"}, {"\xcc\x82", "^"}};
    static const struct {
        const char *text, *clusters, *longest;
    } cases[] = {
        {"e\xcc\x81!", "E!", "E!"},
        {"f\xcc\x81!", "F!", "F\xcc\x81!"}, /* the mark goes with its letter */
        {"f\xcc\x82!", "F!", "F^!"},        /* the same */
        {"f\xcc\x81\xcc\x82\xcc\x82", "F\xcc\x81^^", "F\xcc\x81^^"},
        {"e\xcc\x81\xcc\x82\xcc\x82", "e\xcc\x81^^", "E^^"},
        {"efef", "eFeF", "eFeF"},
        {"", "", ""},
    };
    struct buf bytes = make_table(entries, 3), out;
    struct charsmap *map = open_table(&bytes);

    buf_init(&out, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        apply(map, cases[i].text, true, &out);
        EXPECT_STR(buf_cstr(&out), cases[i].clusters);
        apply(map, cases[i].text, false, &out);
        EXPECT_STR(buf_cstr(&out), cases[i].longest);
    }
    buf_fini(&out);
    buf_fini(&bytes);
    charsmap_close(map);
}

TEST(a_forged_table_is_refused_or_read_inside_its_bytes)
{
    static const char text[] = "aabbccabcabcaaabbbccc e\xcc\x81\xe4\xbd\xa0 abcabc";
    struct entry entries[ENTRIES];
    struct buf out;
    struct error err;
    int refused = 0, taken = 0;

    buf_init(&out, 0);
    for (int round = 0; round < 2000; round++) {
        struct charsmap *map = NULL;
        make_entries(entries);
        struct buf bytes = make_table(entries, ENTRIES);
        for (uint32_t n = 1 + test_rand_below(4); n > 0; n--) {
            size_t at = test_rand_below(3) ? 1024 + test_rand_below((uint32_t)bytes.len - 1024)
                                           : test_rand_below((uint32_t)bytes.len);
            bytes.ptr[at] = (char)test_rand();
        }
        if (round % 4 == 0) bytes.len = test_rand_below((uint32_t)bytes.len);
        unsigned char *copy = test_guarded_copy(bytes.ptr, bytes.len);
        enum status st = charsmap_open(slice_of(copy, bytes.len), &map, &err);
        test_guarded_free(copy, bytes.len);
        if (st) {
            EXPECT_EQ(st, STATUS_CORRUPT);
            EXPECT_TRUE(strstr(err.message, "precompiled charsmap") != NULL);
            refused++;
        } else {
            apply(map, text, round & 1, &out);
            taken++;
        }
        charsmap_close(map);
        buf_fini(&bytes);
    }
    EXPECT_TRUE(refused > 100 && taken > 100);
    EXPECT_EQ(charsmap_open_base64(SLICE("AAA?"), &(struct charsmap *){NULL}, &err),
              STATUS_CORRUPT);
    EXPECT_TRUE(strstr(err.message, "base64") != NULL);
    buf_fini(&out);
}

/* --- a trained model --- */

static void check_ids(const struct tokenizer *tok, const json_t *line, const char *reference)
{
    const json_t *text = json_object_get(line, "text"), *want = json_object_get(line, reference);
    struct token_list ids = {0};

    EXPECT_OK(tokenizer_encode(tok, slice_of(json_string_value(text), json_string_length(text)), 0,
                               NULL, 0, &ids));
    bool same = ids.count == json_array_size(want);
    for (size_t i = 0; same && i < ids.count; i++)
        same = json_integer_value(json_array_get(want, i)) == ids.ids[i];
    if (!same) fail_msg("%s: other ids for: %s", reference, json_string_value(text));
    token_list_fini(&ids);
}

TEST(a_trained_model_gives_the_ids_of_both_references)
{
    struct tokenizer *json = fixture_packed("unigram/tokenizer.json.xz", "tokenizer.json"),
                     *gguf = fixture_packed("unigram/model.gguf.xz", "model.gguf");
    int pipe, lines = 0;
    FILE *file = fixture_lines("unigram/texts.jsonl", &pipe);
    char *text = NULL;
    size_t cap = 0;

    EXPECT_TRUE(json && gguf && file);
    while (getline(&text, &cap, file) > 0) {
        json_t *line = json_loads(text, 0, NULL);
        EXPECT_TRUE(line != NULL);
        check_ids(json, line, "tokenizers");
        check_ids(gguf, line, "sentencepiece");
        json_decref(line);
        lines++;
    }
    EXPECT_EQ(lines, 300);
    free(text);
    fixture_close(file, pipe);
    tokenizer_close(json);
    tokenizer_close(gguf);
}
