"""Tokenize over ZeroMQ gives what POST /tokenize gives for the same request, or refuses it with the same status, code and field: a few
hundred random requests, with the fields that both have, over both (docs/api.md section 7, proto/inferd.proto)."""
import json
import os
import random

import pytest
from conftest import LONG
from rawhttp import post
from zmqclient import connect, pb

pytestmark = pytest.mark.sanitizer
PIECES = ["Hello", " world", "é", "日本語", "\n", "\0", "<|im_start|>", "<|im_end|>", "  ", "🦆", "x" * 40, "\u2028", "'", '"', "\\"]


def text(rng):
    return "".join(rng.choice(PIECES) for _ in range(rng.randrange(6)))


def random_body(rng):
    """Of /tokenize; now and then with something wrong."""
    body = {}
    if rng.random() < 0.6:
        body["prompt"] = text(rng)
    if rng.random() < 0.5 or not body:
        roles = ["system", "user", "assistant"]
        body["messages"] = [{"role": rng.choice(roles), "content": text(rng)} for _ in range(rng.randrange(1, 4))]
        for field in ("add_generation_prompt", "continue_final_message"):
            if rng.random() < 0.3:
                body[field] = rng.random() < 0.5
        if rng.random() < 0.2:
            body["chat_template_kwargs"] = rng.choice([{}, {"enable_thinking": False}, {"x": [1, "é"]}])
        if rng.random() < 0.2:
            body["documents"] = [{"title": text(rng), "text": text(rng)}]
        if rng.random() < 0.2:
            body["reasoning_effort"] = rng.choice(["low", "high", "é"])
    if rng.random() < 0.3:
        body["add_special_tokens"] = rng.random() < 0.5
    if rng.random() < 0.6:
        body["truncate_prompt_tokens"] = rng.choice([1, 2, 3, 5, 100, 2**62, 0, -1, -2**62])
    if rng.random() < 0.1:
        body["model"] = rng.choice(["smollm2", "nobody"])
    return body


def as_message(body):
    fields = dict(body)
    for name in ("chat_template_kwargs", "documents"):
        if name in fields:
            fields[name] = json.dumps(fields[name]).encode()
    if "prompt" in fields:
        fields["prompt"] = fields["prompt"].encode()
    if "messages" in fields:
        fields["messages"] = [pb.ChatMessage(role=m["role"], content=m["content"].encode()) for m in fields["messages"]]
    return pb.Tokenize(**fields)


def test_both_ways_tokenize_alike(start):
    server = start(step_us=0, zmq="tcp://127.0.0.1:*")
    seed = int(os.environ.get("INFERD_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
    rng, client = random.Random(seed), connect(server)
    seen = {"cut": 0, "refused": 0}
    with server.raw() as http:
        for _ in range(20000 if LONG else 600):
            body = random_body(rng)
            http.send(post("/tokenize", body))
            one, two = http.answer(), client.ask(tokenize=as_message(body))
            why = f"INFERD_TEST_SEED={seed} {body}"
            if one.status == 200:
                assert list(two.tokenize.ids) == one.json()["tokens"], why
                assert two.tokenize.max_model_len == one.json()["max_model_len"]
                seen["cut"] += len(two.tokenize.ids) == body.get("truncate_prompt_tokens")
                continue
            error = one.json()["error"]
            assert (two.error.status, two.error.code, two.error.param) == (one.status, error["code"], error["param"] or ""), why
            seen["refused"] += 1
    client.close()
    assert seen["cut"] > 20 and seen["refused"] > 20, seen


def test_generate_takes_the_ids_that_tokenize_gives(start):
    """Cut and not, text and conversation: `prompt_tokens` of the generation is the count."""
    server = start(step_us=0, zmq="tcp://127.0.0.1:*")
    client = connect(server)
    turns = [pb.ChatMessage(role="user", content=b"Tell me about ducks, please.")]
    for fields in (dict(prompt=b"Once upon a time"), dict(messages=turns)):
        as_generate = {"prompts": [fields["prompt"]]} if "prompt" in fields else fields
        for cut in ({}, {"truncate_prompt_tokens": 2}):
            ids = client.ask(tokenize=pb.Tokenize(**fields, **cut)).tokenize.ids
            done = list(client.generate(**as_generate, **cut, max_tokens=1))[-1].done
            assert done.usage.prompt_tokens == len(ids) and (not cut or len(ids) == 2)
    client.close()
