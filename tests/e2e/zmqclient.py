"""What the ZeroMQ tests share: inferd_pb2 made from proto/inferd.proto as any client would make it, and the example's
client, so that the example is what is tested."""
import pathlib
import re
import subprocess
import sys
import tempfile

import pytest

from pace import until

ROOT = pathlib.Path(__file__).resolve().parents[2]
zmq = pytest.importorskip("zmq")


def _make():
    out = tempfile.mkdtemp(prefix="inferd-pb2-")
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT / "proto"), f"--python_out={out}",
                    "inferd.proto"], check=True)
    sys.path.insert(0, out)
    sys.path.insert(0, str(ROOT / "examples"))
    return out


PB2_DIR = _make()
import inferd_pb2 as pb  # noqa: E402
from zmq_client import Client  # noqa: E402


def endpoint_of(daemon):
    """As bound, from the daemon's log."""
    return until(lambda: re.search(r"\bzmq=(\S+)\s", daemon.log_text()), "the endpoint in the log").group(1)


def connect(daemon, **options):
    if daemon.keys and "api_key" not in options:
        options["api_key"] = daemon.keys[0]
    return Client(endpoint_of(daemon), **options)


def answer(client, **fields):
    """(text of choice 0, last Response, all Responses)."""
    responses = list(client.generate(**fields))
    text = b"".join(r.chunk.text for r in responses if r.WhichOneof("body") == "chunk" and r.chunk.index == 0)
    return text, responses[-1], responses
