"""Pass a request for something that lives in the memory of another server with the same storage on to it:
a stream, an answer that is controlled, a response in the background, a batch."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable
from urllib.parse import urlencode

import httpx
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.api.error import ErrorAnswer
from corral.api.front_id import ASKS, NO, PASSED, YES, LiveId
from corral.api.policy import Live
from corral.api.route_table import RouteTable
from corral.api.router import ApiRoute
from corral.api.stream_id import begun_stream, resumed_stream
from corral.core.errors import CorralError, Unavailable
from corral.features.shared.front_client import answer_headers, read_parts
from corral.features.shared.sharing import Sharing
from corral.generate.caller import caller_in
from corral.generate.disconnect import ClientGone, run_for_client
from corral.generate.services import ServerServices
from corral.models.request_name import ReadBody, find_name, query_of, read_body

_IDS = {Live.RESPONSE: re.compile(r"resp_[0-9a-f]{32}"), Live.BATCH: re.compile(r"[a-z]+_[0-9a-f]+")}
_TRIES = 2


class Relay:
    """ASGI middleware, after access control."""

    def __init__(
        self, app: ASGIApp, services: ServerServices, sharing: Sharing, table: RouteTable, streams: str
    ) -> None:
        """`streams`: the path under which a stream is ended."""
        self._app = app
        self._streams = streams
        self._table = table
        self._services = services
        self._sharing = sharing

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        headers = dict(scope["headers"])
        if (asked := headers.get(ASKS.encode())) is not None:
            return self._tell(LiveId.decode(asked.decode("latin-1")), scope, send)
        route = self._table.find(scope)
        if route is None:
            return self._app(scope, receive, send)
        if route.policy.settles:
            send = self._settled(scope, send)
        if PASSED.encode() in headers:
            return self._app(scope, receive, send)
        return self._serve(route, scope, receive, send)

    async def _serve(self, route: ApiRoute, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            receive, is_passed = await self._pass(route, scope, receive, send)
        except CorralError as error:
            await ErrorAnswer(error)(scope, receive, send)
        except (ClientDisconnect, ClientGone, ConnectionError):
            return
        else:
            if not is_passed:
                await self._app(scope, receive, send)

    async def _pass(
        self, route: ApiRoute, scope: Scope, receive: Receive, send: Send
    ) -> tuple[Receive, bool]:
        """Pass the request on if another server has what it is for; returns what replays its body."""
        resumed = resumed_stream(scope, route.policy.follow)
        if not resumed and (id := begun_stream(scope, route.policy.follow)):
            path = f"{self._streams}?{urlencode({'conv_id': id})}"
            await self._sharing.others.tell_all(scope, "DELETE", path)
            return receive, False
        if not resumed and route.policy.live is None:
            return receive, False
        body = await read_body(receive, self._services.settings.server.max_body_mib)
        live = LiveId("stream", resumed) if resumed else _live_id(route, scope, body)
        for i in range(_TRIES):
            if live is None or not await self._is_elsewhere(scope, live):
                break
            try:
                if await self._pass_to_owner(scope, live, body, send):
                    return body, True
            except Unavailable:
                if i + 1 == _TRIES:
                    raise
            await self._sharing.take_over()
        return body, False

    async def _pass_to_owner(self, scope: Scope, live: LiveId, body: ReadBody, send: Send) -> bool:
        front = await self._sharing.others.find(scope, live)
        if front is None:
            return False
        answer = await self._sharing.others.open(front, scope, body.content)
        await run_for_client(_copy(answer, send), body.rest)
        return True

    async def _tell(self, live: LiveId, scope: Scope, send: Send) -> None:
        status = YES if self._is_here(scope, live) else NO
        headers = [(b"content-length", b"0")] if status == NO else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def _is_here(self, scope: Scope, live: LiveId) -> bool:
        client, services = caller_in(scope).client, self._services
        if live.kind == "stream":
            return services.streams.find(client.id, live.id) is not None
        if live.kind == "answer":
            return any(
                each.live.find(client, live.id) is not None for each in services.models.open_services()
            )
        if live.kind == "response":
            return services.responses.is_shared and services.responses.has(client, live.id)
        return services.batches is not None and services.batches.find(client.id, live.id) is not None

    async def _is_elsewhere(self, scope: Scope, live: LiveId) -> bool:
        """Whether another server may have it."""
        if self._is_here(scope, live):
            return False
        client, services = caller_in(scope).client, self._services
        if live.kind == "response":
            archive = services.responses
            return archive.is_shared and await archive.is_unfinished(client, live.id)
        if live.kind == "batch":
            return services.batches is not None and await services.batches.is_unfinished(client.id, live.id)
        return True

    def _settled(self, scope: Scope, send: Send) -> Send:
        """Send nothing before all that it says is on disk, where other servers find it."""
        store = self._services.storage.documents
        if not store.is_shared:
            return send

        async def send_settled(message: Message) -> None:
            await store.settle(caller_in(scope).client)
            await send(message)

        return send_settled


async def _copy(answer: httpx.Response, send: Send) -> None:
    async with contextlib.aclosing(answer):
        headers = answer_headers(answer)
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        async for part in read_parts(answer):
            await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _live_id(route: ApiRoute, scope: Scope, body: ReadBody) -> LiveId | None:
    """Return what a request is for, if that may live in the memory of a server."""
    live = route.policy.live
    if live is Live.STREAM:
        id = query_of(scope).get("conv_id")
    elif live is Live.ANSWER:
        id = find_name(body.content, "id")
    else:
        found = route.path_regex.match(scope["path"])
        id = found["id"] if live is not None and found and _IDS[live].fullmatch(found["id"]) else None
    return LiveId(live.value, id) if live is not None and id else None
