/* pretokenize_regex.c - pre-tokenizers that are not built in, as a chain of PCRE2 patterns; and
 * which are.
 *
 * Each stage cuts the pieces of the one before. A piece is a text of its own to the patterns:
 * lookaheads end where it ends. */
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/buf.h"
#include "text/pretokenize.h"
#include "text/unicode_class.h"

#define SPACES \
    "\\t-\\r " \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

/* Writes \s and \S as the reference reads them: to PCRE2 U+180E is a space too. A \S inside [...]
 * stays. */
static void spell_out_spaces(struct slice pattern, struct buf *out)
{
    bool in_class = false;

    for (size_t i = 0; i < pattern.len; i++) {
        char c = pattern.ptr[i], next = i + 1 < pattern.len ? pattern.ptr[i + 1] : 0;
        if (c == '\\' && (next == 's' || (next == 'S' && !in_class))) {
            buf_append_str(out, in_class ? SPACES : next == 's' ? "[" SPACES "]" : "[^" SPACES "]");
            i++;
        } else if (c == '\\' && next) {
            buf_append(out, pattern.ptr + i++, 2);
        } else {
            if (c == '[') in_class = true;
            if (c == ']') in_class = false;
            buf_append_char(out, c);
        }
    }
}

static pcre2_code_8 *compile(struct slice pattern, uint32_t options, int *code)
{
    struct buf spelled;
    PCRE2_SIZE at;

    buf_init(&spelled, 0);
    if (options & PCRE2_LITERAL)
        buf_append_slice(&spelled, pattern);
    else
        spell_out_spaces(pattern, &spelled);
    *code = PCRE2_ERROR_NOMEMORY;
    pcre2_code_8 *compiled = buf_status(&spelled)
                                 ? NULL
                                 : pcre2_compile_8((PCRE2_SPTR8)buf_cstr(&spelled), spelled.len,
                                                   options, code, &at, NULL);
    buf_fini(&spelled);
    return compiled;
}

enum status pretok_add_stage(struct pretok *pretok, struct slice pattern, bool literal,
                             enum pretok_behavior behavior, bool invert, struct error *err)
{
    /* As in the reference's Oniguruma, ^ and $ stand at lines. */
    const uint32_t options =
        literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE;
    PCRE2_UCHAR8 words[120];
    int code;

    if (pretok->stage_count == PRETOK_STAGES_MAX)
        return error_set(err, STATUS_LIMIT, "the pre-tokenizer has more than %d stages",
                         PRETOK_STAGES_MAX);
    if (!pattern.ptr) {
        pretok->kind = PRETOK_STAGES;
        pretok->stages[pretok->stage_count++] = (struct pretok_stage){NULL, behavior, invert};
        return STATUS_OK;
    }
    pcre2_code_8 *compiled = compile(pattern, options, &code);
    if (!compiled) {
        pcre2_get_error_message_8(code, words, sizeof words);
        return error_set(err, STATUS_UNSUPPORTED,
                         "the pre-tokenizer's pattern '%.*s' cannot be used: %s",
                         (int)(pattern.len < 200 ? pattern.len : 200), pattern.ptr, words);
    }
    pcre2_jit_compile_8(compiled, PCRE2_JIT_COMPLETE); /* where there is no JIT, it is slower */
    pretok->kind = PRETOK_STAGES;
    pretok->stages[pretok->stage_count++] = (struct pretok_stage){compiled, behavior, invert};
    return STATUS_OK;
}

void pretok_fini(struct pretok *pretok)
{
    for (uint32_t i = 0; i < pretok->stage_count; i++)
        pcre2_code_free_8(pretok->stages[i].code);
    pretok->stage_count = 0;
}

/* --- the walk --- */

struct walk {
    const struct pretok *pretok;
    pretok_word_fn *word;
    void *ctx;
    pcre2_match_data_8 *match;
    pcre2_match_context_8 *limits;
};

/* The tiles of one piece under one stage: what lies between matches, and the matches. */
struct tiles {
    const uint8_t *text, *end, *at;
    const uint8_t *match_begin, *match_end; /* the next match, NULL when there is none */
};

/* The next numeric character, by the table that the library's Digits has. */
static enum status find_number(struct tiles *t)
{
    unsigned len;

    t->match_begin = t->match_end = NULL;
    for (const uint8_t *p = t->at; p < t->end && !t->match_begin; p += len) {
        uint32_t c = utf8_read(p, &len);
        if (!class_is_numeric(c, unicode_classes[c])) continue;
        t->match_begin = p;
        t->match_end = p + len;
    }
    return STATUS_OK;
}

static enum status find_match(struct walk *w, const struct pretok_stage *stage, struct tiles *t)
{
    const uint8_t *from = t->at;
    unsigned len;

