"""`POST /v1/responses` and its relatives, field by field."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from corral.core.errors import NonFiniteLogits
from corral.core.settings import EngineSettings, ServerSettings, Settings
from corral.storage import document_store
from tests.contract.inline import Server
from tests.contract.messages_client import tasks
from tests.contract.responses_client import (
    accumulate,
    both,
    parse_events,
    refuse,
    replay_events,
    send,
    stream_events,
    text_of,
)
from tests.contract.scripted import ScriptedServer
from tests.tools.pdf import pdf_of
from tests.tools.pictures import data_uri, solid
from tests.tools.wait import wait_until_async
from tests.unit.fake import FakeBackend
from tests.unit.fake_projector import FakeProjector

PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "string"}}}
TOOL: dict[str, Any] = {"type": "function", "name": "go", "description": "Go.", "parameters": PARAMETERS}
STOP: dict[str, Any] = {"type": "function", "name": "stop"}
CUSTOM: dict[str, Any] = {"type": "custom", "name": "apply_patch", "description": "Patch files."}
SEARCH: dict[str, Any] = {"type": "web_search"}
CALL = '<tool_call>\n{"name": "go", "arguments": {"x": "y"}}\n</tool_call>'
REASONING = "<think>\nhm, well\n</think>\n\nhello"


@pytest.fixture
def server():
    server = ScriptedServer()
    server.say("hello")
    return server


async def remove(server: Server, path: str, status: int = 200) -> dict:
    response = await server.http.delete(path)
    assert response.status_code == status, response.text
    return response.json()


async def get(server: Server, path: str, status: int = 200, **query: Any) -> dict:
    response = await server.http.get(path, params=query)
    assert response.status_code == status, response.text
    return response.json()


async def post(server: Server, path: str, status: int = 200, **body: Any) -> dict:
    response = await server.http.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()


async def test_a_response_says_what_was_asked(server):
    options = {"metadata": {"a": "b"}, "instructions": "Be brief.", "temperature": 0.25, "user": "me"}
    answer = await both(server, **options, tools=[TOOL], tool_choice="none", truncation="auto")
    assert (answer["status"], text_of(answer)) == ("completed", "hello")
    assert answer | options == answer
    assert (answer["tools"], answer["tool_choice"], answer["truncation"]) == ([TOOL], "none", "auto")
    assert "warnings" not in answer
    assert "Be brief." in server.prompt


async def test_reasoning_is_an_item_of_its_own(server):
    server.say(REASONING)
    answer = await both(server)
    reasoning, message = answer["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm, well"}]
    assert message["content"][0]["text"] == "hello"
    details = answer["usage"]["output_tokens_details"]
    assert len("hm, well") <= details["reasoning_tokens"] <= len(REASONING) - len("hello")
    assert "encrypted_content" not in reasoning


async def test_reasoning_comes_back_in_a_form_that_clients_send(server):
    server.say("<think>\nsecret plan\n</think>\n\n" + CALL)
    answer = await both(server, tools=[TOOL], include=["reasoning.encrypted_content"], store=True)
    reasoning, call = answer["output"]
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": reasoning["encrypted_content"]}
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}
    said = {"role": "user", "content": "hello"}
    await send(server, input=[said, reasoning, call, result])
    with_content = server.prompt
    assert "secret plan" in with_content
    await send(server, input=[said, sealed, call, result])
    assert server.prompt == with_content


@pytest.mark.parametrize("sealed", ["gAAAAA==", "corral:%%%", "corral:", 5])
async def test_reasoning_that_only_others_can_read_is_left_out(server, sealed):
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed}
    answer = await send(
        server, input=[{"role": "user", "content": "a"}, item, {"role": "user", "content": "b"}]
    )
    assert "input[1]" in answer["warnings"][0]


@pytest.mark.parametrize(
    ("effort", "is_open"), [("none", False), ("low", True), ("minimal", True), ("max", True)]
)
async def test_effort(server, effort, is_open):
    server.say("hello")
    answer = await send(server, reasoning={"effort": effort})
    assert answer["reasoning"]["effort"] == effort
    assert ("<think>\n\n</think>" in server.prompt) is not is_open


async def test_too_few_tokens_leave_a_response_incomplete(server):
    answer = await both(server, max_output_tokens=3)
    assert (answer["status"], text_of(answer)) == ("incomplete", "hel")
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in answer["output"]] == ["incomplete"]


async def test_a_call_and_its_output(server):
    server.say(CALL)
    answer = await both(server, tools=[TOOL])
    (call,) = answer["output"]
    assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", "go", {"x": "y"})
    server.say("done")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "went"}
    answer = await both(server, input=[result], previous_response_id=answer["id"], tools=[TOOL])
    assert text_of(answer) == "done"
    assert "<tool_response>\nwent\n</tool_response>" in server.prompt
    assert '{"name": "go", "arguments": {"x": "y"}}' in server.prompt


async def test_a_call_that_is_cut_off_says_so(server):
    server.say(CALL)
    answer = await both(server, tools=[TOOL], max_output_tokens=50)
    (call,) = answer["output"]
    assert (call["type"], call["status"], answer["status"]) == ("function_call", "incomplete", "incomplete")


async def test_custom_tools_take_a_text(server):
    patch = '*** Begin Patch\n+"é"\n*** End Patch'
    server.say(f"<tool_call>{json.dumps({'name': 'apply_patch', 'arguments': {'input': patch}})}</tool_call>")
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
    answer = await both(server, tools=[{**CUSTOM, "format": grammar}], tool_choice=CUSTOM)
    (call,) = answer["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply_patch", patch)
    assert "tools[0].format" in answer["warnings"][0]
    assert "start: /.+/" in server.prompt
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "applied"}
    await send(server, input=[{"role": "user", "content": "a"}, call, output], tools=[CUSTOM])
    assert "applied" in server.prompt
    assert json.dumps(patch, ensure_ascii=False) in server.prompt


async def test_functions_in_a_namespace(server):
    space = {"type": "namespace", "name": "files", "description": "Files.", "tools": [TOOL]}
    server.say(CALL.replace('"go"', '"files.go"'))
    answer = await both(server, tools=[space])
    (call,) = answer["output"]
    assert (call["name"], call["namespace"]) == ("go", "files")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "went"}
    await send(server, input=[{"role": "user", "content": "a"}, call, output], tools=[space])
    assert '{"name": "files.go"' in server.prompt


async def test_tools_that_only_others_run_are_left_out(server):
    answer = await both(server, tools=[SEARCH, TOOL, {"type": "mcp", "server_label": "x"}])
    assert [place for place in ("tools[0]", "tools[2]") if place in str(answer["warnings"])]
    assert len(answer["warnings"]) == 2
    assert "web_search" not in server.prompt
    assert "go" in server.prompt


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        ([SEARCH], "required"),
        ([SEARCH, TOOL], SEARCH),
        ([TOOL], {"type": "mcp", "server_label": "x"}),
        ([SEARCH], {"type": "allowed_tools", "mode": "required", "tools": [SEARCH]}),
        ([TOOL], {"type": "function", "name": "other"}),
        ([TOOL], {"type": "custom", "name": "go"}),
        ([TOOL], "sometimes"),
        ([TOOL], 5),
        ([TOOL], {"type": "allowed_tools", "mode": "never", "tools": []}),
        ([TOOL], {"type": "allowed_tools", "mode": "auto", "tools": {}}),
        ([TOOL], {"type": "allowed_tools", "mode": "auto", "tools": [STOP]}),
    ],
)
async def test_a_choice_that_cannot_be_made_is_refused(server, tools, choice):
    error = await refuse(server, tools=tools, tool_choice=choice)
    assert error["param"].startswith("tool_choice")


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "allowed_tools", "mode": "auto", "tools": [STOP, SEARCH]}, {"stop"}),
        ({"type": "allowed_tools", "mode": "required", "tools": [TOOL, STOP]}, {"go", "stop"}),
        ("required", {"go", "stop", "apply_patch"}),
    ],
)
async def test_only_allowed_tools_can_be_called(server, choice, names):
    await send(server, tools=[TOOL, STOP, CUSTOM, SEARCH], tool_choice=choice)
    constraint = tasks(server)[-1].params.constraint
    assert {name for name in ("go", "stop", "apply_patch") if f"{name}" in constraint.text} == names


async def test_a_schema_binds_the_answer(server):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    format = {"type": "json_schema", "name": "thing", "schema": schema, "strict": True}
    answer = await send(server, text={"format": format, "verbosity": "low"})
    assert answer["text"]["format"] == format
    assert tasks(server)[-1].params.constraint is not None
    assert "text.verbosity" in answer["warnings"][0]
    await send(server, text={"format": {"type": "json_object"}})
    assert tasks(server)[-1].params.constraint is not None
    await send(server, text={"format": {"type": "text"}})
    assert tasks(server)[-1].params.constraint is None


async def test_an_empty_text_is_a_message(server):
    await send(server, input="", max_output_tokens=1)
    await send(server, input=[{"role": "user", "content": ""}], max_output_tokens=1)
    loaded, same = tasks(server)
    assert loaded.prompt == same.prompt


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": {}}, "input"),
        ({"instructions": {}}, "instructions"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"type": 5}]}, "input[0].type"),
        ({"input": [{"type": "dream"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": "a", "id": 5}]}, "input[0].id"),
        ({"input": [{"role": "critic", "content": "a"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": ["a"]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "x"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "function_call", "name": "a", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "output": "a"}]}, "input[0].call_id"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        (
            {"tools": [SEARCH, {**TOOL, "parameters": {"minimum": 2**60}}], "tool_choice": TOOL},
            "tools[1].parameters",
        ),
        ({"tools": {}}, "tools"),
        ({"tools": ["a"]}, "tools[0]"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {"minimum": 2**60}}}}, "text.format.schema"),
        ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation"),
        ({"background": True, "store": False}, "background"),
        ({"metadata": {"a": 5}}, "metadata"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "a"}]}]},
            "input[0].content[0].file_id",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "a"}]}]},
            "input[0].content[0].file_id",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "/w=="}]}]},
            "input[0].content[0].file_data",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].file_url"),
    ],
)
async def test_what_is_wrong_is_named_as_the_client_calls_it(server, body, param):
    error = await refuse(server, **body)
    assert error["param"] == param
    assert error["type"] in ("invalid_request_error", "not_supported_error")


@pytest.mark.parametrize("truncation", ["auto", "disabled"])
async def test_an_image_that_no_one_can_see_is_named_too(server, truncation):
    image = {"type": "input_image", "image_url": data_uri(solid(255, 0, 0, 8, 8))}
    items = [{"role": "user", "content": [image]}]
    error = await refuse(server, input=items, truncation=truncation)
    assert error["param"].startswith("input[0].content[0]")


async def test_what_is_ignored_is_named(server):
    item = {"role": "user", "content": [{"type": "input_text", "text": "a", "colour": 1}], "mood": 2}
    body = {"input": [item, {"type": "web_search_call", "id": "ws_1"}], "moderation": {"model": "x"}}
    more = {"reasoning": {"summary": "auto", "depth": 3}, "include": ["file_search_call.results"]}
    answer = await both(server, **body, **more, n_probs=3, text={"format": {"type": "text"}, "x": 1})
    names = ["moderation", "input[0].mood", "input[0].content[0].colour", "input[1]", "reasoning.summary"]
    names += ("reasoning.depth", "include", "n_probs", "text.x")
    for name in names:
        assert any(f"'{name}'" in warning for warning in answer["warnings"]), name
    assert len(answer["warnings"]) == len(names)


async def test_probabilities_are_with_the_text():
    server = Server()
    options = {"max_output_tokens": 5, "seed": 3, "temperature": 1.0}
    answer = await both(server, include=["message.output_text.logprobs"], top_logprobs=2, **options)
    (item,) = answer["output"]
    (part,) = item["content"]
    assert "".join(each["token"] for each in part["logprobs"]) == part["text"]
    assert {len(each["top_logprobs"]) for each in part["logprobs"]} == {2}
    answer = await both(server, include=["message.output_text.logprobs"], **options)
    assert [each["top_logprobs"] for each in answer["output"][0]["content"][0]["logprobs"]] == [[]] * 5
    answer = await both(server, **options)
    assert answer["output"][0]["content"][0]["logprobs"] == []


def file_part(data: bytes, **more: str) -> dict:
    return {"type": "input_file", "file_data": base64.b64encode(data).decode(), **more}


async def test_files_are_texts(server):
    uri = "data:text/plain;base64," + base64.b64encode("żółw".encode()).decode()
    content = [file_part(pdf_of("first words"), filename="a.pdf"), {"type": "input_file", "file_data": uri}]
    output = {"type": "function_call_output", "call_id": "1", "output": [file_part(b"second words")]}
    call = {"type": "function_call", "call_id": "1", "name": "go", "arguments": "{}"}
    await send(server, input=[{"role": "user", "content": content}, call, output])
    assert '<document title="a.pdf">\nfirst words\n</document>' in server.prompt
    assert "żółw" in server.prompt
    assert "second words" in server.prompt


async def test_images():
    backend = FakeBackend(n_ctx=1024)
    backend.projector = FakeProjector()
    server = Server(backend)
    image = {"type": "input_image", "image_url": data_uri(solid(255, 0, 0, 8, 8)), "detail": "auto"}
    parts = [{"type": "input_text", "text": "what?"}, image]
    first = await send(server, input=[{"role": "user", "content": parts}], max_output_tokens=2)
    chat = [
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": image["image_url"]}},
    ]
    body = {"messages": [{"role": "user", "content": chat}], "max_tokens": 2}
    assert (await server.http.post("/v1/chat/completions", json=body)).status_code == 200
    one, other = tasks(server)
    assert one.prompt == other.prompt
    await send(server, input="and now?", previous_response_id=first["id"], max_output_tokens=2)
    assert tasks(server)[-1].media, "it is still there"
    broken = {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}
    assert (await refuse(server, input=[broken]))["param"] == "input[0].content[0].image_url"


async def test_tokens_are_counted(server):
    question = [{"role": "user", "content": "hello"}]
    context: dict[str, Any] = {"input": question, "instructions": "Be brief.", "tools": [TOOL]}
    answer = await send(server, **context)
    counted = await send(server, path="/v1/responses/input_tokens", **context)
    assert counted == {"object": "response.input_tokens", "input_tokens": answer["usage"]["input_tokens"]}
    more = {"input": "more", "previous_response_id": answer["id"]}
    counted = await send(server, path="/v1/responses/input_tokens", **more)
    assert counted["input_tokens"] == (await send(server, **more))["usage"]["input_tokens"]


async def test_too_long_a_conversation_is_refused_or_shortened():
    server = ScriptedServer(n_ctx=512)
    server.say("ok")
    turns = [{"role": "user", "content": f"question {i} " + "x" * 100} for i in range(9)]
    error = await refuse(server, input=turns)
    assert error["code"] == "context_length_exceeded"
    options = {"truncation": "auto", "instructions": "Be brief.", "max_output_tokens": 20}
    answer = await both(server, input=turns, **options)
    assert text_of(answer) == "ok"
    assert "truncation" in answer["warnings"][0]
    assert "Be brief." in server.prompt
    assert "question 8" in server.prompt
    assert "question 0" not in server.prompt
    n_kept = server.prompt.count("question")
    assert len(server.prompt) + 20 < 512 <= len(server.prompt) + 20 + 150, f"no more than needed: {n_kept}"
    await refuse(server, input=[{"role": "user", "content": "x" * 600}], truncation="auto")


async def test_a_turn_of_codex(server):
    """A request as that client writes it, and the next one, with what came of the first."""
    command = {"type": "array", "items": {"type": "string"}}
    shell = {
        **{"type": "function", "name": "shell", "description": "Runs a command.", "strict": False},
        "parameters": {"type": "object", "properties": {"command": command}, "required": ["command"]},
    }
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'}
    space = {"type": "namespace", "name": "mcp__files", "description": "", "tools": [TOOL]}
    body: dict[str, Any] = {
        "model": "local",
        "instructions": "You are a coding agent.",
        "tools": [shell, {**CUSTOM, "format": grammar}, {"type": "web_search"}, space],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199-abc",
        "text": {"verbosity": "low"},
    }
    asked = [
        {
            "type": "message",
            "id": None,
            "role": "developer",
            "content": [{"type": "input_text", "text": "Rules."}],
        },
        {
            "type": "message",
            "id": None,
            "role": "user",
            "content": [{"type": "input_text", "text": "List files."}],
        },
    ]
    call = {"name": "shell", "arguments": {"command": ["ls"]}}
    server.say(f"<think>\nI look.\n</think>\n\n<tool_call>\n{json.dumps(call)}\n</tool_call>")
    first = accumulate(await stream_events(server, input=asked, **body))
    named = ("tools[1].format", "tools[2]", "tools[3].description", "reasoning.summary", "text.verbosity")
    assert [name for name in named if not any(f"'{name}'" in text for text in first["warnings"])] == []
    assert len(first["warnings"]) == len(named)
    reasoning, made = first["output"]
    back = {"type": "reasoning", "summary": [], "content": None}
    back["encrypted_content"] = reasoning["encrypted_content"]
    again = {name: made[name] for name in ("type", "name", "arguments", "call_id")}
    result = {"type": "function_call_output", "call_id": made["call_id"], "output": "a.py"}
    server.say("There is a.py.")
    begun = server.prompt
    second = accumulate(await stream_events(server, input=[*asked, back, again, result], **body))
    assert text_of(second) == "There is a.py."
    assert server.prompt.startswith(begun), "the cache serves all of it"
    assert "I look." in server.prompt
    assert second["usage"]["input_tokens_details"]["cached_tokens"] >= len(begun) - 8


# What becomes of responses


async def test_a_stored_response_can_be_found_and_removed(server):
    answer = await send(server, input=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    path = f"/v1/responses/{answer['id']}"
    assert await get(server, path) == answer
    listed = await get(server, f"{path}/input_items", order="asc")
    assert [item["content"][0]["text"] for item in listed["data"]] == ["a", "b"]
    assert await remove(server, path) == {"id": answer["id"], "object": "response", "deleted": True}
    for gone in (path, f"{path}/input_items", "/v1/responses/resp_1", "/v1/responses/../x"):
        await get(server, gone, 404)
    await remove(server, path, 404)
    assert (await refuse(server, 404, previous_response_id=answer["id"]))["param"] == "previous_response_id"


async def test_a_response_that_is_not_stored_is_forgotten(server):
    answer = await send(server, store=False)
    assert answer["store"] is False
    await get(server, f"/v1/responses/{answer['id']}", 404)
    events = await stream_events(server, store=False)
    await get(server, f"/v1/responses/{accumulate(events)['id']}", 404)


async def test_one_key_does_not_see_the_responses_of_another():
    server = Server(api_keys=("one", "two"))
    one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
    body = {"input": "hello", "max_output_tokens": 2}
    answer = (await server.http.post("/v1/responses", json=body, headers=one)).json()
    path = f"/v1/responses/{answer['id']}"
    assert (await server.http.get(path, headers=one)).status_code == 200
    item = {"type": "item_reference", "id": answer["output"][0]["id"]}
    for method, more in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        assert (await server.http.request(method, path + more, headers=two)).status_code == 404
    refused = await server.http.post("/v1/responses", json={**body, "input": [item]}, headers=two)
    assert refused.status_code == 400
    known = {**body, "previous_response_id": answer["id"]}
    assert (await server.http.post("/v1/responses", json=known, headers=two)).status_code == 404
    made = (await server.http.post("/v1/conversations", json={}, headers=one)).json()
    assert (await server.http.get(f"/v1/conversations/{made['id']}", headers=two)).status_code == 404
    known = {**body, "conversation": made["id"]}
    assert (await server.http.post("/v1/responses", json=known, headers=two)).status_code == 404


async def test_lists_come_in_pages(server):
    answer = await send(server, input=[{"role": "user", "content": str(i)} for i in range(5)])
    path, found = f"/v1/responses/{answer['id']}/input_items", []
    query: dict[str, Any] = {"limit": 2, "order": "asc"}
    while True:
        page = await get(server, path, **query)
        found += [item["content"][0]["text"] for item in page["data"]]
        if not page["has_more"]:
            break
        assert page["last_id"] == page["data"][-1]["id"]
        query["after"] = page["last_id"]
    assert found == list("01234")
    newest = await get(server, path)
    assert [item["content"][0]["text"] for item in newest["data"]] == list("43210")
    for name, wrong in (("limit", 0), ("limit", 101), ("limit", "x"), ("order", "up"), ("after", "none")):
        assert (await get(server, path, 400, **{name: wrong}))["error"]["param"] == name


async def test_a_stream_can_be_read_again_from_any_event(server):
    server.say(REASONING + CALL)
    events = await stream_events(server, tools=[TOOL])
    id = accumulate(events)["id"]
    for after in (0, 5, len(events) - 2, len(events) - 1, 10_000):
        assert await replay_events(server, id, starting_after=after) == events[after + 1 :]
    for wrong in ("-1", "x", ""):
        await get(server, f"/v1/responses/{id}", 400, stream="true", starting_after=wrong)


async def test_the_path_that_counts_is_not_a_response(server):
    response = await server.http.delete("/v1/responses/input_tokens")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


# In the background


async def wait_for_end(server: ScriptedServer, path: str) -> dict:
    while (found := await get(server, path))["status"] in ("queued", "in_progress"):
        await asyncio.sleep(0.01)
    return found


async def test_a_response_in_the_background_is_answered_before_it_runs(server):
    server.engine.is_paused = True
    queued = await send(server, background=True)
    path = f"/v1/responses/{queued['id']}"
    assert (queued["status"], queued["output"], queued["usage"]) == ("queued", [], None)
    assert (await get(server, path))["status"] == "queued"
    assert (await get(server, f"{path}/input_items"))["data"][0]["content"][0]["text"] == "hello"
    assert (await refuse(server, previous_response_id=queued["id"]))["param"] == "previous_response_id"
    server.engine.is_paused = False
    done = await wait_for_end(server, path)
    assert (done["status"], text_of(done)) == ("completed", "hello")
    events = await replay_events(server, queued["id"])
    assert accumulate(events) == done
    assert [event["type"] for event in events[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert text_of(await send(server, input="more", previous_response_id=done["id"])) == "hello"


async def test_the_events_of_a_running_response_can_be_followed(server):
    server.engine.is_paused = True
    queued = await send(server, background=True)
    followers = [asyncio.create_task(replay_events(server, queued["id"])) for _ in range(2)]
    late = asyncio.create_task(replay_events(server, queued["id"], starting_after=3))
    await asyncio.sleep(0)
    server.engine.is_paused = False
    first, second = await asyncio.gather(*followers)
    assert first == second == await replay_events(server, queued["id"])
    assert await late == first[4:]
    accumulate(first)


async def test_progress_in_the_background_does_not_shift_the_numbers(server):
    server.say("a long answer " * 20)
    server.engine.is_paused = True
    queued = await send(server, background=True, input="x" * 40, return_progress=True)
    (running,) = server.services.responses._running.values()
    whole = asyncio.create_task(replay_events(server, queued["id"]))
    server.engine.is_paused = False
    followers = server.engine.telemetry.followers
    await wait_until_async(lambda: any(each.task.n_outputs > 5 for each in followers.values()))
    server.engine.is_paused = True
    rest = asyncio.create_task(replay_events(server, queued["id"], starting_after=4))
    await wait_until_async(lambda: len(running.log._waiting) == 2)
    server.engine.is_paused = False
    numbers = [event["sequence_number"] for event in await whole]
    assert len(numbers) > len(set(numbers)), "some report progress"
    assert await rest == (await whole)[numbers.index(5) :]


async def test_a_stream_in_the_background_runs_on_without_its_client(server):
    events: list[bytes] = []
    server.say("a long answer " * 20)
    body = json.dumps({"input": "hello", "stream": True, "background": True}).encode()
    has_left = asyncio.Event()
    sent = False

    async def receive() -> dict:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        await has_left.wait()
        return {"type": "http.disconnect"}

    async def receive_part(message: dict) -> None:
        events.append(message.get("body", b""))
        if len(events) == 6:
            server.engine.is_paused = True
            has_left.set()

    scope = {
        **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST"},
        **{"scheme": "http", "path": "/v1/responses", "raw_path": b"/v1/responses", "query_string": b""},
        **{"root_path": "", "headers": [(b"host", b"corral")], "client": ("127.0.0.1", 1), "state": {}},
        "server": ("corral", 80),
    }
    await server.app(scope, receive, receive_part)
    seen = parse_events(b"".join(events).decode())
    id = seen[0]["response"]["id"]
    assert (await get(server, f"/v1/responses/{id}"))["status"] == "in_progress"
    server.engine.is_paused = False
    rest = await replay_events(server, id, starting_after=len(seen) - 1)
    assert text_of(accumulate([*seen, *rest])) == "a long answer " * 20


async def test_a_running_response_can_be_cancelled(server):
    server.say("a long answer " * 20)
    server.engine.is_paused = True
    queued = await send(server, background=True)
    path = f"/v1/responses/{queued['id']}"
    following = asyncio.create_task(replay_events(server, queued["id"]))
    await asyncio.sleep(0)
    cancelled = await post(server, f"{path}/cancel")
    assert cancelled["status"] == "cancelled"
    assert server.engine.n_tasks == 0
    assert await get(server, path) == await post(server, f"{path}/cancel") == cancelled
    assert await following == await replay_events(server, queued["id"])
    server.engine.is_paused = False
    whole = await send(server)
    assert (
        "background" in (await post(server, f"/v1/responses/{whole['id']}/cancel", 400))["error"]["message"]
    )


async def test_removing_a_running_response_ends_it(server):
    server.engine.is_paused = True
    queued = await send(server, background=True)
    await remove(server, f"/v1/responses/{queued['id']}")
    assert server.engine.n_tasks == 0
    await get(server, f"/v1/responses/{queued['id']}", 404)


async def test_a_response_that_fails_says_why(server):
    server.engine.is_paused = True
    queued = await send(server, background=True)
    following = asyncio.create_task(replay_events(server, queued["id"]))
    await asyncio.sleep(0)
    ((_, stream),) = server.engine._tasks.values()
    stream.give_up(NonFiniteLogits())
    events = await following
    assert [event["type"] for event in events] == ["response.created", "response.queued", "response.failed"]
    failed = await get(server, f"/v1/responses/{queued['id']}")
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert await replay_events(server, queued["id"]) == events


async def test_a_whole_response_that_fails_is_an_error(server):
    server.say("a long answer " * 20)
    asking = asyncio.create_task(post(server, "/v1/responses", 500, input="hello"))
    followers = server.engine.telemetry.followers
    await wait_until_async(lambda: any(each.task.n_outputs > 5 for each in followers.values()))
    ((_, stream),) = server.engine._tasks.values()
    stream.give_up(NonFiniteLogits())
    assert (await asking)["error"]["type"] == "server_error"


async def test_a_stream_that_fails_ends_with_an_event(server):
    server.say("a long answer " * 20)
    asking = asyncio.create_task(stream_events(server))
    followers = server.engine.telemetry.followers
    await wait_until_async(lambda: any(each.task.n_outputs > 5 for each in followers.values()))
    ((_, stream),) = server.engine._tasks.values()
    stream.give_up(NonFiniteLogits())
    events = await asking
    failed = accumulate(events)
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert [item["status"] for item in failed["output"]] == ["incomplete"]
    assert await replay_events(server, failed["id"]) == events


# Conversations


async def test_responses_are_added_to_their_conversation(server):
    made = await post(
        server, "/v1/conversations", metadata={"a": "b"}, items=[{"role": "user", "content": "1"}]
    )
    path = f"/v1/conversations/{made['id']}"
    assert (made["object"], made["metadata"]) == ("conversation", {"a": "b"})
    answer = await send(server, input="2", conversation=made["id"])
    assert answer["conversation"] == {"id": made["id"]}
    assert (await refuse(server, previous_response_id=answer["id"]))["param"] == "previous_response_id"
    accumulate(await stream_events(server, input="3", conversation={"id": made["id"]}, store=False))
    items = (await get(server, f"{path}/items", order="asc"))["data"]
    assert [item["content"][0]["text"] for item in items] == ["1", "2", "hello", "3", "hello"]
    assert len({item["id"] for item in items}) == 5
    assert await get(server, f"{path}/items/{items[2]['id']}") == items[2]
    assert (await remove(server, f"{path}/items/{items[1]['id']}"))["id"] == made["id"]
    await get(server, f"{path}/items/{items[1]['id']}", 404)
    assert (await post(server, path, metadata={"c": "d"}))["metadata"] == {"c": "d"}
    assert (await get(server, path))["metadata"] == {"c": "d"}
    assert (await remove(server, path))["object"] == "conversation.deleted"
    for gone in (path, f"{path}/items", f"{path}/items/x"):
        await get(server, gone, 404)
    assert (await send(server, 404, input="4", conversation=made["id"]))["error"]["type"] == "not_found_error"


async def test_items_can_be_added_to_a_conversation(server):
    made = await post(server, "/v1/conversations")
    path = f"/v1/conversations/{made['id']}/items"
    new = [
        {"role": "user", "content": "a"},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    ]
    added = await post(server, path, items=new)
    assert [item["type"] for item in added["data"]] == ["message", "function_call"]
    more = await post(server, path, items=new[:1])
    assert more["data"][0]["id"] != added["data"][0]["id"]
    for wrong in (
        {"items": "a"},
        {"items": {}},
        {"items": [5]},
        {"items": [{"id": "x", "type": "item_reference"}]},
        {},
    ):
        assert "items" in (await post(server, path, 400, **wrong))["error"]["param"]


async def test_a_conversation_that_was_removed_meanwhile_stays_so(server):
    made = await post(server, "/v1/conversations")
    server.engine.is_paused = True
    await send(server, background=True, conversation=made["id"])
    await remove(server, f"/v1/conversations/{made['id']}")
    server.engine.is_paused = False
    await wait_until_async(lambda: server.engine.n_tasks == 0)
    await get(server, f"/v1/conversations/{made['id']}", 404)


async def test_what_is_too_large_to_keep_is_answered_with_a_warning(server, monkeypatch):
    made = await post(server, "/v1/conversations")
    monkeypatch.setattr(document_store, "MAX_BYTES", 100)
    answer = await send(server)
    assert (answer["status"], answer["store"]) == ("completed", False)
    assert answer["id"] in answer["warnings"][0]
    await get(server, f"/v1/responses/{answer['id']}", 404)
    answer = await send(server, conversation=made["id"])
    assert made["id"] in answer["warnings"][0]
    assert (await get(server, f"/v1/conversations/{made['id']}/items"))["data"] == []


# On disk


def on_disk(folder: Any) -> Server:
    settings = Settings(
        engine=EngineSettings(model="fake.gguf"), server=ServerSettings(responses_path=str(folder))
    )
    return Server(FakeBackend(), settings=settings)


async def test_responses_survive_the_server(tmp_path):
    server = on_disk(tmp_path)
    events = await stream_events(server, max_output_tokens=4)
    answer = accumulate(events)
    made = await post(server, "/v1/conversations", items=[{"role": "user", "content": "1"}])
    await server.services.responses.close()
    server = on_disk(tmp_path)
    assert await get(server, f"/v1/responses/{answer['id']}") == answer
    assert await replay_events(server, answer["id"]) == events
    await send(server, input="more", previous_response_id=answer["id"], max_output_tokens=2)
    assert (await get(server, f"/v1/conversations/{made['id']}/items"))["data"][0]["content"][0][
        "text"
    ] == "1"
    await remove(server, f"/v1/responses/{answer['id']}")
    await server.services.responses.close()
    await get(on_disk(tmp_path), f"/v1/responses/{answer['id']}", 404)


async def test_a_response_that_was_running_when_the_server_was_killed_has_failed(tmp_path):
    server = on_disk(tmp_path)
    server.engine.is_paused = True
    queued = await send(server, background=True)
    await server.services.storage.documents.close()
    lost = await get(on_disk(tmp_path), f"/v1/responses/{queued['id']}")
    assert (lost["status"], lost["error"]["code"]) == ("failed", "server_error")


async def test_a_server_that_stops_cancels_what_runs(tmp_path):
    server = on_disk(tmp_path)
    server.engine.is_paused = True
    queued = await send(server, background=True)
    await server.services.responses.close()
    found = await get(on_disk(tmp_path), f"/v1/responses/{queued['id']}")
    assert found["status"] == "cancelled"


async def test_progress_and_timings_in_events(server):
    asked = {"input": "x" * 40, "max_output_tokens": 3, "return_progress": True, "timings_per_token": True}
    events = await stream_events(server, **asked)
    reports = [event for event in events if "prompt_progress" in event]
    assert {event["type"] for event in reports} == {"response.in_progress"}
    assert reports[-1]["prompt_progress"]["total"] >= reports[-1]["prompt_progress"]["processed"] > 0
    timed = {event["type"] for event in events if "timings" in event}
    assert timed >= {"response.output_text.delta", events[-1]["type"]}
    assert "warnings" not in events[-1]["response"]
    numbers = [event["sequence_number"] for event in events if event not in reports]
    assert numbers == list(range(len(numbers)))
