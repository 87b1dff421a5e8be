"""`inferd bench serve` counts what the server counts, at the rate asked for; `bench record` tells the arrivals again.

Method: the null device, whose pace is known, and the daemon's own metrics as the other witness."""
import json
import re
import subprocess

import pytest

from conftest import ROOT, binary
from pace import at_best

pytestmark = pytest.mark.skipif(binary().name == "mini_daemon", reason="mini_daemon has no command line")


def bench(daemon, *args, code=0):
    run = subprocess.run([str(binary()), "bench", "serve", "--url", daemon.url, *map(str, args)], capture_output=True, text=True,
                         timeout=120)
    assert run.returncode == code, run.stdout + run.stderr
    return run


def bench_json(daemon, *args):
    return json.loads(bench(daemon, *args, "--result-filename", "-").stdout)


@pytest.fixture(scope="module")
def paced(start):
    return start(step_us=2000)


@pytest.mark.sanitizer
def test_tokens_and_requests_are_those_of_the_daemon(paced):
    def run():
        before = paced.metrics()
        page = bench_json(paced, "--num-prompts", 60, "--input-len", 50, "--output-len", 20, "--warmup", 0, "--max-concurrency", 8)
        after = paced.metrics()
        assert page["completed"] == 60 and page["failed"] == 0
        assert page["total_input_tokens"] == 60 * 50 and page["total_output_tokens"] == 60 * 20
        name = "inferd_generation_tokens_total"
        assert after[name] - before[name] == 61 * 20  # and the cold one
        assert page["max_concurrent_requests"] == 8
        assert page["p99_itl_ms"] >= page["median_itl_ms"] and page["cold_ttft_ms"] > 0
        return page["median_tpot_ms"]

    def pace():  # 2 ms a step, one token a step: nothing is faster but for a client that was held up, and 8 at once are one batch, not eight
        took = run()
        assert 1.9 < took < 8, took
    at_best(pace)


def test_arrivals_keep_the_rate_and_the_seed_repeats_them(paced):
    options = ["--num-prompts", 120, "--request-rate", 100, "--input-len", 8, "--output-len", 2, "--warmup", 0,
               "--random-range-ratio", 0.5, "--save-detailed"]

    def paced_runs():
        one, two, other = (bench_json(paced, *options, "--seed", seed) for seed in (4, 4, 5))
        assert one["input_lens"] == two["input_lens"] != other["input_lens"]
        assert all(abs(a - b) < 0.25 for a, b in zip(one["start_times"], two["start_times"]))
        # 120 exponential gaps of 10 ms: 1.2 s, a deviation of 0.11 s
        assert 0.7 < one["start_times"][-1] < 1.8
        assert one["start_times"] == sorted(one["start_times"])
    at_best(paced_runs)


def test_the_block_has_the_lines_of_vllm_bench_serve(paced):
    text = bench(paced, "--num-prompts", 10, "--input-len", 10, "--output-len", 4, "--warmup", 0.2, "--goodput", "ttft:10000").stdout
    for line in ("Successful requests:", "Benchmark duration (s):", "Total input tokens:", "Total generated tokens:",
                 "Request throughput (req/s):", "Request goodput (req/s):", "Output token throughput (tok/s):",
                 "Total token throughput (tok/s):", "Mean TTFT (ms):", "Median TTFT (ms):", "P99 TTFT (ms):", "Mean TPOT (ms):",
                 "Mean ITL (ms):", "P99 ITL (ms):", "Mean E2EL (ms):"):
        assert any(row.startswith(line) for row in text.splitlines()), (line, text)
    assert "============ Serving Benchmark Result ============" in text and "cold start: first request TTFT" in text
    latency = bench(paced, "--repeats", 5, "--input-len", 10, "--output-len", 4, "--warmup", 0).stdout
    for line in ("Repeats:", "P50 E2EL (ms):", "P90 E2EL (ms):", "P99 TTFT (ms):", "Sigma TPOT (ms):"):
        assert any(row.startswith(line) for row in latency.splitlines()), (line, latency)


@pytest.mark.sanitizer
def test_conversations_and_shared_beginnings_are_answered(paced):
    page = bench_json(paced, "--dataset-name", "multi_turn", "--endpoint", "/v1/chat/completions", "--turns", 3, "--num-prompts", 9,
                      "--input-len", 20, "--output-len", 6, "--warmup", 0, "--save-detailed")
    assert page["completed"] == 9
    first, last = page["input_lens"][:3], page["input_lens"][6:]
    assert all(b > a + 2 * 20 for a, b in zip(first, last))  # the third turn carries the two before it
    shared = bench_json(paced, "--dataset-name", "prefix_repetition", "--num-prefixes", 2, "--prefix-len", 128, "--input-len", 16,
                        "--output-len", 2, "--num-prompts", 20, "--warmup", 0, "--max-concurrency", 1)
    assert shared["completed"] == 20 and shared["total_input_tokens"] == 20 * 144


