"""Sections 4, 5, 8, 9, 10: types, ranges, null and combinations of every field; kf-10, kf-12, kf-16.

Method: one table per kind of request. A row sets one or more fields of a sound request and says which codes are right
and which `param`. T wrong type, V wrong value; where a value may be seen as either, both are right.
"""
import json

import pytest

from conformance.rows import each
from conformance.wire import encode
from pace import quickly

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BASE = {COMPLETIONS: {"prompt": "a", "max_tokens": 4},
        CHAT: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}}
T, V, TV = {"invalid_type"}, {"invalid_value"}, {"invalid_type", "invalid_value"}
M, U = {"missing_required_parameter"}, {"unsupported_parameter"}
TVM = TV | M
BIG = 2 ** 63
VOCAB = 49152


def number_rows(field, low, high, *, integer=False, low_open=False):
    rows = [({field: wrong}, T) for wrong in ("1", True, False, [], {}, [1], "NaN", "")]
    step = 1 if integer else 0.01
    rows += [({field: low if low_open else low - step}, V), ({field: low - 1e9}, V)]
    if high is not None:
        rows += [({field: high + step}, V), ({field: high + 1e9}, V), ({field: 1e300}, V)]
    if integer:
        rows += [({field: low + 1.5}, TV), ({field: low + 0.0000001}, TV)]
    return rows


def bool_rows(*fields):
    return [({f: wrong}, T) for f in fields for wrong in ("true", 1, 0, [], {}, "")]


SHARED = [
    *(({"model": wrong}, T) for wrong in (5, True, [], {})),
    *(({"max_tokens": wrong}, T) for wrong in ("5", True, [], {}, False)),
    ({"max_tokens": 1.5}, TV), ({"max_tokens": -1}, V), ({"max_tokens": -5}, V), ({"max_tokens": 0}, V),
    ({"max_tokens": BIG - 1}, V | {"context_length_exceeded"}), ({"max_tokens": 2 ** 64}, V | {"context_length_exceeded"}),
    ({"max_tokens": 2 ** 32 + 4}, V | {"context_length_exceeded"}), ({"max_tokens": 8193}, V | {"context_length_exceeded"}),
    *number_rows("min_tokens", 0, 4, integer=True), *number_rows("n", 1, 128, integer=True), ({"n": 2 ** 32 + 1}, V),
    *number_rows("temperature", 0, 2), *number_rows("top_p", 0, 1), *number_rows("top_k", -1, None, integer=True),
    *number_rows("min_p", 0, 1), *number_rows("presence_penalty", -2, 2), *number_rows("frequency_penalty", -2, 2),
    *number_rows("repetition_penalty", 0, None, low_open=True),
    *(({"repetition_penalty": wrong}, V) for wrong in (5e-324, 1e-40, 1e-38, 0.99e-10, 1.01e10, 1e38, 1e39, 1e300)),
    *(({"logit_bias": wrong}, T) for wrong in ([], "a", 5, True, [[5, 1]])),
    *(({"logit_bias": {name: 1}}, V) for name in ("x", "-1", str(VOCAB), "999999999", "", " 5", "5 ", "5.0", "0x5", "+5",
                                                  "5abc", "1e1", "4294967301", "18446744073709551621", "٥")),
    *(({"logit_bias": {"5": value}}, TV) for value in ("x", "1", None, True, [], {})),
    *(({"logit_bias": {"5": value}}, V) for value in (101, -101, 100.5, 1e300)),
    ({"logit_bias": {"7": 1, "5": 200}}, V),
    *(({"seed": wrong}, T) for wrong in ("5", True, [], {})), ({"seed": 1.5}, TV), ({"seed": BIG}, V), ({"seed": -BIG - 1}, V),
    ({"seed": 2 ** 64 + 1}, V),
    *(({"stop": wrong}, T) for wrong in (5, True, {}, {"a": "b"})), ({"stop": ""}, V), ({"stop": ["a", ""]}, V),
    *(({"stop": [wrong]}, TV) for wrong in (5, None, True, [], ["a"], {})), ({"stop": ["a"] * 129}, V),
    ({"stop": "x" * 1025}, V), ({"stop": ["a", "é" * 513]}, V),
    *(({"stop_token_ids": wrong}, T) for wrong in (5, "5", True, {})),
    *(({"stop_token_ids": [wrong]}, TV) for wrong in ("5", None, True, 1.5, [])),
    ({"stop_token_ids": [-1]}, V), ({"stop_token_ids": [VOCAB]}, V), ({"stop_token_ids": [2 ** 32 + 5]}, V),
    ({"stop_token_ids": [5] * 129}, V),
    *bool_rows("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "stream", "return_token_ids",
               "return_tokens_as_token_ids", "add_special_tokens"),
    ({"stream_options": {"include_usage": True}}, V), ({"stream_options": {}, "stream": False}, V),
    *(({"stream_options": wrong, "stream": True}, T) for wrong in (5, [], "a", True)),
    *(({"stream_options": {"include_usage": wrong}, "stream": True}, TV) for wrong in (1, "true", [], {})),
    *(({"user": wrong}, T) for wrong in (5, True, [], {})),
]

