"""The official Python client against the daemon, end to end."""
import httpx
import openai
import pytest

pytestmark = pytest.mark.sanitizer


@pytest.fixture(scope="module")
def client(daemon):
    with openai.OpenAI(base_url=daemon.url + "/v1", api_key="none", max_retries=0, timeout=600) as c:
        yield c


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}]


def test_chat(client):
    answer = client.chat.completions.create(model="smollm2", messages=MESSAGES, max_tokens=6, seed=3)
    assert answer.choices[0].message.role == "assistant" and answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length") and answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_stream_equals_whole(client):
    args = dict(model="smollm2", messages=MESSAGES, max_tokens=12, seed=3)
    whole = client.chat.completions.create(**args)
    text, usage = "", None
    for chunk in client.chat.completions.create(**args, stream=True, stream_options={"include_usage": True}):
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)


def test_completions(client):
    whole = client.completions.create(model="smollm2", prompt=["a", "b"], max_tokens=5, n=2, seed=1)
    assert [c.index for c in whole.choices] == [0, 1, 2, 3]
    texts = {}
    for chunk in client.completions.create(model="smollm2", prompt=["a", "b"], max_tokens=5, n=2, seed=1, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert texts == {c.index: c.text for c in whole.choices}


def test_models(client):
    assert client.models.list().data[0].id == "smollm2"
    assert client.models.retrieve("alias/smollm2").id == "alias/smollm2"


def test_errors_are_the_clients_own(client):
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="none", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="smollm2", messages=MESSAGES, max_tokens=10 ** 6)
    assert caught.value.code == "context_length_exceeded" and caught.value.param == "max_tokens"


def test_a_wrong_key(start):
    daemon = start(step_us=0, keys=["sk-right"])
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=daemon.url + "/v1", api_key="sk-wrong", max_retries=0, timeout=600).models.list()
    assert openai.OpenAI(base_url=daemon.url + "/v1", api_key="sk-right", timeout=600).models.list().data


def test_leaving_a_stream_early(start):
    daemon = start(step_us=20000)  # 30 s until its own end
    client = openai.OpenAI(base_url=daemon.url + "/v1", api_key="none", max_retries=0, timeout=600)
    before = daemon.metrics()["inferd_requests_aborted_total"]
    with client.chat.completions.create(model="smollm2", messages=MESSAGES, max_tokens=1500, stream=True, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    assert daemon.wait_idle()["inferd_requests_aborted_total"] == before + 1
    client.close()


def test_async_client_many_at_once(daemon):
    import asyncio

    async def run():
        async with openai.AsyncOpenAI(base_url=daemon.url + "/v1", api_key="none", max_retries=0, timeout=600,
                                      http_client=httpx.AsyncClient(limits=httpx.Limits(max_connections=64))) as c:
            async def one(k):
                stream = await c.chat.completions.create(model="smollm2", messages=MESSAGES, max_tokens=10, seed=k % 4, stream=True)
                return k % 4, "".join([x.choices[0].delta.content or "" async for x in stream])
            return await asyncio.gather(*[one(k) for k in range(48)])

    texts = {}
    for k, text in asyncio.run(run()):
        texts.setdefault(k, set()).add(text)
    assert all(len(t) == 1 for t in texts.values())
