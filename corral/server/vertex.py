"""`/predict` as Vertex AI calls it: several requests in one body, each for a route of this server.

On if the environment says `AIP_MODE=PREDICTION`; `AIP_PREDICT_ROUTE` and `AIP_HEALTH_ROUTE` name the paths.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from pydantic import Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Scope

from corral.api.batch.call import Answer, Receive
from corral.api.body import JsonResponse, parse_body
from corral.api.error import render_error
from corral.api.router import ApiRoute
from corral.api.schema.parse import RequestModel
from corral.core.errors import CorralError, InvalidRequest
from corral.core.key_role import Permission
from corral.telemetry.scope import record_in

_FORMAT = "@requestFormat"
_MAX_INSTANCES = 128
_OF_ROUTE = ("route", "endpoint", "path_params")


class PredictRequest(RequestModel):
    instances: list[Any] = Field(max_length=_MAX_INSTANCES, description="Requests, each with its format.")


def is_vertex(environ: Mapping[str, str]) -> bool:
    return environ.get("AIP_MODE") == "PREDICTION"


def add_vertex(
    app: Starlette, environ: Mapping[str, str], dispatch: Callable[[ASGIApp], ASGIApp] | None = None
) -> None:
    """Add the routes that Vertex asks for, if this runs there. `dispatch`: finds the model of a request."""
    if not is_vertex(environ):
        return
    routes = request_formats(app)
    health = next(route for route in app.routes if isinstance(route, ApiRoute) and route.path == "/health")

    @functools.cache
    def router() -> ASGIApp:
        """Complete only once the server runs."""
        stack = app.router.middleware_stack
        return dispatch(stack) if dispatch is not None else stack

    async def predict(request: Request) -> Response:
        instances = (await parse_body(request, PredictRequest)).instances
        running = (_predict(router(), request.scope, routes, each) for each in instances)
        return JsonResponse({"predictions": list(await asyncio.gather(*running))})

    path = _path(environ.get("AIP_PREDICT_ROUTE", "") or "predict")
    app.routes.append(ApiRoute("POST", path, predict, permission=Permission.GENERATE))
    if environ.get("AIP_HEALTH_ROUTE"):
        path = _path(environ["AIP_HEALTH_ROUTE"])
        app.routes.append(ApiRoute("GET", path, health.endpoint, permission=Permission.PUBLIC))


def request_formats(app: Starlette) -> dict[str, ApiRoute]:
    """Return the routes that take a POST, by their paths and by these in camel case: `chatCompletions`."""
    routes = [route for route in app.routes if isinstance(route, ApiRoute) and route.methods == {"POST"}]
    found = [route for route in routes if not route.param_convertors]
    return {**{camel_case(each.path): each for each in found}, **{each.path: each for each in found}}


def camel_case(path: str) -> str:
    """Convert `/v1/chat/completions` to `chatCompletions`."""
    words = re.split(r"[/_-]", path.removeprefix("/v1").lstrip("/"))
    return words[0] + "".join(word[:1].upper() + word[1:] for word in words[1:])


async def _predict(router: ASGIApp, scope: Scope, routes: Mapping[str, ApiRoute], instance: Any) -> Any:
    """Answer one instance; an error is its answer."""
    try:
        if not isinstance(instance, dict) or not isinstance(instance.get(_FORMAT), str):
            raise InvalidRequest(
                f"each instance must be an object with a string '{_FORMAT}'", field="instances"
            )
        route = routes.get(instance[_FORMAT])
        if route is None:
            raise InvalidRequest(f"no route has the format '{instance[_FORMAT]:.100}'", field=_FORMAT)
        record_in(scope).client.require(route.permission, f"POST {route.path}")
        payload = {name: value for name, value in instance.items() if name != _FORMAT}
        if "stream" in payload:
            payload["stream"] = False  # compat: /predict: streams are not possible
        return await _call(router, scope, route.path, orjson.dumps(payload))
    except CorralError as error:
        return render_error(error)


async def _call(router: ASGIApp, scope: Scope, path: str, body: bytes) -> Any:
    """Ask a route of this server; the key of the whole request has been checked."""
    answer = Answer(record_in(scope))
    inner = {name: value for name, value in scope.items() if name not in _OF_ROUTE}
    headers = [line for line in scope["headers"] if line[0] not in (b"content-length", b"transfer-encoding")]
    headers.append((b"content-length", b"%d" % len(body)))
    asked = {**inner, "path": path, "raw_path": path.encode(), "headers": headers}
    await router(asked, Receive(body), answer.send)
    return orjson.loads(answer.body)


def _path(text: str) -> str:
    return text if text.startswith("/") else f"/{text}"
