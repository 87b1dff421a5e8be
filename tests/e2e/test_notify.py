"""systemd's notify protocol against a datagram socket of our own (the real one: test_systemd.py).

Method: NOTIFY_SOCKET, WATCHDOG_USEC as the manager sets them; every datagram with the time at which it was sent, which the kernel
knows: the test may come to read it later."""
import fcntl
import os
import signal
import socket
import struct
import termios
import threading
import time

import pytest
from conftest import binary
from pace import until
from rawhttp import Raw, get, post

pytestmark = pytest.mark.skipif(binary().name == "mini_daemon", reason="mini_daemon does not speak it")


SO_TIMESTAMPNS = 35


class Manager:
    def __init__(self, folder, abstract=False):
        self.path = f"@inferd-test-{os.getpid()}" if abstract else str(folder / f"notify-{time.monotonic_ns()}")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.sock.bind("\0" + self.path[1:] if abstract else self.path)
        self.seen = []
        self.fault = None
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            while True:
                data, told, _, _ = self.sock.recvmsg(4096, 64)
                seconds, nanoseconds = struct.unpack("qq", told[0][2])
                self.seen.append((seconds + nanoseconds / 1e9, dict(line.split("=", 1) for line in data.decode().split("\n"))))
        except (OSError, ValueError) as fault:
            self.fault = fault  # told by the next that asks: nobody sees how a thread ends

    def all(self, name):
        assert not self.fault, f"the manager does not read any more: {self.fault!r}"
        return [(at, m[name]) for at, m in list(self.seen) if name in m]

    def wait(self, name, count=1):
        until(lambda: len(self.all(name)) >= count, f"{count} of {name} among {self.seen}")
        return self.all(name)[count - 1]


@pytest.mark.parametrize("abstract", [False, True])
def test_ready_comes_when_ready_answers_200_and_stopping_at_the_end(start, tmp, abstract):
    manager = Manager(tmp, abstract)
    daemon = start(step_us=0, env={"NOTIFY_SOCKET": manager.path}, wait=False)
    manager.wait("READY")
    assert daemon.get("/ready").status == 200
    assert any("loading:" in text and "%" in text for _, text in manager.all("STATUS"))
    assert all(int(us) >= 10_000_000 for _, us in manager.all("EXTEND_TIMEOUT_USEC"))
    assert daemon.terminate() == 0
    assert manager.wait("STOPPING")[1] == "1" and manager.all("WATCHDOG")[1:] == []


def test_a_drain_extends_the_time_to_stop(start, tmp):
    manager = Manager(tmp)
    daemon = start(step_us=20000, env={"NOTIFY_SOCKET": manager.path})
    with daemon.raw() as c:
        c.send(post("/v1/completions", {"prompt": "a", "max_tokens": 8000, "ignore_eos": True, "stream": True}))
        assert c.head()[1] == 200
        before = len(manager.all("EXTEND_TIMEOUT_USEC"))
        daemon.process.send_signal(signal.SIGTERM)
        manager.wait("STOPPING")
        manager.wait("EXTEND_TIMEOUT_USEC", count=before + 2)
        until(lambda: "draining, 1 request left" in manager.all("STATUS")[-1][1], "the requests that are left are told")
    assert daemon.process.wait(60) == 0  # its client has gone


def test_reload_says_reloading_with_the_time_and_ready_again(start, tmp):
    manager = Manager(tmp)
    daemon = start(step_us=0, env={"NOTIFY_SOCKET": manager.path})
    daemon.process.send_signal(signal.SIGHUP)
    at, message = manager.wait("RELOADING")
    us = int(manager.all("MONOTONIC_USEC")[0][1])
    assert message == "1" and abs(us / 1e6 + time.time() - time.monotonic() - at) < 5
    manager.wait("READY", count=2)
    assert daemon.get("/ready").status == 200


def test_a_reload_while_loading_does_not_say_ready(start, tmp):
    manager = Manager(tmp)
    daemon = start(step_us=0, env={"NOTIFY_SOCKET": manager.path}, wait=False)
    daemon.process.send_signal(signal.SIGHUP)
    at, _ = manager.wait("READY")
    reloads = [at for at, _ in manager.all("RELOADING")]  # none, or the signal came when it was ready
    assert all(reload > at for reload in reloads) and daemon.get("/ready").status == 200


def pings(manager, seconds):
    """How many are sent from now on."""
    begin = time.time()
    time.sleep(seconds)
    until(lambda: fcntl.ioctl(manager.sock, termios.FIONREAD, bytes(4)) == bytes(4), "all read")
    return sum(at > begin for at, _ in manager.all("WATCHDOG"))


def fed(manager, count=4):
    """Pings go on: systemd would wait 0.4 s for each, we a little longer, as the machine does other things too."""
    before = len(manager.all("WATCHDOG"))
    manager.wait("WATCHDOG", count=before + count)
    times = [at for at, _ in manager.all("WATCHDOG")[before:]]
    assert min(b - a for a, b in zip(times, times[1:])) < 0.4, times


def test_the_watchdog_hears_of_an_idle_and_a_busy_engine_and_not_of_a_stuck_one(start, tmp):
    manager = Manager(tmp)
    daemon = start(step_us=5_000_000, env={"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "400000"}, extra=["--progress-timeout-s", 1])
    manager.wait("READY")
    fed(manager)
    stuck = daemon.log_text().count("engine stuck")
    with Raw(daemon.address) as c:  # a step of 5 s: longer than the limit
        c.send(post("/v1/completions", {"prompt": "a", "max_tokens": 1, "ignore_eos": True}))
        until(lambda: daemon.log_text().count("engine stuck") > stuck, "the log says that the engine stands still")
        assert pings(manager, 0.8) == 0
        ready = daemon.get("/ready")
        assert ready.status == 503 and "no progress" in ready.json()["reason"]
        assert daemon.get("/health").status == 200
        assert c.answer().status == 200
    fed(manager)
    assert daemon.get("/ready").status == 200
    assert "engine stuck" in daemon.log_text() and "engine goes on" in daemon.log_text()


def test_a_watchdog_meant_for_another_process_is_not_ours(start, tmp):
    manager = Manager(tmp)
    start(step_us=0, env={"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "200000", "WATCHDOG_PID": "1"})
    manager.wait("READY")
    assert pings(manager, 0.6) == 0


def test_no_manager_is_no_fault(start, tmp):
    daemon = start(step_us=0, env={"NOTIFY_SOCKET": str(tmp / "nobody"), "WATCHDOG_USEC": "100000"})
    with daemon.raw() as c:
        c.send(get("/health"))
        assert c.answer().status == 200
