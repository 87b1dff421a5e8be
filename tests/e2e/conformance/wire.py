"""A raw HTTP/1.x client that believes nothing: it reads answers byte by byte and fails on any that is not well formed.

Every answer that comes through `Connection.answer` is held to the rules that concern all answers (sections 1.6, 3.5, 4.1).
"""
import json
import re
import socket

from pace import PATIENCE_S

TOKEN = re.compile(rb"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
STATUS_LINE = re.compile(rb"^HTTP/1\.([01]) ([1-5][0-9]{2}) [\x20-\x7e]*$")
REQUEST_ID = re.compile(r"^[A-Za-z0-9._-]{1,128}$")
CODES = {
    400: {"invalid_json", "missing_required_parameter", "invalid_type", "invalid_value", "unsupported_parameter",
          "context_length_exceeded"},
    401: {"invalid_api_key"},
    404: {"model_not_found", "not_found"},
    405: {"method_not_allowed"},
    413: {"request_too_large"},
    415: {"unsupported_media_type"},
    429: {"rate_limit_exceeded"},
    500: {"internal_error"},
    503: {"model_loading", "server_draining", "service_unavailable"},
}


def error_type(status):
    return {429: "rate_limit_error"}.get(status, "server_error" if status >= 500 else "invalid_request_error")


class Answer:
    def __init__(self, version, status, headers, body, chunked):
        self.version, self.status, self.headers, self.body, self.chunked = version, status, headers, body, chunked

    def header(self, name):
        values = [v for n, v in self.headers if n == name.lower()]
        assert len(values) <= 1 or name.lower() in ("vary", "allow"), f"{name} stands {len(values)} times"
        return values[0] if values else None

    @property
    def json(self):
        return loads(self.body)

    @property
    def error(self):
        return self.json["error"]

    def __repr__(self):
        return f"<{self.status} {self.body[:600]!r}>"


def loads(raw):
    """JSON as RFC 8259 has it: UTF-8, no NaN, no name twice in an object."""
    def no_twins(pairs):
        names = [n for n, _ in pairs]
        assert len(names) == len(set(names)), f"a name stands twice: {names}"
        return dict(pairs)

    def no_constant(word):
        raise AssertionError(f"{word} is not JSON")
    return json.loads(raw.decode("utf-8", "strict"), object_pairs_hook=no_twins, parse_constant=no_constant)


def check_application_answer(answer, sent_request_id=None):
    """The rules for every answer that the application makes."""
    kind = answer.header("content-type") or ""
    request_id = answer.header("x-request-id")
    assert request_id and REQUEST_ID.match(request_id), f"x-request-id {request_id!r}: {answer}"
    if sent_request_id is not None:
        assert request_id == sent_request_id
    if answer.status >= 400:
        assert re.match(r"^application/json(; *charset=utf-8)?$", kind, re.I), f"{kind!r}: {answer}"
        if answer.body:
            check_error(answer.status, answer.json)
    if answer.status in (429, 503):
        assert re.match(r"^[1-9][0-9]*$", answer.header("retry-after") or ""), f"Retry-After: {answer.headers}"
    if answer.status == 401:
        assert (answer.header("www-authenticate") or "").startswith("Bearer"), answer.headers
    assert answer.status != 422


def check_error(status, body):
    if status == 503 and set(body) != {"error"}:
        assert body["status"] in ("loading", "draining", "error"), body  # /ready and /health
        return
    assert set(body) == {"error"}, body
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    assert isinstance(error["message"], str) and len(error["message"]) >= 8, error
    assert error["param"] is None or isinstance(error["param"], str), error
    assert error["type"] == error_type(status), (status, error)
    assert error["code"] in CODES[status], (status, error)
    assert len(error["message"]) < 1200, "a message holds at most 200 characters of the request"
    assert not re.search(r"/(home|root|work|tmp|usr|src)/|\.c:[0-9]+|0x[0-9a-f]{8}", error["message"]), error


class Connection:
    """One TCP connection. `send` bytes, then `answer` reads exactly one answer."""

    def __init__(self, address, timeout=PATIENCE_S):
        self.socket = socket.create_connection(address, timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pending = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def reset(self):
        """Vanish: the peer gets RST instead of FIN."""
        import struct
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def try_send(self, data):
        """For requests that may be refused, and the connection closed, before they were sent whole."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def _more(self):
        data = self.socket.recv(65536)
        self.pending += data
        return len(data)

    def line(self):
        while b"\n" not in self.pending:
            if not self._more():
                raise EOFError(f"closed in the middle of a line: {self.pending[:200]!r}")
        line, self.pending = self.pending.split(b"\n", 1)
        assert line.endswith(b"\r"), f"a line of the head ends without CR: {line!r}"
        return line[:-1]

    def exactly(self, count):
        while len(self.pending) < count:
            if not self._more():
                raise EOFError(f"closed {count - len(self.pending)} bytes early")
        data, self.pending = self.pending[:count], self.pending[count:]
        return data

    def rest(self):
        try:
            while self._more():
                pass
        except ConnectionResetError:
            pass
        data, self.pending = self.pending, b""
        return data

    def head(self):
        first = self.line()
        match = STATUS_LINE.match(first)
        assert match, f"status line {first!r}"
        headers = []
        while True:
            line = self.line()
            if not line:
                break
            name, colon, value = line.partition(b":")
            assert colon and TOKEN.match(name), f"header line {line!r}"
            headers.append((name.decode().lower(), value.strip().decode("latin-1")))
        return int(match[1]), int(match[2]), headers

    def chunks(self):
        """Yields the chunks of a chunked body, up to its end."""
        while True:
            size = self.line()
            assert re.match(rb"^[0-9a-fA-F]+$", size), f"chunk size {size!r}"
            count = int(size, 16)
            if count == 0:
                assert self.line() == b"", "trailers"
                return
            yield self.exactly(count)
            assert self.exactly(2) == b"\r\n"

    def answer(self, method="POST", check=True, request_id=None):
        version, status, headers = self.head()
        while status == 100:
            version, status, headers = self.head()
        names = [n for n, _ in headers]
        coding = [v for n, v in headers if n == "transfer-encoding"]
        length = [v for n, v in headers if n == "content-length"]
        assert not (coding and length), headers
        assert len(length) <= 1 and names.count("content-type") <= 1 and names.count("x-request-id") <= 1, headers
        if method == "HEAD" or status in (204, 304):
            body = b""
        elif coding:
            assert coding == ["chunked"] and version == 1, headers
            body = b"".join(self.chunks())
        elif length:
            assert re.match(r"^[0-9]+$", length[0])
            body = self.exactly(int(length[0]))
        else:
            body = self.rest()
        answer = Answer(version, status, headers, body, bool(coding))
        if check and method != "OPTIONS":
            check_application_answer(answer, request_id)
        return answer

    def closed(self, within=PATIENCE_S):
        """True if the server closes the connection, without another byte, within so many seconds."""
        self.socket.settimeout(within)
        try:
            return not self.pending and self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except (TimeoutError, socket.timeout):
            return False


def encode(body):
    return body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()


def request_bytes(method, path, body=None, headers=(), version="1.1", host=True):
    """A sound request; a header given with the value None is left out, one given anew replaces the usual one."""
    data = encode(body) if body is not None else b""
    usual = {"Host": "test"} if host else {}
    if body is not None:
        usual |= {"Content-Type": "application/json", "Content-Length": str(len(data))}
    extra = list(headers.items()) if isinstance(headers, dict) else list(headers)
    given = {n.lower() for n, _ in extra}
    lines = [f"{method} {path} HTTP/{version}"]
    lines += [f"{n}: {v}" for n, v in usual.items() if n.lower() not in given]
    lines += [f"{n}: {v}" for n, v in extra if v is not None]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + data


def call(address, method, path, body=None, headers=(), timeout=PATIENCE_S, **more):
    with Connection(address, timeout) as c:
        c.try_send(request_bytes(method, path, body, headers, **more))
        return c.answer(method)


def parse_events(raw):
    """The data of each event of a stream that follows section 11.1 to the letter, [DONE] included and checked."""
    assert raw.endswith(b"data: [DONE]\n\n"), raw[-200:]
    assert b"\r" not in raw
    events = []
    for event in raw.split(b"\n\n")[:-1]:
        if event.startswith(b":"):
            assert b"\n" not in event
            continue
        assert event.startswith(b"data: ") and b"\n" not in event, f"event {event[:300]!r}"
        events.append(event[6:])
    assert events.count(b"[DONE]") == 1
    return [loads(e) for e in events[:-1]]
