"""Answer requests for fixed paths with one lookup; starlette matches routes one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from corral.api.router import ApiRoute


class StaticRoutes:
    """ASGI, in front of the router: what it does not know is the router's."""

    def __init__(self, router: ASGIApp, routes: Sequence[ApiRoute]) -> None:
        self._router = router
        self._routes = _static_routes(routes)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        route = self._routes.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if route is None:
            return self._router(scope, receive, send)
        scope["endpoint"], scope["path_params"] = route.endpoint, {}
        return route.handle(scope, receive, send)


def _static_routes(routes: Sequence[ApiRoute]) -> dict[tuple[str, str], ApiRoute]:
    """Routes by method and path; not those that more than the path decides about."""
    found = [((method, route.path), route) for route in routes for method in route.methods or ()]
    n_routes = Counter(key for key, _ in found)
    return {key: route for key, route in found if n_routes[key] == 1 and _is_static(route)}


def _is_static(route: ApiRoute) -> bool:
    return type(route) is ApiRoute and not route.param_convertors
