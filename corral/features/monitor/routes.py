"""`GET /monitor/...`: what the server does, and what it did for a request; `corral/webui/monitor.html` shows
it."""

from __future__ import annotations

import re
from typing import Annotated

from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.body import JsonResponse
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.event_limit import LIMIT, limit_of
from corral.api.openapi import EVENTS, answers, list_of, queries, query, shape
from corral.api.policy import ModelUse, NamedIn, Role, Unloaded, for_model, for_server
from corral.api.router import Operation, PathParameter, Router
from corral.api.sse import EventStream
from corral.core.client import Client
from corral.core.errors import Forbidden, InvalidRequest
from corral.core.key_role import Permission
from corral.generate.caller import caller_in
from corral.generate.services import ServerServices, Services

_MODEL = ModelUse(Role.ANY, NamedIn.QUERY, Unloaded.REFUSE, wakes=False, progress=None)

router = Router()

_NUMBER = re.compile(r"[0-9]{1,15}")
_Number = Annotated[str, PathParameter("Number of the request in `/monitor/events`.")]
_REASON = shape(code="string", text="string", values="object")
_PHASE = shape(kind="string", from_ms="number", ms="number", n="integer")
_DETAIL = shape(
    n="integer",
    id="string",
    phases=list_of(_PHASE),
    tasks=list_of(shape(slot="integer|null", n_prompt="integer", phases=list_of(_PHASE))),
    why_slow=list_of(_REASON),
    why_not_cached=list_of(_REASON),
)
_HARDWARE = shape(
    cpu=shape(share="number", peak="number", machine="number", cores="integer"),
    memory=shape(used="integer", peak="integer", available="integer", total="integer"),
    gpus=list_of(shape(name="string", used="integer", peak="integer", total="integer")),
)
_YES, _NO = ("1", "true"), ("", "0", "false")
_PROMPTS = query("prompts", "Show the beginning of your own key's prompts.", type="boolean")


@router.get(
    "/monitor/events",
    operation=Operation("streamEvents", "Stream what the server is doing", group.SERVER),
    policy=for_model(Permission.READ, LLAMA_ERRORS, _MODEL),
    openapi_extra=queries(_PROMPTS, LIMIT),
    responses=answers(None, 400, also=[EVENTS]),
)
async def events(request: Request, services: Services) -> Response:
    """What slots, queue, caches and engine do: the last minute, then changes twice a second."""
    monitor = services.monitor
    reader, limit = _reader(request, services), limit_of(request.query_params)
    monitor.check_capacity()
    return EventStream(monitor.watch(reader, limit))


@router.get(
    "/monitor/hardware",
    operation=Operation("readHardware", "Read CPU and memory of the server", group.SERVER),
    policy=for_server(Permission.READ, LLAMA_ERRORS),
    responses=answers(_HARDWARE),
)
async def hardware(_request: Request, services: ServerServices) -> Response:
    """CPU, memory and GPU memory that the server uses, and their peaks since its start."""
    return JsonResponse(await services.hardware.render())


@router.get(
    "/monitor/requests/{n}",
    operation=Operation("explainRequest", "Explain one of the last requests", group.SERVER),
    policy=for_model(Permission.READ, LLAMA_ERRORS, _MODEL),
    responses=answers(_DETAIL, 404),
)
async def request_detail(request: Request, services: Services, n: _Number) -> Response:
    """One of the last requests of the key: its phases, why it took so long, and why it was not cached."""
    number = int(n) if _NUMBER.fullmatch(n) else 0
    return JsonResponse(services.monitor.detail(number, caller_in(request.scope).client))


def _reader(request: Request, services: Services) -> Client | None:
    """Return the client whose prompts are shown, if it asks for them."""
    asked = request.query_params.get("prompts", "")
    if asked in _NO:
        return None
    if asked not in _YES:
        raise InvalidRequest("must be true or false", field="prompts")
    if not services.has_keys():
        raise Forbidden(
            "Prompts are visible only to the API key that sent them. Start the server with `--api-key`"
        )
    return caller_in(request.scope).client
