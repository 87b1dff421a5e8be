/* test_detok_stop.c - streamed text equals whole text, and stop strings are found whatever the cuts
 * are.
 *
 * Method: the known faults kf-01 and kf-02 (tests/golden/known_faults_text.jsonl) row by row;
 * random bytes against a repair written in the plainest way; random texts in random cuts against a
 * search that tries every string at every place. */
#include "test.h"

#include <jansson.h>
#include <stdlib.h>

#include "text/detok.h"
#include "text/stop.h"
#include "text_fixture.h"

/* The row of the file with this id; the caller decrefs. */
static json_t *known_fault(const char *id)
{
    char *line = NULL;
    size_t cap = 0;
    int pipe;
    json_t *found = NULL;
    FILE *f = fixture_lines("known_faults_text.jsonl", &pipe);

    EXPECT_TRUE(f != NULL);
    while (!found && getline(&line, &cap, f) > 0) {
        json_t *row = json_loads(line, 0, NULL);
        if (strcmp(json_string_value(json_object_get(row, "id")), id) == 0)
            found = json_incref(row);
        json_decref(row);
    }
    fixture_close(f, pipe);
    free(line);
    EXPECT_TRUE(found != NULL);
    return found;
}

static const json_t *rows_of(const json_t *fault, const char *part)
{
    return json_object_get(json_object_get(fault, part), "rows");
}

/* --- detokenising --- */

static size_t unhex(const char *hex, char *out)
{
    size_t n = 0;

    for (; hex[2 * n]; n++) {
        unsigned byte;
        EXPECT_EQ(sscanf(hex + 2 * n, "%2x", &byte), 1);
        out[n] = (char)byte;
    }
    return n;
}

static void check_byte_row(const json_t *given, const json_t *want)
{
    const json_t *tokens = json_object_get(given, "token_bytes_hex"),
                 *deltas = json_object_get(want, "deltas");
    struct detok d;
    struct buf all;
    char bytes[16];

    buf_init(&all, 0);
    detok_init(&d, NULL, false);
    for (size_t i = 0; i < json_array_size(tokens); i++) {
        size_t len = unhex(json_string_value(json_array_get(tokens, i)), bytes), from = all.len;
        detok_push_bytes(&d, slice_of(bytes, len), &all);
        if (deltas) EXPECT_STR(buf_cstr(&all) + from, json_string_value(json_array_get(deltas, i)));
    }
    detok_flush(&d, &all);
    if (deltas)
        EXPECT_STR(buf_cstr(&all), json_string_value(json_object_get(want, "text")));
    else
        EXPECT_STR(buf_cstr(&all), "A\xef\xbf\xbd"); /* row b: A, then U+FFFD */
    buf_fini(&all);
}

/* A SentencePiece tokenizer whose vocabulary is the pieces of the row. */
static void check_piece_row(const json_t *given, const json_t *want)
{
    const json_t *pieces = json_object_get(given, "pieces"),
                 *deltas = json_object_get(want, "deltas");
    json_t *vocab = json_object();
    struct error err;
    enum status st;
    struct detok d;
    struct buf all, whole;
    int32_t ids[16];

    for (size_t i = 0; i < json_array_size(pieces); i++) {
        json_object_set_new(vocab, json_string_value(json_array_get(pieces, i)),
                            json_integer((json_int_t)i));
        ids[i] = (int32_t)i;
    }
    json_t *root = json_pack("{s{sss[]so}s{sss[{ss s{ss} ss}{ss}{ss}{ss ss si si}]}}", "model",
                             "type", "BPE", "merges", "vocab", vocab, "decoder", "type", "Sequence",
                             "decoders", "type", "Replace", "pattern", "String", "\xe2\x96\x81",
                             "content", " ", "type", "ByteFallback", "type", "Fuse", "type",
                             "Strip", "content", " ", "start", 1, "stop", 0);
    EXPECT_TRUE(root != NULL);
    char *text = json_dumps(root, 0);
    struct tokenizer *tok = fixture_from_text(text, NULL, NULL, &st, &err);
    EXPECT_OK_ERR(st, &err);
    buf_init(&all, 0);
    buf_init(&whole, 0);
    detok_init(&d, tok, true);
    for (size_t i = 0; i < json_array_size(pieces); i++) {
        size_t from = all.len;
        detok_push(&d, ids[i], &all);
        if (deltas) EXPECT_STR(buf_cstr(&all) + from, json_string_value(json_array_get(deltas, i)));
    }
    detok_flush(&d, &all);
    EXPECT_OK(tokenizer_decode(tok, ids, json_array_size(pieces), true, &whole));
    EXPECT_STR(buf_cstr(&all), json_string_value(json_object_get(want, "text")));
    EXPECT_STR(buf_cstr(&whole), buf_cstr(&all));
    buf_fini(&all);
    buf_fini(&whole);
    free(text);
    json_decref(root);
    tokenizer_close(tok);
}

