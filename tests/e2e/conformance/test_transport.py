"""Section 1: framing, sizes, timeouts, media types, paths, CORS, order of refusals.

Method: requests written byte by byte on raw sockets; each row says which statuses are right and whether the
connection must be closed behind the answer.
"""
import json
import re
import socket
import time

import pytest

from conformance.conftest import KEYS
from conformance.daemon import Daemon
from conformance.rows import each
from conformance.wire import call, parse_events, request_bytes
from pace import at_best

SOUND = {"prompt": "a b c", "max_tokens": 2}
BODY = json.dumps(SOUND).encode()
COMPLETIONS = "/v1/completions"
GET_PATHS = ["/health", "/ready", "/version", "/metrics", "/v1/models"]
POST_PATHS = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]
MIB = 1 << 20


def post(*lines, body=BODY, path=COMPLETIONS, host=True):
    """A POST whose framing headers are just those given."""
    head = [f"POST {path} HTTP/1.1"] + (["Host: t"] if host else []) + ["Content-Type: application/json", *lines]
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


def chunk(data, extension=b""):
    return b"%x%s\r\n%s\r\n" % (len(data), extension, data)


def length(value=len(BODY)):
    return f"Content-Length: {value}"


CHUNKED = "Transfer-Encoding: chunked"
END = b"0\r\n\r\n"

FRAMING_ATTACKS = [
    ("two lengths that differ", post(length(), length(len(BODY) + 1)), {400}),
    ("two lengths that differ, the first too short", post(length(4), length()), {400}),
    ("two lengths as a list", post(length(f"{len(BODY)}, {len(BODY) + 1}")), {400}),
    ("one length twice in a list", post(length(f"{len(BODY)},{len(BODY)}")), {400}),
    ("length with a plus", post(length(f"+{len(BODY)}")), {400}),
    ("length negative", post(length(-1)), {400}),
    ("length in hex", post(length(f"0x{len(BODY):x}")), {400}),
    ("length with a fraction", post(length(f"{len(BODY)}.0")), {400}),
    ("length with an exponent", post(length("3e1")), {400}),
    ("length of words", post(length("many")), {400}),
    ("length empty", post(length("")), {400}),
    ("length with a letter behind", post(length(f"{len(BODY)}x")), {400}),
    ("length with a space inside", post(length("3 1")), {400}),
    ("length past 64 bits", post(length("18446744073709551617")), {400, 413}),
    ("length of 400 digits", post(length("1" * 400)), {400, 413}),
    ("chunk size of words", post(CHUNKED, body=b"zz\r\n" + BODY + b"\r\n" + END), {400}),
    ("chunk size negative", post(CHUNKED, body=b"-1\r\n" + BODY + b"\r\n" + END), {400}),
    ("chunk size with 0x", post(CHUNKED, body=b"0x%x\r\n" % len(BODY) + BODY + b"\r\n" + END), {400}),
    ("chunk size empty", post(CHUNKED, body=b"\r\n" + BODY + b"\r\n" + END), {400}),
    ("chunk size past 64 bits", post(CHUNKED, body=b"f" * 17 + b"\r\n" + BODY), {400, 413}),
    ("chunk longer than its size", post(CHUNKED, body=b"3\r\n" + BODY + b"\r\n" + END), {400}),
    ("chunk without CRLF behind", post(CHUNKED, body=b"%x\r\n%sXX%s" % (len(BODY), BODY, END)), {400}),
    ("coding gzip", post("Transfer-Encoding: gzip", length()), {400, 501}),
    ("coding gzip, chunked", post("Transfer-Encoding: gzip, chunked", body=chunk(BODY) + END), {400, 501}),
    ("coding chunked, gzip", post("Transfer-Encoding: chunked, gzip", body=chunk(BODY) + END), {400, 501}),
    ("coding xchunked", post("Transfer-Encoding: xchunked", body=chunk(BODY) + END), {400, 501}),
    ("coding gzip and no body yet", post("Transfer-Encoding: gzip", body=b""), {400, 501}),
    ("no Host", post(length(), host=False), {400}),
    ("no Host on GET", b"GET /health HTTP/1.1\r\n\r\n", {400}),
    ("two lengths on GET", b"GET /health HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n", {400}),
    ("two lengths on an unknown path", post(length(), length(3), path="/nowhere"), {400}),
    ("a bad length on OPTIONS", b"OPTIONS /health HTTP/1.1\r\nHost: t\r\nContent-Length: x\r\n\r\n", {400}),
]


