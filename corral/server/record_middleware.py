"""The outermost middleware: give each request an id, and report its record to observers when it has ended.
Its header against sniffing is on every response.

The id is the client's own (`X-Request-Id`) or a new one, and is returned in the response.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.generate.caller import caller_in
from corral.telemetry.record import LEFT, RequestRecord
from corral.telemetry.request_observer import Asked, RequestObserver

_BROKEN = 500
_STOPPED = 503
_REQUEST_ID = b"x-request-id"
NO_SNIFFING = (b"x-content-type-options", b"nosniff")  # content is of the type that the server names, if any
_ID_BYTES = 16
_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class RecordMiddleware:
    """ASGI middleware. Exceptions that the application raises after its response are logged there and
    end here."""

    def __init__(self, app: ASGIApp, observers: Sequence[RequestObserver]) -> None:
        self._app = app
        self._observers = list(observers)

    def add_observers(self, *observers: RequestObserver) -> None:
        self._observers += observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = caller_in(scope).record
        record.id = _request_id(scope)
        await observe(
            record,
            send,
            lambda send: self._app(scope, receive, send),
            lambda: _asked(scope),
            self._observers,
        )


async def observe(
    record: RequestRecord,
    send: Send,
    work: Callable[[Send], Awaitable[None]],
    asked: Callable[[], Asked],
    observers: Iterable[RequestObserver],
) -> None:
    """Have work answer a request, and tell observers how it ended."""
    answer, broken = _Answer(send, record.id), LEFT
    try:
        await work(answer.send)
    except asyncio.CancelledError:
        broken = _STOPPED
        raise
    except Exception:
        broken = _BROKEN
        if not answer.status:
            raise
    finally:
        record.ended_at = time.perf_counter()
        record.status = answer.status if answer.is_whole else broken
        record.n_bytes = answer.n_bytes
        found = asked()
        for observer in observers:
            observer.on_request_end(found, record)


def _asked(scope: Scope) -> Asked:
    """Return what a request was for, after all that changes its path."""
    route, client = scope.get("route"), scope.get("client")
    return Asked(
        scope["method"],
        scope["path"],
        route.path if route is not None else "",
        scope.get("raw_path") or b"",
        scope.get("scheme", "http"),
        scope["headers"],
        str(client[0]) if client else "",
    )


class _Answer:
    """Counts what was sent, without a coroutine between a stream and its socket."""

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
            message["headers"] = [*message.get("headers", ()), (_REQUEST_ID, self._id), NO_SNIFFING]
        return self._send(message)


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == _REQUEST_ID and _ID.fullmatch(value):
            return str(value.decode("ascii"))
    return os.urandom(_ID_BYTES).hex()
