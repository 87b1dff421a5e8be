"""docs/api.md sections 9 to 11, 13, 14 and 17: answers, streams, stops, seeds and usage, on made-up tokens."""
import json

import pytest
from pace import at_best

pytestmark = pytest.mark.sanitizer

CHAT = {"messages": [{"role": "user", "content": "Hello"}]}
ROUTES = [("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "Hello"})]


def text_of(choice):
    return choice["message"]["content"] if "message" in choice else choice["text"]


def gather(events):
    """Checks the order of 11.2 to 11.5 and joins a stream into {index: (text, finish, stop, ids)} and the usage."""
    assert events[-1] is None
    chunks = events[:-1]
    assert len({(c["id"], c["created"], c["model"], c["object"], c["system_fingerprint"]) for c in chunks}) == 1
    chat = chunks[0]["object"] == "chat.completion.chunk"
    joined, usage = {}, None
    for chunk in chunks:
        assert usage is None, "a chunk after the usage"
        if not chunk["choices"]:
            usage = chunk["usage"]
            continue
        assert chunk.get("usage") is None
        for choice in chunk["choices"]:
            index = choice["index"]
            first = index not in joined
            state = joined.setdefault(index, {"text": "", "finish": None, "stop": None, "ids": [], "chunks": 0, "prompt": None})
            assert state["finish"] is None, "a chunk after the finish chunk"
            if "prompt_token_ids" in choice:
                assert state["prompt"] is None
                state["prompt"] = choice["prompt_token_ids"]
            if chat:
                delta = choice["delta"]
                if first:
                    assert delta == {"role": "assistant", "content": ""} and choice["finish_reason"] is None
                else:
                    assert "role" not in delta
                    if choice["finish_reason"] is None:
                        assert delta["content"] or choice["logprobs"] or choice.get("token_ids")
                    else:
                        assert delta == {}
                state["text"] += delta.get("content", "")
            else:
                state["text"] += choice["text"]
                if choice["finish_reason"] is not None:
                    assert choice["text"] == ""
            state["ids"] += choice.get("token_ids", [])
            state["finish"] = choice["finish_reason"]
            state["stop"] = choice.get("stop_reason")
            state["chunks"] += 1
    assert all(s["finish"] for s in joined.values())
    return joined, usage


def check_equal(daemon, path, body):
    """The stream joined is the whole answer, to the byte."""
    whole = daemon.post(path, body)
    assert whole.status == 200, whole.body
    whole = whole.json()
    joined, usage = gather(daemon.stream(path, {**body, "stream_options": {"include_usage": True}}))
    assert [c["index"] for c in whole["choices"]] == list(range(len(whole["choices"]))) and len(joined) == len(whole["choices"])
    for choice in whole["choices"]:
        got = joined[choice["index"]]
        assert got["text"] == text_of(choice)
        assert (got["finish"], got["stop"]) == (choice["finish_reason"], choice["stop_reason"])
        assert got["ids"] == choice.get("token_ids", [])
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert usage[name] == whole["usage"][name]
    for u in (usage, whole["usage"]):  # how much comes from the prefix cache depends on what ran before
        assert 0 <= u["prompt_tokens_details"]["cached_tokens"] <= u["prompt_tokens"] - 1
    return whole


@pytest.mark.parametrize("path,body", ROUTES)
@pytest.mark.parametrize("fields", [
    {"max_tokens": 1}, {"max_tokens": 20}, {"max_tokens": 12, "n": 4}, {"max_tokens": 9, "return_token_ids": True},
    {"max_tokens": 30, "ignore_eos": True, "skip_special_tokens": False}, {"max_tokens": 12, "n": 3, "return_token_ids": True},
], ids=str)
def test_streamed_and_whole_are_equal(daemon, path, body, fields):
    for seed in range(3):
        check_equal(daemon, path, {**body, **fields, "seed": seed})


def test_the_shape_of_a_chat_answer(daemon):
    body = daemon.chat(max_tokens=5, seed=1).json()
    assert body["id"].startswith("chatcmpl-") and body["object"] == "chat.completion" and body["model"] == "smollm2"
    assert isinstance(body["created"], int) and isinstance(body["system_fingerprint"], str)
    choice = body["choices"][0]
    assert set(choice) == {"index", "message", "logprobs", "finish_reason", "stop_reason"}
    assert choice["message"]["role"] == "assistant" and choice["message"]["refusal"] is None
    assert choice["logprobs"] is None and choice["finish_reason"] == "length" and choice["stop_reason"] is None
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] and usage["completion_tokens"] == 5
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0} or usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]


