"""The GPU's benchmarks: options are read and held to their bounds, and a run to its model's context, before a device is asked for; where
there is none, or the build has none, a sentence says what would be right."""
import json
import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT, binary

pytestmark = pytest.mark.skipif(binary().name == "mini_daemon", reason="mini_daemon has no command line")
no_gpu = pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a GPU")

PROGRAMS = ["limits", "kernels", "decode", "prefill", "breakdown", "graphs", "load"]
SMOL, LLAMA = (["--model", str(ROOT / "configs/models" / name)] for name in ("SmolLM2-135M", "Llama-3-8B"))


def bench(*args):
    return subprocess.run([str(binary()), "bench", *map(str, args)], capture_output=True, text=True, timeout=600)


def refused(status, *args):
    """Its one line, which says who speaks and comes before any result."""
    run = bench(*args)
    assert run.returncode == status and run.stdout == "" and run.stderr.count("\n") == 1, (args, run)
    assert run.stderr.startswith(f"inferd: bench {args[0]}: "), run.stderr
    return run.stderr


def asks_for_a_gpu(*args):
    run = bench(*args)
    return run.returncode == 1 and run.stdout == "" and run.stderr.count("\n") == 1 and f"bench {args[0]} measures a GPU" in run.stderr


@no_gpu
@pytest.mark.parametrize("what", PROGRAMS)
def test_a_gpus_benchmark_without_a_gpu_says_what_would_be_right(what):
    args = [what, *(SMOL if what not in ("limits", "kernels") else [])]
    assert asks_for_a_gpu(*args)
    assert "`inferd bench device MODEL`" in bench(*args).stderr


def test_all_benchmarks_are_listed():
    run = bench("--help")
    assert run.returncode == 0
    for what in ("serve", "record", "device", "fit", *PROGRAMS):
        assert f"inferd bench {what} " in run.stdout, run.stdout


@pytest.mark.parametrize("args, words", [
    (["decode", *LLAMA, "--context", 8192], "context 8192 and 640 steps are more than this model's 8192 tokens: --context at most 7552"),
    (["breakdown", *LLAMA, "--context", 7553], "--context at most 7552"),
    (["decode", *LLAMA, "--context", 1, "--steps", 1639], "--steps at most 1638"),
    (["graphs", *LLAMA, "--context", 8191, "--steps", 2], "--context at most 8184"),
    (["graphs", *LLAMA, "--context", 8192, "--batches", 1], "--context at most 8064"),
    (["prefill", *SMOL, "--prompt", 10000], "--prompt 10000 is more than this model's 8192 tokens"),
    (["decode", *SMOL, "--limit", 8193], "--limit 8193 is more than this model's 8192 tokens"),
    (["decode", "--model", "no/such"], "no/such: No such file"), (["load", "--model", "no/such"], "no/such: No such file")])
def test_a_run_that_its_model_has_no_room_for_is_refused(args, words):
    assert words in refused(1, *args)


@no_gpu
@pytest.mark.parametrize("args", [
    ["decode", *LLAMA, "--context", 7552], ["decode", *LLAMA, "--context", 1, "--steps", 1638], ["graphs", *LLAMA, "--context", 8184, "--steps", 2],
    ["prefill", *SMOL, "--prompt", 8192], ["decode", *SMOL, "--limit", 8192], ["decode", *SMOL, "--limit", 1664],
    ["graphs", *SMOL, "--batches", "64,1,1024"], ["load", *SMOL, "--cold=1"], ["decode", *SMOL, "--eager", 1, "--chain", 0, "--f16", 1]])
def test_a_run_that_just_fits_goes_on_to_the_gpu(args):
    assert asks_for_a_gpu(*args), bench(*args)


COUNT = "it must be a whole number from "


@pytest.mark.parametrize("args, words", [
    (["decode", *SMOL, "--batch", 0], f"--batch is '0'; {COUNT}1 to 1024"), (["decode", *SMOL, "--batch", 2000], f"--batch is '2000'; {COUNT}1 to 1024"),
    (["decode", *SMOL, "--steps", -1], f"--steps is '-1'; {COUNT}1 to"), (["decode", *SMOL, "--batch"], "--batch has no value"),
    (["prefill", *SMOL, "--repeats", 201], f"--repeats is '201'; {COUNT}1 to 200"), (["prefill", *SMOL, "--idle", "1s"], f"--idle is '1s'; {COUNT}0 to 10000"),
    (["load", *SMOL, "--cold", "yes"], "--cold is 'yes'; it must be 0 or 1"), (["decode", *SMOL, "--f16", 2], "--f16 is '2'; it must be 0 or 1"),
    (["decode", *SMOL, "--limit", 1663], "--limit is 1663; it must be 0 or at least the 1664 tokens"),
    (["decode"], "--model is missing"), (["load"], "--model is missing"), (["prefill", "--model", ""], "--model is missing"),
    (["limits", "--only", "x"], "there is no option '--only'; it takes none"), (["kernels", "--batch", 4], "'--batch'; bench kernels has --only, --f16"),
    (["prefill", *SMOL, "--context", 4096], "'--context'; bench prefill has --model, --prompt, "), (["decode", "x\x1b[1m"], r"no option 'x\x1b[1m'"),
    (["decode", *SMOL, "--bogus", 1], "'--bogus'; bench decode has --model, --batch, --context, --steps, --limit, "),
    *((["graphs", *SMOL, "--batches", wrong], "whole numbers from 1 to 1024 with commas between, as 1,8,64")
      for wrong in ("", "1,x", "0", "1,", ",1", "1025", "1 8", "-1", ",".join(["1"] * 33), "99999999999999999999"))])
