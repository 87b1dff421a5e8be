"""Section 3: what is JSON and what is not, numbers, names, UTF-8. kf-12.

Method: raw bodies, each with the code and param of its refusal, or the field's value that an equal sound body has.
"""
import json

import pytest

from conformance.rows import each
from conformance.wire import request_bytes

COMPLETIONS = "/v1/completions"
INVALID = [
    b"", b" ", b"\n\t ", b"{", b"}", b"{:", b"[]", b"[{}]", b'"a"', b"1", b"null", b"true", b"{}{}", b'{"prompt":"a"} x',
    b'{"prompt":"a"},', b'{"prompt":"a",}', b'{"prompt":["a",]}', b'{"prompt":[,"a"]}', b'{,"prompt":"a"}',
    b'{"prompt" "a"}', b'{"prompt"::"a"}', b'{"prompt":}', b'{"prompt"}', b"{'prompt':'a'}", b'{prompt:"a"}',
    b'{"prompt":"a" /* c */}', b'{"prompt":"a"}// c', b'// c\n{"prompt":"a"}', b'# c\n{"prompt":"a"}',
    b'{"prompt":"a","temperature":NaN}', b'{"prompt":"a","temperature":Infinity}', b'{"prompt":"a","temperature":-Infinity}',
    b'{"prompt":"a","temperature":nan}', b'{"prompt":"a","n":01}', b'{"prompt":"a","n":+1}', b'{"prompt":"a","n":1.}',
    b'{"prompt":"a","n":.5}', b'{"prompt":"a","n":-}', b'{"prompt":"a","n":1e}', b'{"prompt":"a","n":1e+}',
    b'{"prompt":"a","n":-01}', b'{"prompt":"a","n":0x1}', b'{"prompt":"a","n":1_0}', b'{"prompt":"a","n":00}',
    b'{"prompt":"a","stream":True}', b'{"prompt":"a","stream":FALSE}', b'{"prompt":"a","stream":nul}',
    b'{"prompt":"a","user":undefined}', b'{"prompt":"a\nb"}', b'{"prompt":"a\tb"}', b'{"prompt":"a\x00b"}',
    b'{"prompt":"a\x1fb"}', b'{"pro\x01mpt":"a"}', b'{"prompt":"\\x41"}', b'{"prompt":"\\a"}', b'{"prompt":"\\u12"}',
    b'{"prompt":"\\u12G4"}', b'{"prompt":"\\U00000041"}', b'{"prompt":"\\\'"}', b'{"prompt":"a}', b'{"prompt":"a\\"}',
    b'{"prompt":"\\ud800"}', b'{"prompt":"\\udc00"}', b'{"prompt":"\\ud800x"}', b'{"prompt":"\\ud800\\ud800"}',
    b'{"prompt":"\\udc00\\ud800"}', b'{"prompt":"\\ud800\\n"}', b'{"prompt":"\\ud800\\u0041"}', b'{"\\ud800":1,"prompt":"a"}',
    b'{"prompt":"\xff"}', b'{"prompt":"\xc3"}', b'{"prompt":"\xc3("}', b'{"prompt":"\x80"}', b'{"prompt":"\xc0\x80"}',
    b'{"prompt":"\xc1\xbf"}', b'{"prompt":"\xe0\x80\xaf"}', b'{"prompt":"\xe0\x9f\xbf"}', b'{"prompt":"\xf0\x80\x80\xaf"}',
    b'{"prompt":"\xf0\x8f\xbf\xbf"}', b'{"prompt":"\xed\xa0\x80"}', b'{"prompt":"\xed\xbf\xbf"}',
    b'{"prompt":"\xed\xa0\xbd\xed\xb8\x80"}', b'{"prompt":"\xf4\x90\x80\x80"}', b'{"prompt":"\xf5\x80\x80\x80"}',
    b'{"prompt":"\xf8\x88\x80\x80\x80"}', b'{"prompt":"\xe4\xbd"}', b'{"prompt":"\xf0\x9f\x98"}', b'{"\xff":1,"prompt":"a"}',
    b'{"prompt":"a"}\xff', b'\xff{"prompt":"a"}', b'\xfe\xff\x00{', b'{"prompt":"a"}\x00', b'\x00{"prompt":"a"}',
    b'{"prompt":"a","x":[1,2}', b'{"prompt":"a","x":{"a":1]}', b'{"prompt":"a","x":[1 2]}', b'{"prompt":"a";"n":1}',
    b'{"a":1 "prompt":"a"}', b'{1:2,"prompt":"a"}', b'{null:1}', b'\x0b{"prompt":"a"}', b'\xc2\xa0{"prompt":"a"}',
    b'prompt=a&max_tokens=1', b'<xml/>', '{"prompt":"a"}'.encode("utf-16"), '{"prompt":"a"}'.encode("utf-32-le"),
]


@pytest.mark.sanitizer
def test_what_is_not_json_is_refused_as_such(null):
    with null.connect() as c:
        def check(path, body):
            c.send(request_bytes("POST", path, body))
            answer = c.answer()
            assert answer.status == 400, answer
            assert answer.error["code"] == "invalid_json" and answer.error["param"] is None, answer
        each([(COMPLETIONS, body) for body in INVALID] + [("/tokenize", body) for body in INVALID[:30]] +
             [("/v1/chat/completions", body) for body in INVALID[:30]] + [("/detokenize", b) for b in INVALID[:8]], check)


def test_every_truncation_of_a_sound_body_is_refused(null):
    body = json.dumps({"prompt": ["a\u00e9\\", [1, 2.5e3, None, True]], "x": {"y": "\ud83d\ude00"}}).encode()

    def check(cut):
        answer = null.post(COMPLETIONS, body[:cut])
        assert answer.status == 400 and answer.error["code"] == "invalid_json", answer
    each([(i,) for i in range(len(body))], check)


