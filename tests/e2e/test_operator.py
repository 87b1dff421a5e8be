"""The operator's socket, reload, TLS, limits of connections and requests: docs/api.md 6, 18.1, 19.2, 19.4.

Method: a daemon with options of its own in each test; what must not be possible is tried as well."""
import http.client
import json
import os
import re
import signal
import socket
import ssl
import stat
import subprocess
import time

import pytest
from conftest import binary
from pace import until
from rawhttp import Raw, get, post

pytestmark = [pytest.mark.sanitizer, pytest.mark.skipif(binary().name == "mini_daemon", reason="needs serve")]

LONG_RUN = {"prompt": "a", "max_tokens": 8000, "ignore_eos": True}


def ask(path, method, url, body=None):
    with Raw(str(path)) as c:
        c.send(get(url, method=method) if body is None else post(url, body, method=method))
        return c.answer()


@pytest.fixture
def admin(tmp):
    return tmp / f"admin-{time.monotonic_ns()}.sock"


# --- the operator's socket ---

def test_it_is_for_its_owner_only_and_not_on_the_network(start, admin):
    daemon = start(step_us=0, extra=["--admin-socket", admin])
    assert stat.S_IMODE(os.stat(admin).st_mode) == 0o600
    for path in ("/admin/requests", "/admin/drain", "/admin/reload"):
        assert daemon.get(path).status == 404 and daemon.post(path, {}).status == 404
    for path in ("/health", "/ready", "/version", "/metrics"):
        assert ask(admin, "GET", path).status == 200
    assert ask(admin, "GET", "/v1/models").status == 404 and ask(admin, "POST", "/admin/requests", {}).status == 405
    assert daemon.terminate() == 0 and not admin.exists()


def test_a_wrong_method_is_told_the_right_one_and_head_is_get_without_a_body(start, admin):
    daemon = start(step_us=0, extra=["--admin-socket", admin])
    rights = {"/admin/requests": "GET, HEAD", "/admin/steps": "GET, HEAD", "/admin/reload": "POST", "/admin/requests/x": "DELETE",
              "/health": "GET, HEAD", "/metrics": "GET, HEAD"}
    for path, right in rights.items():
        answer = ask(admin, "PUT", path, {})
        assert answer.status == 405 and answer.headers["allow"] == right, path
    for path in ("/admin/requests", "/admin/steps", "/ready"):
        with Raw(str(admin)) as c:
            c.send(get(path, method="HEAD"))
            assert c.head()[1] == 200
            c.send(get("/health"))  # read as the next answer: no body came before it
            assert c.answer().json() == {"status": "ok"}
    with Raw(str(admin)) as c:
        c.send(get("/admin/drain", method="HEAD"))
        assert c.answer("HEAD").status == 405
    assert daemon.get("/ready").status == 200


def test_requests_are_listed_and_ended(start, admin):
    daemon = start(step_us=5000, extra=["--admin-socket", admin])
    assert ask(admin, "GET", "/admin/requests").json() == []
    with daemon.raw() as stream, daemon.raw() as whole:
        stream.send(post("/v1/completions", {**LONG_RUN, "prompt": "secret words", "stream": True}, "X-Request-Id: mine"))
        assert stream.head()[1] == 200
        whole.send(post("/v1/completions", LONG_RUN))

        def both():
            listed = {r["request_id"]: r for r in ask(admin, "GET", "/admin/requests").json()}
            old = all(r["age_ms"] >= 100 and r["prompt_tokens"] >= 1 for r in listed.values()) and listed["mine"]["completion_tokens"] > 1
            return old and len(listed) == 2 and {r["state"] for r in listed.values()} == {"stream", "computing"} and listed
        listed = until(both, "both under way for a while")
        assert len(listed) == 2 and "secret" not in json.dumps(listed)
        assert listed["mine"]["state"] == "stream" and listed["mine"]["prompt_tokens"] >= 1 and listed["mine"]["completion_tokens"] > 1
        other = next(r for name, r in listed.items() if name != "mine")
        assert other["state"] == "computing"
        assert ask(admin, "DELETE", "/admin/requests/mine").status == 200
        body = b"".join(stream.chunks())
        assert b'"code":"cancelled"' in body and body.endswith(b"data: [DONE]\n\n")
        assert ask(admin, "DELETE", f"/admin/requests/{other['id']}").status == 200
        assert whole.answer().json()["error"]["code"] == "cancelled"
        assert ask(admin, "DELETE", "/admin/requests/mine").status == 404
    daemon.wait_idle()
    assert daemon.complete(max_tokens=1).status == 200


