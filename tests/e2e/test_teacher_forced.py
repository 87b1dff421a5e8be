"""Whole answers over HTTP are the float32 reference's: SmolLM2-135M on the CPU in exact numerics, and on the GPU where there is one.

Method: the golden prompts and greedy texts of golden/smollm2 (made by transformers in float32; the CPU's `exact` gives the same
wherever its margin exceeds 0.01). Forced: prompt and text are sent as ids with echo and log probabilities, so that every token is
predicted behind the reference's own. Continued: the prompt alone is sent and the answer compared; where it leaves the reference at
a near tie, the reference's text up to there is sent and it goes on, so that every step runs as a decode. In both the likeliest token
must be the reference's wherever its margin exceeds MARGIN. The GPU computes GGUF weights in f16 by default; bf16 is coarser, and
may miss a few."""
import json
import lzma
import os

import pytest
from conftest import LONG, ROOT, binary, model_path

MARGIN = {"cpu": 0.01, "cuda": 0.1}
GPU = os.path.exists("/dev/nvidiactl")
GOLDEN = ROOT / "tests/golden/smollm2/greedy.json.xz"

pytestmark = [pytest.mark.skipif(binary().name == "mini_daemon", reason="mini_daemon has the null device only"),
              pytest.mark.skipif(model_path().suffix != ".gguf", reason="INFERD_SMOLLM2 names another model")]


def items(device):
    items = json.loads(lzma.open(GOLDEN).read())
    return items if LONG or device == "cuda" else items[::7]


def ids_of(tops):
    return {int(name.split(":")[1]): value for name, value in tops.items()}


def forced(daemon, item, margin):
    """(steps compared, wrong ones, worst distance of a log probability of the reference's likeliest)."""
    prompt, text = item["prompt_ids"], item["greedy_ids"]
    answer = daemon.complete(prompt=prompt + text, max_tokens=0, echo=True, logprobs=5, return_tokens_as_token_ids=True)
    assert answer.status == 200, answer.body
    tops = answer.json()["choices"][0]["logprobs"]["top_logprobs"][len(prompt):]
    assert len(tops) == len(text)
    compared, wrong, worst = 0, [], 0.0
    for i, top in enumerate(map(ids_of, tops)):
        for token, logprob in zip(item["top_ids"][i], item["top_logprobs"][i]):
            if token in top:
                worst = max(worst, abs(top[token] - logprob))
        if item["margin"][i] > margin:
            compared += 1
            if max(top, key=top.get) != text[i]:
                wrong.append((item["name"], i, item["margin"][i]))
    return compared, wrong, worst


def continued(daemon, item, margin):
    prompt, text = item["prompt_ids"], item["greedy_ids"]
    compared, wrong, at = 0, [], 0
    while at < len(text):
        answer = daemon.complete(prompt=prompt + text[:at], max_tokens=len(text) - at, temperature=0, ignore_eos=True,
                                 return_token_ids=True)
        assert answer.status == 200, answer.body
        got = answer.json()["choices"][0]["token_ids"]
        assert len(got) == len(text) - at
        same = next((i for i in range(len(got)) if got[i] != text[at + i]), len(got))
        compared += sum(m > margin for m in item["margin"][at:at + same])
        at += same
        if at < len(text) and item["margin"][at] > margin:
            compared += 1
            wrong.append((item["name"], at, item["margin"][at]))
        at += 1
    return compared, wrong


@pytest.mark.parametrize("device, dtype, allowed", [("cpu", None, 0)] + ([("cuda", None, 0), ("cuda", "bfloat16", 3)] if GPU else []))
def test_forced_and_continued_texts_are_the_references(start, device, dtype, allowed):
    options = {"dtype": dtype} if dtype else {"numerics": "exact"} if device == "cpu" else {}
    daemon = start(device=device, context=2048, **options)
    total, missed, worst, steps, missed_steps = 0, [], 0.0, 0, []
    for item in items(device):
        n, wrong, off = forced(daemon, item, MARGIN[device])
        total, missed, worst = total + n, missed + wrong, max(worst, off)
        n, wrong = continued(daemon, item, MARGIN[device])
        steps, missed_steps = steps + n, missed_steps + wrong
    print(f"\n{device} {dtype or 'auto'}: forced {len(missed)} wrong of {total}, worst log probability off by {worst:.4f}; "
          f"continued {len(missed_steps)} wrong of {steps}")
    assert total > (1000 if device == "cuda" else 100) and steps >= total
    assert len(missed) <= allowed, missed
    assert len(missed_steps) <= allowed, missed_steps
    if device == "cuda":
        assert ("f16" if not dtype else "bf16") in daemon.log_text().split(" ready ")[1]
