/* normalize.h - what a tokenizer does to a text before it looks for words: NFC, SentencePiece's table, U+2581 in
 * front, replacing.
 *
 * Works on the pieces between added tokens. Beside the text it carries the ranges that came from
 * outside, so that they are known in the result too. Thread: immutable after it is made. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/slice.h"
#include "base/status.h"
#include "text/tokenizer.h"

/* A growing list of ranges: sorted, disjoint, touching ones joined. Ends with range_list_fini. */
struct range_list {
    struct text_range *at; /* owned */
    size_t count, cap;
};
void range_list_fini(struct range_list *list);
/* Appends; a range that touches the last one is joined to it, an empty one is left out. */
enum status range_list_add(struct range_list *list, size_t begin, size_t end);

/* The part of sorted ranges that may touch [begin, end): *first and count of them. */
struct range_view {
    const struct text_range *at;
    size_t count;
};
struct range_view range_view_of(struct range_view all, size_t begin, size_t end);

enum normalize_kind {
    NORMALIZE_NFC,
    NORMALIZE_PREPEND,         /* `with` in front of a text that is not empty */
    NORMALIZE_PREPEND_MISSING, /* the same unless it stands there (Metaspace, add_prefix_space) */
    NORMALIZE_REPLACE,         /* every `from` becomes `with` */
    NORMALIZE_SQUEEZE,         /* two or more `from` in a row become one `with` */
    NORMALIZE_STRIP,           /* white space goes, at the ends that left and right say */
    NORMALIZE_CHARSMAP,        /* by `map`, see charsmap.h */
    NORMALIZE_WORDS, /* white space goes, and each word gets `with` in front unless it stands there (WhitespaceSplit,
                           then Metaspace) */
    NORMALIZE_SPM_WORDS /* spaces (U+0020) go, and each word gets `with` in front, the first one if `left` says so
                           (SentencePiece's remove_extra_whitespaces and add_dummy_prefix) */
};
struct charsmap;
enum { NORMALIZE_STEPS_MAX = 8, NORMALIZE_TEXT_MAX = 16 };
struct normalize_step {
    enum normalize_kind kind;
    uint8_t from_len, with_len; /* bytes */
    bool left, right;
    bool by_clusters;           /* of the charsmap */
    const struct charsmap *map; /* borrowed */
    char from[NORMALIZE_TEXT_MAX], with[NORMALIZE_TEXT_MAX];
};
struct normalizer {
    struct normalize_step steps[NORMALIZE_STEPS_MAX];
    uint32_t count;
};

/* Errors: STATUS_UNSUPPORTED (too many steps, or texts longer than NORMALIZE_TEXT_MAX). */
enum status normalizer_add(struct normalizer *n, enum normalize_kind kind, struct slice from,
                           struct slice with, struct error *err);

/* The same with the fields of `step` that are not its texts. */
enum status normalizer_add_step(struct normalizer *n, struct normalize_step step, struct slice from,
                                struct slice with, struct error *err);

/* A text on its way. `text` is the caller's, or lies in one of the buffers. {0}, ends with
 * normalized_fini; normalized_set starts the next text in the same memory. */
struct normalized {
    struct slice text;
    struct range_view marks; /* ranges of text that came from outside */
    struct buf buffers[2];
    struct range_list lists[2];
    unsigned turn;
    bool moved; /* text is not the caller's any more */
};
void normalized_set(struct normalized *state, struct slice text, struct range_view marks);
void normalized_fini(struct normalized *state);

/* Applies all steps; well-formed UTF-8 in and out. Errors: STATUS_NOMEM. O(bytes). */
enum status normalize(const struct normalizer *n, struct normalized *state);
/* Replaces ill-formed parts by U+FFFD (as if a step): any bytes in. */
enum status normalize_utf8(struct normalized *state);
