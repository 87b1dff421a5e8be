"""Section 14: stop strings, stop tokens, min_tokens, end of sequence; 12.2 for what they leave in the log probabilities.
kf-02, kf-23.

Method: the tokens of a request are known from a run without stops (made-up or greedy ones are repeatable). A stop is
cut out of their text at random, and a plain search, written here from 14.1 to 14.4, says what the answer must be.
"""
import codecs
import random

import pytest

from conformance import golden
from conformance.rows import each
from conformance.shapes import CHAT, COMPLETIONS, both_ways, text_of

SENTENCE = " capital of France is Paris."
USER = {"role": "user", "content": "Tell me something"}


def certain_lengths(vocabulary, ids):
    """How many characters of the text are certain after each token, and the whole text."""
    decoder, text, lengths = codecs.getincrementaldecoder("utf-8")("replace"), "", []
    for i in ids:
        text += decoder.decode(vocabulary.bytes[i])
        lengths.append(len(text))
    return text + decoder.decode(b"", True), lengths


def expected(vocabulary, ids, stops, include, min_tokens=0):
    """(text, finish_reason, stop_reason, tokens) by 14.2 and 14.4: of all matches that a token after the first
    `min_tokens` completes, the one that ends first, of those the one that starts first."""
    text, lengths = certain_lengths(vocabulary, ids)
    floor = lengths[min_tokens - 1] if min_tokens else 0
    best = None
    for stop in stops:
        at = text.find(stop)
        while at >= 0:
            end = at + len(stop)
            if floor < end <= lengths[-1] and (best is None or (end, at) < best[:2]):
                best = (end, at, stop)
            at = text.find(stop, at + 1)
    if best is None:
        return text, "length", None, len(ids)
    end, at, stop = best
    tokens = next(k for k, n in enumerate(lengths, 1) if n >= end)
    return text[:end if include else at], "stop", stop, tokens


@pytest.mark.sanitizer
def test_stop_strings_anywhere_in_made_up_text(null, vocabulary):
    rng = random.Random(9)

    def check(seed):
        path = rng.choice([COMPLETIONS, CHAT])
        base = {"prompt": "x"} if path == COMPLETIONS else {"messages": [USER]}
        base |= {"seed": seed, "max_tokens": 40, "return_token_ids": True}
        ids = null.ok(path, base)["choices"][0]["token_ids"]
        text, _ = certain_lengths(vocabulary, ids)
        stops = []
        for _ in range(rng.choice([1, 1, 2, 5, 128])):
            at, size = rng.randrange(len(text)), rng.choice([1, 2, 3, 5, 9, 30])
            piece = text[at:at + size]
            if "\ufffd" not in piece and len(piece.encode()) <= 1024:
                stops.append(piece if rng.random() < 0.8 else piece + "~no")
        include, least = rng.random() < 0.5, rng.choice([0, 0, 1, 7, 20, 40])
        stops = stops or ["~never~"]
        answer = both_ways(null, path, {**base, "stop": stops if len(stops) > 1 or rng.random() < 0.5 else stops[0],
                                        "include_stop_str_in_output": include, "min_tokens": least})
        choice = answer["choices"][0]
        want = expected(vocabulary, ids, stops, include, least)
        got = (text_of(choice), choice["finish_reason"], choice["stop_reason"], answer["usage"]["completion_tokens"])
        assert got == want, f"stops {stops} include {include} min {least}: {got} should be {want}"
        assert choice["token_ids"] == ids[:want[3]]
    each([(s,) for s in range(80)], check)
    null.wait_idle()


@pytest.mark.sanitizer
def test_overlapping_stop_strings(null, vocabulary):
    """Of matches that end at the same place the longest wins; a shorter one that ends sooner beats it."""
    ids = null.complete(prompt="x", seed=21, max_tokens=30, return_token_ids=True)["choices"][0]["token_ids"]
    text, _ = certain_lengths(vocabulary, ids)
    clean = max((part for part in text.split("\ufffd")), key=len)
    assert len(clean) >= 8, "choose another seed"
    at = text.index(clean)
    piece = text[at + 1:at + 8]
    rows = [[piece, piece[2:]], [piece[2:], piece], [piece, piece[:3]], [piece[:3], piece], [piece[1:4], piece[:4], piece[2:4]],
            [piece + "Q", piece[3:]], [piece + "Q", piece[1:] + "QQ", piece[:2] + "Q", piece[-1:]]]

    def check(*stops):
        for include in (False, True):
            choice = both_ways(null, COMPLETIONS, {"prompt": "x", "seed": 21, "max_tokens": 30, "stop": list(stops),
                                                   "include_stop_str_in_output": include})["choices"][0]
            want = expected(vocabulary, ids, stops, include)
            assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == want[:3], want
    each([tuple(r) for r in rows], check)