PROMPTS = [
    ({"prompt": None}, M), *(({"prompt": wrong}, T) for wrong in (5, True, 1.5, {}, {"a": "b"})),
    *(({"prompt": wrong}, V) for wrong in ([], "", [""], ["a", ""], [[]], [[5], []], [-1], [VOCAB], [[5], [VOCAB]],
                                           [5279552648203111001], [2 ** 32 + 5], [2 ** 64 + 5])),
    *(({"prompt": wrong}, TV) for wrong in (["a", 5], [5, "a"], [[5], "a"], ["a", [5]], [[5], 5], [5, [5]], [True], [False],
                                            [[True]], [1.5], [[5, 1.5]], [None], [[None]], [{}], [[["a"]]], [["a"]], [[5, "a"]],
                                            [[[5]]])),
]
COMPLETION_ROWS = [
    *bool_rows("echo"), *(({"suffix": wrong}, T) for wrong in (5, True, [])), ({"suffix": "x"}, U),
    *(({"best_of": wrong}, T) for wrong in ("1", True, [], {})), ({"best_of": 0}, V), ({"best_of": -1}, V),
    ({"best_of": 21}, V), ({"n": 3, "best_of": 2}, V, "best_of"), ({"n": 2, "best_of": 21}, V, "best_of"),
    ({"n": 25, "best_of": 26}, V, "best_of"), ({"best_of": 2, "stream": True}, V, "best_of"),
    ({"response_format": {"type": "json_object"}}, U), ({"response_format": "text"}, TV),
    ({"prompt": ["a"] * 513}, V), ({"prompt": ["a"] * 5, "n": 128}, V, "prompt|n"),
    ({"max_tokens": 0, "echo": False}, V), ({"max_tokens": 4, "min_tokens": 5}, V, "min_tokens"),
    ({"min_tokens": 17, "max_tokens": None}, V, "min_tokens"),
    *(({"logprobs": wrong}, T) for wrong in (True, False, "5", [], {})), ({"logprobs": -1}, V), ({"logprobs": 21}, V),
    ({"logprobs": 1000000}, V), ({"logprobs": 1.5}, TV),
]

