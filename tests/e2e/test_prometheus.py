"""The metrics under Prometheus itself: its checker, its rules, its scraper, and every series that dashboards read.

Method: promtool on the text and on configs/prometheus; then a real Prometheus (the Debian package's program, put into the cache by
tests/setup.sh) scrapes a daemon under load by the shipped configuration, and every expression of the Grafana dashboard and of
the rules must find something. Skipped where there is no Prometheus."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request

import pytest

from conftest import ROOT, binary, free_port
from pace import until

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "inferd/prometheus/usr/bin"
CONFIGS = ROOT / "configs/prometheus"


def program(name):
    found = CACHE / name if (CACHE / name).exists() else shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not installed (Debian: prometheus)")
    return found


def promtool(*words, text=None, cwd=None):
    ended = subprocess.run([program("promtool"), *map(str, words)], input=text, capture_output=True, text=True, timeout=60, cwd=cwd)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def busy(start):
    """Half a second of traffic of every kind; goes on in the background until the module's tests are over."""
    if binary().name == "mini_daemon":
        pytest.skip("mini_daemon does not know its model's labels")
    daemon = start(step_us=500, max_batch_wait_ms=2, otlp_endpoint="http://127.0.0.1:9", context=2048)
    stop = threading.Event()

    def load():
        n = 0
        while not stop.is_set():
            n += 1
            daemon.chat(f"Tell me the same thing again and again, please, number {n % 3}. " * 4, max_tokens=5, stream=n % 2 == 0)
            daemon.complete(n=2, max_tokens=3)
            if n % 5 == 0:
                daemon.complete(n=0)
    threads = [threading.Thread(target=load) for _ in range(3)]
    for t in threads:
        t.start()
    yield daemon
    stop.set()
    for t in threads:
        t.join()


def test_promtool_finds_nothing_wrong(busy):
    """But for what is in vLLM's names themselves: the colon, and one histogram that ends in _total."""
    until(lambda: busy.metrics().get('inferd_http_requests_total{method="POST",path="/v1/completions",status="400"}', 0) > 0, "traffic of every kind")
    text = busy.get("/metrics").body.decode()
    ours = "".join(line + "\n" for line in text.splitlines() if not re.match(r"(# (HELP|TYPE) )?vllm:", line))
    assert promtool("check", "metrics", text=ours) == (0, "")
    _, said = promtool("check", "metrics", text=text)
    rest = [line for line in said.splitlines()
            if not (line.startswith("vllm:") and line.endswith("metric names should not contain ':'"))]
    assert rest == ['vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix']


def test_without_vllms_names_there_are_none(start):
    if binary().name == "mini_daemon":
        pytest.skip("mini_daemon has no such option")
    daemon = start(step_us=0, vllm_metrics="false")
    daemon.complete()
    text = daemon.get("/metrics").body.decode()
    assert "vllm:" not in text and promtool("check", "metrics", text=text) == (0, "")


# what vLLM's own dashboards (examples/observability), its production stack's router, KEDA's scaler recipes, the Gateway API's endpoint
# picker and benchmark clients read
VLLM = """num_requests_running num_requests_waiting num_requests_waiting_by_reason kv_cache_usage_perc gpu_cache_usage_perc
    gpu_prefix_cache_hit_rate gpu_prefix_cache_hits_total gpu_prefix_cache_queries_total prefix_cache_queries_total prefix_cache_hits_total
    num_preemptions_total prompt_tokens_total prompt_tokens_by_source_total prompt_tokens_cached_total generation_tokens_total
    request_success_total cache_config_info engine_sleep_state num_requests_swapped cpu_cache_usage_perc""".split()
VLLM_HISTOGRAMS = """time_to_first_token_seconds inter_token_latency_seconds time_per_output_token_seconds request_time_per_output_token_seconds
    e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds request_decode_time_seconds
    request_inference_time_seconds request_prompt_tokens request_generation_tokens request_params_n request_params_max_tokens
    request_max_num_generation_tokens request_prefill_kv_computed_tokens request_num_preemptions iteration_tokens_total""".split()


