"""Fixtures: a daemon that is started, waited for and stopped; ways to talk to it.

The binary is build/release/bin/inferd, or INFERD_BIN; a program named mini_daemon (tests/e2e/mini_daemon.c) is driven
with its own options, so that the front end can be tested under sanitizers without the rest. The model is INFERD_SMOLLM2
or the one that quickstart.sh installs. INFERD_TEST_LONG=1 asks for the full counts."""
import fcntl
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from pace import PATIENCE_S, until  # noqa: E402
from rawhttp import Raw, get, post  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
LONG = os.environ.get("INFERD_TEST_LONG", "0") not in ("", "0")


def binary():
    given = os.environ.get("INFERD_BIN")
    found = [pathlib.Path(given).resolve()] if given else [ROOT / "build/release/bin/inferd", ROOT / "build/release/tests/mini_daemon"]
    for path in found:
        if path.exists():
            return path
    pytest.exit(f"no daemon to test: build it first (looked for {', '.join(map(str, found))})", returncode=2)


def mini_daemon():
    """tests/e2e/mini_daemon.c of the same build, for what the real one cannot be made to do."""
    path = binary() if binary().name == "mini_daemon" else binary().parents[1] / "tests/mini_daemon"
    if not path.exists():
        pytest.skip(f"{path} is not built")
    return path


def free_port():
    """One that nobody has, outside the range that the kernel gives out by itself: so nobody else gets it before the program that
    it is for binds it."""
    low, high = map(int, open("/proc/sys/net/ipv4/ip_local_port_range").read().split())
    ports = [p for p in range(10000, 65536) if not low <= p <= high] or list(range(10000, 65536))
    while True:
        port = random.SystemRandom().choice(ports)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


def pytest_configure(config):
    config.addinivalue_line("markers", "sanitizer: also run against the ASan and TSan builds")
    config.addinivalue_line("markers", "alone: measures a pace or a memory, so tests/run.sh runs nothing beside it")


