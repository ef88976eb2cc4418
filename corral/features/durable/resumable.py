"""Streams that continue without their client: those with `X-Conversation-Id`, and clients that come back with
`Last-Event-ID`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.api.answer_log import AnswerLogs
from corral.api.error import ErrorAnswer
from corral.api.followed_stream import FollowedStream, cancelled, resume
from corral.api.route_table import RouteTable
from corral.api.stream_id import begun_stream, follow_of, last_event, resumed_stream
from corral.core.errors import CorralError
from corral.generate.caller import caller_in, change_caller
from corral.generate.disconnect import ClientGone, run_for_client


class ResumableStreams:
    """ASGI middleware, after access control."""

    def __init__(self, app: ASGIApp, logs: AnswerLogs, table: RouteTable) -> None:
        self._app = app
        self._table = table
        self._logs = logs

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http" or scope["method"] != "POST" or caller_in(scope).log is not None:
            return self._app(scope, receive, send)
        follow = follow_of(self._table, scope)
        if known := resumed_stream(scope, follow):
            return self._resume(known, last_event(scope, follow), scope, receive, send)
        id = begun_stream(scope, follow)
        return self._begin(id, scope, receive, send) if id else self._app(scope, receive, send)

    async def _begin(self, id: str, scope: Scope, receive: Receive, send: Send) -> None:
        owner = caller_in(scope).client.id
        log = await self._logs.open(owner, id)
        change_caller(scope, log=log)
        log.run(self._app(scope, _Request(receive), log.send))  # type: ignore[arg-type]
        start = await log.started()
        if start is None:
            if log.error is None:
                await ErrorAnswer(cancelled())(scope, receive, send)
            return
        if not log.is_stream:
            self._logs.forget(owner, log)
        response = FollowedStream(log)
        response.raw_headers, response.status_code = start["headers"], start["status"]
        await response(scope, receive, send)

    async def _resume(self, id: str, last_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Follow a stream after an event; the body of the request says nothing new."""
        request = _Request(receive)
        while not request.is_whole:
            await request()
        log = self._logs.find(caller_in(scope).client.id, id)
        try:
            response = await run_for_client(resume(log, last_id), receive)
        except CorralError as error:
            await ErrorAnswer(error)(scope, receive, send)
        except ClientGone:
            return
        else:
            await response(scope, receive, send)


class _Request:
    """Receives the body of a request, but not that its client has left afterwards."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_whole = False

    async def __call__(self) -> Message:
        if self.is_whole:
            await asyncio.Event().wait()
        message = await self._receive()
        self.is_whole = not message.get("more_body", False)
        return message
