#!/usr/bin/env python3
"""A server started, asked and ended, with nothing but Python: for gpu_session.sh.

    gpu_serve.py ttft PROGRAM MODEL [serve's options]      start to READY, then the first piece of text of twenty prompts of 1,024 tokens
    gpu_serve.py forced PROGRAM MODEL --golden FILE --margin M [--allowed N] [--every N] -- [serve's options]   (teacher_forced.py)

Prints JSON objects, one a line, and a sentence each; the server's log follows. Ends with 1 where something is wrong."""
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import teacher_forced

READY_S, PROMPTS, PROMPT_TOKENS, REST_S = 150, 20, 1024, 0.2


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, program, model, options):
        self.port, self.log = free_port(), tempfile.NamedTemporaryFile(suffix=".log")
        begun = time.monotonic()
        self.process = subprocess.Popen([program, "serve", model, "--served-model-name", "m", "--host", "127.0.0.1", "--port", str(self.port),
                                         *options], stdout=self.log, stderr=subprocess.STDOUT)
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() - begun > READY_S:
                self.end()
                sys.exit("not ready")
            time.sleep(0.01)
        self.ready_s = time.monotonic() - begun

    def text(self):
        with open(self.log.name, errors="replace") as file:
            return file.read()

    def is_ready(self):
        return " ready model=" in self.text()

    def device(self):
        return self.text().split(" ready ")[1].split('device="')[1].split('"')[0]

    def end(self):
        """Its exit status; the log is shown."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        print("\n".join(self.text().splitlines()[-60:]))
        return self.process.returncode


def first_piece_ms(port, seed, tokens):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = {"model": "m", "prompt": [(7919 * k + 31 * seed) % 200 + 3 for k in range(tokens)], "max_tokens": 4, "stream": True,
            "ignore_eos": True}
    begun = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit(f"status {answer.status}: {answer.read()[:300]}")
    while True:
        line = answer.readline()
        if not line:
            sys.exit("the stream ended without a piece")
        if line.startswith(b"data:"):
            break
    took = (time.monotonic() - begun) * 1e3
    answer.read()
    connection.close()
    return took


def ttft(program, model, options):
    tokens = int(os.environ.get("GPU_SERVE_TOKENS", PROMPT_TOKENS))
    server = Server(program, model, options)
    waits = []
    try:
        for i in range(PROMPTS):
            time.sleep(REST_S)
            waits.append(first_piece_ms(server.port, i, tokens))
    finally:
        device, status = server.device(), server.end()
    waits.sort()
    found = {"bench": "http_ttft", "model": model, "device": device, "prompt": tokens, "ready_s": round(server.ready_s, 2),
             "p50_ms": round(waits[PROMPTS // 2], 2), "least_ms": round(waits[0], 2), "most_ms": round(waits[-1], 2), "status": status}
    print(json.dumps(found))
    print(f"ready after {server.ready_s:.2f} s; TTFT over HTTP, {tokens} tokens, idle: P50 {waits[PROMPTS // 2]:.1f} ms, "
          f"{waits[0]:.1f}..{waits[-1]:.1f}")
    return status


def forced(program, model, arguments):
    at = arguments.index("--")
    given, options = dict(zip(arguments[:at:2], arguments[1:at:2])), arguments[at + 1:]
    allowed = int(given.get("--allowed", 0))
    server = Server(program, model, options)
    try:
        items = teacher_forced.read_items(given["--golden"])[::int(given.get("--every", 1))]
        found = teacher_forced.compare(teacher_forced.complete_at(server.port), items, float(given["--margin"]))
    finally:
        device, status = server.device(), server.end()
    print(json.dumps({"bench": "forced", "device": device, "allowed": allowed, "status": status, **found}))
    print(f"forced on {device}: {len(found['forced_wrong'])} of {found['forced']} wrong, continued {len(found['continued_wrong'])} of "
          f"{found['continued']}, worst log probability off by {found['worst_logprob']}")
    return status or max(len(found["forced_wrong"]), len(found["continued_wrong"])) > allowed or not found["forced"]


if __name__ == "__main__":
    what = {"ttft": ttft, "forced": forced}.get(sys.argv[1] if len(sys.argv) > 3 else "")
    if not what:
        sys.exit(__doc__)
    sys.exit(int(what(sys.argv[2], sys.argv[3], sys.argv[4:])))
