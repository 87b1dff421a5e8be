#!/usr/bin/env python3
"""Many clients at once over HTTP: inferd beside llama-server with as many slots.

    bench/cpu/clients.py [MODEL] [--clients 16] [--prompt 128] [--output 128] [--repeats 3]

Every client sends its own prompt of --prompt ids at the same moment and streams --output tokens, the end-of-sequence token
ignored; the client is the same for both servers. llama-server is of the build that peer.py makes, without its AMX buffers
(they crash on some machines). Both are up all the time and take turns; medians of the turns. Printed: output tokens per
second of all clients together and the median time to the first token.
"""
import argparse
import http.client
import json
import pathlib
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from peer import DEFAULT_MODEL, DEFAULT_VENV, ROOT, llama_server, make_venv  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default=str(DEFAULT_MODEL))
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--port", type=int, default=8093, help="of inferd; llama-server takes the next one")
    parser.add_argument("--venv", type=pathlib.Path, default=DEFAULT_VENV)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    return parser.parse_args()


def prompt_ids(client, turn, count):
    """Ids that no other client and no other turn begins with: no cache of prefixes helps."""
    return [1000 + client * 131 + turn * 17] + [100 + (client * 977 + i * 37 + turn * 5) % 40000 for i in range(count - 1)]


def client(args, port, number, turn, gate, firsts, counts):
    body = json.dumps({"prompt": prompt_ids(number, turn, args.prompt), "max_tokens": args.output, "temperature": 0,
                       "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
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


def run_turn(args, port, turn):
    gate, firsts, counts = threading.Barrier(args.clients + 1), {}, {}
    threads = [threading.Thread(target=client, args=(args, port, c, turn, gate, firsts, counts))
               for c in range(args.clients)]
    for thread in threads:
        thread.start()
    gate.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    wall = time.perf_counter() - start
    if sorted(counts.values()) != [args.output] * args.clients:
        sys.exit(f"not every client of port {port} got {args.output} tokens: {counts}")
    return {"tok_s": args.clients * args.output / wall, "ttft_s": statistics.median(firsts.values())}


def start_server(command, port, ready):
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    for _ in range(600):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", ready)
            if connection.getresponse().status == 200:
                return process
        except OSError:
            pass
        if process.poll() is not None:
            break
        time.sleep(0.1)
    process.kill()
    sys.exit(f"{command[0]} did not come up")


def start_both(args):
    mine = [str(args.bin / "inferd"), "serve", args.model, "--port", str(args.port), "--threads", str(args.threads)]
    context = args.clients * (args.prompt + args.output + 16)
    theirs = [str(llama_server(args.venv)), "-m", args.model, "--port", str(args.port + 1), "-t", str(args.threads),
              "-np", str(args.clients), "-c", str(context), "--no-repack"]
    return [start_server(mine, args.port, "/ready"), start_server(theirs, args.port + 1, "/health")]


def measure(args):
    """Medians: {"tok_s": (inferd, llama-server, ratio), "ttft_s": ...}."""
    servers, mine, theirs = start_both(args), [], []
    try:
        for turn in range(args.repeats + 1):
            mine.append(run_turn(args, args.port, turn))
            theirs.append(run_turn(args, args.port + 1, turn))
    finally:
        for server in servers:
            server.terminate()
            server.wait()
    result = {}
    for what in ("tok_s", "ttft_s"):
        ours, peers = [r[what] for r in mine[1:]], [r[what] for r in theirs[1:]]  # the first turn warms up
        ratio = statistics.median(a / b for a, b in zip(ours, peers))
        result[what] = (statistics.median(ours), statistics.median(peers), ratio)
    return result


def main():
    args = arguments()
    make_venv(args.venv)
    result = measure(args)
    for what, unit in (("tok_s", "tok/s of output"), ("ttft_s", "s to the first token, median")):
        ours, peer, ratio = result[what]
        print(f"{unit}: inferd {ours:.2f}, llama-server {peer:.2f}: {ratio:.2f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
