#include "text/tokenizer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "formats/weights.h"
#include "text/detok.h"
#include "text/tokenizer_impl.h"
#include "text/unicode_class.h"

void token_list_fini(struct token_list *list)
{
    free(list->ids);
    *list = (struct token_list){0};
}

int32_t *token_list_reserve(struct token_list *list, size_t extra)
{
    if (extra > list->cap - list->count) {
        size_t cap = list->cap ? list->cap : 64;
        while (cap - list->count < extra)
            cap *= 2;
        int32_t *ids = realloc(list->ids, cap * sizeof *ids);
        if (!ids) return NULL;
        list->ids = ids;
        list->cap = cap;
    }
    return list->ids + list->count;
}

enum status token_list_push(struct token_list *list, int32_t id)
{
    int32_t *at = token_list_reserve(list, 1);

    if (!at) return STATUS_NOMEM;
    *at = id;
    list->count++;
    return STATUS_OK;
}

bool token_list_keep_last(struct token_list *list, uint64_t count)
{
    if (list->count <= count) return false;
    memmove(list->ids, list->ids + (list->count - (size_t)count),
            (size_t)count * sizeof *list->ids);
    list->count = (size_t)count;
    return true;
}

/* --- life --- */

/* weights NULL: the built-in tokenizer. */
static enum status load(struct tokenizer *tok, struct weights *weights, struct error *err)
{
    if (!weights) return tokenizer_load_bytes(tok, err);
    if (weights_kind(weights) == WEIGHTS_GGUF) return tokenizer_load_gguf(tok, weights, err);
    return tokenizer_load_json(tok, weights, err);
}

static enum status open_from(struct weights *weights, struct tokenizer **out, struct error *err)
{
    struct tokenizer *tok = calloc(1, sizeof *tok);
    enum status st;

    if (!tok) return error_set(err, STATUS_NOMEM, "no memory for the tokenizer");
    unicode_class_init();
    arena_init(&tok->arena, 0);
    tok->bos = tok->eos = tok->pad = tok->unk = tok->bpe.unk = BPE_NONE;
    st = load(tok, weights, err);
    if (!st) st = tokenizer_finish(tok, err);
    if (st) {
        tokenizer_close(tok);
        return st;
    }
    *out = tok;
    return STATUS_OK;
}

enum status tokenizer_open(struct weights *weights, struct tokenizer **out, struct error *err)
{
    assert(weights);
    return open_from(weights, out, err);
}

enum status tokenizer_open_bytes(struct tokenizer **out, struct error *err)
{
    return open_from(NULL, out, err);
}

void tokenizer_close(struct tokenizer *tok)
{
    if (!tok) return;
    bpe_fini(&tok->bpe);
    unigram_fini(&tok->unigram);
    charsmap_close(tok->charsmap);
    segment_cache_destroy(tok->segments);
    token_table_fini(&tok->own_bytes);
    free(tok->kind);
    pretok_fini(&tok->pretok);
    free(tok->added);
    added_trie_fini(&tok->raw);
    added_trie_fini(&tok->normalised);
    arena_fini(&tok->arena);
    free(tok);
}

/* --- encoding --- */

struct encoding {
    const struct tokenizer *tok;
    unsigned flags;
    struct token_list *out;
    struct bpe_work work;
    struct normalized whole; /* the text without ill-formed parts */
    struct normalized piece; /* between added tokens of the raw text */
    struct normalized last;  /* between normalised added tokens */
};

static enum status encode_word(void *ctx, const uint8_t *begin, const uint8_t *end)
{
    struct encoding *e = ctx;

    const struct tokenizer *tok = e->tok;
    struct slice word = slice_of(begin, (size_t)(end - begin));

    return tok->unigram.scores ? unigram_encode(&tok->unigram, &tok->bpe, &e->work, word, e->out)
                               : bpe_encode(&tok->bpe, &e->work, word, e->out);
}

/* Pieces aim at this many bytes, so that a cut is nearly always found before SEGMENT_BYTES_MAX; what is
 * shorter than the second is tokenised as fast as it is looked up. */
enum { SEGMENT_BYTES_AIM = 256, SEGMENT_BYTES_MIN = 16 };

