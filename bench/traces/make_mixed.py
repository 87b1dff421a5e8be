#!/usr/bin/env python3
"""Makes mixed.jsonl: chats, long documents and short questions mixed, some behind shared system prompts.

    bench/traces/make_mixed.py > bench/traces/mixed.jsonl

1000 arrivals, Poisson at 4 a second (inferd bench serve --trace-speed changes that). Prompt and answer together have 600 tokens in the
mean and 2048 at most. 60 % chats (log-normal around 300 tokens), 15 % long documents (1000 to 1800), 25 % short questions (16 to 128);
half of the chats and questions begin with one of 8 system prompts of 48 to 256 tokens, popular ones more often (1/rank). Seven clients,
keys 1 to 7. Source of the shape: our own choice, not a recording."""
import json
import random

SEED, COUNT, RATE, MEAN, MOST = 600, 1000, 4.0, 600, 2048


def draw(rng, systems):
    kind = rng.random()
    if kind < 0.60:
        own, answer = rng.lognormvariate(5.5, 0.7), rng.lognormvariate(5.0, 0.6)
    elif kind < 0.75:
        own, answer = rng.uniform(1000, 1800), rng.lognormvariate(4.6, 0.5)
    else:
        own, answer = rng.uniform(16, 128), rng.lognormvariate(3.5, 0.8)
    shared = kind >= 0.75 or kind < 0.60
    which = rng.choices(range(1, 9), [1 / r for r in range(1, 9)])[0] if shared and rng.random() < 0.5 else 0
    return own, answer, which, systems[which] if which else 0, rng.randint(1, 7)


def main():
    rng = random.Random(SEED)
    systems = [0] + [rng.randint(48, 256) for _ in range(8)]
    drawn = [draw(rng, systems) for _ in range(COUNT)]
    low, high = 0.5, 2.0
    for _ in range(60):  # scales what is not shared until the mean is right
        scale = (low + high) / 2
        items = [fit(d, scale) for d in drawn]
        mean = sum(p + a for p, a, *_ in items) / COUNT
        low, high = (scale, high) if mean < MEAN else (low, scale)
    at = 0.0
    for prompt, answer, which, shared, key in items:
        line = {"arrival_s": round(at, 4), "prompt_tokens": prompt, "max_tokens": answer}
        if which:
            line |= {"prefix_id": which, "prefix_tokens": shared}
        print(json.dumps(line | {"key": key}))
        at += rng.expovariate(RATE)


def fit(drawn, scale):
    own, answer, which, shared, key = drawn
    answer = max(1, min(512, round(answer * scale)))
    return max(1, min(MOST - answer, shared + round(own * scale))), answer, which, shared, key


main()
