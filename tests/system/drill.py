"""Streams of many kinds at once, whose answers can be compared when engines are lost."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from tests.system.fleet_answer import Answer
from tests.tools.family import TOOLS


class Served(Protocol):
    @property
    def url(self) -> str: ...


def ask(server: Served) -> list[Answer]:
    native: list[dict[str, Any]] = [
        {"temperature": 0},
        {"seed": 2, "grammar": 'root ::= ("the cat sat on " [a-z]+ " and ")+'},
        {"seed": 3, "repeat_penalty": 1.3},
        {"seed": 4, "mirostat": 2},
        {"seed": 5, "xtc_probability": 0.5},
        {"seed": 6, "json_schema": {"type": "array", "items": {"type": "integer"}, "minItems": 80}},
        {"seed": 7, "dry_multiplier": 0.8},
        {"temperature": 0, "n_probs": 2},
    ]
    common = {"n_predict": 160, "ignore_eos": True}
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Where is it cold?"}], "max_tokens": 160}
    chats: list[dict[str, Any]] = [
        {"tools": TOOLS, "tool_choice": "required", "seed": 8},
        {"n": 2, "seed": 9, "ignore_eos": True},
        {"tools": TOOLS, "tool_choice": "required", "seed": 10, "temperature": 1.5},
        {"n": 2, "seed": 11, "ignore_eos": True, "presence_penalty": 0.5},
    ]
    started = [
        Answer(server.url, "/completion", {"prompt": f"Story {i} begins", **common, **each})
        for i, each in enumerate(native)
    ]
    return [*started, *(Answer(server.url, "/v1/chat/completions", {**chat, **each}) for each in chats)]


async def finish(answers: list[Answer]) -> list[Any]:
    await asyncio.gather(*(answer.task for answer in answers))
    return [answer.said for answer in answers]
