#!/usr/bin/env python3
"""Many clients at once: inferd over HTTP beside llama.cpp's library with the same sequences in one batch.

    bench/cpu/clients.py [MODEL] [--clients 16] [--prompt 128] [--output 128] [--repeats 3]

Every client sends its own prompt of --prompt ids at the same moment and streams --output tokens, the end-of-sequence
token ignored. inferd runs as a daemon (`serve`), with sockets, scheduling, detokenising and JSON. llama.cpp, for want of
a llama-server in its Python package, is driven as llama-server's slots would at best: all prompts in one batch, then a row
of each sequence a step, greedy, with no server around it, so its figures flatter it. Both run in turns; medians. Printed:
output tokens per second of all clients together and the median time to the first token.
"""
import argparse
import ctypes
import http.client
import json
import pathlib
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from compare_llama_cpp import CACHE, ROOT, make_venv  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default=str(CACHE / "models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--port", type=int, default=8093)
    parser.add_argument("--venv", type=pathlib.Path, default=CACHE / "bench-venv")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def prompt_ids(client, turn, count):
    """Ids that no other client and no other turn begins with: no cache of prefixes helps."""
    return [1000 + client * 131 + turn * 17] + [100 + (client * 977 + i * 37 + turn * 5) % 40000 for i in range(count - 1)]


# --- llama.cpp, in a process of its own: a turn's number in, a JSON line out ---


def worker(args):
    import llama_cpp as llama

    quiet = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(quiet, ctypes.c_void_p())
    llama.llama_backend_init()
    model_params = llama.llama_model_default_params()
    model_params.use_extra_bufts = False
    model = llama.llama_model_load_from_file(args.model.encode(), model_params)
    params = llama.llama_context_default_params()
    params.n_ctx = args.clients * (args.prompt + args.output + 16)
    params.n_batch = args.clients * args.prompt
    params.n_seq_max = args.clients
    params.n_threads = params.n_threads_batch = args.threads
    context = llama.llama_init_from_model(model, params)
    sampler = llama.llama_sampler_init_greedy()
    batch = llama.llama_batch_init(args.clients * args.prompt, 0, 1)

    def run(rows):
        """rows: (token, position, sequence, wanted)"""
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, position, 1, sequence
            batch.logits[i] = wanted
        if llama.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        return [llama.llama_sampler_sample(sampler, context, i) for i, row in enumerate(rows) if row[3]]

    print("ready", flush=True)
    for line in sys.stdin:
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
        prompts = [prompt_ids(c, int(line), args.prompt) for c in range(args.clients)]
        start = time.perf_counter()
        last = run([(token, i, c, i + 1 == args.prompt) for c, ids in enumerate(prompts) for i, token in enumerate(ids)])
        first = time.perf_counter() - start
        for step in range(args.output - 1):
            last = run([(token, args.prompt + step, c, True) for c, token in enumerate(last)])
        wall = time.perf_counter() - start
        print(json.dumps({"tok_s": args.clients * args.output / wall, "ttft_s": first}), flush=True)


# --- inferd over HTTP ---


def client(args, number, turn, gate, firsts, counts):
    body = json.dumps({"prompt": prompt_ids(number, turn, args.prompt), "max_tokens": args.output, "temperature": 0,
                       "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}})
    connection = http.client.HTTPConnection("127.0.0.1", args.port, timeout=300)
    connection.connect()
    gate.wait()
    start = time.perf_counter()
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(answer.read().decode())
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        if number not in firsts:
            firsts[number] = time.perf_counter() - start
        if b'"usage":{' in line:
            counts[number] = json.loads(line[6:])["usage"]["completion_tokens"]
    connection.close()


def inferd_turn(args, turn):
    gate, firsts, counts = threading.Barrier(args.clients + 1), {}, {}
    threads = [threading.Thread(target=client, args=(args, c, turn, gate, firsts, counts)) for c in range(args.clients)]
    for thread in threads:
        thread.start()
    gate.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    wall = time.perf_counter() - start
    if sorted(counts.values()) != [args.output] * args.clients:
        sys.exit(f"not every client got {args.output} tokens: {counts}")
    return {"tok_s": args.clients * args.output / wall, "ttft_s": statistics.median(firsts.values())}


def start_inferd(args):
    command = [str(args.bin / "inferd"), "serve", args.model, "--port", str(args.port), "--threads", str(args.threads)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    for _ in range(600):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", args.port, timeout=5)
            connection.request("GET", "/ready")
            if connection.getresponse().status == 200:
                return process
        except OSError:
            pass
        if process.poll() is not None:
            break
        time.sleep(0.1)
    process.kill()
    sys.exit("inferd did not come up")


def main():
    args = arguments()
    if args.worker:
        return worker(args)
    make_venv(args.venv)
    peer = subprocess.Popen([str(args.venv / "bin/python"), __file__, *sys.argv[1:], "--worker"], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    server = start_inferd(args)
    mine, theirs = [], []
    try:
        peer.stdout.readline()
        for turn in range(args.repeats + 1):
            mine.append(inferd_turn(args, turn))
            peer.stdin.write(f"{turn}\n")
            peer.stdin.flush()
            theirs.append(json.loads(peer.stdout.readline()))
    finally:
        peer.stdin.close()
        peer.wait()
        server.terminate()
        server.wait()
    for what, unit in (("tok_s", "tok/s of output"), ("ttft_s", "s to the first token, median")):
        ours, peers = [r[what] for r in mine[1:]], [r[what] for r in theirs[1:]]  # the first turn warms up
        ratio = statistics.median(a / b for a, b in zip(ours, peers))
        print(f"{unit}: inferd {statistics.median(ours):.2f}, llama.cpp {statistics.median(peers):.2f}: {ratio:.2f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