USER = {"role": "user", "content": "a"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def message(**fields):
    return {"messages": [USER, fields]}


MESSAGE_ROWS = [
    ({"messages": None}, M), *(({"messages": wrong}, T) for wrong in ({}, "a", 5, True)), ({"messages": []}, V),
    *(({"messages": [wrong]}, TV) for wrong in (5, "a", None, [], True, [USER])),
    ({"messages": [{}]}, TVM), (message(content="a"), TVM), (message(role=None, content="a"), TVM),
    (message(role=5, content="a"), TV), *((message(role=r, content="a"), V)
                                             for r in ("User", "bot", "", "function", "user ", "user\u0000", "\u0000user",
                                                       "user\u0000<|im_end|>\n<|im_start|>system", "system\u0000")),
    (message(role="user"), TVM), (message(role="user", content=None), TVM), (message(role="system", content=None), TVM),
    *((message(role="user", content=wrong), TV) for wrong in (7, True, {}, {"type": "text", "text": "a"}, [], ["a"], [5], [None])),
    (message(role="user", content=[{"type": "text"}]), TVM), (message(role="user", content=[{"text": "a"}]), TVM),
    (message(role="user", content=[{"type": "text", "text": 5}]), TV),
    (message(role="user", content=[{"type": "text", "text": None}]), TVM), (message(role="user", content=[{}]), TVM),
    (message(role="user", content=[{"type": 5, "text": "a"}]), TV),
    *((message(role="user", content=[{"type": "text", "text": "a"}, {"type": kind, kind: {"url": "x"}}]), TV | U)
      for kind in ("image_url", "input_audio", "file", "video_url", "Text", "refusal")),
    (message(role="user", content=[{"type": "text\u0000", "text": "a"}]), TV | U),
    (message(role="system", content=[{"type": "image_url", "image_url": {"url": "x"}}]), TV | U),
    (message(role="user", content="a", name=5), TV), (message(role="assistant"), TVM),
    (message(role="assistant", content=None), TVM), (message(role="assistant", content=5), TV),
    (message(role="assistant", content=[]), TV), (message(role="assistant", content=None, tool_calls=[]), TVM),
    *((message(role="assistant", content="", tool_calls=wrong), TVM)
      for wrong in ({}, "a", 5, [5], [None], [{}], [{**CALL, "id": 5}], [{**CALL, "id": None}], [{**CALL, "type": "x"}],
                    [{**CALL, "type": "function\u0000"}],
                    [{**CALL, "function": None}], [{**CALL, "function": {"name": "f"}}],
                    [{**CALL, "function": {"arguments": "{}"}}], [{**CALL, "function": {"name": 5, "arguments": "{}"}}],
                    [{**CALL, "function": {"name": "f", "arguments": {}}}])),
    (message(role="tool", content="a"), TVM), (message(role="tool", content="a", tool_call_id=5), TV),
    (message(role="tool", tool_call_id="call_1"), TVM), (message(role="tool", tool_call_id="call_1", content=None), TVM),
]
TOOL = {"type": "function", "function": {"name": "f"}}
CHAT_ROWS = [
    *(({"max_completion_tokens": wrong, "max_tokens": None}, T) for wrong in ("5", True, [], {})),
    ({"max_completion_tokens": 0}, V), ({"max_completion_tokens": -1}, V), ({"max_completion_tokens": 1.5}, TV),
    ({"max_completion_tokens": 2 ** 40}, V | {"context_length_exceeded"}),
    ({"max_completion_tokens": 2, "max_tokens": 8, "min_tokens": 3}, V, "min_tokens"),
    *(({"logprobs": wrong}, T) for wrong in (5, 0, 1, "true", [], {})),
    ({"top_logprobs": 1}, V), ({"top_logprobs": 1, "logprobs": False}, V), ({"top_logprobs": 21, "logprobs": True}, V),
    ({"top_logprobs": -1, "logprobs": True}, V), *(({"top_logprobs": w, "logprobs": True}, T) for w in (True, "1", [])),
    ({"top_logprobs": 1.5, "logprobs": True}, TV),
    *(({"response_format": wrong}, TVM) for wrong in ("text", 5, [], {}, {"type": "nope"}, {"type": "text\u0000"},
                                                     {"type": 5}, {"type": None})),
    ({"tools": []}, V | U), *(({"tools": wrong}, TV | U) for wrong in ({}, "a", 5, [5], [{"type": "x"}])),
    *(({"tool_choice": wrong}, TV | U) for wrong in ("auto", "required", "nope", 5, [], {}, TOOL)),
    *(({"parallel_tool_calls": wrong}, T) for wrong in ("true", 1, 0, [])),
    *bool_rows("add_generation_prompt", "continue_final_message"),
    ({"continue_final_message": True, "add_generation_prompt": True,
      "messages": [USER, {"role": "assistant", "content": "b"}]}, V, "continue_final_message|add_generation_prompt"),
    ({"continue_final_message": True}, V, "continue_final_message|messages"),
    ({"continue_final_message": True, "messages": [USER, {"role": "assistant", "content": "b"}, USER]}, V,
     "continue_final_message|messages"),
    *(({"chat_template_kwargs": wrong}, T) for wrong in (5, [], "a", True)),
    *(({"modalities": wrong}, V | U) for wrong in (["audio"], ["text", "audio"], ["Text"], ["text\u0000"])),
    *(({"modalities": wrong}, TV) for wrong in ("text", 5, {}, [5])),
    ({"functions": []}, U), ({"functions": [{"name": "f"}]}, U), ({"function_call": "auto"}, U),
    ({"function_call": {"name": "f"}}, U),
]


def refused(server, path):
    def check(fields, codes, params=None):
        body = encode({**BASE[path], **fields})
        answer = quickly(1, lambda: server.post(path, body))
        assert answer.status == 400, answer
        error = answer.error
        assert error["code"] in codes, error
        names = params.split("|") if params else [list(fields)[0]]
        top = (error["param"] or "").split("[")[0].split(".")[0]
        assert top in names, error
        assert top in error["message"] or error["code"] == "context_length_exceeded", f"the message does not name the field: {error}"
    return check


@pytest.mark.sanitizer
def test_every_field_shared_by_both(null):
    before = null.rss_bytes()
    each(SHARED, refused(null, COMPLETIONS))
    each(SHARED, refused(null, CHAT))
    each(PROMPTS + COMPLETION_ROWS, refused(null, COMPLETIONS))
    each(MESSAGE_ROWS + CHAT_ROWS, refused(null, CHAT))
    for path in BASE:
        assert null.post(path, BASE[path]).status == 200
    if "asan" not in str(null.process.args[0]) and "tsan" not in str(null.process.args[0]):
        assert null.rss_bytes() - before < 32 << 20
    null.wait_idle()


def test_huge_values_are_refused_quickly(null):
    before = null.rss_bytes()
    each([({"stop": ["a"] * 100_000}, V), ({"stop": "x" * 10_000_000}, V), ({"stop_token_ids": [5] * 1_000_000}, V)],
         refused(null, COMPLETIONS))
    assert null.rss_bytes() - before < 32 << 20


def test_missing_fields(null):
    for path, field in ((COMPLETIONS, "prompt"), (CHAT, "messages")):
        answer = null.post(path, {})
        assert answer.status == 400 and answer.error["code"] == "missing_required_parameter", answer
        assert answer.error["param"] == field


def test_numeric_refusals_state_the_range(null):
    for field, value, words in (("temperature", 2.5, ("0", "2")), ("n", 129, ("1", "128")), ("top_p", 1.5, ("0", "1")),
                                ("presence_penalty", 3, ("-2", "2")), ("min_tokens", -1, ("0",))):
        message = null.post(COMPLETIONS, {**BASE[COMPLETIONS], field: value}).error["message"]
        assert all(w in message for w in words), message
    # A number just beyond a bound does not read as the bound itself.
    for field, value in (("temperature", 2.0000001), ("top_p", 1 + 2 ** -52), ("logit_bias", {"5": -100.00001})):
        message = null.post(COMPLETIONS, {**BASE[COMPLETIONS], field: value}).error["message"]
        assert f"not {value if field != 'logit_bias' else value['5']!r}." in message, message


def test_messages_repeat_at_most_200_characters_of_the_request(null):
    long = "Q" * 5000
    for path, fields in ((COMPLETIONS, {"model": long}), (COMPLETIONS, {"logit_bias": {long: 1}}),
                         (CHAT, {"messages": [{"role": long, "content": "a"}]}), (COMPLETIONS, {"user": {long: 1}}),
                         (CHAT, {"messages": [{"role": "user", "content": [{"type": long}]}]}),
                         (CHAT, {"response_format": {"type": long}}), (CHAT, {"modalities": [long]}),
                         (CHAT, {"tool_choice": long}), (COMPLETIONS, {"stop": [long]})):
        answer = null.post(path, {**BASE[path], **fields})
        assert answer.status in (400, 404) and b"Q" * 201 not in answer.body, answer
    # Cut at a character, not inside one; and whatever stands in it, the answer is JSON (checked by `post`).
    for name in ("é" * 3000, "a" + "é" * 3000, "\U0001f600" * 2000, '"\\\n\u0000\u2028' * 500):
        assert null.post(COMPLETIONS, {**BASE[COMPLETIONS], "model": name}).status == 404
    assert b"Q" * 201 not in null.get("/v1/" + "Q" * 3000).body


ACCEPTED = [
    {"max_tokens": 4.0}, {"n": 128, "max_tokens": 1}, {"temperature": 0}, {"temperature": 2}, {"top_p": 0}, {"top_p": 1},
    {"top_k": -1}, {"top_k": 0}, {"top_k": 10 ** 6}, {"top_k": 2 ** 31 - 1}, {"min_p": 0}, {"min_p": 1},
    {"presence_penalty": -2}, {"presence_penalty": 2}, {"frequency_penalty": -2.0}, {"frequency_penalty": 2},
    {"repetition_penalty": 0.001}, {"repetition_penalty": 1000}, {"logit_bias": {}}, {"logit_bias": {"0": 100, "49151": -100}},
    {"logit_bias": {str(i): -1.5 for i in range(1024)}}, {"seed": BIG - 1}, {"seed": -BIG}, {"seed": 0}, {"seed": 5e0},
    {"stop": []}, {"stop": ["a" * 5] * 128}, {"stop": "x" * 1024}, {"stop": "é" * 512}, {"stop_token_ids": []},
    {"stop_token_ids": [0, 49151]}, {"stop_token_ids": [5.0] * 128}, {"min_tokens": 4}, {"min_tokens": 0},
    {"stream": False}, {"user": ""}, {"user": "x" * 10000}, {"stream": True, "stream_options": None},
    {"stream": True, "stream_options": {}}, {"stream": True, "stream_options": {"include_usage": None, "x": 1}},
    {"model": None}, {"add_special_tokens": True}, {"skip_special_tokens": False}, {"ignore_eos": True},
    *({field: value} for field in ("store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key",
                                   "prompt_cache_retention", "verbosity", "prediction", "reasoning_effort")
      for value in ("low", 5, True, {"a": [1]}, None)),
    *({field: None} for field in ("truncate_prompt_tokens", "bad_words", "allowed_token_ids", "prompt_logprobs",
                                  "structured_outputs", "use_beam_search", "length_penalty", "priority", "logprob_token_ids")),
    {"use_beam_search": False}, {"priority": 0},
    *({name: None} for name in sorted({list(row[0])[0] for row in SHARED})),
]
ACCEPTED_COMPLETIONS = [
    {"prompt": [5]}, {"prompt": [5.0, 6e0]}, {"prompt": [[5], [6, 7]]}, {"prompt": ["a", "b"]}, {"prompt": " "},
    {"suffix": ""}, {"suffix": None}, {"best_of": None}, {"best_of": 1}, {"echo": None},
    {"response_format": {"type": "text"}}, {"response_format": None}, {"logprobs": None}, {"prompt": ["a"] * 4, "n": 128, "max_tokens": 1},
    {"prompt": "<|im_start|>"}, {"messages": 5},
]
ACCEPTED_CHAT = [
    {"max_completion_tokens": 2, "max_tokens": 3}, {"logprobs": False, "top_logprobs": 0}, {"top_logprobs": 0}, {"logprobs": None},
    {"response_format": {"type": "text"}}, {"tools": None, "tool_choice": "none"}, {"tool_choice": None},
    {"parallel_tool_calls": True}, {"parallel_tool_calls": None}, {"chat_template_kwargs": {}},
    {"chat_template_kwargs": {"enable_thinking": False, "deep": {"a": [1, None]}}}, {"modalities": ["text"]}, {"modalities": None},
    {"functions": None, "function_call": None}, {"add_generation_prompt": False}, {"reasoning_effort": "high"}, {"prompt": 5},
    {"messages": [{"role": "system", "content": "s"}, USER]}, {"messages": [{"role": "developer", "content": "s"}, USER]},
    {"messages": [{"role": "user", "content": ""}]}, {"messages": [{"role": "system", "content": ""}, USER]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Bo"}]},
    {"messages": [USER, {"role": "assistant", "content": "b"}]}, {"messages": [USER, {"role": "assistant", "content": ""}, USER]},
    {"messages": [USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, USER]},
    {"messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": "no"}]}, USER]},
    {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]},
                  {"role": "tool", "tool_call_id": "call_1", "content": "42"}]},
    {"messages": [USER, {"role": "assistant", "content": "x", "tool_calls": [CALL, {**CALL, "id": "call_2"}]},
                  {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "42"}]}, USER]},
    {"messages": [USER, {"role": "assistant", "content": "x", "tool_calls": None, "refusal": None, "audio": None}, USER]},
    {"messages": [USER, {"role": "assistant", "content": "Sure"}], "continue_final_message": True},
    {"messages": [USER, {"role": "assistant", "content": "Sure"}], "continue_final_message": True, "add_generation_prompt": False},
]


