"""The models of a catalog, for the application: each request gets the one that it names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.types import Receive, Scope, Send

from corral.api.internal import Ask
from corral.api.policy import ModelUse
from corral.api.router import ApiRoute
from corral.core.catalog import CatalogModel
from corral.core.settings import ServerSettings
from corral.generate.caller import Caller
from corral.generate.model_directory import known_client
from corral.generate.services import ServerServices, Services
from corral.link.renderer import Renderer
from corral.models.directory import Directory
from corral.models.dispatch import ModelDispatch
from corral.models.lender import Lender
from corral.models.model import CatalogContext, ServedModel
from corral.models.registry import Registry
from corral.models.store import Locate, ModelStore, Read
from corral.telemetry.ledger import Ledger
from corral.telemetry.loop_meter import LoopMeter
from corral.telemetry.record import RequestRecord
from corral.telemetry.request_observer import Asked


class ManyModels:
    """`Models` of a catalog. All of them share one renderer."""

    are_named = True

    def __init__(
        self,
        catalog: Sequence[CatalogModel],
        server: ServerSettings,
        ledger: Ledger,
        loop: LoopMeter,
        locate: Locate,
        store: ModelStore | None,
        read: Read | None,
    ) -> None:
        self._renderer = Renderer(server.engine_timeout_s)
        self._around = CatalogContext(self._renderer, locate, ledger, loop)
        self.registry = Registry(catalog, server, self._around)
        self.manager = Directory(self.registry, store, read)
        self._server = server
        self._of_server: ServerServices

    def open(self, of_server: ServerServices) -> None:
        self._of_server = self._around.of_server = of_server
        self._lender = Lender(self.registry, self._server, of_server)
        self._dispatch = ModelDispatch(self.registry, self._lender, of_server)

    @property
    def is_ready(self) -> bool:
        return not self._of_server.shutdown.is_begun

    @property
    def n_at_once(self) -> int:
        all_settings = [each.entry.settings for each in self.registry.models.values()]
        return max((each.engine.n_parallel * each.server.n_engines for each in all_settings), default=1)

    def visible(self, caller: Caller) -> Sequence[ServedModel]:
        return self.registry.visible(known_client(caller))

    def find(self, caller: Caller, name: str) -> ServedModel:
        return self.registry.find(name, known_client(caller))

    def open_services(self) -> Sequence[Services]:
        models = self.registry.models.values()
        return [model.front.services for model in models if model.front is not None]

    async def render(self, caller: Caller) -> dict[str, Any]:
        return await self.manager.render(caller)

    async def render_one(self, caller: Caller, name: str) -> dict[str, Any]:
        return await self.manager.render_one(caller, name)

    def answer(self, route: ApiRoute, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._dispatch.answer(route, scope, receive, send)

    def lend(self, ask: Ask, use: ModelUse | None) -> AbstractAsyncContextManager[ServerServices]:
        return self._lender.lend(ask, use)

    def on_request_end(self, asked: Asked, record: RequestRecord) -> None:
        model = self.registry.models.get(record.model)
        if model is not None and model.front is not None:
            model.front.on_request_end(asked, record)

    def drain(self) -> None:
        self.manager.close()
        for services in self.open_services():
            services.monitor.close()

    async def close(self) -> None:
        await self.manager.stop_downloads()
        await self.registry.close()
        await asyncio.to_thread(self._renderer.close)
