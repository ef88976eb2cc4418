"""A streamed answer that may be compared with another one to the same request."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx

from tests.system.process import START_S


class Answer:
    """A streamed answer of any route: what every choice says, and how it ends."""

    def __init__(self, url: str, path: str, body: dict[str, Any]) -> None:
        self.events: list[dict] = []
        self.first_s: float | None = None  # from the request to its first token
        self._asked_at = time.monotonic()
        self._progress = asyncio.Event()
        self.task = asyncio.create_task(self._run(url + path, {**body, "stream": True}))

    async def _run(self, url: str, body: dict[str, Any]) -> None:
        async with (
            httpx.AsyncClient(timeout=START_S, verify=False) as http,
            http.stream("POST", url, json=body) as response,
        ):
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    self._note(json.loads(line.removeprefix("data: ")))
                    self._progress.set()

    def _note(self, event: dict) -> None:
        self.events.append(event)
        if self.first_s is None and _has_token(event):
            self.first_s = time.monotonic() - self._asked_at

    async def reach(self, n: int) -> None:
        while len(self.events) < n and not self.task.done():
            self._progress.clear()
            waiter = asyncio.create_task(self._progress.wait())
            await asyncio.wait({waiter, self.task}, return_when=asyncio.FIRST_COMPLETED)
            waiter.cancel()

    @property
    def said(self) -> Any:
        """All that does not depend on time."""
        assert "error" not in self.events[-1], self.events[-1]
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


def _has_token(event: dict[str, Any]) -> bool:
    if "choices" not in event:
        return bool(event["tokens"])
    deltas = [choice["delta"] for choice in event["choices"]]
    return any(delta.get("content") or delta.get("tool_calls") for delta in deltas)
