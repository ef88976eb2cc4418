"""The `openai` package as the judge: chat, streaming, tools, schemas, on the default model."""

from __future__ import annotations

import json
from typing import Annotated, Any

import openai
import pydantic
import pytest

from corral.cli.default_model import find_default_model
from tests.model.raw import rounding

MESSAGES = [{"role": "user", "content": "Name three colours."}]
OPTIONS: dict[str, Any] = {
    "model": "any",
    "messages": MESSAGES,
    "max_tokens": 16,
    "temperature": 0.8,
    "seed": 7,
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 30},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
        },
    },
}
TIME: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture(scope="module")
def client(corral):
    with openai.OpenAI(base_url=f"{corral.url}/v1", api_key="none", max_retries=0) as client:
        yield client


class Address(pydantic.BaseModel):
    street: str = pydantic.Field(max_length=20)
    number: int = pydantic.Field(ge=1, le=999)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=120)
    likes: list[Annotated[str, pydantic.Field(max_length=12)]] = pydantic.Field(max_length=2)
    address: Address


def test_models(client, corral):
    (model,) = client.models.list().data
    assert model.id == client.models.retrieve(model.id).id
    assert model.meta["n_vocab"] == 49152
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_chat_and_stream_say_the_same(client):
    whole = client.chat.completions.create(**OPTIONS)
    (choice,) = whole.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert whole.model == "any"
    chunks = list(
        client.chat.completions.create(**OPTIONS, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == choice.message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0
    assert all(c.usage is None for c in chunks[:-1])
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == choice.finish_reason


def test_log_probabilities_of_every_token(client):
    choice = client.chat.completions.create(**OPTIONS, logprobs=True, top_logprobs=5).choices[0]
    tokens = choice.logprobs.content
    assert choice.message.content == "".join(t.token for t in tokens).removesuffix("<|im_end|>")
    assert all(len(t.top_logprobs) == 5 and t.logprob <= 0 for t in tokens)


def test_log_probabilities_of_a_text(client):
    options = {"model": "any", "prompt": "Once", "max_tokens": 8, "seed": 1, "temperature": 0}
    choice = client.completions.create(**options, logprobs=3).choices[0]
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text
    assert len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(logprobs.tokens) == 8
    assert all(len(top) == 3 for top in logprobs.top_logprobs)
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert choice.text.startswith(token, offset)
    chunks = client.completions.create(**options, logprobs=3, stream=True)
    parts = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    assert [offset for part in parts for offset in part.text_offset] == logprobs.text_offset


@pytest.fixture(scope="module")
def close():
    """How far log probabilities of the same text may be apart on this CPU."""
    tokens = [504, 3575, 282, 4649, 314, 7042]  # The capital of France is Paris
    return rounding(find_default_model(), tokens)


def test_the_loglikelihood_of_a_text(client, close):
    """What lm_eval's `local-completions` asks for, and how it reads the answer."""
    tokens = [504, 3575, 282, 4649, 314]  # The capital of France is
    ends = {" Paris": 7042, " banana": 21285}
    options = {"model": "any", "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}
    answer = client.completions.create(prompt=[[*tokens, end] for end in ends.values()], **options)
    sums = []
    for choice, end in zip(answer.choices, ends, strict=True):
        logprobs = choice.logprobs
        assert logprobs.tokens[:-1] == ["The", " capital", " of", " France", " is", end]
        assert logprobs.token_logprobs[0] is None
        assert logprobs.top_logprobs[0] is None
        assert choice.text.startswith(f"The capital of France is{end}")
        assert len(logprobs.tokens) == len(logprobs.text_offset) == 7
        sums.append(sum(logprobs.token_logprobs[5:-1]))
    assert sums[1] < sums[0] < 0
    assert answer.choices[0].logprobs.token_logprobs[5] == max(
        answer.choices[0].logprobs.top_logprobs[5].values()
    )
    text = client.completions.create(prompt="The capital of France is Paris", **{**options, "max_tokens": 0})
    assert text.choices[0].logprobs.tokens == answer.choices[0].logprobs.tokens[:-1]
    known = answer.choices[0].logprobs.token_logprobs[1:-1]
    assert text.choices[0].logprobs.token_logprobs[1:] == pytest.approx(known, abs=close)


def test_the_next_token_is_as_probable_as_in_the_prompt(client, close):
    options = {"model": "any", "logprobs": 1, "temperature": 0}
    drawn = client.completions.create(prompt="The capital of France is", max_tokens=1, **options).choices[0]
    told = client.completions.create(
        prompt=f"The capital of France is{drawn.text}", max_tokens=0, echo=True, **options
    )
    logprobs = told.choices[0].logprobs
    assert logprobs.tokens[-1] == drawn.text
    assert logprobs.token_logprobs[-1] == pytest.approx(drawn.logprobs.token_logprobs[0], abs=close)


def test_only_an_allowed_tool_is_called(client):
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}
    whole = client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": "What is the weather in Paris, in celsius?"}],
        tools=[WEATHER, TIME],
        tool_choice={"type": "allowed_tools", "allowed_tools": allowed},
        max_tokens=100,
        prompt_cache_key="weather",
    ).choices[0]
    (call,) = whole.message.tool_calls
    assert call.function.name == "get_time"


def test_the_best_of_several_answers(client):
    options = {"model": "any", "prompt": "The capital of France is", "max_tokens": 6, "seed": 1}
    drawn = client.completions.create(**options, n=4, logprobs=0).choices
    best = max(drawn, key=lambda c: sum(c.logprobs.token_logprobs) / len(c.logprobs.token_logprobs))
    answer = client.completions.create(**options, best_of=4)
    assert [choice.text for choice in answer.choices] == [best.text]
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**options, suffix=", of course.")
    assert caught.value.param == "suffix"


