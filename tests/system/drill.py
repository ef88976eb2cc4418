"""Streams of many kinds at once, whose answers can be compared when engines are lost."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from tests.system.process import START_S, CorralProcess
from tests.tools.family import TOOLS


class Answer:
    """A streamed answer of any route: what every choice says, and how it ends."""

    def __init__(self, url: str, path: str, body: dict[str, Any]) -> None:
        self.events: list[dict] = []
        self._progress = asyncio.Event()
        self.task = asyncio.create_task(self._run(url + path, {**body, "stream": True}))

    async def _run(self, url: str, body: dict[str, Any]) -> None:
        async with (
            httpx.AsyncClient(timeout=START_S) as http,
            http.stream("POST", url, json=body) as response,
        ):
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    self.events.append(json.loads(line.removeprefix("data: ")))
                    self._progress.set()

    async def reach(self, n: int) -> None:
        while len(self.events) < n and not self.task.done():
            self._progress.clear()
            waiter = asyncio.create_task(self._progress.wait())
            await asyncio.wait({waiter, self.task}, return_when=asyncio.FIRST_COMPLETED)
            waiter.cancel()

    @property
    def said(self) -> Any:
        """All that does not depend on time."""
        if "choices" not in self.events[0]:
            assert [event["stop"] for event in self.events[:-1]] == [False] * (len(self.events) - 1)
            tokens = [token for event in self.events for token in event["tokens"]]
            text = "".join(event["content"] for event in self.events)
            return text, tokens, self.events[-1]["stop_type"], self.events[-1]["tokens_predicted"]
        said: dict[int, list] = {}
        for event in self.events:
            for choice in event["choices"]:
                said.setdefault(choice["index"], []).append(
                    (_timeless(choice["delta"]), choice["finish_reason"])
                )
        return [_joined(said[index]) for index in sorted(said)]


def _timeless(delta: dict[str, Any]) -> dict[str, Any]:
    calls = [{**call, "id": ""} for call in delta.get("tool_calls") or []]
    return {**delta, "tool_calls": calls} if calls else delta


def _joined(parts: list[tuple[dict, str | None]]) -> tuple[str, str, list[str | None]]:
    text = "".join(delta.get("content") or "" for delta, _ in parts)
    calls = [call["function"] for delta, _ in parts for call in delta.get("tool_calls", [])]
    arguments = "".join(call.get("name", "") + call.get("arguments", "") for call in calls)
    return text, arguments, [reason for _, reason in parts if reason]


def ask(server: CorralProcess) -> list[Answer]:
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
