"""A server that is killed with all of its processes and started again, and clients that come back to it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
from typing_extensions import Self

from tests.system.process import START_S, CorralProcess

CHAT = "/v1/chat/completions"
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"words": {"type": "array", "items": {"type": "string"}, "minItems": 40}},
            "required": ["words"],
        },
    },
}
MESSAGES = [{"role": "user", "content": "hello world"}]


class Reborn:
    """Mutable: the server of the moment."""

    def __init__(self, *options: object) -> None:
        self._options = options
        self.server = CorralProcess(*options)
        self.is_up = asyncio.Event()
        self.is_up.set()

    async def kill(self, n: int = 1) -> None:
        """Kill all processes at once, and start others."""
        for _ in range(n):
            self.is_up.clear()
            await asyncio.to_thread(self.server.kill)
            self.server = await asyncio.to_thread(CorralProcess, *self._options)
            self.is_up.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()


class Reader:
    """Mutable: a client of one durable stream. `data`: all that came, without ids."""

    def __init__(self, reborn: Reborn, path: str, body: dict[str, Any], **headers: str) -> None:
        self._reborn = reborn
        self._path = path
        self._body = {"stream": True, "durable": True, "cache_prompt": False, **body}
        self._headers = headers
        self._progress = asyncio.Event()
        self.last_id = ""
        self.n_posts = 0
        self.data = b""
        self.task = asyncio.create_task(self._run())

    @property
    def id(self) -> str:
        return self.last_id.rpartition(".")[0]

    @property
    def n_events(self) -> int:
        return self.data.count(b"data: ")

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = [line for line in self.data.decode().split("\n") if line.startswith("data: {")]
        return [json.loads(line.removeprefix("data: ")) for line in lines]

    async def reach(self, n: int) -> None:
        """Wait for the n-th event, or the end."""
        while self.n_events < n and not self.task.done():
            self._progress.clear()
            waiter = asyncio.create_task(self._progress.wait())
            await asyncio.wait({waiter, self.task}, return_when=asyncio.FIRST_COMPLETED)
            waiter.cancel()

    async def _run(self) -> None:
        async with httpx.AsyncClient(timeout=START_S) as http:
            while not await self._read(http):
                pass

    async def _read(self, http: httpx.AsyncClient) -> bool:
        """Begin or continue; returns whether it came to its end."""
        await self._reborn.is_up.wait()
        self.n_posts += 1
        headers = {**self._headers, **({"last-event-id": self.last_id} if self.last_id else {})}
        url = self._reborn.server.url + self._path
        try:
            async with http.stream("POST", url, json=self._body, headers=headers) as response:
                if response.status_code == 503:
                    return False
                assert response.status_code == 200, (response.status_code, await response.aread(), self._body)
                held = b""
                async for part in response.aiter_raw():
                    *events, held = (held + part).split(b"\n\n")
                    for event in events:
                        self._add(event)
        except httpx.TransportError:
            return False
        return True

    def _add(self, event: bytes) -> None:
        if event.startswith(b": "):
            return
        id, _, rest = event.partition(b"\n")
        assert id.startswith(b"id: "), event
        self.last_id = id.removeprefix(b"id: ").decode()
        self.data += rest + b"\n\n"
        self._progress.set()


def by_choice(events: list[dict[str, Any]]) -> dict[int, list[Any]]:
    """The events of each choice, without what differs between two runs: ids and times."""
    found: dict[int, list[Any]] = {}
    for event in events:
        event = _without(event, "id", "created", "timings", "id_slot")
        choices = event.get("choices") or [event]
        found.setdefault(choices[0].get("index", 0), []).append(event)
    return found


def _without(value: Any, *names: str) -> Any:
    if isinstance(value, list):
        return [_without(item, *names) for item in value]
    if isinstance(value, dict):
        return {key: _without(item, *names) for key, item in value.items() if key not in names}
    return value
