#!/usr/bin/env python3
"""Writes the seed corpora of the fuzzers for weight files and JSON. Usage: make_seeds.py [OUTDIR]

Small on purpose: a mutation should hit something that matters. Only the standard library."""
import os
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


if __name__ == '__main__':
    OUT = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), 'corpus')
    json_seeds()
