"""Anthropic's API: `/v1/messages`."""

from __future__ import annotations

from typing import Any

from tests.golden.case import Ask, Case
from tests.golden.cases.dialect import FEATURES, N_CUT, SCHEMA, UNIQUE, Dialect, errors_of, features_of

HELLO = [{"role": "user", "content": "Hi"}]
TOOLS = [{"name": "weather", "input_schema": SCHEMA}]


def _format(schema: object) -> dict[str, Any]:
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


MESSAGES = Dialect(
    "messages",
    "/v1/messages",
    {"model": "m", "max_tokens": 500, "messages": HELLO},
    {
        "text": {},
        "reasoning": {},
        "one call": {"tools": TOOLS},
        "several calls": {"tools": TOOLS},
        "cut call": {"tools": TOOLS, "max_tokens": N_CUT},
        "stop string": {"stop_sequences": ["two"]},
        "length": {"max_tokens": 4},
        "error after the first token": {},
        "structured output": _format(SCHEMA),
        "redraw": _format(UNIQUE),
        "unmet schema": _format(UNIQUE),
    },
    {"logprobs": "not in this API", "three answers": "not in this API"},
)
DIALECTS = (MESSAGES,)
ask, stream = MESSAGES.ask, MESSAGES.stream
_VERSION = {"anthropic-version": "2023-06-01"}

CASES = [
    *features_of(MESSAGES),
    *errors_of(MESSAGES),
    Case(
        "a budget of reasoning",
        (ask(thinking={"type": "enabled", "budget_tokens": 3}),),
        FEATURES["reasoning"],
    ),
    Case(
        "reasoning that is not shown",
        (ask(thinking={"type": "adaptive", "display": "omitted"}),),
        FEATURES["reasoning"],
    ),
    Case("a tool must be called", (ask(tools=TOOLS, tool_choice={"type": "any"}),), FEATURES["one call"]),
    Case("the second time", (ask(), ask(), stream(cache_control={"type": "ephemeral"}))),
    Case("two answers", (ask(n=2),)),
    Case("a prompt that is too long", (ask(messages=[{"role": "user", "content": "x" * 9000}]),)),
    Case("a field that is not known", (ask(unknown=1), stream(unknown=1))),
    Case("a key in the header of this API", (ask({"x-api-key": "key-user"}),)),
    Case(
        "tokens of a message",
        (
            Ask("POST", "/v1/messages/count_tokens", {"model": "m", "messages": HELLO, "tools": TOOLS}),
            Ask("POST", "/v1/messages/count_tokens", {"model": "m"}),
        ),
    ),
    Case(
        "models as in this API",
        (
            Ask("GET", "/v1/models", headers=_VERSION),
            Ask("GET", "/v1/models/m", headers=_VERSION),
            Ask("GET", "/v1/models/x", headers=_VERSION),
        ),
    ),
]
