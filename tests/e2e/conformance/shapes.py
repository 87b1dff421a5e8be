"""What a whole answer and a stream must look like (sections 9, 10.3, 11, 17), and a stream put together again."""
import time

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def choices_expected(path, body):
    prompt = body.get("prompt")
    prompts = len(prompt) if path == COMPLETIONS and isinstance(prompt, list) and not isinstance(prompt[0], (int, float)) else 1
    return prompts * (body.get("n") or 1)


def check_usage(usage, prompts=1):
    assert set(usage) >= {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}, usage
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], usage
    assert all(type(usage[k]) is int for k in ("prompt_tokens", "completion_tokens")), usage
    assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"] - 1, usage


def check_common(answer, kind, prefix):
    assert answer["id"].startswith(prefix) and len(answer["id"]) > len(prefix) + 5, answer["id"]
    assert answer["object"] == kind and isinstance(answer["model"], str) and answer["model"]
    assert type(answer["created"]) is int and abs(answer["created"] - time.time()) < 600
    assert isinstance(answer["system_fingerprint"], str) and answer["system_fingerprint"]


def text_of(choice):
    return choice["text"] if "text" in choice else choice["message"]["content"]


def check_whole(path, body, answer):
    """The shape of an answer that was not streamed. Returns it."""
    chat = path == CHAT
    check_common(answer, "chat.completion" if chat else "text_completion", "chatcmpl-" if chat else "cmpl-")
    choices = answer["choices"]
    assert [c["index"] for c in choices] == list(range(choices_expected(path, body)))
    for c in choices:
        assert set(c) >= {"index", "logprobs", "finish_reason", "stop_reason"}, c
        assert c["finish_reason"] in ("stop", "length") or c["message"].get("tool_calls"), c
        if c["finish_reason"] == "length":
            assert c["stop_reason"] is None
        if chat:
            assert c["message"]["role"] == "assistant" and isinstance(c["message"]["content"], str), c
            assert c["message"]["refusal"] is None and "tool_calls" not in c["message"], c
        else:
            assert isinstance(c["text"], str)
        wanted = body.get("logprobs") is not None and body.get("logprobs") is not False
        assert (c["logprobs"] is not None) == wanted, c
        assert ("token_ids" in c and c["token_ids"] is not None) == bool(body.get("return_token_ids")), c
    check_usage(answer["usage"])
    return answer


def add_logprobs(have, more, chat):
    if more is None:
        return have
    if chat:
        assert set(more) >= {"content", "refusal"} and more["refusal"] is None, more
        have = have or {"content": [], "refusal": None}
        have["content"] += more["content"]
    else:
        have = have or {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        assert set(have) <= set(more), more
        for name in have:
            have[name] += more[name]
    return have


def put_together(path, body, events):
    """The choices of a stream as a whole answer would have them, and its usage; its order and shape are checked."""
    chat = path == CHAT
    kind, prefix = ("chat.completion.chunk", "chatcmpl-") if chat else ("text_completion", "cmpl-")
    count = choices_expected(path, body)
    wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    texts, done, logprobs = [""] * count, [None] * count, [None] * count
    ids, prompt_ids, role = [[] for _ in range(count)], [None] * count, [False] * count
    usage = None
    for event in events:
        check_common_chunk(event, kind, prefix, events[0])
        if wants_usage and not event["choices"]:
            assert usage is None and all(done) and event is events[-1], "the usage chunk is not the last"
            usage = event["usage"]
            check_usage(usage)
            continue
        assert event["choices"], event
        assert ("usage" in event and event["usage"] is None) if wants_usage else event.get("usage") is None, event
        for c in event["choices"]:
            i = c["index"]
            if chat and event.get("prompt_token_ids") is not None:  # at the top level, with the first chunk of each choice
                assert prompt_ids[i] is None, "the prompt's ids came twice"
                prompt_ids[i] = event["prompt_token_ids"]
            assert done[i] is None, f"choice {i} goes on behind its finish chunk"
            assert "logprobs" in c and "finish_reason" in c, c
            if chat:
                if not role[i]:
                    assert c["delta"].get("role") == "assistant" and c["delta"].get("content") == "", c
                    assert c["finish_reason"] is None and c["logprobs"] is None, c
                    role[i] = True
                elif c["finish_reason"] is None:
                    assert set(c["delta"]) == {"content"} and isinstance(c["delta"]["content"], str), c
                    assert c["delta"]["content"] or c["logprobs"] or c.get("token_ids"), f"a chunk of nothing: {c}"
                else:
                    assert c["delta"] == {} and c["logprobs"] is None, c
                texts[i] += c["delta"].get("content") or ""
            else:
                assert isinstance(c["text"], str)
                if c["finish_reason"] is not None:
                    assert c["text"] == "", c
                texts[i] += c["text"]
            if c.get("prompt_token_ids") is not None:
                assert prompt_ids[i] is None, "the prompt's ids came twice"
                prompt_ids[i] = c["prompt_token_ids"]
            ids[i] += c.get("token_ids") or []
            logprobs[i] = add_logprobs(logprobs[i], c["logprobs"], chat)
            if c["finish_reason"] is not None:
                assert c["finish_reason"] in ("stop", "length"), c
                assert "stop_reason" in c, c
                done[i] = (c["finish_reason"], c["stop_reason"])
    assert all(done), "a choice without finish chunk"
    assert (usage is not None) == wants_usage
    return [dict(text=texts[i], finish=done[i], ids=ids[i], prompt_ids=prompt_ids[i],
                 logprobs=logprobs[i]) for i in range(count)], usage


def check_common_chunk(event, kind, prefix, first):
    assert event["object"] == kind and event["id"].startswith(prefix), event
    assert all(event[k] == first[k] for k in ("id", "created", "model")), event


def taken_apart(path, answer):
    """A whole answer in the form of `put_together`."""
    return [dict(text=text_of(c), finish=(c["finish_reason"], c["stop_reason"]), ids=c.get("token_ids") or [],
                 prompt_ids=answer.get("prompt_token_ids") if path == CHAT else c.get("prompt_token_ids"),
                 logprobs=c["logprobs"]) for c in answer["choices"]]


def both_ways(daemon, path, body):
    """Runs a request whole and streamed, holds them to be equal in everything, and returns the whole answer.

    The body must be repeatable: greedy or with a seed."""
    whole = check_whole(path, body, daemon.ok(path, body))
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    choices, usage = put_together(path, streamed, daemon.stream(path, streamed))
    expected = taken_apart(path, whole)
    for got, want in zip(choices, expected, strict=True):
        for name in want:
            if name == "logprobs" and want[name] is not None and got[name] is None:
                assert not any(want[name][k] for k in want[name] if k != "refusal"), "log probabilities are missing"
                continue
            assert got[name] == want[name], f"{name} of {body}: streamed {got[name]!r}, whole {want[name]!r}"
    cached = {"prompt_tokens_details"}
    assert {k: v for k, v in usage.items() if k not in cached} == {k: v for k, v in whole["usage"].items() if k not in cached}
    return whole
