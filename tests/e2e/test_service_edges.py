"""Small promises of the service, each over its whole kind: what the log says of requests that were cut, that a JSON log is
JSON from the first line to the last however the daemon ends, options and variables that mean nothing, signals at any moment,
keys of ZeroMQ that change while serving, socket files after every kind of end."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest

from conftest import binary, model_path
from pace import until
from rawhttp import Raw, get, post
from zmqclient import connect, endpoint_of, pb, zmq

pytestmark = [pytest.mark.sanitizer, pytest.mark.skipif(binary().name == "mini_daemon", reason="needs the program")]


def serve(*args, env=None, **options):
    return subprocess.run([str(binary()), "serve", *map(str, args)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **(env or {})}, **options)


# --- the log of requests that were cut ---

def done_lines(daemon):
    return [line for line in daemon.log_text().splitlines() if "request done" in line]


def figure(line, name):
    return float(re.search(rf"\b{name}=([\d.]+)", line).group(1))


@pytest.mark.parametrize("how", ["http stream", "http whole", "zmq stream", "zmq cancel", "drain"])
def test_a_request_that_was_cut_has_its_figures(start, how):
    daemon = start(step_us=2000, drain_ms=0 if how == "drain" else 5000, zmq="tcp://127.0.0.1:*")
    body = {"prompt": "one two three four five six seven", "max_tokens": 8000, "ignore_eos": True, "stream": how != "http whole"}
    client = raw = None
    if how.startswith("zmq"):
        client = connect(daemon)
        wanted = client.send(generate=pb.Generate(prompts=[body["prompt"].encode()], max_tokens=8000, ignore_eos=True,
                                                  stream=how == "zmq stream"))
    else:
        raw = Raw(daemon.address)
        raw.send(post("/v1/completions", body))
    until(lambda: daemon.metrics()["inferd_generation_tokens_total"] >= 30, "30 tokens")
    if how == "zmq cancel":
        client.send(cancel=pb.Cancel(id=wanted))
    elif how == "drain":
        assert daemon.terminate() == 0
    elif client:
        client.close()
    else:
        raw.close()
    if how != "drain":
        daemon.wait_idle()
    until(lambda: done_lines(daemon), "its line in the log")
    (line,) = done_lines(daemon)
    assert "outcome=aborted" in line or "outcome=error" in line, line
    assert figure(line, "prefill_chunks") == 1 and figure(line, "decode_steps") >= 20, line
    assert figure(line, "mean_batch") >= 1 and figure(line, "prompt_tokens") >= 7, line
    assert not re.search(r"queued_for=(\s|$)", line), line


def test_each_request_of_a_burst_has_its_line(start):
    """Lines are written after the answers of a turn: more of them than a turn keeps, on both front ends; refused ones too."""
    daemon = start(step_us=0, context=256, zmq="tcp://127.0.0.1:*")
    with contextlib.closing(connect(daemon)) as client, daemon.raw() as raw:
        for i in range(300):
            client.send(generate=pb.Generate(prompts=[b"a"], max_tokens=1 if i % 10 else 100000), x_request_id=f"z{i}")
        raw.send(b"".join(post("/v1/completions", {"prompt": "a", "max_tokens": 1 if i % 10 else -1}, f"X-Request-Id: h{i}") for i in range(60)))
        assert [raw.answer().status for _ in range(60)] == [200 if i % 10 else 400 for i in range(60)]
        ended = 0
        while ended < 300:
            ended += client.receive().WhichOneof("body") in ("done", "error")
    assert daemon.terminate() == 0
    lines = [re.search(r"request (?:done|refused).* request_id=\"?(\w+)", line) for line in daemon.log_text().splitlines() if " request " in line]
    assert sorted(m.group(1) for m in lines) == sorted([f"z{i}" for i in range(300)] + [f"h{i}" for i in range(60)])


# --- a JSON log is JSON ---

def json_lines(text):
    lines = [json.loads(line) for line in text.splitlines() if line]
    assert lines and all("event" in line and "level" in line for line in lines), text
    return lines


def busy_port():
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(1)
    return sock


@pytest.mark.parametrize("what", ["no model", "no gguf", "port", "option", "key file", "context", "zmq", "collector", "number", "name", "nothing", "two"])
def test_a_failed_start_is_a_line_of_the_json_log(tmp_path, what):
    taken = busy_port()
    (tmp_path / "text").write_text("no model " * 100)
    args = {"no model": [tmp_path / "nothing"], "no gguf": [tmp_path / "text"],
            "port": [model_path(), "--port", taken.getsockname()[1]], "option": [model_path(), "--tls-cert", "x"],
            "key file": [model_path(), "--api-key-file", tmp_path / "nothing"],
            "context": [model_path(), "--max-model-len", "1000000"], "zmq": [model_path(), "--zmq-listen", "udp://x:1"],
            "collector": [model_path(), "--otlp-headers", "foo"], "number": [model_path(), "--max-num-seqs", "x"],
            "name": [model_path(), "--max-num-sequences", "1"], "nothing": [], "two": [model_path(), "x"]}[what]
    status = 2 if what in ("option", "zmq", "collector", "number", "name", "nothing", "two") else 1
    done = serve("--log-format", "json", "--port", "0", *args)
    assert done.returncode == status
    failed = [line for line in json_lines(done.stderr) if line["event"] == "start failed"]
    assert len(failed) == 1 and failed[0]["level"] == "error" and failed[0]["reason"]
    plain = serve("--port", "0", *args)
    assert plain.returncode == status and "inferd: " + failed[0]["reason"] in plain.stderr  # people read a sentence


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_model_cut_while_it_is_served_is_told_in_the_logs_own_form(start, tmp_path, form):
    cut, admin, zmq_path, uds = (tmp_path / name for name in ("cut.gguf", "admin", "zmq", "uds"))
    shutil.copy(model_path(), cut)
    log = tmp_path / "log"
    with open(log, "wb") as out:
        process = subprocess.Popen([str(binary()), "serve", str(cut), "--device", "cpu", "--uds", uds, "--admin-socket", admin,
                                    "--zmq-listen", f"ipc://{zmq_path}", "--log-format", form, "--max-model-len", "256"],
                                   stdout=out, stderr=out)
    until(lambda: re.search(r'info ready|"event":"ready"', log.read_text()), "ready")
    assert uds.exists() and admin.exists() and zmq_path.exists()
    os.truncate(cut, 1 << 20)
    with Raw(str(uds)) as raw:
        raw.send(post("/v1/completions", {"prompt": "Once upon a time " * 20, "max_tokens": 4}))
        assert process.wait(60) == 3
    last = log.read_text().splitlines()[-1]
    if form == "json":
        assert json_lines(log.read_text())[-1]["event"] == "engine lost"
    assert "cut short" in last
    assert not uds.exists() and not admin.exists() and not zmq_path.exists()


def test_a_reload_tells_its_options_as_a_list_and_its_certificate(start, tmp_path):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", tmp_path / "key", "-out", tmp_path / "cert",
                    "-days", "2", "-subj", "/CN=localhost"], check=True, capture_output=True)
    config = tmp_path / "c.json"
    config.write_text('{"max_n": 3}')
    daemon = start(wait=False, extra=["--log-format", "json", "--config", config, "--tls-cert", tmp_path / "cert", "--tls-key", tmp_path / "key"])
    until(lambda: '"event":"ready"' in daemon.log_text(), "ready")
    config.write_text('{"max_n": 4, "log_level": "debug"}')
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: re.search(r'"event":"reloaded".*\n', daemon.log_text()), "reloaded")
    lines = json_lines(daemon.log_text())
    (reloaded,) = [line for line in lines if line["event"] == "reloaded"]
    assert reloaded["names"] == ["max_n", "log_level"] and reloaded["options_changed"] == 2
    assert [line["tls_cert"] for line in lines if line["event"] == "certificate read"] == [str(tmp_path / "cert")]


# --- options and variables that mean nothing ---

@pytest.mark.parametrize("options, words", [
    (["--zmq-server-key-file", "/dev/null"], "--zmq-listen"), (["--zmq-client-keys-file", "/dev/null"], "--zmq-listen"),
    (["--zmq-listen", "tcp://127.0.0.1:*", "--zmq-client-keys-file", "/dev/null"], "--zmq-server-key-file"),
    (["--zmq-listen", "udp://x:1"], "--zmq-listen"), (["--zmq-listen", "tcp://127.0.0.1"], "tcp://HOST:PORT"),
    (["--zmq-listen", "tcp://127.0.0.1:99999"], "1 to 65535"), (["--zmq-listen", "ipc://"], "ipc://PATH"),
    (["--otlp-headers", "foo"], "--otlp-headers"), (["--otlp-headers", "a=b,c"], "--otlp-headers"),
    (["--otlp-headers", "=b"], "--otlp-headers"), (["--otlp-headers", "a b=c"], "--otlp-headers"),
    (["--otlp-resource-attributes", "x"], "--otlp-resource-attributes"), (["--io-cpu-set", "a"], "--io-cpu-set"),
    (["--io-cpu-set", "1000"], "--io-cpu-set")])
def test_options_without_a_meaning_are_refused(options, words):
    done = serve(model_path(), "--port", "0", "--device", "null", *options)
    assert done.returncode == (1 if "1000" in options else 2) and words in done.stderr, done.stderr


def test_a_number_of_threads_says_what_it_may_be():
    for flag in ("--threads", "--threads-batch"):
        done = serve(model_path(), flag, "257")
        assert done.returncode == 2 and f"{flag} is 257; it must be 0 to 256" in done.stderr


def test_the_threads_of_a_round_trip_stay_on_their_processors(start):
    """Those that are named and no others; also the thread that libzmq starts by itself."""
    mine = sorted(os.sched_getaffinity(0))
    daemon = start(zmq="tcp://127.0.0.1:*", extra=["--io-cpu-set", mine[-1]])
    bound, free = {"inferd-io", "inferd-zmq", "ZMQbg/IO/0", "inferd-engine"}, {"inferd", "inferd-text", "inferd-device"}

    def placed():
        """Processors of each name, once each thread has said its name and has found its place."""
        places = {}
        for task in pathlib.Path(f"/proc/{daemon.process.pid}/task").iterdir():
            places.setdefault((task / "comm").read_text().strip(), set()).update(os.sched_getaffinity(int(task.name)))
        right = {n: w == ({mine[-1]} if n in bound else set(mine)) for n, w in places.items() if n in bound or not n.startswith("ZMQbg")}
        return bound | free <= set(right) and all(right.values())
    until(placed, "each where it belongs")


def test_unknown_variables_are_told_and_slips_refused(start):
    slip = serve(model_path(), "--port", "0", env={"INFERD_PROT": "1"})
    assert slip.returncode == 2 and "port" in slip.stderr
    daemon = start(env={"INFERD_ZMQ_LISTEN_ON_WHAT": "1", "INFERD_MAX_N": "3"})
    told = [line for line in daemon.log_text().splitlines() if "environment variable not used" in line]
    assert any("INFERD_ZMQ_LISTEN_ON_WHAT" in line for line in told) and not any("INFERD_MAX_N" in line for line in told)


def test_every_fault_of_the_operators_socket_has_a_code(start, tmp_path):
    admin = tmp_path / "admin"
    start(extra=["--admin-socket", admin])
    for method, url, body, status, code in (
            ("GET", "/nothing", None, 404, "not_found"), ("PUT", "/admin/reload", None, 405, "method_not_allowed"),
            ("POST", "/admin/log-level", {"level": "loud"}, 400, "invalid_value"),
            ("DELETE", "/admin/requests/req-0", None, 404, "not_found"),
            ("POST", "/admin/log-level", {"level": "x" * 100000}, 413, "request_too_large")):
        with Raw(str(admin)) as raw:
            raw.send(post(url, body) if body else get(url, method=method))
            got = raw.answer()
        assert got.status == status and got.json()["error"]["code"] == code, (url, got.body)


# --- what counts as rejected ---

def test_only_what_was_never_admitted_counts_as_rejected(start):
    """A request whose time runs out is rejected at the door or expires later: the counter knows the two apart, streams and whole answers."""
    daemon = start(step_us=10_000, seqs=8, extra=["--max-queue-seqs", "4"])  # two of the many below run, one waits

    def rejected():
        return {k: v for k, v in daemon.metrics().items() if k.startswith("inferd_requests_rejected_total") and v}

    for stream in (False, True):
        with daemon.raw() as c:
            c.send(post("/v1/completions", {"prompt": "a", "max_tokens": 1000, "ignore_eos": True, "stream": stream}, "X-Request-Timeout: 2"))
            if stream:
                assert c.head()[1] == 200 and b"ran out" in b"".join(c.chunks())
            else:
                answer = c.answer()
                assert answer.status == 503 and "ran out" in answer.json()["error"]["message"]
    assert rejected() == {}
    assert daemon.complete(n=5, max_tokens=1).status == 400 and rejected() == {}
    daemon.process.send_signal(signal.SIGSTOP)
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(daemon.raw()) for _ in range(40)]
        for c in many:
            c.send(post("/v1/completions", {"prompt": "a " * 100, "max_tokens": 500, "n": 4, "ignore_eos": True}))
        daemon.process.send_signal(signal.SIGCONT)
        counts = until(rejected, "some rejected")
    assert list(counts) == ['inferd_requests_rejected_total{reason="queue_full"}'] and 0 < sum(counts.values()) < 40


# --- signals at any moment ---

def blocks(process, number):
    """The kernel's own word that the signal, were it sent now, would be kept for the program."""
    mask = re.search(r"^SigBlk:\t(\w+)$", pathlib.Path(f"/proc/{process.pid}/status").read_text(), re.M)
    return mask and int(mask.group(1), 16) >> (number - 1) & 1