def test_the_shape_of_a_completion(daemon):
    body = daemon.complete(max_tokens=5, model="alias/smollm2").json()
    assert body["id"].startswith("cmpl-") and body["object"] == "text_completion" and body["model"] == "smollm2"
    assert set(body["choices"][0]) == {"index", "text", "logprobs", "finish_reason", "stop_reason"}


def test_sse_framing(daemon):
    """kf-15."""
    answer = daemon.post("/v1/chat/completions", {**CHAT, "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}})
    assert answer.header("content-type").startswith("text/event-stream") and answer.header("cache-control") == "no-cache"
    assert answer.header("transfer-encoding") == "chunked"
    from conftest import events_of
    chunks = events_of(answer.body)[:-1]
    assert all("usage" in c for c in chunks) and [c["usage"] is None for c in chunks] == [True] * (len(chunks) - 1) + [False]
    plain = daemon.stream("/v1/chat/completions", {**CHAT, "max_tokens": 3})
    assert all(c.get("usage") is None and c["choices"] for c in plain[:-1])


def test_the_connection_stays_usable_after_a_stream(daemon):
    from rawhttp import get, post
    with daemon.raw() as c:
        for _ in range(3):
            c.send(post("/v1/chat/completions", {**CHAT, "max_tokens": 3, "stream": True}))
            assert c.answer().body.endswith(b"data: [DONE]\n\n")
        c.send(get("/health"))
        assert c.answer().status == 200


def test_each_token_is_sent_at_once(start):
    """A step takes 50 ms: chunks come 50 ms apart, not in a lump."""
    import time
    from rawhttp import post
    daemon = start(step_us=50000)

    def apart():
        with daemon.raw() as c:
            c.send(post("/v1/completions", {"prompt": "a", "max_tokens": 6, "stream": True, "ignore_eos": True, "seed": 3}))
            c.head()
            times = [time.monotonic() for _ in c.chunks()]
        gaps = [b - a for a, b in zip(times, times[1:5])]
        assert all(0.03 < gap < 0.2 for gap in gaps), gaps
    at_best(apart)


# --- many prompts and choices ---

def test_prompts_and_choices_are_numbered(daemon):
    prompts = ["a", "b", "c"]
    body = check_equal(daemon, "/v1/completions", {"prompt": prompts, "n": 2, "seed": 7, "max_tokens": 4, "ignore_eos": True})
    assert len(body["choices"]) == 6 and body["usage"]["completion_tokens"] == 24
    for p, prompt in enumerate(prompts):
        for i in range(2):
            alone = daemon.complete(prompt=prompt, seed=7 + i, max_tokens=4, ignore_eos=True).json()
            assert alone["choices"][0]["text"] == body["choices"][p * 2 + i]["text"]


def test_four_forms_of_a_prompt(daemon):
    ids = daemon.post("/tokenize", {"prompt": "Hello there"}).json()["tokens"]
    texts = [[c["text"] for c in daemon.complete(prompt=p, seed=1).json()["choices"]]
             for p in ("Hello there", ["Hello there"], ids, [ids])]
    assert texts[0] == texts[1] == texts[2] == texts[3]


def test_seeds(daemon):
    """13.4: choice i uses seed + i; without a seed each request is its own."""
    three = daemon.chat(n=3, seed=10, max_tokens=6).json()["choices"]
    for i in range(3):
        assert daemon.chat(seed=10 + i, max_tokens=6).json()["choices"][0]["message"] == three[i]["message"]
    assert daemon.chat(seed=-1, n=2, max_tokens=6).json()["choices"][1]["message"] == daemon.chat(seed=0, max_tokens=6).json()["choices"][0]["message"]
    assert len({daemon.chat(max_tokens=6).json()["choices"][0]["message"]["content"] for _ in range(5)}) == 5


def test_token_ids(daemon):
    body = daemon.complete(prompt="Hello", max_tokens=6, seed=2, return_token_ids=True).json()
    choice = body["choices"][0]
    assert choice["prompt_token_ids"] == daemon.post("/tokenize", {"prompt": "Hello"}).json()["tokens"]
    assert len(choice["token_ids"]) == body["usage"]["completion_tokens"]
    assert daemon.post("/detokenize", {"tokens": choice["token_ids"]}).json()["prompt"] == choice["text"]
    chat = daemon.chat(max_tokens=6, return_token_ids=True).json()
    assert len(chat["prompt_token_ids"]) == chat["usage"]["prompt_tokens"] and "prompt_token_ids" not in chat["choices"][0]


def test_prompt_ids_come_in_the_first_chunk_only(daemon):
    for path, body in ROUTES:
        chunks = daemon.stream(path, {**body, "n": 2, "max_tokens": 5, "return_token_ids": True})[:-1]
        seen = {}
        for chunk in chunks:
            for choice in chunk["choices"]:
                has = "prompt_token_ids" in (chunk if "chat" in path else choice)
                assert has == (choice["index"] not in seen)
                seen[choice["index"]] = True


# --- stopping ---

@pytest.mark.parametrize("path,body", ROUTES)
@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_at_every_offset(daemon, path, body, include):
    """14.2: a stop string cut from the answer itself, at any place and length, ends it right there."""
    full = {**body, "max_tokens": 12, "seed": 4, "ignore_eos": True}
    text = text_of(daemon.post(path, full).json()["choices"][0])
    assert len(text) > 20
    for start in range(0, len(text) - 6, 5):
        for length in (1, 2, 5):
            stop = text[start:start + length]
            answer = check_equal(daemon, path, {**full, "stop": [stop], "include_stop_str_in_output": include})
            cut = text[:text.index(stop) + (length if include else 0)]
            choice = answer["choices"][0]
            assert text_of(choice) == cut
            assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


def test_of_several_stops_the_first_end_counts(daemon):
    full = {"prompt": "x", "max_tokens": 12, "seed": 4, "ignore_eos": True}
    text = daemon.post("/v1/completions", full).json()["choices"][0]["text"]
    answer = check_equal(daemon, "/v1/completions", {**full, "stop": [text[3:30], text[5:9], "never there", text[10:12]]})
    assert answer["choices"][0]["text"] == text[:5] and answer["choices"][0]["stop_reason"] == text[5:9]


def test_held_text_is_released_at_the_end(daemon):
    full = {"prompt": "x", "max_tokens": 6, "seed": 4, "ignore_eos": True}
    text = daemon.post("/v1/completions", full).json()["choices"][0]["text"]
    answer = check_equal(daemon, "/v1/completions", {**full, "stop": text[-3:] + "more"})
    assert answer["choices"][0]["text"] == text and answer["choices"][0]["finish_reason"] == "length"


def test_usage_counts_tokens_up_to_the_stop(daemon):
    full = {"prompt": "x", "max_tokens": 40, "seed": 9, "ignore_eos": True, "return_token_ids": True}
    choice = daemon.post("/v1/completions", full).json()["choices"][0]
    pieces = daemon.post("/tokenize", {"prompt": "a"}) and [
        daemon.post("/detokenize", {"tokens": choice["token_ids"][:k]}).json()["prompt"] for k in range(1, 12)]
    stop = pieces[9][len(pieces[8]):]
    end = next(k for k, piece in enumerate(pieces) if stop in piece) + 1
    before = daemon.wait_idle()["inferd_generation_tokens_total"]
    answer = daemon.post("/v1/completions", {**full, "stop": stop}).json()
    assert answer["usage"]["completion_tokens"] == end
    assert answer["choices"][0]["token_ids"] == choice["token_ids"][:end]
    assert daemon.wait_idle()["inferd_generation_tokens_total"] - before == end


@pytest.mark.parametrize("include", [False, True])
def test_stop_token_ids(daemon, include):
    full = {"prompt": "x", "max_tokens": 10, "seed": 4, "ignore_eos": True, "return_token_ids": True}
    ids = daemon.post("/v1/completions", full).json()["choices"][0]["token_ids"]
    answer = check_equal(daemon, "/v1/completions", {**full, "stop_token_ids": [ids[5], 7], "include_stop_str_in_output": include})
    choice = answer["choices"][0]
    assert choice["token_ids"] == ids[:6] and choice["stop_reason"] == ids[5] and choice["finish_reason"] == "stop"
    assert choice["text"] == daemon.post("/detokenize", {"tokens": ids[:6 if include else 5]}).json()["prompt"]


def test_min_tokens_hold_off_stops(daemon):
    full = {"prompt": "x", "max_tokens": 10, "seed": 4, "ignore_eos": True, "return_token_ids": True}
    first = daemon.post("/v1/completions", full).json()["choices"][0]
    pieces = [daemon.post("/detokenize", {"tokens": [i]}).json()["prompt"] for i in first["token_ids"]]
    answer = check_equal(daemon, "/v1/completions", {**full, "stop": pieces[1], "min_tokens": 5})
    assert answer["usage"]["completion_tokens"] >= 5
    assert answer["choices"][0]["text"].startswith("".join(pieces[:5]))


# --- context: 18.2 ---

def test_context_limits(daemon):
    """kf-16."""
    limit = 2048
    ids = [11] * limit

    def ask(count, **fields):
        return daemon.post("/v1/completions", {"prompt": ids[:1] * count, "ignore_eos": True, **fields})

    def refused(answer, param):
        error = answer.json()["error"]
        assert answer.status == 400 and error["code"] == "context_length_exceeded" and error["param"] == param
        assert f"maximum context length is {limit} tokens" in error["message"]
        return error["message"]

    assert str(limit + 1) in refused(ask(limit + 1), "prompt")
    refused(ask(limit), "prompt")
    refused(ask(limit - 10, max_tokens=11), "max_tokens")
    assert ask(limit - 10, max_tokens=10).json()["usage"]["completion_tokens"] == 10
    body = ask(limit - 10).json()
    assert body["choices"][0]["finish_reason"] == "length" and body["usage"]["completion_tokens"] == 10
    assert ask(100).json()["usage"]["completion_tokens"] == 16
    refused(daemon.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 3000}]}), "messages")
    refused(daemon.post("/v1/chat/completions", {**CHAT, "max_completion_tokens": limit}), "max_completion_tokens")
    refused(daemon.post("/v1/completions", {"prompt": [[11], [11] * (limit + 1)]}), "prompt")


