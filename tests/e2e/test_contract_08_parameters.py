"""docs/api.md sections 4, 5 and 8 to 10: every field's types, bounds, null and refusal, on both routes."""
import concurrent.futures
import json

import pytest
from pace import until

MESSAGES = [{"role": "user", "content": "Hello"}]
HUGE = 10 ** 400


def both(daemon, fields):
    chat = {k: v for k, v in fields.items()}
    yield daemon.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2, **chat})
    yield daemon.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2, **fields})


def check_error(answer, status, code, param):
    assert answer.status == status, answer.body
    body = answer.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    error = body["error"]
    assert error["code"] == code, error
    if param is None:
        assert error["param"] is None
    else:
        assert error["param"].split("[")[0].split(".")[0] == param, error
    assert error["type"] == ("invalid_request_error" if status < 429 else "rate_limit_error" if status == 429 else "server_error")
    assert isinstance(error["message"], str) and error["message"]


GOOD = [
    {"temperature": 0}, {"temperature": 2}, {"temperature": 1e-9}, {"temperature": 1e-320}, {"top_p": 0}, {"top_p": 1},
    {"top_k": -1}, {"top_k": 0}, {"top_k": 10 ** 12}, {"min_p": 0}, {"min_p": 1}, {"presence_penalty": -2},
    {"frequency_penalty": 2}, {"repetition_penalty": 0.001}, {"repetition_penalty": 5}, {"n": 1}, {"n": 3}, {"n": 2.0},
    {"seed": -2 ** 63}, {"seed": 2 ** 63 - 1}, {"seed": 0}, {"stop": "x"}, {"stop": []}, {"stop": ["a" * 1024] * 128},
    {"stop_token_ids": []}, {"stop_token_ids": [1] * 128}, {"logit_bias": {}}, {"logit_bias": {"5": -100, "6": 100}},
    {"logit_bias": {str(i): 1 for i in range(1024)}}, {"min_tokens": 0}, {"min_tokens": 2}, {"ignore_eos": True},
    {"include_stop_str_in_output": True}, {"skip_special_tokens": False}, {"user": "me"}, {"return_token_ids": True},
    {"return_tokens_as_token_ids": True}, {"add_special_tokens": False}, {"truncate_prompt_tokens": 5},
    {"store": True}, {"metadata": {"a": "b"}}, {"service_tier": "auto"}, {"safety_identifier": 5}, {"prompt_cache_key": "k"},
    {"prompt_cache_retention": "24h"}, {"verbosity": "low"}, {"prediction": {"type": "content"}}, {"reasoning_effort": "low"},
    {"response_format": {"type": "text"}}, {"use_beam_search": False}, {"length_penalty": 1.0}, {"priority": 0}, {"priority": -7}, {"priority": 2147483647},
    {"bad_words": []}, {"model": "smollm2"}, {"model": "alias/smollm2"},
    {"stream": True, "stream_options": {}}, {"stream": True, "stream_options": {"include_usage": None, "other": 5}},
]


@pytest.mark.parametrize("fields", GOOD, ids=lambda f: json.dumps(f)[:60])
def test_sound_values_are_taken(daemon, fields):
    for answer in both(daemon, fields):
        assert answer.status == 200, answer.body


