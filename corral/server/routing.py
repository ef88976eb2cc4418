"""Answer a request by the route that the table finds for it."""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.types import ASGIApp, Receive, Scope, Send

from corral.api.route_table import RouteTable
from corral.models.protocol import Models


class Routing:
    """ASGI, in front of starlette's router: what the table does not know is the router's."""

    def __init__(self, router: ASGIApp, table: RouteTable, models: Models) -> None:
        self._router = router
        self._table = table
        self._models = models

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        route = self._table.find(scope) if scope["type"] == "http" else None
        if route is None:
            return self._router(scope, receive, send)
        scope["path_params"] = route.path_parameters(scope["path"])
        return self._models.answer(route, scope, receive, send)