def test_the_last_steps_are_told_one_a_line(start, admin):
    daemon = start(step_us=1000, extra=["--admin-socket", admin])
    assert ask(admin, "GET", "/admin/steps").body == b"" and ask(admin, "POST", "/admin/steps", {}).status == 405
    assert daemon.complete(prompt="one two three", max_tokens=9, ignore_eos=True).status == 200
    daemon.wait_idle()
    answer = ask(admin, "GET", "/admin/steps")
    steps = [json.loads(line) for line in answer.body.splitlines()]
    assert answer.status == 200 and [s["step"] for s in steps] == list(range(steps[0]["step"], steps[0]["step"] + len(steps)))
    assert sum(s["prompts"] for s in steps) == 1 and sum(s["outputs"] for s in steps) >= 9
    assert steps[0]["rows"] == steps[0]["kv_tokens"] > 1 and steps[1]["rows"] == 1 and steps[1]["kv_tokens"] == steps[0]["rows"] + 1
    for s in steps:
        assert s["planned_ns"] <= s["started_ns"] < s["ended_ns"] and s["ended_ns"] - s["started_ns"] >= 500_000 and s["sequences"] == 1
    assert all(a["ended_ns"] <= b["started_ns"] for a, b in zip(steps, steps[1:]))


def test_a_step_that_failed_is_not_among_the_last_steps(start, admin):
    """Its time says nothing about the others': the model that is fitted of them would learn from it."""
    daemon = start(step_us=1000, fault="step@5", extra=["--admin-socket", admin])
    assert daemon.complete(prompt="one two three", max_tokens=9, ignore_eos=True).status == 500
    assert daemon.complete(prompt="one two three", max_tokens=9, ignore_eos=True).status == 200
    daemon.wait_idle()
    numbers = [json.loads(line)["step"] for line in ask(admin, "GET", "/admin/steps").body.splitlines()]
    assert numbers == sorted(numbers) and set(range(numbers[0], numbers[-1])) - set(numbers) == {5}


def test_a_drain_can_be_taken_back_and_can_stop(start, admin):
    daemon = start(step_us=1000, extra=["--admin-socket", admin])
    assert ask(admin, "POST", "/admin/drain", {}).json() == {"status": "draining"}
    assert daemon.get("/ready").json()["status"] == "draining" and daemon.complete().json()["error"]["code"] == "server_draining"
    assert ask(admin, "POST", "/admin/resume", {}).status == 200
    assert daemon.get("/ready").status == 200 and daemon.complete(max_tokens=1).status == 200
    assert ask(admin, "POST", "/admin/drain", {"exit": True}).json() == {"status": "stopping"}
    assert daemon.process.wait(60) == 0


def test_the_log_level_changes_at_once(start, admin):
    daemon = start(step_us=0, extra=["--admin-socket", admin])
    until(lambda: " ready " in daemon.log_text(), "the last line of the start")
    assert ask(admin, "POST", "/admin/log-level", {"level": "error"}).status == 200
    daemon.complete(max_tokens=1)
    daemon.wait_idle()
    time.sleep(0.3)  # a line that comes behind its answer
    size = len(daemon.log_text())
    daemon.complete(max_tokens=1)
    time.sleep(0.3)
    assert len(daemon.log_text()) == size
    assert ask(admin, "POST", "/admin/log-level", {"level": "info"}).status == 200
    daemon.complete(max_tokens=1)
    until(lambda: len(daemon.log_text()) > size, "a line again")
    for wrong in ({"level": "loud"}, {}, b"x", b"\0" * 70000):
        assert ask(admin, "POST", "/admin/log-level", wrong).status in (400, 413)


