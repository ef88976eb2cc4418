"""`GET /v1/models`: the models of this server."""

from __future__ import annotations

from typing import Annotated, Any

from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.answer import MODEL, MODELS
from corral.api.body import JsonResponse
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.openapi import answers, queries, query
from corral.api.policy import for_server
from corral.api.router import Operation, PathParameter, Router
from corral.core.key_role import Permission
from corral.core.result import ModelInfo
from corral.generate.caller import caller_in
from corral.generate.model_kind import Kind, kind_of_info
from corral.generate.services import ServerServices, Services

router = Router()
_EMPTY = ("modified_at", "size", "digest", "description", "parameters")
_EMPTY_DETAILS = ("parent_model", "family", "parameter_size", "quantization_level")
RELOAD = query("reload", "1: read `--models-dir`, `--models-preset` and `--config` again.", type="string")


@router.get(
    "/v1/models",
    "/models",
    operation=Operation("listModels", "List the models", group.SERVER),
    policy=for_server(Permission.PUBLIC, LLAMA_ERRORS),
    openapi_extra=queries(RELOAD),
    responses=answers(MODELS, 400),
)
async def models(request: Request, services: ServerServices) -> Response:
    """All models, after `?reload=1` as they are then."""
    caller = caller_in(request.scope)
    manager = services.models.manager
    if manager is not None and request.query_params.get("reload", "").lower() in ("1", "true"):
        caller.client.require(Permission.CHANGE, "reading the models again", "reload")
        await manager.reload(caller)
    return JsonResponse({"object": "list", **await services.models.render(caller)})


@router.get(
    "/v1/models/{name:path}",
    operation=Operation("getModel", "Get a model by its name", group.SERVER),
    policy=for_server(Permission.ANY, LLAMA_ERRORS),
    responses=answers(MODEL, 404),
)
async def model(
    request: Request, services: ServerServices, name: Annotated[str, PathParameter("Name of the model.")]
) -> Response:
    """One model by its name."""
    return JsonResponse(await services.models.render_one(caller_in(request.scope), name))


def render_meta(info: ModelInfo) -> dict[str, Any]:
    return {
        "vocab_type": info.vocab_type,
        "n_vocab": info.n_vocab,
        "n_ctx": info.n_ctx,
        "n_ctx_train": info.n_ctx_train,
        "n_embd": info.n_embd,
        "n_params": info.n_params,
        "size": info.n_bytes,
        "ftype": info.description,
    }


def render_capabilities(name: str, kind: Kind, info: ModelInfo | None) -> dict[str, Any]:
    # compat: /v1/models: what else clients look for, in another server's shape, most of it empty.
    return {
        "name": name,
        "model": name,
        **dict.fromkeys(_EMPTY, ""),
        "tags": [""],
        "type": "model",
        "capabilities": [
            kind.capability,
            *(["multimodal"] if info is not None and info.media else []),
        ],
        "details": {**dict.fromkeys(_EMPTY_DETAILS, ""), "families": [""], "format": "gguf"},
    }


def render_only(services: Services) -> dict[str, Any]:
    """Render the row of the only model."""
    # compat: /v1/models: answered while the model is still loading, then without `meta`.
    name, info, server = services.model.name, services.engine.info, services.settings.server
    return {
        "id": name,
        "aliases": list(server.aliases),
        "tags": list(server.tags),
        "object": "model",
        "created": services.started_at,
        "owned_by": "llamacpp",
        "name": info and services.model.title,
        "kind": info and kind_of_info(info).value,
        "meta": info and render_meta(info),
    }
