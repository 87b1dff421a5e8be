#!/usr/bin/env python3
"""Makes docs/scheduling.md and its plots: what the scheduler does under load, by `inferd simulate`.

    bench/scheduling.py [path of inferd]        (from the root of the checkout; about two minutes on one core)

The device is bench/devices/h200-llama3-8b.json (arithmetic, not a measurement), for floods also bench/devices/cpu-smollm2-135m.json (fitted from the
daemon's own steps); arrivals are bench/traces/mixed.jsonl repeated to 8000
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
DEVICE, CPU = "bench/devices/h200-llama3-8b.json", "bench/devices/cpu-smollm2-135m.json"
SLO = "ttft:500 tpot:50"
REQUESTS = 8000


def simulate(trace, *options, device=DEVICE):
    command = [INFERD, "simulate", "--trace", str(trace), "--device", device, "--goodput", SLO, *map(str, options), "--json", "-"]
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
    """Rows: share of all requests, of the answered, of windows, for each way; rho is against the capacity with the same slots. The first and the third
    at load 1."""
    most = {name: capacity(mixed, *way[2:]) for name, way in ATTAINMENT.items()}
    at_one, rows, curves = {}, [], {"no limit": [], "--max-ttft-ms 200, of all": [], "the same, 192 slots": []}
    for rho in (0.5, 0.75, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 2):
        row = [rho, f"{rho * most['no limit'] * 0.002:.2f}"]
        for (name, way), curve in zip(ATTAINMENT.items(), curves.values()):
            run = simulate(mixed, "--requests", REQUESTS, "--speed", rho * most[name] / rate, "--goodput", "ttft:200", "--save-detailed", *way)["runs"][0]
            curve.append((rho, run["good"] / REQUESTS))
            in_time = windows_in_time(run, 200)
            row.append(f"{run['good'] / REQUESTS:.4f}; {run['good'] / run['completed']:.4f}; {in_time:.3f}; {run['p95_ttft_ms']:.0f}")
            if rho == 1:
                at_one[name] = run["good"] / REQUESTS, in_time
        rows.append(row)
    plot("scheduling-attainment.svg", "Share of requests with TTFT under 200 ms", "load (1 = capacity)", "share", curves, labels=200)
    return table(["load", "arrivals in 2 ms", *ATTAINMENT], rows), most["limit, 192 slots"], at_one


def foresight(items, speed, limit_ms=200, apart_s=3):
    """The share of requests that a forecaster who knows the future could have let in, so that all of them are in time: the first of those that would be
    late in each busy stretch is left out, until none is late. The order of service is the scheduler's."""
    period, length = len(items), items[-1]["arrival_s"] * (1 + 1 / len(items))
    kept = [{**items[i % period], "arrival_s": items[i % period]["arrival_s"] + length * (i // period)} for i in range(REQUESTS)]
    with tempfile.TemporaryDirectory() as name:
        while True:
            trace = write_trace(pathlib.Path(name) / "kept.jsonl", kept)
            detail = simulate(trace, "--speed", speed, "--max-queue-seqs", 1000000, "--save-detailed")["runs"][0]["detail"]
            late = [i for i, ttft in enumerate(detail["ttft_ms"]) if ttft > limit_ms]
            if not late:
                return len(kept) / REQUESTS
            first = {i for before, i in zip([None, *late], late) if before is None or detail["arrival_s"][i] - detail["arrival_s"][before] > apart_s}
            kept = [item for i, item in enumerate(kept) if i not in first]


SHORT, USUAL, LONG, TALKATIVE = (16, 64, 20, 200), (50, 600, 20, 200), (2000, 6000, 20, 200), (50, 100, 500, 1000)
FLOODS = ((4, 0.5, USUAL, USUAL), (4, 2, USUAL, USUAL), (4, 5, USUAL, USUAL), (10, 1, USUAL, USUAL), (1, 2, USUAL, USUAL), (4, 2, USUAL, LONG),
          (4, 2, USUAL, TALKATIVE), (4, 2, SHORT, USUAL))


CPU_SHORT, CPU_USUAL, CPU_LONG, CPU_TALKATIVE = (8, 24, 4, 28), (16, 112, 4, 28), (200, 600, 4, 28), (16, 50, 100, 200)
CPU_FLOODS = ((4, 0.25, CPU_USUAL, CPU_USUAL), (4, 1, CPU_USUAL, CPU_USUAL), (10, 0.1, CPU_USUAL, CPU_USUAL), (1, 0.25, CPU_USUAL, CPU_USUAL),
              (4, 0.25, CPU_USUAL, CPU_LONG), (4, 0.25, CPU_USUAL, CPU_TALKATIVE), (4, 0.25, CPU_SHORT, CPU_USUAL))


def flood(folder, mixes, seconds, device=DEVICE):
    """Rows, and the worst quotient of P99."""
    def make(key, sizes):
        return lambda rng: {"prompt_tokens": rng.randint(*sizes[:2]), "max_tokens": rng.randint(*sizes[2:]), "key": key}

    rows, worst = [], 0
    for clients, rate, sizes, flood_sizes in mixes:
        rng = random.Random(11)
        others = [item for key in range(1, clients + 1) for item in arrivals(rng, rate, seconds, make(key, sizes))]
        noise = arrivals(random.Random(12), 50 * rate, seconds, make(60, flood_sizes))
        quiet = simulate(write_trace(folder / "quiet.jsonl", others), device=device)["runs"][0]
        noisy = simulate(write_trace(folder / "noisy.jsonl", others + noise), device=device)["runs"][0]

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

Attainment of an objective that is a percentile is a share of time: in how many five-second windows (a new one each second) it was kept; at load 1 in
{windows_kept:.3f} of them with the default of 128 slots. The strictest reading, the share of all requests with the refused as missed, is {all_kept:.3f} there with 128 slots
and {all_kept_192:.3f} with 192. Of that, what the forecast costs is little: a forecaster that has seen the whole trace, and leaves out, one by one, exactly the first
that would be late in this order of service, keeps {foresight:.3f}. (To leave out long answers for many short ones would keep more, and would refuse who could have been in
time.) What is missing is slots, in the seconds when the trace brings a fifth more than its mean. Beyond load 1.2 a tenth has to be refused.

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

On a CPU steps are coarse: one is as long as a tenth to a third of a first token, and a block of 16 tokens takes several times what it may add to a step.
What delayed the others there was above all the step that had been planned while another ran (P99 quotients up to 1.47). While only the flood has anything to
compute, the next step is therefore planned when the one that runs is done; a chunk is of 8 tokens where the part is too small for a block. Device:
{cpu}, `{cpu_path}`; {cpu_seconds} s; the worst quotient is {cpu_worst:.2f}.
Whoever comes to an idle device starts at once, and beside anybody behind a step: that is most of what is left.

{cpu_flood}

## Long prompts among short ones

Twelve short chats and one and a half prompts of 6000 to 7500 tokens a second.

{long}

## The simulator beside the daemon

`bench/simulator_check.py`: SmolLM2-135M Q4_1 on the CPU device, one thread, 16 slots, steps of 128 rows, on a virtual machine with two cores that did nothing
else. A device file is made of the daemon's own steps under loads and seeds of their own; what is told is simulated over measured for recorded traces of
other seeds, medians of three rounds (not made anew with this page). Daemon and client with `chrt -r 5`, 220 requests of 64 + 16 tokens in the mean, seed 33; the
device file of each round is fitted to the calibrations at 3.6, 5.4, 8.4 and 12.6 requests a second, 0.25 to 0.9 of the capacity; two sets of measurements. Last in each cell: the
script as it stands, three calibrations and 230 requests in one go, no real-time priority, quiet machine (345 s).

| load | P50, P99 TTFT | P50, P99 TPOT |
|---|---|---|
| 0.3 | 0.941, 1.064; 0.956, 0.990; 0.986, 1.066 | 0.912, 0.988; 0.887, 0.974; 0.945, 1.014 |
| 0.7 | 0.962, 1.102; 1.065, 1.086; 1.032, 1.065 | 0.960, 1.041; 1.007, 1.053; 1.098, 0.979 |
| 0.9 | 0.959, 0.891; 1.070, 1.041 | 0.884, 1.029; 1.091, 0.994 |

A fit tells the loads that it was made under. From 3.6 and 8.4 requests a second alone (0.25 and 0.6 of the capacity, as the script had it) it gave decode
steps of 9 to 16 rows, which only the higher loads have, 8 to 20 % too short, and figures of 0.849 to 1.163; from 5.4 and 12.6 alone it gave single decode steps,
of which 0.3 is made, 8 to 13 % too short: 0.797 to 1.018 on its own set. What is left is the machine: its steps differ by 3 to 7 % from one minute to the next. Of a
hundred requests P99 is the second longest and hangs on a moment (0.64 once): hence 220. A device that was timed with nothing around it (`bench fit --model`) told
times 5 to 40 % too short: steps are longer after the device has stood still, among other threads, and not all alike.

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
        flood_table, flood_worst = flood(folder, FLOODS, 400)
        cpu_table, cpu_worst = flood(folder, CPU_FLOODS, 6000, CPU)
        plain = [json.loads(line) for line in mixed.read_text().splitlines()]
        attainment_table, capacity_192, at_one = attainment(mixed, rate)
        page = PAGE.format(device=json.loads((ROOT / DEVICE).read_text())["name"], path=DEVICE, requests=REQUESTS, capacity=most,
                           windows=window_table, window_goodput=window_goodput, window_p99=window_p99, attainment=attainment_table, capacity_192=capacity_192,
                           windows_kept=at_one["limit"][1], all_kept=at_one["limit"][0], all_kept_192=at_one["limit, 192 slots"][0],
                           foresight=foresight(plain, unit), cpu=json.loads((ROOT / CPU).read_text())["name"], cpu_path=CPU, cpu_flood=cpu_table,
                           cpu_worst=cpu_worst, cpu_seconds=6000,
                           overload=overload_table, kept=kept, flood=flood_table, flood_worst=flood_worst, flood_seconds=400,
                           long=long_prompts(folder), frontier=frontier(mixed, unit))
    (ROOT / "docs/scheduling.md").write_text(page)


main()
