/* spm.h - what SentencePiece-style BPE needs beside bpe.h. */
#pragma once

#include "text/tokenizer_impl.h"

/* Makes the merges of a vocabulary with scores, as SentencePiece and llama.cpp merge: any two
 * tokens that together are a token, the best score first. scores: [keys.count]. Errors:
 * STATUS_NOMEM, STATUS_LIMIT. */
enum status spm_merges_of_scores(struct bpe *bpe, const float *scores);

/* SentencePiece takes the whole text as one word. Where no merge (unigram: no piece) joins something to a
 * U+2581 behind it (true of the vocabularies in use), cutting in front of every run of U+2581 gives
 * the same tokens, and words become short: then tok->pretok is PRETOK_SPM_WORDS. */
void spm_cut_at_spaces(struct tokenizer *tok);
