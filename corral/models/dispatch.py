"""Answer each request with the services of its model, which is loaded if necessary."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from corral.api.boundary import Boundary
from corral.api.error_handlers import error_handlers
from corral.api.policy import ModelUse, NamedIn
from corral.api.router import ApiRoute
from corral.core.errors import CorralError
from corral.generate.caller import caller_in
from corral.generate.disconnect import ClientGone, run_for_client
from corral.generate.services import ServerServices
from corral.models.lender import FIELDS, Lender, name_in
from corral.models.model import ServedModel
from corral.models.registry import Entry, Registry
from corral.models.request_name import ReadBody, is_long, query_of, read_body
from corral.models.waiting import WaitingStream, wants_progress

Serve = Callable[[ServerServices, Scope, Receive, Send], Awaitable[None]]


class ModelDispatch:
    """What is for no model is answered with the services that all share."""

    def __init__(self, registry: Registry, lender: Lender, of_server: ServerServices) -> None:
        self._registry = registry
        self._lender = lender
        self._of_server = of_server
        self._server = of_server.settings.server

    async def answer(self, route: ApiRoute, scope: Scope, receive: Receive, send: Send) -> None:
        use = _use_of(route, scope)
        if use is None:
            await route.serve(self._of_server, scope, receive, send)
            return
        try:
            model, body = await self._find(scope, use, receive)
            await self._serve(route, model, use, scope, receive if body is None else body, send)
        except (ClientDisconnect, ClientGone):
            return

    async def _find(
        self, scope: Scope, use: ModelUse, receive: Receive
    ) -> tuple[ServedModel, ReadBody | None]:
        name, body = query_of(scope).get("model"), None
        if name is None and use.named_in in FIELDS:
            body = await read_body(receive, self._server.max_body_mib)
            name = await name_in(body.content, FIELDS[use.named_in])
        return await self._lender.find(name, use, caller_in(scope)), body

    async def _serve(
        self,
        route: ApiRoute,
        model: ServedModel,
        use: ModelUse,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        serve: Serve = route.serve

        async def wait(entry: Entry) -> None:
            nonlocal send, serve
            if entry.is_ready or not isinstance(receive, ReadBody):
                await entry.ready()
            elif use.progress is not None and await _wants_progress(receive):
                send = await self._report_progress(entry, use.progress, scope, receive, send)
                serve = _ending_errors(route)  # as events, since the answer has begun
            else:
                await run_for_client(entry.ready(), receive.rest)

        caller, query, is_work = caller_in(scope), query_of(scope), scope["method"] == "POST"
        async with self._lender.hold(model, use, caller, query, wait, is_work) as services:
            await serve(services, scope, receive, send)

    async def _report_progress(
        self, entry: Entry, event: Mapping[str, Any], scope: Scope, receive: ReadBody, send: Send
    ) -> Send:
        """Stream how far the model is; return what sends the answer after that."""
        stream = WaitingStream(scope, send, self._registry, entry, event)
        try:
            await stream.wait(receive.rest, self._server.sse_ping_s)
        except CorralError as error:
            if not stream.has_begun:
                raise
            await stream.fail(error)
            raise ClientGone from None
        return stream.send


def _ending_errors(route: ApiRoute) -> Serve:
    """Return what serves a route and answers its exceptions at once."""

    async def serve(services: ServerServices, scope: Scope, receive: Receive, send: Send) -> None:
        await Boundary(partial(route.serve, services), error_handlers())(scope, receive, send)

    return serve


def _use_of(route: ApiRoute, scope: Scope) -> ModelUse | None:
    """Return how a request uses its model; None: it is for no model."""
    use = route.policy.model
    if use is not None and use.named_in is NamedIn.QUERY_ONLY and "model" not in query_of(scope):
        return None
    return use


async def _wants_progress(body: ReadBody) -> bool:
    content = body.content
    if is_long(content):
        return await asyncio.to_thread(wants_progress, content)
    return wants_progress(content)
