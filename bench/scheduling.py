#!/usr/bin/env python3
"""Makes docs/scheduling.md and its plots: what the scheduler does under load, by `inferd simulate`.

    bench/scheduling.py [path of inferd]        (from the root of the checkout; about a minute on one core)

The device is bench/devices/h200-llama3-8b.json (arithmetic, not a measurement), arrivals are bench/traces/mixed.jsonl repeated to 8000
requests, or made here from a seed. A run depends on these alone: the page is the same wherever it is made."""
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
INFERD = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build/release/bin/inferd")
DEVICE = "bench/devices/h200-llama3-8b.json"
SLO = "ttft:500 tpot:50"
REQUESTS = 8000


def simulate(trace, *options):
    command = [INFERD, "simulate", "--trace", str(trace), "--device", DEVICE, "--goodput", SLO, *map(str, options), "--json", "-"]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def write_trace(path, items):
    items = sorted(items, key=lambda item: item["arrival_s"])
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def arrivals(rng, rate, seconds, make):
    at, items = rng.expovariate(rate), []
    while at < seconds:
        items.append({"arrival_s": round(at, 4), **make(rng)})
        at += rng.expovariate(rate)
    return items


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def plot(name, title, x_title, y_title, curves, y_log=False, labels=44):
    """curves: {label: [(x, y)]}; labels: where they begin, from the top. A plain SVG, so that nothing has to be installed."""
    width, height, left, bottom = 640, 320, 70, 45
    scale = (lambda y: math.log10(max(y, 1e-9))) if y_log else (lambda y: y)
    points = [p for curve in curves.values() for p in curve]
    x0, x1 = min(p[0] for p in points), max(p[0] for p in points)
    y0, y1 = (0 if not y_log else min(scale(p[1]) for p in points)), max(scale(p[1]) for p in points)

    def at(x, y):
        return (left + (x - x0) / (x1 - x0) * (width - left - 20), height - bottom - (scale(y) - y0) / (y1 - y0 or 1) * (height - bottom - 40))

    colours = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e"]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/><text x="{width / 2}" y="18" text-anchor="middle" font-size="14">{title}</text>',
           f'<text x="{width / 2}" y="{height - 8}" text-anchor="middle">{x_title}</text>',
           f'<text transform="translate(14,{height / 2}) rotate(-90)" text-anchor="middle">{y_title}</text>']
    for i in range(5):
        y = y0 + (y1 - y0) * i / 4
        value = 10 ** y if y_log else y
        sy = at(x0, value)[1]
        x = x0 + (x1 - x0) * i / 4
        out.append(f'<line x1="{left}" x2="{width - 20}" y1="{sy:.1f}" y2="{sy:.1f}" stroke="#ddd"/><text x="{left - 6}" y="{sy + 4:.1f}" text-anchor="end">{value:.3g}</text>')
        out.append(f'<text x="{at(x, value)[0]:.1f}" y="{height - bottom + 16}" text-anchor="middle">{x:.3g}</text>')
    for (label, curve), colour, row in zip(curves.items(), colours, range(9)):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*p) for p in curve))
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
                   f'<text x="{left + 10}" y="{labels + 15 * row}" fill="{colour}">{label}</text>')
    (ROOT / "docs" / name).write_text("\n".join(out) + "\n</svg>\n")


def capacity(mixed, *options):
    """Requests a second that the device answers when there is always work."""
    return simulate(mixed, "--requests", REQUESTS, "--speed", 20, "--max-queue-seqs", 1000000, *options)["runs"][0]["request_throughput"]


def windows(mixed, unit):
    """Rows, and the worst quotients over the loads: goodput to the best fixed window's, P99 to none's."""
    rows, goodput, p99 = [], 9, 0
    kinds = [("--max-batch-wait-ms", 2)] + [("--batch-window", f"fixed:{ms}") for ms in (0, 1, 2, 5, 10, 20)]
    for share in (0.25, 0.5, 0.75, 0.9, 1.0):
        runs = [simulate(mixed, "--requests", REQUESTS, "--speed", share * unit, *kind)["runs"][0] for kind in kinds]
        goodput = min(goodput, runs[0]["request_goodput"] / max(r["request_goodput"] for r in runs[1:]))
        p99 = max(p99, runs[0]["p99_ttft_ms"] / runs[1]["p99_ttft_ms"])
        rows.append([f"{share:.2f}"] + [f"{r['request_goodput']:.2f}; {r['p50_ttft_ms']:.1f}, {r['p99_ttft_ms']:.1f}" for r in runs])
    return table(["load", "dynamic, up to 2 ms", "none"] + [f"fixed, {ms} ms" for ms in (1, 2, 5, 10, 20)], rows), goodput, p99


