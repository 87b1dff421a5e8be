/* test_tokenizer.c - merging, added tokens, ranges from outside, refusals, time and threads.
 *
 * Method: the known fault kf-03; random small vocabularies against a merge loop that is as plain as
 * the definition; hand-made tokenizers for every flag and every refusal; real vocabularies for time
 * (four times the text may take at most ten times as long) and for many threads at once. */
#include "test.h"

#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "text/tokenize_lines.h"
#include "text_fixture.h"

/* Opens a tokenizer given as JSON (takes it); fails when it is refused. */
static struct tokenizer *open_json(json_t *root, const char *config, const char *generation)
{
    struct error err;
    enum status st;
    char *text = json_dumps(root, 0);
    struct tokenizer *tok = fixture_from_text(text, config, generation, &st, &err);

    EXPECT_OK_ERR(st, &err);
    free(text);
    json_decref(root);
    return tok;
}

static void encode(const struct tokenizer *tok, const char *text, unsigned flags,
                   struct token_list *ids)
{
    ids->count = 0;
    EXPECT_OK(tokenizer_encode(tok, slice_str(text), flags, NULL, 0, ids));
}

static void expect_ids(const struct tokenizer *tok, const char *text, unsigned flags, size_t count,
                       const int32_t *want)
{
    struct token_list ids = {0};

    encode(tok, text, flags, &ids);
    if (ids.count != count || (count && memcmp(ids.ids, want, count * sizeof *want) != 0)) {
        fprintf(stderr, "\"%s\" gave", text);
        for (size_t i = 0; i < ids.count; i++)
            fprintf(stderr, " %d", ids.ids[i]);
        fail_msg("\n other ids than expected");
    }
    token_list_fini(&ids);
}
#define EXPECT_IDS(tok, text, flags, ...)                                  \
    do {                                                                   \
        const int32_t want_[] = {__VA_ARGS__};                             \
        expect_ids(tok, text, flags, sizeof want_ / sizeof *want_, want_); \
    } while (0)

/* --- known faults --- */

TEST(known_fault_03_ignore_merges_and_strip_flags)
{
    char *line = NULL;
    size_t cap = 0;
    int pipe;
    FILE *f = fixture_lines("known_faults_text.jsonl", &pipe);
    json_t *row = NULL;

    EXPECT_TRUE(f != NULL);
    while (getline(&line, &cap, f) > 0) {
        json_decref(row);
        row = json_loads(line, 0, NULL);
        if (strcmp(json_string_value(json_object_get(row, "id")), "kf-03") == 0) break;
    }
    fixture_close(f, pipe);
    free(line);
    const json_t *given = json_object_get(row, "given");
    json_t *plain = json_deep_copy(json_object_get(given, "tokenizer_A"));
    json_object_set_new(json_object_get(plain, "model"), "ignore_merges", json_false());
    struct tokenizer *a = open_json(json_deep_copy(json_object_get(given, "tokenizer_A")), NULL,
                                    NULL),
                     *a0 = open_json(plain, NULL, NULL),
                     *b = open_json(json_deep_copy(json_object_get(given, "tokenizer_B")), NULL,
                                    NULL);
    const json_t *cases =
        json_object_get(json_object_get(row, "request-or-input"), "encode_without_special_tokens");
    const json_t *want = json_object_get(json_object_get(row, "expected"), "ids_in_order");
    EXPECT_EQ(json_array_size(cases), 8);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *list = json_array_get(want, i);
        const char *with = json_string_value(json_object_get(c, "with"));
        int32_t ids[16];
        for (size_t k = 0; k < json_array_size(list); k++)
            ids[k] = (int32_t)json_integer_value(json_array_get(list, k));
        expect_ids(strcmp(with, "tokenizer_A") == 0    ? a
                   : strcmp(with, "tokenizer_A0") == 0 ? a0
                                                       : b,
                   json_string_value(json_object_get(c, "text")), TOKENIZE_PARSE_SPECIAL,
                   json_array_size(list), ids);
    }
    json_decref(row);
    tokenizer_close(a);
    tokenizer_close(a0);
    tokenizer_close(b);
}

