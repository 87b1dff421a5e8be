"""The suite's own instruments: each must refuse what is wrong, or a pass says nothing. Needs no daemon."""
import pytest

from conformance.prometheus import Metrics
from conformance.rows import each
from conformance.shapes import COMPLETIONS, put_together
from conformance.test_stopping import expected
from conformance.wire import Connection, loads, parse_events

GOOD = (b'# HELP a_total h\n# TYPE a_total counter\na_total{x="1"} 1\na_total{x="2"} 2e3\n'
        b'# HELP h s\n# TYPE h histogram\nh_bucket{le="0.1"} 1\nh_bucket{le="+Inf"} 3\nh_sum 0.5\nh_count 3\n')


def test_the_metrics_reader_refuses_bad_text():
    assert Metrics(GOOD).total("a_total") == 2001
    bad = [GOOD[:-1], GOOD + b"a_total 5\n", GOOD.replace(b'{x="2"}', b'{x="1"}'), GOOD.replace(b"+Inf", b"9"),
           GOOD.replace(b"h_count 3", b"h_count 4"), GOOD.replace(b'le="0.1"} 1', b'le="0.1"} 7'), GOOD.replace(b"# HELP h s\n", b""),
           GOOD.replace(b"# TYPE a_total counter\n", b""), GOOD.replace(b"2e3", b"x"), GOOD.replace(b'"2"', b'2'),
           GOOD + b"# HELP h s\n", GOOD.replace(b"counter", b"count"), GOOD.replace(b"h_sum 0.5\n", b""), b"a 1\n"]
    for text in bad:
        with pytest.raises((AssertionError, KeyError)):
            Metrics(text)


def test_the_event_reader_refuses_bad_streams():
    good = b'data: {"a":1}\n\n: ping\n\ndata: [DONE]\n\n'
    assert parse_events(good) == [{"a": 1}]
    for bad in (good[:-1], good.replace(b"data: {", b"data:{"), good.replace(b"\n\n:", b"\n:"), good * 2, b'event: x\n' + good,
                good.replace(b"\n", b"\r\n"), good.replace(b'{"a":1}', b'{"a":NaN}'), good + b"data: {}\n\n",
                good.replace(b'1', b'"\xff"'), good.replace(b'{"a":1}', b'{"a":1,"a":2}')):
        with pytest.raises((AssertionError, ValueError)):
            parse_events(bad)
    with pytest.raises(AssertionError):
        loads(b"[Infinity]")


class Fed(Connection):
    """A connection whose peer has sent these bytes and closed."""

    def __init__(self, data):
        self.pending = data

    def _more(self):
        return 0


def test_the_http_reader_refuses_bad_answers():
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Request-Id: a\r\nContent-Length: 2\r\n\r\n"
    assert Fed(head + b"{}").answer().json == {}
    chunked = head.replace(b"Content-Length: 2", b"Transfer-Encoding: chunked")
    assert Fed(chunked + b"2\r\n{}\r\n0\r\n\r\n").answer().json == {}
    for bad in (head + b"{", head.replace(b"\r\n", b"\n") + b"{}", head.replace(b" 200 OK", b" 200") + b"{}",
                head.replace(b"X-Request-Id: a\r\n", b"") + b"{}", chunked + b"2\r\n{}\r\n", chunked + b"2;x\r\n{}\r\n0\r\n\r\n",
                chunked + b"1\r\n{}\r\n0\r\n\r\n", head.replace(b"Content-Type", b"Content Type") + b"{}",
                head.replace(b"200", b"400") + b"{}", head.replace(b"200", b"422") + b"{}",
                head.replace(b"Content-Length: 2", b"Content-Length: 2\r\nTransfer-Encoding: chunked") + b"{}"):
        with pytest.raises((AssertionError, EOFError, ValueError)):
            Fed(bad).answer()


def chunk_of(**choice):
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": None, **choice}]}


def test_the_stream_checker_refuses_bad_orders():
    body, text = {"prompt": "a"}, chunk_of(text="x")
    end = chunk_of(finish_reason="stop", stop_reason=None)
    assert put_together(COMPLETIONS, body, [text, end])[0][0]["text"] == "x"
    for bad in ([text], [end, text], [end, end], [text, chunk_of(text="y", finish_reason="stop", stop_reason=None)],
                [text, {**end, "id": "cmpl-2"}], [text, chunk_of(finish_reason="stop")], [{**text, "usage": {}}, end],
                [text, chunk_of(index=1), end]):
        with pytest.raises((AssertionError, IndexError)):
            put_together(COMPLETIONS, body, bad)


class Letters:
    """A vocabulary whose tokens are the given byte strings."""

    def __init__(self, *tokens):
        self.bytes = list(tokens)


def test_the_stop_search_of_the_suite_by_the_known_cases():
    """kf-02's rows."""
    def check(tokens, stops, text, reason, count):
        vocabulary = Letters(*(t.encode() for t in tokens))
        assert expected(vocabulary, range(len(tokens)), stops, False) == (text, reason, stops[0] if reason == "stop" else None, count)
    each([(["The ", "E", "N", "D", " now"], ["END"], "The ", "stop", 4), (["ABC", "DEFG", "H"], ["DE"], "ABC", "stop", 2),
          (["x <", "/", "b>"], ["</s>"], "x </b>", "length", 3), (["a\n", "b\n", "\nc"], ["\n\n"], "a\nb", "stop", 3),
          (["aa", "ab", "z"], ["aab"], "a", "stop", 2), (["a", "zz"], ["zzz"], "azz", "length", 2)], check)
    with pytest.raises(AssertionError, match="2 of 3 rows"):
        each([(1,), (2,), (3,)], lambda n: (_ for _ in ()).throw(AssertionError("odd")) if n % 2 else None)
