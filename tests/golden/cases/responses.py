"""OpenAI's Responses API."""

from __future__ import annotations

from typing import Any

from tests.golden.case import Ask, Begin, Case, Model
from tests.golden.cases.dialect import FEATURES, N_CUT, SCHEMA, UNIQUE, Dialect, errors_of, features_of

TOOLS = [{"type": "function", "name": "weather", "parameters": SCHEMA}]


def _format(schema: object) -> dict[str, Any]:
    return {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}


RESPONSES = Dialect(
    "responses",
    "/v1/responses",
    {"model": "m", "input": "Hi"},
    {
        "text": {},
        "reasoning": {},
        "one call": {"tools": TOOLS},
        "several calls": {"tools": TOOLS},
        "cut call": {"tools": TOOLS, "max_output_tokens": N_CUT},
        "stop string": {"stop": ["two"]},
        "length": {"max_output_tokens": 4},
        "logprobs": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        "error after the first token": {},
        "structured output": _format(SCHEMA),
        "redraw": _format(UNIQUE),
        "unmet schema": _format(UNIQUE),
    },
    {"three answers": "not in this API"},
)
DIALECTS = (RESPONSES,)
ask, stream = RESPONSES.ask, RESPONSES.stream
_KEPT = Ask("POST", "/v1/responses", {"model": "m", "input": "Hi"}, keeps={"id": "id"})
_LATER = Ask("POST", "/v1/responses", {"model": "m", "input": "Hi", "background": True}, keeps={"id": "id"})
_MADE = Ask(
    "POST",
    "/v1/conversations",
    {"metadata": {"a": "b"}, "items": [{"role": "user", "content": "1"}]},
    keeps={"id": "id"},
)
_NONE = "resp_00000000000000000000000000000000"


def _at(method: str, path: str = "", body: Any = None, **options: Any) -> Ask:
    return Ask(method, f"/v1/responses/$id{path}", body, **options)


def _in(method: str, path: str = "", body: Any = None, **options: Any) -> Ask:
    return Ask(method, f"/v1/conversations/$id{path}", body, **options)


CASES = [
    *features_of(RESPONSES),
    *errors_of(RESPONSES),
    Case("an answer that is not kept", (ask(store=False), stream(store=False))),
    Case("instructions and metadata", (ask(instructions="Be brief.", metadata={"a": "b"}, user="u"),)),
    Case(
        "reasoning of which only a code is shown",
        (ask(include=["reasoning.encrypted_content"]),),
        FEATURES["reasoning"],
    ),
    Case("a field that is not known", (ask(unknown=1), stream(unknown=1))),
    Case("a prompt that is too long", (ask(input="x" * 9000), ask(input="x" * 9000, truncation="auto"))),
    Case("without the version in the path", (Ask("POST", "/responses", RESPONSES.body),)),
    Case(
        "tokens of a response",
        tuple(
            Ask("POST", f"{path}/input_tokens", RESPONSES.body) for path in ("/v1/responses", "/responses")
        ),
    ),
    Case("a summary of a conversation", (Ask("POST", "/v1/responses/compact", RESPONSES.body),)),
    Case(
        "kept, continued and removed",
        (
            _KEPT,
            _at("GET"),
            _at("HEAD"),
            _at("GET", "?stream=true"),
            _at("GET", "/input_items"),
            Ask("POST", "/v1/responses", {"model": "m", "input": "And?", "previous_response_id": "$id"}),
            _at("POST", "/cancel"),
            _at("DELETE"),
            _at("GET"),
            Ask("POST", "/v1/responses", {"model": "m", "input": "And?", "previous_response_id": "$id"}),
        ),
    ),
    Case(
        "of another key",
        (_KEPT, _at("GET", key="user"), _at("DELETE", key="user"), _at("GET", key="")),
        setups=("one sealed", "many sealed"),
    ),
    Case(
        "one that does not exist",
        tuple(
            Ask(method, f"/v1/responses/{_NONE}{path}")
            for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items"))
        ),
    ),
    Case(
        "in the background",
        (
            _LATER,
            _at("GET", until='"completed"'),
            _at("GET", "?stream=true"),
            _at("GET", "?stream=true&starting_after=8"),
        ),
    ),
    Case(
        "cancelled in the background",
        (Begin(ask(), steps=2), _LATER, _at("POST", "/cancel"), _at("GET", until='"cancelled"')),
        Model(n_slots=1),
    ),
    Case(
        "failed in the background",
        (_LATER, _at("GET", until='"failed"')),
        FEATURES["error after the first token"],
    ),
    Case("streamed in the background", (stream(background=True),)),
    Case(
        "a conversation",
        (
            _MADE,
            _in("GET"),
            _in("POST", "", {"metadata": {"c": "d"}}),
            Ask("POST", "/v1/responses", {"model": "m", "input": "2", "conversation": "$id"}),
            _in("GET", "/items", keeps={"item": "data.0.id"}),
            _in("GET", "/items?limit=1&order=asc"),
            _in("GET", "/items/$item"),
            _in("POST", "/items", {"items": [{"role": "user", "content": "3"}]}),
            _in("DELETE", "/items/$item"),
            _in("GET", "/items/$item"),
            _in("DELETE"),
            _in("GET"),
        ),
    ),
]