def test_vllms_names_add_up_with_ours(busy):
    busy.chat(max_tokens=4)
    m = busy.metrics()
    labels = 'engine="0",model_name="smollm2"'
    for name in VLLM:
        assert any(k.startswith(f"vllm:{name}{{") for k in m), name
    for name in VLLM_HISTOGRAMS:
        assert m[f"vllm:{name}_count{{{labels}}}"] > 0 and f'vllm:{name}_bucket{{{labels},le="+Inf"}}' in m, name
    ended = sum(v for k, v in m.items() if k.startswith("vllm:request_success_total") and 'finished_reason="abort"' not in k)
    assert m[f"vllm:e2e_request_latency_seconds_count{{{labels}}}"] == m["inferd_request_seconds_count"] == ended
    sources = {k.split('source="')[1][:-2]: v for k, v in m.items() if k.startswith("vllm:prompt_tokens_by_source_total")}
    assert sources["local_compute"] + sources["local_cache_hit"] == m[f"vllm:prompt_tokens_total{{{labels}}}"]
    assert sources["local_cache_hit"] == m["inferd_prefix_cache_hit_tokens_total"] > 0
    assert m[f"vllm:iteration_tokens_total_sum{{{labels}}}"] >= m["inferd_generation_tokens_total"]


# --- configs/ ---

def test_the_rules_are_right_by_promtools_own_tests():
    for words in (("check", "rules", "inferd-rules.yml"), ("check", "config", "prometheus.yml"), ("test", "rules", "inferd-rules-test.yml")):
        status, said = promtool(*words, cwd=CONFIGS)
        assert status == 0 and "SUCCESS" in said and "FAILED" not in said, said


class Prometheus:
    def __init__(self, tmp, target):
        port = free_port()
        home = tmp / f"prometheus-{port}"
        home.mkdir()
        shutil.copy(CONFIGS / "inferd-rules.yml", home)
        config = (CONFIGS / "prometheus.yml").read_text()
        assert "localhost:8000" in config and "scrape_interval: 5s" in config
        config = config.replace("localhost:8000", target).replace("interval: 5s", "interval: 1s").replace("interval: 15s", "interval: 1s")
        (home / "prometheus.yml").write_text(config)
        rules = (home / "inferd-rules.yml").read_text().replace("interval: 15s", "interval: 1s")
        (home / "inferd-rules.yml").write_text(rules)
        self.url = f"http://127.0.0.1:{port}/api/v1/"
        self.log = open(home / "log", "wb")
        self.process = subprocess.Popen([program("prometheus"), "--config.file", home / "prometheus.yml", "--storage.tsdb.path", home / "data",
                                         "--web.listen-address", f"127.0.0.1:{port}", "--log.level", "warn"],
                                        stdout=self.log, stderr=subprocess.STDOUT)

    def api(self, path, **fields):
        with urllib.request.urlopen(self.url + path + "?" + urllib.parse.urlencode(fields), timeout=60) as answer:
            body = json.load(answer)
        assert body["status"] == "success", body
        return body["data"]

    def query(self, expression):
        return self.api("query", query=expression)["result"]

    def end(self):
        self.process.terminate()
        self.process.wait(60)
        self.log.close()


@pytest.fixture(scope="module")
def prometheus(tmp, busy):
    p = Prometheus(tmp, f"127.0.0.1:{busy.port}")

    def scraped():  # five times, so that every rate has its two points
        try:
            return p.query('count_over_time(up{job="inferd"}[1m]) >= 5')
        except OSError:
            assert p.process.poll() is None, "Prometheus ended"
            return None
    until(scraped, "five scrapes", 120)
    yield p
    p.end()


