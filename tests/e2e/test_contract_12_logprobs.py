"""docs/api.md sections 9, 12 and 13 on the real model: log probabilities, echo, scoring, best_of, ends of sequence."""
import math

import pytest
from test_contract_11_streaming import check_equal

STORY = "Once upon a time there was a"


def test_a_sensible_answer(cpu):
    body = cpu.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Write one sentence about dogs."}],
                                             "temperature": 0, "max_tokens": 40}).json()
    assert "dog" in body["choices"][0]["message"]["content"]


def test_the_end_of_sequence_ends_an_answer(cpu):
    body = check_equal(cpu, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Say hi."}], "temperature": 0,
                                                     "max_tokens": 300, "return_token_ids": True})
    choice = body["choices"][0]
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] is None
    assert choice["token_ids"][-1] == 2 and "<|im_end|>" not in choice["message"]["content"]
    assert body["usage"]["completion_tokens"] == len(choice["token_ids"])


@pytest.mark.parametrize("fields", [
    {"logprobs": True}, {"logprobs": True, "top_logprobs": 5}, {"logprobs": True, "top_logprobs": 20, "n": 2, "temperature": 1},
    {"logprobs": True, "top_logprobs": 2, "stop": "the"}, {"logprobs": True, "return_tokens_as_token_ids": True},
    {"logprobs": True, "top_logprobs": 3, "temperature": 0.7, "top_p": 0.5, "seed": 3},
], ids=str)
def test_chat_log_probabilities(cpu, fields):
    request = {"messages": [{"role": "user", "content": "Count: naïve café 日本"}], "max_tokens": 12, "temperature": 0, "seed": 1, **fields}
    body = check_equal(cpu, "/v1/chat/completions", request)
    for choice in body["choices"]:
        entries = choice["logprobs"]["content"]
        assert choice["logprobs"]["refusal"] is None
        text = b"".join(bytes(e["bytes"]) for e in entries)
        content = choice["message"]["content"]
        assert text.decode("utf-8", "replace").startswith(content)
        if choice["stop_reason"] is None:
            assert text.decode("utf-8", "replace") == content
        for e in entries:
            values = [t["logprob"] for t in e["top_logprobs"]]
            assert len(values) == fields.get("top_logprobs", 0) and values == sorted(values, reverse=True)
            assert e["logprob"] <= 0 and all(v <= 0 and math.isfinite(v) for v in values)
            if values:
                assert sum(math.exp(v) for v in values) <= 1.0001 and e["logprob"] <= values[0]
            if fields.get("return_tokens_as_token_ids"):
                assert e["token"].startswith("token_id:")


def test_streamed_log_probabilities_are_the_same(cpu):
    request = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    whole = cpu.post("/v1/chat/completions", request).json()["choices"][0]["logprobs"]["content"]
    parts = [e for chunk in cpu.stream("/v1/chat/completions", request)[:-1] for c in chunk["choices"] if c["logprobs"] for e in c["logprobs"]["content"]]
    assert parts == whole


@pytest.mark.parametrize("count", [0, 1, 5])
def test_completion_log_probabilities(cpu, count):
    request = {"prompt": STORY, "max_tokens": 8, "temperature": 0.8, "seed": 5, "logprobs": count}
    choice = check_equal(cpu, "/v1/completions", request)["choices"][0]
    l = choice["logprobs"]
    assert len(l["tokens"]) == len(l["token_logprobs"]) == len(l["top_logprobs"]) == len(l["text_offset"]) == 8
    assert l["text_offset"][0] == 0 and "".join(l["tokens"]) == choice["text"]
    for token, value, top, offset in zip(l["tokens"], l["token_logprobs"], l["top_logprobs"], l["text_offset"]):
        assert top[token] == value and choice["text"][offset:].startswith(token)
        assert count <= len(top) <= count + 1
    parts = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for chunk in cpu.stream("/v1/completions", request)[:-1]:
        for name in parts:
            if chunk["choices"][0]["logprobs"]:
                parts[name] += chunk["choices"][0]["logprobs"][name]
    assert parts == l


def test_greedy_takes_the_likeliest(cpu):
    l = cpu.complete(prompt=STORY, temperature=0, logprobs=3).json()["choices"][0]["logprobs"]
    assert all(value == max(top.values()) for value, top in zip(l["token_logprobs"], l["top_logprobs"]))


# --- echo and scoring ---

def test_echo_puts_the_prompt_in_front(cpu):
    for prompt in (STORY, "naïve <|im_start|>x"):
        request = {"prompt": prompt, "max_tokens": 5, "temperature": 0, "echo": True}
        body = check_equal(cpu, "/v1/completions", request)
        plain = cpu.complete(prompt=prompt, max_tokens=5, temperature=0).json()
        assert body["choices"][0]["text"] == prompt + plain["choices"][0]["text"]
    ids = cpu.post("/tokenize", {"prompt": "<|im_start|>user hello"}).json()["tokens"]
    assert cpu.complete(prompt=ids, max_tokens=1, echo=True, temperature=0).json()["choices"][0]["text"].startswith("user hello")