def test_a_stop_cannot_be_taken_back(start, admin):
    daemon = start(step_us=20000, extra=["--admin-socket", admin])
    with daemon.raw() as stream:
        stream.send(post("/v1/completions", {**LONG_RUN, "max_tokens": 50, "stream": True}))
        assert stream.head()[1] == 200
        held = daemon.hold()
        daemon.begin_drain()
        assert ask(admin, "POST", "/admin/resume", {}).status == 409
        assert ask(admin, "GET", "/ready").json()["status"] == "draining"
        held.close()
        assert b'"finish_reason":"length"' in b"".join(stream.chunks())
    assert daemon.process.wait(60) == 0


# --- reload ---

def test_reload_takes_keys_and_limits_and_names_what_it_cannot(start, tmp, admin):
    config, keys = tmp / "reload.json", tmp / "reload.keys"
    keys.write_text("sk-one\n")
    config.write_text(json.dumps({"api_key_file": str(keys), "max_n": 4, "max_queue_seqs": 64}))
    daemon = start(step_us=5000, extra=["--admin-socket", admin, "--config", config])

    def status(key, **fields):
        return daemon.post("/v1/completions", {"prompt": "a", "max_tokens": 1, **fields}, f"Authorization: Bearer {key}").status

    assert (status("sk-one", n=4), status("sk-one", n=5), status("sk-two")) == (200, 400, 401)
    with daemon.raw() as stream:
        stream.send(post("/v1/completions", {**LONG_RUN, "max_tokens": 100, "stream": True}, "Authorization: Bearer sk-one"))
        assert stream.head()[1] == 200
        keys.write_text("# rotated\n  sk-two  \r\n\nsk-three\n")
        config.write_text(json.dumps({"api_key_file": str(keys), "max_n": 2, "max_queue_seqs": 32, "max_stop_strings": 1, "max_logit_bias": 1,
                                      "max_prompt_tokens": 5, "max_body_bytes": 2048}))
        answer = ask(admin, "POST", "/admin/reload", {}).json()
        assert set(answer["changed"]) == {"max_n", "max_stop_strings", "max_logit_bias", "max_prompt_tokens", "max_body_bytes"}
        assert answer["not_changed"] == ["max_queue_seqs"] and "option=max_queue_seqs" in daemon.log_text()
        assert b'"finish_reason":"length"' in b"".join(stream.chunks()), "the stream was cut by the reload"
    assert (status("sk-one"), status("sk-two"), status("sk-three", n=2), status("sk-two", n=3)) == (401, 200, 200, 400)
    assert status("sk-two", stop=["a", "b"]) == 400 and status("sk-two", logit_bias={"1": 1, "2": 1}) == 400
    assert status("sk-two", prompt="one two three four five six seven") == 400 and status("sk-two", prompt="x" * 3000) == 413
    assert "sk-" not in daemon.log_text()