def model_path():
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    path = pathlib.Path(os.environ.get("INFERD_SMOLLM2", cache / "inferd/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    if not path.exists():
        pytest.exit(f"no model at {path}: run ./quickstart.sh, or set INFERD_SMOLLM2", returncode=2)
    return path


# neutral name -> (flag of inferd, option of mini_daemon)
OPTIONS = {
    "step_us": (None, "step_us"),
    "context": ("--max-model-len", "context"),
    "body": ("--max-body-bytes", "body"),
    "header_s": ("--header-timeout-s", "header_s"),
    "body_s": ("--body-timeout-s", "body_s"),
    "idle_s": ("--idle-timeout-s", "idle_s"),
    "stall_s": ("--client-stall-timeout-s", "stall_s"),
    "io": ("--io-threads", "io"),
    "text": ("--text-threads", "text"),
    "queue": ("--max-queue-seqs", "queue"),
    "seqs": ("--max-num-seqs", "seqs"),
    "connections": ("--max-connections", "connections"),
    "uds": ("--uds", "uds"),
    "zmq": ("--zmq-listen", "zmq"),
    "zmq_key": ("--zmq-server-key-file", "zmq_key"),
    "zmq_clients": ("--zmq-client-keys-file", "zmq_clients"),
    "web_page": ("--web-page", "web_page"),
    "load_until": (None, "load_until"),
    "drain_ms": (None, "drain_ms"),
    "fault": ("--inject-fault", None),
    "step_timeout_s": ("--step-timeout-s", None),
    "numerics": ("--cpu-numerics", None),
    "dtype": ("--dtype", None),
}


class Daemon:
    def __init__(self, tmp, keys=(), device="null", wait=True, env=None, program=None, extra=(), fds=None, **options):
        self.program = program or binary()
        self.mini = self.program.name == "mini_daemon"
        self.keys, self.device = list(keys), device
        self.log_path = tmp / f"daemon-{time.monotonic_ns()}.log"
        self.uds = options.get("uds")
        self.port = None
        command = self._mini_command(options) if self.mini else self._inferd_command(options) + list(map(str, extra))
        passed = [fcntl.fcntl(s.fileno(), fcntl.F_DUPFD_CLOEXEC, 100) for s in (fds or {}).values()]
        if fds:
            command = self._with_sockets(command, list(fds), passed)
        self.log = open(self.log_path, "wb")
        self.started = time.monotonic()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT,
                                        env={**os.environ, **(env or {})}, pass_fds=passed)
        for fd in passed:
            os.close(fd)
        try:
            self._find_port()
            if wait:
                self.wait_ready()
        except BaseException:
            self.kill()
            raise

    def _mini_command(self, options):
        if self.device != "null":
            pytest.skip("mini_daemon has the null device only")
        if not set(options) <= set(OPTIONS):
            pytest.skip("mini_daemon has no such options")
        command = [str(self.program), str(model_path()), "0"]
        if self.keys:
            command.append("keys=" + ",".join(self.keys))
        return command + [f"{OPTIONS[name][1]}={value}" for name, value in options.items()]

    def _inferd_command(self, options):
        step_us = options.pop("step_us", 0)
        drain_ms = options.pop("drain_ms", None)
        device = f"null:{step_us}" if self.device == "null" else self.device
        command = [str(self.program), "serve", str(options.pop("model", None) or model_path()), "--device", device, "--port", "0",
                   "--served-model-name", "smollm2", "--served-model-name", "alias/smollm2"]
        for key in self.keys:
            command += ["--api-key", key]
        if drain_ms is not None:
            command += ["--shutdown-timeout-s", str(max(drain_ms // 1000, 0))]
        for name, value in options.items():
            flag = OPTIONS[name][0] if name in OPTIONS else "--" + name.replace("_", "-")
            command += [f"{flag}={value}"]
        return command

    @staticmethod
    def _with_sockets(command, names, passed):
        """Hands over listening sockets as systemd does: descriptors 3 and up, and the daemon's own process id.

        `passed` are descriptors that the kernel has chosen, above those: a number of our choice may be in use here, and dup2
        on it would take a socket away from another test."""
        moves = " ".join(f"{3 + i}<&{fd} {fd}<&-" for i, fd in enumerate(passed))
        # python has LISTEN_PID right only after the exec: a shell knows its own
        return ["bash", "-c", f'LISTEN_PID=$$ LISTEN_FDS={len(names)} LISTEN_FDNAMES={":".join(names)} exec "$@" {moves}', "x"] + command

    def log_text(self):
        """While it runs, its whole lines: of the last one a part may be there only."""
        ended = self.process.poll() is not None
        text = self.log_path.read_text(errors="replace")
        return text if ended else text[:text.rfind("\n") + 1]

    def _find_port(self):
        """From the log (`port=N`), which is written when the daemon listens."""
        if self.uds:
            return
        while time.monotonic() - self.started < 120:
            found = re.search(r'\b(?:port=|listening(?: url=|","url":")https?://[^\s"]+:)(\d+)(?=\D)', self.log_text())
            if found:
                self.port = int(found.group(1))
                return
            if self.process.poll() is not None:
                raise AssertionError(f"the daemon ended with {self.process.returncode}:\n{self.log_text()}")
            time.sleep(0.01)
        raise AssertionError(f"the daemon never listened:\n{self.log_text()}")

    @property
    def address(self):
        return self.uds or ("127.0.0.1", self.port)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self, seconds=120):
        while time.monotonic() - self.started < seconds:
            if self.process.poll() is not None:
                raise AssertionError(f"the daemon ended with {self.process.returncode}:\n{self.log_text()}")
            try:
                if self.get("/ready").status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.02)
        raise AssertionError(f"the daemon never became ready:\n{self.log_text()}")

    # --- talking ---
    def raw(self, timeout=PATIENCE_S):
        return Raw(self.address, timeout)

    def auth(self):
        return [f"Authorization: Bearer {self.keys[0]}"] if self.keys else []

    def get(self, path, *headers, method="GET"):
        with self.raw() as c:
            c.send(get(path, *self.auth(), *headers, method=method))
            return c.answer(method)

    def post(self, path, body, *headers, timeout=PATIENCE_S):
        with self.raw(timeout) as c:
            c.send(post(path, body, *self.auth(), *headers))
            return c.answer()

    def chat(self, content="Say something.", **fields):
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 8, **fields}
        return self.post("/v1/chat/completions", body)

    def complete(self, prompt="Once upon a time", **fields):
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": 8, **fields})

    def stream(self, path, body, timeout=PATIENCE_S):
        """All events of a stream as objects, [DONE] as None."""
        answer = self.post(path, {**body, "stream": True}, timeout=timeout)
        assert answer.status == 200, answer.body
        assert answer.header("content-type").startswith("text/event-stream")
        return events_of(answer.body)

    def metrics(self):
        values = {}
        for line in self.get("/metrics").body.decode().splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                assert name not in values, f"series {name} occurs twice"
                values[name] = float(value)
        return values

    def wait_idle(self, seconds=PATIENCE_S):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            m = self.metrics()
            if m["inferd_requests_running"] == m["inferd_requests_waiting"] == m["inferd_kv_cache_usage_ratio"] == 0:
                return m
            time.sleep(0.02)
        raise AssertionError(f"not idle after {seconds} s: {m}")

    def hold(self, **fields):
        """A stream that runs until its connection is closed here: while it is open a drain does not end."""
        c = self.raw()
        c.send(post("/v1/completions", {"prompt": "a", "max_tokens": 2000 if self.mini else 8000, "ignore_eos": True, "stream": True, **fields},
                    *self.auth()))
        assert c.head()[1] == 200
        return c

    def wait_served(self):
        """Until a request is answered, where connections before it were closed unanswered."""
        def served():
            try:
                return self.complete(max_tokens=1).status == 200
            except (EOFError, ConnectionError):
                return False
        until(served, "a request served")

    def wait_running(self, count, seconds=PATIENCE_S):
        """Until the engine has so many sequences under way."""
        until(lambda: self.metrics()["inferd_requests_running"] >= count, f"{count} sequences run", seconds)

    def wait_admitted(self, count):
        """Until the engine has taken so many requests of one sequence since the daemon's start: some may have ended by then."""
        names = ("inferd_requests_running", "inferd_requests_waiting", "inferd_requests_finished_total")
        until(lambda: sum(map(self.metrics().get, names)) >= count, f"{count} sequences run, wait or are done")

    # --- process ---
    def begin_drain(self, seconds=PATIENCE_S):
        """SIGTERM, and back once the daemon has heard it; gives the first /ready that says so.

        kill(2) only asks: on a busy machine a request that follows it at once is answered as if there were no signal, and two
        signals become one. From here on new work is refused, if neither a grace nor a shared socket says otherwise. Something
        must be running, or the daemon ends. The connection is there before the signal: a drain may close the listening socket."""
        with self.raw(seconds) as c:
            end, told = time.monotonic() + seconds, False
            while True:
                c.send(get("/ready", *self.auth()))
                answer = c.answer()
                if told and answer.status == 503 and answer.json()["status"] == "draining":
                    return answer
                assert time.monotonic() < end, f"/ready is still {answer.status} {answer.body} {seconds} s after SIGTERM:\n{self.log_text()}"
                if told:
                    time.sleep(0.005)
                else:
                    self.process.send_signal(signal.SIGTERM)
                    told = True

    @property
    def sanitized(self):
        """Whether memory figures mean nothing: AddressSanitizer keeps freed memory, ThreadSanitizer has shadows."""
        return any(b in open(f"/proc/{self.process.pid}/maps").read() for b in ("libasan", "libtsan"))

    def rss(self):
        for line in open(f"/proc/{self.process.pid}/status"):
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024

    def grown(self, before):
        """Resident bytes above `before`; 0 where a sanitizer makes the figure mean nothing."""
        return 0 if self.sanitized else self.rss() - before

    def fd_count(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def cpu_seconds(self):
        fields = open(f"/proc/{self.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def terminate(self, timeout=PATIENCE_S):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.close()


def events_of(body):
    """Checks the framing of docs/api.md 11.1 to the byte and gives the events' objects, None for [DONE]."""
    text = body.decode("utf-8")
    assert text.endswith("\n\n") and "\r" not in text
    events = []
    for block in text[:-2].split("\n\n"):
        if block.startswith(":"):
            continue
        assert block.startswith("data: ") and "\n" not in block, block
        events.append(None if block == "data: [DONE]" else json.loads(block[6:]))
    assert events[-1] is None and None not in events[:-1]
    return events


@pytest.fixture(scope="session")
def tmp(tmp_path_factory):
    return tmp_path_factory.mktemp("e2e")


@pytest.fixture(scope="session")
def start(tmp):
    """Starts further daemons; all end with the session, and none may have been killed by a signal or a sanitizer."""
    running = []

    def make(**options):
        daemon = Daemon(tmp, **options)
        running.append(daemon)
        return daemon

    yield make
    faults = []
    for daemon in running:
        if daemon.process.poll() is None:
            try:
                code = daemon.terminate()
            except subprocess.TimeoutExpired:
                daemon.process.kill()  # the others have to end all the same
                code = f"SIGKILL, {PATIENCE_S} s after SIGTERM"
            if code != 0:
                faults.append(f"ended with {code}: {daemon.log_text()[-4000:]}")
        daemon.log.close()
    assert not faults, "\n".join(faults)


@pytest.fixture(scope="session")
def daemon(start):
    """The null device, 1 ms a step: everything but the model."""
    return start(step_us=1000, context=2048)


@pytest.fixture(scope="session")
def cpu(start):
    """The real model on the CPU."""
    return start(device="cpu", context=2048)


@pytest.fixture(autouse=True)
def still_alive(request):
    """The daemon of the test has survived it."""
    yield
    for name in ("daemon", "cpu"):
        if name in request.fixturenames:
            assert request.getfixturevalue(name).process.poll() is None, "the daemon died"
