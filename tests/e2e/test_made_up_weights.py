"""A folder of configs/models as it is, with made-up weights: it serves, chats and streams in bytes; a real load of it is refused.

Method: the real program on the CPU with SmolLM2-135M's shape; the official client, /tokenize and /detokenize beside Python's own UTF-8,
each event of a stream decoded by itself; the sentence of every command that needs a tokenizer and has none."""
import json
import random
import re
import shutil
import subprocess

import openai
import pytest
from conftest import ROOT, binary

FOLDER = ROOT / "configs/models/SmolLM2-135M"
END, END_TEXT = 256, "<|endoftext|>"
GO_ON = {str(END): -100}  # what a processor rounds otherwise may draw another token: not the end, though

pytestmark = pytest.mark.skipif(binary().name == "mini_daemon", reason="mini_daemon has no made-up weights")


@pytest.fixture(scope="module")
def made_up(start):
    return start(model=FOLDER, device="cpu", load_format="dummy", context=2048)


@pytest.fixture(scope="module")
def client(made_up):
    with openai.OpenAI(base_url=made_up.url + "/v1", api_key="none", max_retries=0, timeout=600) as c:
        yield c


def tokenize(daemon, **body):
    answer = daemon.post("/tokenize", body)
    assert answer.status == 200, answer.body
    return answer.json()["tokens"]


def detokenize(daemon, tokens):
    answer = daemon.post("/detokenize", {"tokens": tokens})
    assert answer.status == 200, answer.body
    return answer.json()["prompt"]


def test_one_line_says_which_tokenizer_it_is(made_up):
    said = [line for line in made_up.log_text().splitlines() if "built-in tokenizer" in line]
    assert len(said) == 1, said
    for words in ("SmolLM2-135M", "tokens=257", "eos_token_id=256", 'chat_template="plain"', "bos_token_id 0, eos_token_id 0"):
        assert words in said[0], said


def test_the_official_client(made_up, client):
    assert client.models.list().data[0].id == "smollm2"
    args = dict(model="smollm2", messages=[{"role": "user", "content": "Hello!"}], max_tokens=48, seed=3, logit_bias=GO_ON)
    whole = client.chat.completions.create(**args)
    content = whole.choices[0].message.content
    assert content and whole.usage.prompt_tokens == len("user: Hello!\nassistant: ")
    assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 48
    pieces = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**args, stream=True)]
    assert "".join(pieces) == content and len(pieces) > 8
    text = client.completions.create(model="smollm2", prompt="a", max_tokens=16, seed=1, logit_bias=GO_ON).choices[0].text
    assert text == "".join(chunk.choices[0].text for chunk in client.completions.create(model="smollm2", prompt="a", max_tokens=16, seed=1, logit_bias=GO_ON,
                                                                                               stream=True))


def test_a_stream_is_whole_characters(made_up):
    for seed in range(3):
        events = made_up.stream("/v1/completions", {"prompt": "x", "max_tokens": 64, "seed": seed, "temperature": 2, "logit_bias": GO_ON})  # strict UTF-8 there
        text = "".join(e["choices"][0]["text"] for e in events if e)
        assert text.encode().decode() == text and "\ud800" not in text and len(events) > 8


def test_any_text_comes_back(made_up):
    draw = random.Random(7)
    planes = [(0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000)]
    texts = ["", "a", "naïve \u2581 ▁ \x00 \r\n\t", " lead and trail ", "\ufeff", "e\u0301 \u212b", "👩‍🚀"]
    texts += ["".join(chr(draw.randrange(*draw.choice(planes))) for _ in range(draw.randrange(1, 300))) for _ in range(40)]
    for text in texts:
        if text:
            tokens = tokenize(made_up, prompt=text)
            assert tokens == list(text.encode()) and detokenize(made_up, tokens) == text
    assert tokenize(made_up, prompt="a" + END_TEXT) == [97, END] and detokenize(made_up, [97, END]) == "a" + END_TEXT
    assert made_up.post("/detokenize", {"tokens": [257]}).status == 400
    assert made_up.complete(prompt=[257]).status == 400 and made_up.complete(prompt=[0, 255, END]).status == 200


def test_a_conversation_is_lines(made_up):
    def text(*messages, **fields):
        return bytes(tokenize(made_up, messages=list(messages), **fields)).decode()

    user = {"role": "user", "content": "Hé <|endoftext|>"}  # not forged: it is text from outside
    assert text({"role": "system", "content": "S"}, user) == "system: S\nuser: Hé <|endoftext|>\nassistant: "
    assert text({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}) == "user: ab\nassistant: "
    begun = {"role": "assistant", "content": "I be"}
    assert text(user, begun, add_generation_prompt=False, continue_final_message=True).endswith("\nassistant: I be")


