"""Compose the application: routes, error handlers and access control."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from starlette.applications import Starlette
from starlette.types import ASGIApp, Scope

from corral.api.dialects.messages import batch_routes as message_batches
from corral.api.dialects.messages import routes as messages
from corral.api.dialects.ollama import routes as ollama
from corral.api.dialects.responses import conversation_routes as conversations
from corral.api.dialects.responses import routes as responses
from corral.api.openapi import describe
from corral.api.route_table import RouteTable
from corral.api.router import ApiRoute
from corral.api.routes import (
    adapter,
    audio,
    batch,
    chat,
    chats,
    completion,
    control,
    embedding,
    engine,
    engine_update,
    file,
    infill,
    metrics,
    model,
    models,
    monitor,
    rank,
    session,
    slot,
    status,
    stream,
    token,
    tools,
    usage,
)
from corral.api.services import Services
from corral.server import docs_routes as docs
from corral.server.access import AccessControl, Keys
from corral.server.boundary import App
from corral.server.errors import error_handlers
from corral.server.head import HeadRequests
from corral.server.internal import Lend, StoredWork, lender
from corral.server.page import open_page, ui_settings
from corral.server.release import MemoryRelease
from corral.server.resumable import ResumableStreams
from corral.server.routing import Routing
from corral.telemetry.hardware import HardwareMeter
from corral.telemetry.live import Monitor
from corral.telemetry.sources import ServerSource

_ROUTES = (
    # First: some of their paths also exist in other routers.
    *(messages, message_batches, ollama, responses, conversations),
    *(models, status, metrics, monitor, model, chat, completion, infill, control, audio, chats),
    *(embedding, rank, adapter, token, slot, session),
    *(engine, engine_update, file, batch, usage, stream, tools, docs),
)


def declared_routes() -> list[ApiRoute]:
    return [route for module in _ROUTES for route in module.router.routes]


def create_app(
    services: Services,
    keys: Keys | None = None,
    first: Sequence[ApiRoute] = (),
    dispatch: Callable[[ASGIApp], ASGIApp] | None = None,
    lend: Lend | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Starlette:
    """Create the application. Raises CorralError if a file or directory in the settings is unusable.

    `keys`: those that another application has checked. `first`: routes that replace others. `dispatch`:
    middleware after access control. `lend`: has the services of models for what the server asks itself;
    without it there is one model.
    """
    routes = [*first, *declared_routes()]
    lend = lend or lender(services)
    if environ.get("AIP_MODE") and keys is None:
        from corral.server.vertex_routes import vertex_routes  # few servers run there

        routes += vertex_routes(environ, routes, lend)
    app = App(routes, error_handlers())
    app.router.redirect_slashes = False
    app.state.services, app.state.models = services, None
    table = app.state.table = RouteTable(routes)
    app.state.metrics = app.state.tracer = None
    server = services.settings.server
    app.state.ui_settings = ui_settings(server)
    page = open_page(server)
    if page is not None:
        app.router.default = page
    app.router.middleware_stack = Routing(app.router.middleware_stack, table, services)  # type: ignore[assignment]
    app.add_middleware(HeadRequests, table=table)
    if dispatch is not None:
        app.add_middleware(dispatch)
    app.add_middleware(ResumableStreams, sessions=services.streams, table=table)
    if services.sharing is not None and keys is None:
        from corral.server.relay import Relay  # few servers need it

        app.add_middleware(Relay, services=services, sharing=services.sharing, table=table)
    _add_access_control(app, services, table, keys)
    _add_monitoring(app, services)
    app.state.stored_work = StoredWork(table, app.state.keys, lend, app.state.observers)
    return app


def _add_monitoring(app: Starlette, services: Services) -> None:
    """Add the monitor, metrics and traces. The modules are imported only if enabled, since the imports
    are slow."""
    server, name = services.settings.server, services.model.name
    source = ServerSource(
        services.settings,
        services.telemetry,
        services.engine,
        services.storage.sessions,
        services.adapters,
        lambda tokens: services.model.vocab.detokenize(tokens),
    )
    app.state.monitor, app.state.hardware = Monitor(source, name), HardwareMeter()
    if server.metrics:
        from corral.telemetry.prometheus import Metrics

        app.state.metrics = Metrics(source, name)
    if server.otlp_endpoint:
        from corral.telemetry.tracing import Tracer

        app.state.tracer = Tracer(server.otlp_endpoint, name)
    observers = (app.state.monitor, app.state.metrics, app.state.tracer, MemoryRelease())
    app.state.observers = [each for each in observers if each is not None]


def _add_access_control(app: Starlette, services: Services, table: RouteTable, checked: Keys | None) -> None:
    server = services.settings.server
    keys = app.state.keys = checked if checked is not None else Keys(server)
    app.state.openapi = cache(lambda: describe(table, bool(keys)))
    if not keys or checked is not None:
        return

    def is_public(scope: Scope) -> bool:
        """Whether no route matches, so that at most a static file is served: browsers load pages
        without a key."""
        return server.ui and not table.methods(scope)

    app.add_middleware(AccessControl, keys=keys, limits=services.limits, table=table, is_public=is_public)
