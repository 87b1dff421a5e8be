"""docs/api.md 18.3: one key, or without keys one address, cannot keep the others from memory that all have in common.

What is held is seen in /metrics; a hoarder asks for more than there is and neither reads nor finishes sending. The others are of
other keys, or of other addresses of 127.0.0.0/8."""
import contextlib
import select

import pytest
from conftest import LONG
from pace import until
from rawhttp import Raw, post
from zmqclient import connect, endpoint_of, pb, zmq

pytestmark = pytest.mark.sanitizer
MIB = 1 << 20
BODIES, ANSWERS = 256 * MIB, 512 * MIB  # with the --max-body-bytes of default


def held(daemon, what):
    return daemon.metrics()[f"inferd_{what}_bytes_held"]


def bearer(key):
    return [f"Authorization: Bearer {key}"] if key else []


def sender_of(length, daemon, key, source):
    """A connection that has sent the head of a body of so many bytes, and one of them."""
    c = Raw(daemon.address, 60, source=source)
    c.send(post("/v1/completions", b"{", *bearer(key)).replace(b"Content-Length: 1\r\n", b"Content-Length: %d\r\n" % length))
    return c


def ask(daemon, key, source, prompt="a"):
    with Raw(daemon.address, 60, source=source) as c:
        c.send(post("/tokenize", {"prompt": prompt}, *bearer(key)))
        return c.answer()


@pytest.mark.parametrize("by", ["key", "address"])
def test_bodies_that_never_come_take_a_share(start, by):
    """One who announces 16 bodies of 16 MiB and sends none of them had all of the memory for bodies: everybody else got 503."""
    keys = ("hoarder", "other") if by == "key" else ()
    daemon = start(step_us=0, keys=keys, body_s=600)
    hoarder, other = (("hoarder", None), ("other", None)) if keys else ((None, ("127.0.0.7", 0)), (None, ("127.0.0.8", 0)))
    open_ones = [sender_of(16 * MIB, daemon, *hoarder) for _ in range(16)]
    until(lambda: held(daemon, "request") >= BODIES / 2, "its share is taken")
    until(lambda: daemon.metrics()['inferd_requests_rejected_total{reason="share"}'] == 8, "the others are refused")
    answers = [c.answer() for c in open_ones if select.select([c.sock], [], [], 0)[0]]
    assert len(answers) == 8 and held(daemon, "request") == BODIES / 2
    for a in answers:
        error = a.json()["error"]
        assert (a.status, error["type"], error["code"]) == (429, "rate_limit_error", "share_exceeded"), a.body
        assert a.header("retry-after") == "1" and a.header("connection") == "close"
    mine = ask(daemon, *hoarder)
    assert mine.status == 429 and mine.json()["error"]["code"] == "share_exceeded"
    assert ask(daemon, *other, prompt="a " * MIB).status == 200  # 2 MiB
    for c in open_ones:
        c.close()
    until(lambda: held(daemon, "request") == 0, "all is given back")
    assert ask(daemon, *hoarder).status == 200


