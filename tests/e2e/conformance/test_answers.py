"""Sections 9, 10, 17: the form of answers, indices, echo, token ids, usage; section 18: limits of the context."""

import pytest

from conformance.daemon import Daemon
from conformance.rows import each
from conformance.shapes import CHAT, COMPLETIONS, both_ways, check_whole, text_of
from pace import quickly, until

USER = {"role": "user", "content": "Tell me something"}


@pytest.mark.sanitizer
def test_form_of_whole_answers(null):
    ids = set()

    def check(path, body):
        answer = check_whole(path, body, null.ok(path, body))
        assert answer["id"] not in ids
        ids.add(answer["id"])
        assert answer["model"] == null.get("/v1/models").json["data"][0]["id"]
    each([(COMPLETIONS, {"prompt": "a"}), (COMPLETIONS, {"prompt": ["a", "b", "c"], "n": 2, "max_tokens": 2}),
          (COMPLETIONS, {"prompt": [5, 6]}), (COMPLETIONS, {"prompt": [[5], [6, 7]], "n": 3, "return_token_ids": True}),
          (CHAT, {"messages": [USER], "max_tokens": 5}), (CHAT, {"messages": [USER], "max_tokens": 5, "n": 4}),
          (CHAT, {"messages": [USER], "max_tokens": 5, "return_token_ids": True})], check)
    for path, body in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": [USER], "max_completion_tokens": 16})):
        answer = null.ok(path, body)
        assert answer["usage"]["completion_tokens"] == 16 and answer["choices"][0]["finish_reason"] == "length"
        assert answer["system_fingerprint"] == null.ok(path, body)["system_fingerprint"]


@pytest.mark.sanitizer
def test_choices_of_several_prompts_stand_at_p_times_n_plus_i(null):
    prompts, n = ["one", "two words", "three more words"], 3
    body = {"n": n, "seed": 11, "max_tokens": 12, "return_token_ids": True}
    answer = both_ways(null, COMPLETIONS, {**body, "prompt": prompts})
    total = 0
    for p, prompt in enumerate(prompts):
        tokens = null.ok("/tokenize", {"prompt": prompt})["tokens"]
        total += len(tokens)
        for i in range(n):
            choice = answer["choices"][p * n + i]
            assert choice["prompt_token_ids"] == tokens
            single = null.complete(prompt=prompt, **{**body, "n": 1, "seed": 11 + i})["choices"][0]
            assert (choice["text"], choice["token_ids"]) == (single["text"], single["token_ids"])
    assert answer["usage"]["prompt_tokens"] == total  # each prompt once, whatever n is
    assert answer["usage"]["completion_tokens"] == 3 * 3 * 12
    ids = [null.ok("/tokenize", {"prompt": p})["tokens"] for p in prompts]
    assert null.complete(prompt=ids, **body)["choices"] == answer["choices"]


@pytest.mark.sanitizer
def test_text_is_the_tokens_bytes_repaired(null, vocabulary):
    """Made-up tokens are often pieces of characters: 3.5 rules what becomes of them, streamed or not."""
    repaired = 0

    def check(seed, path):
        nonlocal repaired
        body = {"max_tokens": 60, "seed": seed, "return_token_ids": True, "n": 2}
        body |= {"prompt": "x"} if path == COMPLETIONS else {"messages": [USER]}
        for c in both_ways(null, path, body)["choices"]:
            assert len(c["token_ids"]) == 60
            assert text_of(c) == vocabulary.text(c["token_ids"])
            repaired += "\ufffd" in text_of(c)
    each([(seed, path) for seed in range(20) for path in (COMPLETIONS, CHAT)], check)


