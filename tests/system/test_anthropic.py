"""The `anthropic` package as the judge: messages, streaming, tools, schemas, on the default model."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import pytest

MESSAGES = [{"role": "user", "content": "Name three colours."}]
OPTIONS: dict[str, Any] = {
    "model": "any",
    "messages": MESSAGES,
    "max_tokens": 16,
    "extra_body": {"temperature": 0.8, "seed": 7},
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {"name": "get_weather", "description": "The weather.", "input_schema": SCHEMA}
TIME: dict[str, Any] = {"name": "get_time", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def client(corral):
    with anthropic.Anthropic(base_url=corral.url, api_key="none", max_retries=0) as client:
        yield client


def test_models(client):
    (model,) = client.models.list().data
    assert model.id == client.models.retrieve(model.id).id
    assert model.max_input_tokens == 1024
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("another")


def test_message_and_stream_say_the_same(client):
    whole = client.messages.create(**OPTIONS)
    (block,) = whole.content
    assert block.text
    assert whole.stop_reason in ("end_turn", "max_tokens")
    with client.messages.stream(**OPTIONS) as stream:
        assert "".join(stream.text_stream) == block.text
        streamed = stream.get_final_message()
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    n_prompt = whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    assert streamed.usage.cache_read_input_tokens > 0
    assert streamed.usage.input_tokens + streamed.usage.cache_read_input_tokens == n_prompt
    assert client.messages.count_tokens(model="any", messages=MESSAGES).input_tokens == n_prompt


def test_a_stop_sequence_is_reported(client):
    said = client.messages.create(**OPTIONS).content[0].text
    word = said[3:6]
    answer = client.messages.create(**OPTIONS, stop_sequences=[word])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", word)
    assert answer.content[0].text == said[: said.index(word)]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_tools_are_called_with_what_their_schema_says(client, choice):
    options = {**OPTIONS, "max_tokens": 200, "tools": [WEATHER, TIME], "tool_choice": choice}
    answer = client.messages.create(**options)
    calls = [block for block in answer.content if block.type == "tool_use"]
    assert calls
    assert answer.stop_reason in ("tool_use", "max_tokens")
    if choice["type"] == "tool":
        (call,) = calls
        assert call.name == "get_weather"
        assert call.input["unit"] in ("celsius", "fahrenheit")
    with client.messages.stream(**options) as stream:
        streamed = stream.get_final_message()
    assert [(c.name, c.input) for c in streamed.content] == [(c.name, c.input) for c in answer.content]


def test_a_result_goes_back(client):
    choice = {"type": "tool", "name": "get_weather"}
    options = {**OPTIONS, "max_tokens": 200, "tools": [WEATHER]}
    answer = client.messages.create(**options, tool_choice=choice)
    result = {"type": "tool_result", "tool_use_id": answer.content[-1].id, "content": "sunny"}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result]},
    ]
    last = client.messages.create(**{**options, "messages": messages, "max_tokens": 8})
    assert last.usage.cache_read_input_tokens > 0


def test_answers_follow_a_schema(client):
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    answer = client.messages.create(**{**OPTIONS, "max_tokens": 200}, output_config=config)
    assert json.loads(answer.content[0].text).keys() == {"city", "unit"}


def test_errors_are_those_that_the_package_knows(client):
    with pytest.raises(anthropic.BadRequestError) as error:
        client.messages.create(**{**OPTIONS, "messages": [{"role": "user", "content": "a b " * 4000}]})
    assert "prompt is too long" in str(error.value)
    assert error.value.request_id
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**{**OPTIONS, "max_tokens": -3})


def test_the_same_answer_as_from_a_chat(client, corral):
    body = {"messages": MESSAGES, "max_tokens": 16, "temperature": 0.8, "seed": 7}
    chat = httpx.post(f"{corral.url}/v1/chat/completions", json=body, timeout=None).json()
    answer = client.messages.create(**OPTIONS)
    assert answer.content[0].text == chat["choices"][0]["message"]["content"]
