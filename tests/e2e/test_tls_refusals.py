"""docs/api.md 1.3 and 1.4 under TLS: refusals that are given past libmicrohttpd, in the middle of a request, come once and whole, and the
connection ends as TLS ends it."""
import json
import ssl

import pytest
from pace import until
from rawhttp import Raw, get, post
from test_operator import certificates, wait_https  # noqa: F401 (a fixture)

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def tls(start, certificates):  # noqa: F811
    daemon = start(step_us=0, wait=False, body=70000, extra=["--tls-cert", certificates / "one.crt", "--tls-key", certificates / "one.key"])
    daemon.cert = certificates / "one.crt"
    wait_https(daemon, daemon.cert)
    return daemon


def secured(daemon, version=None):
    c, context = Raw(daemon.address), ssl.create_default_context(cafile=str(daemon.cert))
    if version:
        context.maximum_version = version
    c.sock = context.wrap_socket(c.sock, server_hostname="localhost", suppress_ragged_eofs=False)
    return c


def end_of(c):
    """What comes behind the answer: nothing, and then the end that close_notify makes. An end without it would be an exception."""
    c.sock.settimeout(20)
    return c.buf + c.sock.recv(65536)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("value, status", [(b"5a", 400), (b"-5", 400), (b"+5", 400), (b"", 400), (b"5, 6", 400), (b"9" * 25, 413)])
def test_a_wrong_content_length_is_answered_once(tls, version, value, status):
    """libmicrohttpd 0.9.75 wrote the head of its own answer twice."""
    with secured(tls, version) as half, secured(tls, version) as c:
        half.send(HEAD + b"Content-Length: 2\r\n")  # a head that is being read as well, with nothing wrong
        c.send(get("/health"))
        assert c.answer().status == 200  # not the first request of its connection
        c.send(HEAD + b"Content-Length: " + value + b"\r\nX-Request-Id: mine\r\n\r\n{}")
        answer = c.answer()
        assert answer.status == status and answer.header("connection") == "close"
        assert answer.json()["error"]["type"] == "invalid_request_error" and end_of(c) == b""
        half.send(b"\r\n{}")
        assert half.answer().json()["error"]["code"] == "missing_required_parameter"


def test_a_chunked_body_over_the_limit_is_413(tls):
    """The connection just ended."""
    with secured(tls) as c:
        c.send(HEAD + b"Transfer-Encoding: chunked\r\nX-Request-Id: long\r\n\r\n")
        try:
            for _ in range(8):
                c.send(b"%x\r\n%s\r\n" % (16000, b" " * 16000))
        except OSError:
            pass
        answer = c.answer()
        assert answer.status == 413 and answer.json()["error"]["code"] == "request_too_large"
        assert answer.header("x-request-id") == "long" and end_of(c) == b""


def test_many_of_them_leave_nothing(tls):
    """No descriptor, no count of something open."""
    fds = tls.fd_count()
    for k in range(200):
        with secured(tls) as c:
            c.send(HEAD + b"Content-Length: x\r\n\r\n")
            assert c.answer().status == 400
    until(lambda: tls.fd_count() <= fds + 1, "descriptors closed")
    with secured(tls) as c:
        c.send(post("/tokenize", {"prompt": "a"}))
        assert json.loads(c.answer().body)["tokens"]
