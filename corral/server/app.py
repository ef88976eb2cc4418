"""Compose the application: routes, what a request passes before them, what is done beside requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import anyio.to_thread
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from corral.api.anthropic import routes as messages
from corral.api.boundary import Boundary
from corral.api.error_handlers import error_handlers
from corral.api.native import (
    adapter,
    completion,
    control,
    engine,
    engine_update,
    infill,
    metrics,
    model,
    models,
    rank,
    session,
    slot,
    status,
    token,
    usage,
)
from corral.api.ollama import routes as ollama
from corral.api.openai import audio, chat, embedding, text_completion
from corral.api.policy import Follow
from corral.api.responses import conversation_routes as conversations
from corral.api.responses import routes as responses
from corral.api.route_table import RouteTable
from corral.api.router import ApiRoute
from corral.core.settings import ServerSettings, Settings
from corral.features.batches import anthropic_routes as message_batches
from corral.features.batches import file_routes as file
from corral.features.batches import routes as batch
from corral.features.chats import routes as chats
from corral.features.durable import routes as stream
from corral.features.durable.resumable import ResumableStreams
from corral.features.durable.runner import DurableRunner, start_durable
from corral.features.monitor import routes as monitor
from corral.features.tools import routes as tools
from corral.generate.services import ServerServices
from corral.models.protocol import Models
from corral.server import docs_routes as docs
from corral.server.access import AccessControl, Keys
from corral.server.head import HeadRequests
from corral.server.memory_trim import MemoryRelease
from corral.server.page import open_page
from corral.server.routing import Routing
from corral.server.services import open_services
from corral.server.stored_work import StoredWork
from corral.telemetry.ledger import Ledger
from corral.telemetry.loop_meter import LoopMeter
from corral.telemetry.request_observer import RequestObserver

if TYPE_CHECKING:
    from corral.telemetry.tracing import Tracer

_SWITCH_S = 0.001  # between two threads that compute: the event loop should not wait for all of them
_ROUTES = (
    # First: some of their paths also exist in other routers.
    *(messages, message_batches, ollama, responses, conversations),
    *(models, status, metrics, monitor, model, chat, completion, text_completion),
    *(infill, control, audio, chats, embedding, rank, adapter, token, slot, session),
    *(engine, engine_update, file, batch, usage, stream, tools, docs),
)


def declared_routes() -> list[ApiRoute]:
    return [route for module in _ROUTES for route in module.router.routes]


class Application:
    """ASGI: the one application of a server, whatever models it has. `services`: what all of them share."""

    def __init__(
        self, app: ASGIApp, table: RouteTable, services: ServerServices, models: Models, keys: Keys
    ) -> None:
        self._app = app
        self.table = table
        self.services = services
        self.models = models
        self.keys = keys
        self._tracer = _open_tracer(services.settings.server)
        own = (services.server_metrics, self._tracer, MemoryRelease())
        self.observers: list[RequestObserver] = [models, *(each for each in own if each is not None)]
        self.stored_work = StoredWork(table, keys, models.lend, self.observers)
        self._durable: DurableRunner | None = None

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        scope["app"] = self
        return self._app(scope, receive, send)

    def start(self, connections: Sized, address: str) -> None:
        """Begin what is done beside requests; call on the event loop. Raises CorralError if servers with the
        same storage cannot know how to reach this one."""
        services, models = self.services, self.models
        _prepare_loop(services.settings.server)
        services.hardware.start()
        services.loop.start(lambda: len(connections) > 0)
        if services.server_metrics is not None:
            services.server_metrics.watch_connections(lambda: len(connections))
        if services.batches is not None:
            services.batches.start(self.stored_work.run)
        self._durable = start_durable(services, self.stored_work.run, lambda: models.is_ready)
        if services.sharing is not None:
            services.sharing.start(
                address, services.batches, self._durable, services.ledger, lambda: models.is_ready
            )

    def drain(self) -> None:
        """Take on nothing new, and end what would never end by itself."""
        self.services.shutdown.begin()
        self.models.drain()

    async def close(self) -> None:
        services = self.services
        services.hardware.stop()
        if services.sharing is not None:
            await services.sharing.stop()
        if services.journal is not None:
            services.journal.stop()  # what is unfinished continues after a restart
        if self._durable is not None:
            await self._durable.close()
        if services.batches is not None:
            await services.batches.close()
        await self.models.close()
        await services.streams.close()
        if services.mcp is not None:
            await services.mcp.close()
        with contextlib.suppress(asyncio.CancelledError):
            await services.responses.close()
        if services.journal is not None:
            await services.journal.close()
        await services.ledger.close()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)
        if services.sharing is not None:
            await services.sharing.close()


def create_app(
    settings: Settings,
    models: Models,
    ledger: Ledger,
    loop: LoopMeter,
    routes: Sequence[ApiRoute] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Application:
    """Create the application; blocks. Raises CorralError if a file or directory in the settings is
    unusable. `routes`: others than those that are declared."""
    server = settings.server
    given = declared_routes() if routes is None else routes
    served = [route for route in given if route.only_if is None or route.only_if(server)]
    if environ.get("AIP_MODE"):
        from corral.features.vertex.routes import vertex_routes

        served += vertex_routes(environ, served, models.lend)
    table, keys = RouteTable(served), Keys(server)
    services = open_services(settings, models, keys, table, ledger, loop)
    models.open(services)
    return Application(_layers(services, models, table, keys), table, services, models, keys)


def _layers(services: ServerServices, models: Models, table: RouteTable, keys: Keys) -> ASGIApp:
    """Return the routes behind what a request passes before them, each layer with its reason."""
    server, handlers = services.settings.server, error_handlers()
    router = Router(table.routes, redirect_slashes=False, default=open_page(server))  # files, 404, 405
    routed = Boundary(Routing(router, table, models), handlers)  # exceptions become answers
    asked = HeadRequests(routed, table)  # HEAD is answered as GET, without a body
    streamed = ResumableStreams(asked, services.streams, table)  # a stream outlives its client
    app: ASGIApp = _Needed(table, routed, asked, Boundary(streamed, handlers))
    if services.sharing is not None:
        from corral.features.shared.peer_proxy import Relay

        streams = stream.router.routes_of(stream.stop)[0].path
        app = Relay(app, services, services.sharing, table, streams)  # it may be in another server's memory
    if keys:
        app = AccessControl(app, keys, services.limits, table, server.ui)  # who may ask, and how much
    return Boundary(app, handlers) if keys or services.sharing is not None else app


class _Needed:
    """ASGI: has a request pass only the layers that its route and method need."""

    def __init__(self, table: RouteTable, routed: ASGIApp, asked: ASGIApp, streamed: ASGIApp) -> None:
        self._table = table
        self._routed, self._asked, self._streamed = routed, asked, streamed

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        method = scope.get("method")
        if method == "HEAD":
            return self._asked(scope, receive, send)
        policy = self._table.policy(scope) if method == "POST" else None
        is_streamed = policy is not None and policy.follow is not Follow.NEVER
        return (self._streamed if is_streamed else self._routed)(scope, receive, send)


def _open_tracer(server: ServerSettings) -> Tracer | None:
    if not server.otlp_endpoint:
        return None
    from corral.telemetry.tracing import Tracer  # slow import

    return Tracer(server.otlp_endpoint)


def _prepare_loop(server: ServerSettings) -> None:
    """Set up the threads of the process."""
    use_threads(server.n_threads_http)
    sys.setswitchinterval(_SWITCH_S)


def use_threads(n: int) -> None:
    """Limit the threads for blocking work; -1: the libraries' defaults."""
    if n > 0:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(n, "http"))
        anyio.to_thread.current_default_thread_limiter().total_tokens = n
