"""The composition root of the HTTP side: routes, error handlers and access control on one application."""

from __future__ import annotations

from fastapi import FastAPI, Response
from starlette.routing import Match
from starlette.types import Scope

from corral import __version__
from corral.api.openapi import describe
from corral.api.routes import (
    adapter,
    chat,
    chats,
    completion,
    embedding,
    infill,
    metrics,
    model,
    monitor,
    rank,
    session,
    slot,
    status,
    token,
)
from corral.api.state import AppState
from corral.core.settings import ServerSettings
from corral.server.access import PUBLIC_PATHS, AccessControl, Keys
from corral.server.docs import add_docs
from corral.server.errors import add_error_handlers
from corral.server.head import HeadRequests
from corral.server.page import open_page, ui_settings
from corral.telemetry.facts import ServerFacts
from corral.telemetry.live import Monitor

_ROUTES = (
    *(status, metrics, monitor, model, completion, infill, chat, chats),
    *(embedding, rank, adapter, token, slot, session),
)


def create_app(state: AppState) -> FastAPI:
    """Raises CorralError if a file or directory that the settings name is not as it should be."""
    app = FastAPI(
        title="Corral",
        version=__version__,
        description="llama-server's API on libllama",
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        default_response_class=Response,  # its routes tell themselves what they answer
    )
    app.state.api = state
    app.state.metrics = app.state.tracer = None
    for module in _ROUTES:
        app.include_router(module.router)
    add_error_handlers(app)
    server = state.settings.server
    app.state.ui_settings = ui_settings(server)
    page = open_page(server)
    if page is not None:
        app.router.default = page
    add_docs(app)
    app.add_middleware(HeadRequests, routes=lambda: app.routes)
    _add_access_control(app, server)
    _add_monitoring(app, state)
    return app


def _add_monitoring(app: FastAPI, state: AppState) -> None:
    """What it takes is imported only if it is used, since that takes a while."""
    server, name = state.settings.server, state.model.name
    facts = ServerFacts(
        state.settings,
        state.telemetry,
        state.engine,
        state.storage.sessions,
        state.adapters,
        lambda tokens: state.model.vocab.detokenize(tokens),
    )
    app.state.monitor = Monitor(facts, name)
    if server.metrics:
        from corral.telemetry.prometheus import Metrics

        app.state.metrics = Metrics(facts, name)
    if server.otlp_endpoint:
        from corral.telemetry.tracing import Tracer

        app.state.tracer = Tracer(server.otlp_endpoint, name)
    observers = (app.state.monitor, app.state.metrics, app.state.tracer)
    app.state.observers = [each for each in observers if each is not None]


def _add_access_control(app: FastAPI, server: ServerSettings) -> None:
    keys = app.state.keys = Keys(server)
    describe(app, PUBLIC_PATHS, bool(keys))
    if not keys:
        return

    def is_public(scope: Scope) -> bool:
        """A file, if anything: a browser shows no key when it loads a page."""
        return server.ui and all(route.matches(scope)[0] is Match.NONE for route in app.routes)

    app.add_middleware(AccessControl, keys=keys, is_public=is_public)
