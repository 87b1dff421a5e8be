/* tokenizer_gguf.c - a tokenizer from the metadata of a GGUF file.
 *
 * tokenizer.ggml.model "gpt2" is byte-level BPE with the merges of the file and a pre-tokenizer by
 * name; "llama" is SentencePiece BPE, whose merges follow from the scores; "t5" is SentencePiece unigram. Faults are tolerated
 * where llama.cpp tolerates them (a token twice: the last counts; merges of tokens that are not
 * there). Source: the GGUF specification of ggml, and llama.cpp's converter for names and defaults.
 * */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/weights.h"
#include "text/spm.h"
#include "text/tokenizer_impl.h"

#define KEY(name) "tokenizer.ggml." name

enum token_type {
    TYPE_NORMAL = 1,
    TYPE_UNKNOWN = 2,
    TYPE_CONTROL = 3,
    TYPE_USER_DEFINED = 4,
    TYPE_BYTE = 6
};

struct gguf_vocab {
    struct weights *weights;
    uint32_t count;
    struct vocab_entry *entries; /* owned */
    uint8_t *types;              /* owned */
    float *scores;               /* owned, zero where the file has none */
};

static bool meta_bool(const struct weights *w, const char *key, bool missing)
{
    bool value;

    return weights_meta_bool(w, key, &value) == STATUS_OK ? value : missing;
}

/* Length of an array that must have an element per token, or be absent (then *there is false). */
static enum status array_per_token(const struct gguf_vocab *v, const char *key, bool *there,
                                   struct error *err)
{
    uint64_t len = 0;
    enum status st = weights_meta_array_len(v->weights, key, &len);

    *there = st == STATUS_OK;
    if (st == STATUS_NOT_FOUND) return STATUS_OK;
    if (st || len != v->count)
        return weights_fault_meta(v->weights, key, err, STATUS_CORRUPT,
                                  "must be an array of %u elements, one per token", v->count);
    return STATUS_OK;
}

static enum status load_tokens(struct gguf_vocab *v, struct error *err)
{
    uint64_t count = 0;
    enum status st = weights_meta_array_len(v->weights, KEY("tokens"), &count);

    if (st || count == 0 || count > TOKENIZER_IDS_MAX)
        return weights_fault_meta(v->weights, KEY("tokens"), err, STATUS_CORRUPT,
                                  "must be an array of 1 to %d strings", TOKENIZER_IDS_MAX);
    v->count = (uint32_t)count;
    v->entries = calloc(count, sizeof *v->entries);
    v->types = malloc(count);
    v->scores = calloc(count, sizeof *v->scores);
    if (!v->entries || !v->types || !v->scores)
        return error_set(err, STATUS_NOMEM, "no memory for %u tokens", v->count);
    memset(v->types, TYPE_NORMAL, count);
    for (uint32_t i = 0; i < v->count; i++) {
        v->entries[i].id = (int32_t)i;
        st = weights_meta_array_str(v->weights, KEY("tokens"), i, &v->entries[i].text);
        if (st)
            return weights_fault_meta(v->weights, KEY("tokens"), err, STATUS_CORRUPT,
                                      "entry %u is not a UTF-8 string", i);
    }
    return STATUS_OK;
}

static enum status load_types(struct gguf_vocab *v, struct error *err)
{
    bool there;
    enum status st = array_per_token(v, KEY("token_type"), &there, err);
    double type;

    for (uint32_t i = 0; !st && there && i < v->count; i++) {
        st = weights_meta_array_f64(v->weights, KEY("token_type"), i, &type);
        if (st || !(type >= 0 && type <= 255))
            return weights_fault_meta(v->weights, KEY("token_type"), err, STATUS_CORRUPT,
                                      "entry %u is no token type (0 to 255)", i);
        v->types[i] = (uint8_t)type;
    }
    return st;
}