def test_stops_are_not_searched_in_the_prompt_or_its_echo(cpu):
    for echo in (False, True):
        body = {"prompt": "stop here END now", "seed": 3, "max_tokens": 10, "echo": echo}
        bare = cpu.complete(**body)["choices"][0]
        stopped = cpu.complete(**body, stop=["END", "stop", " now"])["choices"][0]
        assert stopped["text"] == bare["text"] and stopped["finish_reason"] == "length"
    # Nor across the border from the prompt into the answer.
    first = cpu.complete(prompt="now", seed=3, max_tokens=10)["choices"][0]["text"]
    stopped = cpu.complete(prompt="now", seed=3, max_tokens=10, echo=True, stop=["now" + first[:1]])["choices"][0]
    assert stopped["text"] == "now" + first


@pytest.mark.sanitizer
def test_each_choice_stops_on_its_own(null, vocabulary):
    body = {"prompt": "x", "n": 4, "seed": 30, "max_tokens": 30, "return_token_ids": True}
    whole = null.complete(**body)["choices"]
    stops = [certain_lengths(vocabulary, whole[1]["token_ids"])[0][5:7].replace("\ufffd", "~"), "e"]
    answer = both_ways(null, COMPLETIONS, {**body, "stop": stops})
    total = 0
    for c, w in zip(answer["choices"], whole):
        want = expected(vocabulary, w["token_ids"], stops, False)
        assert (c["text"], c["finish_reason"], c["stop_reason"], len(c["token_ids"])) == want
        total += want[3]
    assert answer["usage"]["completion_tokens"] == total


@pytest.mark.sanitizer
def test_stop_tokens(null, vocabulary):
    def check(seed):
        body = {"prompt": "x", "seed": seed, "max_tokens": 30, "return_token_ids": True}
        ids = null.complete(**body)["choices"][0]["token_ids"]
        for k in (0, 7, 29):
            first = ids.index(ids[k])
            for include in (False, True):
                answer = both_ways(null, COMPLETIONS, {**body, "stop_token_ids": [49000, ids[k]],
                                                       "include_stop_str_in_output": include})
                c = answer["choices"][0]
                assert c["token_ids"] == ids[:first + 1] and answer["usage"]["completion_tokens"] == first + 1
                assert (c["finish_reason"], c["stop_reason"]) == ("stop", ids[k])
                assert c["text"] == vocabulary.text(ids[:first + include]), (k, include)
    each([(s,) for s in range(4)], check)


# --- with the real model ---

def test_end_of_sequence(cpu, vocabulary):
    prompt = golden.read("smollm2/greedy.json")[0]
    assert prompt["name"] == "capital" and prompt["eos_at"] == 7
    # The first word is given and the full stop helped a little: the reference's margins are narrow there, wide elsewhere.
    greedy = prompt["greedy_ids"][1:8]
    body = {"messages": [*prompt["messages"], {"role": "assistant", "content": "The"}], "continue_final_message": True,
            "logit_bias": {"30": 2}, "temperature": 0, "max_tokens": 40, "return_token_ids": True}
    for more in ({}, {"skip_special_tokens": False}, {"include_stop_str_in_output": True}, {"logprobs": True, "top_logprobs": 2}):
        answer = both_ways(cpu, CHAT, {**body, **more})
        choice = answer["choices"][0]
        assert choice["message"]["content"] == SENTENCE, choice
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
        assert choice["token_ids"] == greedy and choice["token_ids"][-1] == vocabulary.eos
        assert answer["prompt_token_ids"] == [*prompt["prompt_ids"], prompt["greedy_ids"][0]]
        assert answer["usage"]["completion_tokens"] == 7 and answer["usage"]["prompt_tokens"] == len(prompt["prompt_ids"]) + 1
        if choice["logprobs"]:
            assert len(choice["logprobs"]["content"]) == 6, "the end-of-sequence entry is left out"
    # Going on past it.
    for skip in (True, False):
        answer = both_ways(cpu, CHAT, {**body, "ignore_eos": True, "max_tokens": 16, "skip_special_tokens": skip,
                                       "logprobs": True})
        choice = answer["choices"][0]
        assert vocabulary.eos in choice["token_ids"] and len(choice["token_ids"]) == 16
        assert choice["message"]["content"] == vocabulary.text(choice["token_ids"], skip)
        entries = choice["logprobs"]["content"]
        assert len(entries) == 16
        at = choice["token_ids"].index(vocabulary.eos)
        assert entries[at]["token"] == "<|im_end|>"
        assert bytes(entries[at]["bytes"]) == (b"" if skip else b"<|im_end|>")
    # min_tokens masks it: the answer goes on with something else.
    answer = both_ways(cpu, CHAT, {**body, "min_tokens": 12, "max_tokens": 12})
    ids = answer["choices"][0]["token_ids"]
    assert ids[:6] == greedy[:6] and len(ids) == 12 and vocabulary.eos not in ids
    # A stop string and the last allowed token at once: the stop comes first in the order of 14.1.
    answer = cpu.chat(**{**body, "max_tokens": 6, "stop": "."})
    assert answer["choices"][0]["finish_reason"] == "stop" and answer["choices"][0]["stop_reason"] == "."
    answer = cpu.chat(**{**body, "max_tokens": 7})
    assert answer["choices"][0]["finish_reason"] == "stop" and answer["choices"][0]["stop_reason"] is None
    answer = cpu.chat(**{**body, "max_tokens": 6})
    assert answer["choices"][0]["finish_reason"] == "length"
    # End of sequence named as a stop token as well: it is the end of sequence first.
    answer = cpu.chat(**{**body, "stop_token_ids": [vocabulary.eos]})
    assert answer["choices"][0]["message"]["content"] == SENTENCE
    assert answer["choices"][0]["stop_reason"] is None
    answer = cpu.chat(**{**body, "stop_token_ids": [vocabulary.eos], "ignore_eos": True})
    assert answer["choices"][0]["stop_reason"] == vocabulary.eos


