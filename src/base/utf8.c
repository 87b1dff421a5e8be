#include "base/utf8.h"

#include <assert.h>

static bool is_tail(unsigned char c)
{
    return (c & 0xc0) == 0x80;
}

/* The second byte of a sequence whose first byte is `first`: the range that excludes overlong forms,
 * surrogates and what lies over U+10FFFF. */
static bool second_fits(unsigned char first, unsigned char second)
{
    switch (first) {
    case 0xe0: return second >= 0xa0 && second <= 0xbf;
    case 0xed: return second >= 0x80 && second <= 0x9f;
    case 0xf0: return second >= 0x90 && second <= 0xbf;
    case 0xf4: return second >= 0x80 && second <= 0x8f;
    default: return is_tail(second);
    }
}

unsigned utf8_sequence_len(const char *text, size_t len)
{
    const unsigned char *p = (const unsigned char *)text;
    unsigned need;

    if (len == 0) return 0;
    if (p[0] < 0x80) return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4) return 0;
    need = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (len < need || !second_fits(p[0], p[1])) return 0;
    for (unsigned i = 2; i < need; i++)
        if (!is_tail(p[i])) return 0;
    return need;
}

size_t utf8_valid_len(struct slice text)
{
    size_t at = 0;

    while (at < text.len) {
        uint64_t eight;
        unsigned n;

        if (text.len - at >= sizeof eight) { /* most text is ASCII */
            memcpy(&eight, text.ptr + at, sizeof eight);
            if (!(eight & 0x8080808080808080u)) {
                at += sizeof eight;
                continue;
            }
        }
        n = utf8_sequence_len(text.ptr + at, text.len - at);
        if (n == 0) return at;
        at += n;
    }
    return at;
}

unsigned utf8_encode(uint32_t scalar, char out[4])
{
    assert(scalar <= 0x10ffff && (scalar < 0xd800 || scalar > 0xdfff));
    if (scalar < 0x80) {
        out[0] = (char)scalar;
        return 1;
    }
    if (scalar < 0x800) {
        out[0] = (char)(0xc0 | scalar >> 6);
        out[1] = (char)(0x80 | (scalar & 0x3f));
        return 2;
    }
    if (scalar < 0x10000) {
        out[0] = (char)(0xe0 | scalar >> 12);
        out[1] = (char)(0x80 | (scalar >> 6 & 0x3f));
        out[2] = (char)(0x80 | (scalar & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | scalar >> 18);
    out[1] = (char)(0x80 | (scalar >> 12 & 0x3f));
    out[2] = (char)(0x80 | (scalar >> 6 & 0x3f));
    out[3] = (char)(0x80 | (scalar & 0x3f));
    return 4;
}