    if (!stage->code) return find_number(t);
    while (from < t->end) {
        int rc = pcre2_match_8(stage->code, t->text, (size_t)(t->end - t->text),
                               (size_t)(from - t->text), PCRE2_NO_UTF_CHECK, w->match, w->limits);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc < 0) return rc == PCRE2_ERROR_NOMEMORY ? STATUS_NOMEM : STATUS_LIMIT;
        const PCRE2_SIZE *ends = pcre2_get_ovector_pointer_8(w->match);
        t->match_begin = t->text + ends[0];
        t->match_end = t->text + ends[1];
        if (ends[1] > ends[0]) return STATUS_OK;
        if (t->match_begin >= t->end) break;
        utf8_read(t->match_begin, &len); /* an empty match cuts nothing */
        from = t->match_begin + len;
    }
    t->match_begin = t->match_end = NULL;
    return STATUS_OK;
}

static enum status walk_piece(struct walk *w, uint32_t stage_index, const uint8_t *begin,
                              const uint8_t *end);

struct piece {
    const uint8_t *begin, *end; /* NULL: none */
    bool match;                 /* is a match that may still join its neighbour */
};

static enum status give(struct walk *w, uint32_t stage_index, struct piece *piece)
{
    struct piece p = *piece;

    piece->begin = NULL;
    return p.begin && p.begin < p.end ? walk_piece(w, stage_index + 1, p.begin, p.end) : STATUS_OK;
}

/* Takes the next tile; gives on what is complete. `held` is the piece that may still grow. */
static enum status take_tile(struct walk *w, uint32_t stage_index, struct piece tile,
                             struct piece *held)
{
    bool join = false;

    switch (w->pretok->stages[stage_index].behavior) {
    case PRETOK_ISOLATED: break;
    case PRETOK_REMOVED:
        if (tile.match) return STATUS_OK;
        break;
    case PRETOK_MERGED_WITH_PREVIOUS: join = tile.match && !held->match; break;
    case PRETOK_MERGED_WITH_NEXT: join = held->match && !tile.match; break;
    case PRETOK_CONTIGUOUS: join = held->match == tile.match; break;
    }
    if (join && held->begin) {
        held->end = tile.end;
        held->match = tile.match;
        return STATUS_OK;
    }
    enum status st = give(w, stage_index, held);
    *held = tile;
    return st;
}

static enum status walk_piece(struct walk *w, uint32_t stage_index, const uint8_t *begin,
                              const uint8_t *end)
{
    struct tiles t = {begin, end, begin, NULL, NULL};
    struct piece held = {0};
    enum status st = STATUS_OK;

    if (stage_index == w->pretok->stage_count) return w->word(w->ctx, begin, end);
    const struct pretok_stage *stage = &w->pretok->stages[stage_index];
    while (!st && t.at < end) {
        st = find_match(w, stage, &t);
        const uint8_t *gap_end = t.match_begin ? t.match_begin : end;
        if (!st && t.at < gap_end)
            st = take_tile(w, stage_index, (struct piece){t.at, gap_end, stage->invert}, &held);
        t.at = gap_end;
        if (!st && t.match_begin) {
            st = take_tile(w, stage_index,
                           (struct piece){t.match_begin, t.match_end, !stage->invert}, &held);
            t.at = t.match_end;
        }
    }
    return st ? st : give(w, stage_index, &held);
}

enum status pretok_split_stages(const struct pretok *pretok, const uint8_t *text, size_t len,
                                pretok_word_fn *word, void *ctx)
{
    struct walk w = {pretok, word, ctx, pcre2_match_data_create_8(1, NULL),
                     pcre2_match_context_create_8(NULL)};
    enum status st = w.match && w.limits ? STATUS_OK : STATUS_NOMEM;

    if (!st) {
        pcre2_set_match_limit_8(w.limits, 20000000);
        pcre2_set_heap_limit_8(w.limits, 64 * 1024); /* KiB */
        st = walk_piece(&w, 0, text, text + len);
    }
    pcre2_match_data_free_8(w.match);
    pcre2_match_context_free_8(w.limits);
    return st;
}

enum status pretok_split(const struct pretok *pretok, const uint8_t *text, size_t len,
                         pretok_word_fn *word, void *ctx)
{
    const uint8_t *p = text, *end = text + len, *next;
    pretok_tile *tile = pretok_tile_of(pretok->kind);
    enum status st = STATUS_OK;

    if (pretok->kind == PRETOK_STAGES) return pretok_split_stages(pretok, text, len, word, ctx);
    for (; !st && p < end; p = next) {
        next = tile ? tile(p, end) : end;
        st = word(ctx, p, next);
    }
    return st;
}

/* --- which one it is --- */

#define LLAMA_PATTERN(digits)                                                  \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define V3_PATTERN                                                                 \
    "[!\"#$%&'()*+,\\-./"                                                          \
    ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+" \
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
#define CODER_CJK "[一-龥ࠀ-一가-퟿]+"

static const struct {
    enum pretok_kind kind;
    uint32_t count;
    const char *patterns[5];
} known[] = {
    {PRETOK_GPT2, 1, {PRETOK_GPT2_PATTERN}},
    {PRETOK_LLAMA3, 1, {LLAMA_PATTERN("{1,3}")}},
    {PRETOK_QWEN2, 1, {LLAMA_PATTERN("")}},
    {PRETOK_SMOLLM, 2, {"\\p{N}", PRETOK_GPT2_PATTERN}},
    {PRETOK_DEEPSEEK_V3, 3, {"\\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", V3_PATTERN}},
    {PRETOK_DEEPSEEK_CODER, 5, {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CODER_CJK, "\\p{N}"}},
};

