"""Routes of the hub: what is asked about all models, instead of one."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from corral import __version__
from corral.api.body import JsonResponse
from corral.api.caller import caller_in
from corral.api.dialects.messages import routes as messages
from corral.api.dialects.messages.model_list import render_model as render_messages_model
from corral.api.dialects.messages.reply import render_page, with_id
from corral.api.dialects.ollama import routes as ollama
from corral.api.dialects.ollama import schema
from corral.api.dialects.ollama.model_list import render_model, render_process
from corral.api.router import Router
from corral.api.routes import metrics as metrics_routes
from corral.api.routes import model as model_routes
from corral.api.routes import status
from corral.api.routes.model import list_models
from corral.api.routes.read_model import read_model
from corral.api.services import Services
from corral.core.errors import NotFound, NotSupported
from corral.core.libllama import BUILD_INFO
from corral.gguf.preflight import read_header
from corral.server.router.lender import known_client
from corral.server.router.model import ModelState, ServedModel
from corral.server.router.registry import Registry
from corral.server.router.role import kind_of_model

router = Router()


@router.instead_of(status.router, status.health)
async def health(_request: Request, _services: Services) -> Response:
    """Whether the server can answer; models are loaded when they are used."""
    return JsonResponse({"status": "ok"})


@router.instead_of(status.router, status.ready)
async def ready(_request: Request, services: Services) -> Response:
    """Whether a request would be taken on now."""
    services.admission.check_open()
    return JsonResponse({"status": "ready"})


@router.instead_of(status.router, status.props)
async def props(request: Request, services: Services) -> Response:
    """Settings of the server; `?model=` those of a model."""
    server = services.settings.server
    public: dict[str, Any] = {
        "role": "router",
        "max_instances": server.models_max,
        "models_autoload": server.models_autoload,
        "model_alias": "",
        "total_slots": 0,
        "default_generation_settings": {},
        "modalities": {"vision": False, "audio": False},
        "build_info": BUILD_INFO,
        "server_version": __version__,
    }
    if caller_in(request.scope).is_anonymous:
        return JsonResponse(public)
    settings = request.app.state.ui_settings
    chats = services.storage.chats is not None
    return JsonResponse(
        {**public, "ui": server.ui, "ui_settings": settings, "webui_settings": settings, "chats": chats}
    )


@router.instead_of(metrics_routes.router, metrics_routes.metrics)
async def metrics(request: Request, _services: Services) -> Response:
    """The metrics of all models, with a label; `?model=` those of a model."""
    found = request.app.state.metrics
    if found is None:
        raise NotSupported("This server does not support metrics endpoint. Start it with `--metrics`")
    from corral.server.router.metrics import render_metrics
    from corral.telemetry.prometheus import CONTENT_TYPE

    text = await render_metrics(found, _registry(request).visible(known_client(caller_in(request.scope))))
    return Response(text, media_type=CONTENT_TYPE)


@router.instead_of(messages.router, messages.models)
async def messages_models(request: Request, services: Services) -> Response:
    """All models, in the shape of Anthropic's API."""
    visible = _registry(request).visible(known_client(caller_in(request.scope)))
    rows = [_messages_model(model, services.started_at) for model in visible]
    return with_id(caller_in(request.scope).record, JsonResponse(render_page(rows)))


@router.instead_of(messages.router, messages.model)
async def messages_model(request: Request, services: Services, name: str) -> Response:
    """One model by its name, in the shape of Anthropic's API."""
    row = await request.app.state.models.render_one(caller_in(request.scope), name)
    rendered = _messages_model(_registry(request).models[row["id"]], services.started_at)
    return with_id(caller_in(request.scope).record, JsonResponse(rendered))


@router.instead_of(model_routes.router, model_routes.models)
async def models(request: Request, _services: Services) -> Response:
    """All models."""
    return JsonResponse(await list_models(request, request.app.state.models))


@router.instead_of(model_routes.router, model_routes.model)
async def model(request: Request, _services: Services, name: str) -> Response:
    """One model by its name."""
    return JsonResponse(await request.app.state.models.render_one(caller_in(request.scope), name))


@router.instead_of(ollama.router, ollama.tags)
async def tags(request: Request, services: Services) -> Response:
    """All models, in ollama's shape."""
    visible = _registry(request).visible(known_client(caller_in(request.scope)))
    return JsonResponse({"models": [await _ollama_model(model, services.started_at) for model in visible]})


@router.instead_of(ollama.router, ollama.processes)
async def processes(request: Request, services: Services) -> Response:
    """The loaded models, in ollama's shape."""
    loaded = [
        model.front.services
        for model in _registry(request).visible(known_client(caller_in(request.scope)))
        if model.state is ModelState.LOADED and model.front is not None
    ]
    return JsonResponse({"models": [await _ollama_process(each, services.started_at) for each in loaded]})


@router.instead_of(ollama.router, ollama.show)
async def show(request: Request, services: Services) -> Response:
    """What the file of a model says that is not loaded, in ollama's shape."""
    body = await read_model(request, services, schema.OllamaShowRequest)
    found = _registry(request).find(body.model or body.name, known_client(caller_in(request.scope)))
    try:
        header = read_header(found.entry.settings.engine.model)
    except OSError:
        raise NotFound(f"model '{found.name}' is not downloaded") from None
    family = header.architecture
    numbers = {key: value for key, value in header.metadata.items() if isinstance(value, int | float)}
    return JsonResponse(
        {
            "modelfile": "",
            "parameters": "",
            "template": str(header.metadata.get("tokenizer.chat_template", "")),
            "details": _details(family),
            "model_info": {"general.architecture": family, **numbers},
            "capabilities": [(await asyncio.to_thread(kind_of_model, found)).capability],
        }
    )


def _registry(request: Request) -> Registry:
    registry: Registry = request.app.state.registry
    return registry


def _messages_model(model: ServedModel, started_at: int) -> dict[str, Any]:
    most = model.entry.settings.server.max_predict
    return render_messages_model(model.name, model.info, started_at, most)


async def _ollama_process(services: Services, started_at: int) -> dict[str, Any]:
    digest = await services.file_digest.read(services.model.path)
    return render_process(services.model, started_at, digest, services.engine.unloads_in_s)


async def _ollama_model(model: ServedModel, started_at: int) -> dict[str, Any]:
    kind = await asyncio.to_thread(kind_of_model, model)
    return {**await _ollama_row(model, started_at), "capabilities": [kind.capability]}


async def _ollama_row(model: ServedModel, started_at: int) -> dict[str, Any]:
    if model.is_open and model.front is not None:
        services = model.front.services
        digest = await services.file_digest.read(services.model.path)
        return render_model(services.model, started_at, digest)
    path = model.entry.settings.engine.model
    size = os.path.getsize(path) if os.path.isfile(path) else 0
    return {"name": model.name, "model": model.name, "size": size, "digest": "", "details": _details("")}


def _details(family: str) -> dict[str, Any]:
    return {"parent_model": "", "format": "gguf", "family": family, "families": [family] if family else []}
