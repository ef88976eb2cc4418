"""The `ollama` package as the judge: chats, prompts, tools, schemas, vectors, on the default model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import ollama
import pytest

from tests.system.process import CorralProcess
from tests.tools.wait import wait_until

MESSAGES = [{"role": "user", "content": "Name three colours."}]
OPTIONS: dict[str, Any] = {"num_predict": 12, "seed": 7, "temperature": 0.8}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
    "required": ["unit"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(corral):
    with ollama.Client(corral.url) as client:
        yield client


def test_models(client):
    (model,) = client.list().models
    (running,) = client.ps().models
    assert model.model == running.model
    assert running.context_length == 1024
    assert "completion" in client.show(model.model).capabilities
    assert client.pull(model.model).status == "success"
    assert [part.status for part in client.pull(model.model, stream=True)] == ["success"]
    assert client.show("another").capabilities == client.show(model.model).capabilities, "as in a chat"


def test_chat_and_stream_say_the_same(client):
    whole = client.chat("any", MESSAGES, options=OPTIONS)
    parts = list(client.chat("any", MESSAGES, options=OPTIONS, stream=True))
    assert whole.message.content
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == whole.eval_count
    assert whole.eval_duration > 0
    prompt = client.generate("any", MESSAGES[0]["content"], options=OPTIONS)
    assert prompt.response == whole.message.content


def test_answers_follow_a_schema(client):
    answer = client.chat("any", MESSAGES, format=SCHEMA, options={**OPTIONS, "num_predict": 60})
    assert json.loads(answer.message.content)["unit"] in ("celsius", "fahrenheit")


def test_a_tool_and_its_result(client):
    def get_weather(city: str) -> str:
        """Get the weather of a city.

        Args:
            city: its name
        """
        return city

    answer = client.chat("any", MESSAGES, tools=[get_weather], options=OPTIONS)
    call = {"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": answer.message.content, "tool_calls": [call]},
        {"role": "tool", "tool_name": "get_weather", "content": "sunny"},
    ]
    assert client.chat("any", messages, tools=[get_weather], options=OPTIONS).done


def test_vectors(client):
    answer = client.embed("any", ["hello", "world"])
    assert len(answer.embeddings) == 2
    assert client.embeddings("any", "hello").embedding == pytest.approx(answer.embeddings[0], abs=1e-5)


def test_errors(client):
    with pytest.raises(ollama.ResponseError) as error:
        client.chat("any", MESSAGES, options={"temperature": "hot"})
    assert error.value.status_code == 400
    assert "options.temperature" in error.value.error


def test_a_model_is_unloaded_and_loaded_again(tiny):
    with CorralProcess("-m", tiny, "-c", 1024, "-np", 1) as server, ollama.Client(server.url) as client:
        (model,) = client.list().models
        assert model.digest == hashlib.sha256(Path(tiny).read_bytes()).hexdigest()
        (running,) = client.ps().models
        assert running.expires_at.year == 9999
        first = client.generate("any", "Hello", options=OPTIONS, keep_alive=0)
        wait_until(lambda: not client.ps().models and not server.engines)
        again = client.generate("any", "Hello", options=OPTIONS, keep_alive="10m")
        assert again.response == first.response
        (running,) = client.ps().models
        assert running.expires_at.year < 9999
        assert client.generate("any", "", keep_alive=0).done_reason == "unload"
        wait_until(lambda: not client.ps().models)
        assert client.generate("any", "").done_reason == "load"
        assert len(client.ps().models) == 1
