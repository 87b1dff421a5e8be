"""What a file says of itself is shown and never obeyed: no control character of it reaches a terminal or a line of a log.

Method: one copy of the model, whose words are overwritten in place by ones of the same length with an escape, a bell, a line feed, C1 or
bytes that are no UTF-8; then every command that tells of a file, and not one byte of either stream may be a control character but the
line feeds of the page itself. What a word was is looked for, escaped, so that it is shown and not dropped."""
import json
import mmap
import os
import pty
import re
import shutil
import subprocess

import pytest

from conftest import ROOT, binary, model_path

pytestmark = [pytest.mark.sanitizer, pytest.mark.skipif(binary().name == "mini_daemon", reason="needs the program")]

CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# (in the file, what it becomes, what is shown of it)
WORDS = [
    (b"general.license", b"general.\x1b]0;x\x07\x07", r"general.\x1b]0;x\x07\x07"),          # a key
    (b"Smollm2 135M 8k", b"S\x1b[2J\xc2\x9b\n8k 8k\x7f8", r"S\x1b[2J\u009b\x0a8k 8k\x7f8"),  # a value
    (b"HuggingFaceTB", b"\xe2\x80\xaeigging\xc2\x85TB", r"\u202eigging\u0085TB"),
    (b"Smollm2 135M 8k", b"Smol\xff\xfe2 135M 8k", "(not UTF-8)"),
    (b"blk.0.attn_k.weight", b"blk.0.att\x1b[1m.weight"[:19], "is missing"),                # a tensor
    (b"<repo_name>", b"<re\x1b[7mme\r>", r"<re\x1b[7mme\x0d>"),                             # a token
    (b"{% for message in messages %}", b"{% f\x1b\x1b message in messages %}", r"f\x1b\x1b message"),  # the template, which does not compile
    (b"gpt2", b"\x1b[5m", r"\x1b[5m"),                                                      # the tokenizer's kind
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile") / "model.gguf"
    shutil.copy(model_path(), path)
    return path


def run(*args):
    done = subprocess.run([str(binary()), *map(str, args)], capture_output=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode in (0, 1), (args, done)
    said = (done.stderr if args[0] == "run" else done.stdout + done.stderr).decode()  # all of it is UTF-8; what a model answers is its own
    assert not CONTROL.search(said), (args, repr(CONTROL.search(said)), repr(said[max(0, CONTROL.search(said).start() - 40):][:80]))
    return said


def serve(path, form):
    """Its log until it is ready or has refused, and to its end."""
    with subprocess.Popen([str(binary()), "serve", str(path), "--device", "null", "--port", "0", "--log-format", form], stderr=subprocess.PIPE) as process:
        log = b""
        for line in process.stderr:
            log += line
            if re.search(rb'info ready|"event":"ready"', line):
                process.terminate()
    assert process.returncode in (0, 1), log
    assert not CONTROL.search(log.decode()), log
    return log.decode()


@pytest.mark.parametrize("was, becomes, seen", WORDS, ids=lambda w: None)
def test_the_words_of_a_gguf_file(copy, was, becomes, seen):
    assert len(was) == len(becomes)
    with open(copy, "r+b") as file, mmap.mmap(file.fileno(), 0) as bytes_:
        at = bytes_.find(was)
        assert at >= 0
        bytes_[at:at + len(was)] = becomes
        try:
            told = [run("inspect", copy), run("plan", copy), run("plan", copy, "--json"), run("tokenize", copy, "<repo_name> a"),
                    run("run", copy, "--device", "null", "-n", "1", "hi")]
            told += [serve(copy, form) for form in ("text", "json")]
        finally:
            bytes_[at:at + len(was)] = was
    assert any(seen in t for t in told), told


@pytest.mark.parametrize("key, value", [("model_type", "ll\x1b[2Jama"), ("rope_scaling", {"rope_type": "a\x07\u009b", "factor": 2.0}), ("dtype", "\x1b]0;x\x07")])
def test_the_words_of_a_config(tmp_path, key, value):
    folder = tmp_path / "model"
    folder.mkdir()
    config = json.loads((ROOT / "configs/models/Llama-3-70B/config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value, "odd\x1b[1mkey": 1}))
    for extra in ([], ["--json"]):
        run("plan", folder, "--gpu-memory", "141GB", *extra)
    run("serve", folder, "--device", "null", "--port", "0")


def test_a_path_that_is_no_text_is_shown(tmp_path):
    odd = os.fsencode(tmp_path) + b"/a\x1b[2J\xff.gguf"
    os.symlink(model_path(), odd)
    for command in (["inspect"], ["plan"], ["plan", "--json"]):
        done = subprocess.run([str(binary()), *command[:1], odd, *command[1:]], capture_output=True, timeout=120)
        assert done.returncode == 0 and not CONTROL.search(done.stdout.decode()) and not done.stderr, done
        if "--json" in command:
            assert json.loads(done.stdout)["model"].endswith(r"a\x1b[2J\xff.gguf")
    gone = subprocess.run([str(binary()), "inspect", os.fsencode(tmp_path) + b"/\x1b[2J"], capture_output=True, timeout=60)
    assert gone.returncode == 1 and rb"\x1b[2J" in gone.stderr and not CONTROL.search(gone.stderr.decode())


def test_a_model_that_says_an_escape_does_not_reach_the_terminal():
    """The null device's words are made up; a terminal gets them without control characters, a pipe as they are."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([str(binary()), "run", str(model_path()), "--device", "null", "-n", "400", "hi"], stdout=theirs,
                          stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                got = os.read(ours, 65536)
            except OSError:  # the other side has ended
                break
            if not got:
                break
            said += got
    os.close(ours)
    assert process.returncode == 0 and len(said) > 400
    assert not CONTROL.search(said.decode().replace("\r\n", "\n").replace("\t", " "))