BAD = [
    ({"temperature": -0.1}, "invalid_value", "temperature"), ({"temperature": 2.1}, "invalid_value", "temperature"),
    ({"temperature": "hot"}, "invalid_type", "temperature"), ({"temperature": True}, "invalid_type", "temperature"),
    ({"top_p": 1.5}, "invalid_value", "top_p"), ({"top_p": -1}, "invalid_value", "top_p"), ({"top_p": []}, "invalid_type", "top_p"),
    ({"top_k": -2}, "invalid_value", "top_k"), ({"top_k": 1.5}, "invalid_value", "top_k"), ({"top_k": "1"}, "invalid_type", "top_k"),
    ({"min_p": 1.01}, "invalid_value", "min_p"), ({"min_p": -1}, "invalid_value", "min_p"),
    ({"presence_penalty": 2.1}, "invalid_value", "presence_penalty"), ({"frequency_penalty": -3}, "invalid_value", "frequency_penalty"),
    ({"repetition_penalty": 0}, "invalid_value", "repetition_penalty"), ({"repetition_penalty": -1}, "invalid_value", "repetition_penalty"),
    ({"repetition_penalty": 1e300}, "invalid_value", "repetition_penalty"), ({"repetition_penalty": 1e-300}, "invalid_value", "repetition_penalty"),
    ({"n": 0}, "invalid_value", "n"), ({"n": 129}, "invalid_value", "n"), ({"n": 10 ** 9}, "invalid_value", "n"), ({"n": "2"}, "invalid_type", "n"),
    ({"n": True}, "invalid_type", "n"),
    ({"max_tokens": -5}, "invalid_value", "max_tokens"), ({"max_tokens": 1.5}, "invalid_value", "max_tokens"),
    ({"max_tokens": 0}, "invalid_value", "max_tokens"), ({"max_tokens": True}, "invalid_type", "max_tokens"),
    ({"max_tokens": 2 ** 63 - 1}, "context_length_exceeded", "max_tokens"), ({"max_tokens": 2 ** 63}, "invalid_value", "max_tokens"),
    ({"max_tokens": 100000}, "context_length_exceeded", "max_tokens"),
    ({"min_tokens": -1}, "invalid_value", "min_tokens"), ({"min_tokens": 3}, "invalid_value", "min_tokens"),
    ({"seed": 2 ** 63}, "invalid_value", "seed"), ({"seed": -2 ** 63 - 1025}, "invalid_value", "seed"), ({"seed": 0.5}, "invalid_value", "seed"),
    ({"seed": "1"}, "invalid_type", "seed"),
    ({"stop": ""}, "invalid_value", "stop"), ({"stop": ["a", ""]}, "invalid_value", "stop"), ({"stop": 5}, "invalid_type", "stop"),
    ({"stop": [5]}, "invalid_type", "stop"), ({"stop": ["a"] * 129}, "invalid_value", "stop"), ({"stop": "a" * 1025}, "invalid_value", "stop"),
    ({"stop": ["a"] * 100000}, "invalid_value", "stop"), ({"stop": "a" * (10 << 20)}, "invalid_value", "stop"),
    ({"stop_token_ids": 5}, "invalid_type", "stop_token_ids"), ({"stop_token_ids": [-1]}, "invalid_value", "stop_token_ids"),
    ({"stop_token_ids": [49152]}, "invalid_value", "stop_token_ids"), ({"stop_token_ids": ["1"]}, "invalid_type", "stop_token_ids"),
    ({"stop_token_ids": [1] * 129}, "invalid_value", "stop_token_ids"), ({"stop_token_ids": [True]}, "invalid_type", "stop_token_ids"),
    ({"logit_bias": []}, "invalid_type", "logit_bias"), ({"logit_bias": {"999999999": 5}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"-1": 5}}, "invalid_value", "logit_bias"), ({"logit_bias": {"5": "x"}}, "invalid_type", "logit_bias"),
    ({"logit_bias": {"a": 5}}, "invalid_value", "logit_bias"), ({"logit_bias": {"05": 5}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"5": 100.5}}, "invalid_value", "logit_bias"), ({"logit_bias": {"": 1}}, "invalid_value", "logit_bias"),
    ({"ignore_eos": 1}, "invalid_type", "ignore_eos"), ({"stream": "true"}, "invalid_type", "stream"), ({"stream": 1}, "invalid_type", "stream"),
    ({"include_stop_str_in_output": 0}, "invalid_type", "include_stop_str_in_output"),
    ({"skip_special_tokens": "no"}, "invalid_type", "skip_special_tokens"), ({"return_token_ids": 1}, "invalid_type", "return_token_ids"),
    ({"add_special_tokens": 1}, "invalid_type", "add_special_tokens"),
    ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
    ({"stream": True, "stream_options": 5}, "invalid_type", "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "invalid_type", "stream_options"),
    ({"user": 5}, "invalid_type", "user"), ({"model": 5}, "invalid_type", "model"),
    ({"response_format": 5}, "invalid_type", "response_format"), ({"response_format": {}}, "invalid_value", "response_format"),
    ({"response_format": {"type": "hiccup"}}, "invalid_value", "response_format"),
    ({"response_format": {"type": "json_object"}}, "unsupported_parameter", "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}}, "unsupported_parameter", "response_format"),
    ({"truncate_prompt_tokens": 0}, "invalid_value", "truncate_prompt_tokens"),
    ({"bad_words": ["x"]}, "unsupported_parameter", "bad_words"), ({"allowed_token_ids": [1]}, "unsupported_parameter", "allowed_token_ids"),
    ({"prompt_logprobs": 1}, "unsupported_parameter", "prompt_logprobs"), ({"structured_outputs": {}}, "unsupported_parameter", "structured_outputs"),
    ({"use_beam_search": True}, "unsupported_parameter", "use_beam_search"), ({"length_penalty": 0.5}, "unsupported_parameter", "length_penalty"),
    ({"priority": 1.5}, "invalid_value", "priority"), ({"priority": 2**31}, "invalid_value", "priority"), ({"priority": "high"}, "invalid_type", "priority"), ({"logprob_token_ids": [1]}, "unsupported_parameter", "logprob_token_ids"),
]


@pytest.mark.parametrize("fields,code,param", BAD, ids=lambda v: json.dumps(v)[:60])
def test_wrong_values_are_refused(daemon, fields, code, param):
    for answer in both(daemon, fields):
        check_error(answer, 400, code, param)


BAD_COMPLETION = [
    ({"prompt": None}, "missing_required_parameter", "prompt"), ({"prompt": ""}, "invalid_value", "prompt"),
    ({"prompt": [""]}, "invalid_value", "prompt"), ({"prompt": []}, "invalid_value", "prompt"), ({"prompt": [[]]}, "invalid_value", "prompt"),
    ({"prompt": 5}, "invalid_type", "prompt"), ({"prompt": {}}, "invalid_type", "prompt"), ({"prompt": True}, "invalid_type", "prompt"),
    ({"prompt": [True]}, "invalid_type", "prompt"), ({"prompt": ["a", 5]}, "invalid_type", "prompt"), ({"prompt": [5, "a"]}, "invalid_type", "prompt"),
    ({"prompt": [[5], "a"]}, "invalid_type", "prompt"), ({"prompt": [[5], 5]}, "invalid_type", "prompt"), ({"prompt": [[True]]}, "invalid_type", "prompt"),
    ({"prompt": [-1]}, "invalid_value", "prompt"), ({"prompt": [49152]}, "invalid_value", "prompt"), ({"prompt": [5279552648203111001]}, "invalid_value", "prompt"),
    ({"prompt": [1.5]}, "invalid_value", "prompt"), ({"prompt": ["a"] * 513}, "invalid_value", "prompt"),
    ({"prompt": ["a"] * 200, "n": 3}, "invalid_value", "n"),
    ({"best_of": 0}, "invalid_value", "best_of"), ({"n": 3, "best_of": 2}, "invalid_value", "best_of"), ({"best_of": 21}, "invalid_value", "best_of"),
    ({"best_of": 2, "stream": True}, "invalid_value", "best_of"), ({"logprobs": True}, "invalid_type", "logprobs"),
    ({"logprobs": 21}, "invalid_value", "logprobs"), ({"logprobs": -1}, "invalid_value", "logprobs"), ({"logprobs": 1000000}, "invalid_value", "logprobs"),
    ({"suffix": "x"}, "unsupported_parameter", "suffix"), ({"echo": "yes"}, "invalid_type", "echo"),
]


@pytest.mark.parametrize("fields,code,param", BAD_COMPLETION, ids=lambda v: json.dumps(v)[:60])
def test_wrong_completion_values_are_refused(daemon, fields, code, param):
    check_error(daemon.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2, **fields}), 400, code, param)


