"""Section 13: order, formulas, seeds, batch invariance; best_of. kf-07, kf-08.

Method: log probabilities give the model's distribution (12.1), so the draws that the formulas prescribe can be counted
against it; the repetition penalty, which needs the raw logits, is measured with a bias as a scale. All draws have seeds:
a verdict does not change from run to run.
"""
import collections
import concurrent.futures
import math

import pytest

from conformance.conftest import CPU_CONTEXT
from conformance.daemon import LONG, Daemon
from conformance.rows import each
from conformance.shapes import CHAT, COMPLETIONS, check_whole

ONE = {"prompt": [504], "max_tokens": 1}  # " The": one token, so that a sample costs one row
STORY = {"prompt": "Once upon a time", "max_tokens": 12, "return_token_ids": True}


@pytest.fixture(scope="module")
def distribution(cpu, vocabulary):
    """The 20 likeliest tokens behind ONE: [(id, log probability)], likeliest first."""
    names = cpu.complete(**ONE, temperature=0, logprobs=20, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]
    pairs = sorted(names["top_logprobs"][0].items(), key=lambda p: -p[1])
    return [(int(name[9:]), value) for name, value in pairs]


def test_the_ends_of_every_range_give_an_answer(cpu):
    """Whatever a field may hold, the numbers stay finite: no fault of a request looks like one of the model."""
    ends = [{"repetition_penalty": r, "temperature": t, "logit_bias": {str(i): b for i in range(0, 49152, 97)},
             "frequency_penalty": f, "presence_penalty": f} for r in (1e-10, 1e10) for t in (0, 1e-5, 2)
            for b, f in ((-100, -2), (100, 2))]
    more = [{"top_p": 0}, {"top_p": 5e-324}, {"min_p": 5e-324}, {"min_p": 1}, {"top_k": 2 ** 62}, {"temperature": 5e-324}]
    each(ends + more, lambda fields: cpu.complete(prompt="The the the", max_tokens=3, **fields))


def ids_of(answer):
    return [c["token_ids"] for c in answer["choices"]]


def draws(cpu, count, **more):
    """Counts of the first tokens of `count` samples."""
    counts = collections.Counter()
    for k in range(0, count, 128):
        answer = cpu.complete(**ONE, n=min(128, count - k), seed=1000 + k, return_token_ids=True, **more)
        counts.update(i[0] for i in ids_of(answer))
    return counts


def compare(counts, weights, total):
    """Total variation against the prescribed weights, with a bound that a right sampler passes: 3 sigma of its mean."""
    scale = sum(weights.values())
    assert set(counts) <= set(weights), f"drawn although cut off: {set(counts) - set(weights)}"
    distance = sum(abs(counts[t] / total - w / scale) for t, w in weights.items()) / 2
    bound = sum(math.sqrt(w / scale * (1 - w / scale) / total) for w in weights.values()) / 2 * 1.6 + 0.01
    assert distance <= bound, f"distance {distance:.4f} over {bound:.4f}: {counts.most_common(8)}"


def test_draws_follow_the_formulas(cpu, distribution):
    top = dict(distribution)
    total = 1024 if LONG else 256

    def softmax(ids, temperature=1.0):
        return {t: math.exp(top[t] / temperature) for t in ids}

    def nucleus(q, ids):
        """top_p over what is left, renormalised."""
        scale, kept, mass = sum(math.exp(top[t]) for t in ids), [], 0.0
        for t in ids:
            kept.append(t)
            mass += math.exp(top[t]) / scale
            if mass >= q:
                return kept
        raise AssertionError("not inside the 20 likeliest")
    order = [t for t, _ in distribution]
    rows = [({"top_k": 5}, softmax(order[:5])), ({"top_k": 4, "temperature": 0.5}, softmax(order[:4], 0.5)),
            ({"top_k": 8, "temperature": 2}, softmax(order[:8], 2.0)),
            ({"top_k": 10, "top_p": 0.6}, softmax(nucleus(0.6, order[:10]))),
            ({"top_k": 3, "logit_bias": {str(order[2]): 3}},
             {t: math.exp(top[t] + (3 if t == order[2] else 0)) for t in sorted(order, key=lambda t: -(top[t] + (
                 3 if t == order[2] else 0)))[:3]})]
    # min_p: a bound halfway between two neighbours, so that rounding decides nothing.
    gap = max(range(2, 12), key=lambda k: top[order[k - 1]] - top[order[k]])
    m = math.exp((top[order[gap - 1]] + top[order[gap]]) / 2 - top[order[0]])
    rows.append(({"min_p": m}, softmax(order[:gap])))
    # Temperature comes before min_p (13.1).
    m = math.exp(((top[order[gap - 1]] + top[order[gap]]) / 2 - top[order[0]]) / 0.5)
    rows.append(({"min_p": m, "temperature": 0.5}, softmax(order[:gap], 0.5)))
    each(rows, lambda fields, weights: compare(draws(cpu, total, **fields), weights, total))


