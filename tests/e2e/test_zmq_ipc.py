"""docs/zmq.md 3.2 over ipc://, where there is no TCP to notice a client that reads nothing: what is held for it is seen in /metrics,
by the resident size and on the client's own socket."""
import contextlib
import itertools
import socket
import struct
import time

import pytest
from conftest import binary
from pace import at_best, until
from rawhttp import post
from zmqclient import connect, endpoint_of, pb, zmq

pytestmark = pytest.mark.sanitizer
MIB = 1 << 20


class Bare:
    """A ZMTP 3.0 client over a unix socket (RFC 23, NULL), which reads when it is told to and not before: libzmq would read ahead."""

    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(str(path))
        self.sock.sendall(b"\xff" + b"\0" * 7 + b"\1\x7f\3\0NULL" + b"\0" * 16 + b"\0" + b"\0" * 31)
        self.exactly(64)
        self.frame(4, b"\5READY\x0bSocket-Type\0\0\0\6DEALER")
        self.read_frame()

    def frame(self, flags, body):
        head = bytes([flags | 2]) + struct.pack(">Q", len(body)) if len(body) > 255 else bytes([flags, len(body)])
        self.sock.sendall(head + body)

    def exactly(self, count):
        got = b""
        while len(got) < count:
            part = self.sock.recv(min(count - len(got), 65536))
            if not part:
                raise EOFError
            got += part
        return got

    def read_frame(self):
        flags = self.exactly(1)[0]
        return flags, self.exactly(struct.unpack(">Q", self.exactly(8))[0] if flags & 2 else self.exactly(1)[0])

    def send(self, **body):
        self.frame(0, pb.Request(**body).SerializeToString())

    def receive(self):
        """The next Response but those of heartbeats and empty Batches."""
        while True:
            flags, body = self.read_frame()
            if not flags & 4 and pb.Batch.FromString(body).responses:
                return list(pb.Batch.FromString(body).responses)

    def ping(self):
        self.frame(4, b"\4PING\0\0")


@pytest.fixture
def server(start, tmp_path):
    path = tmp_path / "z.sock"
    d = start(step_us=100, stall_s=1, zmq=f"ipc://{path}")
    d.path = path
    return d


def long_detokenize(daemon, mib):
    c = connect(daemon)
    longest = c.ask(tokenize=pb.Tokenize(prompt=b" " * 256)).tokenize.ids[0]
    length = len(c.ask(detokenize=pb.Detokenize(ids=[longest])).detokenize.text)
    c.close()
    return pb.Detokenize(ids=[longest] * (mib * MIB // length))


def answers_held(daemon):
    return daemon.metrics()["inferd_answer_bytes_held"]


def ended(client):
    """Whether the server has ended the connection. It sends something now and then, so its heartbeats do not do it."""
    try:
        client.ping()
    except OSError:
        return True
    return False


def test_a_client_that_reads_nothing_but_sends_is_ended(server):
    """Eight answers of 20 MiB, none of which it reads."""
    client = Bare(server.path)
    wanted = long_detokenize(server, 20)
    for k in range(8):
        client.send(id=k + 1, detokenize=wanted)
    until(lambda: answers_held(server) >= 100 * MIB or ended(client), "answers are held")
    until(lambda: ended(client) or time.sleep(0.2), "it is ended")
    until(lambda: answers_held(server) == 0, "what was held for it is given back")
    until(lambda: server.metrics()["inferd_zmq_clients"] == 0, "it is forgotten")
    assert "zmq client stalled" in server.log_text()
    c = connect(server)
    assert c.ask(tokenize=pb.Tokenize(prompt=b"a")).tokenize.ids
    c.close()


def test_a_client_that_reads_nothing_of_its_streams_is_ended(server):
    """Small messages only: its requests end as too slow, then its connection, not before."""
    client = Bare(server.path)
    ids = itertools.count(1)

    def asks_in_vain():
        """One more stream, so that some are open whenever it ends, however many of their messages went together."""
        try:
            client.send(id=next(ids), generate=pb.Generate(prompts=[b"a"], n=8, max_tokens=2000, ignore_eos=True, stream=True, return_token_ids=True))
        except OSError:
            return True
        return time.sleep(0.05) or ended(client)

    until(asks_in_vain, "it is ended")
    until(lambda: (m := server.metrics())["inferd_zmq_clients_slow_total"] + m["inferd_zmq_clients_vanished_total"] >= 1, "it is counted")
    server.wait_idle()
    until(lambda: server.metrics()["inferd_zmq_clients"] == 0, "it is forgotten")


def test_a_slow_reader_is_not_ended(server):
    """One who reads a little now and then, for three times the time in which one that reads nothing is ended: whatever the kernel
    has for it is read at once, so that it is full again whenever one looks. A message of 1 MiB takes an eighth of that time."""
    wanted, count = long_detokenize(server, 1), 24

    def reads_all():
        client, told = Bare(server.path), server.log_text().count("zmq client stalled")
        for k in range(count):
            client.send(id=k + 1, detokenize=wanted)
        got = 0
        while got < count * MIB * 0.95:  # the texts are a little shorter than asked for
            try:
                part = client.sock.recv(1 << 20)
            except ConnectionResetError:
                part = b""
            assert part, f"it was ended after {got} bytes"
            got += len(part)
            client.ping()
            time.sleep(0.05)
        assert server.log_text().count("zmq client stalled") == told

    at_best(reads_all)


def test_who_has_read_all_is_left_alone(server):
    """An idle client for longer than the time, and then another request on the same connection."""
    client = Bare(server.path)
    for k in range(3):
        client.send(id=k + 1, tokenize=pb.Tokenize(prompt=b"a"))
        assert client.receive()[0].tokenize.ids
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            client.ping()
            client.read_frame()  # its answer, or a heartbeat
            time.sleep(0.02)
    client.ping()
    client.read_frame()
    assert "zmq client stalled" not in server.log_text()


def test_another_socket_of_the_same_number_is_not_ended(server):
    """The number of a client's descriptor that has gone is soon another connection's, here one of HTTP that is read slowly."""
    for _ in range(20):
        client = Bare(server.path)
        client.send(id=1, generate=pb.Generate(prompts=[b"a"], max_tokens=2000, ignore_eos=True, stream=True))
        client.receive()
        client.sock.close()
        with server.raw() as c:
            until(lambda: server.metrics()["inferd_zmq_clients"] == 0, "it is gone")
            c.send(post("/tokenize", {"prompt": "a"}))
            assert c.answer().status == 200
    server.wait_idle()


def test_a_drain_does_not_wait_for_what_is_unread(server):
    client = Bare(server.path)
    client.send(id=1, detokenize=long_detokenize(server, 1))
    until(lambda: server.metrics().get('inferd_zmq_requests_total{kind="detokenize",status="200"}', 0) >= 2, "it is made")
    assert server.terminate() == 0
    assert not server.path.exists()


def test_inproc_is_refused(tmp):
    """There is no other program inside the daemon that could connect to it."""
    import subprocess
    ran = subprocess.run([binary(), "serve", "nowhere.gguf", "--zmq-listen", "inproc://x"], capture_output=True, text=True)
    if binary().name == "mini_daemon":
        pytest.skip("the command line is the daemon's")
    assert ran.returncode == 2 and "must begin with tcp:// or ipc://" in ran.stderr, ran