@pytest.mark.sanitizer
def test_framing_attacks_are_refused_and_the_connection_closed(null):
    def check(_, data, statuses):
        with null.connect() as c:
            c.try_send(data)
            answer = c.answer(check=False)
            assert answer.status in statuses, answer
            c.rest()  # a fault below the application may have any body; it must end with the connection
    each(FRAMING_ATTACKS, check)
    assert null.get("/health").status == 200


@pytest.mark.sanitizer
def test_length_beside_chunked_is_never_read_by_the_length(null):
    hidden = request_bytes("GET", "/version", headers={"X-Request-Id": "hidden"})
    for lines in ((CHUNKED, length(4)), (length(4), CHUNKED), (length(len(END)), CHUNKED)):
        with null.connect() as c:
            # By its length the body would end early, and the rest would be read as a request of its own.
            c.try_send(post(*lines, body=chunk(BODY) + END + hidden))
            answer = c.answer(check=False)
            if answer.status == 400:
                assert c.closed()
            else:
                assert answer.status == 200 and answer.json["object"] == "text_completion"
                assert c.answer().header("x-request-id") == "hidden"
    with null.connect() as c:
        c.try_send(post(CHUNKED, length(len(BODY)), body=END + hidden))  # empty when read as chunked
        assert c.answer(check=False).status == 400


GARBAGE = [b"\r\n\r\n\r\nGARBAGE\r\n\r\n", b"GET\r\n\r\n", b"GET /health\r\n\r\n", b"GET  HTTP/1.1\r\nHost: t\r\n\r\n",
           b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
           b"GET /health HTTP/9.9\r\nHost: t\r\n\r\n", b"GET /health HTTP/1.1\r\nno colon here\r\nHost: t\r\n\r\n",
           b"GET /%zz HTTP/1.1\r\nHost: t\r\n\r\n", b"GET /%00 HTTP/1.1\r\nHost: t\r\n\r\n",
           b"GET /health%00x HTTP/1.1\r\nHost: t\r\n\r\n", b"GET /\xff\xfe HTTP/1.1\r\nHost: t\r\n\r\n",
           b"GET /health HTTP/1.1\r\nHost: t\r\nX: a\x00b\r\n\r\n", b"\x00" * 5000]


@pytest.mark.sanitizer
def test_garbage_is_refused_or_cut_and_harms_nobody(null):
    def check(data):
        with null.connect() as c:
            c.try_send(data)
            if b"\r\n\r\n" in data:
                try:
                    raw = c.socket.recv(4096)
                except ConnectionResetError:
                    raw = b""
                harmless = b"no colon" in data or b"a\x00b" in data  # below the contract: served or refused
                assert raw == b"" or harmless or re.match(rb"^HTTP/1\.[01] [45][0-9][0-9] ", raw), raw[:200]
        assert null.get("/health").json == {"status": "ok"}
    each(GARBAGE, check)


@pytest.mark.sanitizer
def test_bodies_in_chunks_and_in_small_pieces_are_the_same_body(null):
    expected = null.complete(**SOUND, seed=1)["choices"]
    body = json.dumps({**SOUND, "seed": 1}).encode()
    parts = [body[i:i + 3] for i in range(0, len(body), 3)]
    forms = [b"".join(map(chunk, parts)) + END, chunk(body, b';name="v;x";flag') + END,
             b"".join(chunk(p, b";x=1") for p in parts) + b"0;last\r\nX-Trailer: a\r\nContent-Length: 5\r\n\r\n",
             b"000000" + chunk(body) + END]
    with null.connect() as c:
        for form in forms:
            c.send(post(CHUNKED, body=form))
            assert c.answer().json["choices"] == expected
        for byte in post(length(len(body)), body=body):
            c.send(bytes([byte]))
        assert c.answer().json["choices"] == expected
        c.send(post("transfer-encoding: Chunked", body=forms[0]))
        assert c.answer().json["choices"] == expected


