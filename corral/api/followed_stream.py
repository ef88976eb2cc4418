"""Responses that follow the log of an answer: its own client's, and those of clients that come back."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from starlette.responses import Response
from starlette.types import Send

from corral.api.answer_log import AnswerLog, AnswerLogs
from corral.api.sse import SSE
from corral.api.streamed_response import UNBUFFERED, StreamedResponse, send_all
from corral.core.client import Client
from corral.core.errors import InvalidRequest, NotFound, Unavailable

MAX_OFFSET = 9_999_999_999


class FollowedStream(StreamedResponse):
    """Sends what a reader of a log gets, until the log ends or the client leaves."""

    def __init__(self, log: AnswerLog, parts: AsyncGenerator[bytes] | None = None) -> None:
        """`parts`: those that are sent; None: all."""
        super().__init__(SSE.media_type)
        self.raw_headers += UNBUFFERED
        if log.has_ids:
            self.raw_headers.append((b"x-conversation-id", log.id.encode("latin-1")))
        self._parts = parts if parts is not None else log.follow()

    async def _produce(self, send: Send) -> None:
        async with contextlib.aclosing(self._parts) as parts:
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def resume(log: AnswerLog | None, place: str, has_ids: bool = False) -> FollowedStream:
    """Follow a stream from a place on: an offset, or the id of the last event that a client has."""
    if log is None:
        raise NotFound("Stream not found or expired")
    if not (log.start or log.ended_at or log.is_replaying):
        message = "the stream has not begun: its request waits for a model or for a slot"
        raise Unavailable(message, retry_after_s=1)
    number = place.rpartition(".")[2] if log.has_ids else place
    if not (number.isascii() and number.isdecimal() and int(number) <= MAX_OFFSET):
        raise InvalidRequest("must be an offset, or the id of an event", field="from")
    if not await log.has_offset(int(number)):
        if not log.is_stream:
            raise NotFound("Stream not found or expired")
        raise InvalidRequest("Stream offset lost, please restart", field="from")
    return FollowedStream(log, log.follow(int(number), has_ids))


async def detach(
    client: Client,
    logs: AnswerLogs,
    id: str,
    ping_s: float,
    queued: Callable[[], str],
    responding: Coroutine[Any, Any, Response],
) -> Response:
    """Run what answers the request into a log, which its client only follows."""
    log = await logs.open(client.id, id)
    log.has_ids, log.ping_s, log.queued = True, max(0.0, ping_s), queued
    log.run(_respond(responding, log))
    if await log.started() is not None:
        return FollowedStream(log)
    raise log.error or cancelled()


def cancelled() -> InvalidRequest:
    """Return the error for the client of a stream that was stopped before it began."""
    return InvalidRequest("the request was cancelled: its stream was stopped")


async def _respond(responding: Coroutine[Any, Any, Response], log: AnswerLog) -> None:
    await send_all(await responding, log.send)