def test_prometheus_takes_every_scrape(prometheus):
    """What it cannot read it never takes; one that comes after a second, on a busy machine, it leaves out."""
    def taken():
        target = prometheus.api("targets")["activeTargets"][0]
        return target["health"] == "up" and target["lastError"] == ""
    until(taken, "a scrape without an error")
    assert prometheus.query('max_over_time(up{job="inferd"}[1m])')[0]["value"][1] == "1"


def expressions(node):
    if isinstance(node, dict):
        if isinstance(node.get("expr"), str):
            yield node["expr"]
        for value in node.values():
            yield from expressions(value)
    elif isinstance(node, list):
        for value in node:
            yield from expressions(value)


def test_every_panel_of_the_dashboard_finds_its_series(prometheus):
    dashboard = json.loads((ROOT / "configs/grafana/inferd.json").read_text())
    panels = [p for p in dashboard["panels"] if p["type"] != "row"]
    assert len({p["id"] for p in dashboard["panels"]}) == len(dashboard["panels"]) and all(p["targets"] for p in panels)
    all_of_them = list(expressions(panels))
    assert len(all_of_them) > 50
    for expression in all_of_them:
        asked = expression.replace("$__rate_interval", "20s").replace("$instance", ".*")
        assert prometheus.query(asked), f"nothing for {expression}"
    variable = dashboard["templating"]["list"][1]["query"]["query"]
    name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable).groups()
    assert prometheus.query(f"count by ({label}) ({name})")


def test_every_rule_is_healthy_and_names_series_that_are_there(prometheus):
    def known():
        rules = [r for g in prometheus.api("rules")["groups"] for r in g["rules"]]
        return rules and not any(r["health"] == "unknown" for r in rules) and rules
    rules = until(known, "every rule evaluated")
    assert len(rules) == 16 and all(r["health"] == "ok" for r in rules), [(r["name"], r["health"], r.get("lastError")) for r in rules]
    for rule in rules:
        for name in set(re.findall(r"\b(?:inferd[_:]|up\b)[\w:]*", rule["query"])):
            assert prometheus.query(f'count({{__name__="{name}"}})'), f"{rule['name']} asks for {name}, which nobody has"
        if rule["type"] == "recording":
            assert prometheus.query(rule["name"]), f"{rule['name']} has no value"
    firing = [r["name"] for r in rules if r["type"] == "alerting" and r["state"] == "firing"]
    assert firing == []


def test_vllms_own_dashboard_finds_its_series(prometheus):
    """The expressions' shapes of its examples/observability dashboards, over every histogram and counter that they name."""
    labels = '{model_name="smollm2"}'
    for name in VLLM_HISTOGRAMS:
        shown = prometheus.query(f"histogram_quantile(0.99, sum by(le) (rate(vllm:{name}_bucket{labels}[20s])))")
        assert shown and shown[0]["value"][1] != "NaN", name
        assert prometheus.query(f"rate(vllm:{name}_sum{labels}[20s]) / rate(vllm:{name}_count{labels}[20s])"), name
    for name in VLLM:
        if name != "cache_config_info":
            assert prometheus.query(f"vllm:{name}{labels}"), name
    assert prometheus.query("sum by(finished_reason) (increase(vllm:request_success_total{model_name=\"smollm2\"}[20s]))")
    assert prometheus.query('max(vllm:engine_sleep_state{model_name="smollm2",sleep_state="awake"})')[0]["value"][1] == "1"
    assert float(prometheus.query('sum(rate(http_requests_total{status="2xx"}[20s])) / sum(rate(http_requests_total[20s]))')[0]["value"][1]) > 0
    assert prometheus.query(f"sum(vllm:num_requests_waiting_by_reason{labels}) == sum(vllm:num_requests_waiting{labels})")
    blocks = prometheus.query('vllm:cache_config_info{block_size="16"}')[0]["metric"]
    assert int(blocks["num_gpu_blocks"]) * 16 == int(blocks["kv_cache_size_tokens"])
