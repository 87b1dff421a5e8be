"""What clients, operators and systemd see of a device that fails: docs/architecture.md, "When the device fails".

Method: `--inject-fault` makes the device itself fail at a given step (docs/hacking.md): a failed step ends its requests alone; a
lost device and one that hangs end all with an error event, turn /health 503 and end the process with status 3 and the cause in
its log; memory taken late is counted. On the null and CPU devices, and on the GPU where there is one."""
import json
import os
import re
import signal
import socket
import threading
import time

import pytest
from conftest import binary
from pace import at_best
from rawhttp import get, post

pytestmark = pytest.mark.sanitizer

# A model on the CPU is too slow under sanitizers to be waited for.
SANITIZED = any(name in str(binary()) for name in ("asan", "tsan"))
DEVICES = ["null"] + ([] if SANITIZED else ["cpu"]) + (["cuda"] if os.path.exists("/dev/nvidiactl") else [])
FAULT_STEP = 120  # behind the steps on trial of a GPU's start
PROMPT = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "temperature": 0}


class Stream(threading.Thread):
    """One streaming client; its events, the last error among them."""

    def __init__(self, daemon):
        super().__init__()
        self.connection = daemon.raw()
        self.events, self.error, self.body = [], None, b""

    def run(self):
        try:
            self.body = self.connection.answer().body
        except (EOFError, OSError):
            self.body = self.connection.buf
        for text in re.findall(rb"^data: (\{.*\})\r?$", self.body, re.M):
            event = json.loads(text)
            if "error" in event:
                self.error = event["error"]
            else:
                self.events.append(event)


def streams(daemon, count):
    """All there before the daemon reads the first: the fault comes so many steps after that."""
    clients = [Stream(daemon) for _ in range(count)]
    daemon.process.send_signal(signal.SIGSTOP)
    for client in clients:
        client.connection.send(post("/v1/completions", {**PROMPT, "stream": True}))
    daemon.process.send_signal(signal.SIGCONT)
    for client in clients:
        client.start()
    return clients


def health(daemon):
    """Status of /health; None where nobody answers any more."""
    try:
        with daemon.raw() as c:
            c.send(get("/health"))
            return c.answer().status
    except (OSError, EOFError, socket.timeout):
        return None


def device_options(device):
    return {"device": device, "seqs": 4, "context": 512, **({"step_us": 8000} if device == "null" else {})}


@pytest.mark.parametrize("device", DEVICES)
def test_a_failed_step_ends_its_requests_and_the_next_are_served(start, device):
    daemon = start(fault=f"step@{FAULT_STEP}", **device_options(device))
    clients = streams(daemon, 3)
    for client in clients:
        client.join(60)
    failed = [client for client in clients if client.error]
    assert failed, "no stream had an error event"
    assert all("the device failed a step" in client.error["message"] for client in failed), failed[0].error
    assert all(client.events for client in failed), "the fault came before the first token"
    assert health(daemon) == 200
    answer = daemon.complete(max_tokens=5, ignore_eos=True)
    assert answer.status == 200 and answer.json()["usage"]["completion_tokens"] == 5, answer.body
    metrics = daemon.wait_idle()
    assert metrics["inferd_requests_failed_total"] == len(failed)
    assert daemon.terminate() == 0
    assert len(re.findall(r"step failed", daemon.log_text())) == 1


def check_lost(make, cause):
    """All streams hear of it, the process ends with status 3 and the cause; /health says 503 before that, which who asks in time sees."""
    at_best(lambda: lose(make(), cause), 3)


def lose(daemon, cause):
    clients = streams(daemon, 3)
    seen, end = set(), time.monotonic() + 60
    while daemon.process.poll() is None and time.monotonic() < end:
        seen.add(health(daemon))
        time.sleep(0.005)
    assert daemon.process.wait(60) == 3, daemon.log_text()
    daemon.process.returncode = 0  # as it should be: for the check at the session's end
    for client in clients:
        client.join(60)
        assert client.error and client.events, client.body[-300:]
        assert "the device was lost" in client.error["message"], client.error
    assert 503 in seen, seen
    assert re.search(rf'error engine lost reason="[^"]*{cause}', daemon.log_text()), daemon.log_text()


@pytest.mark.parametrize("device", DEVICES)
def test_a_lost_device_ends_everything_with_the_cause(start, device):
    check_lost(lambda: start(fault=f"lost@{FAULT_STEP}", **device_options(device)),
               "cuda|CUDA" if device == "cuda" else "--inject-fault")


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_that_hangs_is_noticed(start, device):
    check_lost(lambda: start(fault=f"hang@{FAULT_STEP}", step_timeout_s=3, **device_options(device)), "stopped answering")


@pytest.mark.parametrize("device", DEVICES)
def test_memory_taken_late_is_counted_and_none_is_without_a_fault(start, device):
    for fault, wanted in ((None, 0), (f"alloc@{FAULT_STEP}", 1)):
        daemon = start(**({"fault": fault} if fault else {}), **device_options(device))
        assert daemon.complete(**{**PROMPT, "max_tokens": 200}).status == 200
        metrics = daemon.wait_idle()
        assert metrics["inferd_steps_total"] >= FAULT_STEP
        if not daemon.sanitized or device == "cuda":
            assert metrics["inferd_device_late_allocations_total"] == wanted
        if not fault:  # cudaMalloc itself takes host memory, on the engine's thread
            assert metrics["inferd_step_path_allocations_total"] == 0
        assert daemon.terminate() == 0


def test_a_wrong_fault_is_refused(tmp):
    import subprocess
    from conftest import binary, model_path
    if binary().name == "mini_daemon":
        pytest.skip("mini_daemon has no command line")
    run = subprocess.run([str(binary()), "serve", str(model_path()), "--inject-fault", "crash@1"], capture_output=True, text=True)
    assert run.returncode == 2 and "step@N, lost@N, hang@N or alloc@N" in run.stderr
