"""`/engines`: the engines of a model with several, and replacing one of them without an error."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.answer import SUCCESS
from corral.api.body import JsonResponse
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.openapi import answers, list_of, shape
from corral.api.policy import ModelUse, NamedIn, Role, Unloaded, for_model
from corral.api.router import Operation, PathParameter, Router
from corral.core.errors import InvalidRequest, NotFound, NotSupported
from corral.core.key_role import Permission
from corral.generate.services import ServerServices, Services

if TYPE_CHECKING:
    from corral.fleet.fleet import Fleet
    from corral.fleet.member import Member

# Another model's file may be in the body.
_MODEL = ModelUse(Role.ANY, NamedIn.QUERY_ONLY, Unloaded.REFUSE, wakes=False, progress=None)
CHANGED_MODEL = replace(_MODEL, wakes=True)  # so that it stays loaded meanwhile

router = Router()

_Engine = Annotated[str, PathParameter("Number of the engine.", {"type": "integer", "minimum": 0})]
_ENGINE = shape(
    id="integer",
    state="string",
    node="string|null",
    address="string|null",
    pid="integer|null",
    slots=list_of({"type": "integer"}),
    n_running="integer",
    n_waiting="integer",
    n_restarts="integer",
    fingerprint="string",
)


@router.get(
    "/engines",
    operation=Operation("listEngines", "List the engines (`--engines`)", group.SERVER),
    policy=for_model(Permission.READ, LLAMA_ERRORS, _MODEL),
    responses=answers(shape(engines=list_of(_ENGINE)), 501),
)
async def engines(_request: Request, services: ServerServices) -> Response:
    """What every engine is doing."""
    return JsonResponse({"engines": [_render(engine) for engine in fleet_of(services).engines]})


@router.post(
    "/engines/{id_engine}/drain",
    operation=Operation("drainEngine", "Replace an engine without an error", group.SERVER),
    policy=for_model(Permission.CHANGE, LLAMA_ERRORS, CHANGED_MODEL),
    responses=answers(SUCCESS, 403, 404, 409, 501),
)
async def drain(_request: Request, services: Services, id_engine: _Engine) -> Response:
    """Replace an engine: its requests continue on others; the answer comes when the next one is ready."""
    fleet = fleet_of(services)
    ids = [str(engine.index) for engine in fleet.engines]
    if id_engine not in ids:
        raise NotFound(f"engine {id_engine:.64} does not exist; engines are numbered from 0 to {ids[-1]}")
    await fleet.drain(ids.index(id_engine))
    return JsonResponse({"success": True})


def fleet_of(services: ServerServices) -> Fleet:
    from corral.fleet.fleet import Fleet

    engine = services.engine if isinstance(services, Services) else None  # that of no model
    if isinstance(engine, Fleet):
        return engine
    if engine is None and any(each.engine.engines for each in services.models.open_services()):
        raise InvalidRequest("model name is missing from the request")
    raise NotSupported("This server has one engine. Start it with `--engines`")


def _render(engine: Member) -> dict[str, Any]:
    load, place = engine.load_now, engine.place
    return {
        "id": engine.index,
        "state": "draining" if engine.is_draining else engine.state.value,
        "node": place.node if place is not None else None,
        "address": place.address if place is not None else None,
        "pid": engine.pid,
        "slots": list(engine.slots),
        "n_running": load.n_running,
        "n_waiting": load.n_waiting,
        "n_restarts": engine.lifecycle.n_restarts,
        "fingerprint": engine.fingerprint,
    }
