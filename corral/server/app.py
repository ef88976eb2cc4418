"""The composition root of the HTTP side: routes, error handlers, and who is let in, on one application."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.routing import Match
from starlette.types import Scope

from corral import __version__
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
from corral.core.settings import ServerSettings
from corral.server.access import AccessControl, read_keys
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
    )
    app.state.service = service
    app.state.metrics = None
    for router in _ROUTERS:
        app.include_router(router)
    add_error_handlers(app)
    server = service.settings.server
    if server.metrics:
        from corral.api.metrics import Metrics  # takes a while, and few servers need it

        app.state.metrics = Metrics(service)
    if server.static_path:
        app.router.default = open_static(server.static_path)
    _add_access_control(app, server)
    return app


def _add_access_control(app: FastAPI, server: ServerSettings) -> None:
    keys = read_keys(server)
    if not keys:
        return

    def is_public(scope: Scope) -> bool:
        """A file, if anything: a browser shows no key when it loads a page."""
        return bool(server.static_path) and all(route.matches(scope)[0] is Match.NONE for route in app.routes)

    app.add_middleware(AccessControl, keys=keys, is_public=is_public)
