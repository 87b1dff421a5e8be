/* tokenizer.h - text to token ids and back, exactly as the model's own tokenizer does it.
 *
 * One immutable `struct tokenizer` per model, from tokenizer.json or from GGUF metadata: byte-level
 * BPE (bpe.c) with the model's pre-tokenizer, SentencePiece-style BPE with byte fallback
 * (spm.c), or its unigram model (unigram.c). Ids are equal to Hugging Face `tokenizers` on
 * tests/golden/tokenizer_vectors and tests/golden/unigram. Thread: any number at once after
 * tokenizer_open, without locks. Time: O(n log n) at worst in the length of the text; what was
 * tokenised before is mostly found (segment_cache.h).
 * Owns: everything it needs; the weights may be closed after tokenizer_open. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/slice.h"
#include "base/status.h"

struct tokenizer; /* opaque */
struct weights;

/* A growing array of token ids. {0} is empty; ends with token_list_fini. */
struct token_list {
    int32_t *ids; /* owned */
    size_t count, cap;
};
void token_list_fini(struct token_list *list);
enum status token_list_push(struct token_list *list, int32_t id); /* STATUS_NOMEM */
/* Makes room for `extra` more ids and returns where they go, or NULL (no memory). The caller adds what it wrote to
 * list->count. */
int32_t *token_list_reserve(struct token_list *list, size_t extra);
/* Drops all but the last `count`. False: there were no more. */
bool token_list_keep_last(struct token_list *list, uint64_t count);

/* Bytes [begin, end) of a text; sorted and disjoint in a list. */
struct text_range {
    size_t begin, end;
};

/* Makes the tokenizer of an opened model (or of a folder with tokenizer files only). Errors:
 * STATUS_NOT_FOUND (the model has none), STATUS_CORRUPT, STATUS_UNSUPPORTED (a pre-tokenizer,
 * normaliser, model or post-processor that we do not reproduce, by name), STATUS_LIMIT,
 * STATUS_NOMEM. */
enum status tokenizer_open(struct weights *weights, struct tokenizer **out, struct error *err);
void tokenizer_close(struct tokenizer *tok); /* takes NULL */

/* The built-in tokenizer, for made-up weights in a folder that has none: token b is the byte b, 0 to 255; token
 * TOKENIZER_BYTES_END, special, ends a text and is written as below. Nothing is put around a text, so ids and text are
 * each other's exact image, but for ill-formed UTF-8 (tokenizer_encode). Errors: STATUS_NOMEM. */
enum { TOKENIZER_BYTES_END = 256 };
#define TOKENIZER_BYTES_END_TEXT "<|endoftext|>"
enum status tokenizer_open_bytes(struct tokenizer **out, struct error *err);

enum tokenize_flags {
    TOKENIZE_ADD_SPECIAL = 1,   /* BOS/EOS as the model's post-processor or add_bos_token says */
    TOKENIZE_PARSE_SPECIAL = 2, /* text of added tokens marked special becomes those tokens */
    TOKENIZE_NO_ADDED = 4,      /* no added token is recognised at all, special or not */
};

/* Appends the ids of `text` (any bytes; ill-formed UTF-8 is read as the reference reads U+FFFD) to
 * *out. untrusted (may be NULL, count 0): ranges in which no added token is recognised; a match
 * that touches one is no match. Everything else is tokenised as one text, whatever the ranges.
 * Errors (then *out is as before): STATUS_NOMEM; STATUS_LIMIT (over 1 GiB, or a pattern of a
 * pre-tokenizer that is not built in ran over its match limit). */
enum status tokenizer_encode(const struct tokenizer *tok, struct slice text, unsigned flags,
                             const struct text_range *untrusted, size_t untrusted_count,
                             struct token_list *out);

/* The whole text of ids, ill-formed bytes as U+FFFD (one per maximal ill-formed part). Ids out of
 * range are STATUS_INVALID. skip_special leaves special tokens out. */
enum status tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, size_t count,
                             bool skip_special, struct buf *out);

/* Size of the id space: the largest id + 1 of vocabulary and added tokens. A model's logits may
 * have more rows. */
uint32_t tokenizer_vocab_size(const struct tokenizer *tok);

/* The raw bytes that the token adds to a text in the middle of it (byte-level decoded, U+2581 as a
 * space, <0xNN> as the byte); for a special token its name. Empty for an id that has no token.
 * Borrowed for ever. */
struct slice tokenizer_token_bytes(const struct tokenizer *tok, int32_t id);
bool tokenizer_is_special(const struct tokenizer *tok,
                          int32_t id); /* marked special: left out by skip_special */
bool tokenizer_is_added(const struct tokenizer *tok, int32_t id);
/* The id whose token is exactly `text` (added tokens first), or -1. */
int32_t tokenizer_find(const struct tokenizer *tok, struct slice text);

/* -1 where the model has none. eos list: all ids that end a generation (generation_config.json,
 * config.json, GGUF eos/eot/eom), ascending, borrowed. */
int32_t tokenizer_bos(const struct tokenizer *tok);
int32_t tokenizer_eos(const struct tokenizer *tok);
int32_t tokenizer_pad(const struct tokenizer *tok);
int32_t tokenizer_unk(const struct tokenizer *tok);
const int32_t *tokenizer_eos_list(const struct tokenizer *tok, uint32_t *count);
bool tokenizer_adds_bos(const struct tokenizer *tok);
/* "byte-level BPE, pre-tokenizer llama-bpe, 128256 tokens": for inspect and logs. */
const char *tokenizer_description(const struct tokenizer *tok);

/* For detok.c: whether decoding strips one space from the start of the text (SentencePiece), and
 * from a text that starts after special tokens only, as the model's decoder does. */
bool tokenizer_strips_first_space(const struct tokenizer *tok);
