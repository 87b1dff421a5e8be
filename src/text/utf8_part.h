/* utf8_part.h - what a run of bytes starts with: a character, an ill-formed part, or a beginning.
 *
 * A maximal ill-formed part is one U+FFFD (the Unicode standard, section 3.9, "U+FFFD substitution
 * of maximal subparts"), the same way that Python and Rust repair UTF-8. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum utf8_part {
    UTF8_GOOD, /* a whole character */
    UTF8_ILL,  /* bytes that no continuation can make a character of */
    UTF8_CUT   /* all the bytes are the beginning of a character */
};

/* Length of the part that starts at p; len is not 0. */
static inline unsigned utf8_part(const uint8_t *p, size_t len, enum utf8_part *kind)
{
    unsigned need = p[0] < 0x80   ? 0
                    : p[0] < 0xc2 ? 4
                    : p[0] < 0xe0 ? 1
                    : p[0] < 0xf0 ? 2
                    : p[0] < 0xf5 ? 3
                                  : 4;
    uint8_t low = 0x80, high = 0xbf; /* bounds of the second byte, Unicode table 3-7 */

    *kind = need == 4 ? UTF8_ILL : UTF8_GOOD;
    if (need == 4 || need == 0) return 1;
    if (p[0] == 0xe0) low = 0xa0;
    if (p[0] == 0xed) high = 0x9f;
    if (p[0] == 0xf0) low = 0x90;
    if (p[0] == 0xf4) high = 0x8f;
    for (unsigned i = 1; i <= need; i++) {
        if (i == len) {
            *kind = UTF8_CUT;
            return i;
        }
        if (p[i] < low || p[i] > high) {
            *kind = UTF8_ILL;
            return i;
        }
        low = 0x80;
        high = 0xbf;
    }
    return need + 1;
}
