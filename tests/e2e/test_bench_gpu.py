"""The GPU's benchmarks where there is no GPU, or where the build has none: a sentence with what would be right."""
import os
import subprocess

import pytest
from conftest import ROOT, binary

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
        run = subprocess.run([str(binary()), *command], capture_output=True, text=True, env=env, timeout=60)
        assert run.returncode == 1 and run.stdout == "", run
        if "this build has no CUDA device" in run.stderr:
            pytest.skip("this build has no CUDA device")
        told.append(run.stderr)
    words = "no NVIDIA driver: one for CUDA " if driver == "none" else "the NVIDIA driver is for CUDA 12.4 and this program for CUDA "
    for said in told:
        assert said.count(words) == 1 and "or newer is right" in said and "insufficient" not in said, told
    assert all("--device cpu or auto needs no GPU" in said for said in told[:3]) and "inferd bench device MODEL" in told[3], told
