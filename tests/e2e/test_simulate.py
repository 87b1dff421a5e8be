"""`inferd simulate` tells what the daemon does: the same arrivals through both.

Method: a trace of random arrivals replayed by `bench serve` against the daemon on the null device, whose step time is a constant, and through
the simulator with that constant; medians and tails must agree within 15 %. The machine may be busy with other things, which only ever
makes the daemon slower, so the best of six replays counts, and none where the machine did other things in all of them."""
import json
import random
import subprocess
import time

import pytest

from conftest import ROOT, binary, model_path
from pace import judged
from rawhttp import Raw, get

pytestmark = pytest.mark.skipif(binary().name == "mini_daemon", reason="mini_daemon has no command line")
STEP_US = 20000


def simulate(*args):
    run = subprocess.run([str(binary()), "simulate", *map(str, args)], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("simulate") / "trace.jsonl"
    rng, at, lines = random.Random(7), 0.0, []
    for _ in range(60):
        lines.append({"arrival_s": round(at, 4), "prompt_tokens": rng.randint(20, 700), "max_tokens": rng.randint(4, 40)})
        at += rng.expovariate(12)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    path = tmp_path_factory.mktemp("simulate") / "device.json"
    path.write_text(json.dumps({"name": "null device", "kv_tokens": 131072 * 16, "rows_ns": [[1, STEP_US * 1000]], "host_ns": 50000,
                                "request_ns": 500000, "reply_ns": 200000}))
    return path


@pytest.mark.alone
def test_the_daemon_does_what_the_simulation_says(start, trace, device):
    told = json.loads(simulate("--trace", trace, "--device", device, "--max-num-seqs", 16, "--max-batch-wait-ms", 0, "--json", "-"))["runs"][0]

    def agree():
        daemon = start(step_us=STEP_US, seqs=16)
        run = subprocess.run([str(binary()), "bench", "serve", "--url", daemon.url, "--trace", str(trace), "--warmup", "0", "--metric-percentiles",
                              "50,99", "--result-filename", "-"], capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, run.stderr
        daemon.terminate()
        real = json.loads(run.stdout)
        assert real["completed"] == told["completed"] == 60
        assert real["total_output_tokens"] == told["total_output_tokens"]
        ratios = {key: real[key] / told[key] for key in ("p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p99_tpot_ms", "p50_e2el_ms")}
        for key, value in ratios.items():
            best[key] = min(value, best.get(key, value))
        assert all(0.85 < value < 1.15 for value in best.values()), best
    best = {}
    judged(agree)


def test_a_frontier_has_a_fit_and_throughput_grows_with_the_load(device):
    page = json.loads(simulate("--trace", ROOT / "bench/traces/mixed.jsonl", "--device", ROOT / "bench/devices/h200-llama3-8b.json", "--loads",
                               "1,4,8", "--goodput", "ttft:200", "--json", "-"))
    throughput = [run["output_throughput"] for run in page["runs"]]
    assert throughput == sorted(throughput) and page["fit"]["alpha"] > 0 and page["fit"]["beta"] < 0
    for run in page["runs"]:
        assert run["completed"] + run["refused"] + run["too_large"] == 1000
        assert run["p50_ttft_ms"] <= run["p90_ttft_ms"] <= run["p99_ttft_ms"]
    text = simulate("--trace", ROOT / "bench/traces/mixed.jsonl", "--device", device, "--loads", "1,2", "--replicas", 2)
    assert "fit: T = " in text and "2 replicas" in text


def test_wrong_use_is_told(device, tmp_path):
    for args, code in (([], 2), (["--trace", "no/such", "--device", device], 1), (["--loads", "x", "--trace", "t", "--device", "d"], 2)):
        run = subprocess.run([str(binary()), "simulate", *map(str, args)], capture_output=True, text=True)
        assert run.returncode == code and run.stderr.startswith("inferd: simulate: "), (args, run.stderr)


def test_a_device_that_is_here_is_fitted_to_a_file_that_simulates(tmp_path, trace):
    path = tmp_path / "cpu.json"
    run = subprocess.run([str(binary()), "bench", "fit", "--model", str(model_path()), "--max-num-seqs", "4", "--max-num-batched-tokens", "32",
                          "--repeats", "1", "--out", str(path)], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0 and "mean error" in run.stderr, run.stderr
    model = json.loads(path.read_text())
    assert model["rows_ns"][0][0] == 1 and sum(ns for _, ns in model["rows_ns"]) > 1e6
    assert "Successful requests:                         60" in simulate("--trace", trace, "--device", path)
    run = subprocess.run([str(binary()), "bench", "fit"], capture_output=True, text=True)
    assert run.returncode == 2 and "--model or --steps is needed" in run.stderr


def test_the_rows_of_a_step_are_the_devices_unless_said(trace, device, tmp_path):
    """A prompt of 700 tokens takes a step of 2,048 rows, two of 512: as serve has it on a GPU, and on a CPU."""
    page = json.loads(device.read_text())
    gpu = tmp_path / "gpu.json"
    gpu.write_text(json.dumps({**page, "kind": "cuda"}))

    def steps(path, *more):
        return json.loads(simulate("--trace", trace, "--device", path, *more, "--json", "-"))["runs"][0]["steps"]

    assert steps(gpu) == steps(device, "--max-num-batched-tokens", 2048) < steps(device) == steps(gpu, "--max-num-batched-tokens", 512)


def test_every_request_is_told_in_the_traces_order(trace, device):
    page = json.loads(simulate("--trace", trace, "--device", device, "--max-num-seqs", 4, "--max-queue-seqs", 4, "--save-detailed", "--json", "-"))["runs"][0]
    detail = page["detail"]
    assert detail["arrival_s"] == [pytest.approx(json.loads(line)["arrival_s"]) for line in trace.read_text().splitlines()]
    assert [len(detail[key]) for key in ("ttft_ms", "e2el_ms")] == [60, 60]
    assert detail["ttft_ms"].count(None) == detail["e2el_ms"].count(None) == page["refused"] > 0
    assert sum(x for x in detail["ttft_ms"] if x) / page["completed"] == pytest.approx(page["mean_ttft_ms"])


@pytest.mark.alone
def test_a_fit_of_the_daemons_own_steps_finds_their_length(start, trace, tmp_path):
    judged(lambda: fit(start, trace, tmp_path))


def fit(start, trace, tmp_path):
    admin = tmp_path / f"admin-{time.monotonic_ns()}.sock"
    daemon = start(step_us=STEP_US, seqs=16, extra=["--admin-socket", str(admin)])
    run = subprocess.run([str(binary()), "bench", "serve", "--url", daemon.url, "--trace", str(trace), "--num-prompts", "20", "--warmup", "0",
                          "--result-filename", "-"], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    with Raw(str(admin)) as c:
        c.send(get("/admin/steps"))
        (tmp_path / "steps.jsonl").write_bytes(c.answer().body)
    log = tmp_path / "log"
    log.write_text("2026-11-29T22:44:19.951Z info request done id=a accept_ms=0.1 submit_ms=0.1 deliver_ms=0.5 total_ms=40\n")
    run = subprocess.run([str(binary()), "bench", "fit", "--steps", str(tmp_path / "steps.jsonl"), "--log", str(log)], capture_output=True,
                         text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    model = json.loads(run.stdout)
    assert model["request_ns"] == pytest.approx(200_000) and model["reply_ns"] == pytest.approx(500_000)
    told = json.loads(simulate("--trace", trace, "--device", write(tmp_path / "fit.json", run.stdout), "--json", "-"))["runs"][0]
    assert told["device_busy"] * told["duration"] / told["steps"] == pytest.approx(STEP_US * 1e-6, rel=0.1)


def write(path, text):
    path.write_text(text)
    return path


def test_a_fit_without_steps_or_model_is_refused(tmp_path):
    for args, code, says in ((("--steps", tmp_path / "none"), 1, "none"),
                             (("--steps", write(tmp_path / "empty", "")), 1, "a fit needs 8 or more")):
        run = subprocess.run([str(binary()), "bench", "fit", *map(str, args)], capture_output=True, text=True, timeout=60)
        assert run.returncode == code and says in run.stderr