def test_echo_puts_the_prompt_in_front(cpu, vocabulary):
    for prompt in ("Hello there", " leading", "trailing \n", "Grüße 🌶 a\u0301", "<|im_start|>user\nhi<|im_end|>", "x" * 500):
        body = {"prompt": prompt, "seed": 2, "max_tokens": 6, "n": 2}
        bare = cpu.complete(**body)["choices"]
        echoed = both_ways(cpu, COMPLETIONS, {**body, "echo": True})["choices"]
        assert [c["text"] for c in echoed] == [prompt + c["text"] for c in bare]
        scored = both_ways(cpu, COMPLETIONS, {"prompt": prompt, "echo": True, "max_tokens": 0, "return_token_ids": True})
        assert scored["choices"][0]["text"] == prompt and scored["choices"][0]["finish_reason"] == "length"
        assert scored["usage"]["completion_tokens"] == 0 and scored["choices"][0]["token_ids"] == []
    for ids in ([81, 82], [1, 4093, 198, 2], [0], [vocabulary.by_bytes[b"\xc3"]], [81, vocabulary.by_bytes[b"\xe4"], 82]):
        scored = cpu.complete(prompt=ids, echo=True, max_tokens=0)
        assert scored["choices"][0]["text"] == vocabulary.text(ids), ids
        assert scored["usage"]["prompt_tokens"] == len(ids)
    # A prompt that was cut is shown as what was kept of it, so that offsets and tokens belong to the text.
    for keep in (1, 3, 5, 9):
        cut = both_ways(cpu, COMPLETIONS, {"prompt": "The capital of France is", "truncate_prompt_tokens": keep, "echo": True,
                                           "logprobs": 0, "max_tokens": 2, "temperature": 0})["choices"][0]
        kept, entries = ["The", " capital", " of", " France", " is"][-keep:], cut["logprobs"]
        assert cut["text"].startswith("".join(kept)) and entries["tokens"][:len(kept)] == kept, cut
        for token, offset in zip(entries["tokens"], entries["text_offset"]):
            assert cut["text"][offset:offset + len(token)] == token, cut
    several = both_ways(cpu, COMPLETIONS, {"prompt": ["a", "b c"], "echo": True, "max_tokens": 3, "seed": 1, "n": 2})
    assert [c["text"][:1] for c in several["choices"]] == ["a", "a", "b", "b"]


@pytest.mark.sanitizer
def test_token_ids_of_chat(null):
    whole = both_ways(null, CHAT, {"messages": [USER], "max_tokens": 6, "seed": 1, "n": 2, "return_token_ids": True})
    assert whole["prompt_token_ids"] == null.ok("/tokenize", {"messages": [USER]})["tokens"]
    plain = null.chat(messages=[USER], max_tokens=6, seed=1)
    assert plain.get("prompt_token_ids") is None and plain["choices"][0].get("token_ids") is None


# --- 18.2 ---

def refused(answer, param, *numbers):
    assert answer.status == 400, answer
    error = answer.error
    assert error["code"] == "context_length_exceeded" and error["param"] == param, error
    assert f"This model's maximum context length is {numbers[0]} tokens" in error["message"], error
    for number in numbers:
        assert str(number) in error["message"], error


