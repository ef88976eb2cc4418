"""`/v1/responses` of a real server, with the `openai` package: streams, schemas, background, a restart."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import openai
import pydantic
import pytest

from tests.system.batch import client_of
from tests.system.process import CorralProcess
from tests.tools.wait import wait_until

ASK: dict[str, Any] = {"model": "any", "input": "Once upon a time", "max_output_tokens": 12}
SEED: dict[str, Any] = {"extra_body": {"seed": 7}}
TOOL: Any = {
    "type": "function",
    "name": "go",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"to": {"enum": ["north", "south"]}},
        "required": ["to"],
        "additionalProperties": False,
    },
}


class Answer(pydantic.BaseModel):
    yes: bool
    number: int = pydantic.Field(ge=0, le=9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("responses")


@pytest.fixture(scope="module")
def server(tiny, folder):
    options = ("-c", 4096, "-np", 2, "-t", 1, "--context-shift", "--responses", folder)
    with CorralProcess("-m", tiny, *options) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with client_of(server) as client:
        yield client


def test_whole_and_streamed_answers_agree(client):
    whole = client.responses.create(**ASK, **SEED)
    with client.responses.stream(**ASK, **SEED) as stream:
        events = list(stream)
    last = events[-1]
    assert last.response.output_text == whole.output_text
    assert (last.response.status, last.type) == (whole.status, f"response.{whole.status}")
    again = list(client.responses.retrieve(last.response.id, stream=True))
    assert [event.type for event in again] == [event.type for event in events]
    chat = client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": ASK["input"]}], max_tokens=12, seed=7
    )
    assert chat.choices[0].message.content == whole.output_text
    assert chat.usage.prompt_tokens == whole.usage.input_tokens


def test_a_schema_and_a_call_are_followed(client):
    parsed = client.responses.parse(
        model="any", input="Yes?", text_format=Answer, max_output_tokens=200, **SEED
    )
    assert isinstance(parsed.output_parsed, Answer)
    with client.responses.stream(
        model="any", input="Where?", tools=[TOOL], tool_choice={"type": "function", "name": "go"}, **SEED
    ) as stream:
        first = stream.get_final_response()
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert call.parsed_arguments["to"] in ("north", "south")
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    after = client.responses.create(
        model="any", input=[output], previous_response_id=first.id, max_output_tokens=4
    )
    assert after.usage.input_tokens > first.usage.input_tokens


def test_a_response_in_the_background_can_be_left_followed_and_cancelled(client):
    ask: dict[str, Any] = {**ASK, "max_output_tokens": 100_000, "background": True}
    endless = {"extra_body": {"ignore_eos": True, "seed": 7}}
    with client.responses.create(**ask, **endless, stream=True) as stream:
        seen = [next(stream) for _ in range(8)]
    id = seen[0].response.id
    assert client.responses.retrieve(id).status == "in_progress"
    with client.responses.retrieve(id, stream=True, starting_after=7) as stream:
        assert [next(stream).sequence_number for _ in range(3)] == [8, 9, 10]
    cancelled = client.responses.cancel(id)
    assert cancelled.status == "cancelled"
    assert client.responses.retrieve(id) == cancelled
    *_, last = client.responses.retrieve(id, stream=True)
    assert last.response.status == "cancelled"


def test_a_response_in_the_background_does_not_hold_up_the_end_of_a_server(tiny, tmp_path):
    options = ("-m", tiny, "-c", 4096, "-np", 1, "-t", 1, "--context-shift", "--responses", tmp_path)
    with CorralProcess(*options) as server, client_of(server) as client:
        ask: dict[str, Any] = {**ASK, "max_output_tokens": 100_000, "background": True}
        id = client.responses.create(**ask, extra_body={"ignore_eos": True}).id
        wait_until(lambda: client.responses.retrieve(id).status == "in_progress")
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.process.wait() == 0
    with CorralProcess(*options) as server, client_of(server) as client:
        assert client.responses.retrieve(id).status == "failed"


def test_a_regular_expression_binds_the_text_of_a_tool(client):
    format = {"type": "grammar", "syntax": "regex", "definition": r'"[a-c]{2}\\"\n[0-9]{3}'}
    tool: Any = {"type": "custom", "name": "write", "format": format}
    choice: Any = {"type": "custom", "name": "write"}
    asked: Any = {**ASK, "max_output_tokens": 100, "tools": [tool], "tool_choice": choice}
    for seed in range(3):
        (call,) = client.responses.create(**asked, extra_body={"seed": seed}).output
        assert re.fullmatch(format["definition"], call.input), call.input
    broken: Any = {**tool, "format": {**format, "definition": "[0-9"}}
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(**{**asked, "tools": [broken]})
    assert error.value.param == "tools[0].format.definition"


def test_a_conversation_is_compacted(client):
    compacted = client.responses.compact(model="any", input=[{"role": "user", "content": "Once upon a time"}])
    assert [item.type for item in compacted.output] == ["message", "compaction"]
    items: Any = [item.model_dump(exclude_none=True, warnings=False) for item in compacted.output]
    more: Any = {**ASK, "input": [*items, {"role": "user", "content": "Go on."}]}
    answer = client.responses.create(**more, extra_body={"ignore_eos": True})
    assert answer.output_text
    assert not (answer.model_extra or {}).get("warnings")


def test_what_is_kept_survives_a_crash(tiny, folder, client, server):
    response = client.responses.create(**ASK, **SEED)
    conversation = client.conversations.create(items=[{"role": "user", "content": "Hello."}])
    wait_until(lambda: len(list(folder.rglob(f"{conversation.id}.json"))))
    wait_until(lambda: len(list(folder.rglob(f"{response.id}.json"))))
    os.kill(server.process.pid, signal.SIGKILL)
    with (
        CorralProcess("-m", tiny, "-c", 4096, "-np", 2, "-t", 1, "--responses", folder) as other,
        client_of(other) as client,
    ):
        assert client.responses.retrieve(response.id) == response
        more = client.responses.create(**{**ASK, "input": "more"}, previous_response_id=response.id)
        assert more.usage.input_tokens > response.usage.input_tokens
        assert [item.role for item in client.conversations.items.list(conversation.id)] == ["user"]
