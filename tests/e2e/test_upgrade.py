"""An upgrade under 200 requests a second refuses no connection and cuts no stream.

Method: an open-loop client sends 200 requests/s, of each ten: 5 on new connections, 4 on kept ones, 1 a stream of 1 s
that runs across what happens; while it does, one daemon takes over from another several times, by --reuse-port and by a
listening socket that both inherit, as from systemd. Every request must be answered with 200 and whole."""
import asyncio
import collections
import json
import select
import signal
import socket
import time

import pytest
from conftest import LONG, binary, free_port
from pace import until
from rawhttp import Raw, get

pytestmark = [pytest.mark.sanitizer, pytest.mark.alone, pytest.mark.skipif(binary().name == "mini_daemon", reason="needs serve")]
# Asked for; the client of this test must not be what limits it below 200. A sanitizer's daemon is there for its faults, not for
# its pace: what it cannot keep up with would wait in its queue of connections, and be reset with it.
RATE = 80 if any(name in str(binary()) for name in ("asan", "tsan")) else 230


def request(tokens, stream, close):
    body = json.dumps({"prompt": "a", "max_tokens": tokens, "ignore_eos": True, "stream": stream}).encode()
    return (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + (b"Connection: close\r\n" if close else b"") +
            b"Content-Length: %d\r\n\r\n" % len(body) + body)


async def read_answer(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    status = int(head.split(" ")[1])
    if "transfer-encoding: chunked" in head:
        body = b""
        while (size := int(await reader.readline(), 16)) > 0:
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readline()
    else:
        body = await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
    return status, body, "connection: close" in head


def has_ended(writer):
    """By the kernel's word: this loop may not have come to hear of it yet."""
    poll = select.poll()
    poll.register(writer.get_extra_info("socket").fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


class Load:
    def __init__(self, port):
        self.port, self.pool = port, collections.deque()
        self.outcomes = collections.Counter()

    async def one(self, kind):
        tokens, stream = (100, True) if kind == 0 else (5, False)
        reader = writer = None
        while kind < 5 and self.pool and reader is None:
            reader, writer = self.pool.popleft()
            if reader.at_eof() or writer.is_closing() or has_ended(writer):  # as every client with a pool looks
                writer.close()
                reader = None
        try:
            if reader is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(request(tokens, stream, kind >= 5))
            status, body, close = await read_answer(reader)
            whole = (body.endswith(b"data: [DONE]\n\n") and b'"finish_reason":"length"' in body) if stream else b'"completion_tokens":5' in body
            self.outcomes["ok" if status == 200 and whole else f"{status} {body[-200:]!r}"] += 1
            if close or kind >= 5:
                writer.close()
            else:
                self.pool.append((reader, writer))
        except (OSError, asyncio.IncompleteReadError) as e:
            self.outcomes[f"kind {kind}: {e!r}"] += 1

    async def run(self, stop):
        tasks, begin, k = [], time.monotonic(), 0
        while not stop.is_set():
            tasks.append(asyncio.create_task(self.one(k % 10)))
            k += 1
            await asyncio.sleep(max(0, begin + k / RATE - time.monotonic()))
        await asyncio.gather(*tasks)
        return k, time.monotonic() - begin


def is_ready(path):
    try:
        with Raw(path) as c:
            c.send(get("/ready"))
            return c.answer().status == 200
    except OSError:
        return False


async def upgrade(load, make, rounds):
    stop = asyncio.Event()
    running = asyncio.create_task(load.run(stop))
    old, codes = None, []
    await asyncio.sleep(0.5)
    for k in range(1, rounds + 1):
        old, path = make.current, None
        new, path = await asyncio.to_thread(make, k)
        while not await asyncio.to_thread(is_ready, path):
            await asyncio.sleep(0.02)
        old.process.send_signal(signal.SIGTERM)
        codes.append(await asyncio.to_thread(old.process.wait, 60))
        await asyncio.sleep(0.3)
    stop.set()
    sent, seconds = await running
    return sent, seconds, codes


class Maker:
    """Starts generation k of the daemon; `how` gives its options."""

    def __init__(self, start, tmp, name, port, how):
        self.start, self.tmp, self.name, self.port, self.how = start, tmp, name, port, how
        self.current = None

    def __call__(self, k):
        path = str(self.tmp / f"{self.name}{k}.sock")
        options = self.how()
        self.current = self.start(step_us=10000, wait=False, fds=options.get("fds"), seqs=256,
                                  extra=["--port", self.port, "--admin-socket", path, "--drain-grace-s", 1, "--log-level", "warn", *options["extra"]])
        return self.current, path


@pytest.mark.parametrize("how", ["reuse-port", "inherited socket"])
def test_an_upgrade_under_load_refuses_and_cuts_nothing(start, tmp, how, monkeypatch):
    rounds = 10 if LONG else 2
    listening, port = socket.socket(), free_port()
    if how == "reuse-port":
        make = Maker(start, tmp, "reuse", port, lambda: {"extra": ["--reuse-port"]})
    else:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen(4096)
        make = Maker(start, tmp, "inherit", port, lambda: {"fds": {"http": listening}, "extra": ["--listen-when-ready"]})
    from conftest import Daemon
    monkeypatch.setattr(Daemon, "_find_port", lambda self: setattr(self, "port", port))
    first, path = make(0)
    until(lambda: is_ready(path), "ready")
    load = Load(port)
    sent, seconds, codes = asyncio.run(upgrade(load, make, rounds))
    listening.close()
    print(f"{how}: {rounds} upgrades, {sent} requests in {seconds:.1f} s ({sent / seconds:.0f}/s), outcomes {dict(load.outcomes)}")
    assert codes == [0] * rounds
    assert load.outcomes == {"ok": sent}, load.outcomes
    assert sent / seconds > RATE / 2.3  # a noisy machine; the figure is printed
