"""What cannot start says why in a sentence and ends with 1, or with 2 where the command line is wrong whatever the machine, never by
a signal; what is in the way of a socket is not removed.

Method: each case with the real program, its exit status exactly; `run` and `serve` close what a failed load has opened once
more than it was opened."""
import json
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest

from conftest import ROOT, binary, model_path
from pace import at_best, until

pytestmark = [pytest.mark.sanitizer, pytest.mark.skipif(binary().name == "mini_daemon", reason="needs the program")]


def refused(*args):
    done = subprocess.run([str(binary()), *map(str, args)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, (done.returncode, done.stderr[-500:])
    assert "inferd:" in done.stderr and "free" not in done.stderr.splitlines()[-1]
    return done.stderr


def test_a_model_that_is_not_there(tmp_path):
    assert "no-model" in refused("run", tmp_path / "no-model", "hi")
    assert "no-model" in refused("serve", tmp_path / "no-model", "--port", 0)


def test_a_file_that_is_no_model(tmp_path):
    (tmp_path / "text").write_text("root:x:0:0:root\n" * 100)
    refused("run", tmp_path / "text", "hi")
    refused("serve", tmp_path / "text", "--port", 0)


def test_a_model_cut_within_its_tensors(tmp_path):
    cut = tmp_path / "cut.gguf"
    shutil.copy(model_path(), cut)
    with open(cut, "r+b") as file:
        file.truncate(50_000_000)
    refused("run", cut, "hi")
    refused("serve", cut, "--port", 0)


def test_a_template_that_does_not_compile_is_told_by_inspect(tmp_path):
    data = model_path().read_bytes()
    assert data.count(b"{% for message in messages %}") == 1
    (tmp_path / "odd.gguf").write_bytes(data.replace(b"{% for message in messages %}", b"{% fur message in messages %}"))
    done = subprocess.run([str(binary()), "inspect", str(tmp_path / "odd.gguf")], capture_output=True, text=True, timeout=120)
    (tmp_path / "odd.gguf").unlink()
    assert done.returncode == 0 and "does not pass through it" in done.stdout and "fur" in done.stdout.splitlines()[-1], done.stdout[-400:]
    done = subprocess.run([str(binary()), "inspect", str(model_path())], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "does not pass" not in done.stdout


@pytest.mark.parametrize("options", [["--device", "null"], ["--device", "cpu"], ["--load-format", "dummy"]], ids=" ".join)
def test_a_folder_with_nothing_but_gguf_files_names_one(tmp_path, options):
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / name).symlink_to(model_path())
    for command in (["serve", tmp_path, "--port", 0], ["plan", tmp_path], ["inspect", tmp_path], ["run", tmp_path, "hi"], ["tokenize", tmp_path, "hi"]):
        assert f"give the path of the .gguf file itself, as in {tmp_path}/a.gguf" in refused(*command, *options)


TEMPLATES = [(None, "cannot open"), ("{% fur x %}", "fur"), ("{{ x", "cannot be used"), ("x" * (1 << 20) + "x", "at most 1048576")]


@pytest.mark.parametrize("text, words", TEMPLATES, ids=["none", "tag", "open", "large"])
def test_a_wrong_template_is_told_by_every_command_as_by_serve(tmp_path, text, words):
    path = tmp_path / "t.jinja"
    if text:
        path.write_text(text)
    told = [refused(command, model_path(), "--device", "null", *(["--port", 0] if command == "serve" else []), "--chat-template", path,
                    *(["hi"] if command == "run" else [])) for command in ("serve", "run", "plan", "inspect")]
    sentences = {next(line for line in t.splitlines() if line.startswith("inferd:")) for t in told}
    assert len(sentences) == 1 and words in sentences.pop() and str(path) in told[0], told


def test_inspect_shows_the_template_that_serve_would_use(tmp_path):
    (tmp_path / "t.jinja").write_text("{{ messages[0].content }}\nof mine")
    done = subprocess.run([str(binary()), "inspect", str(model_path()), "--chat-template", str(tmp_path / "t.jinja")], capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.endswith("chat template: 33 bytes\n{{ messages[0].content }}\nof mine\n"), done.stdout[-200:]
    plan = subprocess.run([str(binary()), "plan", str(model_path()), "--chat-template", str(tmp_path / "t.jinja")], capture_output=True, timeout=120)
    assert plan.returncode == 0


def test_parts_of_a_character_are_shown_as_bytes():
    done = subprocess.run([str(binary()), "tokenize", str(model_path()), "é世"], capture_output=True, timeout=120)
    assert done.returncode == 0 and "é" in done.stdout.decode() and "\\x96" in done.stdout.decode(), done.stdout


@pytest.mark.parametrize("options", [["--max-model-len", "100000"], ["--chat-template", "/nonexistent"], ["--chat-template", "/"]])
def test_options_that_the_model_cannot_have(options):
    refused("run", model_path(), *options, "hi")
    refused("serve", model_path(), "--port", 0, *options)


WRONG = [(["--device", "wrong"], "null:STEP_US"), (["--device", "cpu:3"], "null:STEP_US"), (["--device", "null:x"], "null:STEP_US"),
         (["--device", "cuda:1024"], "null:STEP_US"), (["--device", "cuda:"], "null:STEP_US"), (["--device", "CPU"], "null:STEP_US"),
         (["--inject-fault", "alloc@x"], "step@N"), (["--cpu-set", "9-1"], "0-3,8"), (["--io-cpu-set", "a"], "--io-cpu-set"),
         (["--dtype", "wrong"], "bfloat16"), (["--load-format", "wrong"], "dummy"), (["--cpu-numerics", "wrong"], "exact"),
         (["--cpu-isa", "wrong"], "avx2"), (["--log-level", "wrong"], "warn"), (["--log-format", "wrong"], "json"),
         (["--device", "cpu", "--gpu-memory", "1GB"], "--device cuda"), (["--cors=wrong"], "true or false"), (["--port", "wrong"], "65535"),
         (["--temperature", "nan"], "0 to 2"), (["--gpu-memory", "1XB"], "GiB"), (["--tls-cert", "x"], "--tls-key"), (["--tls-key", "x"], "--tls-cert"),
         (["--otlp-endpoint", "x"], "http"), (["--otlp-endpoint", "http://x:y"], "http"), (["--otlp-traces-endpoint", "ftp://x"], "http"),
         (["--otlp-headers", "x"], "--otlp-headers"), (["--otlp-resource-attributes", "x"], "--otlp-resource-attributes"),
         (["--zmq-listen", "x"], "tcp://"), (["--zmq-server-key-file", "x"], "--zmq-listen"), (["--zmq-client-keys-file", "x"], "--zmq-listen"),
         (["--uds", "x", "--reuse-port"], "--reuse-port"), (["--no-such"], "no such option")]


@pytest.mark.parametrize("options, words", WRONG, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_a_value_that_no_machine_could_take_is_wrong_usage(options, words):
    """The same status, 2, and the same sentence of every command that takes the options of serve, as a flag and as a variable."""
    told = set()
    slow = any(word in str(binary()) for word in ("asan", "tsan"))
    for command in (["serve"], ["plan"]) if slow else (["serve"], ["plan"], ["run"], ["inspect"], ["tokenize"]):
        done = subprocess.run([str(binary()), *command, str(model_path()), *options, *(["hi"] if command[0] in ("run", "tokenize") else [])],
                              capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        assert done.returncode == 2 and not done.stdout, (command, done.returncode, done.stderr)
        told.add(done.stderr)
    assert len(told) == 1 and words in told.pop()


def test_every_option_with_a_set_of_values_is_held_to_it():
    """Of the table itself, so that a new one is not forgotten: a CHOICE, a number or a BOOL that is none of it ends with 2."""
    page = subprocess.run([str(binary()), "docs", "configuration"], capture_output=True, text=True, check=True).stdout
    seen = 0
    for flag, bounds in re.findall(r"^\| `(--[a-z0-9-]+)`[^|]*\|[^|]*\| ([^|]+) \|", page, re.M):
        if bounds.startswith("text"):
            continue
        done = subprocess.run([str(binary()), "serve", str(model_path()), f"{flag}=wrong"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and flag in done.stderr, (flag, bounds, done)
        seen += 1
    assert seen > 40


@pytest.mark.parametrize("args, words", [
    (["bench", "fit", "--model", "x", "--device", "wrong"], "cpu or cuda"), (["bench", "fit", "--model", "x", "--cpu-numerics", "wrong"], "fast or exact"),
    (["bench", "device", "x", "--device", "wrong"], "--device"), (["bench", "serve", "--dataset-name", "wrong"], "trace"),
    (["bench", "serve", "--prompt-kind", "wrong"], "ids or text"), (["simulate", "--trace", "x", "--device", "x", "--router", "wrong"], "round-robin"),
    (["simulate", "--trace", "x", "--device", "x", "--batch-window", "wrong"], "fixed:MS"), (["docs", "wrong"], "configuration|man"),
    (["bench", "wrong"], "bench serve"), (["wrong"], "serve MODEL"), (["run", "x", "-f", "x", "words"], "given twice")])
def test_other_commands_hold_their_words_to_their_sets(args, words):
    done = subprocess.run([str(binary()), *args], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and words in done.stderr, done


def test_prompts_that_are_no_text():
    for words in (["-sys", b"\xff", "hi"], [b"\xff"]):
        done = subprocess.run([str(binary()), "run", str(model_path()), "--device", "null", *words], capture_output=True, timeout=60)
        assert done.returncode == 1 and b"not valid UTF-8" in done.stderr, done


def test_an_interrupt_ends_a_run_that_loads():
    """Ctrl-C ends an answer, but before there is one it ends the program (also where the tests run in the background of a shell, which
    has its jobs ignore SIGINT)."""
    def interrupted():
        process = subprocess.Popen([str(binary()), "run", str(model_path()), "hi"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        try:
            while model_path().name not in open(f"/proc/{process.pid}/maps").read():
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == -signal.SIGINT
        finally:
            process.kill()
            process.communicate()
    at_best(interrupted)  # who is held up here sends it when there is an answer


def test_an_empty_host_is_not_all_addresses():
    done = subprocess.run([str(binary()), "serve", str(model_path()), "--device", "null", "--port", "0", "--host", ""],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--host is empty" in done.stderr, done


def test_a_fault_of_the_cpus_options_is_not_said_of_a_gpu():
    assert "GPU" not in refused("plan", model_path(), "--cpu-set", "1000")  # one that is not there


def test_an_ipv6_address_is_logged_as_a_url(start):
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
    daemon = start(wait=False, extra=["--host", "::1"])
    assert "url=http://[::1]:" in daemon.log_text()


def test_an_ipc_path_that_is_a_file_is_kept(tmp_path):
    (tmp_path / "plain").write_text("keep")
    assert "is no socket" in refused("serve", model_path(), "--device", "null", "--port", 0, "--zmq-listen",
                                     f"ipc://{tmp_path / 'plain'}")
    assert (tmp_path / "plain").read_text() == "keep"


def test_an_ipc_path_in_use_is_refused(start, tmp_path):
    endpoint = f"ipc://{tmp_path / 'socket'}"
    first = start(zmq=endpoint)
    assert "another process" in refused("serve", model_path(), "--device", "null", "--port", 0, "--zmq-listen", endpoint)
    assert first.get("/health").status == 200 and (tmp_path / "socket").exists()


def test_a_key_file_with_two_keys_is_refused(tmp_path):
    (tmp_path / "key").write_text("a" * 40 + "\n" + "b" * 40 + "\n")
    assert "second line" in refused("serve", model_path(), "--device", "null", "--port", 0, "--zmq-listen",
                                    "tcp://127.0.0.1:*", "--zmq-server-key-file", tmp_path / "key")


def test_a_hung_engine_does_not_hold_the_process(tmp_path):
    log = open(tmp_path / "log", "wb")
    process = subprocess.Popen([str(binary()), "serve", str(model_path()), "--device", "null:1000", "--port", "0",
                                "--inject-fault", "hang@20", "--step-timeout-s", "0", "--progress-timeout-s", "3",
                                "--shutdown-timeout-s", "1"], stdout=log, stderr=subprocess.STDOUT)
    try:
        until(lambda: " ready " in (tmp_path / "log").read_text(), "ready")
        port = (tmp_path / "log").read_text().split("http://127.0.0.1:", 1)[1].split()[0].strip('"')
        client = subprocess.Popen(["curl", "-sN", f"http://127.0.0.1:{port}/v1/completions", "-H",
                                   "Content-Type: application/json", "-d", '{"prompt":"a","max_tokens":500,"stream":true}'],
                                  stdout=subprocess.PIPE)
        client.stdout.read(200)  # it runs
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 3
        client.communicate(timeout=60)
    finally:
        process.kill()
        log.close()


ONE = re.compile(r"(?<![\d.,/])1 (?:tokens|tensors|sequences|blocks|layers|requests|prompts|strings|entries|bytes|ids|replicas|threads)\b")


def test_one_of_a_thing_is_not_said_in_the_plural(tmp_path):
    """What people read, where it counts to one: each page must have such a count, so that the case is met."""
    config, template = tmp_path / "one", tmp_path / "template"
    template.write_text("x")
    config.mkdir()
    llama = json.loads((ROOT / "configs/models/Llama-3-70B/config.json").read_text())
    (config / "config.json").write_text(json.dumps({**llama, "num_hidden_layers": 1, "vocab_size": 512, "max_position_embeddings": 512}))
    pages = {"tokenize": (["tokenize", model_path(), "a"], "1 token"),
             "tensors": (["inspect", model_path()], "1 tensor "),
             "layers": (["plan", config, "--device", "cpu"], "1 layer,"),
             "sequences": (["plan", config, "--device", "cpu", "--kv-cache-memory", "2MiB", "--max-model-len", "512"], "1 sequence of"),
             "bytes": (["inspect", model_path(), "--chat-template", template], "1 byte\nx")}
    for args, word in pages.values():
        done = subprocess.run([str(binary()), *map(str, args)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and word in done.stdout and not ONE.search(done.stdout + done.stderr), done


def test_answers_that_count_to_one(start):
    daemon = start(extra=["--max-prompt-tokens", 1, "--max-stop-strings", 1, "--max-logit-bias", 1, "--max-queue-seqs", 1])
    for fields, words in (({"prompt": "a b c d"}, "1 token on"), ({"stop": ["a", "b"]}, "1 string on"), ({"logit_bias": {"1": 1, "2": 1}}, "1 entry on"),
                          ({"prompt": ["a", "b"]}, "at most 1")):
        said = daemon.complete(**fields).json()["error"]["message"]
        assert words in said and not ONE.search(said), said


@pytest.mark.parametrize("args, status, words", [
    (["help"], 0, "inferd serve MODEL"), (["help", "serve"], 0, "--no-NAME"), (["help", "keygen"], 0, "public key"), (["help", "x"], 2, "no command 'x'"),
    (["help", "help"], 2, "no command 'help'"), (["-V"], 0, "inferd "), (["docs", "--help"], 0, "configuration|man"), (["bench", "-h"], 0, "bench serve"),
    (["bench", "device", "--help"], 0, "usage: inferd bench device"), (["plan"], 2, "plan needs a MODEL"), (["plan", "a", "b"], 2, "'b' is too many"), (["inspect", "a", "b"], 2, "'b' is too many"),
    (["serve", "--prot", "1"], 2, "did you mean --port?"),
    (["serve", "--wrong"], 2, "(inferd serve --help lists them)"), (["serve", "x", "--block-size", "32"], 2, "it must be 16\n")])
def test_help_is_where_it_is_looked_for(args, status, words):
    done = subprocess.run([str(binary()), *args], capture_output=True, text=True, timeout=60)
    assert done.returncode == status and words in (done.stderr if status else done.stdout), done
    assert not (done.stdout if status else done.stderr)


def test_a_plan_that_cannot_be_speaks_of_what_was_given():
    big = ROOT / "configs/models/Llama-3-70B"
    for args, words in ((["--device", "cpu", "--kv-cache-memory", "1MiB"], "of 1048576 bytes holds no sequence at all: 5242880 bytes are needed"),
                        (["--gpu-memory", "1"], "1 byte of memory * 0.9 = 1 may be used")):
        told = refused("plan", big, *args)
        assert words in told and "--max-model-len 0" not in told, told
