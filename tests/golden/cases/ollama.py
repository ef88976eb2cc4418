"""Ollama's API."""

from __future__ import annotations

from typing import Any

from tests.golden.case import Ask, Case, Model
from tests.golden.cases.dialect import N_CUT, SCHEMA, UNIQUE, Dialect, errors_of, features_of

HELLO = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
_ANSWERS: dict[str, dict[str, Any]] = {
    "text": {},
    "reasoning": {},
    "stop string": {"options": {"stop": ["two"]}},
    "length": {"options": {"num_predict": 4}},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "error after the first token": {},
    "structured output": {"format": SCHEMA},
    "redraw": {"format": UNIQUE},
    "unmet schema": {"format": UNIQUE},
}
_ALWAYS: dict[str, Any] = {"streamed": {}, "whole": {"stream": False}}
_LACKS = {"three answers": "not in this API"}
CHAT = Dialect(
    "ollama chat",
    "/api/chat",
    {"model": "m", "messages": HELLO},
    {
        **_ANSWERS,
        "one call": {"tools": TOOLS},
        "several calls": {"tools": TOOLS},
        "cut call": {"tools": TOOLS, "options": {"num_predict": N_CUT}},
    },
    _LACKS,
    **_ALWAYS,
)
GENERATE = Dialect(
    "ollama generate",
    "/api/generate",
    {"model": "m", "prompt": "Hi"},
    _ANSWERS,
    {**_LACKS, **dict.fromkeys(("one call", "several calls", "cut call"), "this route has no tools")},
    **_ALWAYS,
)
DIALECTS = (CHAT, GENERATE)


def _post(path: str, **fields: Any) -> Ask:
    return Ask("POST", path, {"model": "m", **fields})


CASES = [
    *(case for dialect in DIALECTS for case in (*features_of(dialect), *errors_of(dialect))),
    Case("without messages", (CHAT.ask(messages=[]), CHAT.stream(messages=[]), GENERATE.ask(prompt=""))),
    Case("unload at once", (CHAT.ask(keep_alive=0), CHAT.ask(messages=[], keep_alive=0))),
    Case("no template", (GENERATE.ask(raw=True), GENERATE.ask(suffix="end"))),
    Case("a tag of the model", (CHAT.ask(model="m:latest"),)),
    Case("no thinking", (CHAT.ask(think=False), GENERATE.ask(think="high"))),
    Case(
        "models",
        (
            Ask("GET", "/api/tags"),
            Ask("HEAD", "/api/tags"),
            Ask("GET", "/api/ps"),
            Ask("GET", "/api/version"),
            _post("/api/show"),
            _post("/api/show", model="x"),
            _post("/api/pull"),
            _post("/api/pull", stream=False),
            _post("/api/pull", model="x"),
        ),
    ),
    Case(
        "models that are not loaded",
        (Ask("GET", "/api/tags"), Ask("GET", "/api/ps"), _post("/api/show")),
        Model(is_loaded=False),
    ),
    Case(
        "embeddings",
        (
            _post("/api/embed", input=["Hi", "you"]),
            _post("/api/embeddings", prompt="Hi"),
            _post("/api/embed"),
        ),
    ),
]
