"""Options of a chat: which tools are allowed, how long to reason, and which slot its key prefers."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from corral.chat.allowed_tools import parse_allowed
from corral.chat.message import TOOL_FIELDS, parse_tools
from corral.core.errors import InvalidRequest
from corral.core.task import Task
from tests.contract.inline import post
from tests.contract.scripted import ScriptedServer

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("a_tool", "b_tool", "c_tool")
]
CALL = '<tool_call>\n{"name": "b_tool", "arguments": {}}\n</tool_call>'


@pytest.fixture
def server():
    return ScriptedServer()


def last_task(server: ScriptedServer) -> Task:
    task = server.engine.submitted[-1]
    assert isinstance(task, Task)
    return task


def allow(mode: str, *names: str, is_flat: bool = False) -> dict[str, Any]:
    if is_flat:
        return {
            "type": "allowed_tools",
            "mode": mode,
            "tools": [{"type": "function", "name": n} for n in names],
        }
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


async def ask(server: ScriptedServer, **body: Any) -> dict:
    return await post(server, PATH, json={"messages": HELLO, **body})


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("is_flat", [False, True])
async def test_the_prompt_lists_all_tools_and_the_grammar_those_allowed(server, mode, is_flat):
    await ask(server, tools=TOOLS)
    prompt = last_task(server).prompt
    server.say(CALL)
    answer = await ask(server, tools=TOOLS, tool_choice=allow(mode, "c_tool", "b_tool", is_flat=is_flat))
    task = last_task(server)
    assert task.prompt == prompt
    assert task.params.constraint is not None
    assert bool(task.params.constraint.trigger) is (mode == "auto")
    found = {name for name in ("a_tool", "b_tool", "c_tool") if name in task.params.constraint.text}
    assert found == {"b_tool", "c_tool"}
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "b_tool"


@pytest.mark.parametrize(
    ("choice", "field"),
    [
        ({"type": "allowed_tools"}, "tool_choice.mode"),
        ({"type": "allowed_tools", "allowed_tools": 5}, "tool_choice.allowed_tools"),
        (allow("none", "a_tool"), "tool_choice.allowed_tools.mode"),
        (allow("auto"), "tool_choice.allowed_tools.tools"),
        (allow("auto", "z_tool"), "tool_choice.allowed_tools.tools"),
        (allow("auto", "z_tool", is_flat=True), "tool_choice.tools"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [5]}, "tool_choice.tools[0]"),
    ],
)
async def test_a_choice_that_makes_no_sense(server, choice, field):
    error = await post(server, PATH, 400, json={"messages": HELLO, "tools": TOOLS, "tool_choice": choice})
    assert error["param"] == field
    error = await post(server, PATH, 400, json={"messages": HELLO, "tool_choice": choice})
    assert error["param"] == "tool_choice"


def test_every_subset_keeps_the_clients_order():
    known = parse_tools(TOOLS, None, True).tools
    for n in (1, 2, 3):
        for names in itertools.permutations([tool.name for tool in known], n):
            use = parse_allowed(allow("auto", *names), known, True, TOOL_FIELDS.choice)
            assert use.described == list(known)
            assert set(use.names) == set(names)
            assert use.is_parallel
    with pytest.raises(InvalidRequest):
        parse_allowed(allow("auto", "other"), known, True, TOOL_FIELDS.choice)


async def test_a_bad_schema_is_named_by_its_place_among_all_tools(server):
    bad = {"type": "function", "function": {"name": "d_tool", "parameters": {"$ref": "#/x"}}}
    for choice in (allow("required", "d_tool"), {"type": "function", "function": {"name": "d_tool"}}):
        body = {"messages": HELLO, "tools": [*TOOLS, bad], "tool_choice": choice}
        assert (await post(server, PATH, 400, json=body))["param"] == "tools[3].function.parameters"


async def test_the_servers_reasoning_budget_counts_unless_a_request_has_one():
    server = ScriptedServer(reasoning_budget=12)
    server.say("<think>" + "x" * 100 + "</think>yes")
    message = (await ask(server))["choices"][0]["message"]
    assert message["reasoning_content"] == "x" * 12
    budget = last_task(server).params.reasoning_budget
    assert budget is not None
    assert budget.n_tokens == 12
    server.say("<think>" + "x" * 100 + "</think>yes")
    message = (await ask(server, reasoning_budget_tokens=-1))["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("x" * 100, "yes")
    await ask(server, reasoning_budget_tokens=3)
    budget = last_task(server).params.reasoning_budget
    assert budget is not None
    assert budget.n_tokens == 3


async def test_the_servers_effort_counts_unless_a_request_has_one():
    server = ScriptedServer("gpt-oss", reasoning_effort="high")
    await ask(server)
    assert "Reasoning: high" in server.prompt
    await ask(server, reasoning_effort="low")
    assert "Reasoning: low" in server.prompt
    await ask(server, chat_template_kwargs={"reasoning_effort": "medium"})
    assert "Reasoning: medium" in server.prompt
    plain = ScriptedServer("gpt-oss")
    await ask(plain, reasoning_effort="medium")
    prompt = plain.prompt
    await ask(plain)
    assert plain.prompt == prompt


async def test_no_effort_is_no_reasoning():
    server = ScriptedServer(reasoning_effort="none")
    await ask(server)
    without = server.prompt
    plain = ScriptedServer()
    await ask(plain, reasoning_effort="none")
    assert plain.prompt == without
    await ask(plain)
    assert plain.prompt != without


async def test_a_key_brings_chats_to_the_same_slot(server):
    async def slot_of(text: str, **body: Any) -> int:
        answer = await ask(
            server, messages=[{"role": "user", "content": text}], max_tokens=1, verbose=True, **body
        )
        return answer["__verbose"]["id_slot"]

    first = await slot_of("one", prompt_cache_key="mine")
    other = await slot_of("two", prompt_cache_key="yours")
    assert first != other
    assert await slot_of("three", prompt_cache_key="mine") == first
    assert await slot_of("four", prompt_cache_key="yours") == other
    error = await post(server, PATH, 400, json={"messages": HELLO, "prompt_cache_key": "x" * 5000})
    assert error["param"] == "prompt_cache_key"
    assert "prompt_cache_key" not in json.dumps((await ask(server, prompt_cache_key="x")).get("warnings", []))


@pytest.mark.parametrize("schema", [0, "", [], "text", 5])
async def test_a_schema_is_an_object_or_a_boolean(server, schema):
    error = await post(server, PATH, 400, json={"messages": HELLO, "json_schema": schema})
    assert error["param"] == "json_schema"


async def test_ollama_loads_the_model_only_if_the_request_is_valid(server):
    answer = await post(server, "/api/chat", json={"messages": [], "stream": False})
    assert answer["done_reason"] == "load"
    refused = await server.http.post("/api/chat", json={"messages": [], "stream": False, "tools": [5]})
    assert refused.status_code == 400


@pytest.mark.parametrize("parameters", [0, "", [], False, "text"])
async def test_parameters_are_a_schema(server, parameters):
    tool = {"type": "function", "function": {"name": "a_tool", "parameters": parameters}}
    error = await post(server, PATH, 400, json={"messages": HELLO, "tools": [tool]})
    assert error["param"] == "tools[0].function.parameters"