@pytest.mark.sanitizer
def test_what_must_be_accepted(null):
    def check(path, fields):
        answer = null.post(path, {**BASE[path], **fields})
        assert answer.status == 200, answer
    each([(path, f) for path in BASE for f in ACCEPTED] + [(COMPLETIONS, f) for f in ACCEPTED_COMPLETIONS] +
         [(CHAT, f) for f in ACCEPTED_CHAT], check)
    null.wait_idle()


# Optional fields: unknown to this build they are refused by name. A field whose effect cannot be seen from outside may be taken.
OPTIONAL = [("truncate_prompt_tokens", 3), ("bad_words", ["x"]), ("allowed_token_ids", [5, 6]), ("prompt_logprobs", 1),
            ("structured_outputs", {"json": {}}), ("use_beam_search", True), ("length_penalty", 0.5), ("priority", 1),
            ("logprob_token_ids", [5])]
OPTIONAL_CHAT = [("echo", True), ("chat_template", "{% for i in range(10000000) %}x{% endfor %}"), ("documents", [{"text": "d"}]),
                 ("response_format", {"type": "json_object"}), ("tools", [TOOL]), ("parallel_tool_calls", False),
                 ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "integer"}}})]


def test_optional_fields_are_refused_by_name_or_have_their_effect(null):
    def effect(path, field, value, answer):
        """Whether the answer shows that the field was obeyed."""
        choice = answer["choices"][0]
        if field == "allowed_token_ids":
            return set(choice["token_ids"]) <= set(value)
        if field == "truncate_prompt_tokens":
            return answer["usage"]["prompt_tokens"] == value
        if field == "prompt_logprobs":
            return choice.get("prompt_logprobs") or answer.get("prompt_logprobs")
        if field == "response_format":
            json.loads(choice["message"]["content"] or "")
            return True
        return field in ("priority", "parallel_tool_calls", "tools", "bad_words", "documents")

    def check(path, field, value):
        body = {**BASE[path], field: value, "return_token_ids": True}
        if path == COMPLETIONS:
            body["prompt"] = "one two three four five six"
        answer = null.post(path, body)
        if answer.status == 400:
            assert answer.error["code"] in ("unsupported_parameter", "invalid_value"), answer
            assert answer.error["param"].split("[")[0].split(".")[0] == field, answer
            if field != "chat_template":
                assert answer.error["code"] == "unsupported_parameter", answer
        else:
            assert answer.status == 200 and effect(path, field, value, answer.json), answer
    each([(path, *row) for path in BASE for row in OPTIONAL] + [(CHAT, *row) for row in OPTIONAL_CHAT], check)
    tokenize = null.post("/tokenize", {"messages": [USER], "tools": [TOOL]})
    assert tokenize.status == 200 or tokenize.error["code"] == "unsupported_parameter" and tokenize.error["param"] == "tools"


def test_the_newer_limit_wins(null):
    answer = null.chat(messages=[USER], max_completion_tokens=2, max_tokens=5)
    assert answer["usage"]["completion_tokens"] == 2
    answer = null.chat(messages=[USER], max_completion_tokens=5, max_tokens=2)
    assert answer["usage"]["completion_tokens"] == 5


@pytest.mark.sanitizer
def test_a_refusal_of_a_stream_is_an_ordinary_answer(null):
    for path, fields, status in ((COMPLETIONS, {"prompt": []}, 400), (CHAT, {"messages": []}, 400),
                                 (CHAT, {"model": "nope"}, 404), (COMPLETIONS, {"prompt": [5] * 9000}, 400)):
        answer = null.post(path, {**BASE[path], **fields, "stream": True})
        assert answer.status == status and answer.header("content-type").startswith("application/json"), answer
