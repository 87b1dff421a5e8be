#include "text/detok.h"

#include <assert.h>
#include <string.h>

#include "text/utf8_part.h"

static const char REPLACEMENT[] = "\xef\xbf\xbd"; /* U+FFFD */

void detok_init(struct detok *d, const struct tokenizer *tok, bool skip_special)
{
    *d = (struct detok){.tok = tok, .skip_special = skip_special, .at_start = true};
}

/* Bytes for the held beginning: one more makes a character, keeps it waiting, or ends it as
 * ill-formed and then stands for itself. Returns how many of `bytes` are used. */
static size_t feed_held(struct detok *d, const uint8_t *bytes, size_t len, struct buf *out)
{
    uint8_t joined[4];
    enum utf8_part kind;
    size_t take = len < sizeof joined - d->held_len ? len : sizeof joined - d->held_len;

    memcpy(joined, d->held, d->held_len);
    memcpy(joined + d->held_len, bytes, take);
    unsigned part = utf8_part(joined, d->held_len + take, &kind);
    assert(part >= d->held_len);
    size_t used = part - d->held_len;
    if (kind == UTF8_CUT) {
        memcpy(d->held, joined, part);
        d->held_len = (uint8_t)part;
        return used;
    }
    if (kind == UTF8_GOOD)
        buf_append(out, joined, part);
    else
        buf_append(out, REPLACEMENT, 3);
    d->held_len = 0;
    return used;
}

void detok_push_bytes(struct detok *d, struct slice bytes, struct buf *out)
{
    const uint8_t *p = (const uint8_t *)bytes.ptr;
    size_t at = 0, kept = 0;
    enum utf8_part kind;

    if (!bytes.len) return;
    if (d->held_len) at = kept = feed_held(d, p, bytes.len, out);
    while (at < bytes.len) {
        unsigned part = utf8_part(p + at, bytes.len - at, &kind);
        at += part;
        if (kind == UTF8_GOOD) continue;
        buf_append(out, p + kept, at - part - kept);
        kept = at;
        if (kind == UTF8_ILL) {
            buf_append(out, REPLACEMENT, 3);
        } else {
            memcpy(d->held, p + at - part, part);
            d->held_len = (uint8_t)part;
        }
    }
    buf_append(out, p + kept, bytes.len - kept);
}

void detok_push(struct detok *d, int32_t id, struct buf *out)
{
    struct slice bytes = tokenizer_token_bytes(d->tok, id);

    if (!bytes.len || (d->skip_special && tokenizer_is_special(d->tok, id))) return;
    if (d->at_start && tokenizer_strips_first_space(d->tok) && bytes.ptr[0] == ' ')
        bytes = slice_of(bytes.ptr + 1, bytes.len - 1);
    d->at_start = false;
    detok_push_bytes(d, bytes, out);
}

void detok_flush(struct detok *d, struct buf *out)
{
    if (d->held_len) buf_append(out, REPLACEMENT, 3);
    d->held_len = 0;
}
