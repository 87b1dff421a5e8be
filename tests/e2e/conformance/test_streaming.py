"""Section 11: the form of a stream, and that it says what the whole answer says. kf-15.

Method: put_together() checks the order of chunks; both_ways() runs everything streamed and whole.
"""
import codecs
import random
import time

import pytest

from conformance.rows import each
from conformance.shapes import CHAT, COMPLETIONS, both_ways, put_together
from conformance.wire import loads, parse_events, request_bytes
from pace import at_best

USER = {"role": "user", "content": "Tell me something"}
BASES = {COMPLETIONS: {"prompt": "a b c", "seed": 7, "max_tokens": 12}, CHAT: {"messages": [USER], "seed": 7, "max_tokens": 12}}


@pytest.mark.sanitizer
def test_headers_and_framing(null):
    for path, base in BASES.items():
        with null.connect() as c:
            for _ in range(2):  # the connection stays usable
                c.send(request_bytes("POST", path, {**base, "stream": True}, {"X-Request-Id": "abc"}))
                answer = c.answer(request_id="abc")
                kind = answer.header("content-type").lower().replace(" ", "")
                assert kind in ("text/event-stream", "text/event-stream;charset=utf-8")
                assert answer.header("cache-control") == "no-cache" and answer.chunked
                assert answer.header("content-length") is None
                parse_events(answer.body)


@pytest.mark.sanitizer
def test_every_combination_streams_what_it_answers_whole(null):
    options = {"n": [1, 3], "stop": [None, ["e"], ["zzzz", "th"]], "include_stop_str_in_output": [False, True],
               "return_token_ids": [False, True], "max_tokens": [1, 2, 33], "skip_special_tokens": [True, False],
               "min_tokens": [0, 1], "ignore_eos": [False, True], "temperature": [0, 1]}
    rng = random.Random(4)
    rows = []
    for _ in range(60):
        body = {k: rng.choice(v) for k, v in options.items()} | {"seed": rng.randrange(1000)}
        path = rng.choice([COMPLETIONS, CHAT])
        if path == COMPLETIONS:
            body["prompt"] = rng.choice(["a", ["a", "b c"], [5, 6], [[5], [6, 7, 8]], "Grüße 🌶"])
        else:
            body["messages"] = [USER]
        rows.append((path, body))
    each(rows, lambda path, body: both_ways(null, path, body))
    null.wait_idle()


@pytest.mark.sanitizer
def test_usage_comes_on_request_only(null):
    for path, base in BASES.items():
        for options in (None, {}, {"include_usage": False}, {"include_usage": None}):
            body = {**base, "stream": True, "stream_options": options}
            put_together(path, body, null.stream(path, body))  # holds usage to be absent or null
        body = {**base, "stream": True, "stream_options": {"include_usage": True}, "n": 3}
        _, usage = put_together(path, body, null.stream(path, body))
        assert usage["completion_tokens"] == 36
        body["stream_options"]["continuous_usage_stats"] = True
        events = null.stream(path, body)
        assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 36


def test_tokens_are_sent_as_they_come(slow):
    """11.7: at 2.5 ms a step, no token waits for others, and none arrives after the next ones were due."""
    def check(path, base):
        with slow.connect() as c:
            c.send(request_bytes("POST", path, {**base, "max_tokens": 100, "return_token_ids": True, "stream": True}))
            c.head()
            times, tokens = [], []
            for data in c.chunks():
                times.append(time.monotonic())
                for event in data.split(b"\n\n"):
                    if event.startswith(b"data: {"):
                        for choice in loads(event[6:])["choices"]:
                            if choice.get("token_ids"):
                                tokens.append((times[-1], len(choice["token_ids"])))
        assert sum(n for _, n in tokens) == 100
        assert len(tokens) > 60, f"{len(tokens)} chunks for 100 tokens"
        assert tokens[-1][0] - tokens[0][0] > 0.15, "the stream came all at once"
    for path, base in BASES.items():
        at_best(lambda: check(path, base))


def test_two_streams_interleave_on_two_connections(slow):
    """Both at once, not one after the other: each has begun, and neither has ended, which takes 10 s."""
    with slow.connect() as one, slow.connect() as two:
        for c in (one, two):
            c.send(request_bytes("POST", COMPLETIONS, {"prompt": "a", "max_tokens": 4000, "ignore_eos": True, "stream": True}))
            c.head()
        streams = one.chunks(), two.chunks()
        for _ in range(5):
            for stream in streams:
                assert b"[DONE]" not in next(stream)
        assert slow.metrics().value("inferd_requests_running") >= 2
    slow.wait_idle()


@pytest.mark.sanitizer
def test_every_delta_is_whole_characters_and_text_certain_at_once(null, vocabulary):
    """Text comes with the first token that makes it certain, not later (11.7), for any tokens."""
    def check(seed):
        body = {"prompt": "x", "max_tokens": 50, "seed": seed, "return_token_ids": True, "stream": True}
        decoder, expected, got, count = codecs.getincrementaldecoder("utf-8")("replace"), "", "", 0
        for event in null.stream(COMPLETIONS, body):
            for c in event["choices"]:
                ids = c.get("token_ids") or []
                count += len(ids)
                expected += "".join(decoder.decode(vocabulary.bytes[i]) for i in ids)
                got += c["text"]
                if count < 50:
                    assert got == expected, (got[-20:], expected[-20:])
        assert got == expected + decoder.decode(b"", True)
    each([(s,) for s in range(15)], check)
