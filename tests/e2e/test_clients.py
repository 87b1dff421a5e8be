"""Other people's programs against the daemon, unchanged, with SmolLM2 on the CPU; what they print is looked at.

Each has a virtual environment of its own under the cache (or below INFERD_CLIENTS), made from tests/clients/requirements-NAME.txt when it
is first needed: so these run with INFERD_TEST_LONG=1 only, and GuideLLM, which brings 6 GB, where INFERD_TEST_CLIENTS names it. The
`openai` client is in the quick tier: test_clients_openai.py."""
import json
import lzma
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from conftest import LONG, ROOT

HERE = ROOT / "tests/clients"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
VENVS = pathlib.Path(os.environ.get("INFERD_CLIENTS", CACHE / "inferd/clients"))
NAMED = os.environ.get("INFERD_TEST_CLIENTS", "").split(",")

pytestmark = pytest.mark.skipif(not LONG, reason="the long tier (INFERD_TEST_LONG=1) installs and runs them")


def venv(name):
    """The folder of its programs. A client that does not install here is skipped by name."""
    at, wanted = VENVS / name, (HERE / f"requirements-{name}.txt").read_text()
    if not (at / "stamp").exists() or (at / "stamp").read_text() != wanted:
        shutil.rmtree(at, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", at], check=True)
        installed = subprocess.run([at / "bin/pip", "install", "-q", "--disable-pip-version-check", "-r", HERE / f"requirements-{name}.txt"],
                                   capture_output=True, text=True)
        if installed.returncode:
            pytest.skip(f"{name} does not install here: {installed.stderr[-300:]}")
        (at / "stamp").write_text(wanted)
    return at / "bin"


def run(*words, timeout=600, **environment):
    ended = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=timeout, env={**os.environ, **environment})
    print(ended.stdout[-6000:], ended.stderr[-3000:])
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


@pytest.fixture(scope="module")
def served(start):
    return start(device="cpu", context=4096)


@pytest.fixture(scope="module")
def tokenizer(tmp):
    """A Hugging Face folder for clients that make prompts of so many tokens; it need not be the model's own."""
    golden, out = ROOT / "tests/golden/tokenizers/qwen3", tmp / "tokenizer"
    out.mkdir()
    (out / "tokenizer.json").write_bytes(lzma.decompress((golden / "tokenizer.json.xz").read_bytes()))
    shutil.copy(golden / "tokenizer_config.json", out)
    return out


def test_langchain_and_litellm(served):
    said = run(venv("chat") / "python", HERE / "chat.py", served.url)
    assert len(said.splitlines()) == 7 and said.count("Paris") == 3


def test_simonws_llm(served, tmp):
    home = tmp / "llm"
    home.mkdir()
    (home / "extra-openai-models.yaml").write_text(
        f"- {{model_id: inferd, model_name: smollm2, api_base: \"{served.url}/v1\"}}\n"
        f"- {{model_id: inferd-text, model_name: smollm2, api_base: \"{served.url}/v1\", completion: true}}\n")
    llm, env = venv("llm") / "llm", dict(LLM_USER_PATH=str(home), OPENAI_API_KEY="none")
    words = ["-o", "temperature", "0", "-o", "max_tokens", "24", "-s", "Be brief.", "What is the capital of France?"]
    streamed = run(llm, "-m", "inferd", *words, **env)
    assert "Paris" in streamed and streamed == run(llm, "-m", "inferd", "--no-stream", *words, **env)
    assert run(llm, "-m", "inferd", "-c", "-o", "max_tokens", "8", "And of Spain?", **env).strip()
    assert run(llm, "-m", "inferd-text", "-o", "max_tokens", "8", "Once upon a time", **env).strip()
    logged = json.loads(run(llm, "logs", "-n", "4", "--json", **env))
    assert len(logged) == 4 and logged[0]["input_tokens"] > 10


QUESTIONS = [("The capital of France is", ["London", "Paris", "Berlin"], 1),
             ("The color of the sky on a clear day is", ["blue", "green", "seven"], 0),
             ("Two plus two is", ["four", "cat", "Tuesday"], 0),
             ("The opposite of hot is", ["cold", "wet", "loud"], 0)]
WORDS = [("The capital of France is", " Paris"), ("Once upon a", " time"), ("The sun rises in the", " east")]
TASKS = {
    "inferd_choices": ("choices.jsonl", 'output_type: multiple_choice\ndoc_to_text: "Question: {{question}}\\nAnswer:"\ndoc_to_choice: "{{choices}}"\n'
                       'doc_to_target: "{{answer}}"\nmetric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\n'),
    "inferd_words": ("words.jsonl", 'output_type: loglikelihood\ndoc_to_text: "{{text}}"\ndoc_to_target: "{{target}}"\n'
                     'metric_list: [{metric: perplexity, aggregation: perplexity, higher_is_better: false}]\n'),
    "inferd_text": ("words.jsonl", 'output_type: generate_until\ndoc_to_text: "{{text}}"\ndoc_to_target: "{{target}}"\n'
                    'generation_kwargs: {until: ["\\n", "."], max_gen_toks: 8, temperature: 0, do_sample: false}\n'
                    'metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]\n'),
}


