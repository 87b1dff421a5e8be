"""`inferd plan` prints what `inferd serve` takes: one sum, to the byte.

Method: the JSON of the plan against the memory lines of a real daemon's log with the same options; refusals of both; the time a
plan takes; GB = 10^9 and GiB = 2^30 at the --gpu-memory option where this build plans for CUDA."""
import json
import re
import subprocess

import pytest

from conftest import ROOT, binary, model_path
from pace import children_cpu, quickly, until

pytestmark = pytest.mark.skipif(binary().name == "mini_daemon", reason="mini_daemon has no command line")


def plan(*args, model=None):
    run = subprocess.run([str(binary()), "plan", str(model or model_path()), *args], capture_output=True, text=True)
    return run


def plan_json(*args, model=None):
    run = plan(*args, "--json", model=model)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def memory_of_log(text):
    lines = {(m[1], bool(m[3])): int(m[2]) for m in re.finditer(r'memory what="([^"]+)" bytes=(\d+)( host=1)?', text)}
    total = re.search(r"memory total device_bytes=(\d+) host_bytes=(\d+) kv_tokens=(\d+) max_model_len=(\d+)", text)
    return lines, [int(n) for n in total.groups()]


@pytest.mark.parametrize("device, options, model", [
    ("cpu", ["--max-num-seqs", "4", "--kv-cache-memory", "64MiB"], None),
    ("cpu", ["--max-num-seqs", "33", "--kv-cache-memory", "100MB", "--max-model-len", "777", "--cpu-numerics", "exact",
             "--max-num-batched-tokens", "96"], None),
    ("null:0", [], None),
    # layers with a window beside others, and alone
    ("cpu", ["--max-num-seqs", "4", "--kv-cache-memory", "3MiB"], "gemma3_text"),
    ("cpu", ["--max-num-seqs", "4", "--kv-cache-memory", "1MiB"], "gemma3_text"),
    ("cpu", ["--max-num-seqs", "4", "--kv-cache-memory", "1MiB"], "mistral_window"),
    ("null:0", ["--kv-cache-memory", "1MiB"], "gemma3_text"),
])
def test_the_daemon_takes_exactly_what_the_plan_says(tmp_path, device, options, model):
    model = ROOT / "tests/golden/models" / model if model else model_path()
    told = plan_json("--device", device, *options, model=model)
    log = tmp_path / "log"
    with open(log, "wb") as out:
        daemon = subprocess.Popen([str(binary()), "serve", str(model), "--device", device, "--port", "0", *options],
                                  stdout=out, stderr=subprocess.STDOUT)
        until(lambda: " ready model=" in log.read_text() or daemon.poll() is not None, "ready")
        daemon.terminate()
        assert daemon.wait(60) == 0, log.read_text()
    lines, total = memory_of_log(log.read_text())
    assert {(line["what"], line["host"]): line["bytes"] for line in told["lines"]} == lines
    assert [told["device_bytes"], told["host_bytes"], told["kv"]["tokens"], told["max_model_len"]] == total
    assert sum(line["bytes"] for line in told["lines"]) == total[0] + total[1]


@pytest.mark.skipif(any(word in str(binary()) for word in ("asan", "tsan")), reason="a sanitizer's own start takes that long")
def test_every_shipped_config_is_planned_in_under_a_tenth_of_a_second():
    for folder in sorted((ROOT / "configs/models").iterdir()):
        told = quickly(0.1, lambda: plan_json("--device", "null:0", model=folder), clock=children_cpu)
        assert not told["weights_present"] and told["parameters"] > 1e8, folder
    quickly(0.1, lambda: plan_json("--device", "cpu", "--threads", "2"), clock=children_cpu)


def test_serve_refuses_with_the_sentence_of_the_plan():
    options = ["--device", "cpu", "--kv-cache-memory", "1MiB", "--max-model-len", "2048"]
    told = plan(*options, "--json")
    assert told.returncode == 1
    page = json.loads(told.stdout)
    assert page["fits"] is False and "--kv-cache-memory of 1048576 bytes holds" in page["refused"]
    served = subprocess.run([str(binary()), "serve", str(model_path()), "--port", "0", *options], capture_output=True, text=True)
    assert served.returncode == 1 and page["refused"] in served.stderr, served.stderr


def test_serve_refuses_more_than_this_machine_has():
    options = ["--device", "cpu", "--kv-cache-memory", "9000GB"]
    told = plan(*options)
    assert told.returncode == 1 and "does not fit:" in told.stdout and "too many" in told.stderr
    served = subprocess.run([str(binary()), "serve", str(model_path()), "--port", "0", *options], capture_output=True, text=True)
    assert served.returncode == 1 and re.search(r"KV pool \d+ = \d+ bytes; this machine has \d+ available", served.stderr)


def test_gpu_memory_is_planned_without_a_gpu():
    run = plan("--gpu-memory", "141GB", "--json", model=ROOT / "configs/models/Llama-3-8B")
    if "no CUDA device" in run.stderr:
        pytest.skip("this source tree has no CUDA device")
    assert run.returncode == 0, run.stderr
    page = json.loads(run.stdout)
    assert page["device"] == "cuda" and page["memory_bytes"] == 141 * 10**9
    assert page["budget_bytes"] == int(141e9 * page["utilization"])
    assert page["device_bytes"] <= page["budget_bytes"] < page["device_bytes"] + page["kv"]["block_bytes"]
    assert plan_json("--gpu-memory", "141GiB", model=ROOT / "configs/models/Llama-3-8B")["memory_bytes"] == 141 * 2**30
    estimates = [line["what"] for line in page["lines"] if line["estimate"]]
    assert estimates == ["CUDA context, library and code", "CUDA graphs"]
    quantised = plan_json("--gpu-memory", "141GB")  # GGUF: computed in f16 unless asked otherwise
    assert quantised["lines"][0]["what"] == "weights in f16, one copy"
    assert plan_json("--gpu-memory", "141GB", "--dtype", "bfloat16")["lines"][0]["what"] == "weights in bf16, one copy"
    whole = plan("--gpu-memory", "141GB", "--dtype", "float32")  # as serve refuses it
    assert whole.returncode == 1 and "a GPU computes in float16 or bfloat16" in whole.stderr
    large = plan("--gpu-memory", "141GB", model=ROOT / "configs/models/Llama-3-70B")
    assert large.returncode == 1 and "bytes too many" in large.stderr


def test_wrong_use_is_told():
    for command in ("plan", "serve"):
        run = subprocess.run([str(binary()), command, str(model_path()), "--device", "cpu", "--gpu-memory", "1GB", "--port", "0"],
                             capture_output=True, text=True, timeout=60)
        assert run.returncode == 2 and "goes with --device cuda" in run.stderr, (command, run.stderr)
    assert subprocess.run([str(binary()), "plan"], capture_output=True).returncode == 2
    made_up = plan("--device", "null")  # plans from the shape; the weights are there all the same
    assert made_up.returncode == 0 and "no weight files" not in made_up.stdout
    missing = plan(model="no/such/model")
    assert missing.returncode == 1 and "no/such/model" in missing.stderr