def test_every_way_to_say_greedy_is_greedy(cpu):
    greedy = cpu.complete(**STORY, temperature=0)["choices"][0]["token_ids"]

    def check(fields):
        assert all(ids == greedy for ids in ids_of(cpu.complete(**STORY, **fields)))
    each([{"temperature": 1e-6}, {"temperature": 1e-8}, {"temperature": 0, "top_p": 0.1, "top_k": 7, "min_p": 0.5, "seed": 9},
          {"top_k": 1}, {"top_p": 0}, {"top_p": 1e-9}, {"min_p": 1}, {"top_k": 1, "temperature": 2}, {"temperature": 0, "n": 3},
          {"temperature": 0, "top_k": 1000000}], check)


def test_seeds(cpu):
    body = {**STORY, "temperature": 1.2}
    three = cpu.complete(**body, n=3, seed=10)
    singles = [cpu.complete(**body, seed=s)["choices"][0]["token_ids"] for s in (10, 11, 12)]
    assert ids_of(three) == singles and len({tuple(i) for i in singles}) == 3
    two = cpu.complete(**{**body, "prompt": [STORY["prompt"], "In the"]}, n=2, seed=10)
    assert ids_of(two)[:2] == singles[:2]
    assert ids_of(two)[2:] == ids_of(cpu.complete(**{**body, "prompt": "In the"}, n=2, seed=10))
    # Modulo 2^64: the seed after the largest is the smallest; negative ones are other seeds.
    edge = cpu.complete(**body, n=2, seed=2 ** 63 - 1)
    assert ids_of(edge)[1] == cpu.complete(**body, seed=-2 ** 63)["choices"][0]["token_ids"]
    assert ids_of(cpu.complete(**body, n=2, seed=-1))[1] == cpu.complete(**body, seed=0)["choices"][0]["token_ids"]
    # Without one, fresh randomness: six answers of twelve tokens at 1.2 are not twice the same.
    fresh = [i for _ in range(2) for i in ids_of(cpu.complete(**body, n=3))]
    assert len({tuple(i) for i in fresh}) == 6


def test_bias_forces_and_bans(cpu, distribution):
    order = [t for t, _ in distribution]
    greedy = cpu.complete(**STORY, temperature=0)["choices"][0]["token_ids"]
    forced = cpu.complete(**STORY, logit_bias={"19556": 100}, seed=1)
    assert ids_of(forced) == [[19556] * 12]
    banned = cpu.complete(**STORY, temperature=0, logit_bias={str(greedy[0]): -100})["choices"][0]["token_ids"]
    assert greedy[0] not in banned
    # Greedy looks at biased logits: the third overtakes the first exactly when the bias exceeds the gap.
    gap = distribution[0][1] - distribution[2][1]
    for bias, want in ((gap - 0.05, order[0]), (gap + 0.05, order[2])):
        answer = cpu.complete(**ONE, temperature=0, logit_bias={str(order[2]): bias}, return_token_ids=True)
        assert ids_of(answer) == [[want]]
    many = {str(i): -100 for i in range(49152) if i not in (81, 82)}
    answer = cpu.post(COMPLETIONS, {**STORY, "logit_bias": many})
    assert answer.status == 400 and answer.error["param"] == "logit_bias" or set(ids_of(answer.json)[0]) <= {81, 82}


