"""Declare routes together with what `/openapi.json` says about them.

A route with a body has an endpoint that takes a `Call`, which the server itself can make too; others take
starlette's request and the services. Both take the parameters of the path, and return a response.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route, compile_path
from starlette.types import Receive, Scope, Send
from typing_extensions import Required, Unpack

from corral.api.group import ALIASES, Group
from corral.api.incoming import Incoming, read_call
from corral.generate.caller import caller_in
from corral.generate.services import ServerServices, Services

if TYPE_CHECKING:
    from corral.api.policy import Policy
    from corral.core.settings import ServerSettings
    from corral.schema.parse import RequestModel

Endpoint = Callable[..., Awaitable[Response]]
EndpointT = TypeVar("EndpointT", bound=Endpoint)


@dataclass(frozen=True, slots=True)
class PathParameter:
    """Describes a parameter of a path: `Annotated[str, PathParameter("...")]`."""

    description: str
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})


@dataclass(frozen=True, slots=True)
class Operation:
    """What `/openapi.json` calls a route. The first path of a route has the name, others are aliases."""

    id: str  # as generated clients call it
    summary: str
    group: Group


class ApiRoute(Route):
    """One path, method and endpoint."""

    def __init__(
        self,
        method: str,
        path: str,
        endpoint: Endpoint,
        *,
        operation: Operation | None,
        policy: Policy,
        alias_of: str = "",
        body: type[RequestModel] | None = None,
        default: Any = None,
        needs: Callable[[Services], object] | None = None,
        only_if: Callable[[ServerSettings], bool] | None = None,
        fits: Callable[[Scope], bool] | None = None,
        responses: Mapping[int | str, Any] | None = None,
        openapi_extra: Mapping[str, Any] | None = None,
    ) -> None:
        """`operation`: None if the route is not described; `alias_of`: the first path of the route;
        `default`: stands for an empty body; `needs`: raises before the body is read if the server cannot
        answer; `only_if`: the servers that have it; `fits`: what else decides whether a request with this
        path is for it; `openapi_extra`: more of its description, such as `requestBody`."""
        super().__init__(path, endpoint)
        self.method = method
        self.methods = {method}  # HEAD has a middleware
        self.path_format = compile_path(path)[1]
        self.operation = operation
        self.policy = policy
        self.alias_of = alias_of
        self.body = body
        self.default = default
        self.needs = needs
        self.only_if = only_if
        self.fits = fits
        self.responses = responses or {}
        self.openapi_extra = openapi_extra or {}

    def has_path(self, scope: Scope) -> bool:
        """Whether a request is for this route, with one method or another."""
        return bool(self.path_regex.match(scope["path"])) and (self.fits is None or self.fits(scope))

    def path_parameters(self, path: str) -> dict[str, Any]:
        """Return the parameters in a path of this route."""
        found = self.path_regex.match(path) if self.param_convertors else None
        values = found.groupdict() if found is not None else {}
        return {name: self.param_convertors[name].convert(value) for name, value in values.items()}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return super().matches(scope) if self.fits is None or self.fits(scope) else (Match.NONE, {})

    async def serve(self, services: ServerServices, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request over HTTP."""
        scope["route"] = self
        request, found = Request(scope, receive, send), scope["path_params"]
        if self.body is None:
            response = await self.endpoint(request, services, **found)
        else:
            caller = msgspec.structs.replace(caller_in(scope), disconnect=receive)
            incoming = Incoming(caller, scope["path"], request.headers, request.stream())
            response = await self.answer(incoming, services, **found)
        await response(scope, receive, send)

    async def answer(self, incoming: Incoming, services: ServerServices, **found: str) -> Response:
        """Answer a request with a body; `found`: the parameters of its path."""
        assert self.body is not None
        used = cast(Services, services)  # the policy says whether the route is for a model
        if self.needs is not None:
            self.needs(used)
        call = await read_call(incoming, used, self.policy, self.body, self.default)
        response: Response = await self.endpoint(call, **found)
        return response

    def describe(self) -> dict[str, Any]:
        """Return the operation of the route in OpenAPI's form."""
        extra = dict(self.openapi_extra)
        parameters = [*self._path_parameters(), *extra.pop("parameters", ())]
        assert self.operation is not None
        return {
            **self._names(self.operation),
            "description": inspect.getdoc(self.endpoint) or "",
            **({"parameters": parameters} if parameters else {}),
            "responses": {str(status): response for status, response in self.responses.items()},
            **extra,
        }

    def _names(self, operation: Operation) -> dict[str, Any]:
        if not self.alias_of:
            return {"tags": [operation.group.name], "summary": operation.summary, "operationId": operation.id}
        id = f"{operation.id}_{re.sub(r'[^A-Za-z0-9]+', '_', self.path_format).strip('_')}"
        return {"tags": [ALIASES.name], "summary": f"Same as {self.alias_of}", "operationId": id}

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


class Said(TypedDict, total=False):
    """What a route says: arguments of `ApiRoute`."""

    operation: Required[Operation | None]
    policy: Required[Policy]
    body: type[RequestModel]
    default: Any
    needs: Callable[[Services], object]
    only_if: Callable[[ServerSettings], bool]
    fits: Callable[[Scope], bool]
    responses: Mapping[int | str, Any]
    openapi_extra: Mapping[str, Any]


class Router:
    """Collects the routes of a module."""

    def __init__(self) -> None:
        self.routes: list[ApiRoute] = []

    def route(self, method: str, *paths: str, **said: Unpack[Said]) -> Callable[[EndpointT], EndpointT]:
        """Add the decorated endpoint at all of these paths."""

        def add(endpoint: EndpointT) -> EndpointT:
            for path in paths:
                alias_of = paths[0] if path != paths[0] else ""
                self.routes.append(ApiRoute(method, path, endpoint, alias_of=alias_of, **said))
            return endpoint

        return add

    def get(self, *paths: str, **said: Unpack[Said]) -> Callable[[EndpointT], EndpointT]:
        return self.route("GET", *paths, **said)

    def head(self, *paths: str, **said: Unpack[Said]) -> Callable[[EndpointT], EndpointT]:
        return self.route("HEAD", *paths, **said)

    def post(self, *paths: str, **said: Unpack[Said]) -> Callable[[EndpointT], EndpointT]:
        return self.route("POST", *paths, **said)

    def put(self, *paths: str, **said: Unpack[Said]) -> Callable[[EndpointT], EndpointT]:
        return self.route("PUT", *paths, **said)

    def delete(self, *paths: str, **said: Unpack[Said]) -> Callable[[EndpointT], EndpointT]:
        return self.route("DELETE", *paths, **said)

    def routes_of(self, endpoint: Endpoint) -> list[ApiRoute]:
        return [route for route in self.routes if route.endpoint is endpoint]