static enum status load_scores(struct gguf_vocab *v, struct error *err)
{
    bool there;
    enum status st = array_per_token(v, KEY("scores"), &there, err);
    double score;

    if (!st && !there)
        return weights_fault_meta(v->weights, KEY("scores"), err, STATUS_CORRUPT,
                                  "is missing; a tokenizer of type llama needs it");
    for (uint32_t i = 0; !st && i < v->count; i++) {
        st = weights_meta_array_f64(v->weights, KEY("scores"), i, &score);
        if (st || isnan(score))
            return weights_fault_meta(v->weights, KEY("scores"), err, STATUS_CORRUPT,
                                      "entry %u is no floating-point number", i);
        v->scores[i] = (float)score;
    }
    return st;
}

static bool is_added(uint8_t type)
{
    return type == TYPE_CONTROL || type == TYPE_USER_DEFINED || type == TYPE_UNKNOWN;
}

static enum status load_added(struct tokenizer *tok, const struct gguf_vocab *v, struct error *err)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < v->count; i++)
        count += is_added(v->types[i]);
    tok->added = calloc(count + (size_t)1, sizeof *tok->added);
    if (!tok->added) return error_set(err, STATUS_NOMEM, "no memory for %u added tokens", count);
    for (uint32_t i = 0; i < v->count; i++) {
        struct slice text = v->entries[i].text;
        if (!is_added(v->types[i]) || !text.len) continue;
        char *copy = arena_strdup(&tok->arena, text);
        if (!copy) return error_set(err, STATUS_NOMEM, "no memory for the added tokens");
        tok->added[tok->added_count++] =
            (struct added_token){.id = (int32_t)i,
                                 .content = slice_of(copy, text.len),
                                 .special = v->types[i] != TYPE_USER_DEFINED};
    }
    return STATUS_OK;
}

/* Adds the merges from the last to the first, so that of a pair given twice the first counts. */
static enum status load_merges(struct tokenizer *tok, const struct gguf_vocab *v, struct error *err)
{
    uint64_t count = 0;
    struct buf joined;
    struct slice merge;
    enum status st = weights_meta_array_len(v->weights, KEY("merges"), &count);

    if (st || count >= UINT32_MAX)
        return weights_fault_meta(v->weights, KEY("merges"), err, STATUS_CORRUPT,
                                  "must be an array of strings");
    st = bpe_reserve_pairs(&tok->bpe, count);
    if (st) return error_set(err, st, "no memory for the merges");
    buf_init(&joined, 0);
    for (uint64_t i = count; !st && i > 0; i--) {
        const char *space = NULL;
        /* A token may begin with the space that parts the halves only as its stand-in: search from
         * 1. */
        if (!weights_meta_array_str(v->weights, KEY("merges"), i - 1, &merge) && merge.len > 1)
            space = memchr(merge.ptr + 1, ' ', merge.len - 1);
        if (!space) {
            st = weights_fault_meta(v->weights, KEY("merges"), err, STATUS_CORRUPT,
                                    "entry %llu must be two tokens with a space between",
                                    (unsigned long long)(i - 1));
            break;
        }
        struct slice left = slice_of(merge.ptr, (size_t)(space - merge.ptr));
        struct slice right = slice_of(space + 1, merge.len - left.len - 1);
        buf_clear(&joined);
        buf_append_slice(&joined, left);
        buf_append_slice(&joined, right);
        int32_t a = tokenizer_find_vocab(tok, left), b = tokenizer_find_vocab(tok, right);
        int32_t merged = tokenizer_find_vocab(tok, buf_slice(&joined));
        if (a != BPE_NONE && b != BPE_NONE && merged != BPE_NONE)
            bpe_add_pair(&tok->bpe, a, b, merged, (uint32_t)(i - 1));
    }
    buf_fini(&joined);
    return st;
}

/* --- special ids --- */

