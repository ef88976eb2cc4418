"""`/models/load`, `/models/unload` and `/models/sse`: the models of a server that has many."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from corral.api.body import JsonResponse, parse_body
from corral.api.model_directory import ModelDirectory
from corral.api.openapi import EVENTS, answers, body_of, queries, query
from corral.api.router import Router
from corral.api.routes.monitor import LIMIT, limit_of
from corral.api.schema.answer import SUCCESS
from corral.api.schema.model import ModelRequest
from corral.api.sse import EventStream
from corral.core.errors import NotSupported

router = Router()
_NAME = query("model", "Name of the model.", required=True, type="string")


@router.post("/models/load", openapi_extra=body_of(ModelRequest), responses=answers(SUCCESS, 400, 501))
async def load(request: Request) -> Response:
    """Load a model; `GET /models` and `/models/sse` show its progress."""
    directory = _directory(request)
    await directory.load(request, (await parse_body(request, ModelRequest)).model)
    return JsonResponse({"success": True})


@router.post("/models/unload", openapi_extra=body_of(ModelRequest), responses=answers(SUCCESS, 400, 501))
async def unload(request: Request) -> Response:
    """Unload a model after its running requests; the answer comes when its memory is free."""
    directory = _directory(request)
    await directory.unload(request, (await parse_body(request, ModelRequest)).model)
    return JsonResponse({"success": True})


@router.post("/models", openapi_extra=body_of(ModelRequest), responses=answers(SUCCESS, 400, 501))
async def download(request: Request) -> Response:
    """Download a model from a hub; `POST /models/unload` cancels it."""
    directory = _directory(request)
    await directory.download(request, (await parse_body(request, ModelRequest)).model)
    return JsonResponse({"success": True})


@router.delete("/models", openapi_extra=queries(_NAME), responses=answers(SUCCESS, 400, 501))
async def remove(request: Request) -> Response:
    """Delete a downloaded model."""
    await _directory(request).remove(request, request.query_params.get("model", ""))
    return JsonResponse({"success": True})


@router.get("/models/sse", openapi_extra=queries(LIMIT), responses=answers(None, 400, 501, also=[EVENTS]))
async def events(request: Request) -> Response:
    """The states of all models, then their changes as they happen."""
    return EventStream(_directory(request).watch(request, limit_of(request)))


def _directory(request: Request) -> ModelDirectory:
    found: ModelDirectory | None = request.app.state.models
    if found is None:
        raise NotSupported("This server has one model. Start it with `--models-dir` or `--models-preset`")
    return found
