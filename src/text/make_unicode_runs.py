#!/usr/bin/env python3
"""Writes unicode_runs.c: what the reference tokenizer library thinks of every code point.

    pip install tokenizers==0.23.3; make_unicode_runs.py > unicode_runs.c

Token ids depend on the Unicode versions that the library's parts were built with (its regex engine: 16,
its normaliser: about 9), so the properties are asked of the library itself, one code point after the
other, rather than taken from one version of the Unicode data.
"""
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

LETTER, NUMBER, MARK, PUNCTUATION, SYMBOL, SPACE, WORD, NFC_ACTIVE = (1 << k for k in range(8))
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def matching(pattern):
    """Code points that a one-character pattern matches."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    found = set()
    for at in range(0, len(CODE_POINTS), 4096):
        chunk = CODE_POINTS[at:at + 4096]
        kept = set()
        for _, (a, b) in split.pre_tokenize_str("".join(map(chr, chunk))):
            kept.update(range(a, b))
        found.update(c for k, c in enumerate(chunk) if k not in kept)
    return found


def word_characters():
    """Those beside which an added token with single_word is not recognised."""
    tok = Tokenizer(models.BPE())
    tok.add_tokens([AddedToken("@@", single_word=True, normalized=False)])
    found = set()
    for at in range(0, len(CODE_POINTS), 1000):
        chunk = CODE_POINTS[at:at + 1000]
        starts = {o[0] for o in tok.encode("".join(" @@" + chr(c) for c in chunk)).offsets}
        found.update(c for k, c in enumerate(chunk) if 4 * k + 1 not in starts)
    return found


def nfc_active():
    """Those that NFC may change or move, or join to what stands before: all others end a run."""
    nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
    found = set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    for c in CODE_POINTS:
        ch = chr(c)
        found.update(map(ord, nfd(ch)[1:]) if not 0xAC00 <= c <= 0xD7A3 else ())
        moved = "q" + ch + "\u0334", "q\u0307" + ch
        if nfc(ch) != ch or any(nfc(m) != m and ch not in "\u0334\u0307" for m in moved):
            found.add(c)
    return found | {0x334, 0x307}


def main():
    classes = [0] * 0x110000
    sets = [(matching(r"\p{%s}" % p), bit) for p, bit in
            (("L", LETTER), ("N", NUMBER), ("M", MARK), ("P", PUNCTUATION), ("S", SYMBOL))]
    sets += [(matching(r"\s"), SPACE), (word_characters(), WORD), (nfc_active(), NFC_ACTIVE)]
    for members, bit in sets:
        for c in members:
            classes[c] |= bit
    runs = [(c, classes[c]) for c in range(0x110000) if c == 0 or classes[c] != classes[c - 1]]
    print("/* unicode_runs.c - made by make_unicode_runs.py from tokenizers %s; do not edit." % tokenizers.__version__)
    print(" * Each word is the first code point of a run (high 24 bits) and its classes (low 8). */")
    print('#include "text/unicode_class.h"\n')
    print("/* clang-format off */")
    print("const uint32_t unicode_runs[] = {")
    for at in range(0, len(runs), 10):
        print("".join("0x%x," % (c << 8 | k) for c, k in runs[at:at + 10]))
    print("};\n/* clang-format on */")
    print("const uint32_t unicode_run_count = sizeof unicode_runs / sizeof *unicode_runs;")


main()
