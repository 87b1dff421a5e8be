#!/usr/bin/env python3
"""Compares our tokenizers with Hugging Face `tokenizers` on random texts, beyond the golden vectors.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3
    compare_tokenizers.py --tool build/release/bin/text_lines_tool [--texts 2000] [--seed N]

For every tokenizer.json of tests/golden/tokenizers, for Unigram models made here, and for variants of it made here (other pre-tokenizers,
added-token flags, Metaspace, post-processors, behaviours of Split), random texts go through both; ids and
decoded text must be equal. Models that SentencePiece trains here with its own normalizers (charsmap) are compared twice:
as a tokenizer.json of the kind that T5 and XLM-R have with `tokenizers`, and as a GGUF with SentencePiece itself. Texts mix scripts, spaces, marks, digits, controls, added tokens and odd code
points. A difference prints the text and both lists of ids and ends with status 1.
"""
import argparse, base64, copy, io, json, lzma, os, random, shutil, struct, subprocess, sys, tempfile, time
from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "golden", "tokenizers")
RANGES = [(0x20, 0x7E)] * 6 + [(0x0, 0x1F), (0x7F, 0x2FF), (0x300, 0x36F), (0x370, 0x5FF), (0x600, 0x1FFF),
          (0x2000, 0x206F), (0x2000, 0x33FF), (0x3040, 0x30FF), (0x3400, 0x9FFF), (0xA000, 0xD7FF), (0x1100, 0x11FF),
          (0xE000, 0xFFFF), (0x10000, 0x1FFFF), (0x11DE0, 0x11DEF), (0x16FF0, 0x16FFF), (0x20000, 0x10FFFF)]
BITS = [" ", "  ", "   ", "\n", "\r\n", "\n\n", "\t", " \n", "\u00a0", "\u3000", "\u0085", "'s", "'S", "'ll", "'LL", "'re",
        "'ve", "'d", "'\u017f", "' s", "''", "the", " the", "ing", " world", "Hello", "1", "12", "123", "1234", "\u0663",
        "\u00b2", "\u0e51", "\u0301", "e\u0301", "\u0323", "q\u0307\u0323", "\u4f60\u597d", "\u3002", "\u30fb", "\u3005",
        "\u3099", "\uac01", "\u1100\u1161\u11a8", "\u00e9", "\U0001f600", "\U0001f468\u200d\U0001f469", "!", "...", "--",
        "#include", "(", "_", "a_b", "\u2581", "\u2581\u2581", "<0x41>", "\x00", "\x01", "\u200b", "\ufeff", "\ufffd", "x" * 60,
        " " * 40, "ab" * 50, "7" * 20]


def text_of(rnd, added):
    out = []
    for _ in range(rnd.randint(0, rnd.choice([3, 12, 40]))):
        k = rnd.random()
        if k < 0.5:
            out.append(rnd.choice(BITS))
        elif k < 0.62 and added:
            t = rnd.choice(added)
            out.append(t if rnd.random() < 0.8 else t[:rnd.randint(0, len(t))])
        else:
            lo, hi = rnd.choice(RANGES)
            out.append("".join(chr(c) for c in (rnd.randint(lo, hi) for _ in range(rnd.randint(1, 6)))
                               if not 0xD800 <= c <= 0xDFFF))
    return "".join(out)


def split(pattern, behavior="Isolated", invert=False):
    kind = "String" if isinstance(pattern, tuple) else "Regex"
    return dict(type="Split", pattern={kind: pattern[0] if kind == "String" else pattern}, behavior=behavior, invert=invert)


def level(regex=False, prefix=False):
    return dict(type="ByteLevel", add_prefix_space=prefix, trim_offsets=True, use_regex=regex)


def sequence(*parts):
    return dict(type="Sequence", pretokenizers=list(parts))


CODER = [split("[\r\n]"), split("\\s?\\p{L}+"), split("\\s?\\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"),
         dict(type="Digits", individual_digits=True)]


