#!/usr/bin/env python3
"""Writes the seed corpora of the fuzzers for weight files and JSON. Usage: make_seeds.py [OUTDIR]

Small on purpose: a mutation should hit something that matters. Only the standard library."""
import os
import struct
import sys


def save(fuzzer, name, data):
    folder = os.path.join(OUT, fuzzer)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), 'wb') as f:
        f.write(data)


def json_seeds():
    texts = {
        'chat': b'{"model":"m","messages":[{"role":"user","content":"Hi \\u00e9\\ud83c\\udf36"}],'
                b'"temperature":0.7,"stop":null,"stream":true,"seed":-9223372036854775808}',
        'nested': b'[[[[[[{"a":[{"b":{}}]}]]]]],[],{},"",[]]',
        'numbers': b'[0,-0,1.5,-2.5e+3,1E-5,9223372036854775808,1e308,123456789012345678901]',
        'strings': '["\\"\\\\\\/\\b\\f\\n\\r\\t","\u00e9\u20ac\U0001f336","\\u0000","plain ascii text"]'
                   .encode(),
        'names': b'\xef\xbb\xbf {"a":1,"\\u0061":2,"":3 , "b" : { } }\r\n\t',
        'word': b'true',
    }
    for name, text in texts.items():
        save('fuzz_json_guard', name, text)


def string(text):
    return struct.pack('<Q', len(text)) + text


def gguf(keys, tensors, data, version=3):
    """keys: (name, type, value bytes); tensors: (name, dims, type, offset)."""
    out = b'GGUF' + struct.pack('<IQQ', version, len(tensors), len(keys))
    for name, kind, value in keys:
        out += string(name) + struct.pack('<I', kind) + value
    for name, dims, kind, offset in tensors:
        out += string(name) + struct.pack('<I%dQIQ' % len(dims), len(dims), *dims, kind, offset)
    return out + b'\0' * (-len(out) % 32) + data


def gguf_seeds():
    scalars = [(b'a%d' % kind, kind, b'\1' + b'\0' * (size - 1))
               for kind, size in enumerate((1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8)) if size]
    words = (b'w', 9, struct.pack('<IQ', 8, 3) + string(b'x') + string(b'') + string(b'\xc3\xa9'))
    floats = (b'f', 9, struct.pack('<IQ2f', 6, 2, 0.5, -1.0))
    save('fuzz_gguf', 'keys', gguf(scalars + [words, floats, (b's', 8, string(b'text'))], [], b''))
    save('fuzz_gguf', 'tensors', gguf([(b'general.alignment', 4, struct.pack('<I', 8))],
         [(b't.f32', (2, 1), 0, 0), (b't.q4_1', (32,), 3, 8), (b't.f16', (1, 2, 1, 1), 1, 32)], b'\0' * 36))
    save('fuzz_gguf', 'version_2', gguf([], [(b't', (4,), 0, 0)], b'\0' * 16, version=2))
    save('fuzz_gguf', 'split', gguf([(b'split.no', 2, b'\0\0'), (b'split.count', 2, b'\2\0'),
         (b'split.tensors.count', 5, struct.pack('<i', 0))], [], b''))


def safetensors_seeds():
    def image(header, data):
        return struct.pack('<Q', len(header)) + header + data
    save('fuzz_safetensors', 'two', image(
        b'{"__metadata__":{"format":"pt"},"a":{"dtype":"F16","shape":[2,1],"data_offsets":[0,4]},'
        b'"b":{"dtype":"I8","shape":[],"data_offsets":[4,5]}}  ', b'\0' * 5))
    save('fuzz_safetensors', 'escaped', image(
        b'{"\\u00e9":{"data_offsets":[0,0],"shape":[0,9],"dtype":"BF16"}}', b''))
    save('fuzz_safetensors', 'empty', image(b'{}', b''))


def field(number, value):
    """One field of a protobuf message: int as a varint, float as a double, bytes with their length."""
    def varint(n):
        out = b''
        while n > 127:
            out, n = out + bytes([n & 127 | 128]), n >> 7
        return out + bytes([n])
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack('<d', value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def zmq_seeds():
    """Requests of proto/inferd.proto."""
    def request(kind, body, id=7):
        return field(1, id) + field(2, b'key') + field(3, b'trace-1') + field(kind, body)
    turn = field(1, b'user') + field(2, b'hello')
    save('fuzz_zmq', 'completion', request(10, field(1, b'hello') + field(10, 4) + field(14, 0.5) + field(30, b'x')
         + field(21, field(1, 97) + field(2, 1.0)) + field(40, 1) + field(44, 1) + field(45, 1) + field(60, 3) + field(62, b's')))
    save('fuzz_zmq', 'ids', request(10, field(2, field(1, bytes([104, 101]))) + field(10, 2) + field(12, 2) + field(31, bytes([98]))))
    save('fuzz_zmq', 'chat', request(10, field(3, turn) + field(3, field(1, b'assistant') + field(2, b'a')) + field(51, 1)
         + field(52, b'{"a":1}') + field(10, 2)))
    save('fuzz_zmq', 'echo', request(10, field(1, b'he') + field(1, b'l') + field(10, 1) + field(41, 1) + field(42, 1) + field(43, 2)))
    save('fuzz_zmq', 'tools', request(10, field(3, field(1, b'assistant') + field(5, field(1, b'i') + field(2, b'f') + field(3, b'{}')))))
    save('fuzz_zmq', 'tokenize', request(11, field(1, b'hello') + field(4, 1)))
    save('fuzz_zmq', 'tokenize_messages', request(11, field(2, turn)))
    save('fuzz_zmq', 'detokenize', request(12, field(1, bytes([104, 105]))))
    save('fuzz_zmq', 'cancel', request(13, field(1, 9)))
    save('fuzz_zmq', 'health', request(14, b''))


if __name__ == '__main__':
    OUT = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), 'corpus')
    json_seeds()
    gguf_seeds()
    safetensors_seeds()
    zmq_seeds()
