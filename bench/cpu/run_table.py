#!/usr/bin/env python3
"""The acceptance table of the CPU and text paths in one run of about ten minutes, as Markdown.

    bench/cpu/run_table.py [--repeats 5] [--skip formats,accuracy,...]

Needs build/release/bin (targets inferd device-bench device-logits linear-bench text-bench), the SmolLM2 file, and makes the
rest when it is missing: llama.cpp with its server (peer.py), the twins in other formats (make_ggufs.py), the joined models
(fetch_models.py), the environment of bench/text. Both programs take turns; every figure is a median. Rows are printed as
they come: "must" and "aim" are the ratios asked for, and the share is that of the read bandwidth measured in this run.
Parts, for --skip: decode, depth, models, clients, formats, accuracy, text. Without `accuracy` when time is short.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import accuracy  # noqa: E402
import clients  # noqa: E402
import fetch_models  # noqa: E402
from compare_llama_cpp import best_setting, compare, read_bandwidth  # noqa: E402
from make_ggufs import twin  # noqa: E402
from peer import CACHE, DEFAULT_MODEL, DEFAULT_VENV, ROOT, make_venv  # noqa: E402

# Format of SmolLM2: decode must, aim; prompt must, aim.
SMOLLM2 = {"Q4_1": (1.5, 2.2, 2.0, 4.0), "Q4_0": (1.1, 1.4, 1.0, 1.25), "Q8_0": (1.1, 1.4, 1.0, 1.25),
           "Q4_K_M": (1.1, 1.4, 1.0, 1.25), "F16": (1.1, 1.4, 1.0, 1.1)}
MODELS = {"qwen2.5-coder-0.5b": (1.1, 1.5, 1.0, 1.25), "gemma-3-270m": (1.1, 1.5, 1.0, 1.25)}
SHAPE_FORMATS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K_S", "Q4_K_S", "Q5_K_S", "Q6_K", "IQ4_NL", "IQ4_XS",
                 "MXFP4", "F16", "BF16"]
ACCURACY = ["Q4_1", "Q4_0", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS",
            "MXFP4", "F16", "BF16"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--skip", default="")
    parser.add_argument("--venv", type=pathlib.Path, default=DEFAULT_VENV)
    parser.add_argument("--text-venv", type=pathlib.Path, default=CACHE / "text-venv")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    return parser.parse_args()


def settings_of(args, path, prompt, decode, depth=1, repeats=None):
    """What compare_llama_cpp's functions read. Without llama.cpp's AMX buffers, which crash on some machines."""
    return argparse.Namespace(model=str(path), threads=args.threads, prompt=prompt, decode=decode, depth=depth,
                              repeats=repeats or args.repeats, cpu_numerics="fast", isa=None, repack=0, venv=args.venv,
                              bin=args.bin)


def verdict(ratio, must, aim, low=False):
    """low: the ratio is to be small."""
    reached = (lambda bound: ratio <= bound) if low else (lambda bound: ratio >= bound)
    return "aim" if reached(aim) else "must" if reached(must) else "SHORT"


class Table:
    def __init__(self, args):
        self.args, self.settings, self.start = args, {}, time.monotonic()
        self.bandwidth = read_bandwidth(settings_of(args, DEFAULT_MODEL, 0, 0))
        print(f"read bandwidth {self.bandwidth:.1f} GB/s, {args.threads} threads; load {os.getloadavg()[0]:.1f}\n")
        print("| what | inferd | peer | ratio | must / aim | reached | bandwidth |\n|---|---|---|---|---|---|---|")

    def row(self, what, ours, peer, ratio, must, aim, low=False, share=""):
        print(f"| {what} | {ours} | {peer} | {ratio:.2f}x | {must} / {aim} | {verdict(ratio, must, aim, low)} | {share} |",
              flush=True)

    def setting(self, args, what):
        """llama.cpp's best setting for decoding or prompts, found once with the first file."""
        if what not in self.settings:
            self.settings[what] = best_setting(args, what, [])
        return self.settings[what]

    def compare(self, name, path, args, what, must, aim):
        got = compare(args, what, self.setting(args, what))
        share = ""
        if what == "decode":
            share = f"{got['inferd'] * os.path.getsize(path) / self.bandwidth * 1e-9:.0%}"
        size = f"{args.decode} at depth {args.depth}" if what == "decode" else f"{args.prompt}"
        self.row(f"{name}, {what} {size}, tok/s", f"{got['inferd']:.0f}", f"{got['llama_cpp']:.0f}", got["ratio"], must, aim,
                 share=share)

    def decode(self):
        for name, (must, aim, prompt_must, prompt_aim) in SMOLLM2.items():
            path = DEFAULT_MODEL if name == "Q4_1" else twin(self.args.venv, CACHE / "bench-models", DEFAULT_MODEL, name)
            args = settings_of(self.args, path, 512, 128)
            self.compare(f"SmolLM2 {name}", path, args, "decode", must, aim)
            self.compare(f"SmolLM2 {name}", path, args, "prompt", prompt_must, prompt_aim)

    def depth(self):
        args = settings_of(self.args, DEFAULT_MODEL, 0, 64, depth=1024)
        self.compare("SmolLM2 Q4_1", DEFAULT_MODEL, args, "decode", 1.5, 2.5)

    def models(self):
        for name, (must, aim, prompt_must, prompt_aim) in MODELS.items():
            path = fetch_models.fetch(name)
            args = settings_of(self.args, path, 256, 32)
            self.compare(f"{name} Q4_K_M", path, args, "decode", must, aim)
            self.compare(f"{name} Q4_K_M", path, args, "prompt", prompt_must, prompt_aim)

    def clients(self):
        got = clients.measure(argparse.Namespace(
            model=str(DEFAULT_MODEL), clients=16, prompt=128, output=128, repeats=min(3, self.args.repeats),
            threads=self.args.threads, port=8093, venv=self.args.venv, bin=self.args.bin))
        ours, peer, ratio = got["tok_s"]
        self.row("16 clients over HTTP, 128 in + 128 out, Q4_1, tok/s", f"{ours:.0f}", f"{peer:.0f}", ratio, 2.5, 4)
        ours, peer, ratio = got["ttft_s"]
        self.row("the same, time to the first token, P50, s", f"{ours:.2f}", f"{peer:.2f}", ratio, 0.4, 0.25, low=True)

    def formats(self):
        for name in SHAPE_FORMATS:
            path = twin(self.args.venv, CACHE / "bench-models", DEFAULT_MODEL, name, shape=True)
            args = settings_of(self.args, path, 256, 32, repeats=min(3, self.args.repeats))
            for what in ("decode", "prompt"):
                self.compare(f"rows of 1024, {name}", path, args, what, 1.0, 1.25)

    def accuracy(self):
        for name in ACCURACY:
            path = DEFAULT_MODEL if name == "Q4_1" else twin(self.args.venv, CACHE / "bench-models", DEFAULT_MODEL, name)
            got = accuracy.measure(path, argparse.Namespace(
                venv=self.args.venv, tokens=512, window=512, threads=self.args.threads, bin=self.args.bin,
                text=accuracy.GOLDEN_TEXT))
            ours, peer = got["inferd"]["kl"], got["llama.cpp"]["kl"]
            if name in ("F16", "BF16"):
                self.row(f"SmolLM2 {name}, mean KL to exact (bound 5e-4)", f"{ours:.2e}", f"{peer:.2e}", ours / 5e-4, 1.0, 1.0,
                         low=True)
            else:
                self.row(f"SmolLM2 {name}, mean KL to exact", f"{ours:.2e}", f"{peer:.2e}", ours / peer, 1.25, 1.0, low=True)

    def text(self):
        """bench/text prints its own table."""
        venv = self.args.text_venv
        wanted = ROOT / "bench/text/requirements.txt"
        if not (venv / "made").exists():
            subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
            subprocess.run([str(venv / "bin/pip"), "install", "--quiet", "-r", str(wanted)], check=True)
            (venv / "made").touch()
        print(flush=True)
        subprocess.run([str(venv / "bin/python"), str(ROOT / "bench/text/compare_tokenizers.py"), "--bench",
                        str(self.args.bin / "text-bench"), "--rounds", str(min(3, self.args.repeats))], check=True)


def main():
    args = arguments()
    make_venv(args.venv)
    table = Table(args)
    for part in ("decode", "depth", "models", "clients", "formats", "accuracy", "text"):
        if part not in args.skip.split(","):
            getattr(table, part)()
    print(f"\n{time.monotonic() - table.start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