def variants(name, spec):
    """(label, spec) pairs."""
    yield name, spec
    flags = copy.deepcopy(spec)
    for k, a in enumerate(flags["added_tokens"]):
        a.update(lstrip=bool(k & 1), rstrip=bool(k & 2), single_word=bool(k & 4), normalized=bool(k & 8))
    top = max(max(spec["model"]["vocab"].values()), max(a["id"] for a in spec["added_tokens"]))
    vocab, free = spec["model"]["vocab"], top + 1
    for k, content in enumerate(["e\u0301t", " ab", "word", "\u4f60\u597d", "the", "<x>", "x\u2581y", "A\u030a"]):
        token_id = vocab.get(content, free)   # as the library numbers them, whatever the file says
        free += token_id == free
        flags["added_tokens"].append(dict(id=token_id, content=content, single_word=k % 2 == 0, lstrip=k % 3 == 0,
                                          rstrip=k % 3 == 1, normalized=k % 4 < 2, special=k % 5 == 0))
    yield name + "/flags", flags
    if spec["decoder"]["type"] == "ByteLevel":
        pres = dict(gpt2=level(True), gpt2_prefix=level(True, True), smollm=sequence(dict(type="Digits", individual_digits=True), level(True)),
                    coder=sequence(*CODER, level()), digits=sequence(dict(type="Digits", individual_digits=False), level()),
                    previous=sequence(split((" ",), "MergedWithPrevious"), level()),
                    next=sequence(split((" ",), "MergedWithNext"), level()), removed=sequence(split("\\s+", "Removed"), level()),
                    contiguous=sequence(split("[a-z]", "Contiguous"), level()),
                    inverted=sequence(split("[A-Za-z]+|[0-9]", "Removed", True), level()),
                    lines=sequence(split("[a-m]+$"), level()), none=sequence(level()))
        for label, pre in pres.items():
            v = copy.deepcopy(spec)
            v["pre_tokenizer"] = pre
            if label == "gpt2":
                v["model"]["ignore_merges"] = True
                v["normalizer"] = {"type": "NFC"}
            yield name + "/" + label, v
    else:
        for scheme in ("always", "first", "never"):
            for cut in (True, False):
                v = copy.deepcopy(spec)
                v["normalizer"] = None
                v["pre_tokenizer"] = dict(type="Metaspace", replacement="\u2581", prepend_scheme=scheme, split=cut)
                yield "%s/metaspace-%s-%d" % (name, scheme, cut), v
        v = copy.deepcopy(spec)
        v["model"].update(byte_fallback=False, fuse_unk=True)
        yield name + "/unk", v
        v = copy.deepcopy(v)
        v["model"]["fuse_unk"] = False
        yield name + "/unk-apart", v


