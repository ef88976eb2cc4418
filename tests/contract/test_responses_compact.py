"""`POST /v1/responses/compact`, and grammars of custom tools."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import CompactedResponse

from tests.contract.inline import Server
from tests.contract.messages_client import tasks
from tests.contract.responses_client import both, refuse, send
from tests.contract.scripted import ScriptedServer

COMPACT = "/v1/responses/compact"
TALK = [
    {"role": "user", "content": "Find the heron."},
    {"role": "assistant", "content": "It is in the reeds."},
    {"role": "user", "content": "And the owl?"},
]
CUSTOM: dict[str, Any] = {"type": "custom", "name": "write"}


@pytest.fixture
def server():
    server = ScriptedServer()
    server.say("The heron is found.")
    return server


async def compact(server: Server, **body: Any) -> dict:
    answer = await send(server, path=COMPACT, **body)
    # The client says that user messages come first, but its types have those of the assistant only.
    CompactedResponse.model_validate({**answer, "output": answer["output"][-1:]})
    return answer


async def test_a_conversation_becomes_its_questions_and_a_summary(server):
    answer = await compact(server, input=TALK, model="any")
    *asked, summary = answer["output"]
    assert [item["content"][0]["text"] for item in asked] == ["Find the heron.", "And the owl?"]
    assert summary["type"] == "compaction"
    assert "It is in the reeds." in server.prompt
    assert answer["usage"]["output_tokens"] > 0
    assert (answer["object"], "warnings" in answer) == ("response.compaction", False)


async def test_a_summary_that_is_sent_back_is_read(server):
    compacted = (await compact(server, input=TALK))["output"]
    answer = await send(server, input=[*compacted, {"role": "user", "content": "Go on."}])
    assert "warnings" not in answer
    assert server.prompt.index("And the owl?") < server.prompt.index("The heron is found.")
    again = await compact(server, input=compacted)
    assert [item["type"] for item in again["output"]] == ["message", "message", "compaction"]


async def test_a_summary_of_another_server_is_left_out(server):
    foreign = {"type": "compaction", "encrypted_content": "gAAAA"}
    answer = await send(server, input=[foreign, {"role": "user", "content": "Go on."}])
    assert "input[0]" in answer["warnings"][0]


async def test_a_stored_response_can_be_compacted(server):
    first = await send(server, input="Find the heron.")
    answer = await compact(server, input="And the owl?", previous_response_id=first["id"])
    assert [item["type"] for item in answer["output"]] == ["message", "message", "compaction"]
    found = await server.http.get(f"/v1/responses/{answer['id']}")
    assert found.status_code == 404


async def test_a_summary_without_a_text_is_an_error(server):
    server.say("")
    assert (await refuse(server, path=COMPACT, input=TALK))["param"] == "input"


@pytest.mark.parametrize("body", [{"input": 1}, {"input": [1]}, {"input": [], "previous_response_id": 1}])
async def test_what_is_wrong_with_it_is_refused(server, body):
    assert (await refuse(server, path=COMPACT, **body))["type"] == "invalid_request_error"


async def test_a_regular_expression_binds_the_text_of_a_tool(server):
    server.say('<tool_call>\n{"name": "write", "arguments": {"input": "42"}}\n</tool_call>')
    format = {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"}
    answer = await both(server, tools=[{**CUSTOM, "format": format}], tool_choice=CUSTOM)
    assert "warnings" not in answer
    assert answer["output"][0]["input"] == "42"
    assert json.dumps("^(?:[0-9]+)$") in tasks(server)[0].params.constraint.text


@pytest.mark.parametrize(
    ("format", "param"),
    [
        ("text", "tools[0].format"),
        ({"type": "json"}, "tools[0].format"),
        ({"type": "grammar", "syntax": "gbnf", "definition": "x"}, "tools[0].format.syntax"),
        ({"type": "grammar", "syntax": "regex"}, "tools[0].format.definition"),
    ],
)
async def test_other_formats_are_refused(server, format, param):
    assert (await refuse(server, tools=[{**CUSTOM, "format": format}]))["param"] == param