def test_a_chunked_body_that_grows_over_the_share_is_told_so(start):
    """It was told that its body was too large, which it was not."""
    daemon = start(step_us=0, body_s=600)
    fill = [sender_of(16 * MIB, daemon, None, None) for _ in range(7)]
    until(lambda: held(daemon, "request") >= 112 * MIB, "most of the share")
    fill.append(sender_of(16 * MIB - 100000, daemon, None, None))
    until(lambda: held(daemon, "request") >= 128 * MIB - 100000, "nearly all of it")
    c = daemon.raw()
    c.send(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n")
    part = b"%x\r\n%s\r\n" % (50000, b" " * 50000)
    try:
        for _ in range(6):
            c.send(part)
    except OSError:
        pass
    answer = c.answer()
    assert (answer.status, answer.json()["error"]["code"], answer.header("retry-after")) == (429, "share_exceeded", "1"), answer.body
    for f in fill:
        f.close()
    c.close()


def too_slow_here(daemon):
    if daemon.sanitized and not LONG:
        pytest.skip("hundreds of MiB of text are made: a minute with a sanitizer")


def long_text(daemon, mib=20):
    """A body for /detokenize whose answer has so many MiB (of a twentieth of that), and the length of that text."""
    with daemon.raw(60) as c:
        c.send(post("/tokenize", {"prompt": " " * 256}, *daemon.auth()))
        longest = c.answer().json()["tokens"][0]
        c.send(post("/detokenize", {"tokens": [longest]}, *daemon.auth()))
        length = len(c.answer().json()["prompt"])
    return [longest] * (mib * MIB // length), mib * MIB // length * length


def asker(daemon, tokens, key=None, source=None):
    c = Raw(daemon.address, 120, source=source)
    c.send(post("/detokenize", {"tokens": tokens}, *bearer(key)))
    return c


@pytest.mark.parametrize("by", ["key", "address"])
def test_answers_that_are_not_read_take_a_share(start, by):
    """One who reads none of his answers of 20 MiB may hold 12 of them, over HTTP; another's are answered meanwhile, over ZeroMQ too."""
    keys = ("hoarder", "other") if by == "key" else ()
    daemon = start(step_us=0, keys=keys, stall_s=600, zmq="tcp://127.0.0.1:*")
    hoarder, other = (("hoarder", None), ("other", None)) if keys else ((None, ("127.0.0.7", 0)), (None, ("127.0.0.8", 0)))
    too_slow_here(daemon)
    tokens, length = long_text(daemon)
    slow = [asker(daemon, tokens, *hoarder) for _ in range(14)]

    def all_made():
        m = daemon.metrics()
        return sum(v for k, v in m.items() if k.startswith('inferd_http_requests_total{method="POST",path="/detokenize"')) >= 15
    until(all_made, "all are answered or refused", 600)
    assert ANSWERS / 2 - 21 * MIB < held(daemon, "answer") <= ANSWERS / 2
    heads = [c.head() for c in slow]
    refused = [c for c, (_, status, _) in zip(slow, heads) if status == 429]
    assert [status for _, status, _ in heads].count(200) == 12 and len(refused) == 2
    with asker(daemon, tokens, *hoarder) as c:
        a = c.answer()
        assert (a.status, a.json()["error"]["code"], a.header("retry-after")) == (429, "share_exceeded", "1")
        c.send(post("/tokenize", {"prompt": "a"}, *bearer(hoarder[0])))
        assert c.answer().status == 200  # small ones do not count
    with asker(daemon, tokens, *other) as c:
        assert len(c.answer().json()["prompt"]) == length
    if keys:
        z = connect(daemon, api_key="hoarder")
        assert z.ask(detokenize=pb.Detokenize(ids=tokens)).error.code == "share_exceeded"  # one share, whatever the way
        z.close()
        z = connect(daemon, api_key="other")
        assert len(z.ask(detokenize=pb.Detokenize(ids=tokens)).detokenize.text) == length
        z.close()
    for c in slow:
        c.close()
    until(lambda: held(daemon, "answer") == 0, "all is given back")
    with asker(daemon, tokens, *hoarder) as c:
        assert c.answer().status == 200


def test_a_zmq_connection_with_two_keys_gives_back_what_it_took(start):
    """Answers of several keys leave in one message, whose bytes are then one key's."""
    daemon = start(step_us=0, keys=("a", "b"), stall_s=600, zmq="tcp://127.0.0.1:*")
    tokens, length = long_text(daemon, 2)
    both = connect(daemon, api_key="a")
    for key in ("a", "b", "a", "b"):
        both.api_key = key
        both.send(detokenize=pb.Detokenize(ids=tokens))
    for _ in range(4):
        assert len(both.receive().detokenize.text) == length
    until(lambda: held(daemon, "answer") == held(daemon, "request") == 0, "all is given back")
    both.close()


def test_ipc_clients_share_by_user(start, tmp):
    """Two connections of one user are one holder; none of them may take what the addresses' clients need."""
    daemon = start(step_us=0, stall_s=600, zmq=f"ipc://{tmp}/shares.sock")
    too_slow_here(daemon)
    tokens, length = long_text(daemon)
    sockets = []
    for _ in range(2):
        s = zmq.Context.instance().socket(zmq.DEALER)
        for option, value in ((zmq.RCVHWM, 1), (zmq.LINGER, 0)):
            s.setsockopt(option, value)
        s.connect(endpoint_of(daemon))
        for k in range(10):
            s.send(pb.Request(id=k + 1, detokenize=pb.Detokenize(ids=tokens)).SerializeToString())
        sockets.append(s)
    # what the sockets take in is held no more; the rest is bounded by one share
    name = 'inferd_zmq_requests_total{kind="detokenize",status="%d"}'

    def all_told():  # a libzmq that does not read answers no heartbeat: it says something, or may be taken for gone with what it asked
        for s in sockets:
            with contextlib.suppress(zmq.Again):
                s.send(b"", zmq.DONTWAIT)
        m = daemon.metrics()
        return m.get(name % 200, 0) + m.get(name % 429, 0) >= 20 or m["inferd_zmq_clients_vanished_total"] > 0
    until(all_told, "all answered or refused", 600)
    assert held(daemon, "answer") <= ANSWERS / 2
    with asker(daemon, tokens) as c:
        assert len(c.answer().json()["prompt"]) == length
    for s in sockets:
        s.close()
    until(lambda: held(daemon, "answer") == 0, "all is given back")
