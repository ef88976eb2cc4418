"""`/predict` as Vertex AI calls it: several requests in one body, each for a route of this server.

On if the environment says `AIP_MODE=PREDICTION`; `AIP_PREDICT_ROUTE` and `AIP_HEALTH_ROUTE` name the paths.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from corral.api.answer_internally import Lend, answer_internally
from corral.api.body import JsonResponse
from corral.api.error_shape import LLAMA_ERRORS, render_error
from corral.api.internal import Answer, Ask
from corral.api.native import status
from corral.api.policy import Follow, Policy, for_server
from corral.api.read_model import read_model
from corral.api.router import ApiRoute
from corral.core.errors import CorralError, InvalidRequest
from corral.core.key_role import Permission
from corral.generate.caller import Caller, caller_in
from corral.generate.services import ServerServices
from corral.schema.parse import RequestModel

_FORMAT = "@requestFormat"
_MAX_INSTANCES = 128
_POLICY = Policy(
    permission=Permission.GENERATE,
    errors=LLAMA_ERRORS,
    model=None,  # each instance has its own
    follow=Follow.NEVER,
    live=None,
    settles=False,
    is_batched=False,
)


class PredictRequest(RequestModel):
    instances: list[Any] = Field(max_length=_MAX_INSTANCES, description="Requests, each with its format.")


def is_vertex(environ: Mapping[str, str]) -> bool:
    return environ.get("AIP_MODE") == "PREDICTION"


def vertex_routes(
    environ: Mapping[str, str],
    routes: Sequence[ApiRoute],
    lend: Lend,
) -> list[ApiRoute]:
    """Return the routes that Vertex asks for, if this runs there. `lend`: finds the model of an instance."""
    if not is_vertex(environ):
        return []
    formats = request_formats(routes)

    async def predict(request: Request, services: ServerServices) -> Response:
        instances = (await read_model(request, services, PredictRequest)).instances
        caller, query = caller_in(request.scope), request.query_params
        running = (_predict(caller, query, lend, formats, each) for each in instances)
        predictions = list(await asyncio.gather(*running))
        if services.models.are_named:
            caller.record.model = ""  # instances may be for several
        return JsonResponse({"predictions": predictions})

    path = _path(environ.get("AIP_PREDICT_ROUTE", "") or "predict")
    found = [ApiRoute("POST", path, predict, operation=None, policy=_POLICY)]
    if environ.get("AIP_HEALTH_ROUTE"):
        path = _path(environ["AIP_HEALTH_ROUTE"])
        policy = for_server(Permission.PUBLIC, LLAMA_ERRORS)
        found.append(ApiRoute("GET", path, _health(routes).endpoint, operation=None, policy=policy))
    return found


def request_formats(routes: Sequence[ApiRoute]) -> dict[str, ApiRoute]:
    """Return the routes that have a body, by their paths and by these in camel case: `chatCompletions`."""
    found = [route for route in routes if route.body is not None and not route.param_convertors]
    return {**{camel_case(each.path): each for each in found}, **{each.path: each for each in found}}


def _health(routes: Sequence[ApiRoute]) -> ApiRoute:
    """Return the first route that is that of the health check."""
    path = status.router.routes_of(status.health)[0].path
    return next(route for route in routes if route.path == path)


def camel_case(path: str) -> str:
    """Convert `/v1/chat/completions` to `chatCompletions`."""
    words = re.split(r"[/_-]", path.lstrip("/"))
    first, *others = words[1:] if words[0] == "v1" else words
    return first + "".join(word[:1].upper() + word[1:] for word in others)


async def _predict(
    caller: Caller, query: Mapping[str, str], lend: Lend, routes: Mapping[str, ApiRoute], instance: Any
) -> Any:
    """Answer one instance; an error is its answer."""
    try:
        if not isinstance(instance, dict) or not isinstance(instance.get(_FORMAT), str):
            raise InvalidRequest(
                f"each instance must be an object with a string '{_FORMAT}'", field="instances"
            )
        route = routes.get(instance[_FORMAT])
        if route is None:
            raise InvalidRequest(f"no route has the format '{instance[_FORMAT]:.100}'", field=_FORMAT)
        caller.client.require(route.policy.permission, f"POST {route.path}")
        payload = {name: value for name, value in instance.items() if name != _FORMAT}
        if "stream" in payload:
            payload["stream"] = False  # compat: /predict: streams are not possible
        answer = Answer()
        ask = Ask(caller, route.path, orjson.dumps(payload), query=query)
        await answer_internally(route, ask, lend, answer.send)
        return orjson.loads(answer.body)
    except CorralError as error:
        return render_error(error)


def _path(text: str) -> str:
    return text if text.startswith("/") else f"/{text}"
