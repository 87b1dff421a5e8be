"""LangChain and LiteLLM as their users call them: python chat.py URL. Prints what came; fails where it is not what a server should say.

The model is SmolLM2-135M-Instruct at temperature 0, whose answer to the question is the same each time."""
import asyncio
import os
import sys

os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", OPENAI_API_KEY="none")
import litellm  # noqa: E402
from langchain_openai import ChatOpenAI, OpenAI  # noqa: E402

litellm.suppress_debug_info = True
URL = sys.argv[1] + "/v1"
SYSTEM, QUESTION = "Be brief.", "What is the capital of France?"
MESSAGES = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]


def langchain_chat():
    llm = ChatOpenAI(model="smollm2", base_url=URL, api_key="none", temperature=0, max_tokens=24, max_retries=0, stream_usage=True)
    asked = [("system", SYSTEM), ("human", QUESTION)]
    whole = llm.invoke(asked)
    assert "Paris" in whole.content and whole.response_metadata["finish_reason"] == "stop", whole
    assert whole.usage_metadata["input_tokens"] > 10 and whole.usage_metadata["output_tokens"] == 8, whole.usage_metadata
    chunks = list(llm.stream(asked))
    streamed = chunks[0]
    for chunk in chunks[1:]:
        streamed += chunk
    assert streamed.content == whole.content and len(chunks) > 1
    assert streamed.usage_metadata["total_tokens"] == whole.usage_metadata["total_tokens"], streamed.usage_metadata

    async def text(): # a slow reader gets several tokens a chunk
        return "".join([c.content async for c in llm.astream(asked)])
    assert asyncio.run(text()) == whole.content
    assert all(a.content for a in llm.batch(["Say one word.", "Say two words."]))
    print("LangChain chat:", whole.content, whole.usage_metadata)


def langchain_completion():
    llm = OpenAI(model="smollm2", base_url=URL, api_key="none", temperature=0, max_tokens=8)
    whole = llm.invoke("Once upon a time")
    assert whole and "".join(llm.stream("Once upon a time")) == whole
    print("LangChain completion:", whole)


def litellm_chat(model):
    asked = dict(model=model, api_base=URL, api_key="none", messages=MESSAGES, temperature=0, max_tokens=24, num_retries=0)
    whole = litellm.completion(**asked)
    assert "Paris" in whole.choices[0].message.content and whole.choices[0].finish_reason == "stop", whole
    text, usage = "", None
    for chunk in litellm.completion(**asked, stream=True, stream_options={"include_usage": True}):
        text += (chunk.choices and chunk.choices[0].delta.content) or ""
        usage = getattr(chunk, "usage", None) or usage
    assert text == whole.choices[0].message.content and usage.total_tokens == whole.usage.total_tokens, (text, usage)
    print(f"LiteLLM {model}:", text, f"{usage.prompt_tokens}+{usage.completion_tokens} tokens")


def litellm_completion():
    answer = litellm.text_completion(model="text-completion-openai/smollm2", api_base=URL, api_key="none", prompt="Once upon a time", max_tokens=8,
                                     temperature=0)
    assert answer.choices[0].text
    print("LiteLLM completion:", answer.choices[0].text)


def litellm_errors():
    """Its own exception classes, chosen by our statuses and codes."""
    for fields, wanted in ((dict(messages=[{"role": "user", "content": "x " * 9000}]), litellm.ContextWindowExceededError),
                           (dict(messages=MESSAGES, temperature=9), litellm.BadRequestError)):
        try:
            litellm.completion(model="openai/smollm2", api_base=URL, api_key="none", max_tokens=4, num_retries=0, **fields)
        except wanted as error:
            print("LiteLLM error:", type(error).__name__)
        else:
            raise AssertionError(f"no {wanted.__name__}")


langchain_chat()
langchain_completion()
litellm_chat("openai/smollm2")
litellm_chat("hosted_vllm/smollm2")
litellm_completion()
litellm_errors()