def unigram_specs(rnd):
    """(label, spec) pairs of Unigram models over pieces cut from random texts. Half have few different scores, so that
    many ways tie; the others have multiples of 2^-10: the library reads a longer decimal up to one unit in the last place
    off (serde_json), and then breaks ties otherwise."""
    for k in range(8):
        pieces = {}
        for _ in range(400):
            text = text_of(rnd, []).replace(" ", "\u2581")
            for _ in range(6):
                at = rnd.randint(0, len(text))
                pieces[text[at:at + rnd.randint(1, 5)]] = -float(rnd.randint(1, 12)) if k % 2 else -rnd.randint(1, 12 << 10) / 1024
        pieces.pop("", None)
        fallback = k % 4 > 1
        vocab = [["<unk>", 0.0], ["<s>", 0.0], ["</s>", 0.0]]
        vocab += [["<0x%02X>" % b, 0.0] for b in range(256)] if fallback else []
        known = {v[0] for v in vocab}
        vocab += [[p, score] for p, score in pieces.items() if p not in known]
        meta = dict(type="Metaspace", replacement="\u2581", prepend_scheme=("always", "first", "never")[k % 3], split=k < 5)
        decoders = [dict(type="ByteFallback")] * fallback + [meta]
        added = [dict(id=i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
                 for i, t in enumerate(("<unk>", "<s>", "</s>"))]
        yield "unigram-%d" % k, dict(
            version="1.0", truncation=None, padding=None, added_tokens=added, normalizer={"type": "NFC"} if k % 2 else None,
            pre_tokenizer=meta if k != 4 else None, post_processor=None, decoder=dict(type="Sequence", decoders=decoders),
            model=dict(type="Unigram", unk_id=0, vocab=vocab, byte_fallback=fallback))


# --- models that SentencePiece trains ---

TRAINED = {  # label: options of the trainer
    "t5": dict(user_defined_symbols=["<extra_0>", "<extra_1>"]),
    "folding": dict(normalization_rule_name="nmt_nfkc_cf", byte_fallback=True),
    "identity": dict(normalization_rule_name="identity", remove_extra_whitespaces=False),
    "plain": dict(normalization_rule_name="nfkc", add_dummy_prefix=False),
    "loose": dict(add_dummy_prefix=False, remove_extra_whitespaces=False, split_by_whitespace=False),
}
ODD = ["\ufb01", "\uff21\uff22", "\u2460", "\u00bd", "\u3392", "\u212b", "e\u0301", "\u0958", "\u1e9b\u0323", "\ufb01\u0301", "\u3000",
       "\u200b", "\u2028", "\u00ad", "\u0130", "\u00df", "\u1100\u1161\u11a8", "\uac00\u11a8", "\uff76\uff9e", "\u2126", "  ", " ",
       "\t", "\r\n", "\u2581", " \u2581x", "\u0600a", "\u0915\u094d\u0937", "\U0001f1e9\U0001f1ea", "a\u0303\u0301b", "\x7f", "\x1f"]


def odd_text(rnd, added):
    parts = [rnd.choice(ODD) if rnd.random() < 0.4 else text_of(rnd, added)[:12] for _ in range(rnd.randint(0, 14))]
    return "".join(parts).replace("\0", "")  # SentencePiece's Python would take it, its table would not


def train(rnd, options):
    """The bytes of a model, and its description (ModelProto)."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    parts = [p for p in BITS + ODD if "\n" not in p and "\0" not in p]
    lines = ["".join(rnd.choices(parts, k=12)) for _ in range(1500)]
    words = "the of and to in is was for that on as with by at from his are this have not".split() + ["\u4f60\u597d\u4e16\u754c", "\u00e9t\u00e9"]
    lines += [" ".join(rnd.choices(words, k=12)) for _ in range(1500)]
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=out, model_type="unigram", minloglevel=2, num_threads=1,
        vocab_size=1200, hard_vocab_limit=False, character_coverage=0.998, **options)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(out.getvalue())
    return out.getvalue(), proto


def json_of(proto, how):
    """A tokenizer.json as transformers converts a model; how: "words" (T5, XLM-R) or "squeeze" (newer conversions)."""
    spec = proto.normalizer_spec
    scheme = "always" if spec.add_dummy_prefix else "never"
    meta = dict(type="Metaspace", replacement="\u2581", prepend_scheme=scheme, split=True)
    steps = [dict(type="Precompiled", precompiled_charsmap=base64.b64encode(spec.precompiled_charsmap).decode())]
    if how == "squeeze":
        steps += [dict(type="Strip", strip_left=False, strip_right=True),
                  dict(type="Replace", pattern={"Regex": " {2,}"}, content="\u2581")]
    pre = sequence(dict(type="WhitespaceSplit"), meta) if how == "words" else meta
    fallback = proto.trainer_spec.byte_fallback
    added = [dict(id=i, content=p.piece, single_word=False, lstrip=False, rstrip=False, normalized=False,
                  special=p.type != 4) for i, p in enumerate(proto.pieces) if p.type in (2, 3, 4)]
    return dict(version="1.0", truncation=None, padding=None, added_tokens=added, post_processor=None,
                normalizer=dict(type="Sequence", normalizers=steps), pre_tokenizer=pre,
                decoder=dict(type="Sequence", decoders=[dict(type="ByteFallback")] * fallback + [meta]),
                model=dict(type="Unigram", unk_id=0, byte_fallback=fallback,
                           vocab=[[p.piece, p.score] for p in proto.pieces]))


def write_gguf(path, proto):
    """The model as a GGUF without tensors, as llama.cpp's converter writes the vocabulary of T5."""
    def text(t):
        return struct.pack("<Q", len(t.encode())) + t.encode()

    def array(kind, items):
        return struct.pack("<IIQ", 9, kind, len(items)) + b"".join(items)

    def yes(flag):
        return struct.pack("<I?", 7, flag)

    spec, charsmap = proto.normalizer_spec, proto.normalizer_spec.precompiled_charsmap
    keys = {"general.architecture": struct.pack("<I", 8) + text("llama"), "tokenizer.ggml.model": struct.pack("<I", 8) + text("t5"),
            "tokenizer.ggml.tokens": array(8, [text(p.piece) for p in proto.pieces]),
            "tokenizer.ggml.scores": array(6, [struct.pack("<f", p.score) for p in proto.pieces]),
            "tokenizer.ggml.token_type": array(5, [struct.pack("<i", p.type) for p in proto.pieces]),
            "tokenizer.ggml.add_space_prefix": yes(spec.add_dummy_prefix),
            "tokenizer.ggml.remove_extra_whitespaces": yes(spec.remove_extra_whitespaces),
            "tokenizer.ggml.unknown_token_id": struct.pack("<II", 4, 0), "tokenizer.ggml.eos_token_id": struct.pack("<II", 4, 2)}
    if charsmap:
        keys["tokenizer.ggml.precompiled_charsmap"] = struct.pack("<IIQ", 9, 0, len(charsmap)) + charsmap
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + b"".join(text(k) + v for k, v in keys.items()))


