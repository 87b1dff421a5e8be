"""The C client (include/inferd/client.h): every function against the daemon, the example, keys, and how it hears that
there is no server, or no more. The programs are tests/client_drill and tests/zmq_client of the same build as the daemon."""
import os
import signal
import subprocess
import time

import pytest
from conftest import binary
from pace import until
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
    daemon.wait_idle()


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
    assert time.monotonic() - begin < 40  # by its own heartbeats: a server that stands still says nothing
    assert client.wait(60) == 0
    if how == signal.SIGSTOP:
        daemon.process.send_signal(signal.SIGCONT)
        daemon.wait_idle()
    else:
        daemon.process.wait()
        daemon.process.returncode = 0  # as was wanted: the fixture looks


def test_a_server_that_is_not_there_is_a_time_limit():
    got = run(program("client_drill"), "tcp://127.0.0.1:1", "health", "300")
    assert got.stdout.startswith("3\n")  # INFERD_TIMEOUT


@pytest.mark.parametrize("wrong, why", [("another server's", "server_key"), ("a stranger's", "list"), ("none", "server_key is missing"),
                                        ("a server without", "no CURVE key")])
def test_a_wrong_key_is_told(start, tmp, wrong, why):
    (public, secret), (mine, my_secret) = ([k.decode() for k in zmq.curve_keypair()] for _ in range(2))
    (tmp / "w-server.key").write_text(secret + "\n")
    (tmp / "w-clients.keys").write_text(mine + "\n")
    curve = {} if wrong == "a server without" else dict(zmq_key=str(tmp / "w-server.key"), zmq_clients=str(tmp / "w-clients.keys"))
    daemon = start(step_us=0, zmq="tcp://127.0.0.1:*", **curve)
    keys = {"INFERD_SERVER_KEY": public, "INFERD_CLIENT_SECRET": my_secret}
    if wrong == "another server's":
        keys["INFERD_SERVER_KEY"] = zmq.curve_keypair()[0].decode()
    elif wrong == "a stranger's":
        keys["INFERD_CLIENT_SECRET"] = zmq.curve_keypair()[1].decode()
    elif wrong == "none":
        keys = {}
    begin = time.monotonic()
    got = run(program("client_drill"), endpoint_of(daemon), "health", "50000", env=keys)
    status, message = got.stdout.splitlines()
    assert status == "4" and why in message and time.monotonic() - begin < 30, got  # INFERD_LOST, not at the end of its time
    until(lambda: daemon.metrics()["inferd_zmq_keys_refused_total"] == (wrong == "a stranger's"), "the count of refused keys")


def test_many_clients_at_once_and_one_that_comes_before_its_server(start, tmp):
    path = tmp / "early.sock"
    early = subprocess.Popen([program("client_drill"), f"ipc://{path}", "health", "60000"], stdout=subprocess.PIPE, text=True)
    time.sleep(0.3)
    daemon = start(step_us=200, zmq=f"ipc://{path}")
    assert early.communicate(timeout=90)[0].startswith("0\n")
    many = [subprocess.Popen([program("client_drill"), f"ipc://{path}", "health", "60000"], stdout=subprocess.PIPE, text=True)
            for _ in range(20)]
    assert all(p.communicate(timeout=90)[0].startswith("0\n") for p in many)
    daemon.wait_idle()
