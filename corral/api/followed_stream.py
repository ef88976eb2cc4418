"""Answers that follow a stream session: its own client's, and those of clients that come back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.responses import Response
from starlette.types import Send

from corral.api.sse import SSE
from corral.api.stream_session import StreamSession, StreamSessions
from corral.api.streamed_response import UNBUFFERED, StreamedResponse, send_all
from corral.core.client import Client
from corral.core.errors import InvalidRequest, NotFound, Unavailable

MAX_OFFSET = 9_999_999_999


class FollowedStream(StreamedResponse):
    """Sends a stream from an offset on, until it ends or the client leaves."""

    def __init__(self, session: StreamSession, offset: int = 0, has_ids: bool = False) -> None:
        super().__init__(SSE.media_type)
        self.raw_headers += UNBUFFERED
        if session.has_ids:
            self.raw_headers.append((b"x-conversation-id", session.id.encode("latin-1")))
        self._session = session
        self._offset = offset
        self._has_ids = has_ids

    async def _produce(self, send: Send) -> None:
        async with contextlib.aclosing(self._session.events(self._offset, self._has_ids)) as parts:
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def resume(session: StreamSession | None, place: str, has_ids: bool = False) -> FollowedStream:
    """Follow a stream from a place on: an offset, or the id of the last event that a client has."""
    if session is None:
        raise NotFound("Stream not found or expired")
    if not (session.start or session.ended_at or session.is_replaying):
        message = "the stream has not begun: its request waits for a model or for a slot"
        raise Unavailable(message, retry_after_s=1)
    number = place.rpartition(".")[2] if session.has_ids else place
    if not (number.isascii() and number.isdecimal() and int(number) <= MAX_OFFSET):
        raise InvalidRequest("must be an offset, or the id of an event", field="from")
    if not await session.has_offset(int(number)):
        if not session.is_stream:
            raise NotFound("Stream not found or expired")
        raise InvalidRequest("Stream offset lost, please restart", field="from")
    return FollowedStream(session, int(number), has_ids)


async def detach(
    client: Client,
    sessions: StreamSessions,
    session_id: str,
    ping_s: float,
    queued: Callable[[], str],
    responding: Coroutine[Any, Any, Response],
) -> Response:
    """Run what answers the request in a session of its own, which its client only follows."""
    session = await sessions.open(client.id, session_id)
    session.has_ids, session.ping_s, session.queued = True, max(0.0, ping_s), queued
    session.run(_respond(responding, session))
    if await session.started() is not None:
        return FollowedStream(session)
    raise session.error or cancelled()


def cancelled() -> InvalidRequest:
    """Return the error for the client of a stream that was stopped before it began."""
    return InvalidRequest("the request was cancelled: its stream was stopped")


async def _respond(responding: Coroutine[Any, Any, Response], session: StreamSession) -> None:
    await send_all(await responding, session.send)
