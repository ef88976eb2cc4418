"""The composition root of the HTTP side: routes, error handlers, and who is let in, on one application."""

from __future__ import annotations

from fastapi import FastAPI, Response
from starlette.routing import Match
from starlette.types import Scope

from corral import __version__
from corral.api.openapi import describe
from corral.api.routes import (
    adapter,
    chat,
    completion,
    embedding,
    infill,
    metrics,
    model,
    rank,
    session,
    slot,
    status,
    token,
)
from corral.api.service import Service
from corral.api.trust import public_name
from corral.core.settings import ServerSettings
from corral.server.access import PUBLIC_PATHS, AccessControl, Keys
from corral.server.errors import add_error_handlers
from corral.server.static import open_static

_ROUTERS = (
    status.router,
    metrics.router,
    model.router,
    completion.router,
    infill.router,
    chat.router,
    embedding.router,
    rank.router,
    adapter.router,
    token.router,
    slot.router,
    session.router,
)


def create_app(service: Service) -> FastAPI:
    """Raises CorralError if a file or directory that the settings name is not as it should be."""
    app = FastAPI(
        title="Corral",
        version=__version__,
        description="llama-server's API on libllama",
        redirect_slashes=False,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        default_response_class=Response,  # its routes tell themselves what they answer
    )
    app.state.service = service
    app.state.metrics = app.state.tracer = None
    for router in _ROUTERS:
        app.include_router(router)
    add_error_handlers(app)
    server = service.settings.server
    if server.static_path:
        app.router.default = open_static(server.static_path)
    _add_access_control(app, server)
    _add_monitoring(app, service)
    return app


def _add_monitoring(app: FastAPI, service: Service) -> None:
    """What it takes is imported by those who want it, since that takes a while."""
    server = service.settings.server
    if server.metrics:
        from corral.api.metrics import Metrics

        app.state.metrics = Metrics(service)
    if server.otlp_endpoint:
        from corral.server.tracing import Tracer

        app.state.tracer = Tracer(server.otlp_endpoint, public_name(service))
    app.state.listeners = [each for each in (app.state.metrics, app.state.tracer) if each is not None]


def _add_access_control(app: FastAPI, server: ServerSettings) -> None:
    keys = app.state.keys = Keys(server)
    describe(app, PUBLIC_PATHS, bool(keys))
    if not keys:
        return

    def is_public(scope: Scope) -> bool:
        """A file, if anything: a browser shows no key when it loads a page."""
        return bool(server.static_path) and all(route.matches(scope)[0] is Match.NONE for route in app.routes)

    app.add_middleware(AccessControl, keys=keys, is_public=is_public)
