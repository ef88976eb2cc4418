"""A schema that no answer can meet: every API says so to its own client, whole and streamed."""

from __future__ import annotations

from typing import Any

import anthropic
import ollama
import openai
import pytest

from tests.system.process import CorralProcess

ITEM = {"type": "string", "pattern": "^[ab]$"}
UNMET: dict[str, Any] = {"type": "array", "items": ITEM, "minItems": 3, "maxItems": 3, "uniqueItems": True}
PLACE = {"keyword": "uniqueItems", "pointer": "#/uniqueItems"}
MESSAGES: Any = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def server(tiny):
    with CorralProcess("-m", tiny, "-c", 1024, "-t", 1, "--schema-retries", 3, "-n", 100) as server:
        yield server


def check(place: Any) -> None:
    assert {**place, **PLACE} == place


def test_anthropic(server):
    options: Any = {
        "model": "any",
        "max_tokens": 100,
        "messages": MESSAGES,
        "output_config": {"format": {"type": "json_schema", "schema": UNMET}},
    }
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        whole = client.messages.create(**options)
        assert whole.stop_reason == "max_tokens"
        check(whole.to_dict()["schema_violation"])
        with client.messages.stream(**options) as stream:
            (end,) = [event for event in stream if event.type == "message_delta"]
        assert end.delta.stop_reason == "max_tokens"
        check(end.to_dict()["schema_violation"])


def test_openai_responses(server):
    text: Any = {"format": {"type": "json_schema", "name": "x", "schema": UNMET}}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        whole = client.responses.create(model="any", input="x", text=text)
        with client.responses.stream(model="any", input="x", text=text) as stream:
            (last,) = [event for event in stream if event.type == "response.incomplete"]
        for response in (whole, last.response, client.responses.retrieve(whole.id)):
            assert response.status == "incomplete"
            assert response.incomplete_details is not None
            check(response.to_dict()["schema_violation"])


def test_openai_chat(server):
    response_format: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": UNMET}}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        made = client.chat.completions.create(model="any", messages=MESSAGES, response_format=response_format)
    assert made.choices[0].finish_reason == "length"
    check(made.choices[0].to_dict()["schema_violation"])


def test_ollama(server):
    """Its client drops fields that it does not know."""
    with ollama.Client(server.url) as client:
        whole = client.chat("any", MESSAGES, format=UNMET)
        *_, last = client.generate("any", "x", format=UNMET, stream=True)
    assert (whole.done_reason, last.done_reason) == ("length", "length")
    body = {"model": "any", "format": UNMET, "stream": False}
    check(server.post("/api/chat", messages=MESSAGES, **body).json()["schema_violation"])
    check(server.post("/api/generate", prompt="x", **body).json()["schema_violation"])
