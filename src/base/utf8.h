/* utf8.h - strict checking of UTF-8 (Unicode 15, table 3-7): no overlong form, no surrogate, nothing
 * over U+10FFFF. Source: the Unicode Standard, section 3.9. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/slice.h"

/* Length of the well-formed sequence (1..4 bytes) that text starts with, 0 when it is ill-formed, cut
 * short or empty. */
unsigned utf8_sequence_len(const char *text, size_t len);

/* Bytes in front of the first ill-formed sequence; text.len when there is none. O(bytes). */
size_t utf8_valid_len(struct slice text);

static inline bool utf8_valid(struct slice text)
{
    return utf8_valid_len(text) == text.len;
}

/* The code point at p, of well-formed UTF-8. *len: its bytes. */
static inline uint32_t utf8_read(const uint8_t *p, unsigned *len)
{
    if (p[0] < 0x80) {
        *len = 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *len = 2;
        return (uint32_t)(p[0] & 0x1f) << 6 | (p[1] & 0x3f);
    }
    if (p[0] < 0xf0) {
        *len = 3;
        return (uint32_t)(p[0] & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3f);
    }
    *len = 4;
    return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3f) << 12 |
           (uint32_t)(p[2] & 0x3f) << 6 | (p[3] & 0x3f);
}

/* Writes the 1..4 bytes of a scalar value (not a surrogate, at most U+10FFFF); returns how many. */
unsigned utf8_encode(uint32_t scalar, char out[4]);