def overload(mixed, unit):
    shares = (0.5, 0.75, 0.9, 1, 1.25, 1.5, 2, 3, 5, 10)
    ways = {"no limit": (), "limit 500 ms": ("--max-ttft-ms", 500), "limit 250 ms": ("--max-ttft-ms", 250)}
    curves, rows = {name: [] for name in ways}, []
    for share in shares:
        runs = [simulate(mixed, "--requests", 2 * REQUESTS, "--speed", share * unit, *way)["runs"][0] for way in ways.values()]
        for name, run in zip(ways, runs):
            curves[name].append((share, run["request_goodput"]))
        rows.append([share] + [f"{r['request_goodput']:.1f}; {r['p99_ttft_ms']:.0f}; {r['refused']}" for r in runs])
    plot("scheduling-overload.svg", "Goodput under overload", "load (1 = capacity)", "requests/s within 500 ms TTFT, 50 ms TPOT", curves)
    kept = [goodput for _, goodput in curves["limit 500 ms"]]
    return table(["load", *ways], rows), kept[-1] / max(kept)


def windows_in_time(run, limit_ms, seconds=5):
    """Share of the windows (a new one each second) in which P95 of the first tokens that came was within the limit."""
    pairs = [(at, ttft) for at, ttft in zip(run["detail"]["arrival_s"], run["detail"]["ttft_ms"]) if ttft is not None]
    kept = total = 0
    for start in range(int(run["detail"]["arrival_s"][-1]) - seconds + 1):
        inside = sorted(ttft for at, ttft in pairs if start <= at < start + seconds)
        if inside:
            total += 1
            kept += inside[math.ceil(0.95 * len(inside)) - 1] < limit_ms
    return kept / total


ATTAINMENT = {"no limit": (), "limit": ("--max-ttft-ms", 200), "limit, 192 slots": ("--max-ttft-ms", 200, "--max-num-seqs", 192)}


def attainment(mixed, rate):
    """Rows: share of all requests, of the answered, of windows, for each way; rho is against the capacity with the same slots."""
    most = {name: capacity(mixed, *way[2:]) for name, way in ATTAINMENT.items()}
    rows, curves = [], {"no limit": [], "--max-ttft-ms 200, of all": [], "the same, 192 slots": []}
    for rho in (0.5, 0.75, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 2):
        row = [rho, f"{rho * most['no limit'] * 0.002:.2f}"]
        for (name, way), curve in zip(ATTAINMENT.items(), curves.values()):
            run = simulate(mixed, "--requests", REQUESTS, "--speed", rho * most[name] / rate, "--goodput", "ttft:200", "--save-detailed", *way)["runs"][0]
            curve.append((rho, run["good"] / REQUESTS))
            row.append(f"{run['good'] / REQUESTS:.4f}; {run['good'] / run['completed']:.4f}; {windows_in_time(run, 200):.3f}; {run['p95_ttft_ms']:.0f}")
        rows.append(row)
    plot("scheduling-attainment.svg", "Share of requests with TTFT under 200 ms", "load (1 = capacity)", "share", curves, labels=200)
    return table(["load", "arrivals in 2 ms", *ATTAINMENT], rows), most["limit, 192 slots"]


SHORT, USUAL, LONG, TALKATIVE = (16, 64, 20, 200), (50, 600, 20, 200), (2000, 6000, 20, 200), (50, 100, 500, 1000)
FLOODS = ((4, 0.5, USUAL, USUAL), (4, 2, USUAL, USUAL), (4, 5, USUAL, USUAL), (10, 1, USUAL, USUAL), (1, 2, USUAL, USUAL), (4, 2, USUAL, LONG),
          (4, 2, USUAL, TALKATIVE), (4, 2, SHORT, USUAL))


def flood(folder):
    """Rows, and the worst quotient of P99."""
    def make(key, sizes):
        return lambda rng: {"prompt_tokens": rng.randint(*sizes[:2]), "max_tokens": rng.randint(*sizes[2:]), "key": key}

    rows, worst, seconds = [], 0, 400
    for clients, rate, sizes, flood_sizes in FLOODS:
        rng = random.Random(11)
        others = [item for key in range(1, clients + 1) for item in arrivals(rng, rate, seconds, make(key, sizes))]
        noise = arrivals(random.Random(12), 50 * rate, seconds, make(60, flood_sizes))
        quiet = simulate(write_trace(folder / "quiet.jsonl", others))["runs"][0]
        noisy = simulate(write_trace(folder / "noisy.jsonl", others + noise))["runs"][0]

        def mean(run, name):
            return sum(run["keys"][str(key)][name] for key in range(1, clients + 1)) / clients

        worst = max(worst, mean(noisy, "p99_ttft_ms") / mean(quiet, "p99_ttft_ms"))
        rows.append([f"{clients} x {rate}/s of {sizes[0]} to {sizes[1]}", f"{50 * rate:g}/s of {flood_sizes[0]} to {flood_sizes[1]}, {flood_sizes[2]} to {flood_sizes[3]}"] +
                    [f"{mean(run, 'p50_ttft_ms'):.1f}, {mean(run, 'p99_ttft_ms'):.1f}" for run in (quiet, noisy)] +
                    [f"{mean(noisy, 'p99_ttft_ms') / mean(quiet, 'p99_ttft_ms'):.2f}", f"{noisy['keys']['60']['completed'] / noisy['duration']:.1f}"])
    return table(["others: prompts", "flood: prompts, answers", "P50, P99 TTFT alone", "P50, P99 TTFT beside the flood", "P99 quotient", "of the flood answered/s"],
                 rows), worst