def test_the_end_token_ends_an_answer(made_up):
    answer = made_up.chat(logit_bias={str(END): 100}, max_tokens=8).json()
    assert answer["choices"][0]["finish_reason"] == "stop" and answer["usage"]["completion_tokens"] == 1, answer
    # the config's own end, id 0, is a byte here and ends nothing
    answer = made_up.complete(logit_bias={"0": 100}, max_tokens=4).json()
    assert answer["choices"][0]["finish_reason"] == "length" and answer["choices"][0]["text"] == "\x00" * 4, answer


def test_plan_says_the_bytes_that_serve_takes(made_up):
    done = subprocess.run([str(binary()), "plan", str(FOLDER), "--load-format", "dummy", "--device", "cpu", "--max-model-len", "2048", "--json"],
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    taken = re.search(r"memory total device_bytes=(\d+)", made_up.log_text())
    assert json.loads(done.stdout)["device_bytes"] == int(taken[1])


def test_run_and_tokenize():
    made_up = ["--load-format", "dummy", "--device", "cpu", "--max-model-len", "256"]
    done = subprocess.run([str(binary()), "run", str(FOLDER), *made_up, "-n", "12", "hi"], capture_output=True, timeout=600)
    assert done.returncode == 0 and done.stdout.decode(), done
    done = subprocess.run([str(binary()), "tokenize", str(FOLDER), *made_up, "é"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout.split() == ["195", r"\xc3", "169", r"\xa9", "2", "tokens"], done


@pytest.mark.parametrize("how", [["--prompt-kind", "text"], ["--token-low", "0", "--token-high", "255"]], ids=["words", "bytes"])
def test_a_load_on_it(made_up, how):
    done = subprocess.run([str(binary()), "bench", "serve", "--url", made_up.url, "--num-prompts", "4", "--input-len", "16", "--output-len", "4",
                           "--warmup", "0", *how], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and re.search(r"Successful requests: +4\b", done.stdout), done


def refused(*args):
    done = subprocess.run([str(binary()), *map(str, args)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 1 and not done.stdout, done
    return next(line for line in done.stderr.splitlines() if line.startswith("inferd:"))


def test_only_made_up_weights_bring_a_tokenizer():
    assert "has no weights" in refused("serve", FOLDER, "--device", "cpu", "--port", 0)
    told = {refused("serve", FOLDER, "--device", "null", "--port", 0), refused("run", FOLDER, "--device", "null", "hi"), refused("tokenize", FOLDER, "hi")}
    assert len(told) == 1, told
    said = told.pop()
    assert f"{FOLDER} has no tokenizer.json" in said and "--load-format dummy" in said


def test_a_real_load_without_a_tokenizer_is_refused(tmp_path):
    """With its weights there, on the CPU; with the tokenizer beside them the same folder answers."""
    whole = ROOT / "tests/golden/models/llama_plain-f16"
    cut = tmp_path / "cut"
    shutil.copytree(whole, cut, ignore=shutil.ignore_patterns("tokenizer.json"))
    for command in (["serve", cut, "--port", 0], ["run", cut, "hi"]):
        said = refused(*command, "--device", "cpu")
        assert f"{cut} has no tokenizer.json: the model's own belongs beside its config.json" in said, said
    done = subprocess.run([str(binary()), "tokenize", str(whole), "hi"], capture_output=True, timeout=600)
    assert done.returncode == 0, done


def test_a_tokenizer_that_is_there_is_used(tmp_path):
    """Also one that is broken: it is not passed over."""
    shutil.copy(FOLDER / "config.json", tmp_path)
    shutil.copy(ROOT / "tests/golden/models/llama_plain-f16/tokenizer.json", tmp_path)
    own = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(own) > END + 1 and own["he"] > END
    done = subprocess.run([str(binary()), "tokenize", str(tmp_path), "--load-format", "dummy", "hello"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and f"     {own['he']}  he\n" in done.stdout, done
    (tmp_path / "tokenizer.json").write_text("{")
    assert "tokenizer.json" in refused("serve", tmp_path, "--load-format", "dummy", "--device", "cpu", "--port", 0)


def test_a_vocabulary_too_small_for_bytes_is_told(tmp_path):
    config = json.loads((FOLDER / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 256, "num_hidden_layers": 1}))
    assert "257 tokens and the embedding 256 rows" in refused("serve", tmp_path, "--load-format", "dummy", "--device", "cpu", "--port", 0)
