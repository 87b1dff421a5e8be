"""What an operator sees: log lines, /stats, traces. The metrics under a real Prometheus are in test_prometheus.py.

Method: the daemon on the null device; its log read as a program would; a collector stub that decodes the protobuf with
OpenTelemetry's own generated classes."""
import http.server
import json
import os
import re
import socket
import threading
import time

import pytest

from pace import at_best, until

trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STAGES = ["accept", "parse", "template", "tokenize", "submit", "queue", "prefill", "decode", "deliver"]


# --- the log ---

def events(daemon, name):
    return [line for line in map(json.loads, daemon.log_text().splitlines()) if line["event"] == name]


@pytest.fixture(scope="module")
def logged(start):
    return start(step_us=1000, log_format="json")


def done(daemon, request_id):
    def found():
        return [e for e in events(daemon, "request done") + events(daemon, "request refused") if e["request_id"] == request_id]
    return until(found)[0]


def test_every_line_is_one_json_object(logged):
    logged.chat(max_tokens=4)
    for line in logged.log_text().splitlines():
        event = json.loads(line)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["time"]), line
        assert event["level"] in ("debug", "info", "warn", "error") and event["event"], line


def test_a_request_has_one_line_with_its_tokens_stages_and_names(logged):
    answer = logged.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "zebra7391"}], "max_tokens": 20,
                                                  "ignore_eos": True}, "X-Request-Id: 12345", f"traceparent: {PARENT}")
    assert answer.status == 200 and answer.header("x-request-id") == "12345"
    usage, event = answer.json()["usage"], done(logged, "12345")  # a number's digits stay a string
    assert event["id"] == answer.json()["id"] and event["route"] == "/v1/chat/completions" and event["status"] == 200
    assert (event["prompt_tokens"], event["completion_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"]) == (
        usage["prompt_tokens"], 20)
    assert event["outcome"] == "length" and event["stream"] is False and event["decode_steps"] == 19 and event["prefill_chunks"] >= 1
    assert event["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    assert re.fullmatch(r"127\.0\.0\.1:\d+", event["client"])
    assert abs(sum(event[f"{s}_ms"] for s in STAGES) - event["total_ms"]) <= 0.01 * event["total_ms"] + 0.05
    assert event["decode_ms"] >= 15  # 19 steps of 1 ms
    assert "zebra7391" not in logged.log_text()


def test_the_ledger_is_the_time_that_the_client_waits(logged):
    """One millisecond more is the client's own; the sum is that of `timings` too."""
    def compare():
        began = time.monotonic()
        answer = logged.chat(max_tokens=100, ignore_eos=True, return_timings=True)
        waited_ms = (time.monotonic() - began) * 1e3
        timings = answer.json()["timings"]
        assert list(timings["stages_ms"]) == STAGES
        assert abs(sum(timings["stages_ms"].values()) - timings["total_ms"]) <= 0.01 * timings["total_ms"]
        assert 0 <= waited_ms - timings["total_ms"] < 0.3 * waited_ms
    at_best(compare)


def test_vllms_metrics_where_asked(logged, start):
    answer = logged.chat(max_tokens=10, ignore_eos=True, include_metrics=True).json()
    assert set(answer["metrics"]) == {"time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second"}
    assert answer["metrics"]["mean_itl_ms"] == pytest.approx(answer["metrics"]["generation_time_ms"] / 9, rel=0.01)
    assert logged.chat(n=2, include_metrics=True).json()["metrics"] is None
    assert "metrics" not in logged.chat().json()
    always = start(step_us=0, enable_per_request_metrics="true")
    assert always.chat().json()["metrics"]["tokens_per_second"] > 0
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
    assert "metrics" in always.stream("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})[-2]
    assert all("metrics" not in e for e in always.stream("/v1/chat/completions", body) if e)


def test_refusals_and_leavers_have_their_line(logged):
    logged.post("/v1/completions", {"prompt": "a", "n": 0}, "X-Request-Id: bad-n")
    event = done(logged, "bad-n")
    assert (event["event"], event["status"], event["outcome"], event["code"]) == ("request refused", 400, "refused", "invalid_value")
    from rawhttp import post
    with logged.raw() as c:
        c.send(post("/v1/completions", {"prompt": "a", "max_tokens": 8000, "stream": True, "ignore_eos": True}, "X-Request-Id: leaver"))
        c.head()
        c._until(b"data: ")
    event = done(logged, "leaver")
    assert (event["status"], event["outcome"], event["stream"]) == (499, "aborted", True) and event["prefill_ms"] > 0
    assert re.fullmatch(r"127\.0\.0\.1:\d+", event["client"])


def test_a_reader_that_stands_still_shows_as_stall(start):
    """40 choices at full speed into a socket of 4 KiB that is not read for a second and more: more than the kernel's buffers take."""
    from rawhttp import post
    daemon = start(step_us=0, log_format="json", context=2048)
    with socket.socket() as c:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.connect(("127.0.0.1", daemon.port))
        c.sendall(post("/v1/completions", {"prompt": "a", "max_tokens": 2000, "n": 40, "stream": True, "ignore_eos": True},
                       "X-Request-Id: slow", "Connection: close"))

        def stands():
            """Nothing has moved for a second: a slow thread fills the rings as well, but goes on to fill the socket."""
            before = daemon.metrics()["inferd_generation_tokens_total"]
            time.sleep(1)
            now = daemon.metrics()
            return now["inferd_requests_blocked"] > 0 and now["inferd_generation_tokens_total"] == before
        until(stands, "the buffers full")
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        got = b""
        while chunk := c.recv(1 << 20):
            got += chunk
    assert got.count(b"[DONE]") == 1
    event = done(daemon, "slow")
    assert event["outcome"] == "length" and event["completion_tokens"] == 80000 and event["stall_ms"] > 500
    assert abs(sum(event[f"{s}_ms"] for s in STAGES) - event["total_ms"]) <= 0.01 * event["total_ms"] + 0.05
    quick = daemon.post("/v1/completions", {"prompt": "a", "max_tokens": 20, "stream": True, "ignore_eos": True}, "X-Request-Id: quick")
    assert quick.status == 200 and done(daemon, "quick")["stall_ms"] < 500
    assert daemon.metrics()["inferd_socket_stall_seconds_total"] > 0.5


def test_prompts_are_logged_only_when_asked(start):
    daemon = start(step_us=0, log_format="json", log_prompts="true")
    daemon.post("/v1/chat/completions", {"messages": [{"role": "user", "content": 'say "zebra7391"\n'}], "max_tokens": 2},
                "X-Request-Id: it")
    event = until(lambda: events(daemon, "prompt"))[0]
    assert event["request_id"] == "it" and 'say "zebra7391"\n' in event["text"] and event["text"].startswith("<|im_start|>")


def test_text_lines_carry_the_same_keys(start):
    daemon = start(step_us=0)
    daemon.post("/v1/completions", {"prompt": "a", "max_tokens": 2}, "X-Request-Id: abc")
    line = until(lambda: [x for x in daemon.log_text().splitlines() if "request done" in x])[0]
    assert re.match(r"\d{4}-\S+Z info request done id=cmpl-\S+ request_id=\"abc\" route=/v1/completions status=200 outcome=", line)
    assert all(f" {s}_ms=" in line for s in STAGES)


def test_under_the_journal_lines_carry_a_priority_and_no_time(tmp):
    """systemd names the journal's socket in JOURNAL_STREAM; a socket of ours stands for it."""
    from conftest import binary, model_path
    import subprocess
    if binary().name == "mini_daemon":
        pytest.skip("mini_daemon reads no environment")
    ours, theirs = socket.socketpair()
    info = os.fstat(theirs.fileno())
    process = subprocess.Popen([binary(), "serve", model_path(), "--device", "null:0", "--port", "0"], stderr=theirs,
                               env={**os.environ, "JOURNAL_STREAM": f"{info.st_dev}:{info.st_ino}"})
    theirs.close()
    text = b""
    ours.settimeout(60)
    while b"ready model=" not in text:
        text += ours.recv(65536)
    process.terminate()
    while chunk := ours.recv(65536):
        text += chunk
    assert process.wait(60) == 0
    lines = text.decode().splitlines()
    assert all(re.match(r"<[3-7]>(debug|info|warn|error) ", line) for line in lines), lines
    assert any(line.startswith("<6>info listening url=") for line in lines)


# --- /stats ---

def test_stats_shows_what_runs_and_what_ended(logged):
    from rawhttp import post
    ended = logged.chat(max_tokens=5, ignore_eos=True).json()["id"]
    with logged.raw() as c:
        c.send(post("/v1/completions", {"prompt": "a b c", "max_tokens": 6000, "stream": True, "ignore_eos": True}))
        c.head()
        c._until(b"data: ")

        def looks():
            stats = logged.get("/stats").json()
            alone = len(stats["running"]) == 1 and stats["running"][0]["completion_tokens"] > 0  # the former ones have left
            return stats if alone and stats["requests"]["running"] == 1 and stats["tokens"]["generated_per_second"] > 0 else None
        stats = until(looks)
        mine = stats["running"][0]
        assert mine["stage"] == "decode" and mine["route"] == "/v1/completions" and mine["age_seconds"] > 0 and mine["prompt_tokens"] >= 3
        assert stats["requests"]["running"] == 1 and stats["tokens"]["generated_per_second"] > 0 and 0 < stats["kv"]["usage"] < 1
    stats = until(lambda: (s := logged.get("/stats").json())["running"] == [] and s)
    assert stats["state"] == "ready" and stats["model"]["name"] == "smollm2"
    mine = next(e for e in stats["ended"] if e["id"] == ended)
    assert mine["outcome"] == "length" and mine["completion_tokens"] == 5 and list(mine["stages_ms"]) == STAGES
    assert abs(sum(mine["stages_ms"].values()) - mine["total_ms"]) <= 0.01 * mine["total_ms"]

    def told():  # of the last 5 s
        logged.chat(max_tokens=1)
        return (logged.get("/stats").json()["latency_seconds"]["request"]["p50"] or 0) > 0
    until(told, "how long requests take")


def test_stats_needs_a_key_where_there_are_keys(start):
    daemon = start(step_us=0, keys=["sk-1"])
    with daemon.raw() as c:
        from rawhttp import get
        c.send(get("/stats"))
        assert c.answer().status == 401
    assert daemon.get("/stats").status == 200


# --- traces ---

class Collector:
    """An OTLP/HTTP collector that keeps what it gets; `status` is what it answers."""

    def __init__(self, status=200):
        self.spans, self.resources, self.headers, self.status, self.posts = [], [], [], status, 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.posts += 1
                status = outer.status
                if status == 200:
                    outer.headers.append((self.path, dict(self.headers)))
                    outer.take(body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, body):
        request = trace_service.ExportTraceServiceRequest()
        request.ParseFromString(body)
        for resource in request.resource_spans:
            self.resources.append(attributes(resource.resource))
            for scope in resource.scope_spans:
                assert scope.scope.name == "inferd"
                self.spans.extend(scope.spans)

    def roots(self):
        return [s for s in self.spans if s.kind == 2]

    def of(self, request_id):
        return [s for s in self.roots() if attributes(s).get("inferd.request_id") == request_id]


def plain(value):
    kind = value.WhichOneof("value")
    return [plain(v) for v in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def attributes(holder):
    return {a.key: plain(a.value) for a in holder.attributes}


@pytest.fixture(scope="module")
def collector():
    return Collector()


@pytest.fixture(scope="module")
def traced(start, collector):
    """By OpenTelemetry's own variables."""
    return start(step_us=1000, env={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": "llm-7",
                                    "OTEL_EXPORTER_OTLP_HEADERS": "x-team=a%20b", "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test"})


def test_a_request_becomes_a_span_with_its_stages_as_children(traced, collector):
    answer = traced.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "zebra7391"}], "max_tokens": 10, "temperature": 0.5,
                                                  "ignore_eos": True}, "X-Request-Id: r1", f"traceparent: {PARENT}", "tracestate: a=b,c=d")
    root = until(lambda: collector.of("r1"))[0]
    assert root.name == "chat smollm2" and root.trace_id.hex() == PARENT[3:35] and root.parent_span_id.hex() == PARENT[36:52]
    assert root.trace_state == "a=b,c=d" and root.status.code == 0
    a = attributes(root)
    usage = answer.json()["usage"]
    assert (a["gen_ai.operation.name"], a["gen_ai.provider.name"], a["gen_ai.request.model"]) == ("chat", "inferd", "smollm2")
    assert (a["gen_ai.usage.input_tokens"], a["gen_ai.usage.output_tokens"]) == (usage["prompt_tokens"], 10)
    assert a["gen_ai.response.finish_reasons"] == ["length"] and a["gen_ai.response.id"] == answer.json()["id"]
    assert a["gen_ai.request.temperature"] == 0.5 and a["gen_ai.request.max_tokens"] == 10
    assert (a["http.request.method"], a["url.path"], a["http.response.status_code"]) == ("POST", "/v1/chat/completions", 200)
    assert a["client.address"] == "127.0.0.1" and "error.type" not in a
    assert 0 < a["gen_ai.latency.time_to_first_token"] <= a["gen_ai.latency.e2e"]
    children = sorted((s for s in collector.spans if s.parent_span_id == root.span_id), key=lambda s: s.start_time_unix_nano)
    assert [s.name for s in children] == [s for s in STAGES if s in {c.name for c in children}] and len(children) >= 7
    at = root.start_time_unix_nano
    for child in children:  # one behind the other, from the first to the last nanosecond
        assert child.start_time_unix_nano == at and child.trace_id == root.trace_id and child.kind == 1
        at = child.end_time_unix_nano
    assert at == root.end_time_unix_nano
    assert abs(root.end_time_unix_nano / 1e9 - time.time()) < 60
    decode = attributes(next(c for c in children if c.name == "decode"))
    assert decode["inferd.decode_steps"] == 9
    assert len({s.span_id for s in collector.spans}) == len(collector.spans)
    assert b"zebra7391" not in b"".join(s.SerializeToString() for s in collector.spans)