SOUND = [
    b' \r\n\t{"prompt":"abc"}\n ', b'{"\\u0070rompt":"abc"}', b'{"prompt":"a\\u0062c"}', b'{"prompt":"x","prompt":"abc"}',
    b'{"prompt":7,"prompt":"abc"}', b'{"prompt":"abc","temperature":9,"temperature":1}', b'{"prompt":"abc","x":{"y":[{}]}}',
    b'{"prompt":"abc","":1}', b'{"prompt":"abc","nested":{"prompt":"zzz","model":"nope"}}',
    b'{"prompt":"abc","max_tokenz":"a"}', b'{"prompt":"abc","user":null,"n":null,"temperature":null,"stop":null}',
    b'{"prompt":"abc","model":null,"stream":null,"stream_options":null,"logit_bias":null,"logprobs":null,"seed":null}',
    b'{"prompt":"abc","temperature":1e-400}', b'{"prompt":"abc","top_p":1E0,"min_p":-0.0,"presence_penalty":-0}',
    b'{"prompt":"abc","n":1.0}', b'{"prompt":"abc","n":1e0}', b'{"prompt":"abc","n":10e-1}', b'{"prompt":"abc","n":0.1e1}',
    b'{"prompt":"abc","x":1e99}', b'{"prompt":"abc","user":"\\/\\b\\f\\n\\r\\t\\"\\\\"}',
    b'{"prompt":"abc","user":"\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf\xef\xbf\xbf"}', b'{"prompt":"abc","user":"\x7f"}',
    b'{"prompt":"abc","model":"smol\\u0000","model":null}',
]


@pytest.mark.sanitizer
def test_equal_bodies_have_equal_answers(null):
    expected = null.complete(prompt="abc", seed=3, max_tokens=8)["choices"]

    def check(body):
        end = body.rindex(b"}")
        answer = null.post(COMPLETIONS, body[:end] + b',"max_tokens":8.0,"seed":3' + body[end:])
        assert answer.status == 200 and answer.json["choices"] == expected, answer
    each(SOUND, check)


def test_a_byte_order_mark_is_skipped_or_refused(null):
    answer = null.post(COMPLETIONS, b'\xef\xbb\xbf{"prompt":"a","max_tokens":1}')
    assert answer.status == 200 or answer.error["code"] == "invalid_json"


def test_nul_is_an_ordinary_character(null, cpu, vocabulary):
    """U+0000 cuts nothing short: not a prompt, not a stop string, not a model's name, not an echo."""
    with_nul = null.ok("/tokenize", {"prompt": "a\u0000b"})["tokens"]
    assert b"".join(vocabulary.bytes[i] for i in with_nul) == b"a\x00b"
    assert null.ok("/detokenize", {"tokens": with_nul})["prompt"] == "a\u0000b"
    answer = cpu.complete(prompt="a\u0000b", echo=True, max_tokens=0)
    assert answer["choices"][0]["text"] == "a\u0000b" and answer["usage"]["prompt_tokens"] == len(with_nul)
    model = null.get("/v1/models").json["data"][0]["id"]
    assert null.post(COMPLETIONS, {"prompt": "a", "model": model + "\u0000"}).status == 404
    # A stop string that begins with NUL must not be taken for an empty one, nor for one that always matches.
    plain = null.complete(prompt="a", seed=5, max_tokens=16)["choices"]
    assert null.complete(prompt="a", seed=5, max_tokens=16, stop="\u0000zz")["choices"] == plain
    chat = {"messages": [{"role": "user", "content": "a\u0000b"}]}
    joined = b"".join(vocabulary.bytes[i] for i in null.ok("/tokenize", chat)["tokens"])
    assert b"user\na\x00b<|im_end|>" in joined
    named = null.post(COMPLETIONS, b'{"prompt":"a","max_tokens":1,"stream\\u0000":true}')
    assert named.status == 200 and named.json["object"] or named.error["code"] == "invalid_json"


@pytest.mark.sanitizer
def test_numbers_that_overflow_are_refused(null):
    def check(field, number):
        answer = null.post(COMPLETIONS, b'{"prompt":"a","%s":%s}' % (field.encode(), number))
        if field == "repetition_penalty" and not number.startswith(b"-") and len(number) == 31:
            return  # 1e30 is finite
        assert answer.status == 400, answer
        error = answer.error
        assert (error["param"] == field and error["code"] in ("invalid_value", "invalid_type", "context_length_exceeded")
                or error["code"] == "invalid_json" and error["param"] is None), error
    each([(field, number) for field in ("temperature", "n", "max_tokens", "seed", "top_k", "repetition_penalty")
          for number in (b"1e999", b"-1e999", b"9" * 400, b"-" + b"9" * 400, b"1" + b"0" * 30)], check)


def test_a_surrogate_pair_is_one_character(null):
    plain = null.ok("/tokenize", {"prompt": "x\U0001f600y"})
    assert null.ok("/tokenize", b'{"prompt":"x\\ud83d\\ude00y"}') == plain
    assert null.ok("/tokenize", b'{"prompt":"x\\uD83D\\uDE00y"}') == plain


def test_unknown_fields_are_ignored_at_every_level(null):
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"a": 1}}],
                          "weight": 1}], "max_tokens": 4, "seed": 1, "stream": True, "new_field": {"deep": [None]},
            "stream_options": {"include_usage": True, "include_obfuscation": False}}
    events = null.stream("/v1/chat/completions", body)
    assert events[-1]["usage"]["completion_tokens"] == 4