/* --- merging --- */

enum { MERGES_MAX = 40 };
struct small {
    char tokens[4 + MERGES_MAX][64];
    int left[MERGES_MAX], right[MERGES_MAX], merged[MERGES_MAX];
    int tokens_count, merges;
};

/* Random merges over the letters a to d; different halves may give the same token. */
static struct tokenizer *random_small(struct small *s)
{
    json_t *vocab = json_object(), *merges = json_array();

    s->merges = 0;
    for (s->tokens_count = 0; s->tokens_count < 4; s->tokens_count++)
        snprintf(s->tokens[s->tokens_count], 64, "%c", 'a' + s->tokens_count);
    for (int tries = 0; tries < MERGES_MAX; tries++) {
        int l = (int)test_rand_below((uint32_t)s->tokens_count),
            r = (int)test_rand_below((uint32_t)s->tokens_count), m = 0, k = 0;
        char joined[128];
        snprintf(joined, sizeof joined, "%s%s", s->tokens[l], s->tokens[r]);
        while (k < s->merges && !(s->left[k] == l && s->right[k] == r))
            k++;
        if (strlen(joined) > 40 || k < s->merges) continue;
        while (m < s->tokens_count && strcmp(s->tokens[m], joined) != 0)
            m++;
        if (m == s->tokens_count) memcpy(s->tokens[s->tokens_count++], joined, strlen(joined) + 1);
        s->left[s->merges] = l;
        s->right[s->merges] = r;
        s->merged[s->merges++] = m;
        json_array_append_new(merges, json_pack("[ss]", s->tokens[l], s->tokens[r]));
    }
    for (int i = 0; i < s->tokens_count; i++)
        json_object_set_new(vocab, s->tokens[i], json_integer(i));
    json_t *root = json_pack("{s{ss so so} s{ssso} s{ss}}", "model", "type", "BPE", "vocab", vocab,
                             "merges", merges, "pre_tokenizer", "type", "ByteLevel", "use_regex",
                             json_false(), "decoder", "type", "ByteLevel");
    json_object_set_new(json_object_get(root, "pre_tokenizer"), "add_prefix_space", json_false());
    return open_json(root, NULL, NULL);
}