def test_a_long_text_in_1400_byte_pieces_is_the_same_text(null):
    text = "Zwölf Boxkämpfer jagen Viktor. " * 6400
    body = json.dumps({"prompt": text}, ensure_ascii=False).encode()
    whole = null.ok("/tokenize", {"prompt": text})
    with null.connect() as c:
        c.send(post(length(len(body)), body=b"", path="/tokenize"))
        for i in range(0, len(body), 1400):
            c.send(body[i:i + 1400])
            time.sleep(0.001)
        assert c.answer().json == whole


@pytest.mark.sanitizer
def test_expect_gets_100_unless_the_request_is_known_to_fail(keyed):
    key = f"Authorization: Bearer {KEYS[0]}"
    with keyed.connect() as c:
        c.send(post(length(), key, "Expect: 100-continue", body=b""))
        assert c.head()[1] == 100
        c.send(BODY)
        assert c.answer().status == 200

    def check(status, data):
        with keyed.connect() as c:
            c.send(data)
            assert c.head()[1] == status
    each([(404, post(length(), key, "Expect: 100-continue", body=b"", path="/v1/nowhere")),
          (405, post(length(), key, "Expect: 100-continue", body=b"", path="/v1/models")),
          (401, post(length(), "Expect: 100-continue", body=b"")),
          (415, post(length(), key, "Expect: 100-continue", body=b"").replace(b"application/json", b"text/plain")),
          (413, post(length(65537), key, "Expect: 100-continue", body=b""))], check)


# --- 1.4 sizes ---

def test_a_body_of_the_limit_works_and_one_byte_more_does_not(null):
    with null.connect() as c:
        c.send(post(length(16 * MIB), body=BODY + b" " * (16 * MIB - len(BODY))))
        assert c.answer().status == 200
        c.send(post(length(16 * MIB + 1), body=b""))  # refused before any of the body is there
        answer = c.answer()
        assert answer.status == 413 and answer.error["code"] == "request_too_large"
        assert answer.header("connection").lower() == "close" and c.closed()
    with null.connect() as c:
        c.try_send(post(length(16 * MIB + 1), body=BODY + b" " * (16 * MIB + 1 - len(BODY))))
        try:
            assert c.answer().status == 413
        except (EOFError, ConnectionResetError):
            pass  # the answer may be lost when the server closes with bytes unread


def test_a_chunked_body_past_the_limit_is_cut_and_not_buffered(null):
    before = null.rss_bytes()
    null.reset_peak()
    with null.connect() as c:
        piece = chunk(b" " * MIB)
        try:
            c.send(post(CHUNKED, body=chunk(BODY)))
            for _ in range(64):
                c.send(piece)
            refused = c.answer().status == 413
        except (BrokenPipeError, ConnectionResetError, EOFError):
            refused = True
    assert refused
    assert null.rss_bytes("VmHWM") - before < 80 * MIB
    assert null.get("/health").status == 200


def test_headers_of_16_kib_work_and_of_256_kib_do_not(null):
    def works(data):
        with null.connect() as c:
            c.send(data)
            assert c.answer("GET").status == 200

    def fails(data):
        with null.connect() as c:
            c.try_send(data)
            try:
                assert c.answer(check=False).status in (431, 414)
                assert c.closed()
            except (EOFError, ConnectionResetError):
                pass
    kib16 = 16 * 1024 - 100
    each([request_bytes("GET", "/health", headers={"X-Long": "a" * kib16}),
          request_bytes("GET", "/health", headers=[(f"X-{i}", "b" * 146) for i in range(100)]),
          request_bytes("GET", "/health", headers=[(f"X-{i}", "b" * 54) for i in range(250)]),
          request_bytes("GET", "/health?" + "c" * kib16)], works)
    each([request_bytes("GET", "/health", headers={"X-Long": "a" * 256 * 1024}),
          request_bytes("GET", "/health", headers=[(f"X-{i}", "b" * 240) for i in range(1100)]),
          request_bytes("GET", "/health?" + "c" * 256 * 1024),
          request_bytes("GET", "/" + "c" * 256 * 1024)], fails)
    assert null.get("/health").status == 200


