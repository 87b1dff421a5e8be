/* pretokenize_tiles.c - the known pre-tokenizers as matchers written by hand.
 *
 * Each function returns the end of the word at p and looks at most one run of equal characters
 * ahead, so that a text is walked in linear time. Where a model isolates something first (digits,
 * CJK) and matches inside the pieces that remain, the isolated characters are an `end` to the later
 * pattern: the lookahead (?!\S) holds in front of them as it does at the end of the text. */
#include "text/pretokenize.h"
#include "text/unicode_class.h"

enum { LETTER_OR_NUMBER = CLASS_LETTER | CLASS_NUMBER, NOT_OTHER = LETTER_OR_NUMBER | CLASS_SPACE };

/* End of the run of characters at p that have one of `classes`. */
static const uint8_t *run_of(const uint8_t *p, const uint8_t *end, uint8_t classes)
{
    unsigned len;

    while (p < end && (class_read(p, &len) & classes))
        p += len;
    return p;
}

/* End of the run of characters at p that have none of `classes`. */
static const uint8_t *run_without(const uint8_t *p, const uint8_t *end, uint8_t classes)
{
    unsigned len;

    while (p < end && !(class_read(p, &len) & classes))
        p += len;
    return p;
}

static const uint8_t *newlines(const uint8_t *p, const uint8_t *end)
{
    while (p < end && (*p == '\n' || *p == '\r'))
        p++;
    return p;
}

static uint8_t lower(uint8_t c)
{
    return c >= 'A' && c <= 'Z' ? (uint8_t)(c | 0x20) : c;
}

/* Length of 's 't 're 've 'm 'll 'd at p, which is an apostrophe; 0 when it is none of them. In any
 * case of letters, U+017F (long s) is an s too. */