/* The definition: the pair of lowest rank, the leftmost of equals, until there is none. */
static size_t plain_merge(const struct small *s, const char *text, int32_t *ids)
{
    size_t n = strlen(text);

    for (size_t i = 0; i < n; i++)
        ids[i] = text[i] - 'a';
    for (;;) {
        int best = s->merges;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            for (int k = 0; k < best; k++)
                if (s->left[k] == ids[i] && s->right[k] == ids[i + 1]) {
                    best = k;
                    at = i;
                }
        if (best == s->merges) return n;
        ids[at] = s->merged[best];
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

TEST(merging_equals_the_definition_for_short_and_long_words)
{
    for (int round = 0; round < (test_long() ? 1000 : 25); round++) {
        struct small *s = malloc(sizeof *s);
        struct tokenizer *tok = random_small(s);
        for (int k = 0; k < 60; k++) {
            char text[700];
            int32_t want[700];
            size_t len = 1 + test_rand_below(k % 3 ? 60 : 690);
            uint32_t letters = 1 + test_rand_below(4);
            for (size_t i = 0; i < len; i++)
                text[i] = (char)('a' + test_rand_below(letters));
            text[len] = 0;
            expect_ids(tok, text, 0, plain_merge(s, text, want), want);
            expect_ids(tok, text, 0, plain_merge(s, text, want),
                       want); /* now the look-up may answer */
        }
        tokenizer_close(tok);
        free(s);
    }
}

/* --- added tokens, from inside and from outside --- */

static const char CHATTY[] =
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"<\":2,\"|\":3,\"e\":4,\">\":5,"
    "\"\xc4\xa0\":6,\"s\":7},"
    "\"merges\":[]},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_"
    "regex\":true},"
    "\"decoder\":{\"type\":\"ByteLevel\"},\"added_tokens\":["
    "{\"id\":8,\"content\":\"<|e|>\",\"special\":true},{\"id\":9,\"content\":\"<e>\",\"special\":"
    "false},"
    "{\"id\":10,\"content\":\"<|e|>e\",\"special\":true},{\"id\":11,\"content\":\"<s>\","
    "\"special\":true}],"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<"
    "s>\"}},"
    "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[11]}}}}";

static struct tokenizer *open_chatty(void)
{
    struct error err;
    enum status st;
    struct tokenizer *tok = fixture_from_text(
        CHATTY,
        "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"<|e|>\"},\"add_bos_token\":true}",
        "{\"eos_token_id\":[9,8]}", &st, &err);

    EXPECT_OK_ERR(st, &err);
    return tok;
}

TEST(flags_choose_which_added_tokens_are_read)
{
    struct tokenizer *tok = open_chatty();

    EXPECT_IDS(tok, "a<|e|><e>", TOKENIZE_PARSE_SPECIAL, 0, 8, 9);
    EXPECT_IDS(tok, "a<|e|>e", TOKENIZE_PARSE_SPECIAL, 0, 10); /* the longest */
    EXPECT_IDS(tok, "<|e|><e>", 0, 2, 3, 4, 3, 5, 9);
    EXPECT_IDS(tok, "<e>", TOKENIZE_PARSE_SPECIAL | TOKENIZE_NO_ADDED, 2, 4, 5);
    EXPECT_IDS(tok, "b", TOKENIZE_ADD_SPECIAL, 11, 1); /* not twice, though both files ask for it */
    EXPECT_IDS(tok, "\x80\xff", 0, );                  /* no token for U+FFFD's bytes: dropped */
    tokenizer_close(tok);
}

static void expect_ranged(const struct tokenizer *tok, const char *text, size_t begin, size_t end,
                          size_t count, const int32_t *want)
{
    struct text_range ranges[] = {{begin, (begin + end) / 2}, {(begin + end) / 2, end}};
    struct token_list ids = {0};

    EXPECT_OK(tokenizer_encode(tok, slice_str(text), TOKENIZE_PARSE_SPECIAL, ranges, 2, &ids));
    EXPECT_EQ(ids.count, count);
    for (size_t i = 0; i < count; i++)
        EXPECT_EQ(ids.ids[i], want[i]);
    token_list_fini(&ids);
}
#define EXPECT_RANGED(tok, text, begin, end, ...)                                  \
    do {                                                                           \
        const int32_t want_[] = {__VA_ARGS__};                                     \
        expect_ranged(tok, text, begin, end, sizeof want_ / sizeof *want_, want_); \
    } while (0)

TEST(text_from_outside_never_becomes_or_hides_an_added_token)
{
    struct tokenizer *tok = open_chatty();

    EXPECT_RANGED(tok, "<e><|e|><e>", 3, 8, 9, 2, 3, 4, 3, 5, 9);
    EXPECT_RANGED(tok, "<|e|>", 0, 1, 2, 3, 4, 3, 5); /* one byte of it is enough */
    EXPECT_RANGED(tok, "<|e|>", 4, 5, 2, 3, 4, 3, 5);
    EXPECT_RANGED(tok, "<|e|>e", 5, 6, 8, 4); /* the shorter one is all the template's */
    EXPECT_RANGED(tok, "<|<|e|>", 0, 2, 2, 3, 8);
    EXPECT_RANGED(tok, "\xff<e>\xff<e>", 0, 4, 2, 4, 5, 9); /* ranges move with repaired bytes */
    tokenizer_close(tok);
}

TEST(ranges_follow_the_text_through_nfc)
{
    struct error err;
    enum status st;
    /* <e> + U+0301 is normalised before the added token <é> (composed) is looked for. */
    struct tokenizer *tok =
        fixture_from_text("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"<\":0,\">\":1,\"\xc3\x83\":2,"
                          "\"\xc2\xa9\":3,\"a\":4},\"merges\":[]},"
                          "\"normalizer\":{\"type\":\"NFC\"},\"decoder\":{\"type\":\"ByteLevel\"},"
                          "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                          "\"added_tokens\":[{\"id\":5,\"content\":\"<e\xcc\x81>\",\"special\":"
                          "false,\"normalized\":true}]}",
                          NULL, NULL, &st, &err);

    EXPECT_OK_ERR(st, &err);
    EXPECT_IDS(tok, "a<e\xcc\x81>a<\xc3\xa9>", 0, 4, 5, 4, 5);
    EXPECT_RANGED(tok, "a<e\xcc\x81>a<\xc3\xa9>", 3, 5, 4, 0, 2, 3, 1, 4, 5);
    EXPECT_RANGED(tok, "e\xcc\x81<e\xcc\x81>", 0, 3, 2, 3, 5);
    EXPECT_RANGED(tok, "e\xcc\x81<e\xcc\x81>", 7, 8, 2, 3, 0, 2, 3, 1);
    tokenizer_close(tok);
}

TEST(special_ids_come_from_all_the_files)
{
    struct tokenizer *tok = open_chatty();
    struct buf text;
    uint32_t count;
    const int32_t *eos = tokenizer_eos_list(tok, &count), bad[] = {0, 12};

    EXPECT_EQ(tokenizer_bos(tok), 11);
    EXPECT_EQ(tokenizer_eos(tok), 8);
    EXPECT_EQ(tokenizer_pad(tok), -1);
    EXPECT_EQ(count, 2); /* 8 of the tokenizer and of the generation config once */
    EXPECT_EQ(eos[0], 8);
    EXPECT_EQ(eos[1], 9);
    EXPECT_TRUE(tokenizer_adds_bos(tok));
    EXPECT_EQ(tokenizer_vocab_size(tok), 12);
    EXPECT_EQ(tokenizer_find(tok, SLICE("<e>")), 9);
    EXPECT_EQ(tokenizer_find(tok, SLICE("b")), 1);
    EXPECT_EQ(tokenizer_find(tok, SLICE("zz")), -1);
    EXPECT_TRUE(tokenizer_is_special(tok, 8) && !tokenizer_is_special(tok, 9) &&
                tokenizer_is_added(tok, 9));
    EXPECT_TRUE(!tokenizer_is_added(tok, 0) && !tokenizer_is_added(tok, -1) &&
                !tokenizer_is_added(tok, 99));
    EXPECT_EQ(tokenizer_token_bytes(tok, 99).len, 0);
    EXPECT_TRUE(slice_eq(tokenizer_token_bytes(tok, 6), SLICE(" ")));
    EXPECT_STR(tokenizer_description(tok), "byte-level BPE, pre-tokenizer gpt-2, 12 tokens");
    buf_init(&text, 0);
    EXPECT_EQ(tokenizer_decode(tok, bad, 2, false, &text), STATUS_INVALID);
    EXPECT_EQ(text.len, 0);
    tokenizer_close(tok);
}

/* --- unigram --- */

enum { PIECES = 24, PIECE_MAX = 4, UNIGRAM_WORD_MAX = 12 };

struct pieces {
    char text[PIECES][PIECE_MAX + 1]; /* 0 is <unk>, 1..3 are a, b, c */
    double score[PIECES], unk_score;
};

/* Random pieces of a, b and c; scores are eighths, so that sums are exact. The text of a tokenizer.json. */
static void make_pieces(struct pieces *p, struct buf *json)
{
    p->unk_score = 0;
    buf_append_str(json, "{\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"Unigram\",\"unk_"
                         "id\":0,\"vocab\":[");
    for (int i = 0; i < PIECES; i++) {
        size_t len = 1 + test_rand_below(PIECE_MAX);
        for (size_t k = 0; k < len; k++)
            p->text[i][k] = (char)('a' + test_rand_below(3));
        p->text[i][len] = 0;
        if (i < 4)
            snprintf(p->text[i], PIECE_MAX + 1, "%s",
                     i ? (i == 1   ? "a"
                          : i == 2 ? "b"
                                   : "c")
                       : "?");
        for (int k = 1; k < i; k++)
            if (strcmp(p->text[k], p->text[i]) == 0) p->text[i][0] = (char)('A' + i);
        p->score[i] = i ? -(double)test_rand_below(80) / 8 : 0;
        if (p->score[i] < p->unk_score) p->unk_score = p->score[i];
        buf_printf(json, "%s[\"%s\",%.3f]", i ? "," : "", p->text[i], p->score[i]);
    }
    p->unk_score -= 10;
    buf_append_str(json, "]}}");
}

/* The best sum of the word from `at` on: every way is tried. */
static double best_sum(const struct pieces *p, const char *word)
{
    double best = -1e9, sum;

    if (!*word) return 0;
    if (*word == 'd') return p->unk_score + best_sum(p, word + 1);
    for (int i = 1; i < PIECES; i++) {
        size_t len = strlen(p->text[i]);
        if (strncmp(word, p->text[i], len) != 0) continue;
        sum = p->score[i] + best_sum(p, word + len);
        if (sum > best) best = sum;
    }
    return best;
}

/* The sum that the ids have, which must spell the word; one unknown token stands for a run of d. */
static double sum_of(const struct pieces *p, const char *word, const struct token_list *ids)
{
    double sum = 0;

    for (size_t i = 0; i < ids->count; i++) {
        const char *piece = p->text[ids->ids[i]];
        if (ids->ids[i] == 0) {
            EXPECT_TRUE(*word == 'd');
            for (; *word == 'd'; word++)
                sum += p->unk_score;
            continue;
        }
        EXPECT_TRUE(strncmp(word, piece, strlen(piece)) == 0);
        word += strlen(piece);
        sum += p->score[ids->ids[i]];
    }
    EXPECT_TRUE(!*word);
    return sum;
}

TEST(unigram_takes_the_best_of_all_ways)
{
    for (int round = 0; round < (test_long() ? 500 : 30); round++) {
        struct pieces p;
        struct buf json;
        struct error err;
        enum status st;

        buf_init(&json, 0);
        make_pieces(&p, &json);
        struct tokenizer *tok = fixture_from_text(buf_cstr(&json), NULL, NULL, &st, &err);
        if (!tok) fail_msg("%s", err.message);
        EXPECT_TRUE(strncmp(tokenizer_description(tok), "SentencePiece unigram", 21) == 0);
        for (int k = 0; k < 40; k++) {
            char word[UNIGRAM_WORD_MAX + 1] = {0};
            struct token_list ids = {0};
            size_t len = 1 + test_rand_below(UNIGRAM_WORD_MAX);
            for (size_t i = 0; i < len; i++)
                word[i] = "abcabcabcd"[test_rand_below(10)];
            EXPECT_OK(tokenizer_encode(tok, slice_str(word), 0, NULL, 0, &ids));
            EXPECT_NEAR(sum_of(&p, word, &ids), best_sum(&p, word), 1e-12);
            token_list_fini(&ids);
        }
        tokenizer_close(tok);
        buf_fini(&json);
    }
}

/* --- refusals --- */

TEST(what_cannot_be_reproduced_is_refused_by_name)
{
#define MODEL   "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}"
#define DECODER "\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\"}"
    static const struct {
        const char *text, *says;
        enum status st;
    } cases[] = {
        {"{}", "model", STATUS_CORRUPT},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", "WordPiece", STATUS_UNSUPPORTED},
        {"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{}}}", "WordLevel", STATUS_UNSUPPORTED},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":{}}}", "1 to", STATUS_CORRUPT},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",\"b\"]],\"unk_id\":0}}",
         "piece 0 is not a text and a score", STATUS_CORRUPT},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1]],\"unk_id\":1}}", "unk_id",
         STATUS_UNSUPPORTED},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1]]}}", "unk_id", STATUS_UNSUPPORTED},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1]],\"unk_id\":0}," DECODER "}",
         "Unigram model with ByteLevel", STATUS_UNSUPPORTED},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}," DECODER "}", "no tokens",
         STATUS_CORRUPT},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Lowercase\"}," DECODER "}", "Lowercase",
         STATUS_UNSUPPORTED},
        {"{" MODEL
         ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAA\"}," DECODER
         "}",
         "precompiled charsmap", STATUS_CORRUPT},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Precompiled\"}," DECODER "}", "Precompiled",
         STATUS_UNSUPPORTED},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a+\"},"
                   "\"content\":\"\"}," DECODER "}",
         "Regex", STATUS_UNSUPPORTED},
        {"{" MODEL
         ",\"decoder\":{\"type\":\"Fuse\"},\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"}}",
         "without a Metaspace", STATUS_UNSUPPORTED},
        {"{" MODEL
         ",\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":\"Punctuation\"}}",
         "Punctuation", STATUS_UNSUPPORTED},
        {"{" MODEL ",\"decoder\":{\"type\":\"WordPiece\"}}", "WordPiece", STATUS_UNSUPPORTED},
        {"{" MODEL ",\"decoder\":{\"type\":\"Fuse\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}",
         "both", STATUS_UNSUPPORTED},
        {"{" MODEL "," DECODER ",\"post_processor\":{\"type\":\"Odd\"}}", "Odd",
         STATUS_UNSUPPORTED},
        {"{" MODEL "," DECODER
         ",\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"c\",77],\"sep\":[\"s\",1]}}",
         "77", STATUS_CORRUPT},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}," DECODER "}",
         "same id 0", STATUS_CORRUPT},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}," DECODER "}", "'a'",
         STATUS_CORRUPT},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":2000000000},\"merges\":[]}," DECODER "}",
         "'a'", STATUS_CORRUPT},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}," DECODER "}",
         "merge 0", STATUS_CORRUPT},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a\"]}," DECODER "}",
         "merge 0", STATUS_CORRUPT},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}," DECODER
         "}",
         "dropout", STATUS_UNSUPPORTED},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"u\"}"
         "," DECODER "}",
         "unk_token", STATUS_CORRUPT},
        {"{" MODEL "," DECODER ",\"added_tokens\":[{\"id\":5}]}", "added token 0", STATUS_CORRUPT},
        {"{" MODEL "," DECODER ",\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]}", "same id 1",
         STATUS_CORRUPT},
        {"{" MODEL ",\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":\"Split\","
         "\"pattern\":{\"Regex\":"
         "\"(?<x\"},\"behavior\":\"Isolated\"}}",
         "(?<x", STATUS_UNSUPPORTED},
    };
    struct error err;
    enum status st;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        EXPECT_TRUE(fixture_from_text(cases[i].text, NULL, NULL, &st, &err) == NULL);
        if (st != cases[i].st || !strstr(err.message, cases[i].says))
            fail_msg("case %zu: '%s', %s; expected '%s' and %s", i, status_name(st), err.message,
                     status_name(cases[i].st), cases[i].says);
    }
    EXPECT_TRUE(fixture_from_text(NULL, NULL, NULL, &st, &err) == NULL);
    EXPECT_EQ(st, STATUS_NOT_FOUND);
}