def compare_gguf(label, data, proto, tool, rnd, texts):
    """Against SentencePiece itself. User-defined symbols are left out of the texts: it keeps them inside the text where
    llama.cpp and we normalise each part between them alone."""
    import sentencepiece

    reference = sentencepiece.SentencePieceProcessor(model_proto=data)
    folder, ties = tempfile.mkdtemp(), 0
    write_gguf(os.path.join(folder, "model.gguf"), proto)
    with Lines(tool, os.path.join(folder, "model.gguf")) as ours:
        for _ in range(texts):
            text = odd_text(rnd, [])
            ids = reference.encode(text)
            got = ours.ask(op="encode", text=text, add_special=False, parse_special=False)
            if got.get("ids") != ids:
                if "ids" in got and cost(proto, ids)[1] == cost(proto, got["ids"])[1] \
                        and abs(cost(proto, ids)[0] - cost(proto, got["ids"])[0]) < 1e-3:
                    ties += 1
                    continue
                print("%s: %s\n reference %s\n ours      %s" % (label, ascii(text), ids, got))
                return False
    shutil.rmtree(folder)
    print("%s: %d texts equal, %d of them but for a tie" % (label, texts, ties), flush=True)
    return ties < texts / 10


def cost(proto, ids):
    """Sum of the scores, and the text of the pieces. SentencePiece adds in float32, we (and `tokenizers`) in doubles: where
    two ways are equally good, as with the same piece in another place, rounding decides."""
    return sum(proto.pieces[i].score for i in ids), "".join(proto.pieces[i].piece for i in ids)