@pytest.mark.parametrize("as_ids", [False, True])
def test_scoring_equals_generating(cpu, as_ids):
    """12.5."""
    made = cpu.complete(prompt=STORY, max_tokens=8, temperature=0, logprobs=2, return_token_ids=True).json()["choices"][0]
    text = STORY + made["text"]
    prompt = made["prompt_token_ids"] + made["token_ids"] if as_ids else text
    scored = cpu.complete(prompt=prompt, max_tokens=0, echo=True, logprobs=2).json()
    choice, l = scored["choices"][0], scored["choices"][0]["logprobs"]
    assert choice["text"] == text and choice["finish_reason"] == "length" and scored["usage"]["completion_tokens"] == 0
    assert l["token_logprobs"][0] is None and l["top_logprobs"][0] is None
    assert len(l["tokens"]) == scored["usage"]["prompt_tokens"] and "".join(l["tokens"]) == text
    for a, b in zip(l["token_logprobs"][-8:], made["logprobs"]["token_logprobs"]):
        assert abs(a - b) < 0.15
    one_more = cpu.complete(prompt=prompt, max_tokens=1, echo=True, logprobs=2, temperature=0).json()["choices"][0]["logprobs"]
    assert len(one_more["tokens"]) == len(l["tokens"]) + 1
    for a, b in zip(one_more["token_logprobs"][1:-1], l["token_logprobs"][1:]):
        assert abs(a - b) < 0.15


def test_scoring_a_list_and_streaming_it(cpu):
    prompts = [STORY, "The cat sat on the mat."]
    request = {"prompt": prompts, "max_tokens": 0, "echo": True, "logprobs": 1}
    both = check_equal(cpu, "/v1/completions", request)
    for i, prompt in enumerate(prompts):
        alone = cpu.complete(prompt=prompt, max_tokens=0, echo=True, logprobs=1).json()["choices"][0]
        for a, b in zip(alone["logprobs"]["token_logprobs"][1:], both["choices"][i]["logprobs"]["token_logprobs"][1:]):
            assert abs(a - b) < 0.01
    without = cpu.complete(prompt=STORY, max_tokens=0, echo=True).json()["choices"][0]
    assert without["text"] == STORY and without["logprobs"] is None


def test_best_of_is_the_likeliest_first(cpu):
    request = {"prompt": STORY, "max_tokens": 6, "temperature": 1.5, "seed": 20, "logprobs": 0}
    best = cpu.complete(**{**request, "n": 3, "best_of": 6}).json()
    means = [sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["token_logprobs"]) for c in best["choices"]]
    assert means == sorted(means, reverse=True) and best["usage"]["completion_tokens"] == 36
    every = cpu.complete(**{**request, "n": 6}).json()
    assert {c["text"] for c in best["choices"]} <= {c["text"] for c in every["choices"]}


# --- 13 ---

def test_a_bias_bans_and_forces(cpu):
    first = cpu.complete(prompt=STORY, max_tokens=1, temperature=0, return_token_ids=True).json()["choices"][0]["token_ids"][0]
    banned = cpu.complete(prompt=STORY, max_tokens=1, temperature=0, return_token_ids=True, logit_bias={str(first): -100}).json()
    assert banned["choices"][0]["token_ids"][0] != first
    forced = cpu.complete(prompt=STORY, max_tokens=4, temperature=1, return_token_ids=True, logit_bias={"1234": 100}).json()
    assert forced["choices"][0]["token_ids"] == [1234] * 4


def test_greedy_ignores_the_filters_and_top_p_0_is_greedy(cpu):
    greedy = cpu.complete(prompt=STORY, temperature=0).json()["choices"][0]["text"]
    for fields in ({"temperature": 0, "top_p": 0.1, "top_k": 3, "min_p": 0.5, "seed": 9}, {"temperature": 1, "top_p": 0},
                   {"temperature": 1, "top_k": 1}, {"temperature": 1e-6}, {"temperature": 1, "min_p": 1}):
        assert cpu.complete(prompt=STORY, **fields).json()["choices"][0]["text"] == greedy
    three = cpu.complete(prompt=STORY, temperature=0, n=3).json()["choices"]
    assert [c["text"] for c in three] == [greedy] * 3


def test_min_tokens_mask_the_end(cpu):
    request = {"messages": [{"role": "user", "content": "Say hi."}], "temperature": 0, "max_tokens": 120, "return_token_ids": True}
    short = cpu.post("/v1/chat/completions", request).json()["choices"][0]["token_ids"]
    longer = cpu.post("/v1/chat/completions", {**request, "min_tokens": len(short) + 10}).json()["choices"][0]["token_ids"]
    assert len(longer) >= len(short) + 10 and 2 not in longer[:len(short) + 10]


def test_continue_final_message(cpu):
    messages = [{"role": "user", "content": "Name a colour."}, {"role": "assistant", "content": "My favourite colour is"}]
    tokens = cpu.post("/tokenize", {"messages": messages, "continue_final_message": True}).json()["tokens"]
    text = cpu.post("/detokenize", {"tokens": tokens}).json()["prompt"]
    assert text.endswith("My favourite colour is")
    answer = cpu.post("/v1/chat/completions", {"messages": messages, "continue_final_message": True, "temperature": 0, "max_tokens": 4}).json()
    assert not answer["choices"][0]["message"]["content"].startswith("My favourite")


def test_answers_do_not_depend_on_company(cpu):
    """13.5 and kf-08: alone and beside eleven others."""
    import concurrent.futures
    request = {"prompt": STORY, "max_tokens": 16, "temperature": 0.8, "seed": 42, "logprobs": 0}
    alone = cpu.complete(**request).json()["choices"]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        got = list(pool.map(lambda k: cpu.complete(**({**request} if k % 3 == 0 else {"prompt": "x " * k, "max_tokens": 20})).json()["choices"], range(12)))
    assert all(got[k] == alone for k in range(0, 12, 3))
