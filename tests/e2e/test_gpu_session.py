"""tests/tools/gpu_session.sh where there is no GPU: what it refuses, how it ends, what it leaves behind.

Method: a staged folder made here, whose programs are shell scripts that succeed, fail or end as what took too long does; TMPDIR of its own, which must
be empty again. What the parts measure is for a GPU."""
import io
import os
import subprocess
import tarfile

import pytest
from conftest import ROOT

SCRIPT = ROOT / "tests/tools/gpu_session.sh"
GOOD, BAD, SLOW = "#!/bin/sh\nexit 0\n", "#!/bin/sh\necho error: wrong\nexit 3\n", "#!/bin/sh\nexit 124 # as timeout(1) says it\n"

pytestmark = pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a GPU")


def staged(tmp_path, program):
    folder, elsewhere = tmp_path / "1", tmp_path / "elsewhere"
    folder.mkdir()
    files = {"bin/cuda-bench": program.encode(), "source_dir": str(elsewhere).encode(),
             "py/gpu_table.py": (ROOT / "tests/tools/gpu_table.py").read_bytes()}
    with tarfile.open(folder / "pack.tar.xz", "w:xz") as pack:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"pack/{name}")
            entry.size, entry.mode = len(data), 0o755
            pack.addfile(entry, io.BytesIO(data))
        for name in ("golden", "models", "lib"):
            entry = tarfile.TarInfo(f"pack/{name}")
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            pack.addfile(entry)
    (folder / "parts").write_text("ab\n")
    (folder / "gpu_session.sh").write_bytes(SCRIPT.read_bytes())
    return folder


def session(tmp_path, script, *args, **settings):
    (tmp_path / "t").mkdir(exist_ok=True)
    env = {**os.environ, "TMPDIR": str(tmp_path / "t"), "OUT": str(tmp_path / "out"), "GPU_SESSION_KEEP": str(tmp_path / "keep"), **settings}
    done = subprocess.run(["bash", str(script), *args], capture_output=True, text=True, timeout=600, env=env, cwd=tmp_path)
    assert not list((tmp_path / "t").iterdir()), "temporary files are left"
    return done


@pytest.mark.parametrize("program, settings, status, words", [
    (GOOD, {}, 0, "no GPU"), (GOOD, {"GPU_SESSION_DRY": "1"}, 0, " ok "), (BAD, {"GPU_SESSION_DRY": "1"}, 1, "FAILED(3)"),
    (SLOW, {"GPU_SESSION_DRY": "1"}, 1, "LATE")], ids=["no-gpu", "good", "bad", "late"])
def test_a_call_ends_as_its_steps_did(tmp_path, program, settings, status, words):
    done = session(tmp_path, staged(tmp_path, program) / "gpu_session.sh", "run", **settings)
    steps = (tmp_path / "out/steps.txt").read_text()
    assert done.returncode == status and words in steps and "ab_products" in steps, (done, steps)
    assert (tmp_path / "out/logs.txt.xz").exists() and (tmp_path / "out/table.md").exists()
    assert not (tmp_path / "elsewhere/tests/golden").is_symlink() and not (tmp_path / "elsewhere/configs/models").is_symlink()


def test_what_is_no_part_is_refused(tmp_path):
    done = session(tmp_path, staged(tmp_path, GOOD) / "gpu_session.sh", "run", "bogus")
    assert done.returncode == 2 and "no part 'bogus': check careful" in done.stderr and not (tmp_path / "out").exists(), done
    done = session(tmp_path, SCRIPT, "stage", str(tmp_path / "to"), GPU_SESSION_CALLS="check/bogus", GPU_SESSION_NO_BUILD="1")
    assert done.returncode == 2 and "no part 'bogus'" in done.stderr, done


def test_the_source_tree_is_no_staged_folder(tmp_path):
    done = session(tmp_path, SCRIPT, "run")
    assert done.returncode == 2 and "stage first" in done.stderr, done
    done = session(tmp_path, SCRIPT, "stage")
    assert done.returncode == 2 and "stage FOLDER" in done.stderr, done
    done = session(tmp_path, SCRIPT)
    assert done.returncode == 2 and "gpu_session.sh run" not in done.stderr and "Settings of stage" in done.stdout, done