static enum status special_id(const struct tokenizer *tok, const struct weights *w, const char *key,
                              int32_t *out, struct error *err)
{
    uint64_t id;
    enum status st = weights_meta_u64(w, key, &id);

    *out = BPE_NONE;
    if (st == STATUS_NOT_FOUND) return STATUS_OK;
    if (st || id >= tok->bytes->count)
        return weights_fault_meta(w, key, err, STATUS_CORRUPT,
                                  "must be an id below %u, the number of tokens",
                                  tok->bytes->count);
    *out = (int32_t)id;
    return STATUS_OK;
}

/* Control tokens that end a turn by their names: files made before the keys eot and eom tell them
 * by nothing else, and llama.cpp ends at them too. */
static void add_known_ends(struct tokenizer *tok)
{
    static const char *const names[] = {"<|eot_id|>",
                                        "<|im_end|>",
                                        "<|end|>",
                                        "<|eom_id|>",
                                        "<end_of_turn>",
                                        "<|endoftext|>",
                                        "<|EOT|>",
                                        "<EOT>",
                                        "<|end_of_text|>",
                                        "<|return|>",
                                        "<|call|>",
                                        "<eos>",
                                        "<end_of_utterance>",
                                        "<|end_of_turn|>",
                                        "<｜end▁of▁sentence｜>"};

    for (uint32_t i = 0; i < tok->added_count; i++)
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            if (tok->added[i].special && slice_eq(tok->added[i].content, slice_str(names[k])))
                tokenizer_add_eos(tok, tok->added[i].id);
}

static enum status load_specials(struct tokenizer *tok, const struct weights *w, bool adds_bos,
                                 bool adds_eos, struct error *err)
{
    int32_t eot = BPE_NONE, eom = BPE_NONE, cls = BPE_NONE;
    enum status st = special_id(tok, w, KEY("bos_token_id"), &tok->bos, err);

    if (!st) st = special_id(tok, w, KEY("eos_token_id"), &tok->eos, err);
    if (!st) st = special_id(tok, w, KEY("padding_token_id"), &tok->pad, err);
    if (!st) st = special_id(tok, w, KEY("unknown_token_id"), &tok->unk, err);
    if (!st) st = special_id(tok, w, KEY("eot_token_id"), &eot, err);
    if (!st) st = special_id(tok, w, KEY("eom_token_id"), &eom, err);
    if (!st) st = special_id(tok, w, KEY("cls_token_id"), &cls, err);
    if (st) return st;
    tokenizer_add_eos(tok, tok->eos);
    tokenizer_add_eos(tok, eot);
    tokenizer_add_eos(tok, eom);
    add_known_ends(tok);
    if (meta_bool(w, KEY("add_bos_token"), adds_bos) && tok->bos != BPE_NONE)
        tok->before[tok->before_count++] = tok->bos;
    if (meta_bool(w, KEY("add_eos_token"), adds_eos) && tok->eos != BPE_NONE)
        tok->after[tok->after_count++] = tok->eos;
    return STATUS_OK;
}

/* --- the two models --- */

static enum status load_gpt2(struct tokenizer *tok, struct gguf_vocab *v, struct error *err)
{
    struct slice pre;
    enum status st = weights_meta_str(v->weights, KEY("pre"), &pre);

    if (st)
        return weights_fault_meta(v->weights, KEY("pre"), err, STATUS_UNSUPPORTED,
                                  "is missing: the file does not say how text is cut into words");
    st = pretok_from_gguf(&tok->pretok, pre, err);
    if (!st && meta_bool(v->weights, KEY("add_space_prefix"), false))
        st = normalizer_add(&tok->spaces, NORMALIZE_PREPEND_MISSING, SLICE(""), SLICE(" "), err);
    /* The models that these two belong to say so in their tokenizer.json; GGUF has no key for it.
     * */
    if (!st && tok->pretok.kind == PRETOK_QWEN2)
        st = normalizer_add(&tok->normalizer, NORMALIZE_NFC, SLICE(""), SLICE(""), err);
    tok->bpe.ignore_merges = tok->pretok.kind == PRETOK_LLAMA3;
    if (!st)
        st = tokenizer_set_vocab(tok, v->entries, v->count,
                                 (struct vocab_options){.form = VOCAB_BYTE_LEVEL}, err);
    return st ? st : load_merges(tok, v, err);
}

