"""Loads a model with `inferd serve` and exits as it does: usage serve_once.py BINARY MODEL. For make_malformed.py --run.

A server that becomes ready is told to end; then its exit status must be 0. Its log goes to standard error."""
import re
import signal
import socket
import subprocess
import sys
import threading
import time


def ready(port):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as s:
            s.sendall(b"GET /ready HTTP/1.0\r\n\r\n")
            return b" 200 " in s.recv(100)
    except OSError:
        return False


def main(binary, model):
    server = subprocess.Popen([binary, "serve", model, "--port", "0", "--device", "cpu", "--kv-cache-memory", "8MiB"], stderr=subprocess.STDOUT,
                              stdout=subprocess.PIPE, text=True, errors="replace")
    ports = []

    def copy():
        for line in server.stdout:
            sys.stderr.write(line)
            match = re.search(r"127\.0\.0\.1:([0-9]+)", line)
            if match:
                ports.append(int(match[1]))
    reader = threading.Thread(target=copy)
    reader.start()
    end = time.monotonic() + 40
    while server.poll() is None and time.monotonic() < end:
        if ports and ready(ports[0]):
            server.send_signal(signal.SIGTERM)
            break
        time.sleep(0.01)
    status = server.wait(60)
    reader.join()
    return 128 - status if status < 0 else status


sys.exit(main(*sys.argv[1:]))
