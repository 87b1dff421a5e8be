"""Reading and writing GGUF files as far as the benchmarks need it: tensor types, a shape with random weights, MXFP4."""
import collections
import struct

# ggml.h, enum ggml_type: name, elements and bytes of a block
TENSOR_TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K",
                12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 20: "IQ4_NL", 23: "IQ4_XS", 30: "BF16", 39: "MXFP4"}
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
F32, F16, MXFP4 = 0, 1, 39
ALIGNMENT = 32


class Reader:
    """keys: name to the bytes of type and value; tensors: (name, dimensions, type, offset in the data)."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.file = file
            file.seek(8)
            tensors, keys = self.read("Q"), self.read("Q")
            self.keys = {}
            for _ in range(keys):
                name, start = self.text(), file.tell()
                self.skip_value(self.read("I"))
                end = file.tell()
                file.seek(start)
                self.keys[name] = file.read(end - start)
            self.tensors = []
            for _ in range(tensors):
                name, count = self.text(), self.read("I")
                dimensions = [self.read("Q") for _ in range(count)]
                self.tensors.append((name, dimensions, self.read("I"), self.read("Q")))
            self.data = -(-file.tell() // ALIGNMENT) * ALIGNMENT

    def read(self, code):
        return struct.unpack("<" + code, self.file.read(struct.calcsize("<" + code)))[0]

    def text(self):
        return self.file.read(self.read("Q")).decode()

    def skip_value(self, kind):
        if kind == 8:
            self.file.seek(self.read("Q"), 1)
        elif kind == 9:
            element, count = self.read("I"), self.read("Q")
            for _ in range(count):
                self.skip_value(element)
        else:
            self.read(SCALARS[kind])


def tensor_types(path):
    """Counts of tensor types in a GGUF file, by name."""
    return collections.Counter(TENSOR_TYPES.get(kind, str(kind)) for _, _, kind, _ in Reader(path).tensors)


def write(path, keys, tensors):
    """tensors: (name, dimensions, type, bytes)."""
    def text(t):
        return struct.pack("<Q", len(t.encode())) + t.encode()

    with open(path, "wb") as out:
        out.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)))
        out.write(b"".join(text(name) + value for name, value in keys.items()))
        offset = 0
        for name, dimensions, kind, data in tensors:
            out.write(text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, offset))
            offset += -(-len(data) // ALIGNMENT) * ALIGNMENT
        for _, _, _, data in tensors:
            out.write(b"\0" * (-out.tell() % ALIGNMENT))
            out.write(data)
        out.write(b"\0" * (-out.tell() % ALIGNMENT))


def write_shape(source, target, layers=6, hidden=1024, inner=2816, heads=16, kv_heads=4, seed=1):
    """A llama of random weights in F16 whose rows are multiples of 256, so that every format of 256 applies; vocabulary and
    tokenizer of `source`. For speed: its text means nothing."""
    import numpy

    random = numpy.random.default_rng(seed)
    old = Reader(source)
    vocabulary = next(d[1] for name, d, _, _ in old.tensors if name == "token_embd.weight")
    numbers = {"block_count": layers, "embedding_length": hidden, "feed_forward_length": inner,
               "attention.head_count": heads, "attention.head_count_kv": kv_heads, "rope.dimension_count": hidden // heads}
    keys = dict(old.keys)
    keys.update({"llama." + name: struct.pack("<II", 4, value) for name, value in numbers.items()})

    def matrix(name, cols, rows):
        values = random.standard_normal((rows, cols), dtype=numpy.float32) * (0.7 / cols ** 0.5)
        return name + ".weight", [cols, rows], F16, values.astype(numpy.float16).tobytes()

    def norm(name):
        return name + ".weight", [hidden], F32, numpy.ones(hidden, numpy.float32).tobytes()

    tensors = [matrix("token_embd", hidden, vocabulary), norm("output_norm")]
    for i in range(layers):
        kv = hidden // heads * kv_heads
        tensors += [norm(f"blk.{i}.attn_norm"), norm(f"blk.{i}.ffn_norm"), matrix(f"blk.{i}.attn_q", hidden, hidden),
                    matrix(f"blk.{i}.attn_k", hidden, kv), matrix(f"blk.{i}.attn_v", hidden, kv),
                    matrix(f"blk.{i}.attn_output", hidden, hidden), matrix(f"blk.{i}.ffn_gate", hidden, inner),
                    matrix(f"blk.{i}.ffn_up", hidden, inner), matrix(f"blk.{i}.ffn_down", inner, hidden)]
    write(target, keys, tensors)


def mxfp4(values):
    """Rows of multiples of 32 as MXFP4 blocks: an exponent byte, 16 bytes of two codes."""
    import numpy

    levels = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], numpy.float32)
    blocks = values.astype(numpy.float32).reshape(-1, 32)
    top = numpy.abs(blocks).max(axis=1)
    exponent = numpy.where(top > 0, numpy.floor(numpy.log2(numpy.where(top > 0, top, 1))) - 2, -127).clip(-127, 127)
    scaled = numpy.abs(blocks) / numpy.exp2(exponent)[:, None].astype(numpy.float32)
    codes = numpy.searchsorted((levels[1:] + levels[:-1]) / 2, scaled).astype(numpy.uint8)
    codes |= ((blocks < 0) & (codes > 0)).astype(numpy.uint8) << 3
    out = numpy.empty((len(blocks), 17), numpy.uint8)
    out[:, 0] = (exponent + 127).astype(numpy.uint8)
    out[:, 1:] = codes[:, :16] | codes[:, 16:] << 4
    return out.tobytes()


def write_mxfp4(source, target):
    """A file of F16 tensors with its matrices in MXFP4 (llama.cpp's quantizer makes that of experts only). The embedding,
    which is also the head, stays as it is."""
    import numpy

    old = Reader(source)
    tensors = []
    for name, dimensions, kind, offset in old.tensors:
        count = int(numpy.prod(dimensions))
        dtype = {F32: numpy.float32, F16: numpy.float16}[kind]
        data = numpy.fromfile(source, dtype, count, offset=old.data + offset)
        if kind == F16 and len(dimensions) == 2 and name != "token_embd.weight":
            tensors.append((name, dimensions, MXFP4, mxfp4(data)))
        else:
            tensors.append((name, dimensions, kind, data.tobytes()))
    write(target, old.keys, tensors)