static enum status load_llama(struct tokenizer *tok, struct gguf_vocab *v, struct error *err)
{
    static const char mark[] = "\xe2\x96\x81";
    enum status st = load_scores(v, err);

    tok->strip_first = meta_bool(v->weights, KEY("add_space_prefix"), true);
    if (!st && tok->strip_first)
        st = normalizer_add(&tok->normalizer, NORMALIZE_PREPEND, SLICE(""), slice_str(mark), err);
    if (!st)
        st = normalizer_add(&tok->normalizer, NORMALIZE_REPLACE, SLICE(" "), slice_str(mark), err);
    for (uint32_t i = 0; i < v->count; i++)
        if (v->types[i] == TYPE_CONTROL || v->types[i] == TYPE_UNKNOWN || v->types[i] == TYPE_BYTE)
            v->entries[i].flags = VOCAB_UNUSABLE;
    if (!st)
        st = tokenizer_set_vocab(
            tok, v->entries, v->count,
            (struct vocab_options){.form = VOCAB_SENTENCEPIECE, .byte_tokens = true}, err);
    tok->bpe.byte_fallback = tok->bpe.fuse_unk = true;
    if (!st) {
        st = spm_merges_of_scores(&tok->bpe, v->scores);
        if (st) error_set(err, st, "no memory for the merges");
    }
    if (!st) spm_cut_at_spaces(tok);
    return st;
}

/* The table by which text is normalised, an array of bytes. */
static enum status load_charsmap(struct tokenizer *tok, const struct weights *w, struct error *err)
{
    static const char key[] = KEY("precompiled_charsmap");
    uint64_t len = 0;
    int64_t byte = 0;
    enum status st = weights_meta_array_len(w, key, &len);

    if (st == STATUS_NOT_FOUND || (!st && !len)) return STATUS_OK;
    uint8_t *bytes = !st && len <= INT32_MAX ? malloc(len) : NULL;
    if (!st && !bytes) return error_set(err, STATUS_NOMEM, "no memory for %s", key);
    for (uint64_t i = 0; !st && i < len; i++) {
        st = weights_meta_array_i64(w, key, i, &byte);
        bytes[i] = (uint8_t)byte;
    }
    if (st)
        st = weights_fault_meta(w, key, err, STATUS_CORRUPT, "must be an array of bytes");
    else
        st = charsmap_open(slice_of(bytes, len), &tok->charsmap, err);
    free(bytes);
    if (st) return st;
    return normalizer_add_step(
        &tok->normalizer, (struct normalize_step){.kind = NORMALIZE_CHARSMAP, .map = tok->charsmap},
        SLICE(""), SLICE(""), err);
}

static enum status add_spaces(struct tokenizer *tok, const struct weights *w, struct error *err)
{
    const struct slice mark = SLICE("\xe2\x96\x81");
    enum status st;

    tok->strip_first = meta_bool(w, KEY("add_space_prefix"), false);
    if (meta_bool(w, KEY("remove_extra_whitespaces"), false))
        return normalizer_add_step(
            &tok->normalizer,
            (struct normalize_step){.kind = NORMALIZE_SPM_WORDS, .left = tok->strip_first},
            SLICE(""), mark, err);
    st = normalizer_add(&tok->normalizer, NORMALIZE_REPLACE, SLICE(" "), mark, err);
    if (!st && tok->strip_first)
        st = normalizer_add(&tok->normalizer, NORMALIZE_PREPEND, SLICE(""), mark, err);
    return st;
}

