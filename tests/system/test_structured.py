"""Grammars and schemas on the real command: defaults of the server, layouts, errors with their place."""

from __future__ import annotations

import json
import re

import httpx
import pytest

from tests.system.process import START_S, CorralProcess

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tall": {"type": "boolean"},
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string", "maxLength": 12},
                "zip": {"type": "integer", "maximum": 99},
            },
            "required": ["street", "zip"],
        },
    },
    "required": ["name", "age", "tall", "address"],
}


@pytest.fixture(scope="module")
def server(tiny):
    with CorralProcess("-m", tiny, "-c", 4096, "-np", 4) as server:
        yield server


@pytest.mark.parametrize("layout", ["compact", "spaced", "flexible"])
def test_layouts(server, layout):
    body = {"prompt": "x", "json_schema": PERSON, "n_predict": 600, "seed": 1, "json_whitespace": layout}
    answer = server.complete(**body)
    person = json.loads(answer["content"])
    assert list(person) == ["name", "age", "tall", "address"]
    separators = {"compact": (",", ":"), "spaced": (", ", ": ")}.get(layout)
    if separators:
        assert answer["content"] == json.dumps(person, separators=separators, ensure_ascii=False)
        assert answer["timings"]["forced_n"] * 3 > answer["timings"]["predicted_n"]


def test_a_stream_joined_is_the_answer(server):
    body = {"prompt": "x", "json_schema": PERSON, "n_predict": 600, "seed": 2}
    whole = server.complete(**body)
    with httpx.stream(
        "POST", f"{server.url}/completion", json={**body, "stream": True}, timeout=300
    ) as response:
        events = [json.loads(line[6:]) for line in response.iter_lines() if line]
    assert "".join(event["content"] for event in events) == whole["content"]
    assert sum(len(event["tokens"]) for event in events) == whole["tokens_predicted"]
    probable = server.complete(**body, n_probs=2)
    assert len(probable["completion_probabilities"]) == probable["tokens_predicted"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"grammar": "root ::= this is (not"}, ("Failed to parse grammar", "line 1, column")),
        ({"grammar": 'root ::= a\na ::= a "b"'}, ("Failed to parse grammar", "a", "left-recursive")),
        (
            {"json_schema": {"properties": {"a": {"$ref": "http://example.org/a"}}}},
            ("json_schema", "'$ref'", "#/properties/a"),
        ),
        ({"json_schema": {"type": 5}}, ("json_schema", "type")),
        ({"json_schema": "text"}, ("json_schema",)),
        ({"grammar": 'root ::= "a"', "json_schema": {}}, ("grammar", "json_schema")),
    ],
)
def test_errors_name_the_place(server, body, words):
    response = server.post("/completion", prompt="x", **body)
    assert response.status_code == 400
    for word in words:
        assert word in response.json()["error"]["message"]


def test_forced_characters_are_whole_wherever_the_answer_ends(server):
    text = "日本語😀"
    for n_predict in range(1, len(text.encode())):
        body = {"prompt": "x", "guided_choice": [text], "n_predict": n_predict, "return_tokens": True}
        answer = server.complete(**body)
        content = server.post("/detokenize", tokens=answer["tokens"]).json()["content"]
        assert answer["content"] == content
        assert text.startswith(content)
        assert answer["tokens_predicted"] >= n_predict


def test_grammars_go_with_everything_else(server):
    answer = server.complete(
        prompt="x", grammar='root ::= "yes" | "no"', logit_bias=[["y", False], ["yes", False]]
    )
    assert answer["content"] == "no"
    answer = server.complete(prompt="x", grammar='root ::= "one, two, three"', stop=[", t"])
    assert (answer["content"], answer["stop_type"], answer["truncated_grammar"]) == ("one", "word", True)
    answers = server.complete(prompt="x", grammar='root ::= "a" [0-9]{9}', n=3, seed=1)
    assert len({answer["content"] for answer in answers}) == 3
    assert all(re.fullmatch("a[0-9]{9}", answer["content"]) for answer in answers)
    assert [answer["tokens_evaluated"] for answer in answers] == [1, 1, 1]


def test_a_grammar_outlives_a_context_shift(tiny):
    with CorralProcess("-m", tiny, "-c", 256, "--context-shift") as server:
        grammar = 'root ::= ("abc" [0-9] " ")+'
        answer = server.complete(prompt="x", grammar=grammar, n_predict=600, ignore_eos=True, seed=1)
    assert answer["truncated"]
    assert answer["tokens_predicted"] == 600
    assert re.fullmatch("(abc[0-9] )*a?b?c?[0-9]? ?", answer["content"])


