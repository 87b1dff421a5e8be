/* detok.h - streamed detokenising: token ids to the text that has become certain.
 *
 * The pieces joined with the flush are equal to tokenizer_decode() of all ids. A byte sequence that
 * may still become a character is held back; a byte that can no longer become part of one is U+FFFD
 * at once (one per maximal ill-formed part, as the Unicode standard recommends, section 3.9 "U+FFFD
 * substitution"). Thread: whoever holds it. Memory: fixed size, no allocation of its own. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "text/tokenizer.h"

struct detok {
    const struct tokenizer *tok; /* borrowed while in use */
    bool skip_special;
    bool at_start;    /* no text given out yet: a first space may have to go */
    uint8_t held[4];  /* the bytes of an unfinished character */
    uint8_t held_len; /* 0..3 */
};

/* For a text that starts here; where the ids continue a text (a completion behind its prompt), the
 * caller sets at_start to false. tok may be NULL when only detok_push_bytes is used. */
void detok_init(struct detok *d, const struct tokenizer *tok, bool skip_special);
/* Appends to `out` the UTF-8 text that becomes certain with `id` (may be nothing). */
void detok_push(struct detok *d, int32_t id, struct buf *out);
/* Appends U+FFFD for what is held, and forgets it. */
void detok_flush(struct detok *d, struct buf *out);

/* The same UTF-8 repair for plain bytes: appends the certain part of held + bytes to out. */
void detok_push_bytes(struct detok *d, struct slice bytes, struct buf *out);