/* One piece: found in the cache, or tokenised and kept there. */
static enum status encode_segment(struct encoding *e, struct slice text)
{
    struct segment_cache *cache = e->tok->segments;
    const size_t from = e->out->count;
    uint64_t hash = 0;
    enum status st = STATUS_NOT_FOUND;

    if (text.len < SEGMENT_BYTES_MIN || text.len > SEGMENT_BYTES_MAX) cache = NULL;
    if (cache) {
        hash = segment_cache_hash(cache, text);
        st = segment_cache_get(cache, hash, text, e->out);
    }
    if (st != STATUS_NOT_FOUND) return st;
    st = pretok_split(&e->tok->pretok, (const uint8_t *)text.ptr, text.len, encode_word, e);
    if (!st && cache)
        segment_cache_put(cache, hash, text, e->out->ids + from, e->out->count - from);
    return st;
}

static enum status encode_segments(struct encoding *e, struct slice text)
{
    const uint8_t *p = (const uint8_t *)text.ptr, *end = p + text.len, *cut;
    enum status st = STATUS_OK;

    for (; !st && p < end; p = cut) {
        cut = end - p <= SEGMENT_BYTES_MAX
                  ? end
                  : pretok_next_cut(&e->tok->pretok, p + SEGMENT_BYTES_AIM, end);
        st = encode_segment(e, slice_of(p, (size_t)(cut - p)));
    }
    return st;
}

/* Text in which no added token is left. */
static enum status encode_plain(struct encoding *e, struct slice text, bool at_start)
{
    const struct tokenizer *tok = e->tok;
    enum status st = STATUS_OK;

    if (!text.len) return STATUS_OK;
    if (tok->spaces.count) {
        normalized_set(&e->last, text, (struct range_view){0});
        struct normalizer steps = tok->spaces;
        if (tok->spaces_first_only && !at_start) steps.count--; /* the last one puts in front */
        st = normalize(&steps, &e->last);
        text = e->last.text;
        if (e->last.moved) bpe_work_forget(&e->work);
    }
    return st ? st : encode_segments(e, text);
}

/* Searches `text` for the tokens of a trie: tokens are pushed, what lies between goes to `between`.
 * */
static enum status encode_around(struct encoding *e, const struct added_trie *trie,
                                 struct slice text, struct range_view untrusted, bool at_start,
                                 enum status (*between)(struct encoding *, struct slice,
                                                        struct range_view all, size_t begin,
                                                        bool at_start))
{
    struct added_search search = {.trie = trie,
                                  .tokens = e->tok->added,
                                  .text = text,
                                  .untrusted = untrusted,
                                  .skip_special = !(e->flags & TOKENIZE_PARSE_SPECIAL)};
    struct added_match match;
    size_t from = 0;
    enum status st = STATUS_OK;

    while (!st && !(e->flags & TOKENIZE_NO_ADDED) && added_next(&search, &match)) {
        if (match.begin > from)
            st = between(e, slice_of(text.ptr + from, match.begin - from), untrusted, from,
                         at_start && !from);
        if (!st) st = token_list_push(e->out, match.token->id);
        from = match.end;
    }
    if (!st && from < text.len)
        st = between(e, slice_of(text.ptr + from, text.len - from), untrusted, from,
                     at_start && !from);
    return st;
}

static enum status between_normalised(struct encoding *e, struct slice text, struct range_view all,
                                      size_t begin, bool at_start)
{
    (void)all;
    (void)begin;
    return encode_plain(e, text, at_start);
}

static enum status between_raw(struct encoding *e, struct slice text, struct range_view all,
                               size_t begin, bool at_start)
{
    struct range_list shifted = {0}; /* ranges of the piece, from its start */
    struct range_view marks = {0};
    enum status st = STATUS_OK;

    if (e->tok->normalised.any && all.count) {
        struct range_view part = range_view_of(all, begin, begin + text.len);
        for (size_t i = 0; !st && i < part.count; i++) {
            size_t b = part.at[i].begin > begin ? part.at[i].begin - begin : 0;
            size_t end = part.at[i].end - begin < text.len ? part.at[i].end - begin : text.len;
            st = range_list_add(&shifted, b, end);
        }
        marks = (struct range_view){shifted.at, shifted.count};
    }
    normalized_set(&e->piece, text, marks);
    if (!st) st = normalize(&e->tok->normalizer, &e->piece);
    if (e->piece.moved) bpe_work_forget(&e->work);
    if (!st)
        st = encode_around(e, &e->tok->normalised, e->piece.text, e->piece.marks, at_start,
                           between_normalised);
    range_list_fini(&shifted);
    return st;
}