def test_context_length_to_the_token(null, vocabulary):
    size = vocabulary.context
    ids = [81 + i % 1000 for i in range(size + 1)]

    def post(**body):
        return null.post(COMPLETIONS, body)
    refused(post(prompt=ids), "prompt", size, size + 1)
    refused(post(prompt=ids[:size]), "prompt", size, size)
    refused(post(prompt=ids[:size], max_tokens=1), "prompt", size)
    refused(post(prompt=ids[:size - 3], max_tokens=4), "max_tokens", size, size - 3, 4)
    refused(post(prompt=[[5], ids]), "prompt", size, size + 1)
    refused(post(prompt=[ids[:10], ids[:size - 5]], max_tokens=8), "max_tokens", size, 8)
    for body, count in (({"prompt": ids[:size - 3], "max_tokens": 3}, 3), ({"prompt": ids[:size - 1]}, 1),
                        ({"prompt": ids[:size - 10]}, 10), ({"prompt": ids[:size - 16]}, 16), ({"prompt": ids[:size - 17]}, 16)):
        answer = null.ok(COMPLETIONS, body)
        assert answer["usage"]["completion_tokens"] == count, (len(body["prompt"]), answer["usage"])
        assert answer["choices"][0]["finish_reason"] == "length"
    # In a list the default limit is what is left to each prompt, or to the longest: the contract leaves it open.
    assert null.complete(prompt=[ids[:size - 2], [5]])["usage"]["completion_tokens"] in (2 + 16, 2 + 2)
    overhead = null.ok("/tokenize", {"messages": [{"role": "user", "content": "x"}]})["count"] - 1
    text = " a" * (size - overhead)
    messages = [{"role": "user", "content": text}]
    count = null.ok("/tokenize", {"messages": messages})["count"]
    assert count >= size
    refused(null.post(CHAT, {"messages": messages}), "messages", size, count)
    short = [{"role": "user", "content": "x"}]
    count = null.ok("/tokenize", {"messages": short})["count"]
    for name in ("max_tokens", "max_completion_tokens"):
        refused(null.post(CHAT, {"messages": short, name: size - count + 1}), name, size, count, size - count + 1)
    answer = null.chat(messages=short)  # no limit given: what is left of the context
    assert answer["usage"]["total_tokens"] == size and answer["choices"][0]["finish_reason"] == "length"
    assert null.chat(messages=short, max_tokens=size - count)["usage"]["completion_tokens"] == size - count


def test_a_shorter_context_is_kept_too(cpu):
    model = cpu.get("/v1/models").json["data"][0]
    assert model["max_model_len"] == 512
    refused(cpu.post(COMPLETIONS, {"prompt": [81] * 512}), "prompt", 512, 512)
    refused(cpu.post(COMPLETIONS, {"prompt": [81] * 500, "max_tokens": 13}), "max_tokens", 512, 500, 13)
    refused(cpu.post(COMPLETIONS, {"prompt": [81] * 513, "echo": True, "max_tokens": 0}), "prompt", 512, 513)
    refused(cpu.post(COMPLETIONS, {"prompt": [81] * 512, "echo": True, "max_tokens": 1}), "prompt", 512, 512)
    assert cpu.complete(prompt=[81] * 512, echo=True, max_tokens=0)["usage"]["completion_tokens"] == 0
    assert cpu.complete(prompt=[81] * 510)["usage"]["completion_tokens"] == 2


def test_what_the_pool_can_never_hold_is_refused_at_once():
    """kf-17: a pool of a few blocks; nothing stays at the head of the queue for good."""
    with Daemon("--device", "cpu", "--kv-cache-memory", 8 * 16 * 23040) as tiny:
        room = tiny.get("/v1/models").json["data"][0]["max_model_len"]
        assert 16 <= room <= 256, room
        answer = quickly(1, lambda: tiny.post(COMPLETIONS, {"prompt": [81] * (room + 72), "max_tokens": 8}))
        refused(answer, "prompt", room, room + 72)
        assert tiny.complete(prompt=[81] * 20, max_tokens=8)["usage"]["completion_tokens"] == 8
        answer = tiny.post(COMPLETIONS, {"prompt": [81] * (room - 8), "max_tokens": 32, "ignore_eos": True})
        refused(answer, "max_tokens", room, room - 8, 32)
        assert tiny.complete(prompt=[81] * (room - 8))["usage"]["completion_tokens"] == 8
        # Several sequences that together never fit at once: refused, or answered one after another; never stuck.
        answer = tiny.post(COMPLETIONS, {"prompt": [81] * (room - 8), "n": 16, "max_tokens": 8})
        assert answer.status in (200, 400), answer
        assert answer.status == 400 or answer.json["usage"]["completion_tokens"] == 128
        assert tiny.complete(prompt=[81] * 20, max_tokens=8)["usage"]["completion_tokens"] == 8
        until(tiny.idle, "idle")