static unsigned contraction(const uint8_t *p, const uint8_t *end, bool any_case)
{
    size_t left = (size_t)(end - p);

    if (left < 2) return 0;
    uint8_t a = any_case ? lower(p[1]) : p[1];
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (left < 3) return 0;
    if (any_case && a == 0xc5 && p[2] == 0xbf) return 3;
    uint8_t b = any_case ? lower(p[2]) : p[2];
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* `\s+(?!\S)|\s+` on the run of spaces [p, q): all of it at an end, else all but its last
 * character, else that one. */
static const uint8_t *spaces_before(const uint8_t *p, const uint8_t *q, bool at_end)
{
    const uint8_t *last = utf8_before(q);

    return at_end || last == p ? q : last;
}

static const uint8_t *gpt2(const uint8_t *p, const uint8_t *end)
{
    unsigned len, n;
    uint8_t c = class_read(p, &len);

    if (*p == '\'' && (n = contraction(p, end, false))) return p + n;
    if (*p == ' ' && p + 1 < end) {
        c = class_read(p + 1, &len);
        if (c & CLASS_SPACE)
            c = CLASS_SPACE;
        else
            p++;
    }
    if (c & CLASS_LETTER) return run_of(p + len, end, CLASS_LETTER);
    if (c & CLASS_NUMBER) return run_of(p + len, end, CLASS_NUMBER);
    if (!(c & CLASS_SPACE)) return run_without(p + len, end, NOT_OTHER);
    const uint8_t *q = run_of(p, end, CLASS_SPACE);
    return spaces_before(p, q, q == end);
}

/* End of `\s*[\r\n]+` at p, or NULL: the run of spaces up to its last line end. *run: the run's
 * end. */
static const uint8_t *spaces_to_newline(const uint8_t *p, const uint8_t *end, const uint8_t **run)
{
    const uint8_t *last = NULL;
    unsigned len;

    for (; p < end && (class_read(p, &len) & CLASS_SPACE); p += len)
        if (*p == '\n' || *p == '\r') last = p + 1;
    *run = p;
    return last;
}

static const uint8_t *llama_digits(const uint8_t *p, const uint8_t *end, unsigned digits_max)
{
    unsigned len;

    for (unsigned n = 0; n < digits_max && p < end && (class_read(p, &len) & CLASS_NUMBER); n++)
        p += len;
    return p;
}

static inline const uint8_t *llama_like(const uint8_t *p, const uint8_t *end, unsigned digits_max)
{
    unsigned len, next_len = 0, n;
    uint8_t c = class_read(p, &len), next = 0;
    const uint8_t *q, *newline;

    if (c & CLASS_LETTER) return run_of(p + len, end, CLASS_LETTER);
    if (c & CLASS_NUMBER) return llama_digits(p, end, digits_max);
    if (*p == '\'' && (n = contraction(p, end, true))) return p + n;
    if (p + len < end) next = class_read(p + len, &next_len);
    if ((next & CLASS_LETTER) && *p != '\r' && *p != '\n')
        return run_of(p + len + next_len, end, CLASS_LETTER);
    if (*p == ' ' && p + len < end && !(next & NOT_OTHER))
        return newlines(run_without(p + len, end, NOT_OTHER), end);
    if (!(c & CLASS_SPACE)) return newlines(run_without(p, end, NOT_OTHER), end);
    newline = spaces_to_newline(p, end, &q);
    return newline ? newline : spaces_before(p, q, q == end);
}

static const uint8_t *llama3(const uint8_t *p, const uint8_t *end)
{
    return llama_like(p, end, 3);
}

static const uint8_t *qwen2(const uint8_t *p, const uint8_t *end)
{
    return llama_like(p, end, 1);
}

/* Where the piece without numeric characters that starts at p ends is not looked for: it would be
 * walked again for every word. The GPT-2 pattern on the whole text crosses into a number only by a
 * run of "other" characters (numbers of the newer Unicode) or by a space in front of it. */
static const uint8_t *smollm(const uint8_t *p, const uint8_t *end)
{
    unsigned len, n;
    uint32_t ch = utf8_read(p, &len);
    uint8_t c = unicode_classes[ch];

    if (class_is_numeric(ch, c)) return p + len;
    if (*p == '\'' && (n = contraction(p, end, false))) return p + n;
    if (*p == ' ' && p + 1 < end) {
        unsigned next_len;
        uint32_t next = utf8_read(p + 1, &next_len);
        if (class_is_numeric(next, unicode_classes[next])) return p + 1;
        if (!(unicode_classes[next] & CLASS_SPACE)) {
            c = unicode_classes[next];
            p++;
            len = next_len;
        }
    }
    if (c & CLASS_LETTER) return run_of(p + len, end, CLASS_LETTER);
    if (c & CLASS_SPACE) {
        const uint8_t *q = run_of(p, end, CLASS_SPACE);
        uint32_t next = q < end ? utf8_read(q, &len) : 0;
        return spaces_before(p, q, q == end || class_is_numeric(next, unicode_classes[next]));
    }
    for (p += len; p < end; p += len) {
        ch = utf8_read(p, &len);
        c = unicode_classes[ch];
        if ((c & NOT_OTHER) || class_is_numeric(ch, c)) break;
    }
    return p;
}

/* [一-龥ࠀ-一가-퟿] */
static bool in_coder_cjk(uint32_t c)
{
    return (c >= 0x800 && c <= 0x9fa5) || (c >= 0xac00 && c <= 0xd7ff);
}

/* DeepSeek-Coder isolates, one after the other: [\r\n], \s?\p{L}+, \s?\p{P}+, [一-龥ࠀ-一가-퟿]+, and
 * each number. So a word is the longest run at p that stays in one piece of the first three
 * (letters with a space before, punctuation likewise, or anything else) and on one side of the
 * fourth. */
static const uint8_t *deepseek_coder(const uint8_t *p, const uint8_t *end)
{
    unsigned len, next_len;
    uint32_t ch = utf8_read(p, &len), next;
    uint8_t c = unicode_classes[ch];
    const bool cjk = in_coder_cjk(ch);
    uint8_t kind = c & (CLASS_LETTER | CLASS_PUNCTUATION);

    if (ch == '\r' || ch == '\n' || class_is_numeric(ch, c)) return p + len;
    if ((c & CLASS_SPACE) && p + len < end)
        kind = class_read(p + len, &next_len) & (CLASS_LETTER | CLASS_PUNCTUATION);
    for (p += len; p < end; p += len) {
        next = utf8_read(p, &len);
        c = unicode_classes[next];
        if (in_coder_cjk(next) != cjk || next == '\r' || next == '\n' || class_is_numeric(next, c))
            break;
        if (kind ? !(c & kind) : (c & (CLASS_LETTER | CLASS_PUNCTUATION)) != 0) break;
        if (!kind && (c & CLASS_SPACE) && p + len < end &&
            (class_read(p + len, &next_len) & (CLASS_LETTER | CLASS_PUNCTUATION)))
            break;
    }
    return p;
}

/* [一-龥぀-ゟ゠-ヿ] */
static bool in_v3_cjk(uint32_t c)
{
    return (c >= 0x4e00 && c <= 0x9fa5) || (c >= 0x3040 && c <= 0x30ff);
}

/* DeepSeek-V3 isolates numbers, up to three together, and runs of CJK, then matches a third pattern
 * inside all pieces, the CJK ones too. CLASS_NUMBER stands for where the piece ends. */
enum {
    V3_LETTER = CLASS_LETTER | CLASS_MARK,
    V3_PUNCTUATION = CLASS_PUNCTUATION | CLASS_SYMBOL,
    V3_END = CLASS_NUMBER,
    V3_KNOWN = V3_LETTER | V3_PUNCTUATION | CLASS_SPACE | V3_END
};

struct v3_piece {
    const uint8_t *end; /* of the text */
    bool cjk;           /* a piece of CJK, or one without */
};

static uint8_t v3_class(const uint8_t *p, struct v3_piece piece, unsigned *len)
{
    if (p >= piece.end) return V3_END;
    uint32_t c = utf8_read(p, len);
    return in_v3_cjk(c) != piece.cjk ? V3_END : unicode_classes[c];
}

static const uint8_t *v3_run(const uint8_t *p, struct v3_piece piece, uint8_t classes)
{
    unsigned len;
    uint8_t c;

    while (!((c = v3_class(p, piece, &len)) & V3_END) && (c & classes))
        p += len;
    return p;
}

static const uint8_t *v3_punctuation(const uint8_t *p, struct v3_piece piece)
{
    p = v3_run(p, piece, V3_PUNCTUATION);
    return piece.cjk ? p : newlines(p, piece.end);
}

/* Characters of no class that the pattern does not match at all (controls, unassigned) are a piece
 * together, up to the one that a letter follows: that one belongs to the letter. */
static const uint8_t *v3_unmatched(const uint8_t *p, struct v3_piece piece)
{
    unsigned len, next_len;

    while (!(v3_class(p, piece, &len) & V3_KNOWN)) {
        if (v3_class(p + len, piece, &next_len) & V3_LETTER) break;
        p += len;
    }
    return p;
}

static const uint8_t *v3_spaces(const uint8_t *p, struct v3_piece piece)
{
    const uint8_t *newline = NULL, *q = p;
    unsigned len;
    uint8_t c;

    for (; !((c = v3_class(q, piece, &len)) & V3_END) && (c & CLASS_SPACE); q += len)
        if (*q == '\n' || *q == '\r') newline = q + 1;
    return newline ? newline : spaces_before(p, q, (c & V3_END) != 0);
}

static bool is_ascii_letter(uint8_t c)
{
    return (uint8_t)((c | 0x20) - 'a') < 26;
}

static const uint8_t *deepseek_v3(const uint8_t *p, const uint8_t *end)
{
    unsigned len, next_len = 0;
    const uint32_t ch = utf8_read(p, &len);
    const struct v3_piece piece = {end, in_v3_cjk(ch)};
    const uint8_t c = unicode_classes[ch];

    if (c & CLASS_NUMBER) return llama_digits(p, end, 3);
    if ((c & V3_PUNCTUATION) && ch < 0x80 && p + 1 < end && is_ascii_letter(p[1])) {
        for (p++; p < end && is_ascii_letter(*p); p++)
            ;
        return p;
    }
    if (c & V3_LETTER) return v3_run(p + len, piece, V3_LETTER);
    uint8_t next = v3_class(p + len, piece, &next_len);
    if (next & V3_END) next = 0;
    if ((next & V3_LETTER) && ch != '\n' && ch != '\r' && !(c & V3_PUNCTUATION))
        return v3_run(p + len, piece, V3_LETTER);
    if (ch == ' ' && (next & V3_PUNCTUATION)) return v3_punctuation(p + len, piece);
    if (c & V3_PUNCTUATION) return v3_punctuation(p, piece);
    return c & CLASS_SPACE ? v3_spaces(p, piece) : v3_unmatched(p, piece);
}

static bool is_space_mark(const uint8_t *p, const uint8_t *end)
{
    return end - p >= 3 && p[0] == 0xe2 && p[1] == 0x96 && p[2] == 0x81;
}

static const uint8_t *metaspace(const uint8_t *p, const uint8_t *end)
{
    for (p++; p < end && !is_space_mark(p, end); p++)
        ;
    return p;
}

static const uint8_t *spm_words(const uint8_t *p, const uint8_t *end)
{
    while (is_space_mark(p, end))
        p += 3;
    while (p < end && !is_space_mark(p, end))
        p++;
    return p;
}

pretok_tile *pretok_tile_of(enum pretok_kind kind)
{
    switch (kind) {
    case PRETOK_GPT2: return gpt2;
    case PRETOK_LLAMA3: return llama3;
    case PRETOK_QWEN2: return qwen2;
    case PRETOK_SMOLLM: return smollm;
    case PRETOK_DEEPSEEK_CODER: return deepseek_coder;
    case PRETOK_DEEPSEEK_V3: return deepseek_v3;
    case PRETOK_METASPACE: return metaspace;
    case PRETOK_SPM_WORDS: return spm_words;
    case PRETOK_WHOLE:
    case PRETOK_STAGES: return NULL;
    }
    return NULL;
}
