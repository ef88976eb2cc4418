"""Answer HEAD for every path with GET, as llama-server does: same status and headers, no body."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.api.route_table import RouteTable


class HeadRequests:
    """ASGI middleware before the routes. Routes that answer HEAD themselves are not changed."""

    def __init__(self, app: ASGIApp, table: RouteTable) -> None:
        self._app = app
        self._table = table

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http" or scope["method"] != "HEAD" or not self._has_only_get(scope):
            return self._app(scope, receive, send)
        return self._answer(scope, send)

    async def _answer(self, scope: Scope, send: Send) -> None:
        answer, asked = _Headers(send), {**scope, "method": "GET"}
        await self._app(asked, answer.receive, answer.send)
        scope.update({**asked, "method": "HEAD"})  # the matched route, for the log
        await send({"type": "http.response.body"})

    def _has_only_get(self, scope: Scope) -> bool:
        route = self._table.find(scope)
        return route is not None and route.method != "HEAD"


class _Headers:
    """Forwards the start of a response, then simulates a disconnect, which ends a stream."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_sent = asyncio.Event()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._send(message)
            self._is_sent.set()

    async def receive(self) -> Message:
        await self._is_sent.wait()
        return {"type": "http.disconnect"}
