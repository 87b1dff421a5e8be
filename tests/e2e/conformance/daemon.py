"""Starts `inferd serve` as a child, waits for /ready, and at the end holds it to a clean exit."""
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

from conformance import prometheus, wire
from pace import PATIENCE_S, until

ROOT = pathlib.Path(__file__).resolve().parents[3]
BIN = pathlib.Path(os.environ.get("INFERD_BIN") or ROOT / "build/release/bin/inferd")
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
MODEL = pathlib.Path(os.environ.get("INFERD_SMOLLM2") or
                     CACHE / "inferd/models/SmolLM2-135M-Instruct.Q4_1.gguf")
LONG = os.environ.get("INFERD_TEST_LONG") == "1"
REPORTS = ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "WARNING: ThreadSanitizer", "runtime error:",
           "Assertion ")


def bin_path():
    return BIN if BIN.is_absolute() else ROOT / BIN


def clean_environment():
    """The environment without INFERD_* options that would change what the daemon does."""
    return {k: v for k, v in os.environ.items() if not k.startswith("INFERD_")}


class Daemon:
    """A running server. `address` for sockets, `url` for clients; `post` and `get` for one request each."""

    def __init__(self, *options, model=None, key=None, ready=True, ready_within=120):
        self.log = tempfile.NamedTemporaryFile("w+", prefix="inferd-log-", suffix=".txt")
        self.key, self.delays = key, {}
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [str(bin_path()), "serve", str(model or MODEL), "--port", "0", *map(str, options)],
            stdout=self.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            env=clean_environment())
        try:
            self.port = self._find_port(ready_within)
            self.address = ("127.0.0.1", self.port)
            self.url = f"http://127.0.0.1:{self.port}"
            if ready:
                self._wait_ready(ready_within)
        except BaseException:
            self.kill()
            raise

    def log_text(self):
        """While it runs, its whole lines: of the last one a part may be there only."""
        ended = self.process.poll() is not None
        text = open(self.log.name, errors="replace").read()
        return text if ended else text[:text.rfind("\n") + 1]

    def _find_port(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            match = re.search(r"(?:127\.0\.0\.1|localhost)[: ](?:port )?([0-9]{2,5})\s", self.log_text())
            if match:
                return int(match[1])
            assert self.process.poll() is None, f"exit {self.process.returncode}: {self.log_text()[-2000:]}"
            time.sleep(0.002)
        raise AssertionError(f"no port in the log: {self.log_text()[-2000:]}")

    def _wait_ready(self, seconds):
        end = time.monotonic() + seconds
        while True:
            assert self.process.poll() is None, f"exit {self.process.returncode}: {self.log_text()[-2000:]}"
            try:
                if wire.call(self.address, "GET", "/ready", timeout=5).status == 200:
                    break
            except OSError:
                pass
            self.run_delay()
            assert time.monotonic() < end, f"not ready after {seconds} s: {self.log_text()[-2000:]}"
            time.sleep(0.002)
        self.ready_after = time.monotonic() - self.started

    def run_delay(self):
        """The longest that one of its threads has waited for a processor so far, in seconds; asked for again and again, as threads end."""
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            try:
                self.delays[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
            except OSError:
                pass  # it has ended, or the kernel does not count
        return max(self.delays.values(), default=0)

    def headers(self, extra=()):
        extra = dict(extra)
        if self.key and "Authorization" not in extra:
            extra["Authorization"] = f"Bearer {self.key}"
        return extra

    def post(self, path, body, headers=(), **more):
        return wire.call(self.address, "POST", path, body, self.headers(headers), **more)

    def get(self, path, headers=(), **more):
        return wire.call(self.address, "GET", path, None, self.headers(headers), **more)

    def ok(self, path, body, **more):
        """The JSON of an answer that must be 200."""
        answer = self.post(path, body, **more)
        assert answer.status == 200, (body, answer)
        return answer.json

    def complete(self, **body):
        return self.ok("/v1/completions", body)

    def chat(self, **body):
        return self.ok("/v1/chat/completions", body)

    def stream(self, path, body):
        """The events of a streamed request, framing checked."""
        answer = self.post(path, {**body, "stream": True})
        assert answer.status == 200, (body, answer)
        assert answer.header("content-type").split(";")[0].strip() == "text/event-stream"
        assert answer.header("cache-control") == "no-cache"
        return wire.parse_events(answer.body)

    def metrics(self):
        answer = self.get("/metrics")
        assert answer.status == 200
        return prometheus.Metrics(answer.body)

    def idle(self):
        m = self.metrics()
        return (m.value("inferd_requests_running") == 0 and m.value("inferd_requests_waiting") == 0 and
                m.value("inferd_kv_cache_usage_ratio") == 0)

    def wait_idle(self, what="both gauges 0 and the pool full", seconds=PATIENCE_S):
        until(self.idle, what, seconds)

    def connect(self, timeout=PATIENCE_S):
        return wire.Connection(self.address, timeout)

    def rss_bytes(self, field="VmRSS"):
        status = open(f"/proc/{self.process.pid}/status").read()
        return int(re.search(rf"^{field}:\s+([0-9]+) kB", status, re.M)[1]) * 1024

    def reset_peak(self):
        open(f"/proc/{self.process.pid}/clear_refs", "w").write("5")

    def cpu_seconds(self):
        fields = open(f"/proc/{self.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def begin_drain(self, seconds=PATIENCE_S):
        """SIGTERM, and back once /ready says that the daemon has heard it: kill(2) only asks, and two signals may become one.

        Something must be running, or the daemon ends. The connection is there before: a drain may close the listening socket."""
        with self.connect(seconds) as c:
            def ready():
                c.send(wire.request_bytes("GET", "/ready", None, self.headers()))
                return c.answer("GET")
            ready()
            self.terminate()
            until(lambda: ready().json["status"] == "draining", "/ready says draining after SIGTERM", seconds)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def wait(self, seconds):
        """The exit status."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running {seconds} s after it was told to end") from None

    def check_end(self, status):
        """Exit status 0, no sanitizer's report, nothing left of its process group, the port free."""
        text = self.log_text()
        for word in REPORTS:
            assert word not in text, text[max(0, text.index(word) - 500):][:6000]
        assert status == 0, f"exit status {status}: {text[-2000:]}"
        try:
            os.killpg(self.process.pid, 0)
            raise AssertionError("a process of its group is left")
        except ProcessLookupError:
            pass

    def stop(self, seconds=PATIENCE_S):
        if self.process.poll() is None:
            self.terminate()
        self.check_end(self.wait(seconds))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            self.kill()
        else:
            self.stop()
