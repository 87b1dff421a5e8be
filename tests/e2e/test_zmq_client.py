"""The C client (include/inferd/client.h): every function against the daemon, the example, keys, and how it hears that
there is no server, or no more. The programs are tests/client_drill and tests/zmq_client of the same build as the daemon."""
import os
import signal
import subprocess
import time

import pytest
from conftest import binary
from zmqclient import endpoint_of, zmq

pytestmark = pytest.mark.sanitizer


def program(name):
    at = binary().parent if binary().parent.name == "tests" else binary().parents[1] / "tests"
    if not (at / name).exists():
        pytest.skip(f"{at / name} is not built")
    return str(at / name)


def run(*args, env=None, timeout=60):
    return subprocess.run(args, capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})})


def test_every_function(start):
    daemon = start(step_us=1000, context=2048, zmq="tcp://127.0.0.1:*")
    got = run(program("client_drill"), endpoint_of(daemon))
    assert got.returncode == 0 and got.stdout == "passed\n", got.stderr
    daemon.wait_idle(2)


def test_the_example_with_all_keys(start, tmp):
    public, secret = (k.decode() for k in zmq.curve_keypair())
    mine, my_secret = (k.decode() for k in zmq.curve_keypair())
    (tmp / "c-server.key").write_text(secret + "\n")
    (tmp / "c-clients.keys").write_text(mine + "\n")
    daemon = start(step_us=0, keys=["k1"], zmq="tcp://127.0.0.1:*", zmq_key=str(tmp / "c-server.key"),
                   zmq_clients=str(tmp / "c-clients.keys"))
    keys = {"INFERD_API_KEY": "k1", "INFERD_SERVER_KEY": public, "INFERD_CLIENT_SECRET": my_secret}
    got = run(program("zmq_client"), endpoint_of(daemon), "Once upon a time", "6", env=keys)
    assert got.returncode == 0 and "6 out]" in got.stderr and got.stdout, got
    got = run(program("zmq_client"), endpoint_of(daemon), "Once upon a time", "6", env={**keys, "INFERD_API_KEY": "k2"})
    assert got.returncode == 1 and "invalid_api_key" in got.stderr


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_end_of_the_server_ends_requests(start, how):
    daemon = start(step_us=5000, context=2048, zmq="tcp://127.0.0.1:*")
    client = subprocess.Popen([program("client_drill"), endpoint_of(daemon), "lost"], stdout=subprocess.PIPE, text=True)
    assert client.stdout.readline() == "running\n"
    daemon.process.send_signal(how)
    begin = time.monotonic()
    assert client.stdout.readline() == "ended 4\n"  # INFERD_LOST
    assert time.monotonic() - begin < 6
    assert client.wait(10) == 0
    if how == signal.SIGSTOP:
        daemon.process.send_signal(signal.SIGCONT)
        daemon.wait_idle(5)
    else:
        daemon.process.wait()
        daemon.process.returncode = 0  # as was wanted: the fixture looks


def test_a_server_that_is_not_there_is_a_time_limit():
    got = run(program("client_drill"), "tcp://127.0.0.1:1", "health", "300")
    assert got.stdout == "3\n"  # INFERD_TIMEOUT