@pytest.mark.sanitizer
def test_nesting_of_64_works_and_of_more_than_512_does_not(null):
    def nested(depth, inner="", open_="[", close="]"):
        return ('{"x":' + open_ * (depth - 1) + inner + close * (depth - 1) + "," + BODY.decode()[1:]).encode()
    works = [nested(64), nested(64, "1", '{"a":', "}"), nested(33, "[]", '[{"a":', "}]")]
    fails = [nested(514), nested(600, "1", '{"a":', "}"), nested(100_000), b"[" * 100_000, b'{"a":' * 50_000,
             nested(300, "[]", '[{"a":', "}]")]
    each(works, lambda body: _expect(null.post(COMPLETIONS, body), 200))
    each(fails, lambda body: _expect(null.post(COMPLETIONS, body), 400, "invalid_json", None))


def _expect(answer, status, code=None, *param):
    assert answer.status == status, answer
    if code:
        assert answer.error["code"] == code, answer
    if param:
        assert answer.error["param"] == param[0], answer


def test_a_million_values_work(null):
    before = null.rss_bytes()
    null.reset_peak()
    ids = b'{"max_tokens":1,"prompt":[' + b",".join([b"17"] * 1_000_000) + b"]}"
    answer = null.post(COMPLETIONS, ids)
    _expect(answer, 400, "context_length_exceeded", "prompt")
    assert "1000000" in answer.error["message"].replace(",", "")
    ignored = b'{"x":[' + b"0," * 999_990 + b"0]," + BODY[1:]
    assert null.post(COMPLETIONS, ignored).status == 200
    assert null.rss_bytes("VmHWM") - before < 16 * (len(ids) + len(ignored))


