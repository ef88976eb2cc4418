"""`/models/load`, `/models/unload` and `/models/sse`: the models of a server that has many."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.answer import SUCCESS
from corral.api.body import JsonResponse
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.event_limit import LIMIT, limit_of
from corral.api.openapi import EVENTS, answers, body_of, queries, query
from corral.api.policy import for_server
from corral.api.read_model import read_model
from corral.api.router import Operation, Router
from corral.api.sse import EventStream
from corral.core.errors import NotSupported
from corral.core.key_role import Permission
from corral.generate.caller import caller_in
from corral.generate.model_directory import ModelManager
from corral.generate.services import ServerServices
from corral.schema.model import ModelRequest

router = Router()
_NAME = query("model", "Name of the model.", required=True, type="string")


@router.post(
    "/models/load",
    operation=Operation("loadModel", "Load a model (`--models-dir`)", group.SERVER),
    policy=for_server(Permission.CHANGE, LLAMA_ERRORS),
    openapi_extra=body_of(ModelRequest),
    responses=answers(SUCCESS, 400, 501),
)
async def load(request: Request, services: ServerServices) -> Response:
    """Load a model; `GET /models` and `/models/sse` show its progress."""
    manager = _manager(services)
    await manager.load(caller_in(request.scope), (await read_model(request, services, ModelRequest)).model)
    return JsonResponse({"success": True})


@router.post(
    "/models/unload",
    operation=Operation("unloadModel", "Unload a model", group.SERVER),
    policy=for_server(Permission.CHANGE, LLAMA_ERRORS),
    openapi_extra=body_of(ModelRequest),
    responses=answers(SUCCESS, 400, 501),
)
async def unload(request: Request, services: ServerServices) -> Response:
    """Unload a model after its running requests; the answer comes when its memory is free."""
    manager = _manager(services)
    await manager.unload(caller_in(request.scope), (await read_model(request, services, ModelRequest)).model)
    return JsonResponse({"success": True})


@router.post(
    "/models",
    operation=Operation("downloadModel", "Download a model (`--models-cache`)", group.SERVER),
    policy=for_server(Permission.CHANGE, LLAMA_ERRORS),
    openapi_extra=body_of(ModelRequest),
    responses=answers(SUCCESS, 400, 501),
)
async def download(request: Request, services: ServerServices) -> Response:
    """Download a model from a hub; `POST /models/unload` cancels it."""
    manager = _manager(services)
    manager.download((await read_model(request, services, ModelRequest)).model)
    return JsonResponse({"success": True})


@router.delete(
    "/models",
    operation=Operation("removeModel", "Delete a downloaded model", group.SERVER),
    policy=for_server(Permission.CHANGE, LLAMA_ERRORS),
    openapi_extra=queries(_NAME),
    responses=answers(SUCCESS, 400, 501),
)
async def remove(request: Request, services: ServerServices) -> Response:
    """Delete a downloaded model."""
    await _manager(services).remove(caller_in(request.scope), request.query_params.get("model", ""))
    return JsonResponse({"success": True})


@router.get(
    "/models/sse",
    operation=Operation("streamModels", "Stream the states of the models", group.SERVER),
    policy=for_server(Permission.ANY, LLAMA_ERRORS),
    openapi_extra=queries(LIMIT),
    responses=answers(None, 400, 501, also=[EVENTS]),
)
async def events(request: Request, services: ServerServices) -> Response:
    """The states of all models, then their changes as they happen."""
    return EventStream(_manager(services).watch(caller_in(request.scope), limit_of(request.query_params)))


def _manager(services: ServerServices) -> ModelManager:
    if services.models.manager is None:
        raise NotSupported("This server has one model. Start it with `--models-dir` or `--models-preset`")
    return services.models.manager
