"""The only model of a server: a list of one, which answers to any name.

It is loaded at once. Requests do not wait for that: they are told how far it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

from starlette.types import Receive, Scope, Send

from corral.api.internal import Ask
from corral.api.native.model import render_capabilities, render_only
from corral.api.policy import ModelUse
from corral.api.router import ApiRoute
from corral.core.errors import NotFound, UnknownModel
from corral.core.result import ModelInfo
from corral.core.settings import Settings
from corral.generate.caller import Caller, caller_in
from corral.generate.engine import Engine
from corral.generate.model_kind import Kind, kind_of_info
from corral.generate.services import ServerServices, Services
from corral.link.engine_state import EngineState
from corral.link.renderer import Renderer
from corral.link.tokenizer import Tokenizer
from corral.models.front import Front
from corral.telemetry.dispatcher import Telemetry
from corral.telemetry.record import RequestRecord
from corral.telemetry.request_observer import Asked


class OnlyModel:
    """`Models` of one, and the `ListedModel` in it."""

    are_named = False
    manager = None

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        telemetry: Telemetry,
        tokenizer: Tokenizer,
        renderer: Renderer,
    ) -> None:
        """`tokenizer` and `renderer`: started, and closed with it."""
        self._settings = settings
        self._engine = engine
        self._telemetry = telemetry
        self._tokenizer, self._renderer = tokenizer, renderer
        self.front: Front

    def open(self, of_server: ServerServices) -> None:
        self.front = Front(
            of_server,
            self._settings,
            self._engine,
            self._telemetry,
            self._tokenizer,
            self._renderer,
            self._engine.wake,
        )

    @property
    def services(self) -> Services:
        return self.front.services

    @property
    def is_ready(self) -> bool:
        return self.services.admission.is_open

    @property
    def n_at_once(self) -> int:
        return self._telemetry.queue.n_slots

    @property
    def name(self) -> str:
        return self.services.model.name

    @property
    def path(self) -> str:
        return self.services.model.path

    @property
    def info(self) -> ModelInfo | None:
        return self._engine.info

    @property
    def max_predict(self) -> int:
        return self.services.defaults.max_predict

    @property
    def is_in_memory(self) -> bool:
        return self._engine.state is not EngineState.SLEEPING

    @property
    def kind(self) -> Kind:
        info = self._engine.info
        return kind_of_info(info) if info is not None else Kind.CHAT

    def visible(self, caller: Caller) -> Sequence[OnlyModel]:  # noqa: ARG002
        return [self]

    def find(self, caller: Caller, name: str) -> OnlyModel:  # noqa: ARG002
        if name not in (self.name, *self._settings.server.aliases):
            raise UnknownModel(name)
        return self

    def open_services(self) -> Sequence[Services]:
        return [self.services]

    async def render(self, caller: Caller) -> dict[str, Any]:  # noqa: ARG002
        capabilities = render_capabilities(self.name, self.kind, self.info)
        return {"data": [render_only(self.services)], "models": [capabilities]}

    async def render_one(self, caller: Caller, name: str) -> dict[str, Any]:
        try:
            return render_only(self.find(caller, name).services)
        except UnknownModel as error:
            raise NotFound(error.message) from None

    def answer(self, route: ApiRoute, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        caller_in(scope).record.model = self.name
        return route.serve(self.services, scope, receive, send)

    @contextlib.asynccontextmanager
    async def lend(self, ask: Ask, use: ModelUse | None) -> AsyncIterator[ServerServices]:  # noqa: ARG002
        ask.caller.record.model = self.name
        yield self.services

    def on_request_end(self, asked: Asked, record: RequestRecord) -> None:
        self.front.on_request_end(asked, record)

    def drain(self) -> None:
        self.services.monitor.close()

    async def close(self) -> None:
        await self.front.close()
        await asyncio.to_thread(self._renderer.close)