TEST(gguf_metadata_is_checked_and_its_gaps_are_tolerated)
{
    json_t *root = json_pack("{s{s{si si si si} s[sss]} s[{sssiso}{sssiso}]}", "model", "vocab",
                             "a", 0, "b", 1, "ab", 2, "\xc4\xa0", 4, "merges", "a b", "a z", "a b",
                             "added_tokens", "content", "<|im_end|>", "id", 6, "special",
                             json_true(), "content", "<x>", "id", 7, "special", json_false());
    struct error err;
    enum status st;

    EXPECT_TRUE(root != NULL);
    EXPECT_TRUE(fixture_gguf(root, "no-such", -1, &st, &err) == NULL);
    EXPECT_EQ(st, STATUS_UNSUPPORTED);
    EXPECT_TRUE(strstr(err.message, "no-such") != NULL);
    EXPECT_TRUE(fixture_gguf(root, "smollm", 8, &st, &err) == NULL);
    EXPECT_EQ(st, STATUS_CORRUPT);
    EXPECT_TRUE(strstr(err.message, "bos_token_id") != NULL);
    /* Ids 3 and 5 are empty, a merge names a token that is not there, another stands twice. */
    struct tokenizer *tok = fixture_gguf(root, "smollm", 6, &st, &err);
    EXPECT_OK_ERR(st, &err);
    EXPECT_IDS(tok, "ab a<x><|im_end|>", TOKENIZE_PARSE_SPECIAL | TOKENIZE_ADD_SPECIAL, 6, 2, 4, 0,
               7, 6);
    EXPECT_TRUE(tokenizer_is_special(tok, 6) && !tokenizer_is_special(tok, 7));
    EXPECT_EQ(tokenizer_token_bytes(tok, 3).len, 0);
    uint32_t count;
    EXPECT_EQ(tokenizer_eos_list(tok, &count)[0], 6); /* by its name: the file has no key for it */
    EXPECT_EQ(count, 1);
    tokenizer_close(tok);
    json_decref(root);
}

