/* pretokenize.h - cuts text into the words that BPE merges inside.
 *
 * The pre-tokenizers of the models that matter are matchers written by hand (pretokenize_tiles.c),
 * proved equal to the models' own regular expressions by tests/unit/text/test_pretokenize; whatever
 * else a tokenizer.json asks for runs as a chain of PCRE2 patterns (pretokenize_regex.c) with
 * bounded steps, and with the Unicode version that PCRE2 has: characters newer than that may be cut
 * otherwise than by the reference. Time: the matchers are linear, whatever the text is; a PCRE2
 * chain is bounded by its match limit. Thread: immutable after it is made. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/slice.h"
#include "base/status.h"

enum pretok_kind {
    PRETOK_WHOLE,  /* the text is one word */
    PRETOK_GPT2,   /* 's|'t|'re|... ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
    PRETOK_LLAMA3, /* letters with what stands before, digits in threes */
    PRETOK_QWEN2,  /* the same, digits one by one */
    PRETOK_SMOLLM, /* numbers one by one, then GPT-2's */
    PRETOK_DEEPSEEK_CODER,
    PRETOK_DEEPSEEK_V3,
    PRETOK_METASPACE, /* a word begins at every U+2581 */
    PRETOK_SPM_WORDS, /* a word begins at every run of U+2581 (spm.h) */
    PRETOK_STAGES     /* a chain of patterns */
};

/* Returns the end of the word that starts at p (p < end); text is well-formed UTF-8. */
typedef const uint8_t *pretok_tile(const uint8_t *p, const uint8_t *end);

/* The matcher of a kind; NULL for PRETOK_WHOLE and PRETOK_STAGES. */
pretok_tile *pretok_tile_of(enum pretok_kind kind);

/* What a stage does with the matches of its pattern. */
enum pretok_behavior {
    PRETOK_ISOLATED,
    PRETOK_REMOVED,
    PRETOK_MERGED_WITH_PREVIOUS,
    PRETOK_MERGED_WITH_NEXT,
    PRETOK_CONTIGUOUS
};

enum { PRETOK_STAGES_MAX = 16 };
struct pretok_stage {
    void *code; /* pcre2_code_8, owned; NULL: a numeric character */
    enum pretok_behavior behavior;
    bool invert; /* what does not match is the match */
};

struct pretok {
    enum pretok_kind kind;
    const char *name; /* "llama-bpe": static storage */
    struct pretok_stage stages[PRETOK_STAGES_MAX];
    uint32_t stage_count;
};

/* GPT-2's expression, which is also the library's ByteLevel. */
#define PRETOK_GPT2_PATTERN \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* Adds a pattern (a regular expression, or with `literal` plain text; with ptr NULL any one numeric
 * character, as the library's Digits has it) to a PRETOK_STAGES chain. Errors:
 * STATUS_UNSUPPORTED (PCRE2 cannot express it; the sentence has its words), STATUS_LIMIT,
 * STATUS_NOMEM. */
enum status pretok_add_stage(struct pretok *pretok, struct slice pattern, bool literal,
                             enum pretok_behavior behavior, bool invert, struct error *err);

/* A chain of STAGES that is one of the known ones becomes its matcher. `patterns`: the sources of
 * its isolating regular expressions in order; "\p{N}" stands for the pre-tokenizer Digits. */
enum pretok_kind pretok_recognise(const struct slice *patterns, uint32_t count);

/* "llama-bpe" for PRETOK_LLAMA3. */
const char *pretok_kind_name(enum pretok_kind kind);

/* GGUF's tokenizer.ggml.pre. Errors: STATUS_UNSUPPORTED (by name), STATUS_NOMEM. */
enum status pretok_from_gguf(struct pretok *pretok, struct slice pre, struct error *err);

void pretok_fini(struct pretok *pretok);

/* Calls `word` for every word of the text in order; a status that is not STATUS_OK ends the walk.
 * Errors: that status; STATUS_LIMIT (a pattern ran over its match limit); STATUS_NOMEM. */
typedef enum status pretok_word_fn(void *ctx, const uint8_t *begin, const uint8_t *end);
enum status pretok_split(const struct pretok *pretok, const uint8_t *text, size_t len,
                         pretok_word_fn *word, void *ctx);

/* pretokenize_cut.c: the first place at or behind `from` where the text may be cut: the words of both parts are then
 * those of the whole; `end` when there is none. At least 3 bytes of the text stand before `from`. */
const uint8_t *pretok_next_cut(const struct pretok *pretok, const uint8_t *from,
                               const uint8_t *end);

/* pretokenize_regex.c: the walk of PRETOK_STAGES. */
enum status pretok_split_stages(const struct pretok *pretok, const uint8_t *text, size_t len,
                                pretok_word_fn *word, void *ctx);