def long_prompts(folder):
    rng = random.Random(5)
    items = arrivals(rng, 12, 100, lambda r: {"prompt_tokens": r.randint(16, 128), "max_tokens": r.randint(50, 150)})
    items += arrivals(rng, 1.5, 100, lambda r: {"prompt_tokens": r.randint(6000, 7500), "max_tokens": 20})
    path = write_trace(folder / "long.jsonl", items)
    rows = []
    for batched, itl in ((8192, 0), (2048, 0), (512, 0), (2048, 20), (2048, 10)):
        run = simulate(path, "--max-num-batched-tokens", batched, "--max-itl-ms", itl)["runs"][0]
        rows.append([batched, itl or "off"] + [f"{run[name]:.1f}" for name in ("p50_itl_ms", "p99_itl_ms", "p50_ttft_ms", "p99_ttft_ms")])
    return table(["--max-num-batched-tokens", "--max-itl-ms", "P50 ITL", "P99 ITL", "P50 TTFT", "P99 TTFT"], rows)


def frontier(mixed, unit):
    page = simulate(mixed, "--requests", REQUESTS, "--loads", ",".join(f"{share * unit:.4f}" for share in (0.2, 0.4, 0.6, 0.8, 0.9, 1.0)))
    curve = [(run["p50_e2el_ms"] / 1e3, run["output_throughput"]) for run in page["runs"]]
    plot("scheduling-frontier.svg", "Throughput and latency", "P50 end-to-end latency, s", "output tokens/s", {"frontier": curve})
    fit = page["fit"]
    return (table(["P50 end to end, s", "output tokens/s"], [[f"{x:.3f}", f"{y:.0f}"] for x, y in curve]) +
            f"\n\nFit: T = {fit['alpha']:.4g} · (1/L)^{fit['beta']:.3f}, R² {fit['r2']:.3f}.")


