"""What a GGUF file says about its tokens, read here anew so that the daemon's own reader is not its own witness."""
import struct

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def read_metadata(path):
    data = open(path, "rb").read(16 << 20)
    assert data[:4] == b"GGUF"
    at = 4

    def number(code):
        nonlocal at
        value = struct.unpack_from("<" + code, data, at)[0]
        at += struct.calcsize("<" + code)
        return value

    def text():
        nonlocal at
        size = number("Q")
        at += size
        return data[at - size:at].decode()

    def value(kind):
        if kind in SCALARS:
            return number(SCALARS[kind])
        if kind == 8:
            return text()
        item, count = number("I"), number("Q")
        return [value(item) for _ in range(count)]

    number("I"), number("Q")
    pairs = {}
    for _ in range(number("Q")):
        name = text()
        pairs[name] = value(number("I"))
    return pairs


def byte_letters():
    """GPT-2's table: the letter by which a byte-level vocabulary writes each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


class Vocabulary:
    """Token ids to bytes. `special[i]`: text only with skip_special_tokens false."""

    def __init__(self, path):
        meta = read_metadata(path)
        letters = byte_letters()
        self.names = meta["tokenizer.ggml.tokens"]
        self.special = {i for i, kind in enumerate(meta["tokenizer.ggml.token_type"]) if kind == 3}
        self.bytes = [name.encode() if i in self.special else bytes(letters[c] for c in name)
                      for i, name in enumerate(self.names)]
        self.eos = meta["tokenizer.ggml.eos_token_id"]
        self.context = meta["llama.context_length"]
        self.size = len(self.names)
        self.by_bytes = {b: i for i, b in enumerate(self.bytes) if i not in self.special}

    def text(self, ids, skip_special=True):
        """Section 3.5: one U+FFFD for each maximal ill-formed part, which is what Python's decoder does too."""
        kept = [self.bytes[i] for i in ids if not (skip_special and i in self.special)]
        return b"".join(kept).decode("utf-8", "replace")