def echo_loglikelihood(daemon, context, continuation):
    """The sum over the continuation's tokens, asked for as lm-eval does, but by our own hands."""
    count = daemon.post("/tokenize", {"prompt": context, "add_special_tokens": False}).json()["count"]
    ids = daemon.post("/tokenize", {"prompt": context + continuation, "add_special_tokens": False}).json()["tokens"]
    answer = daemon.post("/v1/completions", {"prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True}).json()
    return sum(answer["choices"][0]["logprobs"]["token_logprobs"][count:len(ids)])


def test_lm_eval_by_echo_and_a_remote_tokenizer(served, tmp):
    home = tmp / "lm_eval"
    home.mkdir()
    (home / "choices.jsonl").write_text("".join(json.dumps({"question": q, "choices": c, "answer": a}) + "\n" for q, c, a in QUESTIONS))
    (home / "words.jsonl").write_text("".join(json.dumps({"text": t, "target": w}) + "\n" for t, w in WORDS))
    for name, (data, body) in TASKS.items():
        (home / f"{name}.yaml").write_text(f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {home / data}}}}}\n"
                                           f"test_split: test\n{body}")
    run(venv("lm_eval") / "lm_eval", "run", "--model", "local-completions", "--model_args",
        f"model=smollm2,base_url={served.url}/v1/completions,tokenizer_backend=remote,num_concurrent=2,max_length=2048",
        "--tasks", ",".join(TASKS), "--include_path", home, "--batch_size", "2", "--log_samples", "--output_path", home / "out",
        HF_HUB_OFFLINE="1", HF_HOME=str(home / "hf"), HF_DATASETS_CACHE=str(home / "cache"))
    results = json.loads(next((home / "out").rglob("results_*.json")).read_text())["results"]
    assert results["inferd_choices"]["acc,none"] == 1.0
    samples = [json.loads(x) for x in next((home / "out").rglob("samples_inferd_words_*.jsonl")).read_text().splitlines()]
    assert len(samples) == len(WORDS)
    for sample in samples:
        theirs = float(sample["filtered_resps"][0][0])
        assert abs(theirs - echo_loglikelihood(served, sample["doc"]["text"], sample["doc"]["target"])) < 1e-3
    texts = [json.loads(x)["filtered_resps"][0] for x in next((home / "out").rglob("samples_inferd_text_*.jsonl")).read_text().splitlines()]
    assert "Paris" in texts[0] and not any("." in t for t in texts)


def test_aiperf(start, tokenizer, tmp):
    """On the null device: it is the client that is looked at."""
    daemon, out = start(step_us=2000, context=4096), tmp / "aiperf"
    run(venv("aiperf") / "aiperf", "profile", "--model", "smollm2", "--url", daemon.url, "--endpoint-type", "chat", "--streaming", "--tokenizer",
        tokenizer, "--use-server-token-count", "--synthetic-input-tokens-mean", "64", "--output-tokens-mean", "16", "--extra-inputs",
        "ignore_eos:true", "--concurrency", "4", "--request-count", "40", "--ui-type", "none", "--output-artifact-dir", out)
    report = json.loads((out / "profile_export_aiperf.json").read_text())
    assert report["request_count"]["avg"] == 40 and report["output_sequence_length"]["avg"] == 16 and not report.get("error_summary")
    assert 0 < report["time_to_first_token"]["p50"] < report["request_latency"]["p50"]
    scraped = (out / "server_metrics_export.json").read_text()
    assert "vllm:time_to_first_token_seconds" in scraped and "inferd_request_stage_seconds" in scraped


@pytest.mark.skipif("guidellm" not in NAMED, reason="brings 6 GB: INFERD_TEST_CLIENTS=guidellm asks for it")
def test_guidellm(start, tokenizer, tmp):
    daemon, out = start(step_us=2000, context=4096), tmp / "guidellm.json"
    run(venv("guidellm") / "guidellm", "run", "--backend", f"kind=openai_http,target={daemon.url},model=smollm2", "--profile",
        "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=20", "--tokenizer", f"kind=huggingface_auto,model={tokenizer}",
        "--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=8", "--output", f"kind=json,path={out}", "--disable-console-interactive",
        HF_HUB_OFFLINE="1")
    requests = json.loads(out.read_text())["benchmarks"][0]["requests"]
    assert len(requests["successful"]) == 20 and not requests["errored"]
