/* tokenizer_impl.h - the fields of struct tokenizer, shared by its loaders and by tokenizer.c. */
#pragma once

#include "base/arena.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/charsmap.h"
#include "text/normalize.h"
#include "text/pretokenize.h"
#include "text/segment_cache.h"
#include "text/tokenizer.h"
#include "text/unigram.h"

enum { TOKENIZER_IDS_MAX = 1 << 24, TOKENIZER_AROUND_MAX = 8, TOKENIZER_EOS_MAX = 64 };

/* Bits of tokenizer.kind, one per id. */
enum { TOKEN_ADDED = 1, TOKEN_SPECIAL = 2 };

struct tokenizer {
    struct arena arena; /* added tokens' texts */
    struct bpe bpe;
    struct unigram unigram;          /* beside bpe's vocabulary, in the place of its merges */
    struct segment_cache *segments;  /* owned; NULL: without it, it is only slower */
    struct token_table own_bytes;    /* used when the keys are not the bytes (SentencePiece) */
    const struct token_table *bytes; /* what ids add to a text */
    uint8_t *kind;                   /* owned, [bytes->count] */

    struct charsmap *charsmap;    /* owned, of the normalizer, or NULL */
    struct normalizer normalizer; /* of the model, in front of the normalised added tokens */
    struct normalizer spaces;     /* Metaspace, add_prefix_space: behind them */
    bool spaces_first_only;       /* Metaspace "first": only at the start of the text */
    struct pretok pretok;
    bool byte_level;

    struct added_token *added; /* owned */
    uint32_t added_count;
    struct added_trie raw, normalised; /* indices into added */

    int32_t before[TOKENIZER_AROUND_MAX], after[TOKENIZER_AROUND_MAX]; /* ADD_SPECIAL */
    uint32_t before_count, after_count;

    bool strip_first; /* decoding drops one space in front */
    int32_t bos, eos, pad, unk;
    int32_t eos_list[TOKENIZER_EOS_MAX];
    uint32_t eos_count;
    char description[128];
};

/* --- what the loaders call, in this order --- */

struct vocab_entry {
    int32_t id;
    struct slice text; /* as in the file; borrowed for the call */
    uint8_t flags;
};
enum {
    VOCAB_UNUSABLE = 1 /* never comes out of merging: control tokens of a GGUF */
};

/* How token texts are to be read. */
enum vocab_form {
    VOCAB_BYTE_LEVEL,    /* GPT-2's stand-ins for bytes */
    VOCAB_SENTENCEPIECE, /* U+2581 is a space in the text */
    VOCAB_PLAIN
};
struct vocab_options {
    enum vocab_form form;
    bool byte_tokens; /* <0xNN> is a byte in the text */
};

/* Takes vocabulary and added tokens together (entries of added tokens last; ids may leave gaps).
 * Errors: STATUS_CORRUPT, STATUS_LIMIT, STATUS_NOMEM. */
enum status tokenizer_set_vocab(struct tokenizer *tok, const struct vocab_entry *entries,
                                size_t count, struct vocab_options options, struct error *err);
/* Text of a token as a file has it, to the key in bpe.keys; false when it cannot be one. *out lies
 * in scratch, or is the text. */
bool tokenizer_key(const struct tokenizer *tok, struct slice text, struct buf *scratch,
                   struct slice *out);
/* The character by which a byte-level file writes a byte, as UTF-8; returns its bytes, 1 or 2. */
size_t tokenizer_stand_in(uint8_t byte, char out[2]);
/* The id of a vocabulary token by its text in the file, or -1. */
int32_t tokenizer_find_vocab(const struct tokenizer *tok, struct slice text);

/* Takes tok->added (ids set): fills kind and the tries. */
enum status tokenizer_index_added(struct tokenizer *tok, struct error *err);
void tokenizer_add_eos(struct tokenizer *tok, int32_t id);
/* Fills the description and checks what every tokenizer must have. */
enum status tokenizer_finish(struct tokenizer *tok, struct error *err);

struct weights;
enum status tokenizer_load_json(struct tokenizer *tok, struct weights *weights, struct error *err);
enum status tokenizer_load_gguf(struct tokenizer *tok, struct weights *weights, struct error *err);
enum status tokenizer_load_bytes(struct tokenizer *tok, struct error *err);
