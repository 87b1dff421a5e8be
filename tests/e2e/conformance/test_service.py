"""Section 6: health, ready, version, models, metrics. kf-34.

Method: the metrics are read by a strict parser before and after a known load.
"""
import re
import time
from urllib.parse import quote

import pytest

from conformance.conftest import KEYS
from conformance.wire import call, request_bytes
from pace import until

COMPLETIONS = "/v1/completions"
FAMILIES = {"inferd_http_requests_total": "counter", "inferd_prompt_tokens_total": "counter",
            "inferd_generation_tokens_total": "counter", "inferd_prefix_cache_hit_tokens_total": "counter",
            "inferd_requests_running": "gauge", "inferd_requests_waiting": "gauge", "inferd_requests_aborted_total": "counter",
            "inferd_requests_rejected_total": "counter", "inferd_kv_cache_usage_ratio": "gauge",
            "inferd_time_to_first_token_seconds": "histogram", "inferd_inter_token_seconds": "histogram",
            "inferd_request_seconds": "histogram"}


@pytest.mark.sanitizer
def test_health_ready_version(null):
    assert null.get("/health").json == {"status": "ok"}
    assert null.get("/ready").json == {"status": "ready"}
    version = null.get("/version").json["version"]
    assert re.match(r"^[0-9]+\.[0-9]+\.[0-9]+$", version)
    for path in ("/health", "/ready", "/version", "/v1/models"):
        assert null.get(path).header("content-type").split(";")[0] == "application/json"


@pytest.mark.sanitizer
def test_models(null, keyed, vocabulary):
    answer = null.get("/v1/models").json
    assert answer["object"] == "list" and len(answer["data"]) == 1
    model = answer["data"][0]
    assert model["object"] == "model" and model["owned_by"] == "inferd"
    assert isinstance(model["id"], str) and model["id"] and "/" not in model["id"]
    assert isinstance(model["created"], int) and 1_500_000_000 < model["created"] <= time.time() + 5
    assert model["max_model_len"] == vocabulary.context
    assert null.get("/v1/models/" + quote(model["id"], safe="")).json == model

    # Names with a slash and a space: the rest of the path after decoding.
    named = keyed.get("/v1/models").json["data"]
    assert named[0]["id"] == "org/smol lm"
    for path in ("org/smol%20lm", "org%2Fsmol%20lm", "%6frg%2fsmol%20lm", "org/smol%20lm?x=1"):
        assert keyed.get("/v1/models/" + path).json["id"] == "org/smol lm", path
    assert keyed.get("/v1/models/alias").status == 200
    for wrong in ("nope", "org", "org/", "org/smol+lm", "org/smol%2520lm", "org/smol%20lm/", "ORG/smol%20lm", "%00", "%ff"):
        answer = keyed.get("/v1/models/" + wrong)
        assert answer.status == 404 or wrong in ("%00", "%ff") and answer.status == 400, (wrong, answer)
        if answer.status == 404:
            assert answer.error["code"] == "model_not_found" and answer.error["param"] == "model", (wrong, answer)


@pytest.mark.sanitizer
def test_the_model_of_a_request_is_one_of_the_names(keyed):
    for name in ("org/smol lm", "alias", None):
        assert keyed.complete(model=name, prompt="a", max_tokens=1)["model"] == "org/smol lm"
    assert keyed.complete(prompt="a", max_tokens=1)["model"] == "org/smol lm"
    for name in ("", "org", "Alias", "alias ", "org/smol"):
        answer = keyed.post(COMPLETIONS, {"model": name, "prompt": "a"})
        assert answer.status == 404 and answer.error["code"] == "model_not_found" and answer.error["param"] == "model"