def test_frequency_and_presence_penalties(cpu):
    """Two tokens are lifted so far above the rest that greedy choice is between them alone: b starts d below a. By
    l -= f*c + p*(c > 0) the sequence can be worked out. One prompt token: the context's effect on the two is measured."""
    a, b = 81, 82
    base = {"prompt": [504], "temperature": 0, "max_tokens": 12, "return_token_ids": True}

    def run(lift_b, **more):
        return ids_of(cpu.complete(**base, logit_bias={str(a): 95, str(b): 95 - lift_b}, **more))[0]

    def model_gaps(ids):
        """l[a] - l[b] at every step of a sequence, from the log probabilities of a forced continuation."""
        gaps = []
        for k in range(len(ids)):
            values = {}
            for t in (a, b):
                lp = cpu.complete(prompt=[504, *ids[:k], t], echo=True, max_tokens=0, logprobs=0)["choices"][0]["logprobs"]
                values[t] = lp["token_logprobs"][-1]
            gaps.append(values[a] - values[b])
        return gaps

    def check(lift, f, p):
        ids = run(lift, frequency_penalty=f, presence_penalty=p)
        assert set(ids) <= {a, b}
        count = collections.Counter()
        for k, gap in enumerate(model_gaps(ids)):
            lead = gap + lift - f * (count[a] - count[b]) - p * ((count[a] > 0) - (count[b] > 0))
            if abs(lead) > 0.2:  # rounding between scoring and generating decides nothing
                assert ids[k] == (a if lead > 0 else b), f"step {k} of {ids}: lead {lead:.3f}"
            count[ids[k]] += 1
    each([(0.0, 2.0, 0.0), (3.0, 2.0, 0.0), (1.0, 0.0, 2.0), (-4.0, 1.5, 1.0), (2.0, -2.0, 0.0), (1.0, 0.0, -2.0)], check)
    # The prompt does not count: tokens that only stand there are not penalised.
    prompt = [81] * 6 + [504]
    plain = cpu.complete(prompt=prompt, temperature=0, max_tokens=1, return_token_ids=True)
    assert ids_of(plain) == ids_of(cpu.complete(prompt=prompt, temperature=0, max_tokens=1, return_token_ids=True,
                                                frequency_penalty=2, presence_penalty=2))


def test_repetition_penalty_by_its_formula(cpu, distribution):
    """For t in the prompt (three times here): l/r if l > 0, once, after the bias. u is not in the prompt; the bias of u at which the
    choice flips from t to u tells t's penalised logit on u's scale. Two penalties must give the same raw logit of t."""
    t, u = distribution[0][0], distribution[1][0]
    prompt = [t, t, t, 504]

    def score(token):
        lp = cpu.complete(prompt=[*prompt, token], echo=True, max_tokens=0, logprobs=0)["choices"][0]["logprobs"]
        return lp["token_logprobs"][-1]
    gap = score(t) - score(u)  # l[t] - l[u]

    def flip(r, bias_t):
        low, high = -100.0, 100.0
        for _ in range(13):
            middle = (low + high) / 2
            answer = cpu.complete(prompt=prompt, max_tokens=1, temperature=0, return_token_ids=True, repetition_penalty=r,
                                  logit_bias={str(t): bias_t, str(u): middle})
            chosen = ids_of(answer)[0][0]
            if chosen == u:
                high = middle
            else:
                low = middle
        return (low + high) / 2  # l[u] + flip == penalised l[t]

    # l[u] = l[t] - gap, so with x = l[t]: x - gap + flip = (x + bias)/r, or (x + bias)*r when x + bias < 0
    def solve(r, bias, factor):
        return (gap - flip(r, bias) + bias * factor) / (1 - factor)
    raw = [solve(r, 95.0, 1 / r) for r in (2.0, 3.0)]
    assert all(-60 < x < 80 for x in raw), raw
    assert max(raw) - min(raw) < 0.6, f"the raw logit as measured with two penalties: {raw}"


def test_best_of_returns_the_likeliest_per_token(cpu):
    body = {**STORY, "max_tokens": 8, "temperature": 1.5, "ignore_eos": True, "logprobs": 0}
    singles = [cpu.complete(**body, seed=40 + i)["choices"][0] for i in range(5)]

    def mean(c):
        return sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["token_logprobs"])
    ranked = sorted(singles, key=mean, reverse=True)
    assert mean(ranked[1]) - mean(ranked[2]) > 1e-3, "choose other seeds"
    answer = check_whole(COMPLETIONS, {**body, "n": 2, "best_of": 5}, cpu.complete(**body, n=2, best_of=5, seed=40))
    assert ids_of(answer) == [c["token_ids"] for c in ranked[:2]]
    assert answer["usage"]["completion_tokens"] == 5 * 8  # every candidate counts
    equal = cpu.complete(**body, n=2, best_of=2, seed=40)
    assert sorted(ids_of(equal)) == sorted(c["token_ids"] for c in singles[:2])