def write_golden(folder, rnd):
    """tests/golden/unigram: a small trained model in both forms, and texts with the ids of both references."""
    import sentencepiece

    data, proto = train(rnd, TRAINED["t5"])
    spec = json_of(proto, "words")
    hf, spm = Tokenizer.from_str(json.dumps(spec)), sentencepiece.SentencePieceProcessor(model_proto=data)
    os.makedirs(folder, exist_ok=True)
    lzma.open(os.path.join(folder, "tokenizer.json.xz"), "wt", encoding="utf-8").write(json.dumps(spec, ensure_ascii=False))
    with tempfile.NamedTemporaryFile() as plain:
        write_gguf(plain.name, proto)
        lzma.open(os.path.join(folder, "model.gguf.xz"), "wb").write(open(plain.name, "rb").read())
    with open(os.path.join(folder, "texts.jsonl"), "w") as out:
        for _ in range(300):
            text = odd_text(rnd, [])
            print(json.dumps(dict(text=text, tokenizers=hf.encode(text).ids, sentencepiece=spm.encode(text))), file=out)


class Lines:
    """The program text_lines_tool on one model."""

    def __init__(self, tool, path):
        self.process = subprocess.Popen([tool, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.process.stdin.close()
        if self.process.wait():
            raise RuntimeError("text_lines_tool ended with an error")


def compare(label, spec, tool, rnd, texts, make_text=text_of):
    hf = Tokenizer.from_str(json.dumps(spec))
    plain = Tokenizer.from_str(json.dumps(spec))
    plain.encode_special_tokens = True
    folder = tempfile.mkdtemp()
    json.dump(spec, open(os.path.join(folder, "tokenizer.json"), "w"))
    added = [a["content"] for a in spec["added_tokens"]]
    with Lines(tool, folder) as ours:
        good = all(compare_text(label, spec, (hf, plain), ours, rnd, make_text(rnd, added)) for _ in range(texts))
    shutil.rmtree(folder)
    if good:
        print("%s: %d texts equal" % (label, texts), flush=True)
    return good


def compare_text(label, spec, references, ours, rnd, text):
    (hf, plain), special, parse = references, rnd.random() < 0.2, rnd.random() < 0.8
    ids = (hf if parse else plain).encode(text, add_special_tokens=special).ids
    got = ours.ask(op="encode", text=text, add_special=special, parse_special=parse)
    if got.get("ids") != ids:
        print("%s: %s\n reference %s\n ours      %s" % (label, ascii(text), ids, got))
        return False
    whole = hf.decode(ids, skip_special_tokens=False)
    if "\ufffd" not in whole and spec["decoder"]["type"] == "ByteLevel":
        got = ours.ask(op="decode", ids=ids)
        if got.get("text") != whole:
            print("%s: ids %s\n reference %s\n ours      %s" % (label, ids, ascii(whole), got))
            return False
    return True


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--tool", required=True)
    ap.add_argument("--texts", type=int, default=2000, help="for each variant")
    ap.add_argument("--seed", type=int, default=int(time.time()))
    ap.add_argument("--only", default="", help="a part of the labels to run")
    ap.add_argument("--write", metavar="FOLDER", help="write tests/golden/unigram there and compare nothing")
    args = ap.parse_args()
    if args.write:
        return write_golden(args.write, random.Random(args.seed))
    print("seed", args.seed)
    rnd, good = random.Random(args.seed), True
    for name in sorted(os.listdir(GOLDEN)):
        spec = json.load(lzma.open(os.path.join(GOLDEN, name, "tokenizer.json.xz")))
        for label, v in variants(name, spec):
            if args.only in label:
                good = compare(label, v, args.tool, rnd, args.texts) and good
    for label, spec in unigram_specs(rnd):
        if args.only in label:
            good = compare(label, spec, args.tool, rnd, args.texts) and good
    for name, options in TRAINED.items():
        if not any(args.only in "%s/%s" % (name, how) for how in ("words", "squeeze", "gguf")):
            continue
        data, proto = train(rnd, options)
        for how in ("words",) * options.get("add_dummy_prefix", True) + ("squeeze",):
            if proto.normalizer_spec.precompiled_charsmap:
                good = compare("%s/%s" % (name, how), json_of(proto, how), args.tool, rnd, args.texts, odd_text) and good
        good = compare_gguf(name + "/gguf", data, proto, args.tool, rnd, args.texts) and good
    sys.exit(not good)


if __name__ == "__main__":
    main()
