"""The fault drill: clients that die, hang, drip and crowd; a full disk; the end of the process and of its engine's thread.

Method: rounds of all client faults against one daemon on the null device, while a well-behaved client asks all the time and
must always be answered. After each round every gauge must be back at 0, descriptors and connections at their start, and
resident memory after the last round at most 4 MiB above that after the first. INFERD_TEST_LONG=1: the full counts of the
issue (1,000 kills, 10,000 idle connections, 2,000 streams); else a tenth."""
import asyncio
import ctypes
import os
import pathlib
import resource
import signal
import socket
import subprocess
import threading
import time

import pytest
from conftest import LONG, binary, model_path
from pace import PATIENCE_S, until
from rawhttp import Raw, get, post
from test_notify import Manager, pings

pytestmark = pytest.mark.skipif(binary().name == "mini_daemon", reason="needs serve")
SHARE = 1 if LONG else 10
KILLS, IDLE, STREAMS, HALF_OPEN, SLOW = 1000 // SHARE, 10000 // SHARE, 2000 // SHARE, 1000 // SHARE, 100 // SHARE
ROUNDS = 3 if LONG else 2
SLACK = 4 << 20
QUIET_S = 15 if LONG else 3  # silent and idle connections are closed after it
TCP_REPAIR = 19
LONG_RUN = {"prompt": "a", "max_tokens": 1500, "ignore_eos": True, "stream": True}


class Witness:
    """Asks one small thing after the other; every answer must be right and none may take long."""

    def __init__(self, daemon):
        self.daemon, self.stop, self.count, self.wrong, self.slowest = daemon, threading.Event(), 0, [], 0.0
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        while not self.stop.is_set():
            begin = time.monotonic()
            try:
                answer = self.daemon.complete(max_tokens=4, ignore_eos=True)
                if answer.status != 200 or answer.json()["usage"]["completion_tokens"] != 4:
                    self.wrong.append(answer.body)
            except Exception as e:
                self.wrong.append(repr(e))
            self.slowest = max(self.slowest, time.monotonic() - begin)
            self.count += 1
            time.sleep(0.02)

    def end(self):
        self.stop.set()
        self.thread.join()
        assert not self.wrong, f"{len(self.wrong)} of {self.count} requests of a sound client: {self.wrong[:3]}"


