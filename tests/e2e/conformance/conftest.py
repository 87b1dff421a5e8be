"""The daemons of the suite, one each per session.

`null`   made-up tokens at once, the model's whole context: for everything that does not look at what a token means
`slow`   made-up tokens, 2.5 ms a step: for whatever must still be running when something happens
`cpu`    real answers, context cut to 512 tokens so that its end is near
`keyed`  two API keys, other names, a small body, no CORS
"""
import pytest

from conformance.daemon import MODEL, Daemon
from conformance.vocabulary import Vocabulary

KEYS = ("sk-first-0123456789", "sk-Second-ABCDEF")
CPU_CONTEXT = 512


@pytest.fixture(scope="session")
def vocabulary():
    return Vocabulary(MODEL)


@pytest.fixture(scope="session")
def null():
    with Daemon("--device", "null:0") as d:
        yield d


@pytest.fixture(scope="session")
def slow():
    with Daemon("--device", "null:2500") as d:
        yield d


@pytest.fixture(scope="session")
def cpu():
    with Daemon("--device", "cpu", "--max-model-len", CPU_CONTEXT) as d:
        yield d


@pytest.fixture(scope="session")
def keyed():
    with Daemon("--device", "null:0", "--api-key", KEYS[0], "--api-key", KEYS[1],
                "--served-model-name", "org/smol lm", "--served-model-name", "alias",
                "--max-body-bytes", 65536, "--no-cors",
                key=KEYS[0]) as d:
        yield d
