"""Declare routes together with what `/openapi.json` says about them.

An endpoint takes the request and the parameters of its path, and returns a response.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_type_hints

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, compile_path
from starlette.types import Receive, Scope, Send

from corral.api.operation import permission_for
from corral.core.key_role import Permission

Endpoint = Callable[..., Awaitable[Response]]
EndpointT = TypeVar("EndpointT", bound=Endpoint)


@dataclass(frozen=True, slots=True)
class PathParameter:
    """Describes a parameter of a path: `Annotated[str, PathParameter("...")]`."""

    description: str
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})


class ApiRoute(Route):
    """One path, method and endpoint. `openapi_extra`: more of its description, such as `requestBody`."""

    def __init__(
        self,
        method: str,
        path: str,
        endpoint: Endpoint,
        responses: Mapping[int | str, Any] | None = None,
        openapi_extra: Mapping[str, Any] | None = None,
        include_in_schema: bool = True,
        permission: Permission | None = None,
    ) -> None:
        """`permission`: of a route that is not among the operations; other routes have their row's."""
        super().__init__(path, endpoint, include_in_schema=include_in_schema)
        self.methods = {method}  # HEAD has a middleware
        self.path_format = compile_path(path)[1]
        self.permission = permission or permission_for(method, self.path_format)
        self.responses = responses or {}
        self.openapi_extra = openapi_extra or {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)  # a 405
            return
        scope["route"] = self
        response = await self.endpoint(Request(scope, receive, send), **scope["path_params"])
        await response(scope, receive, send)

    def describe(self) -> dict[str, Any]:
        """Return the operation of the route in OpenAPI's form."""
        extra = dict(self.openapi_extra)
        parameters = [*self._path_parameters(), *extra.pop("parameters", ())]
        return {
            "description": inspect.getdoc(self.endpoint) or "",
            **({"parameters": parameters} if parameters else {}),
            "responses": {str(status): response for status, response in self.responses.items()},
            **extra,
        }

    def _path_parameters(self) -> list[dict[str, Any]]:
        hints = get_type_hints(self.endpoint, include_extras=True) if self.param_convertors else {}
        described = {name: hints[name].__metadata__[0] for name in self.param_convertors}
        return [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": dict(each.schema),
                "description": each.description,
            }
            for name, each in described.items()
        ]


class Router:
    """Collects the routes of a module."""

    def __init__(self, route_class: type[ApiRoute] = ApiRoute) -> None:
        self._route_class = route_class
        self.routes: list[ApiRoute] = []

    def route(self, method: str, *paths: str, **described: Any) -> Callable[[EndpointT], EndpointT]:
        """Add the decorated endpoint at all of these paths. `described`: arguments of `ApiRoute`."""

        def add(endpoint: EndpointT) -> EndpointT:
            self.routes += [self._route_class(method, path, endpoint, **described) for path in paths]
            return endpoint

        return add

    def get(self, *paths: str, **described: Any) -> Callable[[EndpointT], EndpointT]:
        return self.route("GET", *paths, **described)

    def head(self, *paths: str, **described: Any) -> Callable[[EndpointT], EndpointT]:
        return self.route("HEAD", *paths, **described)

    def post(self, *paths: str, **described: Any) -> Callable[[EndpointT], EndpointT]:
        return self.route("POST", *paths, **described)

    def put(self, *paths: str, **described: Any) -> Callable[[EndpointT], EndpointT]:
        return self.route("PUT", *paths, **described)

    def delete(self, *paths: str, **described: Any) -> Callable[[EndpointT], EndpointT]:
        return self.route("DELETE", *paths, **described)

    def include_router(self, other: Router) -> None:
        self.routes += other.routes
