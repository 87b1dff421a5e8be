#!/usr/bin/env python3
"""The acceptance table of the CUDA part, filled in from what gpu_session.sh left: gpu_table.py results.jsonl ...

Each line of these files is one JSON object with `step`, the step it came from; of a step that ran twice the last counts. What was not run is
shown as a dash, what is short of its must as such."""
import collections
import json
import sys

DASH = "–"


def read(paths):
    """{step: [objects]} of the last run of each step, {step: how it went}, all read rates."""
    benches, went, reads, products = collections.OrderedDict(), collections.OrderedDict(), [], []
    fresh = set()
    for path in paths:
        with open(path) as file:
            lines = [json.loads(line) for line in file if line.startswith("{")]
        for line in lines:
            step = line["step"]
            if line["bench"] == "step":
                went[step] = line
                fresh.discard(step)  # what comes of it from now on is another run's
                continue
            if step not in fresh:
                benches[step] = []
                fresh.add(step)
            benches[step].append(line)
            if line["bench"] == "limits":
                reads.append(line["read_gb_s"])
                if line.get("bf16_product_tflop_s"):  # left out where it was not measured; 0 in older files
                    products.append(line["bf16_product_tflop_s"])
    return benches, went, reads, products


class Results:
    def __init__(self, paths):
        self.benches, self.went, self.reads, self.products = read(paths)

    def find(self, step, **fields):
        """The one object of a step with these fields, or an empty one."""
        for line in self.benches.get(step, []):
            if line["bench"] != "limits" and all(line.get(k) == v for k, v in fields.items()):
                return line
        return {}

    def all(self, step, bench):
        return [line for line in self.benches.get(step, []) if line["bench"] == bench]


def shown(value, form="{:.1f}"):
    return DASH if value is None else form.format(value)


def judged(value, must, aim, higher, form="{:.1f}"):
    """The value, bold where its aim is met, and in words where its must is not."""
    if value is None:
        return DASH
    better = (lambda a, b: a >= b) if higher else (lambda a, b: a <= b)
    text = form.format(value)
    if not better(value, must):
        return f"{text} (SHORT of {must})"
    return f"**{text}**" if better(value, aim) else text


def row(name, value, goal):
    print(f"| {name} | {value} | {goal} |")


def whole_steps(r):
    row("Llama-3-8B bf16, batch 1, context 1k, tok/s", judged(r.find("t_8b_1x1k").get("tok_s"), 235, 265, True), "235 / 265")
    smol = judged(r.find("t_smol_1k").get("tok_s"), 2200, 4000, True, "{:.0f}")
    row("SmolLM2-135M bf16, batch 1, context 1k (256), tok/s", f"{smol} ({shown(r.find('t_smol_256').get('tok_s'), '{:.0f}')})", "2,200 / 4,000")
    row("DeepSeek-Coder-33B bf16, batch 1, tok/s", judged(r.find("t_33b").get("tok_s"), 56, 60, True), "56 / 60")
    short, long = r.find("t_64x1k").get("ms_per_step"), r.find("t_64x4k").get("ms_per_step")
    row("Llama-3-8B, 64 sequences at 1k / 4k, ms per step",
        f"{judged(short, 7.2, 6.3, False, '{:.2f}')} / {judged(long, 13.0, 12.2, False, '{:.2f}')}", "7.2, 13.0 / 6.3, 12.2")


def limits(r):
    for n in (16, 64):
        own, long = (shown(r.find(f"t_{n}x1k{s}").get("ms_per_step"), "{:.3f}") for s in ("", "_limit"))
        row(f"the 8B, {n} sequences at 1k on a device made for 1k / for 8k, ms per step", f"{own} / {long}", "the same")


def attention(r):
    def of(name):
        return r.find("t_attention", name=f"decode {name} heads 32/8 d 128")

    row("decode attention, 32/8 heads, d 128, cold: 64 × 8k, share of read; 1 × 8k / 1 × 32k, µs",
        f"{judged(of('64x8192').get('share_of_read'), 0.90, 0.95, True, '{:.2f}')}; {judged(of('1x8192').get('us'), 18, 13, False)} / "
        f"{judged(of('1x32768').get('us'), 44, 38, False)}", "0.90; 18 / 44; 0.95; 13 / 38")


def first_tokens(r):
    must, aim = {1024: 36, 2048: 52, 8192: 230}, {1024: 26, 2048: 45, 8192: 200}
    for step, name in (("t_ttft_idle_", "TTFT in the engine, idle (200 ms of rest), 1k / 2k / 8k, ms, P50 of 50 (σ)"),
                       ("t_ttft_", "the same back to back")):
        found = []
        for n in must:
            line = r.find(f"{step}{n}")
            found.append(judged(line.get("first_token_ms"), must[n], aim[n], False) + f" ({shown(line.get('sigma_ms'))})")
        row(name, " / ".join(found), "36, 52, 230 / 26, 45, 200")
    http = [r.find(s) for s in ("serve", "serve_again", "serve_again_2")]
    row("TTFT over HTTP, 1k, idle, P50 of 20 (least..most), ms",
        "; ".join(f"{h['p50_ms']:.1f} ({h['least_ms']:.1f}..{h['most_ms']:.1f})" for h in http if h) or DASH, "report (vLLM 47)")