PAGE = """# Scheduling under load

Made by `bench/scheduling.py` from the daemon's own scheduler and block pool in virtual time (`inferd simulate`); every run repeats to the bit.
Device: {device}, `{path}`: what follows is about the scheduler, not
about a GPU. Arrivals: `bench/traces/mixed.jsonl` without its keys, repeated to {requests} requests, at a multiple of its pace; or made
from the seeds in the script. Load 1 is {capacity:.1f} requests/s, the
pace at which the device answers when there is always work. Goodput counts requests a second with TTFT up to 500 ms and TPOT up to 50 ms.

## The admission window

Goodput (requests/s); P50, P99 TTFT (ms) at five loads. The window (`--max-batch-wait-ms`) follows the arrival rate, opens at once when the device
would stand still, and is a fiftieth of what first tokens take at most; a fixed one (`simulate --batch-window fixed:MS`) holds everybody back so
long. The dynamic window's goodput is at least {window_goodput:.3f} of the best fixed one's, its P99 TTFT at most {window_p99:.3f} times that of none.
Nothing is gained by holding back here: decoding sequences keep steps coming, and prompts join the next one.

{windows}

## Attainment

The objective is P95 of the time to the first token under 200 ms. Load 1 is all that the device can do, so that without a limit a queue grows at
it that no order of service can help; with the objective as the server's limit (`--max-ttft-ms 200`) the few that would be late are
refused at once. Four figures each: share of all requests whose first token came within 200 ms (the refused have missed); the same of the answered; share
of five-second windows in which P95 of the answered was under 200 ms; P95 over the whole run. Load is arrivals a second over what can be
answered a second with the same slots ({capacity:.1f} with 128 slots, {capacity_192:.1f} with 192).

With 128 slots (the default) the limit keeps P95 in all windows but one in a hundred at load 1, and refuses 2.6 % of the requests: not for want of time on the
device, but of slots, in the seconds when the trace itself brings a fifth more than its mean; long prompts three times as often as the others. 160 slots or more
(`--max-num-seqs`) bring the share of all requests above 98 % at load 1. Beyond load 1.2 more than a tenth has to be refused.

`/metrics` tells another rho, arrivals in an admission window (second column, for its longest, 2 ms): it says whether holding back could fill a batch, and is
no load: it would be one at nine times the capacity.

{attainment}

![attainment](scheduling-attainment.svg)

## Overload

Goodput; P99 TTFT (ms); refused. Without a limit on the predicted time to the first token a full queue makes every answer late: goodput collapses
although the device computes all the time. With `--max-ttft-ms`, also as long as the objective itself, what would be late is refused at
once (429): predictions know the order of service and learn their margin (src/sched/forecast.h). At ten times the capacity goodput is {kept:.2f} of the
highest of the sweep. It rises with the load because there is more to choose from: short prompts and short answers are admitted where long
ones would be late.

{overload}

![overload](scheduling-overload.svg)

## A client that floods

Clients of different keys, and one more that sends fifty times as much as each of them. What it may add to a step is bounded by a part of what
first tokens take the others, from the fifth that the others may feel (src/sched/flood.c). Means over the others' keys, {flood_seconds} s; the worst quotient is {flood_worst:.2f}.

{flood}

On a CPU, where steps are coarse (a block of 16 tokens takes four times what it may add to a step, so that only some steps have one), the same
with a device fitted from the CPU daemon: P50 1.20 to 1.37 times, P99 1.07 to 1.27 times that alone (five mixes; not made anew with this page).
Whoever comes to an idle device starts at once, and beside anybody behind a step: that is most of it.

## Long prompts among short ones

Twelve short chats and one and a half prompts of 6000 to 7500 tokens a second.

{long}

## The simulator beside the daemon

`bench/simulator_check.py`: SmolLM2-135M Q4_1 on the CPU device, one thread, 16 slots, steps of 128 rows, on a virtual machine with two cores that did nothing
else. A device file is made of the daemon's own steps under loads and seeds of their own; what is told is simulated over measured for recorded traces of
other seeds, medians of three rounds (not made anew with this page).

| trace: load, requests, prompts + answers in the mean | P50, P99 TTFT | P50, P99 TPOT |
|---|---|---|
| 0.3, 220, 64 + 16 (seed 33, `chrt -r 5`) | 0.995, 0.985 | 1.003, 1.004 |
| 0.7, 220, 64 + 16 (the same) | 1.052, 0.912 | 1.055, 1.005 |
| 0.3, 92, 120 + 24 (seed 7) | 0.980, 0.922 | 0.981, 0.983 |
| 0.7, 214, 120 + 24 (seed 7) | 1.024, 1.020 | 1.117, 1.013 |
| 0.3, 99, 120 + 24 (seed 21) | 0.990, 0.932 | 0.915, 0.638 |
| 0.7, 231, 120 + 24 (seed 21) | 1.000, 0.987 | 1.065, 0.985 |

The one outside 15 % is the second longest of 99 requests: in the daemon two answers were some ms short of their end when three prompts came, in the
simulation they had ended; hence 220 requests a trace since. A device that was timed with nothing around it (`bench fit --model`) told times 5 to 40 % too
short: steps are longer after the device has stood still (1.14 to 1.2), among other threads, and not all alike. At 0.9 of the capacity an error of a
hundredth in the steps becomes one of a half in P99 TTFT: there a simulation tells what a queue can do, not what it will do.

## Frontier

{frontier}

![frontier](scheduling-frontier.svg)
"""


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        items = [json.loads(line) for line in (ROOT / "bench/traces/mixed.jsonl").read_text().splitlines()]
        mixed = write_trace(folder / "mixed.jsonl", [{k: v for k, v in item.items() if k != "key"} for item in items])
        rate = len(items) / items[-1]["arrival_s"]
        most = capacity(mixed)
        unit = most / rate
        window_table, window_goodput, window_p99 = windows(mixed, unit)
        overload_table, kept = overload(mixed, unit)
        flood_table, flood_worst = flood(folder)
        attainment_table, capacity_192 = attainment(mixed, rate)
        page = PAGE.format(device=json.loads((ROOT / DEVICE).read_text())["name"], path=DEVICE, requests=REQUESTS, capacity=most,
                           windows=window_table, window_goodput=window_goodput, window_p99=window_p99, attainment=attainment_table, capacity_192=capacity_192,
                           overload=overload_table, kept=kept, flood=flood_table, flood_worst=flood_worst, flood_seconds=400,
                           long=long_prompts(folder), frontier=frontier(mixed, unit))
    (ROOT / "docs/scheduling.md").write_text(page)


main()