@pytest.mark.sanitizer
def test_refusals_and_no_server_are_told(start):
    small = start(step_us=20000, queue=1, seqs=1)
    page = bench_json(small, "--num-prompts", 12, "--input-len", 8, "--output-len", 8, "--warmup", 0)
    assert page["completed"] >= 1 and page["refused"] == page["failed"] == 12 - page["completed"] > 0
    run = subprocess.run([str(binary()), "bench", "serve", "--url", "http://127.0.0.1:9"], capture_output=True, text=True)
    assert run.returncode == 1 and "127.0.0.1:9" in run.stderr
    for wrong in (["--no-such"], ["--request-rate", "fast"], ["--dataset-name", "x"], ["--goodput", "itl:3"], ["--num-prompts"], ["--endpoint", "v1/completions"],
                  ["--input-len", "0"]):
        run = subprocess.run([str(binary()), "bench", "serve", *wrong], capture_output=True, text=True)
        assert run.returncode == 2 and run.stderr.startswith("inferd: bench serve: "), (wrong, run.stderr)


def test_who_is_refused_as_it_was_asked_has_no_warm_up(paced):
    """Token ids that the model does not have: the first request is refused, the measured ones too, and nothing is sent in between."""
    def refused():
        return sum(v for k, v in paced.metrics().items() if k.startswith("inferd_http_requests_total") and 'status="400"' in k)
    before = refused()
    run = subprocess.run([str(binary()), "bench", "serve", "--url", paced.url, "--num-prompts", "5", "--warmup", "3000", "--token-low", "1000000",
                          "--token-high", "1000001"], capture_output=True, text=True, timeout=300)
    assert "failed" in run.stdout + run.stderr, run
    assert refused() - before == 6, run


def test_an_address_may_be_what_clients_call_the_base_url(paced):
    for end in ("", "/", "/v1", "/v1/"):
        run = subprocess.run([str(binary()), "bench", "serve", "--url", paced.url + end, "--num-prompts", "2", "--input-len", "4", "--output-len", "2",
                              "--warmup", "0"], capture_output=True, text=True)
        assert run.returncode == 0 and re.search(r"Successful requests:\s+2\b", run.stdout), (end, run)


def test_a_result_that_cannot_be_kept_is_told(paced, tmp_path):
    """Before the run where the file cannot be made, and after it where the disk is full; what a file held until then stays."""
    quick = ("--num-prompts", 2, "--input-len", 4, "--output-len", 2, "--warmup", 0, "--result-filename")
    for path in ("/nonexistent/x", tmp_path):
        run = bench(paced, *quick, path, code=2)
        assert "cannot be written" in run.stderr and not run.stdout, run
    assert "/dev/full could not be written" in bench(paced, *quick, "/dev/full", code=1).stderr
    (tmp_path / "kept").write_text("kept")
    run = subprocess.run([str(binary()), "bench", "serve", "--url", "http://127.0.0.1:9", *map(str, quick), str(tmp_path / "kept")],
                         capture_output=True, text=True)
    assert run.returncode == 1 and (tmp_path / "kept").read_text() == "kept"


def test_a_recorded_trace_is_replayed(start, tmp_path):
    at_best(lambda: replay(start, tmp_path))


def replay(start, tmp_path):
    daemon = start(step_us=1000)
    sent = bench_json(daemon, "--num-prompts", 30, "--request-rate", 60, "--input-len", 40, "--random-range-ratio", 0.8, "--output-len", 5,
                      "--warmup", 0, "--save-detailed")
    daemon.terminate()
    trace = tmp_path / "t.jsonl"
    subprocess.run([str(binary()), "bench", "record", "--log", str(daemon.log_path), "--out", str(trace)], check=True)
    recorded = [json.loads(line) for line in trace.read_text().splitlines()]
    items = recorded[1:]  # but the cold one
    assert sorted(item["prompt_tokens"] for item in items) == sorted(sent["input_lens"])
    begin = items[0]["arrival_s"]
    gaps = [abs(item["arrival_s"] - begin - (at - sent["start_times"][0])) for item, at in zip(items, sent["start_times"])]
    assert sorted(gaps)[len(gaps) // 2] < 0.02, gaps
    again = start(step_us=1000)
    page = bench_json(again, "--trace", trace, "--warmup", 0, "--num-prompts", 1000)
    assert page["completed"] == 31 and page["total_output_tokens"] == sum(item["max_tokens"] for item in recorded)


def test_the_shipped_trace_is_what_its_generator_makes():
    made = subprocess.run(["python3", str(ROOT / "bench/traces/make_mixed.py")], capture_output=True, text=True, check=True).stdout
    assert made == (ROOT / "bench/traces/mixed.jsonl").read_text()
