"""Texts of a reference against a server over HTTP, with nothing but Python: for test_teacher_forced.py, and by itself on a machine that
has a GPU and little else:

    teacher_forced.py --port PORT --margin 0.1 [--allowed N] greedy.json.xz

The file has prompts, greedy texts, and of every step the margin between the two likeliest tokens (golden/README-models.md). Forced: prompt and
text are sent as ids with echo and log probabilities, so that every token is predicted behind the reference's own. Continued: the prompt
alone is sent and the answer compared; where it leaves the reference at a near tie, the reference's text up to there is sent and it goes on,
so that every step runs as a decode. In both the likeliest token must be the reference's wherever its margin exceeds the given one. Prints
one JSON object; ends with 1 where more than N tokens of a way are wrong."""
import argparse
import http.client
import json
import lzma
import sys


def read_items(path):
    with lzma.open(path) as file:
        return json.load(file)


def ids_of(tops):
    return {int(name.split(":")[1]): value for name, value in tops.items()}


def forced(complete, item, margin):
    """(steps compared, wrong ones, worst distance of a log probability of the reference's likeliest)."""
    prompt, text = item["prompt_ids"], item["greedy_ids"]
    answer = complete(prompt=prompt + text, max_tokens=0, echo=True, logprobs=5, return_tokens_as_token_ids=True)
    tops = answer["choices"][0]["logprobs"]["top_logprobs"][len(prompt):]
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


def continued(complete, item, margin):
    """(steps compared, wrong ones)."""
    prompt, text = item["prompt_ids"], item["greedy_ids"]
    compared, wrong, at = 0, [], 0
    while at < len(text):
        answer = complete(prompt=prompt + text[:at], max_tokens=len(text) - at, temperature=0, ignore_eos=True, return_token_ids=True)
        got = answer["choices"][0]["token_ids"]
        assert len(got) == len(text) - at
        same = next((i for i in range(len(got)) if got[i] != text[at + i]), len(got))
        compared += sum(m > margin for m in item["margin"][at:at + same])
        at += same
        if at < len(text) and item["margin"][at] > margin:
            compared += 1
            wrong.append((item["name"], at, item["margin"][at]))
        at += 1
    return compared, wrong


def compare(complete, items, margin):
    """Both ways over all items, as one object."""
    total = {"texts": len(items), "margin": margin, "forced": 0, "forced_wrong": [], "worst_logprob": 0.0, "continued": 0,
             "continued_wrong": []}
    for item in items:
        n, wrong, worst = forced(complete, item, margin)
        total["forced"] += n
        total["forced_wrong"] += wrong
        total["worst_logprob"] = max(total["worst_logprob"], round(worst, 5))
        n, wrong = continued(complete, item, margin)
        total["continued"] += n
        total["continued_wrong"] += wrong
    return total


def complete_at(port):
    def complete(**body):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        assert answer.status == 200, text
        return json.loads(text)

    return complete


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--margin", type=float, required=True)
    options.add_argument("--allowed", type=int, default=0)
    options.add_argument("--every", type=int, default=1, help="only each N-th text")
    options.add_argument("file")
    o = options.parse_args()
    total = compare(complete_at(o.port), read_items(o.file)[::o.every], o.margin)
    print(json.dumps({"bench": "forced", "allowed": o.allowed, **total}))
    return max(len(total["forced_wrong"]), len(total["continued_wrong"])) > o.allowed


if __name__ == "__main__":
    sys.exit(main())