def test_truncated_prompts_keep_their_end(daemon):
    ids = list(range(100, 200))
    answer = daemon.complete(prompt=ids, truncate_prompt_tokens=7, return_token_ids=True, max_tokens=1).json()
    assert answer["choices"][0]["prompt_token_ids"] == ids[-7:] and answer["usage"]["prompt_tokens"] == 7


def test_max_completion_tokens_wins(daemon):
    assert daemon.chat(max_tokens=9, max_completion_tokens=3, ignore_eos=True).json()["usage"]["completion_tokens"] == 3


def test_special_tokens_in_the_text(daemon):
    """12.2 and 8: a special token in mid-text is left out, or has its name."""
    body = {"prompt": "x", "max_tokens": 4, "ignore_eos": True, "logit_bias": {}, "return_token_ids": True}
    for seed in range(300):
        first = daemon.post("/v1/completions", {**body, "seed": seed}).json()["choices"][0]
        if any(i < 17 for i in first["token_ids"]):
            shown = daemon.post("/v1/completions", {**body, "seed": seed, "skip_special_tokens": False}).json()["choices"][0]
            assert shown["token_ids"] == first["token_ids"] and "<|" in shown["text"] + "<|" and len(shown["text"]) >= len(first["text"])
            return


def test_utf8_is_never_cut(daemon):
    """Made-up tokens are full of broken characters: every event is valid JSON and UTF-8, and joined it is the whole."""
    seen = 0
    for seed in range(20):
        body = check_equal(daemon, "/v1/completions", {"prompt": "x", "seed": seed, "max_tokens": 60, "ignore_eos": True})
        seen += body["choices"][0]["text"].count("\ufffd")
    assert seen > 0


