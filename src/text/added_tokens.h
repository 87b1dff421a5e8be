/* added_tokens.h - finds the texts of added tokens (<|im_end|>, <think>) in a text.
 *
 * At every place, from the left, the longest of them that stands there counts, as the reference's
 * leftmost-longest automaton has it. O(bytes of the text times the longest token) at worst, in
 * practice a scan for the first bytes. Thread: immutable after it is built. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/slice.h"
#include "base/status.h"
#include "text/normalize.h"

struct added_token {
    int32_t id;
    struct slice content; /* borrowed from the token table's arena */
    bool special, single_word, lstrip, rstrip, normalized;
};

struct added_trie {
    struct trie_node *nodes; /* owned; [0] is the root */
    uint32_t node_count, node_cap;
    bool first[256];  /* bytes that a token starts with */
    int single_first; /* the only such byte, or -1 */
    bool any;         /* not empty */
};

/* Adds a text that is token number `index` of the caller's array. Empty texts are left out; of
 * equal ones the first counts. Errors: STATUS_NOMEM, STATUS_LIMIT. */
enum status added_trie_add(struct added_trie *trie, struct slice text, uint32_t index);
void added_trie_fini(struct added_trie *trie);

struct added_match {
    const struct added_token *token;
    size_t begin, end; /* bytes, with the spaces that lstrip and rstrip take */
};

struct added_search {
    const struct added_trie *trie;
    const struct added_token *tokens; /* what the indices mean */
    struct slice text;
    struct range_view untrusted; /* a match that touches one of these is none */
    bool skip_special;           /* tokens marked special are plain text */
    size_t at;                   /* where the search goes on */
    size_t taken;                /* end of the last match */
};

/* The next match at or behind search->at; false when there is none. */
bool added_next(struct added_search *search, struct added_match *match);