def test_the_service_is_named_as_the_environment_says(traced, collector):
    traced.complete()
    until(lambda: collector.resources)
    assert collector.resources[0]["service.name"] == "llm-7" and collector.resources[0]["deployment.environment.name"] == "test"
    path, headers = collector.headers[0]
    assert path == "/v1/traces" and headers["Content-Type"] == "application/x-protobuf" and headers["x-team"] == "a b"


def test_a_request_without_a_caller_starts_a_trace_and_a_refusal_is_one_span(traced, collector):
    traced.post("/v1/completions", {"prompt": "a", "n": 0}, "X-Request-Id: r2")
    root = until(lambda: collector.of("r2"))[0]
    assert root.name == "text_completion smollm2" and not root.parent_span_id and len(root.trace_id) == 16
    a = attributes(root)
    assert a["error.type"] == "invalid_value" and a["http.response.status_code"] == 400 and root.status.code == 0  # the client's fault


def test_sampling_follows_the_caller_else_the_ratio_and_faults_always_come(start):
    collector = Collector()
    daemon = start(step_us=20000, otlp_traces_endpoint=collector.url + "/custom", otlp_sample_ratio="0", seqs=64)
    body = {"prompt": "a", "max_tokens": 2}
    daemon.post("/v1/completions", body, "X-Request-Id: no-1")
    daemon.post("/v1/completions", body, "X-Request-Id: no-2", f"traceparent: {PARENT[:-2]}00")
    daemon.post("/v1/completions", body, "X-Request-Id: yes-1", f"traceparent: {PARENT}")
    late = daemon.post("/v1/completions", {"prompt": "a", "max_tokens": 500, "ignore_eos": True}, "X-Request-Id: fault",
                       "X-Request-Timeout: 2")
    assert late.status == 503
    until(lambda: collector.of("yes-1") and collector.of("fault"))
    fault = collector.of("fault")[0]
    assert fault.status.code == 2 and attributes(fault)["error.type"] == "service_unavailable"
    assert not collector.of("no-1") and not collector.of("no-2") and collector.headers[0][0] == "/custom"
    until(lambda: daemon.metrics()["inferd_traces_exported_total"] == 2)  # counted when the collector's answer is there
    assert daemon.metrics()["inferd_traces_unsampled_total"] == 2


