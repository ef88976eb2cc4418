"""The models of a server, as its composition root uses them: one that is always there, or a catalog."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from starlette.types import Receive, Scope, Send

from corral.api.internal import Ask
from corral.api.policy import ModelUse
from corral.api.router import ApiRoute
from corral.generate.model_directory import ModelDirectory
from corral.generate.services import ServerServices
from corral.telemetry.request_observer import RequestObserver


class Models(ModelDirectory, RequestObserver, Protocol):
    """As a `RequestObserver`, it tells the model of each request."""

    def open(self, of_server: ServerServices) -> None:
        """Get what all models share; in a thread, before the first request. Raises CorralError."""
        ...

    def answer(self, route: ApiRoute, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Have a route answer with the services that its request is for."""
        ...

    def lend(self, ask: Ask, use: ModelUse | None) -> AbstractAsyncContextManager[ServerServices]:
        """Have the services for a request that the server itself makes, until it is answered."""
        ...

    def drain(self) -> None:
        """End what would never end by itself, since the server is shutting down."""
        ...

    async def close(self) -> None: ...