def test_a_wrong_reload_changes_nothing(start, tmp, admin):
    config, keys = tmp / "wrong.json", tmp / "wrong.keys"
    keys.write_text("sk-one\n")
    good = json.dumps({"api_key_file": str(keys), "max_n": 4})
    config.write_text(good)
    daemon = start(step_us=0, keys=[], extra=["--admin-socket", admin, "--config", config], wait=False)
    daemon.wait_ready()
    wrong = (("{", "sk-two\n"), ('{"max_n": 0}', "sk-two\n"), (good, ""), ("{}", "sk-two\n"), ('{"max_m": 1}', "sk-two\n"))
    for count, (text, key_text) in enumerate(wrong, 1):
        config.write_text(text)
        keys.write_text(key_text)
        answer = ask(admin, "POST", "/admin/reload", {})
        assert answer.status == 400 and answer.json()["error"]["code"] == "reload_refused", (text, answer.body)
        daemon.process.send_signal(signal.SIGHUP)
        # the files change again after it has been heard: half of each pair may well be right
        until(lambda: daemon.log_text().count("reload refused") == 2 * count, "the second refusal")
    assert daemon.log_text().count("reload refused") == 2 * len(wrong)
    keys.write_text("sk-one\n")
    assert daemon.post("/v1/completions", {"prompt": "a", "n": 4, "max_tokens": 1}, "Authorization: Bearer sk-one").status == 200
    assert daemon.post("/v1/completions", {"prompt": "a"}, "Authorization: Bearer sk-two").status == 401


