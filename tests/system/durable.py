"""A server that is killed with all of its processes and started again, a network that is cut, and clients
that come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import httpx
from typing_extensions import Self

from tests.system.process import START_S, CorralProcess
from tests.tools.cut_proxy import CutProxy

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
Kill = Callable[[], Awaitable[None]]
Asked = list[tuple[str, dict[str, Any]]]  # paths and bodies
EXACT = "--batch-exact"  # so that answers are the same after a loss
MESSAGES = [{"role": "user", "content": "hello world"}]


class Place(Protocol):
    """Where clients find a server, as soon as it is up."""

    is_up: asyncio.Event

    @property
    def url(self) -> str: ...


class Reborn:
    """Mutable: the server of the moment. `options`: of the next one."""

    def __init__(self, *options: object) -> None:
        self.options = options
        self.server = CorralProcess(*options, EXACT)
        self.is_up = asyncio.Event()
        self.is_up.set()

    @property
    def url(self) -> str:
        return self.server.url

    async def kill(self) -> None:
        """Kill all processes at once, and start others."""
        await self._replace(self.server.kill)

    async def kill_front(self) -> None:
        """Kill only the process that speaks HTTP, and start another server."""
        await self._replace(self.server.process.kill)

    async def kill_engine(self) -> None:
        """Kill only the engine; its front starts another one."""
        lost = self.server.engine
        lost.kill()
        await asyncio.to_thread(self.server.next_engine, lost)

    async def _replace(self, kill: Callable[[], None]) -> None:
        self.is_up.clear()
        await asyncio.to_thread(kill)
        await asyncio.to_thread(self.server.stop)
        self.server = await asyncio.to_thread(CorralProcess, *self.options, EXACT)
        self.is_up.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()


class Behind:
    """The address of a server behind a network."""

    def __init__(self, proxy: CutProxy) -> None:
        self._proxy = proxy
        self.url = proxy.url
        self.is_up = asyncio.Event()
        self.is_up.set()

    async def cut(self) -> None:
        """Cut all connections, and let clients try again."""
        self.is_up.clear()
        await asyncio.to_thread(self._proxy.cut)
        self._proxy.mend()
        self.is_up.set()


class Reader:
    """Mutable: a client of one durable stream. `data`: all that came, without ids."""

    def __init__(self, place: Place, path: str, body: dict[str, Any], **headers: str) -> None:
        self._place = place
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
        await self._place.is_up.wait()
        self.n_posts += 1
        headers = {**self._headers, **({"last-event-id": self.last_id} if self.last_id else {})}
        url = self._place.url + self._path
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


def start(place: Place, asked: Asked, n_predict: int) -> list[Reader]:
    limits = {"n_predict": n_predict, "ignore_eos": True}
    return [Reader(place, path, {**body, **limits}) for path, body in asked]


async def run(place: Place, asked: Asked, n_predict: int, kills: Sequence[tuple[int, Kill]]) -> list[Reader]:
    """Ask everything; kill processes each time some streams have that many events."""
    readers = start(place, asked, n_predict)
    for n, kill in kills:
        await asyncio.gather(*(reader.reach(n) for reader in readers[:3]))
        await kill()
    await asyncio.gather(*(reader.task for reader in readers))
    return readers


async def check_bytes(reborn: Reborn, readers: list[Reader]) -> None:
    """What the last server has is what its clients got from all servers, to the byte."""
    async with httpx.AsyncClient(base_url=reborn.server.url, timeout=START_S) as http:
        for reader in readers:
            whole = await http.get("/v1/stream", params={"conv_id": reader.id})
            lines = [line for line in whole.text.splitlines() if not line.startswith("id: ")]
            assert "\n".join(lines).strip() == reader.data.decode().strip()


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
