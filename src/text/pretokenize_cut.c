/* pretokenize_cut.c - places where a text may be cut in two without changing a word on either side.
 *
 * Every matcher of pretokenize_tiles.c is a function of what stands behind the word's start. So the
 * words behind a place are the same whatever is in front of it, if a word always begins there; and
 * those in front of it, if none of them is chosen by what stands behind. Both hold between a letter
 * and a character that is neither letter nor mark: in all the patterns letters stand at the end of
 * a word only, as a run that ends by itself, and the one choice before it (a contraction, 'll) needs
 * another letter. Looked for are an ASCII letter or an ideograph, and behind it ASCII, U+FF0C or
 * U+3002. With Metaspace and SentencePiece the place is in front of a U+2581 that does not follow
 * another. A chain of patterns has no such place. */
#include "text/pretokenize.h"

static bool is_letter(uint8_t c)
{
    return (uint8_t)((c | 0x20) - 'a') < 26;
}

/* U+4E00..U+9FA5, all letters, without the last 38. */
static bool is_ideograph(const uint8_t *p)
{
    return p[0] == 0xe4 ? p[1] >= 0xb8
                        : p[0] > 0xe4 && (p[0] < 0xe9 || (p[0] == 0xe9 && p[1] < 0xbe));
}

/* p has at least 3 bytes in front of it and is not the end. */
static bool cuts_words(const uint8_t *p, const uint8_t *end)
{
    if (*p < 0x80)
        return !is_letter(*p) && (is_letter(p[-1]) || (p[-1] >= 0x80 && is_ideograph(p - 3)));
    return end - p >= 3 &&
           ((p[0] == 0xef && p[1] == 0xbc && p[2] == 0x8c) ||
            (p[0] == 0xe3 && p[1] == 0x80 && p[2] == 0x82)) &&
           p[-1] >= 0x80 && is_ideograph(p - 3);
}

static bool cuts_marks(const uint8_t *p, const uint8_t *end)
{
    return end - p >= 3 && p[0] == 0xe2 && p[1] == 0x96 && p[2] == 0x81 &&
           !(p[-3] == 0xe2 && p[-2] == 0x96 && p[-1] == 0x81);
}

const uint8_t *pretok_next_cut(const struct pretok *pretok, const uint8_t *from, const uint8_t *end)
{
    if (pretok->kind == PRETOK_WHOLE || pretok->kind == PRETOK_STAGES) return end;
    if (pretok->kind == PRETOK_METASPACE || pretok->kind == PRETOK_SPM_WORDS) {
        while (from < end && !cuts_marks(from, end))
            from++;
        return from;
    }
    while (from < end && !cuts_words(from, end))
        from++;
    return from;
}