def test_min_tokens_masks_stop_tokens_and_strings(cpu, vocabulary):
    body = {"prompt": "One, two, three, four,", "temperature": 0, "max_tokens": 12, "return_token_ids": True}
    ids = cpu.complete(**body)["choices"][0]["token_ids"]
    first = ids[0]
    answer = both_ways(cpu, COMPLETIONS, {**body, "stop_token_ids": [first], "min_tokens": 3})
    assert first not in answer["choices"][0]["token_ids"][:3]
    answer = both_ways(cpu, COMPLETIONS, {**body, "stop_token_ids": [first]})
    assert answer["choices"][0]["token_ids"] == [first] and answer["choices"][0]["text"] == ""
    assert answer["choices"][0]["stop_reason"] == first
    text = vocabulary.text(ids)
    for least in (1, 4, 12):
        for stop in (text[:2], ",", text[3:6]):
            choice = both_ways(cpu, COMPLETIONS, {**body, "stop": stop, "min_tokens": least})["choices"][0]
            want = expected(vocabulary, ids, [stop], False, least)
            assert (choice["text"], choice["finish_reason"], choice["stop_reason"], len(choice["token_ids"])) == want


def test_log_probability_entries_beside_stops(cpu, vocabulary):
    """12.2: left out are tokens wholly behind the start of the match, the ending token, and nothing else."""
    body = {"prompt": "The quick brown fox", "temperature": 0, "max_tokens": 14, "return_token_ids": True, "logprobs": 2,
            "ignore_eos": True}
    base = cpu.complete(**body)["choices"][0]
    ids, text = base["token_ids"], base["text"]
    assert len(base["logprobs"]["tokens"]) == 14
    starts = [0]
    for i in ids:
        starts.append(starts[-1] + len(vocabulary.text([i])))
    assert starts[-1] == len(text), "choose a prompt that is answered in ASCII"
    for at in range(1, len(text) - 4, 9):
        stop = text[at:at + 4]
        at = text.index(stop)
        for include in (False, True):
            choice = both_ways(cpu, COMPLETIONS, {**body, "stop": stop, "include_stop_str_in_output": include})["choices"][0]
            used = len(choice["token_ids"])
            kept = used if include else sum(1 for s in starts[:used] if s < at)
            names = choice["logprobs"]["tokens"]
            assert len(names) == kept, f"stop {stop!r} at {at} include {include}: {names}"
            assert names == base["logprobs"]["tokens"][:kept]
            assert choice["logprobs"]["text_offset"] == starts[:kept]
    third = ids[3]
    first = ids.index(third)
    for include in (False, True):
        choice = both_ways(cpu, COMPLETIONS, {**body, "stop_token_ids": [third], "include_stop_str_in_output": include})["choices"][0]
        assert len(choice["logprobs"]["tokens"]) == first + include
