#!/usr/bin/env python3
"""What a shared beginning is worth: prompts of 512 tokens of which 460 (90 %) are the same, one after the other, with reuse and without.

    bench/shared_prefix.py MODEL [--requests 20] [--threads 0] [--pin "chrt -r 5"] [inferd]

Both daemons (`--device cpu`) run at once and are asked in turn, so that a busy machine is busy for both. The time to the first token is the
client's, of a streamed completion of 16 greedy tokens; the first request, which fills the cache, is told apart. Asked are a median quotient
of at least 3 and the same texts (issue 5); the exit code is 0 where both hold."""
import argparse
import http.client
import json
import pathlib
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOKENS, SHARED, ANSWER = 512, 460, 16


class Daemon:
    def __init__(self, args, folder, reuse):
        path = folder / f"reuse-{reuse}.log"
        self.log = open(path, "wb")
        command = [args.inferd, "serve", args.model, "--device", "cpu", "--threads", args.threads, "--port", "0",
                   f"--enable-prefix-caching={str(reuse).lower()}"]
        self.process = subprocess.Popen([*shlex.split(args.pin), *map(str, command)], stdout=self.log, stderr=self.log)
        while "listening url=" not in path.read_text():
            if self.process.poll() is not None:
                sys.exit(path.read_text())
            time.sleep(0.05)
        self.port = int(path.read_text().split("listening url=")[1].split()[0].rsplit(":", 1)[1])
        while self.get("/ready") != 200:
            time.sleep(0.05)

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path)
        return connection.getresponse().status

    def ask(self, prompt):
        """Seconds to the first token, the text, tokens found in the cache."""
        body = {"prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        began, first, text, usage = time.perf_counter(), None, "", {}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        for line in connection.getresponse():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                first = first or time.perf_counter()
                text += choice["text"]
        return first - began, text, (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)

    def end(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("inferd", nargs="?", default=str(ROOT / "build/release/bin/inferd"))
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--pin", default="")
    args = parser.parse_args()
    rng = random.Random(90)
    shared = [rng.randint(1000, 9999) for _ in range(SHARED)]
    prompts = [shared + [rng.randint(1000, 9999) for _ in range(TOKENS - SHARED)] for _ in range(args.requests + 1)]
    times, texts, cached = {True: [], False: []}, {True: [], False: []}, []
    with tempfile.TemporaryDirectory() as name:
        daemons = {reuse: Daemon(args, pathlib.Path(name), reuse) for reuse in (True, False)}
        for prompt in prompts:
            for reuse, daemon in daemons.items():
                seconds, text, found = daemon.ask(prompt)
                times[reuse].append(seconds * 1e3)
                texts[reuse].append(text)
                if reuse:
                    cached.append(found)
        for daemon in daemons.values():
            daemon.end()
    medians = {reuse: statistics.median(values[1:]) for reuse, values in times.items()}
    ratio, same = medians[False] / medians[True], texts[True] == texts[False]
    print(f"time to the first token, ms: first request {times[True][0]:.1f}; then with reuse {medians[True]:.1f} (cached {cached[-1]} of {TOKENS}), "
          f"without {medians[False]:.1f}: {ratio:.2f}x (3 asked); texts {'equal' if same else 'DIFFER'}")
    return not (ratio >= 3 and same)


if __name__ == "__main__":
    sys.exit(main())