def batch_of_four(r):
    found = []
    for m in ("Llama-3-8B", "Qwen2.5-7B", "DeepSeek-R1-Distill-Qwen-7B"):
        first, rate = r.find(f"t_ttft512_{m}").get("first_token_ms"), r.find(f"t_batch4_{m}").get("tok_s")
        found.append(f"{m} {shown(first)} ms, {shown(rate, '{:,.0f}')}")
    row("batch 4, 512 in: TTFT, tok/s", "; ".join(found), "report")


def start(r):
    found = [(s, r.find(s).get("ready_s")) for s in ("serve", "serve_again", "serve_again_2")]
    row("start to READY, 8B dummy, s: first, again", ", ".join(judged(v, 6, 3, False, "{:.2f}") for _, v in found if v) or DASH, "6 / 3")


def graphs(r):
    for step, name in (("t_graphs_smol", "SmolLM2"), ("t_graphs_smol_launches", "SmolLM2 with a launch for each part"), ("t_graphs_8b", "8B"), ("t_graphs_8b_96", "8B")):
        for line in r.all(step, "graphs"):
            row(f"graphs on / off, {name}, batch {line['batch']}, ms",
                f"{line['graphs_ms']:.3f} / {line['launches_ms']:.3f} ({line['difference'] * 100:+.1f} %); {line['launches_per_layer']:.2f} "
                f"launches a layer; host {line['graphs_host_us']:.0f} µs a replayed step, {line['launches_host_us']:.0f} launched",
                "report; ≤ 5 to M 8, ≤ 10 above")


def texts(r):
    for step in ("forced_f16", "forced_eager", "forced_bf16"):
        line = r.find(step)
        if line:
            row(f"SmolLM2, real weights, over HTTP ({step}: {line['device']})",
                f"forced {len(line['forced_wrong'])} wrong of {line['forced']} with margin > {line['margin']}, continued "
                f"{len(line['continued_wrong'])} of {line['continued']}; worst log probability off by {line['worst_logprob']}",
                f"{line['allowed']} wrong")
    if not any(r.find(s) for s in ("forced_f16", "forced_eager", "forced_bf16")):
        row("SmolLM2, real weights, teacher-forced over HTTP", DASH, "0 wrong")


def breakdowns(r):
    kinds = ("embed", "attn_in", "attn", "attn_out", "ffn_in", "ffn_out", "head")
    steps = [(s, r.all(s, "breakdown")) for s in ("t_breakdown_smol", "t_breakdown_1k", "t_breakdown_4k")]
    if not any(lines for _, lines in steps):
        return
    print("\n| µs by kind of stage: alone (in its step) | " + " | ".join(kinds) + " | sum | step |\n|" + "---|" * (len(kinds) + 3))
    for _, lines in steps:
        for line in lines:
            cells = []
            for k in kinds:
                inside = line.get(f"{k}_in_step_us")
                cells.append(f"{line[f'{k}_us']:.1f}" + (f" ({inside:.1f})" if inside is not None else ""))
            print(f"| {line['model'].split('/')[-1]} {line['batch']} x {line['context']} | " + " | ".join(cells) +
                  f" | {line['stages_us']:.1f} | {line['step_us']:.1f} |")


def kernels(r):
    lines = [line for s in ("t_attention", "t_medium", "t_skinny", "t_prefill", "ab_attention", "ab_products") for line in r.all(s, "kernel")]
    if not lines:
        return
    print("\n| kernel | µs | share of read or of products |\n|---|---|---|")
    for line in lines:
        share = line.get("share_of_products", line.get("share_of_read"))
        print(f"| {line['name']} | {line['us']:.2f} | {shown(share, '{:.2f}')} |")


def tests(r):
    if not r.went:
        return
    print("\n| step | how it went | s | tests: right, failed, skipped |\n|---|---|---|---|")
    for step, how in r.went.items():
        counts = f"{how['ok']}, {how['failed']}, {how['skipped']}" if how["ok"] + how["failed"] + how["skipped"] else ""
        print(f"| {step} | {how['outcome']} | {how['seconds']} | {counts} |")


def main(paths):
    r = Results(paths)
    if r.reads:
        print(f"read {min(r.reads)} to {max(r.reads)} GB/s, bf16 products {min(r.products, default=0)} to {max(r.products, default=0)} "
              "TFLOP/s in the same runs; bold: the aim is met\n")
    print("| | measured | must / aim |\n|---|---|---|")
    for part in (whole_steps, limits, attention, first_tokens, batch_of_four, start, graphs, texts, breakdowns, kernels, tests):
        part(r)


if __name__ == "__main__":
    sys.exit(__doc__) if len(sys.argv) < 2 else main(sys.argv[1:])
