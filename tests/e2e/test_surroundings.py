"""What surrounds the daemon and is not as usual ends neither it nor an answer: closed standard files, a log that takes no more,
odd names.

Method: the real program with the null device, started so, asked, and told to stop; commands with nowhere to write."""
import contextlib
import json
import os
import resource
import signal
import subprocess
import time

import pytest

from conftest import binary, model_path
from rawhttp import Raw, get, post

pytestmark = [pytest.mark.sanitizer, pytest.mark.skipif(binary().name == "mini_daemon", reason="needs the program")]


def ask(path, request):
    with Raw(str(path)) as client:
        client.send(request)
        return client.answer()


@contextlib.contextmanager
def answering(path, log, *options, model=None, **more):
    """Starts a daemon on a unix socket with `log` as its standard error, has one answer from it and stops it."""
    process = subprocess.Popen([str(binary()), "serve", model or str(model_path()), "--device", "null", "--uds", str(path), *options],
                               stdout=log, stderr=log, **more)
    try:
        until, answer = time.monotonic() + 60, None
        while not answer or answer.status == 503:
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.05)
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):  # it does not listen yet
                answer = ask(path, post("/v1/completions", {"prompt": "a", "max_tokens": 3}))
        assert answer.status == 200
        yield process
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()


def test_standard_files_that_are_closed_are_no_sockets(tmp_path):
    """With 0, 1 and 2 closed a connection must not become standard error: the log would go to a client."""
    with answering(tmp_path / "s", None, preexec_fn=lambda: [os.close(fd) for fd in (0, 1, 2)]) as process:
        assert [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in (0, 1, 2)] == ["/dev/null"] * 3


def test_a_log_that_takes_no_more_loses_lines_only(tmp_path):
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and its children inherit that
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))

    with open(tmp_path / "log", "wb") as log:
        with answering(tmp_path / "s", log, "--log-level", "debug", preexec_fn=limit):
            assert (tmp_path / "log").stat().st_size == 200
    with open("/dev/full", "wb") as log:
        with answering(tmp_path / "t", log) as process:
            assert process.poll() is None


@pytest.mark.parametrize("name", ["a/b c", 'q"\\x" error forged="1', "é😀", "7", " "])
def test_a_models_name_is_one_value_wherever_it_is_told(tmp_path, name):
    with open(tmp_path / "log", "wb") as log, \
            answering(tmp_path / "s", log, "--served-model-name", name, "--log-format", "json"):
        assert [m["id"] for m in ask(tmp_path / "s", get("/v1/models")).json()["data"]] == [name]
        assert ask(tmp_path / "s", post("/v1/completions", {"model": name, "prompt": "a", "max_tokens": 1})).status == 200
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["model"] for line in lines if line["event"] == "ready"] == [name]


def test_a_name_that_is_no_text(tmp_path):
    """Every answer has the model's name, and is JSON: what is no UTF-8 is refused, or not taken from the path."""
    for name in (b"\xff", b"a\nREADY=1"):
        done = subprocess.run([str(binary()), "serve", str(model_path()), "--device", "null", "--port", "0",
                               "--served-model-name", name], capture_output=True, timeout=60)
        assert done.returncode == 2 and b"--served-model-name must be UTF-8" in done.stderr, done
    odd = os.fsencode(tmp_path) + b"/\xff.gguf"
    os.symlink(model_path(), odd)
    with open(tmp_path / "log", "wb") as log, answering(tmp_path / "s", log, model=odd):
        assert ask(tmp_path / "s", get("/v1/models")).json()["data"][0]["id"] == "model"


@pytest.mark.parametrize("command", [["--version"], ["help"], ["docs", "man"], ["plan", "MODEL"], ["inspect", "MODEL"],
                                     ["tokenize", "MODEL", "a"], ["keygen"], ["serve", "--help"], ["bench", "--help"]])
def test_a_command_that_cannot_write_has_failed(command):
    words = [str(model_path()) if word == "MODEL" else word for word in command]
    with open("/dev/full", "wb") as full:
        done = subprocess.run([str(binary()), *words], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 1 and b"standard output" in done.stderr, done
