/* tokenizer_build.c - what both loaders share: token tables, added tokens, the last checks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_impl.h"
#include "text/unicode_class.h"

/* GPT-2 writes every byte as a printable character: the printable ones of Latin-1 as themselves,
 * the others as U+0100 + n in their order. Returns the byte, or -1. */
static int byte_of_char(uint32_t c)
{
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255)) return (int)c;
    if (c < 256 || c >= 256 + 68) return -1;
    c -= 256;
    return (int)(c < 33 ? c : c < 33 + 34 ? c + 127 - 33 : 173);
}

size_t tokenizer_stand_in(uint8_t byte, char out[2])
{
    uint32_t c = byte;

    while (byte_of_char(c) != byte) /* itself, or one of U+0100 to U+0143 */
        c = c < 256 ? 256 : c + 1;
    out[0] = (char)(c < 0x80 ? c : 0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3f));
    return c < 0x80 ? 1 : 2;
}

/* Writes the bytes that a byte-level token stands for; false when some character stands for none.
 * */
static bool byte_level_decode(struct slice text, struct buf *out)
{
    const uint8_t *p = (const uint8_t *)text.ptr, *end = p + text.len;
    const size_t from = out->len;
    unsigned len;

    for (; p < end; p += len) {
        int byte = byte_of_char(utf8_read(p, &len));
        if (byte < 0) {
            out->len = from;
            return false;
        }
        buf_append_char(out, (char)byte);
    }
    return true;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* The byte of <0xNN>, or -1. */
static int byte_token(struct slice text)
{
    if (text.len != 6 || memcmp(text.ptr, "<0x", 3) != 0 || text.ptr[5] != '>') return -1;
    int high = hex_digit(text.ptr[3]), low = hex_digit(text.ptr[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* What a token adds to a text. */
static void text_bytes(struct slice text, struct vocab_options options, struct buf *out)
{
    int byte = options.byte_tokens ? byte_token(text) : -1;

    if (options.form == VOCAB_BYTE_LEVEL && byte_level_decode(text, out)) return;
    if (byte >= 0) {
        buf_append_char(out, (char)byte);
        return;
    }
    for (size_t i = 0; i < text.len;) {
        if (options.form == VOCAB_SENTENCEPIECE && text.len - i >= 3 &&
            memcmp(text.ptr + i, "\xe2\x96\x81", 3) == 0) {
            buf_append_char(out, ' ');
            i += 3;
        } else {
            buf_append_char(out, text.ptr[i++]);
        }
    }
}

bool tokenizer_key(const struct tokenizer *tok, struct slice text, struct buf *scratch,
                   struct slice *out)
{
    *out = text;
    if (!tok->byte_level) return true;
    buf_clear(scratch);
    if (!byte_level_decode(text, scratch)) return false;
    *out = buf_slice(scratch);
    return true;
}

int32_t tokenizer_find_vocab(const struct tokenizer *tok, struct slice text)
{
    struct buf scratch;
    struct slice key;
    int32_t id = BPE_NONE;

    buf_init(&scratch, 0);
    if (tokenizer_key(tok, text, &scratch, &key)) id = bpe_find(&tok->bpe, key);
    buf_fini(&scratch);
    return id;
}

/* --- the tables --- */

/* Entries sorted into one slot per id. */
static enum status by_id(const struct vocab_entry *entries, size_t count,
                         const struct vocab_entry ***out, uint32_t *size, struct error *err)
{
    int32_t last = -1;

    for (size_t i = 0; i < count; i++) {
        if (entries[i].id < 0 || entries[i].id >= TOKENIZER_IDS_MAX)
            return error_set(err, STATUS_LIMIT, "the token '%.*s' has id %d; it must be 0 to %d",
                             (int)(entries[i].text.len < 64 ? entries[i].text.len : 64),
                             entries[i].text.ptr, entries[i].id, TOKENIZER_IDS_MAX - 1);
        if (entries[i].id > last) last = entries[i].id;
    }
    if (last < 0) return error_set(err, STATUS_CORRUPT, "the tokenizer has no tokens");
    *size = (uint32_t)last + 1;
    *out = calloc(*size, sizeof **out);
    if (!*out) return STATUS_NOMEM;
    for (size_t i = 0; i < count; i++) {
        const struct vocab_entry **slot = &(*out)[entries[i].id];
        if (*slot && !slice_eq((*slot)->text, entries[i].text))
            return error_set(
                err, STATUS_CORRUPT, "the tokens '%.*s' and '%.*s' have the same id %d",
                (int)((*slot)->text.len < 64 ? (*slot)->text.len : 64), (*slot)->text.ptr,
                (int)(entries[i].text.len < 64 ? entries[i].text.len : 64), entries[i].text.ptr,
                entries[i].id);
        if (!*slot) *slot = &entries[i];
    }
    return STATUS_OK;
}

typedef void write_fn(const struct vocab_entry *entry, struct vocab_options options,
                      struct buf *out);

static void write_text(const struct vocab_entry *entry, struct vocab_options options,
                       struct buf *out)
{
    (void)options;
    buf_append_slice(out, entry->text);
}

static void write_bytes(const struct vocab_entry *entry, struct vocab_options options,
                        struct buf *out)
{
    text_bytes(entry->text, options, out);
}

static enum status make_table(const struct vocab_entry *const *slots, uint32_t size,
                              struct vocab_options options, write_fn *write,
                              struct token_table *table)
{
    struct buf pool;

    buf_init(&pool, UINT32_MAX);
    table->offset = calloc((size_t)size + 1, sizeof *table->offset);
    for (uint32_t id = 0; table->offset && id < size; id++) {
        if (slots[id]) write(slots[id], options, &pool);
        table->offset[id + 1] = (uint32_t)pool.len;
    }
    buf_append_char(&pool, 0); /* never empty, so ptr is not NULL */
    table->count = size;
    table->pool = (uint8_t *)pool.ptr; /* takes */
    return table->offset ? buf_status(&pool) : STATUS_NOMEM;
}

/* Which tokens merging may give. */
static void mark_usable(struct tokenizer *tok, const struct vocab_entry *const *slots,
                        uint32_t size, struct vocab_options options, bool *usable)
{
    struct buf scratch;
    struct slice key;

    buf_init(&scratch, 0);
    for (uint32_t id = 0; id < size; id++) {
        usable[id] = slots[id] && !(slots[id]->flags & VOCAB_UNUSABLE) &&
                     tokenizer_key(tok, slots[id]->text, &scratch, &key);
        int byte = slots[id] && options.byte_tokens ? byte_token(slots[id]->text) : -1;
        if (byte >= 0) tok->bpe.fallback_id[byte] = (int32_t)id;
    }
    buf_fini(&scratch);
}

static void index_bytes(struct bpe *bpe)
{
    for (int byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        bpe->byte_id[byte] = bpe_find(bpe, slice_of(&c, 1));
    }
}

enum status tokenizer_set_vocab(struct tokenizer *tok, const struct vocab_entry *entries,
                                size_t count, struct vocab_options options, struct error *err)
{
    const struct vocab_entry **slots = NULL;
    uint32_t size = 0;
    bool *usable = NULL;
    enum status st = by_id(entries, count, &slots, &size, err);

    tok->byte_level = options.form == VOCAB_BYTE_LEVEL;
    tok->bpe.by_chars = !tok->byte_level;
    for (int byte = 0; byte < 256; byte++)
        tok->bpe.fallback_id[byte] = BPE_NONE;
    if (!st) {
        usable = calloc(size, sizeof *usable);
        tok->kind = calloc(size, 1);
        st = usable && tok->kind ? STATUS_OK : STATUS_NOMEM;
    }
    if (!st)
        st = make_table(slots, size, options, tok->byte_level ? write_bytes : write_text,
                        &tok->bpe.keys);
    if (!st && !tok->byte_level)
        st = make_table(slots, size, options, write_bytes, &tok->own_bytes);
    tok->bytes = tok->byte_level ? &tok->bpe.keys : &tok->own_bytes;
    if (!st) {
        mark_usable(tok, slots, size, options, usable);
        st = bpe_index_words(&tok->bpe, usable);
    }
    if (!st) index_bytes(&tok->bpe);
    free(usable);
    free(slots);
    return st == STATUS_NOMEM ? error_set(err, st, "no memory for %u tokens", size) : st;
}

/* --- added tokens --- */

/* The text by which a token marked `normalized` is found in a normalised text. */
static enum status add_normalised(struct tokenizer *tok, uint32_t index)
{
    struct normalized state = {0};
    enum status st;

    normalized_set(&state, tok->added[index].content, (struct range_view){0});
    st = normalize(&tok->normalizer, &state);
    if (!st) st = added_trie_add(&tok->normalised, state.text, index);
    normalized_fini(&state);
    return st;
}

enum status tokenizer_index_added(struct tokenizer *tok, struct error *err)
{
    enum status st = STATUS_OK;

    for (uint32_t i = 0; !st && i < tok->added_count; i++) {
        const struct added_token *token = &tok->added[i];
        tok->kind[token->id] |= TOKEN_ADDED | (token->special ? TOKEN_SPECIAL : 0);
        st = token->normalized ? add_normalised(tok, i)
                               : added_trie_add(&tok->raw, token->content, i);
    }
    return st ? error_set(err, st, "no memory for %u added tokens", tok->added_count) : STATUS_OK;
}

void tokenizer_add_eos(struct tokenizer *tok, int32_t id)
{
    uint32_t at = 0;

    if (id < 0 || tok->eos_count == TOKENIZER_EOS_MAX) return;
    while (at < tok->eos_count && tok->eos_list[at] < id)
        at++;
    if (at < tok->eos_count && tok->eos_list[at] == id) return;
    memmove(tok->eos_list + at + 1, tok->eos_list + at,
            (tok->eos_count - at) * sizeof *tok->eos_list);
    tok->eos_list[at] = id;
    tok->eos_count++;
}

enum status tokenizer_finish(struct tokenizer *tok, struct error *err)
{
    enum status st = tok->bpe.pairs ? STATUS_OK : bpe_reserve_pairs(&tok->bpe, 0);

    if (st) return error_set(err, st, "no memory for the merges");
    bpe_index_bytes(&tok->bpe);
    tok->segments = segment_cache_create();
    tokenizer_add_eos(tok, tok->eos);
    snprintf(tok->description, sizeof tok->description, "%s, pre-tokenizer %s, %u token%s",
             tok->unigram.scores      ? "SentencePiece unigram"
             : tok->byte_level        ? "byte-level BPE"
             : tok->bpe.byte_fallback ? "SentencePiece BPE"
                                      : "character BPE",
             tok->pretok.name ? tok->pretok.name : pretok_kind_name(tok->pretok.kind),
             tokenizer_vocab_size(tok), plural(tokenizer_vocab_size(tok)));
    return STATUS_OK;
}
