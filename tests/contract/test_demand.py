"""What vLLM's and SGLang's clients demand of an answer: enforced, or refused with the name of the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.inline import Server, post
from tests.contract.messages_client import tasks
from tests.unit.fake import FakeBackend

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
PATHS = (CHAT, TEXT, NATIVE)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
GBNF, LARK = 'root ::= "a" | "b"', 'start: "a" | "b"'
TOOL = {"type": "function", "function": {"name": "go", "parameters": {"type": "object", "properties": {}}}}

SAME: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "json": (
        {"json_schema": SCHEMA},
        [
            {"structured_outputs": {"json": SCHEMA}},
            {
                "structured_outputs": {
                    "json": json.dumps(SCHEMA),
                    "regex": None,
                    "disable_any_whitespace": True,
                }
            },
            {"guided_json": SCHEMA, "guided_decoding_backend": "outlines"},
            {"guided_json": json.dumps(SCHEMA)},
        ],
    ),
    "object": ({"json_schema": {"type": "object"}}, [{"structured_outputs": {"json_object": True}}]),
    "gbnf": (
        {"grammar": GBNF},
        [{"structured_outputs": {"grammar": GBNF}}, {"guided_grammar": GBNF}, {"ebnf": GBNF}],
    ),
    "lark": ({"guided_grammar": LARK, "structured_outputs": {"grammar": LARK}}, [{"ebnf": LARK}]),
    "regex": ({"regex": "a/b"}, [{"guided_regex": "a/b"}, {"structured_outputs": {"regex": "a/b"}}]),
    "choice": ({"guided_choice": ["a", 'b"']}, [{"structured_outputs": {"choice": ["a", 'b"']}}]),
    "format": (
        {"guided_json": SCHEMA},
        [{"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}],
    ),
}


@pytest.fixture
def server():
    return Server()


def body_of(path: str, **fields: Any) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": "hello"}]} if path == CHAT else {"prompt": "hello"}
    return {**asked, "max_tokens": 1, **fields}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("ours", "theirs"), SAME.values(), ids=SAME)
async def test_their_fields_are_enforced_as_ours(server, path, ours, theirs):
    for fields in (ours, *theirs):
        answer = await post(server, path, json=body_of(path, **fields))
        assert "warnings" not in answer
        assert tasks(server)[-1].params.constraint is not None
    first, *others = [task.params.constraint for task in tasks(server)]
    assert {(each.kind, each.text) for each in others} == {(first.kind, first.text)}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        (
            {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
        ),
        ({"structured_outputs": {"new": "a"}}, "structured_outputs.new"),
        ({"structured_outputs": {"json": {"minimum": 2**60}}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": 5}}, "structured_outputs.json"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": [5]}}, "structured_outputs.choice[0]"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
        ({"structured_outputs": "json"}, "structured_outputs"),
        ({"guided_json": {"minimum": 2**60}}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"structural_tag": "{}"}, "structural_tag"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_json"),
        ({"guided_grammar": "a", "structured_outputs": {"grammar": "b"}}, "structured_outputs.grammar"),
        ({"grammar": GBNF, "regex": "a"}, "grammar"),
        ({"regex": "a", "json_schema": SCHEMA}, "regex"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "regex"),
        ({"response_format": {"type": "structural_tag"}}, "response_format"),
        ({"extra_body": {"guided_json": SCHEMA}}, "extra_body.guided_json"),
        ({"extra_body": {"grammar": GBNF}}, "extra_body.grammar"),
        ({"extra_body": {"structured_outputs": {"json": SCHEMA}}}, "extra_body.structured_outputs"),
    ],
)
async def test_what_cannot_be_enforced_is_refused(server, path, stream, fields, param):
    error = await post(server, path, 400, json=body_of(path, stream=stream, **fields))
    assert error["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "a", "tools": [TOOL]}, "guided_regex"),
        ({"guided_choice": ["a"], "response_format": {"type": "json_object"}}, "guided_choice"),
        ({"response_format": {"type": "json_object"}, "json_schema": SCHEMA}, "response_format"),
    ],
)
async def test_what_only_chats_have_is_not_combined_either(fields, param):
    server = Server(FakeBackend(n_ctx=1024))
    assert (await post(server, CHAT, 400, json=body_of(CHAT, **fields)))["param"] == param
    same = {"response_format": {"type": "json_object", "schema": SCHEMA}, "guided_json": SCHEMA}
    await post(server, CHAT, json=body_of(CHAT, **same))


FORMAT = {"type": "json_schema", "schema": SCHEMA}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/responses", {"text": {"format": {"name": "a", **FORMAT}}}, "text.format"),
        ("/v1/messages", {"output_format": FORMAT}, "output_format"),
        ("/v1/messages", {"output_config": {"format": FORMAT}}, "output_config.format"),
    ],
)
async def test_a_format_of_chats_is_enforced_in_other_dialects_but_not_beside_their_own(
    server, path, body, field
):
    talk = {"input": "hello"} if path == "/v1/responses" else body_of(CHAT)
    wanted = {"response_format": {"type": "json_object", "schema": SCHEMA}}
    for fields in (body, wanted):
        assert "warnings" not in await post(server, path, json={**talk, **fields})
    own, chat = [task.params.constraint for task in tasks(server)]
    assert own.text == chat.text
    both = await server.http.post(path, json={**talk, **body, **wanted})
    assert both.status_code == 400
    message = f"Field 'response_format': cannot be combined with '{field}'"
    assert both.json()["error"]["message"] == message


async def test_other_fields_of_extra_body_are_unknown(server):
    answer = await post(server, TEXT, json=body_of(TEXT, extra_body={"google": {}}))
    assert answer["warnings"] == ["Field 'extra_body' is unknown and was ignored"]


@pytest.mark.parametrize("path", [*PATHS, "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("value", [[None], [], "", False])
@pytest.mark.parametrize("name", ["schema", "json_schema"])
async def test_what_a_format_of_text_does_not_use_has_its_type_too(server, path, name, value):
    asked = {"input": "hello"} if path == "/v1/responses" else body_of(CHAT if "messages" in path else path)
    format = {"type": "text", name: value}
    response = await server.http.post(path, json={**asked, "max_tokens": 1, "response_format": format})
    assert response.status_code == 400
    assert f"response_format.{name}" in response.text


async def test_the_schema_of_a_response_of_text_has_its_type_too(server):
    body = {"input": "hello", "text": {"format": {"type": "text", "schema": [None]}}}
    response = await server.http.post("/v1/responses", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "text.format.schema"
