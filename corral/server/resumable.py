"""Requests with `X-Conversation-Id`: their streams continue without their client, in a session."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.api.disconnect import ClientGone, run_for_client
from corral.api.stream_session import StreamSession, StreamSessions
from corral.telemetry.scope import record_in

HEADER = b"x-conversation-id"
MAX_ID_CHARS = 512
_PATHS = ("/v1/chat/completions", "/chat/completions", "/v1/completions", "/completion", "/completions")


class ResumableStreams:
    """ASGI middleware, after access control."""

    def __init__(self, app: ASGIApp, sessions: StreamSessions) -> None:
        self._app = app
        self._sessions = sessions

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        id = _conversation(scope)
        return self._run(id, scope, receive, send) if id else self._app(scope, receive, send)

    async def _run(self, id: str, scope: Scope, receive: Receive, send: Send) -> None:
        owner = record_in(scope).client.id
        session = await self._sessions.open(owner, id)
        request = _Request(receive)
        session.run(self._app(scope, request, session.send))  # type: ignore[arg-type]
        start = await session.started()
        if not session.is_stream:
            self._sessions.forget(owner, session)
        if start is None:  # it was stopped before it began
            return
        await send({**start})
        with contextlib.suppress(ClientGone):
            await run_for_client(_forward(session, send), receive)


async def _forward(session: StreamSession, send: Send) -> None:
    n_sent = 0
    async for part in session.follow(0):
        n_sent += len(part)
        await send({"type": "http.response.body", "body": part, "more_body": True})
    if n_sent < session.n_bytes:
        raise ClientGone  # it reads so slowly that bytes were dropped: its answer must not look whole
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Request:
    """Receives the body of a request, but not that its client has left afterwards."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_whole = False

    async def __call__(self) -> Message:
        if self._is_whole:
            await asyncio.Event().wait()
        message = await self._receive()
        self._is_whole = not message.get("more_body", False)
        return message


def _conversation(scope: Scope) -> str:
    """Return the id of a request's conversation, if it has one and can be a stream."""
    if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in _PATHS:
        return ""
    found = next((value for name, value in scope["headers"] if name == HEADER), b"")
    return str(found.decode("latin-1"))[:MAX_ID_CHARS]
