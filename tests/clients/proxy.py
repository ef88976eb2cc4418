"""A reverse proxy that writes requests and answers to a file: one JSON object a line."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.tools.wait import wait_until

Change = Callable[[str, dict[str, Any]], dict[str, Any]]

SECRET = frozenset({"authorization", "x-api-key", "cookie"})
OF_CONNECTION = frozenset({"host", "content-length", "transfer-encoding", "connection"})
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


@dataclass(frozen=True)
class Exchange:
    """A request as the client sent it, and its answer as the client got it."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    status: int
    answer: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """The JSON objects of a stream."""
        lines = (
            line.removeprefix("data:").strip() for line in self.answer.splitlines() if line[:5] == "data:"
        )
        return [json.loads(line) for line in lines if line != "[DONE]"]


class Proxy:
    """Passes requests on to `upstream`, JSON bodies as `change` returns them."""

    def __init__(self, upstream: str, log: Path, change: Change) -> None:
        self.exchanges: list[Exchange] = []
        self.url = ""
        self._upstream = upstream
        self._http: httpx.AsyncClient
        self._log = log
        self._change = change

    @contextmanager
    def serve(self):
        """Listens on a free port, in a thread, while the context is open."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log.write_text("")
        app = Starlette(routes=[Route("/{path:path}", self._pass_on, methods=METHODS)], lifespan=self._open)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", loop="asyncio"))
        thread = threading.Thread(target=server.run)
        thread.start()
        wait_until(lambda: server.started or not thread.is_alive())
        self.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        yield self
        server.should_exit = True
        thread.join()

    @asynccontextmanager
    async def _open(self, _: Starlette) -> AsyncIterator[None]:
        async with httpx.AsyncClient(base_url=self._upstream, timeout=None) as self._http:
            yield

    async def _pass_on(self, request: Request) -> Response:
        raw = await request.body()
        sent = _parse(raw)
        path = request.url.path
        if isinstance(sent, dict):
            raw = json.dumps(self._change(path, json.loads(raw))).encode()
        onward = self._http.build_request(
            request.method,
            httpx.URL(path=path, query=request.url.query.encode()),
            headers=_without(request.headers, OF_CONNECTION),
            content=raw,
        )
        answer = await self._http.send(onward, stream=True)
        return StreamingResponse(
            self._record(request, sent, answer), answer.status_code, _without(answer.headers, OF_CONNECTION)
        )

    async def _record(self, request: Request, sent: Any, answer: httpx.Response) -> AsyncIterator[bytes]:
        received = bytearray()
        try:
            async for part in answer.aiter_raw():
                received += part
                yield part
        finally:
            await answer.aclose()
            headers = _without(request.headers, SECRET)
            text = received.decode(errors="replace")
            path = request.url.path
            self._add(Exchange(request.method, path, headers, sent, answer.status_code, text))

    def _add(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        with self._log.open("a") as file:
            file.write(json.dumps(asdict(exchange)) + "\n")


def _parse(raw: bytes) -> Any:
    """Returns JSON as a value and anything else as text."""
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")


def _without(headers: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in names}
