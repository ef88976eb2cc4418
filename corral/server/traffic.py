"""Around everything that answers: gives each request its id, and tells whoever wants to know how it ended.

The id is the client's own (`X-Request-Id`) or a new one, and is in the answer.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Sequence
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.api.visit import visit_in
from corral.core.visit import Visit

LEFT = 499  # the client did, before its answer was whole
_BROKEN = 500
_STOPPED = 503
_REQUEST_ID = b"x-request-id"
_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class Listener(Protocol):
    def end(self, scope: Scope, visit: Visit) -> None: ...


class Traffic:
    """ASGI. What the application raises once it has answered has been logged there."""

    def __init__(self, app: ASGIApp, listeners: Sequence[Listener]) -> None:
        self._app = app
        self._listeners = list(listeners)

    def listen(self, *listeners: Listener) -> None:
        """They want to know too, from now on."""
        self._listeners += listeners

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visit = visit_in(scope)
        visit.id = _request_id(scope)
        answer, broken = _Answer(send, visit.id), LEFT
        try:
            await self._app(scope, receive, answer.send)
        except asyncio.CancelledError:
            broken = _STOPPED
            raise
        except Exception:
            broken = _BROKEN
            if not answer.status:
                raise
        finally:
            visit.ended_at = time.perf_counter()
            visit.status = answer.status if answer.is_whole else broken
            visit.n_bytes = answer.n_bytes
            for listener in self._listeners:
                listener.end(scope, visit)


class _Answer:
    """Mutable: what has been sent so far. No coroutine of its own between a stream and its socket."""

    def __init__(self, send: Send, id: str) -> None:
        self._send = send
        self._id = id.encode()
        self.status = 0
        self.n_bytes = 0
        self.is_whole = False

    def send(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.body":
            self.n_bytes += len(message.get("body", b""))
            self.is_whole = not message.get("more_body", False)
        elif message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (_REQUEST_ID, self._id)]
        return self._send(message)


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == _REQUEST_ID and _ID.fullmatch(value):
            return str(value.decode("ascii"))
    return uuid.uuid4().hex