/* The bytes that stand for unknown characters, where the file has all of them. */
static bool has_all_bytes(const struct gguf_vocab *v)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < v->count; i++)
        count += v->types[i] == TYPE_BYTE;
    return count == 256;
}

/* What is marked user-defined scores 0, as in SentencePiece and llama.cpp. */
static enum status build_unigram(struct tokenizer *tok, const struct gguf_vocab *v,
                                 struct error *err)
{
    double *scores = calloc(tok->bpe.keys.count, sizeof *scores), low = 0;
    enum status st = STATUS_NOMEM;
    bool any = false;

    for (uint32_t i = 0; scores && i < v->count; i++) {
        if (v->types[i] == TYPE_USER_DEFINED) continue;
        scores[i] = v->scores[i];
        if (v->types[i] != TYPE_NORMAL) continue;
        if (!any || scores[i] < low) low = scores[i];
        any = true;
    }
    if (scores) st = unigram_build(&tok->unigram, &tok->bpe, scores, low);
    return st ? error_set(err, st, "no memory for the pieces") : st;
}

static enum status load_t5(struct tokenizer *tok, struct gguf_vocab *v, struct error *err)
{
    enum status st = load_scores(v, err);

    if (!st) st = load_charsmap(tok, v->weights, err);
    if (!st) st = add_spaces(tok, v->weights, err);
    for (uint32_t i = 0; i < v->count; i++)
        if (v->types[i] == TYPE_CONTROL || v->types[i] == TYPE_UNKNOWN || v->types[i] == TYPE_BYTE)
            v->entries[i].flags = VOCAB_UNUSABLE;
    if (!st)
        st = tokenizer_set_vocab(
            tok, v->entries, v->count,
            (struct vocab_options){.form = VOCAB_SENTENCEPIECE, .byte_tokens = has_all_bytes(v)},
            err);
    tok->bpe.byte_fallback = has_all_bytes(v);
    if (!st) st = build_unigram(tok, v, err);
    if (!st) spm_cut_at_spaces(tok);
    return st;
}

enum status tokenizer_load_gguf(struct tokenizer *tok, struct weights *weights, struct error *err)
{
    struct gguf_vocab v = {.weights = weights};
    struct slice model;
    enum status st = weights_meta_str(weights, KEY("model"), &model);
    bool adds_bos = false, adds_eos = false;

    if (st)
        return error_set(err, STATUS_NOT_FOUND, "%s: the file has no tokenizer (%s)",
                         weights_path(weights), KEY("model"));
    st = load_tokens(&v, err);
    if (!st) st = load_types(&v, err);
    if (!st) st = load_added(tok, &v, err);
    if (!st && slice_eq(model, SLICE("gpt2"))) {
        st = load_gpt2(tok, &v, err);
        adds_bos = tok->pretok.kind == PRETOK_LLAMA3;
    } else if (!st && slice_eq(model, SLICE("llama"))) {
        st = load_llama(tok, &v, err);
        adds_bos = true;
    } else if (!st && slice_eq(model, SLICE("t5"))) {
        st = load_t5(tok, &v, err);
        adds_eos = true;
    } else if (!st) {
        st = weights_fault_meta(weights, KEY("model"), err, STATUS_UNSUPPORTED,
                                "is '%.*s'; 'gpt2', 'llama' and 't5' are supported",
                                (int)(model.len < 64 ? model.len : 64), model.ptr);
    }
    if (!st) st = tokenizer_index_added(tok, err);
    if (!st) st = load_specials(tok, weights, adds_bos, adds_eos, err);
    if (!st && !slice_eq(model, SLICE("gpt2"))) tok->bpe.unk = tok->unk;
    if (!st && tok->unigram.scores && tok->unk == BPE_NONE)
        st = weights_fault_meta(weights, KEY("unknown_token_id"), err, STATUS_UNSUPPORTED,
                                "is missing; a tokenizer of type t5 needs it");
    free(v.entries);
    free(v.types);
    free(v.scores);
    return st;
}
