/* bpe_chars.h - characters of two and three bytes that byte pair encoding surely makes one symbol of, so that a word can
 * start with them instead of their bytes.
 *
 * The merges inside a character happen before anything is merged across its borders when every merge across them has a
 * higher rank: `border` has, for the last byte before a border and the first one behind it, the lowest rank of all
 * merges of two tokens that end and begin so. Then starting with the character changes nothing: what merges with it comes
 * later anyway. This is checked for each character where it stands, so the result is exact for any list of merges.
 * Chinese text starts with a third of the symbols. Thread: immutable after bpe_chars_build. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/slice.h"

struct bpe;

/* The symbol of a character and the rank of the last merge inside it. */
struct bpe_char {
    int32_t id; /* 0 with rank 0: its bytes do not become one */
    uint32_t rank;
};

struct bpe_chars {
    struct bpe_char *chars; /* owned, [65536] by code point; NULL: none */
    uint32_t *border;       /* owned, [256 * 256]: last byte << 8 | first byte */
};

/* For a byte-level vocabulary whose merges are all there, and that has a token for every byte. Without memory it stays
 * empty: that is only slower. */
void bpe_chars_build(struct bpe_chars *chars, const struct bpe *bpe);
void bpe_chars_fini(struct bpe_chars *chars);

/* The symbol that the character at `at` of a word may start as; *len: its bytes. -1: start with its bytes. */
int32_t bpe_chars_at(const struct bpe_chars *chars, struct slice word, size_t at, unsigned *len);