def test_wrong_options_are_named_with_what_would_be_right(args, words):
    assert words in refused(2, *args)


@pytest.mark.parametrize("what", PROGRAMS)
def test_every_program_lists_the_options_that_it_takes_and_refuses_the_others(what):
    """Of the lists themselves: each option of any program is either in a program's own list, or refused by name."""
    pages = {name: set(re.findall(r"^  (--[a-z0-9]+)", bench(name, "--help").stdout, re.M)) for name in PROGRAMS}
    assert pages["decode"] == pages["breakdown"] >= {"--model", "--batch", "--context", "--steps"} and not pages["limits"]
    others = set().union(*pages.values()) - pages[what]
    assert len(others) >= 4
    for option in others:
        assert f"there is no option '{option}'" in refused(2, what, option, 1)


@pytest.mark.parametrize("what", [*PROGRAMS, "device", "serve", "fit", "record"])
def test_help_may_stand_anywhere(what):
    for args in (["--help"], ["-h"], ["--bogus", "1", "--help"], ["--batch", "--help"], ["--help", "x"]):
        run = bench(what, *args)
        assert run.returncode == 0 and run.stdout.startswith(f"usage: inferd bench {what}") and run.stderr == "", (args, run)


def test_limits_without_products_make_a_table(tmp_path):
    """A record has no rate of products where they were not measured; older ones have 0."""
    rows = [{"bench": "limits", "read_gb_s": 4500, "copy_gb_s": 4100}, {"bench": "limits", "read_gb_s": 4600, "copy_gb_s": 4100, "bf16_product_tflop_s": 0},
            {"bench": "limits", "read_gb_s": 4700, "copy_gb_s": 4100, "bf16_product_tflop_s": 777}]
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps({"step": f"s{i}", **row}) + "\n" for i, row in enumerate(rows)))
    run = subprocess.run([sys.executable, str(ROOT / "tests/tools/gpu_table.py"), str(path)], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    assert "4500" in run.stdout.replace(",", "") and "777" in run.stdout, run.stdout


# of a driver as much as the runtime asks for before it counts devices
OLD_DRIVER = r"""
#include <string.h>
int cuDriverGetVersion(int *version) { return *version = 12040, 0; }
int cuInit(unsigned flags) { return flags != 0; }
static int other(void) { return 100; }
int cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long flags, void *how)
{
    (void)version, (void)flags, (void)how;
    *out = !strcmp(name, "cuDriverGetVersion") ? (void *)cuDriverGetVersion
         : !strcmp(name, "cuInit") ? (void *)cuInit
         : !strcmp(name, "cuGetProcAddress") ? (void *)cuGetProcAddress_v2 : (void *)other;
    return 0;
}
"""


@no_gpu
@pytest.mark.parametrize("driver", ["none", "old"])
def test_who_asks_for_a_gpu_is_told_what_the_driver_lacks(tmp_path, driver):
    """The same sentence of every command; the versions of a driver that is too old come from a library in the driver's place."""
    env = dict(os.environ)
    if driver == "old":
        (tmp_path / "driver.c").write_text(OLD_DRIVER)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", tmp_path / "driver.c"], check=True)
        env["LD_LIBRARY_PATH"] = str(tmp_path)
    made_up = [str(ROOT / "configs/models/SmolLM2-135M"), "--load-format", "dummy", "--device", "cuda"]
    told = []
    for command in (["serve", *made_up, "--port", "0"], ["run", *made_up, "hi"], ["plan", *made_up], ["bench", "limits"]):
        run = subprocess.run([str(binary()), *command], capture_output=True, text=True, env=env, timeout=600)
        assert run.returncode == 1 and run.stdout == "", run
        if "this build has no CUDA device" in run.stderr:
            pytest.skip("this build has no CUDA device")
        told.append(run.stderr)
    words = "no NVIDIA driver: one for CUDA " if driver == "none" else "the NVIDIA driver is for CUDA 12.4 and this program for CUDA "
    for said in told:
        assert said.count(words) == 1 and "or newer is right" in said and "insufficient" not in said, told
    assert all("--device cpu or auto needs no GPU" in said for said in told[:3]) and "inferd bench device MODEL" in told[3], told