static enum status push_all(struct token_list *out, const int32_t *ids, uint32_t count)
{
    enum status st = STATUS_OK;

    for (uint32_t i = 0; !st && i < count; i++)
        st = token_list_push(out, ids[i]);
    return st;
}

enum status tokenizer_encode(const struct tokenizer *tok, struct slice text, unsigned flags,
                             const struct text_range *untrusted, size_t untrusted_count,
                             struct token_list *out)
{
    struct encoding e = {.tok = tok, .flags = flags, .out = out};
    const size_t count_before = out->count;
    enum status st = text.len > INT32_MAX / 2 ? STATUS_LIMIT : STATUS_OK;

    bpe_work_init(&e.work, text.len);
    normalized_set(&e.whole, text, (struct range_view){untrusted, untrusted_count});
    if (!st) st = normalize_utf8(&e.whole);
    if (!st && (flags & TOKENIZE_ADD_SPECIAL)) st = push_all(out, tok->before, tok->before_count);
    if (!st) st = encode_around(&e, &tok->raw, e.whole.text, e.whole.marks, true, between_raw);
    if (!st && (flags & TOKENIZE_ADD_SPECIAL)) st = push_all(out, tok->after, tok->after_count);
    bpe_work_fini(&e.work);
    normalized_fini(&e.whole);
    normalized_fini(&e.piece);
    normalized_fini(&e.last);
    if (st) out->count = count_before;
    return st;
}

/* --- decoding --- */

enum status tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, size_t count,
                             bool skip_special, struct buf *out)
{
    struct detok d;

    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= tok->bytes->count) return STATUS_INVALID;
    detok_init(&d, tok, skip_special);
    for (size_t i = 0; i < count; i++)
        detok_push(&d, ids[i], out);
    detok_flush(&d, out);
    return buf_status(out);
}

/* --- what it knows --- */

uint32_t tokenizer_vocab_size(const struct tokenizer *tok)
{
    return tok->bytes->count;
}

struct slice tokenizer_token_bytes(const struct tokenizer *tok, int32_t id)
{
    return token_table_at(tok->bytes, id);
}

static bool has_kind(const struct tokenizer *tok, int32_t id, uint8_t bit)
{
    return id >= 0 && (uint32_t)id < tok->bytes->count && (tok->kind[id] & bit);
}

bool tokenizer_is_special(const struct tokenizer *tok, int32_t id)
{
    return has_kind(tok, id, TOKEN_SPECIAL);
}

bool tokenizer_is_added(const struct tokenizer *tok, int32_t id)
{
    return has_kind(tok, id, TOKEN_ADDED);
}

int32_t tokenizer_find(const struct tokenizer *tok, struct slice text)
{
    for (uint32_t i = 0; i < tok->added_count; i++)
        if (slice_eq(tok->added[i].content, text)) return tok->added[i].id;
    return tokenizer_find_vocab(tok, text);
}

int32_t tokenizer_bos(const struct tokenizer *tok)
{
    return tok->bos;
}

int32_t tokenizer_eos(const struct tokenizer *tok)
{
    return tok->eos;
}

int32_t tokenizer_pad(const struct tokenizer *tok)
{
    return tok->pad;
}

int32_t tokenizer_unk(const struct tokenizer *tok)
{
    return tok->unk;
}

const int32_t *tokenizer_eos_list(const struct tokenizer *tok, uint32_t *count)
{
    *count = tok->eos_count;
    return tok->eos_list;
}

bool tokenizer_adds_bos(const struct tokenizer *tok)
{
    return tok->bos != BPE_NONE && tok->before_count && tok->before[0] == tok->bos;
}

const char *tokenizer_description(const struct tokenizer *tok)
{
    return tok->description;
}

bool tokenizer_strips_first_space(const struct tokenizer *tok)
{
    return tok->strip_first;
}
