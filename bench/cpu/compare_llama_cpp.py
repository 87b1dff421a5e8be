#!/usr/bin/env python3
"""Speed of inferd's CPU device beside llama.cpp's, on one GGUF file.

    bench/cpu/compare_llama_cpp.py [MODEL] [--threads 2] [--prompt 512] [--decode 128] [--depth 1] ...

Both programs run in turns on the same threads, `--repeats` times, and the medians are compared. llama.cpp is built for this
processor in a virtual environment that is made when it is missing (peer.py). Of its settings (flash attention, micro-batch, repacked
weights) the fastest is taken, for the prompt and for decoding apart; a setting that crashes is named and left out.
inferd's side is build/release/bin/device-bench. run_table.py runs this over all files of the acceptance table. Exit status 0; 1 where a ratio is below --require.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from peer import DEFAULT_MODEL, DEFAULT_VENV, PINNED, ROOT, make_venv  # noqa: E402

SETTINGS = [
    {"flash": flash, "ubatch": ubatch, "repack": repack}
    for repack in (1, 0)
    for flash in (0, 1)
    for ubatch in (512, 128)
]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default=str(DEFAULT_MODEL))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=128)
    parser.add_argument("--depth", type=int, default=1, help="tokens in the context before decoding")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpu-numerics", default="fast", choices=("fast", "exact"))
    parser.add_argument("--isa", help="of inferd: generic, avx2, avx512, avx512-vnni, amx; default the best")
    parser.add_argument("--repack", type=int, choices=(0, 1), help="of llama.cpp: only this; default the better of both")
    parser.add_argument("--venv", type=pathlib.Path, default=DEFAULT_VENV)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--require", type=float, default=0.0, help="least ratio of both figures")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


# --- llama.cpp: a process of its own, one JSON line in and out for each measurement ---


def worker(args):
    import ctypes
    import time

    import llama_cpp as llama

    setting = json.loads(args.worker)
    quiet = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(quiet, ctypes.c_void_p())
    llama.llama_backend_init()
    model_params = llama.llama_model_default_params()
    model_params.use_extra_bufts = bool(setting["repack"])
    model = llama.llama_model_load_from_file(args.model.encode(), model_params)
    params = llama.llama_context_default_params()
    params.n_ctx = max(args.prompt, args.depth + args.decode) + 64
    params.n_batch = max(args.prompt, args.depth, 512)
    params.n_ubatch = setting["ubatch"]
    params.n_threads = params.n_threads_batch = args.threads
    params.flash_attn_type = setting["flash"]
    context = llama.llama_init_from_model(model, params)
    memory = llama.llama_get_memory(context)
    vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))

    def feed(tokens):
        array = (llama.llama_token * len(tokens))(*tokens)
        if llama.llama_decode(context, llama.llama_batch_get_one(array, len(tokens))):
            raise RuntimeError("llama_decode failed")
        llama.llama_synchronize(context)

    def ids(count):
        return [10 + i * 37 % (vocab - 20) for i in range(count)]

    def prompt():
        llama.llama_memory_clear(memory, True)
        start = time.perf_counter()
        feed(ids(args.prompt))
        return args.prompt / (time.perf_counter() - start)

    def decode():
        llama.llama_memory_clear(memory, True)
        feed(ids(args.depth))
        start = time.perf_counter()
        for token in ids(args.decode):
            feed([token])
        return args.decode / (time.perf_counter() - start)

    print(json.dumps({"system_info": llama.llama_print_system_info().decode().strip()}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"tok_s": {"prompt": prompt, "decode": decode}[line.strip()]()}), flush=True)


class Peer:
    """A worker under one setting; rate() is None once it has died."""

    def __init__(self, args, setting):
        self.setting = setting
        command = [str(args.venv / "bin/python"), __file__, args.model, "--threads", str(args.threads), "--prompt",
                   str(args.prompt), "--decode", str(args.decode), "--depth", str(args.depth), "--worker",
                   json.dumps(setting)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        first = self.process.stdout.readline()
        self.system_info = json.loads(first)["system_info"] if first else None

    def dead(self):
        return self.process.poll() is not None

    def rate(self, what):
        try:
            self.process.stdin.write(what + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        return json.loads(answer)["tok_s"] if answer else None

    def close(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # it has died; rate() told
        self.process.wait()


def best_setting(args, what, dead):
    """The setting with the highest rate of two runs each, and its rate."""
    best = (None, 0.0)
    for setting in SETTINGS:
        if args.repack not in (None, setting["repack"]):
            continue
        if setting in dead or (what == "decode" and setting["ubatch"] != 512):
            continue  # one row at a time: the micro-batch plays no part
        peer = Peer(args, setting)
        rates = [peer.rate(what) for _ in range(1 if peer.dead() else 3)]
        peer.close()
        if None in rates:
            dead.append(setting)
            print(f"llama.cpp crashes with {setting}", file=sys.stderr)
        elif max(rates[1:]) > best[1]:
            best = (setting, max(rates[1:]))
    if best[0] is None:
        sys.exit("llama.cpp ran under no setting")
    return best[0]


# --- inferd ---


def ours(args, what):
    command = [str(args.bin / "device-bench"), args.model, "--threads", str(args.threads),
               "--cpu-numerics", args.cpu_numerics, "--repeats", "1", "--warmup", "1", "--depth", str(args.depth),
               "--prompt", str(args.prompt if what == "prompt" else 0),
               "--decode", str(args.decode if what == "decode" else 0)]
    if args.isa:
        command += ["--isa", args.isa]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return answer[f"{what}_tok_s_median"], answer["device"]


def read_bandwidth(args):
    command = [str(args.bin / "linear-bench"), "--threads", str(args.threads), "--seconds", "0.5"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["read_gb_per_s"]


def compare(args, what, setting):
    peer = Peer(args, setting)
    peer.rate(what)
    mine, theirs, device = [], [], ""
    for _ in range(args.repeats):
        rate, device = ours(args, what)
        mine.append(rate)
        theirs.append(peer.rate(what))
    peer.close()
    return {"what": what, "inferd": statistics.median(mine), "llama_cpp": statistics.median(theirs),
            "ratio": statistics.median(m / t for m, t in zip(mine, theirs)), "device": device, "setting": setting,
            "system_info": peer.system_info, "inferd_all": mine, "llama_cpp_all": theirs}


def main():
    args = arguments()
    if args.worker:
        return worker(args)
    make_venv(args.venv)
    dead, rows = [], []
    for what in ("prompt", "decode"):
        if getattr(args, what):
            rows.append(compare(args, what, best_setting(args, what, dead)))
    print(f"model      {args.model}")
    print(f"llama.cpp  {PINNED}; {rows[0]['system_info']}")
    for setting in dead:
        print(f"llama.cpp  crashes with {setting}")
    print(f"inferd     {rows[0]['device']}, numerics {args.cpu_numerics}")
    bandwidth = read_bandwidth(args)
    print(f"memory     {bandwidth:.1f} GB/s read by {args.threads} threads from huge pages")
    for row in rows:
        size = f"{args.prompt}" if row["what"] == "prompt" else f"{args.decode} at depth {args.depth}"
        print(f"{row['what']:<8} {size}: inferd {row['inferd']:.0f} tok/s, llama.cpp {row['llama_cpp']:.0f} "
              f"({row['setting']}): {row['ratio']:.2f}x")
        print(f"           inferd {[round(r) for r in row['inferd_all']]} llama.cpp {[round(r) for r in row['llama_cpp_all']]}")
        if row["what"] == "decode":
            share = row["inferd"] * os.path.getsize(args.model) / bandwidth * 1e-9
            print(f"           {share:.0%} of the read bandwidth (file size x tokens per second)")
    return 1 if min(row["ratio"] for row in rows) < args.require else 0


if __name__ == "__main__":
    sys.exit(main())