def killed_clients(daemon):
    """A process each, killed with -9 in the middle of its stream."""
    for first in range(0, KILLS, 50):
        children = []
        for _ in range(min(50, KILLS - first)):
            pid = os.fork()
            if pid == 0:
                try:
                    c = daemon.raw()
                    c.send(post("/v1/completions", LONG_RUN))
                    c._until(b"data: ")
                    signal.pause()
                finally:
                    os._exit(1)
            children.append(pid)
        time.sleep(0.4)  # in mid-stream, on a busy machine also before
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def vanish(sock):
    """Takes the socket away without a word to the other side, as a machine that loses power does (root only)."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    except OSError:
        pass
    sock.close()


def half_open(daemon):
    """Silent; half a head; half a body; after an answer; in mid-stream."""
    parts = [b"", b"POST /v1/completions HT", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", get("/health"),
             post("/v1/completions", LONG_RUN)]
    held = []
    for k in range(HALF_OPEN):
        c = daemon.raw()
        c.send(parts[k % 5])
        held.append(c)
        if len(held) % 200 == 0:
            time.sleep(0.2)
    time.sleep(0.5)
    for c in held:
        vanish(c.sock)


def slow_readers(daemon):
    """Small windows: some read a little now and then, some nothing at all."""
    held = []
    for _ in range(SLOW):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.settimeout(10)
        s.connect(daemon.address)
        s.sendall(post("/v1/completions", {**LONG_RUN, "n": 8}))
        held.append(s)
    for turn in range(6):
        for s in held[::2]:
            try:
                s.recv(256)
            except OSError:
                pass
        time.sleep(0.25)
    for s in held:
        s.close()


def idle_connections(daemon):
    """Half of them silent, half after a request. Returns the memory that one takes, in bytes."""
    before, held, begin = daemon.rss(), [], time.monotonic()
    for k in range(IDLE):
        c = daemon.raw()
        held.append(c)
        if k % 2:
            c.send(get("/health"))
            assert c.answer().status == 200
    open_ = daemon.metrics()["inferd_connections"]
    assert open_ >= IDLE or time.monotonic() - begin > QUIET_S, open_  # on a slow machine the first ones have had their time
    time.sleep(2.3)  # buffers of idle connections go back within two seconds
    taken = (daemon.rss() - before) / IDLE
    for c in held:
        c.close()
    return taken


def crowd(daemon):
    async def one(k):
        reader, writer = await asyncio.open_connection(*daemon.address)
        writer.write(post("/v1/completions", {"prompt": "a", "max_tokens": 16, "seed": k, "ignore_eos": True, "stream": True}, "Connection: close"))
        body = await reader.read()
        writer.close()
        return b" 200 OK" in body and b'"finish_reason":"length"' in body and b"data: [DONE]\n\n" in body

    async def all_of_them():
        return await asyncio.gather(*(one(k) for k in range(STREAMS)))

    assert all(asyncio.run(all_of_them()))


def at_rest(daemon, fds, enough):
    """Everything of the round is gone: gauges, connections, descriptors; gives the resident memory, once it is `enough` or does not
    become less."""
    m = daemon.wait_idle()
    assert m["inferd_requests_blocked"] == 0
    until(lambda: daemon.fd_count() <= fds, "descriptors closed", QUIET_S + PATIENCE_S)
    until(lambda: daemon.metrics()["inferd_connections"] == 1, "one connection left: that which asks")
    end = time.monotonic() + 20  # memory of a crowd goes back with the next sweeps
    time.sleep(1.5)
    while daemon.rss() > enough and time.monotonic() < end:
        time.sleep(0.2)
    return daemon.rss()


@pytest.mark.alone
def test_rounds_of_faulty_clients_leave_nothing(start):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < IDLE + 1000:
        pytest.skip(f"only {hard} file descriptors")
    # a pool that the first round goes through once: its index is memory that is touched as blocks are first used
    daemon = start(extra=["--kv-cache-memory", "64MiB"], step_us=500, seqs=256, queue=4096, connections=IDLE + 1000, header_s=QUIET_S, idle_s=QUIET_S, stall_s=1, context=2048)
    daemon.complete(max_tokens=4)
    daemon.wait_idle()
    fds, resident, per_idle = daemon.fd_count(), [], []
    for number in range(ROUNDS):
        witness, took = Witness(daemon), []
        # the idle ones last: what fewer than 512 connections had taken (io_thread.c) goes back to the system only with a crowd's
        for fault in (killed_clients, half_open, slow_readers, crowd, idle_connections):
            begin = time.monotonic()
            result = fault(daemon)
            took.append(f"{fault.__name__} {time.monotonic() - begin:.1f} s")
            if result:
                per_idle.append(result)
        witness.end()
        resident.append(at_rest(daemon, fds, resident[0] + SLACK if resident else 1 << 40))
        print(f"round {number + 1}: {', '.join(took)}; sound requests {witness.count}, slowest {witness.slowest * 1e3:.0f} ms; RSS {resident[-1] / 2**20:.1f} MiB")
    print(f"an idle connection takes {per_idle[-1] / 1024:.1f} KiB, half of them after a request")
    if not daemon.sanitized:
        assert resident[-1] - resident[0] <= SLACK, resident
        assert per_idle[-1] < 6 << 10
    assert daemon.complete(max_tokens=2).status == 200
    assert daemon.terminate() == 0


def test_a_full_disk_for_logs_stops_nobody(tmp):
    """Standard error is /dev/full: every write fails with ENOSPC."""
    path = tmp / "full.sock"
    with open("/dev/full", "w") as full:
        process = subprocess.Popen([str(binary()), "serve", str(model_path()), "--device", "null:100", "--uds", str(path), "--log-level", "debug"],
                                   stdout=full, stderr=full)
        try:
            def ready():
                assert process.poll() is None
                try:
                    with Raw(str(path)) as c:
                        c.send(get("/ready"))
                        return c.answer().status == 200
                except OSError:
                    return False
            until(ready, "/ready")
            with Raw(str(path), 30) as c:
                for _ in range(1000 // SHARE):
                    c.send(post("/v1/completions", {"prompt": "a", "max_tokens": 2, "stream": True, "ignore_eos": True}))
                    assert b"[DONE]" in c.answer().body
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0 and not path.exists()
        finally:
            process.kill()


def test_sigterm_under_load_ends_everything_as_it_should(start, tmp):
    """Running ones finish, later ones are refused in words, the long ones get an error event; no child, socket or memory is left."""
    shm = set(os.listdir("/dev/shm"))
    daemon = start(step_us=5000, drain_ms=4000, seqs=256, extra=["--admin-socket", tmp / "term.sock"])
    short = [daemon.raw() for _ in range(100 // min(SHARE, 2))]
    long_ = [daemon.raw() for _ in range(20)]
    for c in short:
        c.send(post("/v1/completions", {**LONG_RUN, "max_tokens": 100}))
    for c in long_:
        c.send(post("/v1/completions", {**LONG_RUN, "max_tokens": 8000}))
    for c in short + long_:
        assert c.head()[1] == 200
    pid = daemon.process.pid
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout
    daemon.begin_drain()
    late = daemon.complete()
    assert late.status == 503 and late.json()["error"]["code"] == "server_draining"
    for c in short:
        body = b"".join(c.chunks())
        assert b'"finish_reason":"length"' in body and body.endswith(b"data: [DONE]\n\n")
    for c in long_:
        body = b"".join(c.chunks())
        assert b'data: {"error":{' in body and body.endswith(b"data: [DONE]\n\n")
    assert daemon.process.wait(60) == 0
    assert children == "" and not (tmp / "term.sock").exists() and set(os.listdir("/dev/shm")) <= shm


def stop_thread(tid):
    """Stops one thread of another process as a debugger does; the rest of it runs on. Returns how to let go, or None."""
    seize, interrupt, detach = 0x4206, 0x4207, 17
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(seize, tid, None, None):
        return None
    assert libc.ptrace(interrupt, tid, None, None) == 0
    os.waitpid(tid, 0x40000000)  # __WALL
    return lambda: libc.ptrace(detach, tid, None, None)


@pytest.mark.parametrize("busy", [False, True])
def test_an_engine_thread_that_stands_still_is_noticed(start, tmp, busy):
    """Idle or in the middle of streams: /ready turns 503, the watchdog hears nothing; /health still answers, as the process
    lives. The manager then kills and starts anew (under the real systemd: test_systemd.py); here: it goes on when let go."""
    manager = Manager(tmp)
    daemon = start(step_us=5000, env={"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "400000"}, extra=["--progress-timeout-s", 1])
    manager.wait("WATCHDOG", count=2)
    tasks = pathlib.Path(f"/proc/{daemon.process.pid}/task")
    engine = next((int(t.name) for t in tasks.iterdir() if "engine" in (t / "comm").read_text()), None)
    assert engine, [(t / "comm").read_text() for t in tasks.iterdir()]
    streams = [daemon.raw() for _ in range(5 if busy else 0)]
    for c in streams:
        c.send(post("/v1/completions", {**LONG_RUN, "max_tokens": 300}))
        assert c.head()[1] == 200
    stuck = daemon.log_text().count("engine stuck")
    let_go = stop_thread(engine)
    if not let_go:
        pytest.skip("no right to trace a process here")
    try:
        until(lambda: daemon.log_text().count("engine stuck") == stuck + 1, "the log says that the engine stands still")
        assert pings(manager, 1) == 0, "the watchdog was fed for an engine that stands still"
        before = len(manager.all("WATCHDOG"))
        ready = daemon.get("/ready")
        assert ready.status == 503 and "no progress" in ready.json()["reason"] and daemon.get("/health").status == 200
    finally:
        let_go()
    for c in streams:
        assert b'"finish_reason":"length"' in b"".join(c.chunks())
    manager.wait("WATCHDOG", count=before + 2)
    assert daemon.get("/ready").status == 200
    daemon.wait_idle()
