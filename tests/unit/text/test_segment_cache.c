/* test_segment_cache.c - a piece that is found has the ids that were kept for it, whoever writes at the same time; and a
 * tokenizer gives the same ids for a text however much of it it has seen before.
 *
 * Method: the ids of a piece are made a function of its bytes, so that any reader can check them; more pieces than the
 * table has places go in; four threads read and write the same pieces (run under TSan too). Then texts of random words go
 * through real tokenizers, twice and behind other beginnings, beside the same texts with a tokenizer opened anew. */
#include "test.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/hash.h"
#include "text/segment_cache.h"
#include "text_fixture.h"

/* Piece number n: 16 to 384 bytes, and its ids. */
static struct slice piece_of(uint64_t n, char text[SEGMENT_BYTES_MAX])
{
    uint64_t r = hash_mix64(n + 1);
    size_t len = 16 + r % (SEGMENT_BYTES_MAX - 15);

    for (size_t i = 0; i < len; i++)
        text[i] = (char)(hash_mix64(r + i / 8) >> i % 8 * 8);
    memcpy(text, &n, sizeof n);
    return slice_of(text, len);
}

static size_t ids_of(uint64_t n, int32_t ids[SEGMENT_IDS_MAX])
{
    size_t count = n % (SEGMENT_IDS_MAX + 1);

    for (size_t i = 0; i < count; i++)
        ids[i] = (int32_t)(hash_mix64(n * 1000 + i) & 0xffffff);
    return count;
}

/* Looks piece n up; what is found must be right. Returns whether it was. */
static bool check_piece(struct segment_cache *cache, uint64_t n, struct token_list *out)
{
    char text[SEGMENT_BYTES_MAX];
    int32_t ids[SEGMENT_IDS_MAX];
    struct slice piece = piece_of(n, text);
    size_t count = ids_of(n, ids);

    out->count = 0;
    enum status st = segment_cache_get(cache, segment_cache_hash(cache, piece), piece, out);
    if (st == STATUS_NOT_FOUND) {
        EXPECT_EQ(out->count, 0);
        return false;
    }
    EXPECT_OK(st);
    EXPECT_EQ(out->count, count);
    EXPECT_TRUE(!count || memcmp(out->ids, ids, count * sizeof *ids) == 0);
    return true;
}

static void put_piece(struct segment_cache *cache, uint64_t n)
{
    char text[SEGMENT_BYTES_MAX];
    int32_t ids[SEGMENT_IDS_MAX];
    struct slice piece = piece_of(n, text);
    size_t count = ids_of(n, ids);

    segment_cache_put(cache, segment_cache_hash(cache, piece), piece, ids, count);
}

TEST(a_piece_is_found_until_newer_ones_take_its_place)
{
    struct segment_cache *cache = segment_cache_create();
    struct token_list out = {0};
    uint64_t found = 0, total = SEGMENT_SLOTS * 3ull / 2;

    EXPECT_TRUE(cache);
    for (uint64_t n = 0; n < 1000; n++) {
        EXPECT_TRUE(!check_piece(cache, n, &out));
        put_piece(cache, n);
        put_piece(cache, n);
        EXPECT_TRUE(check_piece(cache, n, &out));
    }
    for (uint64_t n = 1000; n < total; n++)
        put_piece(cache, n);
    for (uint64_t n = 0; n < total; n++)
        found += check_piece(cache, n, &out);
    EXPECT_TRUE(found <= SEGMENT_SLOTS);
    EXPECT_TRUE(found > SEGMENT_SLOTS * 9 / 10); /* of four ways nearly all are in use */
    token_list_fini(&out);
    segment_cache_destroy(cache);
}

TEST(more_ids_than_a_slot_has_are_not_kept)
{
    struct segment_cache *cache = segment_cache_create();
    int32_t ids[SEGMENT_IDS_MAX + 1] = {0};
    struct token_list out = {0};
    struct slice text = SLICE("seventeen letters");
    uint64_t hash = segment_cache_hash(cache, text);

    segment_cache_put(cache, hash, text, ids, SEGMENT_IDS_MAX + 1);
    EXPECT_EQ(segment_cache_get(cache, hash, text, &out), STATUS_NOT_FOUND);
    segment_cache_put(cache, hash, text, ids, SEGMENT_IDS_MAX);
    EXPECT_OK(segment_cache_get(cache, hash, text, &out));
    EXPECT_EQ(out.count, SEGMENT_IDS_MAX);
    /* The same hash is not the same text. */
    EXPECT_EQ(segment_cache_get(cache, hash, SLICE("seventeen lettres"), &out), STATUS_NOT_FOUND);
    EXPECT_EQ(out.count, SEGMENT_IDS_MAX);
    token_list_fini(&out);
    segment_cache_destroy(cache);
}