/* --- the line protocol --- */

static json_t *answer_op(void *ctx, const json_t *request)
{
    return json_pack("{ssss}", "text", (const char *)ctx, "op",
                     json_string_value(json_object_get(request, "op")));
}

static void expect_line(const struct tokenizer *tok, tokenize_render_fn *render, const char *line,
                        const char *want)
{
    struct buf out;
    char text[] = "hi";

    buf_init(&out, 0);
    EXPECT_OK(tokenize_line(tok, slice_str(line), render, text, &out));
    if (!strstr(buf_cstr(&out), want) || strchr(buf_cstr(&out), '\n') != out.ptr + out.len - 1)
        fail_msg("%s gave %s; expected %s", line, buf_cstr(&out), want);
    buf_fini(&out);
}

TEST(the_line_protocol_answers_every_line)
{
    struct tokenizer *tok = open_chatty();

    expect_line(
        tok, NULL,
        "{\"op\":\"encode\",\"text\":\"a<|e|>\",\"add_special\":true,\"parse_special\":true}",
        "{\"ids\":[11,0,8]}");
    expect_line(tok, NULL,
                "{\"op\":\"encode\",\"text\":\"<e>\",\"parse_special\":true,\"added\":false}",
                "{\"ids\":[2,4,5]}");
    expect_line(tok, NULL, "{\"op\":\"decode\",\"ids\":[11,0,6,1],\"skip_special\":true}",
                "{\"text\":\"a b\"}");
    expect_line(tok, NULL, "{\"op\":\"stream\",\"ids\":[0,8],\"skip_special\":false}",
                "{\"pieces\":[\"a\",\"<|e|>\"],\"flush\":\"\"}");
    expect_line(tok, NULL, "{\"op\":\"decode\",\"ids\":[12]}", "{\"error\":\"invalid\"");
    expect_line(tok, NULL, "{\"op\":\"decode\",\"ids\":[-1]}", "{\"error\":\"invalid\"");
    expect_line(tok, NULL, "{\"op\":\"stream\",\"ids\":7}", "{\"error\":\"invalid\"");
    expect_line(tok, NULL, "{\"op\":\"fly\"}", "{\"error\":\"unsupported\"");
    expect_line(tok, NULL, "{\"op\":\"render\"}", "{\"error\":\"unsupported\"");
    expect_line(tok, answer_op, "{\"op\":\"render\"}", "{\"text\":\"hi\"");
    expect_line(NULL, answer_op, "{\"op\":\"render\"}", "{\"text\":\"hi\"");
    expect_line(NULL, answer_op, "{\"op\":\"encode\",\"text\":\"a\"}",
                "{\"error\":\"unsupported\"");
    expect_line(tok, NULL, "[1", "{\"error\":\"invalid\"");
    expect_line(tok, NULL, "7", "{\"error\":\"invalid\"");
    tokenizer_close(tok);
}