TEST(known_fault_01_characters_spread_over_tokens_stay_whole)
{
    json_t *fault = known_fault("kf-01");
    const json_t *given = rows_of(fault, "request-or-input"), *want = rows_of(fault, "expected");

    EXPECT_EQ(json_array_size(given), 5);
    for (size_t i = 0; i < json_array_size(given); i++) {
        const json_t *row = json_array_get(given, i);
        if (json_object_get(row, "pieces"))
            check_piece_row(row, json_array_get(want, i));
        else
            check_byte_row(row, json_array_get(want, i));
    }
    json_decref(fault);
}

/* Unicode table 3-7 as a list of forms; the longest prefix of any form is a maximal part. */
static size_t plain_part(const uint8_t *p, size_t len, int *good)
{
    static const uint8_t forms[][8] = {{0x00, 0x7f},
                                       {0xc2, 0xdf, 0x80, 0xbf},
                                       {0xe0, 0xe0, 0xa0, 0xbf, 0x80, 0xbf},
                                       {0xe1, 0xec, 0x80, 0xbf, 0x80, 0xbf},
                                       {0xed, 0xed, 0x80, 0x9f, 0x80, 0xbf},
                                       {0xee, 0xef, 0x80, 0xbf, 0x80, 0xbf},
                                       {0xf0, 0xf0, 0x90, 0xbf, 0x80, 0xbf, 0x80, 0xbf},
                                       {0xf1, 0xf3, 0x80, 0xbf, 0x80, 0xbf, 0x80, 0xbf},
                                       {0xf4, 0xf4, 0x80, 0x8f, 0x80, 0xbf, 0x80, 0xbf}};
    static const size_t lens[] = {1, 2, 3, 3, 3, 3, 4, 4, 4};
    size_t best = 1;

    *good = 0;
    for (size_t f = 0; f < 9; f++) {
        size_t n = 0;
        while (n < lens[f] && n < len && p[n] >= forms[f][2 * n] && p[n] <= forms[f][2 * n + 1])
            n++;
        if (n == lens[f]) *good = 1;
        if (n > best) best = n;
    }
    return best;
}

static uint8_t random_byte(void)
{
    static const uint8_t odd[] = {'a',  0x80, 0xbf, 0xc0, 0xc2, 0xc3, 0xe0, 0xa0, 0x9f,
                                  0xed, 0xef, 0xf0, 0x90, 0x8f, 0xf4, 0xf5, 0xff, 0xe2};

    return test_rand_below(5) ? odd[test_rand_below(sizeof odd)] : (uint8_t)test_rand();
}

