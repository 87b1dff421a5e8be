/* unigram.h - SentencePiece's unigram model: of all ways to cut a word into pieces of the vocabulary, the one with the
 * best sum of scores (log probabilities), by Viterbi's algorithm.
 *
 * A character that no piece of its own stands for costs the lowest score less 10; a run of such characters is one
 * unknown token, or with byte fallback its bytes. Of equal sums the one found first counts, which is the one whose last
 * piece is longer. Sums are doubles added from the left. All as in Hugging Face tokenizers 0.23 (encode_optimized).
 * The pieces are a trie of bytes kept in the table of pairs of struct bpe, which merging does not need here: left is a
 * node, right a byte, merged the child, rank the id that ends there or UNIGRAM_NO_PIECE. Thread: immutable. */
#pragma once

#include "text/bpe.h"

static const uint32_t UNIGRAM_NO_PIECE = UINT32_MAX - 1;

struct unigram {
    double *scores; /* owned, [keys.count]; NULL: the model is not a unigram model */
    double unk_score;
};

/* Takes the scores of all ids of bpe->keys (`scores`, also when it fails); usable ids are those that bpe_find finds.
 * low: the lowest score, from which that of an unknown character follows. */
enum status unigram_build(struct unigram *unigram, struct bpe *bpe, double *scores, double low);
void unigram_fini(struct unigram *unigram);

/* Appends the ids of a word. O(bytes times the longest piece). Errors: STATUS_NOMEM. */
enum status unigram_encode(const struct unigram *unigram, const struct bpe *bpe,
                           struct bpe_work *work, struct slice word, struct token_list *out);
