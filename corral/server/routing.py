"""Answer a request by the route that the table finds for it."""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.types import ASGIApp, Receive, Scope, Send

from corral.api.route_table import RouteTable
from corral.api.services import Services


class Routing:
    """ASGI, in front of starlette's router: what the table does not know is the router's."""

    def __init__(self, router: ASGIApp, table: RouteTable, services: Services) -> None:
        self._router = router
        self._table = table
        self._services = services

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        route = self._table.find(scope) if scope["type"] == "http" else None
        if route is None:
            return self._router(scope, receive, send)
        scope.update(route.matches(scope)[1])
        return route.serve(self._services, scope, receive, send)
