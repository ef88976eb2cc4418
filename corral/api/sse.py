"""Streams over ASGI: server-sent events, or another format that an API has."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import Send

from corral.api.error_shape import render_error
from corral.api.json_encode import encode_json
from corral.api.streamed_response import UNBUFFERED, StreamedResponse
from corral.core.errors import CorralError
from corral.generate.background import cancel


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment line of a stream."""

    text: str


_PING = Comment("")
COMMENT_S = 1.0  # between two comments


@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded event, in pieces."""

    pieces: list[bytes]


def encode_event(event: Any) -> bytes:
    if isinstance(event, Comment):
        return f": {event.text}\n\n".encode()
    return b"data: " + encode_json(event) + b"\n\n"


@dataclass(frozen=True, slots=True)
class StreamFormat:
    """Encodes the events of a stream, and errors as events. An event may have no bytes."""

    media_type: str
    encode: Callable[[Any], bytes]
    render_error: Callable[[CorralError], Any]


SSE = StreamFormat("text/event-stream; charset=utf-8", encode_event, render_error)


class EventStream(StreamedResponse):
    """Sends events as they arrive; an error becomes the last one."""

    def __init__(
        self,
        events: AsyncGenerator[Any],
        last: bytes = b"",
        headers: Mapping[str, str] | None = None,
        format: StreamFormat = SSE,
        ping_s: float = -1.0,
        first: asyncio.Future[Any] | None = None,
        waits_for: Callable[[], str] | None = None,
    ) -> None:
        """`first`: the first event, if it is not in `events` any more. `waits_for`: what the client is told
        until then."""
        super().__init__(format.media_type, headers)
        self.raw_headers += UNBUFFERED
        self._format = format
        self._events = events
        self._last = last
        self._ping_s = ping_s
        self._first = first
        self._waits_for = waits_for
        self._sent_at = 0.0
        self._is_sending = False
        self._clock = asyncio.get_running_loop().time

    async def _produce(self, send: Send) -> None:
        self._sent_at = self._clock()
        pinging = asyncio.ensure_future(self._ping(send)) if self._ping_s > 0 else None
        try:
            async with contextlib.aclosing(self._events) as events:
                if self._first is not None:
                    await self._send_first(self._first, send)
                async for event in events:
                    await self._send(event, send)
        except CorralError as error:
            body = self._format.encode(self._format.render_error(error))
            await send({"type": "http.response.body", "body": body, "more_body": True})
        finally:
            if pinging is not None:
                pinging.cancel()
        await send({"type": "http.response.body", "body": self._last, "more_body": False})

    async def _send_first(self, first: asyncio.Future[Any], send: Send) -> None:
        try:
            while not first.done():
                if self._waits_for is not None and (text := self._waits_for()):
                    await self._send(Comment(text), send)
                await asyncio.wait({first}, timeout=COMMENT_S)
            await self._send(first.result(), send)
        finally:
            await cancel(first)

    async def _send(self, event: Any, send: Send) -> None:
        self._is_sending = True
        for body in self._bodies(event):
            await send({"type": "http.response.body", "body": body, "more_body": True})
        self._is_sending, self._sent_at = False, self._clock()

    async def _ping(self, send: Send) -> None:
        """Send a comment whenever nothing was sent for a while, so that proxies keep the connection."""
        body = self._format.encode(_PING)
        while body:
            await asyncio.sleep(self._sent_at + self._ping_s - self._clock())
            if self._clock() >= self._sent_at + self._ping_s:
                self._sent_at = self._clock()
                if not self._is_sending:
                    await send({"type": "http.response.body", "body": body, "more_body": True})

    def _bodies(self, event: Any) -> list[bytes]:
        if isinstance(event, Encoded):
            return event.pieces
        body = self._format.encode(event)
        return [body] if body else []