def test_fields_are_valid_json_for_json(daemon):
    json.loads(daemon.chat(max_tokens=3).body)


@pytest.mark.parametrize("where", ["tcp", "uds"])
def test_a_slow_reader_gets_every_byte(start, tmp, where):
    """A socket that fills up again and again, mid-chunk: what comes is the whole answer, in well-formed chunks, and then
    the connection goes on. Also without chunked coding: HTTP/1.0 and `Connection: close`."""
    import socket
    import time
    from conftest import events_of
    from rawhttp import post
    options = {"uds": str(tmp / "slow.sock")} if where == "uds" else {}
    daemon = start(step_us=0, context=8192, **options)
    body = {"prompt": "Hello", "max_tokens": 300, "n": 4, "seed": 9, "ignore_eos": True}
    wanted = [c["text"] for c in daemon.post("/v1/completions", body).json()["choices"]]
    for kind in ("keep", "close", "1.0"):
        with daemon.raw() as c:
            c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
            headers = ["Connection: close"] if kind == "close" else []
            c.send(post("/v1/completions", {**body, "stream": True}, *headers,
                        version="HTTP/1.0" if kind == "1.0" else "HTTP/1.1"))
            pause = iter(range(40))
            more = c._more

            def slowly():
                if next(pause, None) is not None:
                    time.sleep(0.01)
                got = c.sock.recv(7001)
                if not got:
                    raise EOFError
                c.buf += got

            c._more = slowly
            answer = c.answer()
            assert answer.status == 200
            texts = {}
            for event in events_of(answer.body)[:-1]:
                for choice in event["choices"]:
                    texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
            assert [texts[i] for i in range(4)] == wanted, kind
            if kind == "keep":
                c._more = more
                c.send(post("/v1/completions", {"prompt": "Hello", "max_tokens": 1}))
                assert c.answer().status == 200