def test_a_storm_of_reloads_drops_no_request(start, tmp):
    config = tmp / "storm.json"
    config.write_text('{"max_n": 4}')
    daemon = start(step_us=100, extra=["--config", config], keys=["k"])
    with daemon.raw() as keep:
        for k in range(200):
            if k % 2 == 0:
                config.write_text(json.dumps({"max_n": 2 + k % 3, "log_level": ["info", "warn"][k % 4 // 2]}))
                daemon.process.send_signal(signal.SIGHUP)
            keep.send(post("/v1/completions", {"prompt": "a", "max_tokens": 3, "n": 2}, "Authorization: Bearer k"))
            assert keep.answer().status == 200


# --- TLS ---

@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Two self-signed ones for localhost, and a key that is nobody's."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("one", "two"):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
                        "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", folder / f"{name}.key",
                        "-out", folder / f"{name}.crt"], check=True, capture_output=True)
    return folder


def https(daemon, cert, method="GET", path="/health", body=None):
    context = ssl.create_default_context(cafile=str(cert))
    c = http.client.HTTPSConnection("127.0.0.1", daemon.port, timeout=60, context=context)
    c.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
    answer = c.getresponse()
    data = answer.read()
    version = c.sock.version() if c.sock else None
    c.close()
    return answer.status, data, version


def copy_pair(certificates, name, folder):
    for end in ("crt", "key"):
        (folder / f"tls.{end}").write_bytes((certificates / f"{name}.{end}").read_bytes())


def wait_https(daemon, cert):
    def ready():
        try:
            return https(daemon, cert, path="/ready")[0] == 200
        except OSError:
            return False
    until(ready, "/ready by HTTPS")


def test_https_serves_streams_and_takes_a_new_certificate(start, tmp_path, certificates, admin):
    copy_pair(certificates, "one", tmp_path)
    daemon = start(step_us=1000, wait=False, extra=["--tls-cert", tmp_path / "tls.crt", "--tls-key", tmp_path / "tls.key", "--admin-socket", admin])
    one, two = certificates / "one.crt", certificates / "two.crt"
    wait_https(daemon, one)
    status, data, version = https(daemon, one, "POST", "/v1/completions", {**LONG_RUN, "max_tokens": 300, "stream": True})
    assert status == 200 and data.endswith(b"data: [DONE]\n\n") and data.count(b"data: ") > 2  # a chunk at least, the end's, [DONE]
    assert https(daemon, one, "POST", "/v1/completions", {"prompt": "word " * 300000})[0] in (400, 413)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with old.wrap_socket(socket.create_connection(("127.0.0.1", daemon.port), 10)) as s:
        assert s.version() == "TLSv1.2" and "DHE" in s.cipher()[0]
    with Raw(daemon.address) as plain:  # HTTP on the HTTPS port
        plain.send(get("/health"))
        assert b"200 OK" not in plain.rest()
    context = ssl.create_default_context(cafile=str(one))
    held = http.client.HTTPSConnection("127.0.0.1", daemon.port, timeout=60, context=context)
    held.request("GET", "/health")
    held.getresponse().read()
    copy_pair(certificates, "two", tmp_path)
    assert ask(admin, "POST", "/admin/reload", {}).status == 200
    assert https(daemon, two)[0] == 200
    with pytest.raises(ssl.SSLError):
        https(daemon, one)
    held.request("GET", "/health")  # a connection that was there goes on
    assert held.getresponse().status == 200
    (tmp_path / "tls.key").write_bytes((certificates / "one.key").read_bytes())
    refused = ask(admin, "POST", "/admin/reload", {})
    assert refused.status == 400 and "is not the key" in refused.json()["error"]["message"]
    assert https(daemon, two)[0] == 200


@pytest.mark.parametrize("arguments,words", [
    (["--tls-cert", "one.crt"], "--tls-key is missing"), (["--tls-cert", "one.crt", "--tls-key", "two.key"], "is not the key"),
    (["--tls-cert", "one.key", "--tls-key", "one.key"], "no certificate chain"), (["--tls-cert", "one.crt", "--tls-key", "one.crt"], "no private key"),
    (["--tls-cert", "none.crt", "--tls-key", "one.key"], "none.crt"),
])
def test_wrong_certificates_are_told_before_anything_is_loaded(certificates, arguments, words):
    from conftest import model_path
    got = subprocess.run([str(binary()), "serve", str(model_path()), "--device", "null:0", "--port", "0", *arguments],
                         capture_output=True, text=True, timeout=60, cwd=certificates)
    assert got.returncode == (2 if "go together" in got.stderr else 1) and words in got.stderr and "memory" not in got.stderr, got.stderr


# --- connections ---

def other_address(daemon, gauge):
    """What a client of another address is told of a gauge."""
    with Raw(daemon.address, source=("127.0.0.2", 0)) as c:
        c.send(get("/metrics", "Connection: close"))
        text = c.answer().body.decode()
    return float(re.search(rf"^{gauge} (\S+)$", text, re.M).group(1))


def test_connections_of_one_address_are_limited_and_counted_right(start):
    daemon = start(step_us=0, extra=["--max-connections-per-address", 5])
    for _ in range(3):
        # an end that came right behind an answer is noticed within two seconds or so
        until(lambda: other_address(daemon, "inferd_connections") == 1, "the former ones gone")
        held = [daemon.raw() for _ in range(9)]
        served = 0
        for c in held:
            try:
                c.send(get("/health"))
                served += c.answer().status == 200
            except (EOFError, OSError):
                pass
        assert served == 5
        assert other_address(daemon, "inferd_connections") == 6
        for c in held:
            c.close()


def test_at_the_limit_the_longest_idle_connection_makes_room(start):
    daemon = start(step_us=2000, connections=10)
    idle = [daemon.raw() for _ in range(5)]
    for c in idle:
        c.send(get("/health"))
        assert c.answer().status == 200
    silent = [daemon.raw() for _ in range(4)]
    stream = daemon.raw()
    stream.send(post("/v1/completions", {**LONG_RUN, "stream": True, "max_tokens": 1200}))
    assert stream.head()[1] == 200
    time.sleep(1.2)  # all were accepted before the stream: they have been idle for a second and may be closed
    for _ in range(len(idle + silent) - 1):  # each of them finds room, none at the stream's cost, though the end of none was seen yet
        with daemon.raw() as c:
            c.send(get("/health"))
            assert c.answer().status == 200
    assert b'"finish_reason":"length"' in b"".join(stream.chunks())
    for c in idle + silent + [stream]:
        c.close()


def test_running_out_of_descriptors_is_told_and_survived(start):
    import resource
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    daemon = start(step_us=0)
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (daemon.fd_count() + 20, hard))
    held = []
    for _ in range(60):
        held.append(daemon.raw())
    until(lambda: "no file descriptor is left" in daemon.log_text(), "the log says so")
    for c in held:
        c.close()
    daemon.wait_served()
    assert daemon.metrics()["inferd_connections_refused_total"] >= 30


def test_a_length_that_is_no_number_gets_one_answer(start):
    daemon = start(step_us=0)
    for value, status in ((b"abc", 400), (b"-1", 400), (b"+5", 400), (b"0x10", 400), (b"", 400), (b"1 2", 400), (b"9" * 30, 413)):
        with daemon.raw() as c:
            c.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + value + b"\r\n\r\n{}")
            rest = c.rest()
            assert rest.count(b"HTTP/1.1") == 1 and f" {status} ".encode() in rest.split(b"\r\n")[0], (value, rest)
            assert json.loads(rest.split(b"\r\n\r\n", 1)[1])["error"]["type"] == "invalid_request_error"


