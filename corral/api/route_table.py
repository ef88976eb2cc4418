"""Find the route of a request by one lookup; starlette matches routes one after another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from starlette.routing import BaseRoute
from starlette.types import Scope

from corral.api.error_shape import LLAMA_ERRORS, ErrorShape
from corral.api.group import GROUPS
from corral.api.policy import Policy
from corral.api.router import ApiRoute
from corral.core.key_role import Permission


class RouteTable:
    """The routes of an application."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self.routes = [route for route in routes if isinstance(route, ApiRoute)]
        self._fixed = _fixed(self.routes)
        found = {id(route) for route in self._fixed.values()}
        self._others = [route for route in self.routes if id(route) not in found]
        self._errors = _errors_by_prefix(self.routes)

    def find(self, scope: Scope) -> ApiRoute | None:
        """Return the route that answers a request. HEAD is answered as GET where it has no route."""
        method, path = scope["method"], scope["path"]
        found = self._find(method, path, scope)
        return self._find("GET", path, scope) if found is None and method == "HEAD" else found

    def post(self, path: str) -> ApiRoute | None:
        """Return the route with a body that has this path, without parameters in it."""
        found = self._fixed.get(("POST", path))
        return found if found is not None and found.body is not None else None

    def policy(self, scope: Scope) -> Policy | None:
        """Return the policy of a request's route. A path without a route has none: it is a 404, or a file of
        the page."""
        found = self.find(scope)
        return found.policy if found is not None else None

    def errors(self, scope: Scope) -> ErrorShape:
        """Return the error format of a request: of a path without a route, that of all routes with which it
        has most in common."""
        found = self.find(scope)
        if found is not None:
            return found.policy.errors
        return next(filter(None, map(self._errors.get, _prefixes(scope["path"]))), LLAMA_ERRORS)

    def methods(self, scope: Scope) -> set[str]:
        """Return the methods of a request's path."""
        found = {route.method for route in self.routes if route.has_path(scope)}
        return found | {"HEAD"} if "GET" in found else found

    def public(self) -> list[str]:
        """Return the paths that may be read without a key."""
        return [route.path for route in self.routes if route.policy.permission is Permission.PUBLIC]

    def described(self) -> list[ApiRoute]:
        """Return the routes that `/openapi.json` has, in its order: by groups, aliases last."""
        return sorted((route for route in self.routes if route.operation is not None), key=_rank)

    def batched(self) -> list[str]:
        """Return the paths that lines of a batch may be for."""
        return [each.path for each in self.described() if each.policy.is_batched and not each.alias_of]

    def _find(self, method: str, path: str, scope: Scope) -> ApiRoute | None:
        found = self._fixed.get((method, path))
        if found is not None:
            return found
        fitting = (route for route in self._others if route.method == method and route.has_path(scope))
        return next(fitting, None)


def _rank(route: ApiRoute) -> int:
    assert route.operation is not None
    return len(GROUPS) if route.alias_of else GROUPS.index(route.operation.group)


def _fixed(routes: Iterable[ApiRoute]) -> dict[tuple[str, str], ApiRoute]:
    """Return routes by method and path: the first of each, unless more than the path decides about it."""
    first: dict[tuple[str, str], ApiRoute] = {}
    for route in routes:
        first.setdefault((route.method, route.path), route)
    return {key: each for key, each in first.items() if each.fits is None and not each.param_convertors}


def _errors_by_prefix(routes: Iterable[ApiRoute]) -> dict[str, ErrorShape]:
    """Return the error format of each beginning of paths that have a common one."""
    found: dict[str, set[ErrorShape]] = {}
    for route in routes:
        for prefix in _prefixes(route.path_format):
            found.setdefault(prefix, set()).add(route.policy.errors)
    return {prefix: next(iter(shapes)) for prefix, shapes in found.items() if len(shapes) == 1}


def _prefixes(path: str) -> Iterator[str]:
    """Yield a path and what it begins with, the longest first."""
    while path:
        yield path
        path = path.rpartition("/")[0]
