#!/usr/bin/env python3
"""Makes docs/scheduling.md and its plots: what the scheduler does under load, by `inferd simulate`.

    bench/scheduling.py [path of inferd]        (from the root of the checkout; about a minute on one core)

The device is bench/devices/h200-llama3-8b.json (arithmetic, not a measurement), arrivals are bench/traces/mixed.jsonl repeated to 8000
requests, or made here from a seed. A run depends on these alone: the page is the same wherever it is made."""
import json
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


def plot(name, title, x_title, y_title, curves, y_log=False):
    """curves: {label: [(x, y)]}. A plain SVG, so that nothing has to be installed."""
    import math
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
                   f'<text x="{left + 10}" y="{44 + 15 * row}" fill="{colour}">{label}</text>')
    (ROOT / "docs" / name).write_text("\n".join(out) + "\n</svg>\n")


def capacity(mixed):
    """Arrivals a second that the device answers when there is always work: its pace at 1.5 times what it can do."""
    run = simulate(mixed, "--requests", REQUESTS, "--speed", 20, "--max-queue-seqs", 1000000)["runs"][0]
    return run["request_throughput"]


def windows(mixed, unit):
    rows, worst = [], 0
    for share in (0.25, 0.5, 0.75, 0.9, 1.0):
        runs = [simulate(mixed, "--requests", REQUESTS, "--speed", share * unit, "--max-batch-wait-ms", ms)["runs"][0] for ms in (0, 2, 5, 20)]
        none = runs[0]["p99_ttft_ms"]
        worst = max(worst, runs[1]["p99_ttft_ms"] / none)
        rows.append([f"{share:.2f}"] + [f"{r['request_goodput']:.2f}" for r in runs] + [f"{r['p99_ttft_ms']:.1f}" for r in runs])
    waits = ["none", "2 ms", "5 ms", "20 ms"]
    return table(["load"] + [f"goodput, {w}" for w in waits] + [f"P99 TTFT, {w}" for w in waits], rows), worst


def overload(mixed, unit):
    shares = (0.5, 0.75, 0.9, 1, 1.25, 1.5, 2, 3, 5, 10)
    curves, rows = {"no limit": [], "--max-ttft-ms 250": []}, []
    for share in shares:
        free = simulate(mixed, "--requests", REQUESTS, "--speed", share * unit)["runs"][0]
        kept = simulate(mixed, "--requests", REQUESTS, "--speed", share * unit, "--max-ttft-ms", 250)["runs"][0]
        curves["no limit"].append((share, free["request_goodput"]))
        curves["--max-ttft-ms 250"].append((share, kept["request_goodput"]))
        rows.append([share, f"{free['request_goodput']:.1f}", f"{free['p99_ttft_ms']:.0f}", free["refused"], f"{kept['request_goodput']:.1f}",
                     f"{kept['p99_ttft_ms']:.0f}", kept["refused"]])
    plot("scheduling-overload.svg", "Goodput under overload", "load (1 = capacity)", "requests/s within 500 ms TTFT, 50 ms TPOT", curves)
    return table(["load", "goodput", "P99 TTFT, ms", "refused", "goodput, limit", "P99 TTFT, limit", "refused, limit"], rows)


def attainment(mixed, unit):
    rows, curve = [], []
    for rho in (0.5, 0.75, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5):
        run = json.loads(subprocess.run([INFERD, "simulate", "--trace", str(mixed), "--device", DEVICE, "--goodput", "ttft:200", "--requests",
                                         str(REQUESTS), "--speed", str(rho * unit), "--json", "-"], cwd=ROOT, check=True, capture_output=True,
                                        text=True).stdout)["runs"][0]
        share = run["good"] / REQUESTS
        rows.append([rho, f"{share:.4f}", f"{run['p50_ttft_ms']:.0f}", f"{run['p95_ttft_ms']:.0f}"])
        curve.append((rho, share))
    plot("scheduling-attainment.svg", "Share of requests with TTFT under 200 ms", "load (1 = capacity)", "share", {"attainment": curve})
    return table(["load", "share under 200 ms", "P50 TTFT, ms", "P95 TTFT, ms"], rows)


def flood(folder):
    def make(key):
        return lambda rng: {"prompt_tokens": rng.randint(50, 600), "max_tokens": rng.randint(20, 200), "key": key}

    def others():
        rng = random.Random(11)
        return [item for key in (1, 2, 3, 4) for item in arrivals(rng, 2, 100, make(key))]

    quiet = simulate(write_trace(folder / "quiet.jsonl", others()))["runs"][0]["keys"]
    noisy = simulate(write_trace(folder / "noisy.jsonl", others() + arrivals(random.Random(12), 100, 100, make(9))))["runs"][0]["keys"]
    rows = [[key, noisy[key]["completed"]] + [f"{of[key][name]:.1f}" if key in of else "" for of in (quiet, noisy) for name in ("p50_ttft_ms", "p99_ttft_ms")]
            for key in sorted(noisy)]
    return table(["key", "answered", "P50 TTFT alone", "P99 TTFT alone", "P50 TTFT, key 9 floods", "P99 TTFT, key 9 floods"], rows)


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

Goodput (requests/s) and P99 TTFT (ms) at five loads for the longest window allowed (`--max-batch-wait-ms`). The window follows the
arrival rate and opens at once when the device would stand still, so its P99 TTFT is at most {worst:.3f} times that of none (2 ms).

{windows}

## Attainment

{attainment}

![attainment](scheduling-attainment.svg)

## Overload

Without a limit on the predicted time to the first token a full queue makes every answer late: goodput collapses although the device
computes all the time. With `--max-ttft-ms` at half of the objective what would be late is refused at once (429), and goodput stays.
(A limit as long as the objective is too late: the queue then stands at the limit, and half of the answers come just after it.)

{overload}

![overload](scheduling-overload.svg)

## A client that floods

Four clients with two requests a second each; a fifth one sends a hundred a second.

{flood}

## Long prompts among short ones

Twelve short chats and one and a half prompts of 6000 to 7500 tokens a second.

{long}

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
        window_table, worst = windows(mixed, unit)
        page = PAGE.format(device=json.loads((ROOT / DEVICE).read_text())["name"], path=DEVICE, requests=REQUESTS, capacity=most, worst=worst,
                           windows=window_table, attainment=attainment(mixed, unit), overload=overload(mixed, unit), flood=flood(folder),
                           long=long_prompts(folder), frontier=frontier(mixed, unit))
    (ROOT / "docs/scheduling.md").write_text(page)


main()