def test_signals_in_the_first_moments_do_not_kill():
    """From the first line of the program on. What comes before it is the kernel's affair: the default action, and a SIGINT that
    is ignored, as a shell without job control leaves it to its background jobs, is dropped. On a busy machine, and under TSan
    on any, that is a good while: so the signal is sent when the kernel says that it is blocked, not after some time. Thousands
    of variables to be compared with every option hold the program in one of the first things that it does."""
    slow = any(name in str(binary()) for name in ("asan", "tsan"))  # ten times, and more
    many = {f"INFERD_{'Q' * 50}_{i}": "1" for i in range(500 if slow else 6000)}
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        process = subprocess.Popen(["env", "--default-signal=INT,HUP", str(binary()), "serve", str(model_path()), "--device", "null", "--port", "0",
                                    "--log-level", "error"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **many})
        until(lambda: blocks(process, number), "the program's first line")
        process.send_signal(number)
        if number == signal.SIGHUP:
            time.sleep(0.5)
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
        assert process.wait(180) == 0, process.stdout.read()


STOPS = ["SIGTERM", "SIGINT", "SIGQUIT", "SIGXCPU"]


def served(tmp_path, *options):
    """A daemon with socket files of all kinds, once it is ready; and those files."""
    paths = [tmp_path / name for name in ("uds", "admin", "zmq")]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen([str(binary()), "serve", str(model_path()), "--device", "null:1000", "--uds", paths[0], "--admin-socket",
                                    paths[1], "--zmq-listen", f"ipc://{paths[2]}", *options], stdout=log, stderr=log)
    until(lambda: " ready " in (tmp_path / "log").read_text(), "ready")
    assert all(p.is_socket() for p in paths)
    return process, paths


