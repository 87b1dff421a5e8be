"""The GPU's benchmarks where there is no GPU, or where the build has none: a sentence with what would be right."""
import os
import subprocess

import pytest
from conftest import binary

pytestmark = [pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a GPU"),
              pytest.mark.skipif(binary().name == "mini_daemon", reason="mini_daemon has no command line")]


@pytest.mark.parametrize("what", ["limits", "kernels", "decode", "prefill", "breakdown", "graphs", "load"])
def test_a_gpus_benchmark_without_a_gpu_says_what_would_be_right(what):
    needs_model = what not in ("limits", "kernels")
    run = subprocess.run([str(binary()), "bench", what, *(["--model", "x"] if needs_model else [])], capture_output=True, text=True)
    assert run.returncode == 1 and run.stdout == ""
    assert f"bench {what} measures a GPU" in run.stderr and run.stderr.count("\n") == 1, run.stderr
    assert "`inferd bench device MODEL`" in run.stderr


def test_all_benchmarks_are_listed():
    run = subprocess.run([str(binary()), "bench", "--help"], capture_output=True, text=True)
    assert run.returncode == 0
    for what in ("serve", "record", "device", "fit", "limits", "kernels", "decode", "prefill", "breakdown", "graphs", "load"):
        assert f"inferd bench {what} " in run.stdout, run.stdout
