"""Answers that are checked against their schema, over HTTP: a model with second thoughts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from corral.core.draw import Redraw
from tests.contract.inline import post
from tests.contract.scripted import ScriptedSampler, ScriptedServer

UNIQUE: dict[str, Any] = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
TAGS: dict[str, Any] = {"type": "object", "properties": {"tags": UNIQUE}, "required": ["tags"]}
TOOL = {"type": "function", "function": {"name": "tag", "parameters": TAGS}}
HEAD = '<tool_call>\n{"name": "tag", "arguments": '
TAIL = "}\n</tool_call>"


class SecondThoughts(ScriptedSampler):
    """Goes on with another text when a character is taken back."""

    def __init__(self, params: Any, first: str, second: str) -> None:
        super().__init__(params, "", 0)
        self._texts = [first, second]
        self._at = 0

    def sample(self, logits: np.ndarray, index: int, redraw: Redraw | None = None) -> tuple[int, None]:
        text = self._texts[1 if redraw is not None or self._at else 0]
        self._at = self._at or (index if redraw is not None else 0)
        return (1 + ord(text[index]) if index < len(text) else 0), None

    def rewind(self, n: int) -> bool:
        return True


@pytest.fixture
def server():
    return ScriptedServer()


def think(server: ScriptedServer, first: str, second: str) -> None:
    server.scripted.open_sampler = lambda params, *_: SecondThoughts(params, first, second)


async def chat(server: ScriptedServer, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "x"}], **fields}
    return await post(server, "/v1/chat/completions", json=body)


async def stream(server: ScriptedServer, **fields: Any) -> list[dict[str, Any]]:
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True, **fields}
    response = await server.http.post("/v1/chat/completions", json=body)
    *lines, _, _ = response.text.split("\n\n")
    return [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]


async def test_what_is_repeated_is_written_otherwise(server):
    think(server, '["a", "a"]', '["a", "ab"]')
    answer = await server.complete(prompt="x", json_schema=UNIQUE)
    assert answer["content"] == '["a", "ab"]'
    assert answer["stop_type"] == "eos"
    assert answer["timings"]["redrawn_n"] == 1


@pytest.mark.parametrize("n", [1, 2])
async def test_a_required_call_is_checked(server, n):
    think(server, f'{HEAD}{{"tags": ["a", "a"]}}{TAIL}', f'{HEAD}{{"tags": ["a", "ab"]}}{TAIL}')
    answer = await chat(server, tools=[TOOL], tool_choice="required", n=n)
    assert len(answer["choices"]) == n
    for choice in answer["choices"]:
        (call,) = choice["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"tags": ["a", "ab"]}
        assert choice["finish_reason"] == "tool_calls"


async def test_a_stream_never_takes_anything_back(server):
    think(server, '["a", "a"]', '["a", "ab"]')
    response_format = {"type": "json_schema", "json_schema": {"schema": UNIQUE}}
    events = await stream(server, response_format=response_format)
    texts = [event["delta"].get("content") or "" for event in events]
    assert "".join(texts) == '["a", "ab"]'
    assert len([text for text in texts if text]) > 3  # it does not wait for the end
    assert events[-1]["finish_reason"] == "stop"


async def test_a_schema_that_is_not_met_says_so(server):
    think(server, '["a", "a"]', '["a", "a"]')
    response_format = {"type": "json_schema", "json_schema": {"schema": UNIQUE}}
    (choice,) = (await chat(server, response_format=response_format))["choices"]
    place = {"keyword": "uniqueItems", "pointer": "#/uniqueItems", "instance": "/1"}
    assert choice["finish_reason"] == "length"
    assert choice["schema_violation"] == place
    assert (await stream(server, response_format=response_format))[-1]["schema_violation"] == place
    native = await server.complete(prompt="x", json_schema=UNIQUE)
    assert native["stop_type"] == "schema"
    assert native["schema_violation"] == place


async def test_props_tell_what_is_checked(server):
    response = await server.http.get("/props?json_schema")
    unique = response.json()["json_schema"]["keywords"]["uniqueItems"]
    assert unique["support"] == "checked"
    assert "--schema-retries" in unique["cost"]


QWEN3_CODER = "<tool_call>\n<function=tag>\n<parameter=tags>\n@\n</parameter>\n</function>\n</tool_call>"
SEED_OSS = "<seed:tool_call>\n<function=tag>\n<parameter=tags>@</parameter>\n</function>\n</seed:tool_call>"
GLM = "<tool_call>tag\n<arg_key>tags</arg_key>\n<arg_value>@</arg_value>\n</tool_call>"
MINIMAX = (
    '<minimax:tool_call>\n<invoke name="tag">\n<parameter name="tags">@</parameter>\n</invoke>\n'
    "</minimax:tool_call>"
)
LFM2 = "<|tool_call_start|>[tag(tags=@)]<|tool_call_end|>"


@pytest.mark.parametrize(
    ("template", "call"),
    [
        ("qwen3-coder", QWEN3_CODER),
        ("seed-oss", SEED_OSS),
        ("glm-4.6", GLM),
        ("minimax-m2", MINIMAX),
        ("lfm2", LFM2),
    ],
)
async def test_arguments_between_tags_are_checked(template, call):
    server = ScriptedServer(template)
    think(server, call.replace("@", '["a", "a"]'), call.replace("@", '["a", "ab"]'))
    answer = await chat(
        server, tools=[TOOL], tool_choice="required", chat_template_kwargs={"enable_thinking": False}
    )
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"tags": ["a", "ab"]}
    assert answer["timings"]["redrawn_n"] == 1


@pytest.mark.parametrize(
    "more",
    [
        {"if": {"properties": {"tags": {"contains": {"pattern": "^x"}}}}, "then": {"required": ["other"]}},
        {"properties": {"tags": {"$ref": "#/properties/other"}, "other": UNIQUE}},
    ],
)
async def test_rules_about_several_arguments_between_tags_are_refused(more):
    function = {"name": "tag", "parameters": {**TAGS, **more}}
    body = {"messages": [{"role": "user", "content": "x"}], "tool_choice": "required"}
    body["tools"] = [{"type": "function", "function": function}]
    response = await ScriptedServer("qwen3-coder").http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools[0].function.parameters"


async def test_an_argument_of_another_function_is_not_mistaken_for_it():
    other = {"type": "function", "function": {"name": "mark", "parameters": {"properties": {"tags": {}}}}}
    body = {"messages": [{"role": "user", "content": "x"}], "tool_choice": "required", "tools": [TOOL, other]}
    response = await ScriptedServer("qwen3-coder").http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400


async def test_an_answer_next_to_optional_calls_is_checked(server):
    response_format = {"type": "json_schema", "json_schema": {"schema": UNIQUE}}
    think(server, '["a", "a"]', '["a", "ab"]')
    answer = await chat(server, tools=[TOOL], response_format=response_format)
    assert answer["choices"][0]["message"]["content"] == '["a", "ab"]'
    call = f'{HEAD}{{"tags": ["a", "a"]}}{TAIL}'  # rules of optional calls are not enforced
    think(server, call, call)
    (choice,) = (await chat(server, tools=[TOOL], response_format=response_format))["choices"]
    assert choice["finish_reason"] == "tool_calls"


async def test_where_calls_begin_like_answers_a_checked_answer_is_refused():
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL]}
    body["response_format"] = {"type": "json_schema", "json_schema": {"schema": UNIQUE}}
    response = await ScriptedServer("llama3.1").http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