/* --- time and threads --- */

static double encode_seconds(const struct tokenizer *tok, const char *unit, size_t bytes)
{
    size_t len = strlen(unit), count = bytes / len;
    char *text = malloc(count * len);
    struct token_list ids = {0};
    struct timespec a, b;
    double best = 1e9;

    for (size_t i = 0; i < count; i++)
        memcpy(text + i * len, unit, len);
    for (int k = 0; k < 2; k++) {
        ids.count = 0;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
        EXPECT_OK(tokenizer_encode(tok, slice_of(text, count * len), TOKENIZE_PARSE_SPECIAL, NULL,
                                   0, &ids));
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
        double took = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
        if (took < best) best = took;
    }
    free(text);
    token_list_fini(&ids);
    return best;
}

TEST(known_fault_04_long_runs_take_linear_time)
{
    static const char *const units[] = {"x",  " ",  "7",    "\xcc\x81",   "\xe4\xbd\xa0", "<",
                                        "ab", "\n", "\xff", "<|im_end|>", "e\xcc\x81"};
    static const char *const names[] = {"llama3_1", "qwen3", "deepseek_v3", "mistral_v1"};
    const size_t large = test_long() ? 1 << 20 : 1 << 18;

    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        struct tokenizer *tok = fixture_tokenizer(names[n]);
        EXPECT_TRUE(tok != NULL);
        for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
            double a = encode_seconds(tok, units[u], large / 4),
                   b = encode_seconds(tok, units[u], large);
            if (b > 10 * a + 0.02)
                fail_msg("%s, unit %zu: %.4f s, four times the text %.4f s", names[n], u, a, b);
        }
        tokenizer_close(tok);
    }
}