def test_a_collector_that_is_away_costs_nothing_but_the_traces(start):
    """2,000 requests while it answers 503: all served as fast as without, and what the queue could not hold is counted."""
    import concurrent.futures
    away = Collector(status=503)
    without, with_it = start(step_us=0), start(step_us=0, otlp_endpoint=away.url)

    def seconds(daemon):
        from rawhttp import post

        def some(count):
            with daemon.raw() as c:
                for _ in range(count):
                    c.send(post("/v1/completions", {"prompt": "a", "max_tokens": 1}))
                    assert c.answer().status == 200
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(some, [500] * 4))
        return time.monotonic() - began
    def compare():
        base, slow = seconds(without), seconds(with_it)
        assert slow < 2 * base + 1, f"{slow:.2f} s with a collector that is away, {base:.2f} s without"
    at_best(compare)
    m = with_it.metrics()
    dropped = sum(v for k, v in m.items() if k.startswith("inferd_traces_dropped_total"))
    assert dropped >= 2000 - 1024 - 3 * 64 and m["inferd_traces_exported_total"] == 0
    away.status = 200  # what is still queued gets there
    until(lambda: with_it.metrics()["inferd_traces_exported_total"] > 0)
    assert until(lambda: len(away.roots()) >= 64)


def test_the_last_traces_are_sent_before_the_end(start):
    collector = Collector()
    daemon = start(step_us=0, otlp_endpoint=collector.url)
    daemon.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, "X-Request-Id: last")
    assert daemon.terminate() == 0
    assert collector.of("last")


def test_no_log_line_has_the_collectors_password(start):
    """A collector that takes the batch, and one that refuses it: both are named in the log, by where they are only."""
    for status in (200, 400):
        collector = Collector(status)
        daemon = start(step_us=0, otlp_endpoint=collector.url.replace("://", "://someone:s3cret@"))
        daemon.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
        assert until(lambda: collector.posts > 0)
        assert daemon.terminate() == 0
        log = daemon.log_text()
        assert f"url={collector.url}/v1/traces" in log and "s3cret" not in log and "someone" not in log, log
        assert status == 200 or "traces not taken" in log
        if status == 200:
            assert collector.headers[0][1]["Authorization"] == "Basic c29tZW9uZTpzM2NyZXQ="


def test_a_wrong_endpoint_is_told_at_once(tmp):
    from conftest import binary, model_path
    import subprocess
    if binary().name == "mini_daemon":
        pytest.skip("mini_daemon makes no traces")
    ended = subprocess.run([binary(), "serve", model_path(), "--device", "null", "--port", "0", "--otlp-endpoint", "collector:4317"],
                           capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "http://localhost:4318" in ended.stderr