def message(**fields):
    return {"messages": [{"role": "user", "content": "a", **fields}]}


BAD_CHAT = [
    ({"messages": None}, "missing_required_parameter", "messages"), ({"messages": []}, "invalid_value", "messages"),
    ({"messages": {}}, "invalid_type", "messages"), ({"messages": [5]}, "invalid_type", "messages"), ({"messages": [{}]}, "missing_required_parameter", "messages"),
    (message(role="boss"), "invalid_value", "messages"), (message(role=5), "invalid_type", "messages"), (message(role="function"), "invalid_value", "messages"),
    (message(content=None), "missing_required_parameter", "messages"), (message(content=7), "invalid_type", "messages"),
    (message(content=[]), "invalid_value", "messages"), (message(content=["a"]), "invalid_type", "messages"),
    (message(content=[{"type": "image_url", "image_url": {"url": "x"}}]), "invalid_value", "messages"),
    (message(content=[{"type": "input_audio"}]), "invalid_value", "messages"), (message(content=[{"type": "text"}]), "missing_required_parameter", "messages"),
    (message(content=[{"type": "text", "text": 5}]), "invalid_type", "messages"), (message(content=[{"type": "refusal", "refusal": "x"}]), "invalid_value", "messages"),
    (message(name=5), "invalid_type", "messages"), (message(role="tool"), "missing_required_parameter", "messages"),
    (message(role="assistant", content=None), "missing_required_parameter", "messages"),
    (message(role="assistant", content=None, tool_calls=[]), "missing_required_parameter", "messages"),
    (message(role="assistant", tool_calls=5), "invalid_type", "messages"),
    (message(role="assistant", tool_calls=[{"id": "a", "type": "function", "function": {"name": "f"}}]), "missing_required_parameter", "messages"),
    (message(role="assistant", tool_calls=[{"id": "a", "type": "x", "function": {"name": "f", "arguments": "{}"}}]), "invalid_value", "messages"),
    (message(role="assistant", tool_calls=[{"id": "a", "type": "function", "function": {"name": "f", "arguments": {}}}]), "invalid_type", "messages"),
    ({"logprobs": 5}, "invalid_type", "logprobs"), ({"top_logprobs": 3}, "invalid_value", "top_logprobs"), ({"top_logprobs": 21, "logprobs": True}, "invalid_value", "top_logprobs"),
    ({"max_completion_tokens": 0}, "invalid_value", "max_completion_tokens"), ({"max_completion_tokens": 10 ** 6}, "context_length_exceeded", "max_completion_tokens"),
    ({"tools": []}, "unsupported_parameter", "tools"), ({"tools": [{"type": "function"}]}, "unsupported_parameter", "tools"),
    ({"tool_choice": "auto"}, "unsupported_parameter", "tool_choice"), ({"tool_choice": {"type": "function"}}, "unsupported_parameter", "tool_choice"),
    ({"parallel_tool_calls": False}, "unsupported_parameter", "parallel_tool_calls"), ({"echo": True}, "unsupported_parameter", "echo"),
    ({"chat_template": "x"}, "unsupported_parameter", "chat_template"), ({"functions": []}, "unsupported_parameter", "functions"),
    ({"function_call": "none"}, "unsupported_parameter", "function_call"),
    ({"modalities": ["audio"]}, "invalid_value", "modalities"), ({"modalities": "text"}, "invalid_type", "modalities"),
    ({"add_generation_prompt": 1}, "invalid_type", "add_generation_prompt"), ({"continue_final_message": True}, "invalid_value", "continue_final_message"),
    ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "continue_final_message": True, "add_generation_prompt": True},
     "invalid_value", "add_generation_prompt"),
    ({"chat_template_kwargs": 5}, "invalid_type", "chat_template_kwargs"), ({"documents": 5}, "invalid_type", "documents"),
]


