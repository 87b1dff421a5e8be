"""Section 18.1: a full queue; section 4: 429 with Retry-After; 1.11 for what comes before it.

Method: a server with room for two running and four waiting sequences, 20 ms a step, filled by streams that are still open.
"""
import contextlib

import pytest

from conformance.daemon import Daemon
from conformance.rows import each
from conformance.shapes import CHAT, COMPLETIONS
from conformance.wire import request_bytes
from pace import quickly, until

RUNNING, WAITING = 2, 4
USER = {"role": "user", "content": "a"}


@pytest.fixture(scope="module")
def small():
    with Daemon("--device", "null:20000", "--max-num-seqs", RUNNING, "--max-queue-seqs", WAITING) as d:
        yield d


@contextlib.contextmanager
def filled(small):
    """Every place taken; on leaving all clients vanish and the server must become idle."""
    open_ = []

    def gauges():
        m = small.metrics()
        return m.value("inferd_requests_running"), m.value("inferd_requests_waiting")
    try:
        for k in range(RUNNING + WAITING):
            c = small.connect()
            c.send(request_bytes("POST", COMPLETIONS, {"prompt": "a", "max_tokens": 2000, "stream": k % 2 == 0}))
            open_.append(c)
            want = min(k + 1, RUNNING), max(0, k + 1 - RUNNING)
            until(lambda: gauges() == want, f"running and waiting {want}")
        yield open_
    finally:
        for c in open_:
            c.close()
    small.wait_idle()


@pytest.mark.sanitizer
def test_a_full_queue_is_429_at_once(small):
    before, asked = small.metrics(), []  # places come free after 40 s
    with filled(small):
        def check(path, body):
            answer = quickly(5, lambda: asked.append(path) or small.post(path, body))
            assert answer.status == 429, answer  # Retry-After and the type are checked for every answer
            assert answer.header("content-type").startswith("application/json")
        each([(COMPLETIONS, {"prompt": "a"}), (COMPLETIONS, {"prompt": "a", "stream": True}), (COMPLETIONS, {"prompt": ["a", "b"]}),
              (CHAT, {"messages": [USER]}), (CHAT, {"messages": [USER], "n": 3, "stream": True})], check)
        # What comes before 429 in the order of refusals, and what needs no place.
        for path, body, status in ((COMPLETIONS, b"{", 400), (COMPLETIONS, {"prompt": []}, 400),
                                   (COMPLETIONS, {"prompt": "a", "model": "nope"}, 404),
                                   (COMPLETIONS, {"prompt": [5] * 9000}, 400), (COMPLETIONS, {"prompt": "a", "n": 128}, 400),
                                   ("/tokenize", {"prompt": "a"}, 200), ("/detokenize", {"tokens": [5]}, 200)):
            assert small.post(path, body).status == status, (path, status)
        for path in ("/health", "/ready", "/metrics", "/v1/models"):
            assert small.get(path).status == 200
        rejected = small.metrics().total("inferd_requests_rejected_total") - before.total("inferd_requests_rejected_total")
        assert rejected == len(asked) >= 5
    assert small.complete(prompt="a", max_tokens=1)["usage"]["completion_tokens"] == 1


def test_a_request_is_admitted_whole_or_not_at_all(small):
    with filled(small) as open_:
        open_.pop().close()
        until(lambda: small.metrics().value("inferd_requests_waiting") == WAITING - 1, "one place free")
        assert small.post(COMPLETIONS, {"prompt": "a", "n": 2}).status == 429
        assert small.metrics().value("inferd_requests_waiting") == WAITING - 1
        c = small.connect()
        open_.append(c)
        c.send(request_bytes("POST", COMPLETIONS, {"prompt": "a", "max_tokens": 5}))
        until(lambda: small.metrics().value("inferd_requests_waiting") == WAITING, "the place taken")


def test_more_than_the_queue_ever_holds_is_a_400(small):
    for body, params in (({"prompt": "a", "n": 128}, ("n",)), ({"prompt": ["a"] * 100}, ("prompt", "n"))):
        answer = small.post(COMPLETIONS, body)
        assert answer.status == 400 and answer.error["code"] == "invalid_value" and answer.error["param"] in params, answer


def test_waiting_ones_start_when_places_come_free(small):
    with filled(small) as open_:
        last = small.connect()
        open_.pop().close()
        until(lambda: small.metrics().value("inferd_requests_waiting") == WAITING - 1, "one place free")
        last.send(request_bytes("POST", COMPLETIONS, {"prompt": "a", "max_tokens": 3}))
        while open_:
            open_.pop(0).close()  # the running ones first
        assert last.answer().json["usage"]["completion_tokens"] == 3
        last.close()
