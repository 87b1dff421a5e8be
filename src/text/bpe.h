/* bpe.h - byte pair encoding of one word, and the vocabulary that it looks words up in.
 *
 * Symbols are token ids. A word starts as the ids of its bytes (byte-level) or of its characters
 * with byte fallback (SentencePiece); then the adjacent pair of lowest rank, the leftmost of
 * equals, is replaced by its merge until no pair has one. A word that is a token, and that merging
 * would give as that one token, is found by one look-up: whether it would is found out at its first
 * use and kept in `whole` (relaxed atomics: every thread finds the same). Short words merge by
 * scanning, long ones through a heap: O(n log n); very long ones in chunks, so that the room is bounded. Thread: struct bpe immutable but for `whole`;
 * struct bpe_work belongs to one call. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/slice.h"
#include "base/status.h"
#include "text/bpe_chars.h"
#include "text/tokenizer.h"

enum { BPE_NONE = -1 };

/* Byte strings of all ids, one after the other. */
struct token_table {
    uint8_t *pool;    /* owned */
    uint32_t *offset; /* owned, [count + 1] */
    uint32_t count;
};
struct slice token_table_at(const struct token_table *table,
                            int32_t id); /* empty when out of range */
void token_table_fini(struct token_table *table);

struct bpe {
    struct token_table keys; /* what a word must be to be that token */
    struct word_slot *words; /* owned: hash table of keys, open addressing */
    uint32_t word_mask;      /* slots - 1 */
    struct pair_slot *pairs; /* owned: hash table of merges */
    uint8_t *pair_bits;      /* owned: one bit or more for every pair that merges, see bpe.c */
    uint32_t pair_mask, pair_count;
    uint32_t pair_ranks;          /* largest rank + 1 */
    struct byte_pair *byte_pairs; /* owned, [256 * 256] or NULL: merges of two bytes' tokens */
    struct bpe_chars chars;       /* empty where byte_pairs is NULL */
    _Atomic uint8_t *whole;       /* owned, [keys.count] */
    uint64_t seed;                /* of both hashes: the vocabulary comes from a file */
    int32_t byte_id[256];         /* byte-level: the token of a byte, or BPE_NONE */
    int32_t fallback_id[256];     /* the token <0xNN>, or BPE_NONE */
    int32_t unk;                  /* for a character that has no token, or BPE_NONE: dropped */
    bool by_chars;                /* symbols start as characters, not bytes */
    bool byte_fallback, fuse_unk; /* as in tokenizer.json */
    bool ignore_merges; /* a word that is a token is that token, whatever the merges say */
};

/* Builds the table of words from keys; usable[id] false: the token is in no word (keys of control
 * tokens). Of equal keys the larger id counts. keys must be set. Errors: STATUS_NOMEM. */
enum status bpe_index_words(struct bpe *bpe, const bool *usable);
/* The token whose key is exactly `word`, or BPE_NONE. */
int32_t bpe_find(const struct bpe *bpe, struct slice word);

/* Makes room for `count` merges (also for none), then adds them: `left` and `right` join to
 * `merged`. Of a pair given twice the last counts. Errors: STATUS_NOMEM, STATUS_LIMIT. */
enum status bpe_reserve_pairs(struct bpe *bpe, uint64_t count);
void bpe_add_pair(struct bpe *bpe, int32_t left, int32_t right, int32_t merged, uint32_t rank);

/* Whether the two merge, and then to what. */
bool bpe_pair(const struct bpe *bpe, int32_t left, int32_t right, uint32_t *rank, int32_t *merged);

/* When all merges are there: makes the tables of pairs of bytes and of characters (without them, it is only slower). */
void bpe_index_bytes(struct bpe *bpe);

/* Calls `fn` for every merge. */
typedef void bpe_pair_fn(void *ctx, int32_t left, int32_t right, uint32_t rank);
void bpe_each_pair(const struct bpe *bpe, bpe_pair_fn *fn, void *ctx);
/* Whether `test` holds for the token of any merge. */
bool bpe_any_merge(const struct bpe *bpe, bool (*test)(const struct bpe *bpe, int32_t merged));

void bpe_fini(struct bpe *bpe);

/* What one call of tokenizer_encode needs for itself. {0} is empty. */
struct bpe_work {
    int32_t *ids;   /* owned, [cap] */
    uint32_t *span; /* owned, [cap]: see merge_long */
    uint32_t *rank; /* owned, [cap] */
    size_t cap;
    uint64_t *heap; /* owned */
    size_t heap_count, heap_cap;
    struct cached_word *cache; /* owned, NULL: none */
    uint32_t cache_mask;
    uint32_t cache_slots; /* to be made at the first use; 0: made already, or not wanted */
    uint32_t epoch;       /* entries of another epoch point at memory that is gone */
    size_t chunk_bytes;   /* longer words are merged in parts */
};
void bpe_work_init(struct bpe_work *work, size_t text_bytes);
void bpe_work_fini(struct bpe_work *work);
/* Room for something of `bytes` bytes, valid until the next call for this work; NULL: no memory. */
void *bpe_work_bytes(struct bpe_work *work, size_t bytes);
/* The bytes of earlier words have moved or are gone. */
void bpe_work_forget(struct bpe_work *work);

/* Appends the ids of a word. Errors: STATUS_NOMEM, STATUS_LIMIT (2^31 symbols). */
enum status bpe_encode(const struct bpe *bpe, struct bpe_work *work, struct slice word,
                       struct token_list *out);
