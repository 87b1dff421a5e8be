"""A model in parts (NAME-0000i-of-0000N.gguf) is served as the whole file is: the same text and log probabilities, whichever
part is named; a missing part is told by name.

Method: a golden GGUF file is cut here as llama.cpp's gguf-split does (metadata in the first part, split.* keys in each),
and both are asked for the same greedy answer."""
import pathlib
import struct
import subprocess

import pytest

from conftest import ROOT, Daemon, binary

GOLDEN = ROOT / "tests/golden/quants/llama_q4_k.gguf"
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY, U16, I32 = 8, 9, 2, 5


class File:
    """A GGUF file's metadata as bytes, and its tensors."""

    def __init__(self, path):
        self.bytes, self.at = path.read_bytes(), 8
        tensors, keys = self.read("<QQ")
        start = self.at
        for _ in range(keys):
            self.string()
            self.skip_value(self.read("<I")[0])
        self.keys, self.metadata = keys, self.bytes[start:self.at]
        infos = []
        for _ in range(tensors):
            name = self.string()
            dims = [self.read("<Q")[0] for _ in range(self.read("<I")[0])]
            infos.append((name, dims, *self.read("<IQ")))
        data = (self.at + 31) // 32 * 32
        ends = sorted([offset for *_, offset in infos] + [len(self.bytes) - data])
        self.tensors = [(name, dims, kind, self.bytes[data + offset:data + ends[ends.index(offset) + 1]])
                        for name, dims, kind, offset in infos]

    def read(self, form):
        values = struct.unpack_from(form, self.bytes, self.at)
        self.at += struct.calcsize(form)
        return values

    def string(self):
        size = self.read("<Q")[0]
        self.at += size
        return self.bytes[self.at - size:self.at]

    def skip_value(self, kind):
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            element, count = self.read("<IQ")
            for _ in range(count):
                self.skip_value(element)
        else:
            self.at += SIZES[kind]


def text(value):
    return struct.pack("<Q", len(value)) + value


def part(file, number, count, tensors):
    keys = b"".join(text(key) + struct.pack(form, kind, value) for key, form, kind, value in (
        (b"split.no", "<IH", U16, number), (b"split.count", "<IH", U16, count),
        (b"split.tensors.count", "<Ii", I32, len(file.tensors))))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 3 + (file.keys if number == 0 else 0))
    head += (file.metadata if number == 0 else b"") + keys
    data = b""
    for name, dims, kind, content in tensors:
        head += text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        head += struct.pack("<IQ", kind, len(data))
        data += content + bytes(-len(content) % 32)
    return head + bytes(-len(head) % 32) + data


@pytest.fixture
def parts(tmp_path):
    file, count = File(GOLDEN), 3
    paths = [tmp_path / f"model-{i + 1:05}-of-{count:05}.gguf" for i in range(count)]
    for i, path in enumerate(paths):
        each = (len(file.tensors) + count - 1) // count
        path.write_bytes(part(file, i, count, file.tensors[i * each:(i + 1) * each]))
    return paths


def answer(path, tmp_path, monkeypatch):
    monkeypatch.setenv("INFERD_SMOLLM2", str(path))
    daemon = Daemon(tmp_path, device="cpu")
    try:
        got = daemon.complete("It is in the", max_tokens=24, temperature=0, logprobs=3, ignore_eos=True)
        assert got.status == 200, got.body
        return got.json()["choices"]
    finally:
        daemon.kill()


def test_a_split_model_is_served_as_the_whole(parts, tmp_path, monkeypatch):
    if binary().name == "mini_daemon":
        pytest.skip("mini_daemon has the null device only")
    whole = answer(GOLDEN, tmp_path, monkeypatch)
    assert len(whole[0]["logprobs"]["token_logprobs"]) == 24
    assert answer(parts[0], tmp_path, monkeypatch) == whole
    assert answer(parts[2], tmp_path, monkeypatch) == whole


def test_a_missing_part_is_named(parts, tmp_path):
    if binary().name == "mini_daemon":
        pytest.skip("mini_daemon has no subcommands")
    parts[1].unlink()
    done = subprocess.run([str(binary()), "serve", str(parts[0]), "--port", "0"], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode != 0
    assert pathlib.Path(parts[1]).name in done.stderr