def test_three_answers_share_the_prompt(client):
    answer = client.chat.completions.create(**OPTIONS, n=3)
    assert [c.index for c in answer.choices] == [0, 1, 2]
    alone = client.chat.completions.create(**{**OPTIONS, "seed": 8})
    assert answer.choices[1].message.content == alone.choices[0].message.content
    chunks = list(client.chat.completions.create(**OPTIONS, n=3, stream=True))
    for choice in answer.choices:
        own = [c.choices[0].delta.content or "" for c in chunks if c.choices[0].index == choice.index]
        assert "".join(own) == choice.message.content


@pytest.mark.parametrize("seed", range(3))
def test_parse_gives_an_object_of_the_class(client, seed):
    answer = client.beta.chat.completions.parse(
        model="any",
        messages=[{"role": "user", "content": "Invent a person, as JSON."}],
        response_format=Person,
        temperature=1.2,
        max_tokens=400,
        seed=seed,
    )
    assert isinstance(answer.choices[0].message.parsed, Person)
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "json_object"},
        {"type": "json_object", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
        {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [{"a": 1}, {"b": []}]}}},
        {"type": "json_schema", "json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    ],
)
def test_answers_in_every_shape_of_response_format(client, response_format):
    stop = {"max_tokens": 200, "logit_bias": {}, "temperature": 0.3}
    answer = client.chat.completions.create(**{**OPTIONS, **stop}, response_format=response_format)
    choice = answer.choices[0]
    assert choice.finish_reason == "length" or isinstance(json.loads(choice.message.content), dict)


def call_of(chunks: list) -> tuple[str, str, str]:
    """(id, name, arguments) of the one call that was streamed."""
    deltas = [call for c in chunks if c.choices for call in c.choices[0].delta.tool_calls or ()]
    assert {call.index for call in deltas} == {0}
    assert all(call.id is None and call.function.name is None for call in deltas[1:])
    return deltas[0].id, deltas[0].function.name, "".join(call.function.arguments or "" for call in deltas)


def test_a_tool_loop_of_two_turns(client):
    messages = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]
    options = {"model": "any", "tools": [WEATHER, TIME], "max_tokens": 100, "seed": 3}
    answer = client.chat.completions.create(messages=messages, tool_choice="required", **options)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    if call.function.name == "get_weather":
        arguments = json.loads(call.function.arguments)
        assert arguments["unit"] in ("celsius", "fahrenheit")
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": '{"degrees": 21}'}]
    final = client.chat.completions.create(messages=messages, tool_choice="none", **options)
    assert final.choices[0].message.content
    assert final.choices[0].message.tool_calls is None