def test_an_idle_connection_keeps_what_it_has_begun(start):
    """Its buffer goes back to the system when it has been idle for a second or two; half a request in it does not."""
    daemon = start(step_us=0)
    parts = [(3, "half a request line"), (900, "half a head"), (9000, "three pages of a head"), (16000, "most of a head")]
    held = []
    for size, name in parts:
        c = daemon.raw()
        for _ in range(2):
            c.send(post("/v1/completions", {"prompt": "a", "max_tokens": 2}))
            assert c.answer().status == 200
        whole = post("/v1/completions", {"prompt": "b", "max_tokens": 2}, "X-Filler: " + "f" * 15800, "X-Request-Id: " + name.replace(" ", "-"))
        c.send(whole[:size])
        held.append((c, whole[size:], name))
    empty_lines = daemon.raw()  # before the first request: allowed, and no sign of where the buffer is
    empty_lines.send(b"\r\n" * 2048 + get("/health"))
    assert empty_lines.answer().status == 200
    time.sleep(3.2)
    for c, rest, name in held:
        c.send(rest)
        answer = c.answer()
        assert answer.status == 200 and answer.header("x-request-id") == name.replace(" ", "-"), name
        c.send(get("/health"))
        assert c.answer().status == 200
    empty_lines.send(get("/health"))
    assert empty_lines.answer().status == 200


# --- starting ---

def test_an_ordinary_file_in_the_way_of_a_socket_stays(tmp_path):
    from conftest import model_path
    path = tmp_path / "file"
    path.write_text("mine")
    for option in ("--uds", "--admin-socket"):
        got = subprocess.run([str(binary()), "serve", str(model_path()), "--device", "null:0", "--port", "0", option, str(path)],
                             capture_output=True, text=True, timeout=60)
        assert got.returncode == 1 and "is no socket" in got.stderr and path.read_text() == "mine"


@pytest.mark.parametrize("option,words", [
    ("--prot", "did you mean --port?"), ("--tensor-parallel-size", "one GPU"), ("--n-gpu-layers", "--device cuda"), ("-ngl", "--device cuda"),
    ("--swap-space", "--kv-cache-memory"), ("--enable-chunked-prefill", "always"), ("--ubatch-size", "--max-num-batched-tokens"),
])
def test_options_of_other_servers_get_a_hint(option, words):
    got = subprocess.run([str(binary()), "serve", "m", f"{option}=1"], capture_output=True, text=True, timeout=60)
    assert got.returncode == 2 and words in got.stderr, got.stderr


def test_a_models_name_with_a_nul_is_told_as_another_name(daemon):
    answer = daemon.complete(model="smollm2\0")
    assert answer.status == 404 and "'smollm2?' is not served" in answer.json()["error"]["message"]


def test_a_tool_call_without_content_is_rendered_where_the_template_cannot(daemon):
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = daemon.post("/v1/chat/completions", {"max_tokens": 1, "messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"}]})
    assert answer.status == 200, answer.body