def test_a_body_made_to_blow_up_stays_under_16_times_its_size(null):
    before = null.rss_bytes()
    null.reset_peak()
    for unit in (b"[],", b"{},", b'"",', b'{"a":0},'):
        body = b'{"x":[' + unit * ((15 * MIB) // len(unit)) + b"0]," + BODY[1:]
        answer = null.post(COMPLETIONS, body)
        assert answer.status == 200 or answer.error["code"] in ("invalid_json", "invalid_value"), answer
        assert null.rss_bytes("VmHWM") - before < 16 * len(body), unit


# --- 1.5 slow clients ---

@pytest.fixture(scope="module")
def hasty():
    """Short times, and so a daemon of its own: elsewhere a client that is held up for a second is none of the test's matter."""
    with Daemon("--device", "null:0", "--header-timeout-s", 3, "--idle-timeout-s", 4) as d:
        yield d


def test_an_incomplete_request_is_closed_in_time_and_blocks_nobody(hasty):
    halves = [b"", b"G", b"POST /v1/completions HTTP/1.1\r\nHos", post(length())[:-5], post(CHUNKED, body=b"1f")]

    def is_open(c):
        c.socket.setblocking(False)
        try:
            return c.socket.recv(1) != b""
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False
        finally:
            c.socket.settimeout(120)

    def others():
        open_ = [hasty.connect() for _ in range(40)] + [hasty.connect() for _ in halves]
        for c, half in zip(open_[40:], halves):
            c.try_send(half)
        for _ in range(20):
            assert hasty.post(COMPLETIONS, SOUND).status == 200
        assert all(is_open(c) for c in open_[:40]), "others had to wait for the end of the silent ones"
        return open_
    open_ = at_best(others)
    # A client that drips a byte now and then has still sent an incomplete request.
    drip = hasty.connect()
    drip_end = time.monotonic() + 30
    drip.send(b"GET /health HTTP/1.1\r\nX: ")
    dripped = False
    while time.monotonic() < drip_end and not dripped:
        try:
            drip.send(b"a")
            drip.socket.settimeout(0.2)
            dripped = drip.socket.recv(4096) is not None
        except (TimeoutError, socket.timeout):
            pass
        except (BrokenPipeError, ConnectionResetError):
            dripped = True
    assert dripped, "a dripping client was kept for 30 s with a limit of 3 s"
    for c in open_:
        rest = c.rest()
        assert rest == b"" or rest.startswith(b"HTTP/1.1 408"), rest[:200]
    assert hasty.get("/health").status == 200


def test_an_idle_connection_is_closed_after_its_time(hasty):
    """After its 4 s, not after the usual 75."""
    with hasty.connect() as c:
        start = time.monotonic()
        c.send(request_bytes("GET", "/health"))
        c.answer("GET")
        assert c.closed(40)
        assert time.monotonic() - start > 3


# --- 1.1 versions, pipelining, 1.6 ids, 1.7 types ---

@pytest.mark.sanitizer
def test_pipelined_requests_are_answered_in_their_order(null):
    kinds = [("GET", "/health", None, 200), ("POST", COMPLETIONS, {"prompt": "x", "max_tokens": 40}, 200),
             ("POST", COMPLETIONS, {"prompt": 5}, 400), ("GET", "/nowhere", None, 404), ("HEAD", "/version", None, 200),
             ("POST", "/tokenize", {"prompt": "hello"}, 200), ("POST", COMPLETIONS, {**SOUND, "stream": True}, 200),
             ("DELETE", "/health", None, 405), ("POST", COMPLETIONS, b"{", 400), ("OPTIONS", "/health", None, 204)]
    requests = [(m, p, b, s, f"pipe.{i}") for i, (m, p, b, s) in enumerate(kinds * 3)]
    data = b"".join(request_bytes(m, p, b, {"X-Request-Id": name}) for m, p, b, _, name in requests)
    for step in (len(data), 997):
        with null.connect() as c:
            for i in range(0, len(data), step):
                c.send(data[i:i + step])
            for method, path, _, status, name in requests:
                answer = c.answer(method, request_id=name if method != "OPTIONS" else None)
                assert answer.status == status or (method == "OPTIONS" and answer.status == 200), (method, path, answer)


@pytest.mark.sanitizer
def test_http_1_0_is_answered_without_chunks_and_closed(null):
    with null.connect() as c:
        c.send(b"GET /health HTTP/1.0\r\n\r\n")  # Host is not required of 1.0
        answer = c.answer("GET")
        assert answer.status == 200 and not answer.chunked and c.closed()
    with null.connect() as c:
        c.send(request_bytes("POST", COMPLETIONS, {**SOUND, "stream": True, "seed": 4}, version="1.0"))
        answer = c.answer()
        assert answer.status == 200 and not answer.chunked and answer.header("content-length") is None
        text = "".join(e["choices"][0]["text"] for e in parse_events(answer.body))
        assert text == null.complete(**SOUND, seed=4)["choices"][0]["text"]
    with null.connect() as c:
        for _ in range(3):
            c.send(request_bytes("POST", COMPLETIONS, SOUND, {"Connection": "keep-alive"}, version="1.0"))
            answer = c.answer()
            assert answer.status == 200 and not answer.chunked
            assert (answer.header("connection") or "").lower() == "keep-alive"
        c.send(request_bytes("POST", COMPLETIONS, {**SOUND, "stream": True}, {"Connection": "keep-alive"},
                             version="1.0"))
        answer = c.answer()  # length unknown: ends by close
        assert not answer.chunked and "keep-alive" not in (answer.header("connection") or "").lower()


@pytest.mark.sanitizer
def test_connection_close_is_honoured_and_upgrade_ignored(null):
    for path, body in (("/health", None), (COMPLETIONS, SOUND), (COMPLETIONS, {**SOUND, "stream": True}),
                       (COMPLETIONS, {"prompt": 1})):
        with null.connect() as c:
            c.send(request_bytes("POST" if body else "GET", path, body, {"Connection": "close"}))
            c.answer()
            assert c.closed(), path
    with null.connect() as c:
        for _ in range(2):
            c.send(request_bytes("POST", COMPLETIONS, SOUND, {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c",
                                                              "HTTP2-Settings": "AAMAAABkAARAAAAAAAIAAAAA"}))
            answer = c.answer()
            assert answer.status == 200 and answer.version == 1


@pytest.mark.sanitizer
def test_request_ids_are_kept_when_sound_and_made_anew_otherwise(null):
    for name in ("a", "A-Z.0_9", "x" * 128):
        assert null.get("/health", {"X-Request-Id": name}).header("x-request-id") == name
        assert null.post(COMPLETIONS, {"prompt": 1}, {"x-request-id": name}).header("X-Request-Id") == name
        assert null.post(COMPLETIONS, {**SOUND, "stream": True}, {"x-request-id": name}).header("x-request-id") == name
    fresh = [null.get("/health").header("x-request-id")]
    for name in ("x" * 129, "a b", "a\tb", "semi;colon", "<script>", "ümlaut", "a/b", "", "a,b", '"q"'):
        answer = null.get("/health", {"X-Request-Id": name})
        fresh.append(answer.header("x-request-id"))
        assert fresh[-1] != name and not (name and name in str(answer.headers)), answer.headers
    assert len(set(fresh)) == len(fresh)


MEDIA_TYPES = [
    ("application/json", 200), ("Application/JSON", 200), ("application/json; charset=utf-8", 200),
    ("application/json;charset=UTF-8", 200), ('application/json; charset="utf-8"', 200), (None, 200),
    ("application/problem+json", 200), ("application/vnd.api+json; version=1", 200), ("APPLICATION/X+JSON", 200),
    ("application/json; a=b; c=d", 200),
    ("text/plain", 415), ("application/x-www-form-urlencoded", 415), ("multipart/form-data; boundary=x", 415),
    ("text/json", 415), ("application/jsonx", 415), ("application/x+jsonx", 415), ("json", 415), ("*/*", 415),
    ("text/plain; x=application/json", 415), ("application/json; charset=latin-1", 415),
    ("application/json; charset=utf-16", 415), ("application/octet-stream", 415),
]


@pytest.mark.sanitizer
def test_media_types(null):
    def check(kind, status):
        for path, body in ((COMPLETIONS, SOUND), ("/tokenize", {"prompt": "a"})):
            _expect(null.post(path, body, {"Content-Type": kind}), status,
                    "unsupported_media_type" if status == 415 else None)
    each(MEDIA_TYPES, check)

    def coding(name, status):
        _expect(null.post(COMPLETIONS, SOUND, {"Content-Encoding": name}), status)
    each([("identity", 200), ("Identity", 200), ("gzip", 415), ("br", 415), ("deflate, gzip", 415)], coding)


# --- 1.8 paths and methods ---

@pytest.mark.sanitizer
def test_paths_are_compared_decoded_and_without_the_query(null):
    for path in ("/%68ealth", "/health?x=1", "/health?", "/%76%65rsion?a=/b", "/v1/model%73", "/v1%2Fmodels"):
        assert null.get(path).status == 200, path
    assert null.post("/v1/%63ompletions?api-version=1", SOUND).status == 200
    for path in ("/nowhere", "/v1", "/v1/", "/v2/models", "/HEALTH", "/healthz", "/v1/completionsx",
                 "/v1/chat", "/v1/embeddings", "/v1/responses"):
        for answer in (null.get(path), null.post(path, SOUND)):
            _expect(answer, 404, "not_found", None)


@pytest.mark.sanitizer
def test_wrong_methods_get_405_with_allow_and_head_works_like_get(null):
    def wrong(method, path, right):
        answer = call(null.address, method, path, SOUND if method in ("POST", "PUT", "PATCH") else None)
        assert answer.status == 405, answer
        allowed = {m.strip() for m in answer.header("allow").split(",")}
        assert right in allowed and method not in allowed, allowed
        if method != "HEAD":
            assert answer.error["code"] == "method_not_allowed"
    each([(m, p, "GET") for p in [*GET_PATHS, "/v1/models/x"] for m in ("POST", "PUT", "DELETE", "PATCH")] +
         [(m, p, "POST") for p in POST_PATHS for m in ("GET", "HEAD", "PUT", "DELETE", "PATCH")], wrong)

    model = null.get("/v1/models").json["data"][0]["id"]
    changing = {"date", "x-request-id", "content-length", "retry-after"}
    with null.connect() as c:
        for path in [*GET_PATHS, "/v1/models/" + model, "/nowhere", "/v1/models/nope"]:
            c.send(request_bytes("GET", path))
            got = c.answer("GET")
            c.send(request_bytes("HEAD", path))
            head = c.answer("HEAD")
            assert got.status == head.status, path
            assert {n for n, _ in got.headers} == {n for n, _ in head.headers}, path
            assert ({(n, v) for n, v in got.headers if n not in changing} ==
                    {(n, v) for n, v in head.headers if n not in changing}), path
            if path != "/metrics":
                assert head.header("content-length") == str(len(got.body)), path


# --- 1.9 CORS ---

@pytest.mark.sanitizer
def test_cors_is_a_star_without_credentials(null, keyed):
    asked = "authorization, content-type, x-stainless-os, x-stainless-lang, openai-beta, x-my-own"
    for path in GET_PATHS + POST_PATHS + ["/v1/models/x"]:
        answer = call(null.address, "OPTIONS", path, None, {
            "Origin": "http://a.example", "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": asked})
        assert answer.status in (200, 204), (path, answer)
        assert answer.header("access-control-allow-origin") == "*"
        assert {"GET", "POST"} <= {m.strip() for m in answer.header("access-control-allow-methods").split(",")}
        names = {n.strip().lower() for n in answer.header("access-control-allow-headers").split(",")}
        assert {"authorization", "content-type"} <= names
        assert "*" in names or {n.strip() for n in asked.split(",")} <= names
        assert answer.header("access-control-allow-credentials") is None
    for path, body, status in ((COMPLETIONS, SOUND, 200), (COMPLETIONS, {"prompt": 1}, 400), ("/nowhere", SOUND, 404),
                               (COMPLETIONS, {**SOUND, "stream": True}, 200), ("/health", SOUND, 405)):
        answer = null.post(path, body, {"Origin": "https://b.example"})
        assert answer.status == status and answer.header("access-control-allow-origin") == "*", answer.headers
        assert answer.header("access-control-allow-credentials") is None
    # An injected header of the request's own must not come back as a header line of the answer.
    answer = call(null.address, "OPTIONS", "/health", None, {"Origin": "x", "Access-Control-Request-Method": "GET",
                                                             "Access-Control-Request-Headers": "a\tb, <x>"})
    assert answer.status in (200, 204)
    # Switched off.
    answer = keyed.post(COMPLETIONS, SOUND, {"Origin": "https://b.example"})
    assert answer.header("access-control-allow-origin") is None


def test_options_needs_no_key(keyed):
    for path in POST_PATHS + ["/v1/models"]:
        assert call(keyed.address, "OPTIONS", path).status in (200, 204, 405)


# --- 1.10, 1.11 ---

@pytest.mark.sanitizer
def test_a_connection_outlives_errors_whose_request_was_read(null):
    bad = [(COMPLETIONS, b"{", 400), (COMPLETIONS, {"prompt": []}, 400), (COMPLETIONS, {**SOUND, "model": "nope"}, 404),
           (COMPLETIONS, b"", 400), (COMPLETIONS, {"prompt": [5] * 9000}, 400)]
    with null.connect() as c:
        for path, body, status in bad * 3:
            c.send(request_bytes("POST", path, body))
            answer = c.answer()
            assert answer.status == status, (path, body, answer)
            c.send(request_bytes("POST", COMPLETIONS, SOUND))
            assert c.answer().status == 200
        for method, path, status in (("GET", "/nowhere", 404), ("DELETE", "/health", 405), ("GET", COMPLETIONS, 405)):
            c.send(request_bytes(method, path) * 2)
            assert c.answer(method).status == status and c.answer(method).status == status
    # A refusal that is certain before the body may leave it unread; then it says so and closes.
    for path, headers, status in (("/nowhere", {}, 404), ("/health", {}, 405), (COMPLETIONS, {"Content-Type": "a/b"}, 415)):
        with null.connect() as c:
            c.send(request_bytes("POST", path, SOUND, headers))
            answer = c.answer()
            assert answer.status == status
            if (answer.header("connection") or "").lower() == "close":
                assert c.closed()
            else:
                c.send(request_bytes("POST", COMPLETIONS, SOUND))
                assert c.answer().status == 200


@pytest.mark.sanitizer
def test_left_over_body_is_never_read_as_a_request(keyed):
    """Early refusals of a request whose body holds a request of its own: one answer, never two."""
    inner = request_bytes("GET", "/health", headers={"X-Request-Id": "inner"})
    for path, headers, status in (("/nowhere", {}, 404), ("/health", {}, 405), (COMPLETIONS, {}, 401),
                                  (COMPLETIONS, {"Authorization": f"Bearer {KEYS[0]}", "Content-Type": "text/plain"}, 415)):
        with keyed.connect() as c:
            c.try_send(request_bytes("POST", path, inner * 3, headers))
            assert c.answer().status == status
            c.try_send(request_bytes("GET", "/version", headers={"X-Request-Id": "outer"}))
            try:
                assert c.answer("GET").header("x-request-id") == "outer"
            except (EOFError, ConnectionResetError):
                pass  # closed: right too


@pytest.mark.sanitizer
def test_order_of_refusals(keyed):
    key = {"Authorization": f"Bearer {KEYS[0]}"}
    plain = {"Content-Type": "text/plain"}
    large = {"Content-Length": "999999"}
    long_ids = [17] * 9000

    def check(status, code, param, method, path, body, headers):
        with keyed.connect() as c:
            c.try_send(request_bytes(method, path, body, headers))
            answer = c.answer(method)
        _expect(answer, status, code, param)
    each([
        (404, "not_found", None, "POST", "/v1/nowhere", b"{", {**plain, **large}),
        (405, "method_not_allowed", None, "DELETE", "/v1/models", None, {}),
        (405, "method_not_allowed", None, "PUT", COMPLETIONS, b"{", {**plain, **large}),
        (401, "invalid_api_key", None, "POST", COMPLETIONS, b"{", {**plain, **large}),
        (415, "unsupported_media_type", None, "POST", COMPLETIONS, b"{", {**key, **plain, **large}),
        (413, "request_too_large", None, "POST", COMPLETIONS, b"{", {**key, **large}),
        (400, "invalid_json", None, "POST", COMPLETIONS, b'{"model":"nope","temperature":9,}', key),
        (400, "invalid_value", "temperature", "POST", COMPLETIONS,
         {"model": "nope", "prompt": long_ids, "temperature": 9}, key),
        (400, "missing_required_parameter", "prompt", "POST", COMPLETIONS, {"model": "nope"}, key),
        (404, "model_not_found", "model", "POST", COMPLETIONS, {"model": "nope", "prompt": long_ids}, key),
        (404, "model_not_found", "model", "POST", "/v1/chat/completions",
         {"model": "nope", "messages": [{"role": "user", "content": "a"}]}, key),
        (400, "context_length_exceeded", "prompt", "POST", COMPLETIONS, {"model": "alias", "prompt": long_ids}, key),
    ], check)