enum pretok_kind pretok_recognise(const struct slice *patterns, uint32_t count)
{
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        uint32_t i = 0;
        while (count == known[k].count && i < count &&
               slice_eq(patterns[i], slice_str(known[k].patterns[i])))
            i++;
        if (i == known[k].count) return known[k].kind;
    }
    return PRETOK_STAGES;
}

/* Letters with case, as the model's file lists them. */
#define LLM_LETTERS                                                                        \
    "\\s?["                                                                                \
    "\\x{41}-\\x{5a}\\x{61}-\\x{7a}\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}"  \
    "\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}"                 \
    "\\x{376}-\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}"          \
    "\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}"                 \
    "\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}"           \
    "\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}"         \
    "\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}"         \
    "\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}" \
    "\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}"                   \
    "\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}"         \
    "\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}" \
    "\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}" \
    "\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}-\\x{2184}"          \
    "\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}-\\x{2cf3}"         \
    "\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}"         \
    "\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}"         \
    "\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}"     \
    "\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}" \
    "\\x{1e900}-\\x{1e943}"                                                                \
    "]+"
#define O200K_LETTERS(upper, lower_)                                   \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]" upper \
    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]" lower_
#define O200K_SUFFIX "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define TAIL         "+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Names as llama.cpp's converter writes them. */
static const struct {
    const char *pre;
    enum pretok_kind kind;
    const char *patterns[6]; /* of PRETOK_STAGES */
} gguf_names[] = {
    {"gpt-2", PRETOK_GPT2, {0}},
    {"phi-2", PRETOK_GPT2, {0}},
    {"olmo", PRETOK_GPT2, {0}},
    {"llama3", PRETOK_LLAMA3, {0}},
    {"llama-v3", PRETOK_LLAMA3, {0}},
    {"llama-bpe", PRETOK_LLAMA3, {0}},
    {"dbrx", PRETOK_LLAMA3, {0}},
    {"smaug-bpe", PRETOK_LLAMA3, {0}},
    {"glm4", PRETOK_LLAMA3, {0}},
    {"chatglm-bpe", PRETOK_LLAMA3, {0}},
    {"qwen2", PRETOK_QWEN2, {0}},
    {"deepseek-r1-qwen", PRETOK_QWEN2, {0}},
    {"smollm", PRETOK_SMOLLM, {0}},
    {"starcoder", PRETOK_SMOLLM, {0}},
    {"refact", PRETOK_SMOLLM, {0}},
    {"command-r", PRETOK_SMOLLM, {0}},
    {"codeshell", PRETOK_SMOLLM, {0}},
    {"deepseek-coder", PRETOK_DEEPSEEK_CODER, {0}},
    {"deepseek-v3", PRETOK_DEEPSEEK_V3, {0}},
    {"deepseek-llm",
     PRETOK_STAGES,
     {"[\r\n]", LLM_LETTERS, "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$", CODER_CJK, "\\p{N}"}},
    {"tekken",
     PRETOK_STAGES,
     {O200K_LETTERS("*", "+") "|" O200K_LETTERS("+", "*") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]" TAIL}},
    {"gpt-4o",
     PRETOK_STAGES,
     {O200K_LETTERS("*", "+") O200K_SUFFIX "|" O200K_LETTERS("+", "*") O200K_SUFFIX
      "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]" TAIL}},
};

/* "\\p{N}" alone is the library's Digits in the models' own files. */
static struct slice stage_pattern(const char *pattern)
{
    return strcmp(pattern, "\\p{N}") == 0 ? slice_of(NULL, 0) : slice_str(pattern);
}

const char *pretok_kind_name(enum pretok_kind kind)
{
    static const char *const names[] = {"none",   "gpt-2",          "llama-bpe",   "qwen2",
                                        "smollm", "deepseek-coder", "deepseek-v3", "metaspace",
                                        "none",   "patterns"};

    return names[kind];
}

enum status pretok_from_gguf(struct pretok *pretok, struct slice pre, struct error *err)
{
    for (size_t k = 0; k < sizeof gguf_names / sizeof *gguf_names; k++) {
        if (!slice_eq(pre, slice_str(gguf_names[k].pre))) continue;
        enum status st = STATUS_OK;
        pretok->kind = gguf_names[k].kind;
        pretok->name = gguf_names[k].pre;
        for (size_t i = 0; !st && i < 6 && gguf_names[k].patterns[i]; i++)
            st = pretok_add_stage(pretok, stage_pattern(gguf_names[k].patterns[i]), false,
                                  PRETOK_ISOLATED, false, err);
        return st;
    }
    return error_set(err, STATUS_UNSUPPORTED,
                     "tokenizer.ggml.pre is '%.*s', which is not a pre-tokenizer known here",
                     (int)(pre.len < 64 ? pre.len : 64), pre.ptr);
}
