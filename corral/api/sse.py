"""Server-sent events over ASGI."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from corral.api.disconnect import ClientGone, run_for_client
from corral.api.error import render_error
from corral.core.errors import CorralError

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True)
class Comment:
    """A line of a stream that programs skip."""

    text: str


class EventStream(Response):
    """Sends events as they come; an error becomes the last one. A client that leaves ends the source."""

    def __init__(
        self, events: AsyncGenerator[Any], last: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        more = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self.raw_headers = [*_HEADERS, *more]
        self._events = events
        self._last = last
        self.background = None
        self.status_code = 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            await run_for_client(self._produce(send), receive)
        except ClientGone:
            return

    async def _produce(self, send: Send) -> None:
        try:
            async with contextlib.aclosing(self._events) as events:
                async for event in events:
                    await send({"type": "http.response.body", "body": encode_event(event), "more_body": True})
        except CorralError as error:
            body = encode_event(render_error(error))
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": self._last, "more_body": False})


def encode_event(event: Any) -> bytes:
    if isinstance(event, Comment):
        return f": {event.text}\n\n".encode()
    return b"data: " + orjson.dumps(event) + b"\n\n"