@pytest.mark.parametrize("fields,code,param", BAD_CHAT, ids=lambda v: json.dumps(v)[:70])
def test_wrong_chat_values_are_refused(daemon, fields, code, param):
    check_error(daemon.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2, **fields}), 400, code, param)


GOOD_CHAT = [
    {"tool_choice": "none"}, {"parallel_tool_calls": True}, {"modalities": ["text"]}, {"logprobs": False}, {"top_logprobs": 0},
    {"max_completion_tokens": 1}, {"echo": False}, {"functions": None}, {"add_generation_prompt": False},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [{"role": "system", "content": "s"}, {"role": "developer", "content": [{"type": "text", "text": "d"}]},
                  {"role": "user", "content": "", "name": "n"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
                  {"role": "user", "content": "b"}]},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "continue_final_message": True},
]


@pytest.mark.parametrize("fields", GOOD_CHAT, ids=lambda v: json.dumps(v)[:70])
def test_sound_chat_values_are_taken(daemon, fields):
    answer = daemon.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2, **fields})
    assert answer.status == 200, answer.body


def test_earlier_tool_calls_and_results_are_taken(daemon):
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}
    answer = daemon.post("/v1/chat/completions", {"max_tokens": 2, "messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "2"}]})
    # a template may refuse the conversation in its own words, but the fields are sound
    assert answer.status == 200 or "The chat template refused" in answer.json()["error"]["message"], answer.body


def test_an_unknown_model_is_404(daemon):
    for answer in both(daemon, {"model": "gpt-5"}):
        check_error(answer, 404, "model_not_found", "model")


def test_validation_comes_before_the_model_and_the_model_before_the_context(daemon):
    check_error(daemon.complete(model="none", n=0), 400, "invalid_value", "n")
    check_error(daemon.complete(model="none", max_tokens=10 ** 6), 404, "model_not_found", "model")


def test_messages_quote_little_of_the_request(daemon):
    answer = daemon.complete(model="x" * 5000)
    assert answer.json()["error"]["message"].count("x") <= 200


def test_the_null_device_refuses_what_needs_logits(daemon):
    for fields, param in (({"logprobs": 1}, "logprobs"), ({"echo": True}, "echo"), ({"best_of": 2}, "best_of")):
        if daemon.device == "null":
            check_error(daemon.complete(**fields), 400, "unsupported_parameter", param)


def test_a_smaller_priority_overtakes(start):
    """One slot, held by a long answer; of those that wait the last to come goes first. Answers end 0.3 s apart: threads that hear of
    them 8 ms apart may be woken in any order."""
    daemon = start(step_us=2000, seqs=1)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        def ask(priority, tokens):
            daemon.complete(prompt="Hello", max_tokens=tokens, ignore_eos=True, priority=priority)
            ended.append(priority)
        ended = []
        jobs = [pool.submit(ask, 0, 1000)]
        daemon.wait_running(1)
        for waiting, priority in enumerate((5, 0, -3), 1):
            jobs.append(pool.submit(ask, priority, 150))
            until(lambda: daemon.metrics()["inferd_requests_waiting"] >= waiting, f"{waiting} wait")
        for job in jobs:
            job.result()
    assert ended == [0, -3, 0, 5]