struct job {
    const struct tokenizer *tok;
    const char *text;
    const struct token_list *want;
    int wrong;
};

static void *encode_often(void *arg)
{
    struct job *job = arg;
    struct token_list ids = {0};

    for (int i = 0; i < 20 && !job->wrong; i++) {
        ids.count = 0;
        job->wrong = tokenizer_encode(job->tok, slice_str(job->text), 0, NULL, 0, &ids) ||
                     ids.count != job->want->count ||
                     memcmp(ids.ids, job->want->ids, ids.count * sizeof *ids.ids) != 0;
    }
    token_list_fini(&ids);
    return NULL;
}

TEST(many_threads_encode_at_once)
{
    enum { THREADS = 6 };
    static const char text[] = "The tokenizer is shared by every thread; its look-up of whole "
                               "words is filled as they are seen. "
                               "Donaudampfschifffahrtsgesellschaft, 12345 x 67890 = ?\n\n\tint "
                               "main(void) { return 0; }  caf\xc3\xa9";
    struct tokenizer *tok = fixture_tokenizer("qwen3"), *fresh = fixture_tokenizer("qwen3");
    struct token_list want = {0};
    struct job jobs[THREADS];
    pthread_t threads[THREADS];

    EXPECT_TRUE(tok && fresh);
    encode(tok, text, 0, &want);
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (struct job){fresh, text, &want, 0};
        EXPECT_EQ(pthread_create(&threads[i], NULL, encode_often, &jobs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        EXPECT_EQ(jobs[i].wrong, 0);
    }
    token_list_fini(&want);
    tokenizer_close(tok);
    tokenizer_close(fresh);
}