@pytest.mark.sanitizer
def test_metrics_are_well_formed_and_whole(null):
    null.complete(prompt="a", max_tokens=3)
    answer = null.get("/metrics")
    kind = re.sub(r"\s", "", answer.header("content-type").lower())
    assert kind == "text/plain;version=0.0.4;charset=utf-8"
    metrics = null.metrics()
    for family, kind in FAMILIES.items():
        assert metrics.kinds.get(family) == kind, family
    requests = [dict(labels) for name, labels in metrics.series if name == "inferd_http_requests_total"]
    assert requests and all(set(labels) == {"method", "path", "status"} for labels in requests)
    for labels in requests:
        assert re.match(r"^[A-Z]+$|^other$", labels["method"]) and re.match(r"^[1-5][0-9]{2}$", labels["status"])
    assert 0 <= metrics.value("inferd_kv_cache_usage_ratio") <= 1


@pytest.mark.sanitizer
def test_metrics_count_what_was_done(null):
    null.wait_idle()
    chat = {"messages": [{"role": "user", "content": "count me"}], "max_tokens": 7}
    before = null.metrics()
    prompt = generated = 0
    for _ in range(10):
        usage = null.complete(prompt="some words here", max_tokens=9, n=2)["usage"]
        prompt, generated = prompt + usage["prompt_tokens"], generated + usage["completion_tokens"]
    for _ in range(3):
        usage = null.stream("/v1/chat/completions", {**chat, "stream_options": {"include_usage": True}})[-1]["usage"]
        prompt, generated = prompt + usage["prompt_tokens"], generated + usage["completion_tokens"]
    assert generated == 10 * 18 + 3 * 7
    for _ in range(4):
        assert null.post(COMPLETIONS, {"prompt": []}).status == 400
    for name in ("a", "b", "c%22%0a", "d{}"):
        null.get("/nowhere/" + name)
    null.get("/v1/models/some-model")
    null.get("/v1/models/another")
    after = null.metrics()

    def rise(name, **labels):
        return after.total(name, **labels) - before.total(name, **labels)
    requests = "inferd_http_requests_total"
    assert rise(requests, method="POST", path=COMPLETIONS, status="200") == 10
    assert rise(requests, method="POST", path="/v1/chat/completions", status="200") == 3
    assert rise(requests, method="POST", path=COMPLETIONS, status="400") == 4
    assert rise(requests, status="404") == 6
    assert rise("inferd_prompt_tokens_total") == prompt
    assert rise("inferd_generation_tokens_total") == generated
    assert rise("inferd_requests_aborted_total") == 0
    assert rise("inferd_requests_rejected_total") == 0
    assert rise("inferd_request_seconds_count") == 13
    assert rise("inferd_time_to_first_token_seconds_count") in (13, 23), "one for each request, or for each choice"
    assert after.value("inferd_requests_running") == after.value("inferd_requests_waiting") == 0
    # Unknown routes share one value of `path`, ids of models too: no client can make series at will.
    paths = {dict(labels)["path"] for name, labels in after.series if name == requests}
    assert not any(word in p for p in paths for word in ("nowhere", "some-model", "another")), paths
    for (name, labels), value in before.series.items():
        if before.kinds.get(name) == "counter" or name.endswith(("_bucket", "_count", "_sum")):
            assert after.series[(name, labels)] >= value, (name, labels)


def test_odd_methods_make_no_series(null):
    for i in range(20):
        with null.connect() as c:
            c.send(request_bytes(f"METHOD{i}", "/health"))
            assert c.answer(check=False).status in (400, 405, 501)
    methods = {dict(labels)["method"] for name, labels in null.metrics().series if name == "inferd_http_requests_total"}
    assert len(methods) <= 12, methods


def test_running_and_waiting_are_seen_while_they_last(slow):
    with slow.connect() as c:
        c.send(request_bytes("POST", COMPLETIONS, {"prompt": "a", "max_tokens": 4000, "ignore_eos": True, "stream": True}))
        c.head()
        until(lambda: slow.metrics().value("inferd_requests_running") == 1, "it runs")
        assert 0 < slow.metrics().value("inferd_kv_cache_usage_ratio") < 1
        c.reset()
    slow.wait_idle()


def test_open_endpoints_tell_no_secret(keyed):
    for path in ("/health", "/ready", "/version", "/metrics"):
        body = call(keyed.address, "GET", path).body.decode()
        assert not any(key in body for key in KEYS)
