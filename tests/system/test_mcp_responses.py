"""`/v1/responses` with tools of the type `mcp`, by OpenAI's client: lists, calls, approvals, turns."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import httpx
import openai
import pytest

from tests.system.process import CorralProcess
from tests.tools import mcp_server
from tests.tools.mcp_server import HOSTILE

SCRIPT = str(Path(mcp_server.__file__))
FREE = {"type": "mcp", "server_label": "small", "require_approval": "never"}
ASKING = {"type": "mcp", "server_label": "small"}
MAX_TOKENS = 120


@pytest.fixture(scope="module")
def corral(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mcp")
    process = {"command": sys.executable, "args": [SCRIPT]}
    servers = {"small": process, "hers": {**process, "keys": ["alice"]}}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    (folder / "keys").write_text("alice:a-secret\nbob:b-secret\neve,tpd=1:e-secret\n")
    options = ("--mcp-servers-config", folder / "mcp.json", "--api-key-file", folder / "keys")
    with CorralProcess("-m", models / "llama-bpe.gguf", "-c", 8192, "-np", 2, *options) as server:
        yield server


@pytest.fixture(scope="module")
def client(corral):
    with openai.OpenAI(base_url=corral.url + "/v1", api_key="b-secret", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, tool: str, **fields):
    """Have the model call a tool, and say something about it."""
    choice = {"type": "mcp", "server_label": "small", "name": tool}
    given = {"input": "Go.", "tools": [FREE], "tool_choice": choice, "temperature": 0}
    return client.responses.create(**{"model": "x", "max_output_tokens": MAX_TOKENS, **given, **fields})


def types(items) -> list[str]:
    return [item.type for item in items]


def test_each_turn_is_within_the_limits_of_the_key(corral):
    with openai.OpenAI(base_url=corral.url + "/v1", api_key="e-secret", max_retries=0) as client:
        with pytest.raises(openai.RateLimitError):
            ask(client, "hostile")
        (today,) = client.get("/usage", cast_to=dict)["data"]
    assert (today["requests"], today["refused"]) == (1, 1), "the first turn, and the one after the call"
    assert today["output_tokens"] <= MAX_TOKENS


def test_a_call_runs_and_the_model_goes_on(client):
    response = ask(client, "hostile")
    listed, call, *rest = response.output
    assert types([listed, call]) == ["mcp_list_tools", "mcp_call"]
    assert [tool.name for tool in listed.tools] == [tool["name"] for tool in mcp_server.TOOLS]
    assert (call.name, call.server_label, call.status) == ("hostile", "small", "completed")
    assert (call.output, call.error) == (HOSTILE, None)
    assert json.loads(call.arguments) == {}
    assert rest
    assert response.status in ("completed", "incomplete")
    assert response.tools[0].type == "mcp"
    assert response.usage.output_tokens <= MAX_TOKENS
    items = client.responses.retrieve(response.id).output
    assert items == response.output


def test_a_failed_call_is_told_to_the_model(client):
    response = ask(client, "fail", max_tool_calls=1)
    call = response.output[1]
    assert (call.status, call.error.type) == ("failed", "mcp_tool_execution_error")
    assert types(response.output).count("mcp_call") == 1


def test_a_server_that_dies(client):
    response = ask(client, "crash", max_tool_calls=1)
    assert response.output[1].error.type == "mcp_protocol_error"
    assert ask(client, "pid", max_tool_calls=1).output[1].status == "completed"


def numbered(stream: str) -> list[str]:
    """The events of a stream, without comments about the queue."""
    return [event for event in stream.split("\n\n") if event.startswith("id: ")]


def test_a_stream_with_calls_is_followed_by_a_client_that_comes_back(corral):
    choice = {"type": "mcp", "server_label": "small", "name": "pid"}
    body = {"input": "Go.", "tools": [FREE], "tool_choice": choice, "max_output_tokens": MAX_TOKENS}
    body |= {"stream": True, "durable": True, "temperature": 0}
    with httpx.Client(base_url=corral.url, headers={"x-api-key": "b-secret"}, timeout=None) as client:
        sent = client.post("/v1/responses", json=body)
        events = numbered(sent.text)
        assert any("response.mcp_call.completed" in event for event in events)
        ids = [event.partition("\n")[0].removeprefix("id: ") for event in events]
        for i in (0, len(ids) // 2):
            rest = client.post("/v1/responses", json=body, headers={"last-event-id": ids[i]})
            assert numbered(rest.text) == events[i + 1 :]


def test_the_stream_has_the_same_items(client):
    fields = {"stream": True, "max_tool_calls": 1}
    events = list(ask(client, "pid", **fields))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    names = [event.type.removeprefix("response.") for event in events]
    assert names[:6] == [
        "created",
        "in_progress",
        "output_item.added",
        "mcp_list_tools.in_progress",
        "mcp_list_tools.completed",
        "output_item.done",
    ]
    at = names.index("mcp_call.in_progress")
    assert names[at - 1 : at + 5] == [
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
        "output_item.done",
    ]
    response = events[-1].response
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == response.output
    again = list(client.responses.retrieve(response.id, stream=True))
    assert [event.model_dump() for event in again] == [event.model_dump() for event in events]


def test_a_call_waits_for_approval(client):
    asked = ask(client, "pid", tools=[ASKING])
    request = asked.output[-1]
    assert request.type == "mcp_approval_request"
    assert (request.name, request.server_label) == ("pid", "small")
    assert "mcp_call" not in types(asked.output)
    for approve in (True, False):
        answer = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}
        after = client.responses.create(
            model="x",
            input=[answer],
            previous_response_id=asked.id,
            tools=[ASKING],
            tool_choice="none",
            max_output_tokens=8,
        )
        calls = [item for item in after.output if item.type == "mcp_call"]
        assert len(calls) == approve
        assert "mcp_list_tools" not in types(after.output), "the conversation has it already"
        if approve:
            assert calls[0].approval_request_id == request.id
            assert calls[0].output.isdigit()
    forged = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model="x", input=[forged], tools=[ASKING])


def test_some_tools_need_approval(client):
    some = {**ASKING, "require_approval": {"never": {"tool_names": ["env"]}}}
    assert "mcp_call" in types(ask(client, "env", tools=[some], max_tool_calls=1).output)
    assert types(ask(client, "pid", tools=[some]).output)[-1] == "mcp_approval_request"


def test_only_allowed_tools_are_offered(client):
    some = {**FREE, "allowed_tools": ["echo", "pid"]}
    response = ask(client, "pid", tools=[some], max_tool_calls=1)
    assert [tool.name for tool in response.output[0].tools] == ["echo", "pid"]
    with pytest.raises(openai.BadRequestError):
        ask(client, "env", tools=[some])
    reading = {**FREE, "allowed_tools": {"read_only": True}}
    response = ask(client, "env", tools=[reading], max_tool_calls=1)
    assert [tool.name for tool in response.output[0].tools] == ["env"]


def test_no_calls_are_allowed(client):
    response = ask(client, "pid", max_tool_calls=0, max_output_tokens=8)
    assert "mcp_call" not in types(response.output)


@pytest.mark.parametrize(
    "tool",
    [
        {"server_label": "none"},
        {"server_label": "hers"},
        {"server_label": 1},
        {},
        {"server_label": "small", "server_url": "http://127.0.0.1:1/mcp"},
        {"server_label": "small", "require_approval": "sometimes"},
        {"server_label": "small", "allowed_tools": "all"},
        {"server_label": "small", "allowed_tools": [1]},
    ],
)
def test_what_is_refused(client, tool):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="x", input="Go.", tools=[{"type": "mcp", **tool}])
    assert str(caught.value.param).startswith("tools[0]")


def test_a_call_in_the_background(client):
    response = ask(client, "hostile", background=True)
    assert (response.status, response.output) == ("queued", [])
    with client.responses.retrieve(response.id, stream=True) as stream:
        events = list(stream)
    assert [event.type for event in events[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    ended = client.responses.retrieve(response.id)
    assert ended == events[-1].response
    assert types(ended.output)[:2] == ["mcp_list_tools", "mcp_call"]
    assert ended.output[1].output == HOSTILE
    assert ended.status in ("completed", "incomplete")
    again = list(client.responses.retrieve(response.id, stream=True))
    assert [event.type for event in again] == [event.type for event in events]


def test_one_in_the_background_is_stopped(client):
    response = ask(
        client, "hostile", background=True, max_output_tokens=4000, extra_body={"ignore_eos": True}
    )
    ended = client.responses.cancel(response.id)
    assert ended.status in ("cancelled", "completed", "incomplete")
    assert client.responses.retrieve(response.id).status == ended.status
