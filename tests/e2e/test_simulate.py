"""`inferd simulate` tells what the daemon does: the same arrivals through both.

Method: a trace of random arrivals replayed by `bench serve` against the daemon on the null device, whose step time is a constant, and through
the simulator with that constant; medians must agree within 15 %. The machine may be busy with other things, which only ever makes
the daemon slower, so the best of three replays counts."""
import json
import random
import subprocess

import pytest

from conftest import ROOT, binary, model_path

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


def test_the_daemon_does_what_the_simulation_says(start, trace, device):
    told = json.loads(simulate("--trace", trace, "--device", device, "--max-num-seqs", 16, "--max-batch-wait-ms", 0, "--json", "-"))["runs"][0]
    worst = None
    for _ in range(3):
        daemon = start(step_us=STEP_US, seqs=16)
        run = subprocess.run([str(binary()), "bench", "serve", "--url", daemon.url, "--trace", str(trace), "--warmup", "0", "--metric-percentiles",
                              "50,99", "--result-filename", "-"], capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, run.stderr
        daemon.terminate()
        real = json.loads(run.stdout)
        assert real["completed"] == told["completed"] == 60
        assert real["total_output_tokens"] == told["total_output_tokens"]
        ratios = {key: real[key] / told[key] for key in ("p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p99_tpot_ms", "p50_e2el_ms")}
        worst = ratios if worst is None else {key: min(worst[key], value) for key, value in ratios.items()}
        if all(0.85 < value < 1.15 for value in worst.values()):
            return
    assert all(0.85 < value < 1.15 for value in worst.values()), worst


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
    assert run.returncode == 2 and "--model is needed" in run.stderr
