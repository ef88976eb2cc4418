"""Lend models to requests: each is loaded if necessary, and stays until the request has ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from corral.api.internal import Ask
from corral.api.policy import ModelUse, NamedIn, Unloaded
from corral.core.errors import InvalidRequest
from corral.core.key_role import Permission
from corral.core.settings import ServerSettings
from corral.generate.caller import Caller
from corral.generate.model_directory import known_client
from corral.generate.services import ServerServices
from corral.models.model import ServedModel
from corral.models.registry import Entry, Registry
from corral.models.request_name import find_name, is_long
from corral.models.role import choose

FIELDS = {NamedIn.BODY: ("model",), NamedIn.BODY_OR_NAME: ("model", "name")}
_FALSE = ("0", "false", "off", "no")


class Lender:
    def __init__(self, registry: Registry, server: ServerSettings, of_server: ServerServices) -> None:
        """`of_server`: for what is for no model."""
        self._registry = registry
        self._server = server
        self._of_server = of_server

    @contextlib.asynccontextmanager
    async def lend(self, ask: Ask, use: ModelUse | None) -> AsyncIterator[ServerServices]:
        """Have the services for a request that the server itself makes."""
        name = ask.query.get("model")
        if use is None or (use.named_in is NamedIn.QUERY_ONLY and name is None):
            yield self._of_server
            return
        if name is None and use.named_in in FIELDS:
            name = await name_in(ask.body, FIELDS[use.named_in])
        model = await self.find(name, use, ask.caller)
        async with self.hold(model, use, ask.caller, ask.query) as services:
            yield services

    async def find(self, name: str | None, use: ModelUse, caller: Caller) -> ServedModel:
        """Return the model with this name; without one, the one that is used by default."""
        client = known_client(caller)
        if name:
            return self._registry.find(name, client)
        return await asyncio.to_thread(choose, use.role, self._registry.visible(client))

    @contextlib.asynccontextmanager
    async def hold(
        self,
        model: ServedModel,
        use: ModelUse,
        caller: Caller,
        query: Mapping[str, str],
        wait: Callable[[Entry], Awaitable[None]] = Entry.ready,
        is_work: bool = True,
    ) -> AsyncIterator[ServerServices]:
        """Have the services of a model; those of the server, if the answer is from the model's file.

        `wait`: until it is ready. `is_work`: the model counts as used.
        """
        caller.record.model = model.name
        if not model.is_open and use.unloaded is Unloaded.REFUSE:
            raise InvalidRequest("model is not loaded")
        if not model.is_open and use.unloaded is Unloaded.ANSWER:
            yield self._of_server
            return
        if model.is_open and model.front is not None and not use.wakes:
            if is_work:
                model.touch()
            yield model.front.services
            return
        entry = self._registry.enter(model, self._autoloads(caller, query))
        try:
            await wait(entry)
            assert model.front is not None
            yield model.front.services
        finally:
            self._registry.leave(entry)

    def _autoloads(self, caller: Caller, query: Mapping[str, str]) -> bool:
        """Whether a request loads its model. Raises Forbidden if only its `?autoload` says so, and its key
        may not load models: all share the memory. One that continues has had it loaded before."""
        client, default = caller.client, self._server.models_autoload
        if caller.is_anonymous or not client.role.may(Permission.USE):
            return False
        said = query.get("autoload")
        if said is None or said.lower() in _FALSE:
            return default and said is None
        if not (default or caller.work is not None):
            client.require(Permission.CHANGE, "loading a model", "autoload")
        return True


async def name_in(body: bytes, fields: Sequence[str]) -> str | None:
    """Return the name of the model in a body."""
    if is_long(body):
        return await asyncio.to_thread(find_name, body, *fields)
    return find_name(body, *fields)
