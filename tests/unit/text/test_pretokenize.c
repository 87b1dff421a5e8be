/* test_pretokenize.c - the matchers written by hand cut as the models' regular expressions do, in
 * linear time.
 *
 * Method: random texts from alphabets that touch every branch go through the matcher and through
 * PCRE2 with the expressions as the models' files have them (a PRETOK_STAGES chain); the words must
 * be the same. Characters that PCRE2's Unicode reads otherwise than the reference library are left
 * out. Texts end at an unmapped page. Linear time: four times the text may take at most ten times
 * as long, on runs that make backtracking matchers quadratic. */
#include "test.h"

#include <stdlib.h>
#include <time.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/pretokenize.h"
#include "text/unicode_class.h"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA(digits)                                                          \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define V3                                                                    \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"                  \
    "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*" \
    "[\r\n]+|\\s+(?!\\S)|\\s+"

static const struct {
    enum pretok_kind kind;
    const char *patterns[5];
} models[] = {
    {PRETOK_GPT2, {GPT2}},
    {PRETOK_LLAMA3, {LLAMA("{1,3}")}},
    {PRETOK_QWEN2, {LLAMA("")}},
    {PRETOK_SMOLLM, {"\\p{N}", GPT2}},
    {PRETOK_DEEPSEEK_V3, {"\\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", V3}},
    {PRETOK_DEEPSEEK_CODER,
     {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[一-龥ࠀ-一가-퟿]+", "\\p{N}"}},
};
enum { MODELS = sizeof models / sizeof *models, TEXT_MAX = 400 };

struct words {
    const uint8_t *ends[TEXT_MAX];
    size_t count;
};

static enum status note_word(void *ctx, const uint8_t *begin, const uint8_t *end)
{
    struct words *w = ctx;

    EXPECT_TRUE(begin < end);
    EXPECT_TRUE(w->count < TEXT_MAX);
    w->ends[w->count++] = end;
    return STATUS_OK;
}

static uint8_t agreed[0x110000]; /* 1: PCRE2 reads the character as the table does */

static void find_agreed(void)
{
    static const struct {
        const char *pattern;
        uint8_t bit;
    } sets[] = {{"^\\p{L}", CLASS_LETTER},      {"^\\p{N}", CLASS_NUMBER}, {"^\\p{M}", CLASS_MARK},
                {"^\\p{P}", CLASS_PUNCTUATION}, {"^\\p{S}", CLASS_SYMBOL}, {"^\\s", CLASS_SPACE}};
    int code;
    PCRE2_SIZE at;

    unicode_class_init();
    memset(agreed, 1, sizeof agreed);
    for (size_t k = 0; k < sizeof sets / sizeof *sets; k++) {
        pcre2_code_8 *re = pcre2_compile_8((PCRE2_SPTR8)sets[k].pattern, PCRE2_ZERO_TERMINATED,
                                           PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
        pcre2_match_data_8 *match = pcre2_match_data_create_8(1, NULL);
        EXPECT_TRUE(re && match);
        for (uint32_t c = 0; c < 0x110000; c++) {
            char text[4];
            if (c >= 0xd800 && c < 0xe000) {
                agreed[c] = 0;
                continue;
            }
            size_t len = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
            if (len == 1) text[0] = (char)c;
            for (size_t i = len; len > 1 && i-- > 0;)
                text[i] = (char)(i ? 0x80 | ((c >> 6 * (len - 1 - i)) & 0x3f)
                                   : (0xf00 >> len & 0xff) | (c >> 6 * (len - 1)));
            int is =
                pcre2_match_8(re, (PCRE2_SPTR8)text, len, 0, PCRE2_NO_UTF_CHECK, match, NULL) > 0;
            if (is != !!(unicode_classes[c] & sets[k].bit)) agreed[c] = 0;
        }
        pcre2_match_data_free_8(match);
        pcre2_code_free_8(re);
    }
    for (uint32_t c = 0; c < 0x110000; c++)
        if (class_is_numeric(c, unicode_classes[c]) && !(unicode_classes[c] & CLASS_NUMBER))
            agreed[c] = 0;
}

static size_t put(uint8_t *at, uint32_t c)
{
    if (c < 0x80) {
        at[0] = (uint8_t)c;
        return 1;
    }
    if (c < 0x800) {
        at[0] = (uint8_t)(0xc0 | c >> 6);
        at[1] = (uint8_t)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        at[0] = (uint8_t)(0xe0 | c >> 12);
        at[1] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
        at[2] = (uint8_t)(0x80 | (c & 0x3f));
        return 3;
    }
    at[0] = (uint8_t)(0xf0 | c >> 18);
    at[1] = (uint8_t)(0x80 | (c >> 12 & 0x3f));
    at[2] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
    at[3] = (uint8_t)(0x80 | (c & 0x3f));
    return 4;
}

static uint32_t random_char(void)
{
    static const uint32_t odd[] = {
        ' ',    ' ',    ' ',    '\n',   '\r',   '\t',    0x85,   0xa0,   0x3000, 0x2028,   '\'',
        '\'',   's',    'S',    't',    'r',    'e',     'E',    'v',    'm',    'l',      'L',
        'd',    0x17f,  'a',    'Z',    '1',    '2',     0x663,  0xe51,  0xb2,   0x216b,   '.',
        '!',    '$',    '_',    0x301,  0x323,  0x93e,   0x20dd, 0x4e00, 0x9fa5, 0x9fa6,   0x3007,
        0x3042, 0x30fb, 0x309c, 0x3099, 0x3040, 0x3005,  0xac00, 0xd7ff, 0x800,  0x7ff,    0x378,
        0,      1,      0x200b, 0xfeff, 0xe000, 0x1f600, 0x20ac, 0x2014, 0xfffd, 0x10ffff, 0xff0c,
        0xff0c, 0x3002, 0x5b57, 0x8fff, 'w',    0x2581,  0x2581};
    uint32_t c;

    if (test_rand_below(4)) return odd[test_rand_below(sizeof odd / sizeof *odd)];
    do
        c = test_rand_below(test_rand_below(2) ? 0x3400 : 0x20000);
    while (!agreed[c]);
    return c;
}

static size_t random_text(uint8_t *text)
{
    size_t len = 0, chars = test_rand_below(1 + test_rand_below(24));
    uint32_t c = 'a';

    for (size_t i = 0; i < chars; i++) {
        if (!i || test_rand_below(3)) c = random_char();
        len += put(text + len, c);
    }
    return len;
}

static void compare(const struct pretok *hand, const struct pretok *peer, size_t model)
{
    uint8_t text[TEXT_MAX];
    size_t len = random_text(text);
    uint8_t *copy = test_guarded_copy(text, len);
    struct words a = {.count = 0}, b = {.count = 0};

    EXPECT_OK(pretok_split(hand, copy, len, note_word, &a));
    EXPECT_OK(pretok_split(peer, copy, len, note_word, &b));
    if (a.count != b.count || memcmp(a.ends, b.ends, a.count * sizeof *a.ends) != 0) {
        fprintf(stderr, "model %zu, text", model);
        for (size_t i = 0; i < len; i++)
            fprintf(stderr, " %02x", text[i]);
        fprintf(stderr, "\n hand");
        for (size_t i = 0; i < a.count; i++)
            fprintf(stderr, " %td", a.ends[i] - copy);
        fprintf(stderr, "\n peer");
        for (size_t i = 0; i < b.count; i++)
            fprintf(stderr, " %td", b.ends[i] - copy);
        fail_msg("the words differ");
    }
    test_guarded_free(copy, len);
}

TEST(matchers_cut_as_the_models_expressions_do)
{
    const int count = test_long() ? 1000000 : 30000;
    struct error err;

    find_agreed();
    for (size_t m = 0; m < MODELS; m++) {
        struct pretok hand = {.kind = models[m].kind}, peer = {.kind = PRETOK_STAGES};
        for (int i = 0; i < 5 && models[m].patterns[i]; i++)
            EXPECT_OK_ERR(pretok_add_stage(&peer, slice_str(models[m].patterns[i]), false,
                                           PRETOK_ISOLATED, false, &err),
                          &err);
        for (int i = 0; i < count; i++)
            compare(&hand, &peer, m);
        pretok_fini(&peer);
    }
}

/* Ends of the words of [text, end), counted from `text`. */
static void words_of(const struct pretok *pretok, const uint8_t *text, const uint8_t *end,
                     struct words *words)
{
    words->count = 0;
    EXPECT_OK(pretok_split(pretok, text, (size_t)(end - text), note_word, words));
}

/* A letter, or a mark U+2581, in every second place: many cuts. */
static size_t text_with_letters(uint8_t *text)
{
    static const uint32_t letters[] = {'a', 'l', 'S', 0x5b57, 0x4e00, 0x2581};
    size_t len = 0, chars = 4 + test_rand_below(20);

    for (size_t i = 0; i < chars; i++)
        len += put(text + len, test_rand_below(2) ? letters[test_rand_below(6)] : random_char());
    return len;
}

/* Every place that pretok_next_cut offers, in random texts: the words in front of it and those behind it, each part
 * split for itself, are the words of the whole. */
TEST(a_cut_changes_no_word_on_either_side)
{
    static const enum pretok_kind kinds[] = {
        PRETOK_GPT2,        PRETOK_LLAMA3,         PRETOK_QWEN2,     PRETOK_SMOLLM,
        PRETOK_DEEPSEEK_V3, PRETOK_DEEPSEEK_CODER, PRETOK_METASPACE, PRETOK_SPM_WORDS};
    struct words whole, front, behind;
    uint8_t text[TEXT_MAX * 4];
    size_t cuts = 0;

    find_agreed();
    for (int round = 0; round < (test_long() ? 1000000 : 30000); round++) {
        struct pretok pretok = {.kind = kinds[round % 8]};
        size_t len = text_with_letters(text);
        const uint8_t *end = text + len, *cut = text + 3;
        words_of(&pretok, text, end, &whole);
        while ((cut = pretok_next_cut(&pretok, cut, end)) < end) {
            words_of(&pretok, text, cut, &front);
            words_of(&pretok, cut, end, &behind);
            EXPECT_EQ(front.count + behind.count, whole.count);
            for (size_t i = 0; i < whole.count; i++)
                EXPECT_TRUE(whole.ends[i] ==
                            (i < front.count ? front.ends[i] : behind.ends[i - front.count]));
            cuts++;
            cut++;
        }
    }
    EXPECT_TRUE(cuts > 15000);
}

TEST(the_models_expressions_are_recognised)
{
    for (size_t m = 0; m < MODELS; m++) {
        struct slice patterns[5];
        uint32_t count = 0;
        while (count < 5 && models[m].patterns[count]) {
            patterns[count] = slice_str(models[m].patterns[count]);
            count++;
        }
        EXPECT_EQ(pretok_recognise(patterns, count), models[m].kind);
        patterns[0].len--;
        EXPECT_EQ(pretok_recognise(patterns, count), PRETOK_STAGES);
    }
}

static enum status count_word(void *ctx, const uint8_t *begin, const uint8_t *end)
{
    (void)begin;
    (void)end;
    ++*(size_t *)ctx;
    return STATUS_OK;
}

static double cpu_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double seconds(const struct pretok *pretok, const uint8_t *text, size_t len)
{
    double best = 1e9;

    for (int i = 0; i < 3; i++) {
        size_t words = 0;
        double start = cpu_seconds();
        EXPECT_OK(pretok_split(pretok, text, len, count_word, &words));
        double took = cpu_seconds() - start;
        if (took < best) best = took;
    }
    return best;
}

TEST(no_run_is_slower_than_linear)
{
    static const char *const units[] = {
        " ",  "a",    "7", "\xcc\x81",     "\xe4\xbd\xa0", "\n", " \n", "'",
        "\t", "\x01", ".", "\xe3\x80\x80", "\x01\xcc\x81", "a ", " '"};
    enum { SMALL = 1 << 18, LARGE = 1 << 20 };
    uint8_t *text = malloc(LARGE);

    unicode_class_init();
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t unit = strlen(units[u]), len = LARGE / unit * unit, quarter = SMALL / unit * unit;
        for (size_t at = 0; at < len; at += unit)
            memcpy(text + at, units[u], unit);
        for (size_t m = 0; m < MODELS; m++) {
            struct pretok hand = {.kind = models[m].kind};
            double small = seconds(&hand, text, quarter), large = seconds(&hand, text, len);
            if (large > 10 * small + 0.02)
                fail_msg("model %zu, unit %zu: %.4f s, four times the text %.4f s", m, u, small,
                         large);
        }
    }
    free(text);
}

TEST(a_pattern_that_cannot_be_used_is_refused_with_pcre2s_words)
{
    struct pretok pretok = {.kind = PRETOK_STAGES};
    struct error err;

    EXPECT_EQ(pretok_add_stage(&pretok, SLICE("(a"), false, PRETOK_ISOLATED, false, &err),
              STATUS_UNSUPPORTED);
    EXPECT_TRUE(strstr(err.message, "'(a'") != NULL);
    EXPECT_EQ(pretok_from_gguf(&pretok, SLICE("no-such"), &err), STATUS_UNSUPPORTED);
    EXPECT_TRUE(strstr(err.message, "no-such") != NULL);
}

TEST(every_gguf_pre_tokenizer_compiles)
{
    static const char *const names[] = {"gpt-2",        "llama-bpe",      "qwen2",
                                        "smollm",       "deepseek-coder", "deepseek-v3",
                                        "deepseek-llm", "tekken",         "gpt-4o"};
    struct error err;

    unicode_class_init();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct pretok pretok = {0};
        size_t words = 0;
        EXPECT_OK_ERR(pretok_from_gguf(&pretok, slice_str(names[i]), &err), &err);
        EXPECT_OK(pretok_split(&pretok, (const uint8_t *)"Hello world 12", 14, count_word, &words));
        EXPECT_TRUE(words >= 3);
        pretok_fini(&pretok);
    }
}

TEST(a_pattern_without_end_stops_at_its_limit)
{
    struct pretok pretok = {0};
    struct error err;
    uint8_t text[4000];
    size_t words = 0;

    memset(text, 'a', sizeof text);
    EXPECT_OK_ERR(
        pretok_add_stage(&pretok, SLICE("(?:a|aa)+\\d"), false, PRETOK_ISOLATED, false, &err),
        &err);
    EXPECT_EQ(pretok_split(&pretok, text, sizeof text, count_word, &words), STATUS_LIMIT);
    pretok_fini(&pretok);
}
