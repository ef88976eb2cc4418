"""One log line for every HTTP request that has ended, however it did, without query, headers and bodies."""

from __future__ import annotations

import asyncio
import logging
import time
import urllib.parse
from collections.abc import Awaitable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LEFT = 499
_BROKEN = 500
_STOPPED = 503
_MAX_PATH = 256
_MAX_CLIENT = 64
_LINE = (
    "%(method)s %(path)s %(status)d in %(ms).1f ms, %(request_bytes)d bytes in, "
    "%(response_bytes)d out, %(client)s"
)
_log = logging.getLogger("corral")


class RequestLog:
    """ASGI, around the whole application. What it raises once it has answered has been logged there."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send)
        broken = _LEFT
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
            if _log.isEnabledFor(logging.INFO):
                _log.info(_LINE, _fields(scope, answer, answer.status if answer.is_whole else broken))


class _Answer:
    """Mutable: what has been sent so far. No coroutine of its own between a stream and its socket."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started_at = time.perf_counter()
        self.status = 0
        self.n_bytes = 0
        self.is_whole = False

    def send(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.body":
            self.n_bytes += len(message.get("body", b""))
            self.is_whole = not message.get("more_body", False)
        elif message["type"] == "http.response.start":
            self.status = message["status"]
        return self._send(message)


def _fields(scope: Scope, answer: _Answer, status: int) -> dict[str, Any]:
    client = scope.get("client")
    return {
        "method": scope["method"],
        "path": _path(scope),
        "status": status,
        "ms": round((time.perf_counter() - answer.started_at) * 1e3, 1),
        "client": str(client[0])[:_MAX_CLIENT] if client else "unix",
        "request_bytes": _content_length(scope),
        "response_bytes": answer.n_bytes,
    }


def _path(scope: Scope) -> str:
    """As it was sent: whatever could end a line is still encoded."""
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if raw is not None else scope["path"]
    return urllib.parse.quote(path.partition("?")[0], safe="/%:@!$&'()*+,;=~")[:_MAX_PATH]


def _content_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0
