"""The client of OpenAI gets the same tokens as `m.generate`, whole or in streams."""

import asyncio
import json
from base64 import b64decode
from typing import Any

import numpy as np
import openai
import pytest

PROMPT = "the quick brown fox"
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def client(running: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("name", ["text", "pairs"])
@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 24, "temperature": 0.0},
        {"max_tokens": 40, "temperature": 0.9, "top_p": 0.8, "seed": 7},
        {"max_tokens": 40, "temperature": 0.0, "stop": ["o", "22"]},
    ],
)
def test_a_completion_is_what_generate_returns(
    client: openai.OpenAI, running: Any, name: str, options: dict[str, Any]
) -> None:
    expected = running.models[name].generate(PROMPT, **options)
    answer = client.completions.create(model=name, prompt=PROMPT, **options)
    (choice,) = answer.choices
    assert choice.text == expected.text
    assert choice.finish_reason == ("length" if expected.finish_reason == "length" else "stop")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(expected.ids)
    chunks = list(client.completions.create(model=name, prompt=PROMPT, stream=True, **options))
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected.text
    assert chunks[-1].choices[0].finish_reason == choice.finish_reason


def test_several_prompts_with_several_choices(client: openai.OpenAI, running: Any) -> None:
    prompts = [PROMPT, "a dog", "in Paris"]
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0, "seed": 3}
    answer = client.completions.create(model="text", prompt=prompts, n=2, **options)
    model = running.models["text"]
    expected = [model.generate(one, **{**options, "seed": 3 + i}).text for one in prompts for i in range(2)]
    assert [choice.text for choice in sorted(answer.choices, key=lambda one: one.index)] == expected
    texts = [""] * 6
    for chunk in client.completions.create(model="text", prompt=prompts, n=2, stream=True, **options):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == expected
    ids = [model.tokenizer.encode(one, add_special_tokens=False) for one in prompts]
    again = client.completions.create(model="text", prompt=ids, n=2, **options)
    assert [choice.text for choice in again.choices] == expected


def test_log_probabilities_and_echo(client: openai.OpenAI, running: Any) -> None:
    model = running.models["text"]
    expected = model.generate(PROMPT, max_tokens=8, logprobs=3)
    options: dict[str, Any] = {"model": "text", "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "logprobs": 3}
    found = client.completions.create(**options).choices[0].logprobs
    assert found is not None
    assert found.token_logprobs == pytest.approx([one.logprob for one in expected.logprobs], abs=1e-5)
    assert found.tokens is not None
    assert "".join(found.tokens) == expected.text
    streamed = [one.choices[0].logprobs for one in client.completions.create(**options, stream=True)]
    assert [token for one in streamed if one for token in one.tokens or ()] == found.tokens
    echoed = client.completions.create(**{**options, "max_tokens": 0}, echo=True).choices[0]
    assert echoed.text == PROMPT
    assert echoed.logprobs is not None
    assert echoed.logprobs.token_logprobs is not None
    ids = model.tokenizer.encode(PROMPT, add_special_tokens=False)
    scores = model.score([ids[:1]], [ids[1:]])[0]
    assert echoed.logprobs.token_logprobs[0] is None
    assert echoed.logprobs.token_logprobs[1:] == pytest.approx([one.logprob for one in scores], abs=1e-5)


def test_a_chat_is_what_chat_returns(client: openai.OpenAI, running: Any) -> None:
    expected = running.models["chat"].chat("hello", max_tokens=20, temperature=0.7, seed=5)
    options: dict[str, Any] = {"max_tokens": 20, "temperature": 0.7, "seed": 5}
    answer = client.chat.completions.create(model="chat", messages=HELLO, logprobs=True, top_logprobs=2, **options)
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.content or ()) == len(expected.ids)
    stream = client.chat.completions.create(
        model="chat", messages=HELLO, stream=True, stream_options={"include_usage": True}, **options
    )
    chunks = list(stream)
    assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == expected.text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(expected.ids)


def test_fields_that_cannot_change_an_answer_are_accepted(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "chat", "messages": HELLO, "temperature": 0, "max_tokens": 12}
    plain = client.chat.completions.create(**options)
    harmless: dict[str, Any] = {"store": False, "metadata": {"a": "b"}, "service_tier": "auto", "user": "me"}
    harmless |= {"modalities": ["text"], "reasoning_effort": "low", "verbosity": "low", "prompt_cache_key": "k"}
    harmless |= {"parallel_tool_calls": True, "tools": [], "tool_choice": "none", "safety_identifier": "x"}
    harmless["prediction"] = {"type": "content", "content": "hello"}
    answer = client.chat.completions.create(**options, **harmless)
    assert answer.choices[0].message == plain.choices[0].message
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    with pytest.raises(openai.BadRequestError, match="has no tools"):
        client.chat.completions.create(**options, tools=[tool])


CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
        "additionalProperties": False}  # fmt: skip
WEATHER: Any = {"type": "function", "function": {"name": "weather", "description": "In a city.", "parameters": CITY}}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_model_calls_a_tool_and_reads_its_result(client: openai.OpenAI, choice: Any) -> None:
    options: dict[str, Any] = {"model": "tools", "tools": [WEATHER], "seed": 1, "max_tokens": 200}
    answer = client.chat.completions.create(messages=HELLO, tool_choice=choice, **options).choices[0]
    assert answer.finish_reason == "tool_calls"
    assert answer.message.content is None
    (call,) = answer.message.tool_calls or ()
    assert call.type == "function"
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    chunks = list(client.chat.completions.create(messages=HELLO, tool_choice=choice, stream=True, **options))
    assert not any(one.choices[0].delta.content for one in chunks)
    (streamed,) = [call for one in chunks for call in one.choices[0].delta.tool_calls or ()]
    assert streamed.function is not None
    assert (streamed.function.name, streamed.function.arguments) == (call.function.name, call.function.arguments)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    later: Any = [*HELLO, answer.message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    told = client.chat.completions.create(messages=later, tool_choice="none", **{**options, "max_tokens": 5})
    assert told.choices[0].message.content


def test_a_response_is_what_the_chat_returns(client: openai.OpenAI, running: Any) -> None:
    expected = running.models["chat"].chat("hello", system="Be kind.", max_tokens=20, temperature=0.7, seed=5)
    options: dict[str, Any] = {"model": "chat", "instructions": "Be kind.", "max_output_tokens": 20}
    options |= {"temperature": 0.7, "extra_body": {"seed": 5}}
    answer = client.responses.create(input="hello", **options)
    assert answer.output_text == expected.text
    assert answer.usage is not None
    assert answer.usage.output_tokens == len(expected.ids)
    is_whole = expected.finish_reason != "length"
    assert answer.status == ("completed" if is_whole else "incomplete")
    assert (answer.incomplete_details is None) == is_whole
    parts: Any = [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]
    assert client.responses.create(input=parts, **options).output_text == expected.text
    events = list(client.responses.create(input="hello", stream=True, **options))
    assert "".join(one.delta for one in events if one.type == "response.output_text.delta") == expected.text
    assert [one.sequence_number for one in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", f"response.{answer.status}")
    last: Any = events[-1]
    assert last.response.output_text == expected.text
    with client.responses.stream(model="chat", input="hello", max_output_tokens=5) as stream:  # the client's own checks
        assert [one.type for one in stream][-1] == "response.incomplete"


def test_a_response_calls_a_tool_and_follows_a_schema(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "name": "weather", "description": "In a city.", "parameters": CITY, "strict": True}
    options: dict[str, Any] = {"model": "tools", "tools": [tool], "extra_body": {"seed": 1}, "max_output_tokens": 200}
    for choice in ("required", {"type": "function", "name": "weather"}):
        (call,) = client.responses.create(input="hello", tool_choice=choice, **options).output
        assert call.type == "function_call"
        assert json.loads(call.arguments)["city"] in ("Rome", "Oslo")
        events = list(client.responses.create(input="hello", tool_choice=choice, stream=True, **options))
        (done,) = [one for one in events if one.type == "response.function_call_arguments.done"]
        assert done.arguments == call.arguments
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    history: Any = [{"role": "user", "content": "hello"}, call, result]
    assert client.responses.create(input=history, tool_choice="none", **{**options, "max_output_tokens": 5}).output_text
    form: Any = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}
    found = client.responses.create(model="chat", input="hello", text=form, max_output_tokens=200)
    assert json.loads(found.output_text)["n"] in range(10)
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(model="chat", input="hello", previous_response_id="resp_1")


def test_a_model_without_a_template_can_chat_plainly(client: openai.OpenAI, running: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        client.chat.completions.create(model="text", messages=HELLO)
    expected = running.models["text"].chat("hello", template="plain", max_tokens=20)
    plain: dict[str, Any] = {"max_tokens": 20, "temperature": 0, "extra_body": {"template": "plain"}}
    answer = client.chat.completions.create(model="text", messages=HELLO, **plain)
    assert answer.choices[0].message.content == expected.text
    chunks = client.chat.completions.create(model="text", messages=HELLO, stream=True, **plain)
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == expected.text


def test_an_answer_follows_its_schema_or_pattern(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    for seed in range(3):
        answer = client.chat.completions.create(
            model="chat", messages=HELLO, response_format=form, max_tokens=200, seed=seed
        )
        assert json.loads(answer.choices[0].message.content or "")["n"] in range(10)
    found = client.chat.completions.create(model="chat", messages=HELLO, extra_body={"regex": "(yes|no)"}, seed=1)
    assert found.choices[0].message.content in ("yes", "no")


def test_penalties_and_biases_change_the_tokens(client: openai.OpenAI, running: Any) -> None:
    model = running.models["text"]
    options: dict[str, Any] = {"model": "text", "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
    plain = client.completions.create(**options).choices[0].text
    assert max(map(plain.count, plain)) > 3
    varied = client.completions.create(**options, presence_penalty=2, frequency_penalty=2).choices[0].text
    assert max(map(varied.count, varied)) < max(map(plain.count, plain))
    (token,) = model.tokenizer.encode("z", add_special_tokens=False)[:1]
    biased = client.completions.create(**options, logit_bias={str(token): 100}).choices[0].text
    assert set(biased) == {"z"}


def test_embeddings_as_numbers_and_as_base64(client: openai.OpenAI, running: Any) -> None:
    expected = running.models["classes"].embed(["a fox", "the dog"], pooling="mean").numpy()
    for form in ("float", "base64"):
        answer = client.embeddings.create(
            model="classes", input=["a fox", "the dog"], encoding_format=form, extra_body={"pooling": "mean"}
        )
        vectors = [one.embedding for one in answer.data]
        if form == "base64":
            vectors = [np.frombuffer(b64decode(str(one)), "<f4").tolist() for one in vectors]
        assert np.allclose(vectors, expected, atol=1e-6)
    short = client.embeddings.create(model="classes", input="a fox", dimensions=4, extra_body={"pooling": "mean"})
    first = expected[0][:4] / np.linalg.norm(expected[0][:4])
    assert np.allclose(short.data[0].embedding, first, atol=1e-6)
    with pytest.raises(openai.BadRequestError, match="dimensions = 9,999: the vectors of this model have"):
        client.embeddings.create(model="classes", input="a fox", dimensions=9999, extra_body={"pooling": "mean"})


def test_errors_are_those_of_the_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no model 'txet'; did you mean 'text'"):
        client.completions.create(model="txet", prompt="a")
    with pytest.raises(openai.BadRequestError, match="max_tokens = 5,000: this server generates at most"):
        client.completions.create(model="text", prompt="a", max_tokens=5000)
    with pytest.raises(openai.BadRequestError, match="cannot generate text"):
        client.completions.create(model="classes", prompt="a")
    with pytest.raises(openai.BadRequestError, match=r"temperature = 3 must be at most 2"):
        client.completions.create(model="text", prompt="a", temperature=3)
    with pytest.raises(openai.BadRequestError, match="max_choices"):
        client.completions.create(model="text", prompt=["a"] * 60, n=3)


def test_a_text_that_does_not_fit_has_the_code_of_openai(client: openai.OpenAI) -> None:
    long, messages = "a" * 3000, [{"role": "user", "content": "a" * 200}] * 2
    with pytest.raises(openai.BadRequestError) as of_prompt:
        client.completions.create(model="text", prompt=long)
    with pytest.raises(openai.BadRequestError) as of_last_message:
        client.chat.completions.create(model="chat", messages=[{"role": "user", "content": long}])
    with pytest.raises(openai.BadRequestError) as of_messages:
        client.chat.completions.create(model="chat", messages=messages)  # type: ignore[arg-type]
    assert {error.value.code for error in (of_prompt, of_last_message, of_messages)} == {"context_length_exceeded"}


def test_asynchronous_clients_run_together(running: Any) -> None:
    model = running.models["text"]
    prompts = ["the fox " + "a" * i for i in range(12)]
    expected = [model.generate(one, max_tokens=10 + i).text for i, one in enumerate(prompts)]

    async def ask(client: openai.AsyncOpenAI, i: int) -> str:
        options: dict[str, Any] = {"model": "text", "prompt": prompts[i], "max_tokens": 10 + i, "temperature": 0}
        if i % 2:
            return (await client.completions.create(**options)).choices[0].text
        stream = await client.completions.create(**options, stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as client:
            return await asyncio.gather(*(ask(client, i) for i in range(len(prompts))))

    assert asyncio.run(ask_all()) == expected
