"""The shipped unit under a real systemd, and its hardening as systemd itself judges it.

Method: the package that cpack makes is installed in a container that systemd-nspawn boots from this machine's own root
with an overlay of memory above it (nothing of it stays); service/drill.py runs in there and says what held. Skipped,
with the reason, where there is no root or no systemd-nspawn; test_notify.py then still holds the protocol."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest
from conftest import LONG, ROOT, binary, model_path

UNITS = ROOT / "configs/systemd"


def tool(name):
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/bin")
    if not path:
        pytest.skip(f"{name} is not installed")
    return path


def exposure(folder):
    got = subprocess.run([tool("systemd-analyze"), "security", "--offline=yes", "--no-pager", str(folder / "inferd.service")],
                         capture_output=True, text=True, env={**os.environ, "SYSTEMD_COLORS": "0"})
    found = re.search(r"Overall exposure level for inferd.service: ([\d.]+)", got.stdout)
    assert found, got.stdout + got.stderr
    return float(found[1])


def test_the_unit_is_hardened(tmp_path):
    shutil.copy(UNITS / "inferd.service", tmp_path)
    level = exposure(tmp_path)
    print(f"exposure {level}")
    assert level <= 2.0


def test_the_gpu_variant_gives_up_no_more_than_cuda_needs(tmp_path):
    """The drop-in's lines put behind the unit's own; a later line wins, as systemd has it."""
    unit = (UNITS / "inferd.service").read_text()
    service = (UNITS / "inferd-gpu.conf").read_text().split("[Service]")[1]
    head, tail = unit.split("[Install]")
    (tmp_path / "inferd.service").write_text(f"{head}{service}\n[Install]{tail}")
    level = exposure(tmp_path)
    print(f"exposure with a GPU {level}")
    assert level <= 3.0


def test_a_wrong_option_is_not_tried_again():
    """Whatever the machine, the next start would end the same way; a model that is not there yet (1) may come."""
    unit = (UNITS / "inferd.service").read_text()
    prevented = re.search(r"^RestartPreventExitStatus=(.*)$", unit, re.M)[1].split()
    for args, tried_again in ((["model", "--no-such-option"], False), (["model", "--device", "wrong"], False), (["/nonexistent/model"], True)):
        done = subprocess.run([str(binary()), "serve", *args, "--port", "0"], capture_output=True, text=True, timeout=60)
        assert done.returncode and (str(done.returncode) not in prevented) == tried_again, (args, done)


def make_package(folder):
    build = binary().parents[1]
    if not (build / "CPackConfig.cmake").exists():
        pytest.skip(f"{build} is no build folder of CMake")
    subprocess.run(["cmake", "--build", str(build), "--target", "manual_page"], check=True, capture_output=True)
    subprocess.run(["cpack", "-G", "DEB", "-B", str(folder)], cwd=build, check=True, capture_output=True)
    return next(folder.glob("*.deb"))


def test_the_package_is_sane(tmp_path):
    lintian = tool("lintian")
    package = make_package(tmp_path)
    got = subprocess.run([lintian, "--allow-root", "--fail-on", "error", str(package)], capture_output=True, text=True)
    assert got.returncode == 0, got.stdout
    fields = subprocess.run(["dpkg-deb", "-f", str(package), "Depends"], capture_output=True, text=True, check=True).stdout
    for needed in ("libc6", "libmicrohttpd12", "libjansson4", "libpcre2-8-0", "libutf8proc2", "libgnutls30"):
        assert needed in fields


def test_the_life_of_the_unit(tmp_path):
    if not LONG:
        pytest.skip("boots a container, 40 s: with INFERD_TEST_LONG=1")
    nspawn = tool("systemd-nspawn")
    if os.geteuid() != 0:
        pytest.skip("a container takes root")
    if "libasan" in open("/proc/self/maps").read() or "san" in str(binary().parents[1].name):
        pytest.skip("the package is of the release build")
    shared, results, root = tmp_path / "drill", tmp_path / "results", tmp_path / "root"
    for folder in (shared, results, root):
        folder.mkdir()
    shutil.copy(make_package(tmp_path), shared / "inferd.deb")
    shutil.copy(model_path(), shared / "model.gguf")
    shutil.copy(pathlib.Path(__file__).parent / "service/drill.py", shared)
    (tmp_path / "drill.service").write_text(
        "[Unit]\nRequires=basic.target\nAfter=basic.target\n[Service]\nType=oneshot\nTimeoutStartSec=580\n"
        "ExecStart=/usr/bin/python3 /drill/drill.py\nExecStopPost=/bin/systemctl poweroff --force\n")
    subprocess.run(["mount", "--bind", "/", str(root)], check=True)
    try:
        boot = subprocess.run(
            [nspawn, "--boot", f"--directory={root}", "--volatile=overlay", "--register=no", "--keep-unit", "--private-network",
             "--machine=inferd-drill", f"--bind-ro={shared}:/drill", f"--bind={results}:/results",
             f"--bind-ro={tmp_path}/drill.service:/etc/systemd/system/drill.service", "systemd.unit=drill.service"],
            capture_output=True, text=True, timeout=600)
    finally:
        subprocess.run(["umount", str(root)], check=True)
    log = results / "log"
    if not log.exists():
        pytest.skip(f"systemd did not boot in a container here: {boot.stdout[-500:]}{boot.stderr[-500:]}")
    text = log.read_text()
    print(text)
    assert text.endswith("done\n") and "FAIL" not in text and text.count("\nok ") >= 8, text
