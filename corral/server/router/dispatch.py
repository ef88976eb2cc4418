"""Forward each request to the application of its model, which is loaded if necessary."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from corral.api.caller import Caller, caller_in
from corral.api.disconnect import ClientGone, run_for_client
from corral.api.error import ErrorAnswer
from corral.api.policy import ModelUse, NamedIn, Policy, Unloaded
from corral.core.client import Client
from corral.core.errors import CorralError, InvalidRequest
from corral.core.key_role import Permission
from corral.core.settings import ServerSettings
from corral.server.request_name import (
    ReadBody,
    find_name,
    is_long,
    query_of,
    read_body,
)
from corral.server.router.model import ServedModel
from corral.server.router.registry import Entry, Registry
from corral.server.router.role import choose
from corral.server.router.waiting import WaitingStream, wants_progress
from corral.telemetry.record import RequestRecord
from corral.telemetry.request_observer import Asked

_FIELDS = {NamedIn.BODY: ("model",), NamedIn.BODY_OR_NAME: ("model", "name")}
_FALSE = ("0", "false", "off", "no")


class ModelDispatch:
    """ASGI middleware of the hub, after access control: what is for no model is the hub's."""

    def __init__(self, app: ASGIApp, registry: Registry, server: ServerSettings) -> None:
        self._app = app
        self._registry = registry
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        use = _use_of(scope) if scope["type"] == "http" else None
        if use is None:
            await self._app(scope, receive, send)
            return
        try:
            model, body = await self._find(scope, use, receive)
            await self._serve(model, use, scope, receive if body is None else body, send)
        except CorralError as error:
            await ErrorAnswer(error)(scope, receive, send)
        except (ClientDisconnect, ClientGone):
            return

    async def _find(
        self, scope: Scope, use: ModelUse, receive: Receive
    ) -> tuple[ServedModel, ReadBody | None]:
        client, body = known_client(caller_in(scope)), None
        name = query_of(scope).get("model")
        if name is None and use.named_in in _FIELDS:
            body = await read_body(receive, self._server.max_body_mib)
            name = await _find_in_body(body.content, _FIELDS[use.named_in])
        if name:
            return self._registry.find(name, client), body
        return await asyncio.to_thread(choose, use.role, self._registry.visible(client)), body

    async def _serve(
        self, model: ServedModel, use: ModelUse, scope: Scope, receive: Receive, send: Send
    ) -> None:
        caller_in(scope).record.model = model.name
        if not model.is_open and use.unloaded is Unloaded.REFUSE:
            raise InvalidRequest("model is not loaded")
        if not model.is_open and use.unloaded is Unloaded.ANSWER:
            await self._app(scope, receive, send)
            return
        if model.is_open and model.front is not None and not use.wakes:
            if scope["method"] == "POST":
                model.touch()
            await model.front.app(scope, receive, send)
            return
        entry = self._registry.enter(model, self._autoloads(scope))
        try:
            if entry.is_ready or not isinstance(receive, ReadBody):
                await entry.ready()
            elif use.progress is not None and await _wants_progress(receive):
                send = await self._report_progress(entry, use.progress, scope, receive, send)
            else:
                await run_for_client(entry.ready(), receive.rest)
            assert model.front is not None
            await model.front.app(scope, receive, send)
        finally:
            self._registry.leave(entry)

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

    def _autoloads(self, scope: Scope) -> bool:
        """Whether a request loads its model. Raises Forbidden if only its `?autoload` says so, and its key
        may not load models: all share the memory."""
        client, default = caller_in(scope).client, self._server.models_autoload
        if caller_in(scope).is_anonymous or not client.role.may(Permission.USE):
            return False
        said = query_of(scope).get("autoload")
        if said is None or said.lower() in _FALSE:
            return default and said is None
        if not (default or caller_in(scope).is_internal):
            client.require(Permission.CHANGE, "loading a model", "autoload")
        return True


class ModelObserver:
    """Passes the record of a request on to the observers of its model. A `RequestObserver`."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def on_request_end(self, asked: Asked, record: RequestRecord) -> None:
        model = self._registry.models.get(record.model)
        if model is not None and model.front is not None:
            for observer in model.front.observers:
                observer.on_request_end(asked, record)


def known_client(caller: Caller) -> Client | None:
    """Return the client of a request; None if it has no key although keys are required."""
    return None if caller.is_anonymous else caller.client


def _use_of(scope: Scope) -> ModelUse | None:
    """Return how a request uses its model; None: it is for no model."""
    policy: Policy | None = scope["app"].state.table.policy(scope)
    use = policy.model if policy is not None else None
    if use is not None and use.named_in is NamedIn.QUERY_ONLY and "model" not in query_of(scope):
        return None
    return use


async def _find_in_body(content: bytes, fields: Sequence[str]) -> str | None:
    if is_long(content):
        return await asyncio.to_thread(find_name, content, *fields)
    return find_name(content, *fields)


async def _wants_progress(body: ReadBody) -> bool:
    content = body.content
    if is_long(content):
        return await asyncio.to_thread(wants_progress, content)
    return wants_progress(content)