def admitted(path):
    """Whether a request is under way, or has been."""
    with Raw(str(path)) as raw:
        raw.send(get("/metrics"))
        return re.search(r"^inferd_requests_(running|finished_total) 1$", raw.answer().body.decode(), re.M)


@pytest.mark.parametrize("name", STOPS)
def test_every_signal_that_asks_for_an_end_drains(tmp_path, name):
    process, paths = served(tmp_path)
    with Raw(str(paths[0])) as raw:
        raw.send(post("/v1/completions", {"prompt": "a", "max_tokens": 200, "ignore_eos": True}))
        until(lambda: admitted(paths[0]), "the request is under way")  # one that comes behind the signal is refused
        process.send_signal(getattr(signal, name))
        assert raw.answer().status == 200
    assert process.wait(60) == 0 and not any(p.exists() for p in paths)


def test_no_other_signal_ends_the_daemon(tmp_path):
    """All that the system has, but those that stop or continue a process, that cannot be caught, or that report a fault of our own."""
    faults = {"SIGILL", "SIGTRAP", "SIGABRT", "SIGIOT", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGSYS"}
    stopping = {"SIGKILL", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGCONT"}
    numbers = {int(n) for n in signal.valid_signals()} - {int(getattr(signal, name)) for name in faults | stopping | set(STOPS)}
    assert {signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGRTMIN, signal.SIGRTMAX} <= numbers
    process, paths = served(tmp_path)
    for number in sorted(numbers):
        os.kill(process.pid, number)
        with Raw(str(paths[0])) as raw:
            raw.send(post("/v1/completions", {"prompt": "a", "max_tokens": 1}))
            assert raw.answer().status == 200, number
        assert process.poll() is None, number
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0 and not any(p.exists() for p in paths)


# --- socket files ---

@pytest.mark.parametrize("end", ["drain", "lost", "stuck"])
def test_no_socket_file_is_left_behind(tmp_path, end):
    paths = [tmp_path / name for name in ("uds", "admin", "zmq")]
    fault = {"drain": [], "lost": ["--inject-fault", "lost@20"], "stuck": ["--inject-fault", "hang@20", "--step-timeout-s", "1"]}[end]
    log = open(tmp_path / "log", "wb")
    process = subprocess.Popen([str(binary()), "serve", str(model_path()), "--device", "null:1000", "--uds", paths[0], "--admin-socket",
                                paths[1], "--zmq-listen", "ipc://zmq", *fault], stdout=log, stderr=log, cwd=tmp_path)
    until(lambda: " ready " in (tmp_path / "log").read_text(), "ready")
    assert all(p.is_socket() for p in paths) and f"zmq=ipc://{paths[2]} " in (tmp_path / "log").read_text()
    with Raw(str(paths[0])) as raw:
        raw.send(post("/v1/completions", {"prompt": "a", "max_tokens": 100, "ignore_eos": True}))
        if end == "drain":
            assert raw.answer().status == 200
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == (0 if end == "drain" else 3)
    assert not any(p.exists() for p in paths)


# --- ZeroMQ's keys ---

def test_the_servers_key_is_not_read_anew_and_the_report_says_so(start, tmp_path):
    """Another key, none, a file that has gone or cannot be read: each is named, and the rest of the reload is in force."""
    (public, secret), (_, other), (mine, my_secret) = (keygen() for _ in range(3))
    key, config, admin, clients = (tmp_path / name for name in ("server", "config", "admin", "clients"))
    key.write_text(secret)
    clients.write_text(mine)
    config.write_text('{"max_n": 3}')
    daemon = start(step_us=0, zmq="tcp://127.0.0.1:*", zmq_key=str(key), zmq_clients=str(clients), extra=["--config", config, "--admin-socket", admin])

    def reload(n):
        config.write_text(json.dumps({"max_n": n}))
        with Raw(str(admin)) as raw:
            raw.send(post("/admin/reload", {}))
            answer = raw.answer()
        assert answer.status == 200, answer.body
        assert daemon.complete(n=n, max_tokens=1).status == 200 and daemon.complete(n=n + 1, max_tokens=1).status == 400
        c = connect(daemon, server_key=public, client_secret=my_secret)
        assert c.ask(health=pb.HealthQuery()).health.state == pb.Health.READY
        return answer.json()

    def other_key():
        key.write_text(other)

    def no_key():
        key.write_text("no key")

    def folder():
        key.unlink()
        key.mkdir()

    assert reload(4) == {"status": "reloaded", "changed": ["max_n"], "not_changed": []}
    for n, spoil in enumerate((other_key, no_key, key.unlink, no_key, folder), 5):
        spoil()
        before = daemon.log_text().count("option=zmq_server_key_file")
        assert reload(n)["not_changed"] == ["zmq_server_key_file"], spoil
        assert daemon.log_text().count("option=zmq_server_key_file") == before + 1
    key.rmdir()
    key.write_text(secret)
    assert reload(2)["not_changed"] == []
    assert secret not in daemon.log_text() and other not in daemon.log_text()


def keygen():
    lines = dict(line.split(" ", 1) for line in subprocess.run([str(binary()), "keygen"], capture_output=True, text=True,
                                                               check=True).stdout.splitlines())
    assert zmq.curve_public(lines["secret"].encode()).decode() == lines["public"]
    return lines["public"], lines["secret"]


def test_client_keys_change_while_serving(start, tmp_path):
    """In force with the reload: for those that come, and for those that are there. The server's own key takes a restart."""
    (public, secret), (_, next_secret), (mine, my_secret), (other, other_secret), (late, late_secret) = (keygen() for _ in range(5))
    key, clients = tmp_path / "server", tmp_path / "clients"
    key.write_text(secret)
    clients.write_text(f"{other}\n{mine}\n")
    daemon = start(step_us=2000, context=2048, zmq="tcp://127.0.0.1:*", zmq_key=str(key), zmq_clients=str(clients))

    def healthy(c):
        return c.ask(health=pb.HealthQuery()).health.state == pb.Health.READY

    def come(secret, **options):
        return connect(daemon, server_key=public, client_secret=secret, **options)

    def reload(word):
        before = daemon.log_text().count(word)
        daemon.process.send_signal(signal.SIGHUP)
        until(lambda: daemon.log_text().count(word) > before, word)
        assert daemon.log_text().count(word) == before + 1

    kept, gone = come(my_secret), come(other_secret)
    assert healthy(kept) and healthy(gone)
    with pytest.raises(zmq.Again):
        come(late_secret, timeout_s=0.7).ask(health=pb.HealthQuery())
    until(lambda: daemon.metrics()["inferd_zmq_keys_refused_total"] == 1, "a key refused")
    for wrong in ("", "no key", f"{mine}\nshort"):
        clients.write_text(wrong)
        reload("reload refused")  # and nothing has changed
        assert healthy(come(other_secret))
    clients.write_text(f"# without other\n{late}\n{mine}")
    running = gone.send(generate=pb.Generate(prompts=[b"a"], max_tokens=1500, ignore_eos=True))
    assert healthy(gone)
    reload("zmq client keys read count=2")
    assert healthy(kept) and healthy(come(late_secret))
    refused = gone.send(health=pb.HealthQuery())
    last = {}
    while last.get(running) != "done" or refused not in last:
        r = gone.receive()
        last[r.id] = r.WhichOneof("body")
        if r.id == refused:
            assert r.error.code == "invalid_client_key" and r.error.status == 401
    with pytest.raises(zmq.Again):
        come(other_secret, timeout_s=0.7).ask(health=pb.HealthQuery())
    key.write_text(next_secret)
    reload("option=zmq_server_key_file")
    assert "option not reloaded" in daemon.log_text() and healthy(come(my_secret))


@pytest.mark.parametrize("text, args", [('{"log_format": "json"}', ["--prot", "1"]), ('{"log-format": "json", "prot": 1}', []),
                                        ('{"log_format": "json", "port": 99999999}', []), ('{"log_format": "json",\n "port" 1}', [])])
def test_a_file_that_asks_for_a_json_log_gets_it_for_its_own_faults(tmp_path, text, args):
    """Whether the command line is wrong or the file itself, further on."""
    (tmp_path / "c.json").write_text(text)
    done = serve("--config", tmp_path / "c.json", *args)
    (line,) = json_lines(done.stderr)
    assert done.returncode == 2 and line["event"] == "start failed" and line["reason"], done
    given = serve("--config", tmp_path / "c.json", "--log-format", "text", *args)
    assert given.returncode == 2 and given.stderr == f"inferd: {line['reason']}\n"  # a flag ranks above the file
