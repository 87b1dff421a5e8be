/* tokenizer_bytes.c - the built-in tokenizer of made-up weights: a token is a byte, one more ends a text.
 *
 * Made through the same tables as a byte-level tokenizer.json without merges, so that all that is said of those holds for it. */
#include <stdlib.h>

#include "text/tokenizer_impl.h"

enum { BYTES = 256, STAND_IN_MAX = 2 }; /* U+0143 is the last stand-in */

static enum status add_end(struct tokenizer *tok)
{
    tok->added = calloc(1, sizeof *tok->added);
    if (!tok->added) return STATUS_NOMEM;
    tok->added[0] = (struct added_token){
        .id = TOKENIZER_BYTES_END, .content = SLICE(TOKENIZER_BYTES_END_TEXT), .special = true};
    tok->added_count = 1;
    return STATUS_OK;
}

static enum status set_bytes(struct tokenizer *tok, struct error *err)
{
    struct vocab_entry entries[BYTES + 1];
    char texts[BYTES][STAND_IN_MAX];

    for (int byte = 0; byte < BYTES; byte++) {
        size_t len = tokenizer_stand_in((uint8_t)byte, texts[byte]);
        entries[byte] = (struct vocab_entry){byte, slice_of(texts[byte], len), 0};
    }
    entries[BYTES] =
        (struct vocab_entry){TOKENIZER_BYTES_END, tok->added[0].content, VOCAB_UNUSABLE};
    return tokenizer_set_vocab(tok, entries, BYTES + 1,
                               (struct vocab_options){.form = VOCAB_BYTE_LEVEL}, err);
}

enum status tokenizer_load_bytes(struct tokenizer *tok, struct error *err)
{
    enum status st = add_end(tok);

    if (st) return error_set(err, st, "no memory for the built-in tokenizer");
    st = set_bytes(tok, err);
    if (!st) st = tokenizer_index_added(tok, err);
    tok->eos = TOKENIZER_BYTES_END;
    return st;
}
