"""The files of configs/ are right, by the word of the programs they are for; the canary recipe of docs/operations.md works.

Method: haproxy -c, nginx -t, json; then HAProxy itself with the shipped file (other ports) before two daemons: weights by
its socket, and a drain of one of them under load. Skipped where the program is not installed."""
import collections
import concurrent.futures
import json
import pathlib
import shutil
import signal
import socket
import subprocess
import time

import pytest
from conftest import ROOT, binary, free_port
from pace import until
from rawhttp import Raw, post

CONFIGS = ROOT / "configs"


def tool(name):
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/bin")
    if not path:
        pytest.skip(f"{name} is not installed")
    return path


def test_haproxy_takes_its_file():
    got = subprocess.run([tool("haproxy"), "-c", "-f", str(CONFIGS / "haproxy/inferd.cfg")], capture_output=True, text=True)
    assert got.returncode == 0 and "warning" not in (got.stdout + got.stderr).lower(), got.stdout + got.stderr


def test_nginx_takes_its_file(tmp_path):
    (tmp_path / "nginx.conf").write_text(f"pid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\n"
                                         f"http {{ access_log off; include {CONFIGS}/nginx/inferd.conf; }}\n")
    got = subprocess.run([tool("nginx"), "-t", "-c", str(tmp_path / "nginx.conf"), "-e", "stderr"], capture_output=True, text=True)
    assert got.returncode == 0, got.stderr


def test_the_services_options_are_options(tmp_path):
    """Every key of inferd.json is known: the daemon gets past its options, to the model that is not there."""
    if binary().name == "mini_daemon":
        pytest.skip("needs serve")
    config = json.loads((CONFIGS / "inferd.json").read_text())
    config["model"] = str(tmp_path / "none.gguf")
    (tmp_path / "inferd.json").write_text(json.dumps(config))
    got = subprocess.run([str(binary()), "serve", "--config", str(tmp_path / "inferd.json")], capture_output=True, text=True, timeout=60)
    assert got.returncode == 1 and "none.gguf" in got.stderr, got.stderr


class Balancer:
    def __init__(self, folder, stable, canary):
        self.port, self.socket = free_port(), folder / "haproxy.sock"
        text = (CONFIGS / "haproxy/inferd.cfg").read_text()
        for old, new in ((":8080", f"127.0.0.1:{self.port}"), ("127.0.0.1:8000", f"127.0.0.1:{stable.port}"), ("127.0.0.1:8001", f"127.0.0.1:{canary.port}"),
                         ("/run/haproxy/admin.sock", str(self.socket)), ("log stdout format raw local0", "")):
            assert old in text
            text = text.replace(old, new)
        (folder / "haproxy.cfg").write_text(text)
        self.process = subprocess.Popen([tool("haproxy"), "-f", str(folder / "haproxy.cfg")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def tell(self, command):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(str(self.socket))
            s.sendall(command.encode() + b"\n")
            return b"".join(iter(lambda: s.recv(65536), b"")).decode()

    def up(self):
        return sum(",UP," in line for line in self.tell("show stat").splitlines() if line.startswith("inferd,") and ",BACKEND," not in line)

    def complete(self, _=None):
        with Raw(("127.0.0.1", self.port)) as c:
            c.send(post("/v1/completions", {"prompt": "a", "max_tokens": 3, "ignore_eos": True}))
            return c.answer().status


@pytest.fixture
def balanced(start, tmp_path):
    if binary().name == "mini_daemon":
        pytest.skip("needs serve")
    stable, canary = (start(step_us=1000, extra=["--drain-grace-s", 2]) for _ in range(2))
    balancer = Balancer(tmp_path, stable, canary)

    def both_up():
        try:
            return balancer.up() == 2
        except OSError:
            return False
    until(both_up, "both daemons up for the balancer")
    yield balancer, stable, canary
    balancer.process.kill()
    balancer.process.wait()


def served(daemon):
    return daemon.metrics().get('inferd_http_requests_total{method="POST",path="/v1/completions",status="200"}', 0)


def test_canary_shares_and_a_drain_behind_haproxy(balanced):
    balancer, stable, canary = balanced
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert set(pool.map(balancer.complete, range(50))) == {200} and served(canary) == 0
        for share in (5, 20, 50, 100):
            balancer.tell(f"set server inferd/canary weight {share}; set server inferd/stable weight {100 - share}")
            before = served(stable), served(canary)
            assert set(pool.map(balancer.complete, range(200))) == {200}
            took = served(stable) - before[0], served(canary) - before[1]
            got = 100 * took[1] / sum(took)
            print(f"canary at {share} %: {got:.0f} % of {sum(took):.0f} requests")
            assert sum(took) == 200 and (got == 100 if share == 100 else abs(got - share) <= 15)
        balancer.tell("set server inferd/stable weight 50; set server inferd/canary weight 50")
        outcomes, end, sent = collections.Counter(), time.monotonic() + 5, False
        while time.monotonic() < end:
            outcomes.update(pool.map(balancer.complete, range(20)))
            if not sent and time.monotonic() > end - 4:
                canary.process.send_signal(signal.SIGTERM)
                sent = True
        assert canary.process.wait(60) == 0
        print(f"drain behind haproxy: {dict(outcomes)}")
        assert set(outcomes) == {200}