TEST(bytes_in_any_cuts_are_repaired_as_the_unicode_standard_says)
{
    for (int round = 0; round < (test_long() ? 2000000 : 50000); round++) {
        uint8_t bytes[32];
        size_t len = test_rand_below(sizeof bytes + 1);
        struct buf want, got;
        struct detok d;
        int good;

        buf_init(&want, 0);
        buf_init(&got, 0);
        for (size_t i = 0; i < len; i++)
            bytes[i] = random_byte();
        for (size_t i = 0; i < len;) {
            size_t part = plain_part(bytes + i, len - i, &good);
            if (good)
                buf_append(&want, bytes + i, part);
            else
                buf_append_str(&want, "\xef\xbf\xbd");
            i += part;
        }
        detok_init(&d, NULL, false);
        for (size_t i = 0, n; i < len; i += n) {
            n = 1 + test_rand_below((uint32_t)(len - i));
            detok_push_bytes(&d, slice_of(bytes + i, n), &got);
            EXPECT_TRUE(d.held_len < 4);
        }
        detok_flush(&d, &got);
        EXPECT_EQ(got.len, want.len);
        EXPECT_TRUE(slice_eq(buf_slice(&got), buf_slice(&want)));
        buf_fini(&want);
        buf_fini(&got);
    }
}

/* --- stop strings --- */

/* Feeds the pieces; returns the index that matched or -1, and ends the stream when none did. */
static int run_stop(const struct stop_set *set, const struct slice *pieces, size_t count,
                    bool include, struct buf *out)
{
    struct stop_state state;
    int match = -1;

    stop_state_init(&state, set);
    for (size_t i = 0; i < count && match < 0; i++)
        match = stop_push(&state, pieces[i], true, include, out);
    if (match < 0) stop_flush(&state, out);
    stop_state_fini(&state);
    return match;
}

TEST(known_fault_02_stop_strings_across_tokens)
{
    json_t *fault = known_fault("kf-02");
    const json_t *given = rows_of(fault, "request-or-input"), *want = rows_of(fault, "expected");

    EXPECT_EQ(json_array_size(given), 7);
    for (size_t i = 0; i < json_array_size(given); i++) {
        const json_t *row = json_array_get(given, i), *expected = json_array_get(want, i);
        const json_t *tokens = json_object_get(row, "tokens");
        const char *reason = json_string_value(json_object_get(expected, "finish_reason"));
        struct slice stop = slice_str(
                         json_string_value(json_array_get(json_object_get(row, "stop"), 0))),
                     pieces[16];
        struct stop_set *set;
        struct buf out;

        if (!stop.len) { /* row f: refused, so that the request is */
            EXPECT_EQ(stop_set_create(&stop, 1, &set), STATUS_INVALID);
            continue;
        }
        EXPECT_OK(stop_set_create(&stop, 1, &set));
        for (size_t k = 0; k < json_array_size(tokens); k++)
            pieces[k] = slice_str(json_string_value(json_array_get(tokens, k)));
        buf_init(&out, 0);
        int match = run_stop(set, pieces, json_array_size(tokens), false, &out);
        EXPECT_STR(buf_cstr(&out), json_string_value(json_object_get(expected, "text")));
        const char *end = json_string_value(json_object_get(row, "end"));
        EXPECT_EQ(match >= 0, strcmp(reason, "stop") == 0 && !(end && strcmp(end, "eos") == 0));
        buf_fini(&out);
        stop_set_destroy(set);
    }
    json_decref(fault);
}

struct found {
    int match;
    size_t begin, end;
};

/* Every string at every end, the longest first. */
static struct found plain_search(const struct slice *strings, uint32_t count, const char *text,
                                 size_t len)
{
    for (size_t end = 1; end <= len; end++) {
        struct found best = {-1, 0, end};
        for (uint32_t i = 0; i < count; i++) {
            size_t n = strings[i].len;
            if (n <= end && memcmp(text + end - n, strings[i].ptr, n) == 0 &&
                (best.match < 0 || n > strings[best.match].len))
                best = (struct found){(int)i, end - n, end};
        }
        if (best.match >= 0) return best;
    }
    return (struct found){-1, len, len};
}

static void random_letters(char *out, size_t len)
{
    for (size_t i = 0; i < len; i++)
        out[i] = (char)('a' + test_rand_below(3));
}

