"""The composition root of the HTTP side: routes and error handlers on one application."""

from __future__ import annotations

from fastapi import FastAPI

from corral import __version__
from corral.api.routes import (
    adapter,
    chat,
    completion,
    embedding,
    infill,
    model,
    rank,
    session,
    slot,
    status,
    token,
)
from corral.api.service import Service
from corral.server.errors import add_error_handlers

_ROUTERS = (
    status.router,
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
    app = FastAPI(
        title="Corral",
        version=__version__,
        description="llama-server's API on libllama",
        redirect_slashes=False,
    )
    app.state.service = service
    for router in _ROUTERS:
        app.include_router(router)
    add_error_handlers(app)
    return app
