"""HTTP by hand: bytes out, answers in, for what a well-behaved client would never send."""
import json
import socket

from pace import PATIENCE_S


class Answer:
    def __init__(self, status, headers, body, version):
        self.status, self.headers, self.body, self.version = status, headers, body, version

    def json(self):
        return json.loads(self.body)

    def header(self, name, default=None):
        return self.headers.get(name.lower(), default)


class Raw:
    """One connection. send() any bytes; answer() reads one whole answer; closed() waits for the end."""

    def __init__(self, address, timeout=PATIENCE_S, source=None):
        if isinstance(address, str):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(timeout)
            self.sock.connect(address)
        else:
            self.sock = socket.create_connection(address, timeout=timeout, source_address=source)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buf = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.sock.close()

    def send(self, data):
        if isinstance(data, str):
            data = data.encode()
        self.sock.sendall(data)

    def _more(self):
        got = self.sock.recv(65536)
        if not got:
            raise EOFError("the connection ended")
        self.buf += got

    def _until(self, mark):
        while mark not in self.buf:
            self._more()
        part, self.buf = self.buf.split(mark, 1)
        return part

    def _exactly(self, count):
        while len(self.buf) < count:
            self._more()
        part, self.buf = self.buf[:count], self.buf[count:]
        return part

    def head(self):
        lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        version, status = lines[0].split(" ")[:2]
        headers = {}
        for line in lines[1:]:
            name, value = line.split(":", 1)
            name = name.strip().lower()
            headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
        return version, int(status), headers

    def chunks(self):
        """The pieces of a chunked body as they were cut."""
        while True:
            size = int(self._until(b"\r\n").split(b";")[0], 16)
            if size == 0:
                self._until(b"\r\n")
                return
            yield self._exactly(size)
            assert self._exactly(2) == b"\r\n"

    def answer(self, method="POST"):
        version, status, headers = self.head()
        while status == 100:
            version, status, headers = self.head()
        if method == "HEAD" or status == 204:
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body = b"".join(self.chunks())
        elif "content-length" in headers:
            body = self._exactly(int(headers["content-length"]))
        else:
            body = self.rest()
        return Answer(status, headers, body, version)

    def rest(self):
        while True:
            try:
                self._more()
            except (EOFError, ConnectionResetError):
                rest, self.buf = self.buf, b""
                return rest

    def is_closed(self, within=PATIENCE_S):
        """Whether the server ends the connection without sending anything more."""
        self.sock.settimeout(within)
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True
        except (TimeoutError, socket.timeout):
            return False


def post(path, body, *headers, host="x", method="POST", version="HTTP/1.1"):
    if not isinstance(body, bytes):
        body = (body if isinstance(body, str) else json.dumps(body)).encode()
    lines = [f"{method} {path} {version}", f"Host: {host}", f"Content-Length: {len(body)}", *headers]
    if not any(h.lower().startswith("content-type") for h in headers):
        lines.append("Content-Type: application/json")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def get(path, *headers, method="GET", version="HTTP/1.1"):
    return ("\r\n".join([f"{method} {path} {version}", "Host: x", *headers]) + "\r\n\r\n").encode()