def many_requests(count):
    texts = ["Once upon a time", "The sea", "def main():", "1, 2, 3,", "Dear Ada,\n", "In 1969", "Water is", "Why do birds"]
    rows = []
    for i in range(count):
        body = {"max_tokens": 20, "return_token_ids": True, "seed": i}
        body |= [{"temperature": 0}, {"temperature": 0.9}, {"temperature": 1.3, "top_k": 40},
                 {"temperature": 0.7, "repetition_penalty": 1.2, "frequency_penalty": 0.3}][i % 4]
        text = texts[i % len(texts)] + (" and so on" * (i % 5))
        rows.append((CHAT, {**body, "messages": [{"role": "user", "content": text}]}) if i % 8 == 7
                    else (COMPLETIONS, {**body, "prompt": text}))
    return rows


def test_answers_do_not_depend_on_company(cpu):
    """13.5: 64 at once, streamed or not, in an order that mixes prefills into decoding, equal their single runs."""
    kinds = many_requests(64 if LONG else 16)
    assert CPU_CONTEXT >= 200
    singles = [ids_of(cpu.ok(path, body)) for path, body in kinds]

    def run(k):
        path, body = kinds[k % len(kinds)]
        if k % 2:
            events = cpu.stream(path, body)
            ids = [[]]
            for e in events:
                for c in e["choices"]:
                    ids[0] += c.get("token_ids") or []
            return ids
        return ids_of(cpu.ok(path, body))
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        results = list(pool.map(run, range(64)))
    each([(k,) for k in range(64)], lambda k: eq(results[k], singles[k % len(kinds)]))
    cpu.wait_idle()


def eq(got, want):
    assert got == want, (got, want)


def test_a_long_prompt_that_was_split_gives_the_same(cpu):
    """A prompt alone, and the same while others decode (so that its chunks differ)."""
    body = {"prompt": [81 + i * 7 % 4000 for i in range(300)], "max_tokens": 6, "temperature": 0, "return_token_ids": True}
    alone = ids_of(cpu.complete(**body))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        others = [pool.submit(cpu.complete, prompt="The", max_tokens=30, seed=i) for i in range(3)]
        assert ids_of(cpu.complete(**body)) == alone
        for other in others:
            other.result()


def test_a_cached_prefix_changes_nothing(cpu):
    """kf-22: the same prompt again, a longer one with the same start, a shorter one; and what usage and metrics say of it."""
    ids = [81 + i * 13 % 4000 for i in range(100)]
    body = {"max_tokens": 5, "temperature": 0, "return_token_ids": True, "logprobs": 2}
    before = cpu.metrics()
    cached, seen = 0, {}
    for prompt in (ids[:64], ids[:64], ids, ids[:64], ids[:70], ids[:17], ids, [*ids[:63], 90], ids[:64]):
        answer = cpu.complete(prompt=prompt, **body)
        hit = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert 0 <= hit < len(prompt)
        cached += hit
        c = answer["choices"][0]
        first = seen.setdefault(tuple(prompt), c)
        assert c["token_ids"] == first["token_ids"]
        assert c["logprobs"] == first["logprobs"], "13.5: on the CPU the same bits, cached or not"
    rise = cpu.metrics().value("inferd_prefix_cache_hit_tokens_total") - before.value("inferd_prefix_cache_hit_tokens_total")
    assert rise == cached
    print(f"{cached} prompt tokens came from the cache")


def test_a_pool_too_small_for_all_at_once_changes_nothing():
    """kf-20: three sequences of 96 tokens on twelve blocks of 16; whether the server lets them wait or preempts them."""
    with Daemon("--device", "cpu", "--kv-cache-memory", 12 * 16 * 23040) as d:
        bodies = [{"prompt": [200 + k * 50 + i for i in range(32)], "max_tokens": 64 if LONG else 48, "ignore_eos": True, "seed": k,
                   "temperature": 0.7, "logprobs": 1, "return_token_ids": True} for k in range(3)]
        alone = [d.complete(**b)["choices"] for b in bodies]
        before = d.metrics()
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            together = list(pool.map(lambda b: d.complete(**b), bodies))
        assert [t["choices"] for t in together] == alone
        after = d.metrics()
        assert all(t["usage"]["prompt_tokens"] == 32 for t in together)
        for name, want in (("prompt", 96), ("generation", 3 * bodies[0]["max_tokens"])):
            assert after.value(f"inferd_{name}_tokens_total") - before.value(f"inferd_{name}_tokens_total") == want
        d.wait_idle()