TEST(stop_strings_are_found_in_any_cuts_as_by_plain_search)
{
    for (int round = 0; round < (test_long() ? 500000 : 20000); round++) {
        char store[8][8], text[64];
        struct slice strings[8], pieces[64];
        uint32_t count = 1 + test_rand_below(8);
        size_t len = test_rand_below(sizeof text + 1), cuts = 0;
        bool include = test_rand_below(2);
        struct stop_set *set;
        struct buf out;

        for (uint32_t i = 0; i < count; i++) {
            strings[i] = slice_of(store[i], 1 + test_rand_below(test_rand_below(2) ? 8 : 4));
            random_letters(store[i], strings[i].len);
        }
        random_letters(text, len);
        for (size_t i = 0, n; i < len; i += n) {
            n = 1 + test_rand_below((uint32_t)(len - i));
            pieces[cuts++] = slice_of(text + i, n);
        }
        EXPECT_OK(stop_set_create(strings, count, &set));
        buf_init(&out, 0);
        struct found want = plain_search(strings, count, text, len);
        int match = run_stop(set, pieces, cuts, include, &out);
        EXPECT_EQ(match < 0, want.match < 0);
        if (match >= 0)
            EXPECT_TRUE(slice_eq(stop_set_string(set, (uint32_t)match), strings[want.match]));
        EXPECT_EQ(out.len, include ? want.end : want.begin);
        EXPECT_TRUE(out.len == 0 || memcmp(out.ptr, text, out.len) == 0);
        buf_fini(&out);
        stop_set_destroy(set);
    }
}

TEST(text_is_held_only_while_it_may_begin_a_match)
{
    struct slice stop = SLICE("END");
    struct stop_state stream;
    struct stop_set *set;
    struct buf out;

    EXPECT_OK(stop_set_create(&stop, 1, &set));
    stop_state_init(&stream, set);
    buf_init(&out, 0);
    EXPECT_EQ(stop_push(&stream, SLICE("x EN"), true, false, &out), -1);
    EXPECT_STR(buf_cstr(&out), "x ");
    EXPECT_EQ(stop_push(&stream, SLICE("E"), true, false, &out), -1);
    EXPECT_STR(buf_cstr(&out), "x EN"); /* the second E may still begin one */
    stop_flush(&stream, &out);
    EXPECT_STR(buf_cstr(&out), "x ENE");
    stop_state_fini(&stream);
    buf_fini(&out);
    stop_set_destroy(set);
}

TEST(unarmed_matches_do_not_count_but_may_begin_one_that_does)
{
    struct slice stop = SLICE("END");
    struct stop_state stream;
    struct stop_set *set;
    struct buf out;

    EXPECT_OK(stop_set_create(&stop, 1, &set));
    stop_state_init(&stream, set);
    buf_init(&out, 0);
    EXPECT_EQ(stop_push(&stream, SLICE("END E"), false, false, &out), -1);
    EXPECT_STR(buf_cstr(&out), "END ");
    EXPECT_EQ(stop_push(&stream, SLICE("ND z"), true, false, &out), 0); /* ends in armed text */
    EXPECT_STR(buf_cstr(&out), "END ");
    EXPECT_EQ(stop_push(&stream, SLICE(""), true, false, &out), -1);
    stop_state_fini(&stream);
    buf_fini(&out);
    stop_set_destroy(set);
}

TEST(a_stop_set_refuses_what_is_out_of_bounds)
{
    static char big[STOP_STRING_BYTES_MAX + 1];
    struct slice many[STOP_STRINGS_MAX + 1];
    struct stop_set *set;

    memset(big, 'a', sizeof big);
    for (size_t i = 0; i <= STOP_STRINGS_MAX; i++)
        many[i] = slice_of(big, STOP_STRING_BYTES_MAX);
    EXPECT_EQ(stop_set_create(many, 0, &set), STATUS_INVALID);
    EXPECT_EQ(stop_set_create(many, STOP_STRINGS_MAX + 1, &set), STATUS_INVALID);
    many[0] = slice_of(big, sizeof big);
    EXPECT_EQ(stop_set_create(many, 1, &set), STATUS_INVALID);
    many[0] = slice_of(big, STOP_STRING_BYTES_MAX);
    EXPECT_OK(stop_set_create(many, STOP_STRINGS_MAX, &set));
    stop_set_destroy(set);
    stop_set_destroy(NULL);
}