def test_a_tool_that_cannot_be_enforced_is_named(server):
    tools = [
        {"function": {"name": "a", "parameters": {"type": "object", "properties": {}}}},
        {
            "function": {
                "name": "b",
                "parameters": {"type": "object", "properties": {"x": {"not": {"format": "email"}}}},
            }
        },
    ]
    body = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "max_tokens": 60}
    response = server.post("/v1/chat/completions", **body, tool_choice="required")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools[1].function.parameters"
    assert "#/properties/x" in response.json()["error"]["message"]
    assert server.post("/v1/chat/completions", **body).status_code == 200


STRINGS = {"items": {"type": "string", "maxLength": 3}, "minItems": 10, "maxItems": 12}
NAMED = {"properties": {"name": {"title": "Name", "maxLength": 3}}, "required": ["name"]}
FORMATS = {
    "json_object": lambda schema: {"type": "json_object", "schema": schema},
    "beside its type": lambda schema: {"type": "json_schema", "schema": schema},
    "as the schema": lambda schema: {"type": "json_schema", "json_schema": schema},
    "wrapped": lambda schema: {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
}


def assert_meant(text: str, schema: dict) -> None:
    value = json.loads(text)
    if schema is NAMED:
        assert (list(value), type(value["name"])) == (["name"], str)
    else:
        assert 10 <= len(value) <= 12
        assert {type(item) for item in value} == {str}


@pytest.mark.parametrize("schema", [STRINGS, NAMED], ids=["strings", "named"])
def test_a_schema_without_a_type_is_followed_as_it_is_meant_by_every_route(server, schema):
    for seed in range(4):
        answer = server.complete(prompt="x", json_schema=schema, n_predict=400, seed=seed)
        assert_meant(answer["content"], schema)
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 400, "seed": 1}
    bodies = [{"response_format": make(schema)} for make in FORMATS.values()]
    for body in [{"json_schema": schema}, *bodies]:
        answer = server.post("/v1/chat/completions", **chat, **body).json()
        assert_meant(answer["choices"][0]["message"]["content"], schema)
    tool = {"function": {"name": "f", "parameters": {"properties": {"x": schema}, "required": ["x"]}}}
    answer = server.post("/v1/chat/completions", **chat, tools=[tool], tool_choice="required").json()
    arguments = json.loads(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])
    assert_meant(json.dumps(arguments["x"]), schema)


def test_a_format_whose_schema_is_not_wrapped_keeps_its_type(server):
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 50, "seed": 1}
    format = {"type": "json_schema", "json_schema": {"type": "string", "maxLength": 3}}
    answer = server.post("/v1/chat/completions", **body, response_format=format).json()
    assert isinstance(json.loads(answer["choices"][0]["message"]["content"]), str)


def test_the_servers_own_grammar_and_schema(tiny, tmp_path):
    path = tmp_path / "yes.gbnf"
    path.write_text('root ::= "yes" | "no"')
    messages = [{"role": "user", "content": "x"}]
    with CorralProcess("-m", tiny, "-c", 512, "--grammar-file", path) as server:
        assert server.complete(prompt="x")["content"] in ("yes", "no")
        assert server.complete(prompt="x", grammar='root ::= "own"')["content"] == "own"
        answer = server.post("/v1/chat/completions", messages=messages).json()
        assert answer["choices"][0]["message"]["content"] in ("yes", "no")
    with CorralProcess("-m", tiny, "-c", 512, "-j", '{"enum": [1, 2]}') as server:
        assert server.complete(prompt="x")["content"] in ("1", "2")
    with CorralProcess("-m", tiny, "-c", 512, "-j", json.dumps(STRINGS)) as server:
        assert_meant(server.complete(prompt="x", seed=1)["content"], STRINGS)


@pytest.mark.parametrize(
    "option",
    [("--grammar", "root ::= ("), ("-j", "{"), ("--grammar-file", "/no/such")],
)
def test_a_wrong_default_ends_the_start(refused, tiny, option):
    status, said = refused("-m", tiny, *option)
    assert status == 2
    assert any(word in said for word in ("grammar", "schema", f"{option[0]}: "))


def test_a_default_that_cannot_be_enforced_ends_the_start(tiny):
    server = CorralProcess("-m", tiny, "-c", 512, "-j", '{"not": {}}', wait=False)
    assert server.process.wait(START_S) == 1
    server.stop()
    assert "schema" in server.lines[-1]
