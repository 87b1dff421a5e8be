#!/usr/bin/env python3
"""How far `fast` numerics are from float32, beside llama.cpp on the same file and ids.

    bench/cpu/accuracy.py MODEL ... [--tokens 1024] [--window 512] [--text FILE]

The reference is inferd's `exact` (float32 activations; equal to the golden logits by test). For each file the text is
tokenised by llama.cpp, both programs give the logits of every id in windows of --window, and their distance from the
reference is printed as a Markdown row: mean KL divergence, its 99th percentile, agreement on the likeliest token, change
of perplexity. llama.cpp as in peer.py, without its AMX buffers (they crash on some machines). Exit status 1
where inferd's mean KL is above --ratio times llama.cpp's (quantised files; 1.25), or above --float-kl (files of floats).
"""
import argparse
import array
import ctypes
import json
import math
import mmap
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from gguf_files import tensor_types  # noqa: E402
from peer import DEFAULT_VENV, ROOT, make_venv  # noqa: E402

GOLDEN_TEXT = ROOT / "tests/golden/smollm2/text.txt"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="*", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--text", type=pathlib.Path, default=GOLDEN_TEXT, help="UTF-8; default the golden text of SmolLM2")
    parser.add_argument("--ratio", type=float, default=1.25)
    parser.add_argument("--float-kl", type=float, default=5e-4)
    parser.add_argument("--venv", type=pathlib.Path, default=DEFAULT_VENV)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--worker", type=pathlib.Path, help=argparse.SUPPRESS)  # folder, inside the environment
    return parser.parse_intermixed_args()


# --- llama.cpp, and the sums over logits (numpy comes with it): inside the virtual environment ---


def load_llama(path, args):
    import llama_cpp as llama

    quiet = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(quiet, ctypes.c_void_p())
    llama.llama_backend_init()
    model_params = llama.llama_model_default_params()
    model_params.use_extra_bufts = False
    model = llama.llama_model_load_from_file(str(path).encode(), model_params)
    params = llama.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = args.window
    params.n_threads = params.n_threads_batch = args.threads
    return llama, quiet, model, llama.llama_init_from_model(model, params)


def tokenize(llama, vocab, text):
    room = len(text) + 16
    ids = (llama.llama_token * room)()
    count = llama.llama_tokenize(vocab, text, len(text), ids, room, True, False)
    return list(ids[:count])


def theirs(llama, model, context, ids, args):
    import numpy

    columns = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    for first in range(0, len(ids), args.window):
        part = ids[first:first + args.window]
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
        batch = llama.llama_batch_init(len(part), 0, 1)
        batch.n_tokens = len(part)
        for i, token in enumerate(part):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
        if llama.llama_decode(context, batch):
            sys.exit("llama_decode failed")
        for i in range(len(part)):
            yield numpy.ctypeslib.as_array(llama.llama_get_logits_ith(context, i), (columns,))
        llama.llama_batch_free(batch)


class Distance:
    """Of a program's logits from the reference's."""

    def __init__(self):
        self.divergences, self.agree, self.nll, self.nll_exact, self.scored = [], 0, 0.0, 0.0, 0

    def add(self, exact, other, following):
        import numpy

        exact, other = exact.astype(numpy.float64), other.astype(numpy.float64)
        exact, other = [x - x.max() - numpy.log(numpy.exp(x - x.max()).sum()) for x in (exact, other)]
        self.divergences.append(float((numpy.exp(exact) * (exact - other)).sum()))
        self.agree += int(exact.argmax() == other.argmax())
        if following is not None:
            self.nll -= float(other[following])
            self.nll_exact -= float(exact[following])
            self.scored += 1

    def result(self):
        ordered = sorted(self.divergences)
        return {"kl": sum(ordered) / len(ordered), "kl99": ordered[int(len(ordered) * 0.99)],
                "agree": self.agree / len(ordered), "ppl": math.exp((self.nll - self.nll_exact) / self.scored) - 1}


def inferd_logits(args, folder, numerics):
    import numpy

    out = folder / f"{numerics}.f32"
    command = [str(args.bin / "device-logits"), str(args.model[0]), str(folder / "tokens.i32"), str(out), "--threads",
               str(args.threads), "--window", str(args.window), "--cpu-numerics", numerics]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return numpy.memmap(out, dtype=numpy.float32, shape=(answer["rows"], answer["vocabulary"])), answer["device"]


def worker(args):
    folder = args.worker
    llama, quiet, model, context = load_llama(args.model[0], args)
    ids = tokenize(llama, llama.llama_model_get_vocab(model), args.text.read_bytes())[:args.tokens]
    (folder / "tokens.i32").write_bytes(array.array("i", ids).tobytes())
    exact, _ = inferd_logits(args, folder, "exact")
    fast, device = inferd_logits(args, folder, "fast")
    mine, peer = Distance(), Distance()
    for i, row in enumerate(theirs(llama, model, context, ids, args)):
        inside = i + 1 < len(ids) and (i + 1) % args.window
        following = ids[i + 1] if inside else None
        columns = min(len(row), exact.shape[1])
        mine.add(exact[i, :columns], fast[i, :columns], following)
        peer.add(exact[i, :columns], row[:columns], following)
    del quiet
    print(json.dumps({"inferd": mine.result(), "llama.cpp": peer.result(), "tokens": len(ids), "device": device}))


# --- one row a file ---


def measure(path, args):
    with tempfile.TemporaryDirectory() as folder:
        command = [str(args.venv / "bin/python"), __file__, str(path), "--worker", folder, "--tokens", str(args.tokens),
                   "--window", str(args.window), "--threads", str(args.threads), "--bin", str(args.bin),
                   "--text", str(args.text)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    args = arguments()
    if args.worker:
        return worker(args)
    make_venv(args.venv)
    failed = False
    print("| file | program | mean KL | KL, 99th percentile | agreement | perplexity |\n|---|---|---|---|---|---|")
    for path in args.model:
        row = measure(path, args)
        floats = not set(tensor_types(path)) - {"F32", "F16", "BF16"}
        limit = args.float_kl if floats else args.ratio * row["llama.cpp"]["kl"]
        failed |= row["inferd"]["kl"] > limit
        for program in ("inferd", "llama.cpp"):
            d = row[program]
            print(f"| {path.name} | {program} | {d['kl']:.2e} | {d['kl99']:.2e} | {d['agree']:.1%} | {d['ppl']:+.2%} |",
                  flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
