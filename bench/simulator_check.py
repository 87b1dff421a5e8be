#!/usr/bin/env python3
"""Lays `inferd simulate` beside the daemon on the CPU: one trace of arrivals, recorded from the daemon, through both.

    bench/simulator_check.py MODEL [--threads 1] [--seconds 60] [--rate 2] [--rounds 3] [--pin "taskset -c 0"] [--pin-client "taskset -c 1"] [inferd]

It times the device (`bench fit`), runs a Poisson load of random lengths against `inferd serve --device cpu` and records its arrivals (`bench
record`); then, round by round, replays the trace against a fresh daemon and fits the device again, so that both see the machine in the same
moods. Told are P50 and P99 of TTFT and TPOT: the medians of the rounds, the simulation with the median fit, and their quotients, which are to be
within 15 % of one (issue 5). A busy machine changes the daemon's times from minute to minute: on one, "chrt -r 5 taskset -c 0" (root) keeps
others off the core. The exit code is 0 where all four are within 15 %."""
import argparse
import json
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
FIGURES = ("p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p99_tpot_ms")
SEQS, ROWS = 16, 128
# What the front end adds, not measured by `bench fit`: parsing and the way through the queue; from the end of a step to the client's eyes.
REQUEST_NS, REPLY_NS = 1_000_000, 300_000


def run(*command):
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout


class Daemon:
    def __init__(self, args, folder, name):
        self.log_path = folder / f"{name}.log"
        self.log = open(self.log_path, "wb")
        command = [args.inferd, "serve", args.model, "--device", "cpu", "--threads", args.threads, "--port", "0", "--max-num-seqs", SEQS,
                   "--max-num-batched-tokens", ROWS]
        self.process = subprocess.Popen([*shlex.split(args.pin), *map(str, command)], stdout=self.log, stderr=self.log)
        while "listening url=" not in self.text():
            if self.process.poll() is not None:
                sys.exit(self.text())
            time.sleep(0.05)
        self.url = self.text().split("listening url=")[1].split()[0]
        while True:
            try:
                if urllib.request.urlopen(self.url + "/ready", timeout=5).status == 200:
                    return
            except OSError:
                time.sleep(0.05)

    def text(self):
        return self.log_path.read_text(errors="replace")

    def end(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()


def fit(args, path):
    run(*shlex.split(args.pin), args.inferd, "bench", "fit", "--model", args.model, "--threads", args.threads, "--max-num-seqs", SEQS,
        "--max-num-batched-tokens", ROWS, "--repeats", 5, "--out", path)
    device = json.loads(path.read_text())
    device |= {"request_ns": REQUEST_NS, "reply_ns": REPLY_NS}
    path.write_text(json.dumps(device))
    return path


def record(args, folder):
    daemon = Daemon(args, folder, "record")
    run(*shlex.split(args.pin_client), args.inferd, "bench", "serve", "--url", daemon.url, "--request-rate", args.rate, "--num-prompts", round(args.rate * args.seconds),
        "--input-len", 200, "--output-len", 40, "--random-range-ratio", 0.8, "--warmup", 0, "--seed", 5, "--result-filename", folder / "x.json")
    daemon.end()
    trace = folder / "trace.jsonl"
    run(args.inferd, "bench", "record", "--log", daemon.log_path, "--out", trace)
    return trace


def replay(args, folder, trace, name):
    daemon = Daemon(args, folder, name)
    page = json.loads(run(*shlex.split(args.pin_client), args.inferd, "bench", "serve", "--url", daemon.url, "--trace", trace, "--warmup", 2, "--metric-percentiles", "50,99",
                          "--result-filename", "-"))
    daemon.end()
    return page


def simulate(args, trace, device):
    return json.loads(run(args.inferd, "simulate", "--trace", trace, "--device", device, "--max-num-seqs", SEQS, "--max-num-batched-tokens", ROWS,
                          "--json", "-"))["runs"][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("inferd", nargs="?", default=str(ROOT / "build/release/bin/inferd"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pin", default="")
    parser.add_argument("--pin-client", default="")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        trace = record(args, folder)
        real, told = [], []
        for i in range(args.rounds):
            told.append(simulate(args, trace, fit(args, folder / f"device{i}.json")))
            real.append(replay(args, folder, trace, f"round{i}"))
    worst = 0
    print(f"{'':14s} {'daemon':>10s} {'simulated':>10s} {'quotient':>9s}   rounds: daemon; simulated")
    for key in FIGURES:
        rounds = [[page[key] for page in pages] for pages in (real, told)]
        a, b = (statistics.median(values) for values in rounds)
        worst = max(worst, abs(b / a - 1))
        print(f"{key:14s} {a:10.2f} {b:10.2f} {b / a:9.3f}   " + "; ".join(", ".join(f"{v:.1f}" for v in values) for values in rounds))
    return worst > 0.15


if __name__ == "__main__":
    sys.exit(main())