struct worker {
    struct segment_cache *cache;
    uint64_t seed, found;
};

/* Pieces that fall into few sets, so that the threads meet in the same slots. */
static void *work(void *arg)
{
    struct worker *w = arg;
    struct token_list out = {0};

    for (uint64_t i = 0; i < (test_long() ? 2000000 : 20000); i++) {
        uint64_t n = hash_mix64(w->seed + i) % 6;
        w->found += check_piece(w->cache, n, &out);
        if (i % 3 == 0) put_piece(w->cache, n);
    }
    token_list_fini(&out);
    return NULL;
}

TEST(threads_that_write_the_same_slots_never_show_half_a_piece)
{
    struct segment_cache *cache = segment_cache_create();
    struct worker workers[4];
    pthread_t threads[4];
    uint64_t found = 0;

    for (unsigned t = 0; t < 4; t++) {
        workers[t] = (struct worker){cache, test_rand(), 0};
        EXPECT_EQ(pthread_create(&threads[t], NULL, work, &workers[t]), 0);
    }
    for (unsigned t = 0; t < 4; t++) {
        pthread_join(threads[t], NULL);
        found += workers[t].found;
    }
    EXPECT_TRUE(found > 1000);
    segment_cache_destroy(cache);
}

static size_t random_words(char *text, size_t size)
{
    static const char *const words[] = {
        " the",           " quick",        "brown ",  "fox, ",   "jumps\n",      " over's",
        "12345",          "\n\n    ",      "(x)",     " return", "\u4f60\u597d", "\uff0c\u4e16",
        "\u754c\u3002\n", "e\u0301",       "\u2581",  "  ",      "a=b;",         "don't",
        "\r\n",           "\u00e9t\u00e9", " \u5b57", "<|x|>",   "HTTP",         "_"};
    size_t len = 0;

    while (len + 32 < size) {
        const char *word = words[test_rand_below(sizeof words / sizeof *words)];
        memcpy(text + len, word, strlen(word));
        len += strlen(word);
    }
    return len;
}

static void expect_ids(const struct tokenizer *tok, struct slice text,
                       const struct token_list *right)
{
    struct token_list ids = {0};

    EXPECT_OK(tokenizer_encode(tok, text, TOKENIZE_PARSE_SPECIAL, NULL, 0, &ids));
    EXPECT_EQ(ids.count, right->count);
    EXPECT_TRUE(memcmp(ids.ids, right->ids, ids.count * sizeof *ids.ids) == 0);
    token_list_fini(&ids);
}

TEST(what_was_seen_before_changes_no_id)
{
    static const char *const names[] = {"qwen3", "deepseek_v3", "mistral_v1"};
    static char text[6000];

    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        struct tokenizer *used = fixture_tokenizer(names[k]);
        if (!used) skip();
        for (int round = 0; round < 3; round++) {
            struct tokenizer *fresh = fixture_tokenizer(names[k]);
            struct token_list ids = {0};
            size_t len = random_words(text, sizeof text), from = test_rand_below(3000);
            while ((text[from] & 0xc0) == 0x80)
                from++;
            /* The used one has seen other parts of the text, cut elsewhere, and then the text itself. */
            EXPECT_OK(tokenizer_encode(fresh, slice_of(text, len), TOKENIZE_PARSE_SPECIAL, NULL, 0,
                                       &ids));
            struct token_list part = {0};
            EXPECT_OK(tokenizer_encode(used, slice_of(text + from, len - from),
                                       TOKENIZE_PARSE_SPECIAL, NULL, 0, &part));
            expect_ids(used, slice_of(text, len), &ids);
            expect_ids(used, slice_of(text, len), &ids);
            expect_ids(fresh, slice_of(text + from, len - from), &part);
            token_list_fini(&ids);
            token_list_fini(&part);
            tokenizer_close(fresh);
        }
        tokenizer_close(used);
    }
}