def test_a_named_function_is_called_with_arguments_of_its_schema(client):
    options: dict[str, Any] = {
        "model": "any",
        "messages": MESSAGES,
        "tools": [WEATHER, TIME],
        "max_tokens": 100,
        "seed": 1,
    }
    choice = {"type": "function", "function": {"name": "get_weather"}}
    whole = client.chat.completions.create(**options, tool_choice=choice).choices[0]
    (call,) = whole.message.tool_calls
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city", "unit"}
    chunks = list(client.chat.completions.create(**options, tool_choice=choice, stream=True))
    id, name, arguments = call_of(chunks)
    assert id
    assert (name, arguments) == ("get_weather", call.function.arguments)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_an_answer_that_may_call_does_one_or_the_other(client):
    options: dict[str, Any] = {"model": "any", "messages": MESSAGES, "tools": [WEATHER], "max_tokens": 100}
    for seed in range(3):
        choice = client.chat.completions.create(**options, seed=seed).choices[0]
        if choice.finish_reason == "tool_calls":
            json.loads(choice.message.tool_calls[0].function.arguments)
        else:
            assert choice.message.content


def test_a_call_that_is_cut_off_comes_back_as_text_with_a_warning(client):
    options = {
        "model": "any",
        "messages": MESSAGES,
        "tools": [WEATHER],
        "tool_choice": "required",
        "max_tokens": 20,
    }
    answer = client.chat.completions.create(**options)
    choice = answer.choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls is None
    assert choice.message.content.startswith('{"tool_calls": [{"name": "get_weather"')
    assert "incomplete" in answer.warnings[0]
    chunks = list(client.chat.completions.create(**options, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks).startswith('{"tool_calls"')
    assert "incomplete" in chunks[-1].warnings[0]


def test_a_forbidden_token_does_not_come(client):
    free = client.chat.completions.create(**{**OPTIONS, "temperature": 0, "max_tokens": 1, "logprobs": True})
    first = free.choices[0].logprobs.content[0].model_extra["id"]
    bound = client.chat.completions.create(
        **{**OPTIONS, "temperature": 0, "max_tokens": 1, "logprobs": True}, logit_bias={str(first): -100}
    )
    assert bound.choices[0].logprobs.content[0].model_extra["id"] != first


def test_old_clients_name_functions(client):
    answer = client.chat.completions.create(
        model="any",
        messages=MESSAGES,
        functions=[WEATHER["function"]],
        function_call={"name": "get_weather"},
        max_tokens=100,
    )
    message = answer.choices[0].message
    assert message.function_call.name == "get_weather"
    assert message.function_call.arguments == message.tool_calls[0].function.arguments


def test_a_stream_helper_of_the_package_accumulates(client):
    options: dict[str, Any] = {
        "model": "any",
        "messages": MESSAGES,
        "extra_body": {"grammar": 'root ::= "yes" | "no"'},
    }
    with client.beta.chat.completions.stream(**options) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content in ("yes", "no")


def test_errors_are_openais(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="any", messages=MESSAGES * 2000)
    assert caught.value.code == "context_length_exceeded"
    body: Any = caught.value.body
    assert body["n_prompt_tokens"] > body["n_ctx"]
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**OPTIONS, response_format=bad)
    assert caught.value.param == "response_format"
    assert "not" in caught.value.message


def test_a_slot_keeps_its_conversation(client, corral):
    """Several turns on a pinned slot evaluate only what is new."""
    messages = [{"role": "user", "content": "Tell me about ships. " * 10}]
    for turn in range(3):
        options = {"model": "any", "messages": messages, "max_tokens": 8, "extra_body": {"id_slot": 2}}
        answer = client.chat.completions.create(**options)
        if turn:
            assert answer.timings["cache_n"] > answer.timings["prompt_n"]
        messages += [answer.choices[0].message, {"role": "user", "content": "Go on."}]
    assert corral.get("/slots").json()[2]["n_prompt_tokens"] > 0
