/* unicode_class.h - properties of code points as the reference tokenizer library reads them.
 *
 * The table is expanded once per process from the generated unicode_runs.c. Thread:
 * unicode_class_init() from any (tokenizer_open calls it); afterwards read-only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/utf8.h"

enum {
    CLASS_LETTER = 1,
    CLASS_NUMBER = 2,
    CLASS_MARK = 4,
    CLASS_PUNCTUATION = 8,
    CLASS_SYMBOL = 16,
    CLASS_SPACE = 32,      /* \s */
    CLASS_WORD = 64,       /* \w as `single_word` reads it */
    CLASS_NFC_ACTIVE = 128 /* NFC may change it or join it to what stands before */
};

extern const uint32_t unicode_runs[];
extern const uint32_t unicode_run_count;

extern uint8_t unicode_classes[0x110000];

void unicode_class_init(void);

/* Classes of the character at p. */
static inline uint8_t class_read(const uint8_t *p, unsigned *len)
{
    return unicode_classes[utf8_read(p, len)];
}

/* The library's Digits asks Rust's char::is_numeric, whose Unicode is one version newer than that
 * of its regular expressions: some numbers are numbers to Digits only. */
static inline bool class_is_numeric(uint32_t c, uint8_t classes)
{
    return (classes & CLASS_NUMBER) || (c >= 0x11de0 && c <= 0x11de9) ||
           (c >= 0x16ff4 && c <= 0x16ff6);
}

/* Start of the character that ends right before p (p is not the start of the text). */
static inline const uint8_t *utf8_before(const uint8_t *p)
{
    do
        p--;
    while ((*p & 0xc0) == 0x80);
    return p;
}
