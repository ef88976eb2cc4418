"""`GET /v1/models`: the one that is loaded."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from corral.api.body import JsonResponse
from corral.api.openapi import answers
from corral.api.schema.answer import MODEL, MODELS
from corral.api.service import Service, service_of
from corral.core.errors import NotFound

router = APIRouter()


@router.get("/v1/models", responses=answers(MODELS))
@router.get("/models", responses=answers(MODELS))
async def models(request: Request) -> Response:
    """All models: there is one."""
    service = service_of(request)
    name = service.model_name
    return JsonResponse(
        {"object": "list", "data": [_render(service, name)], "models": [_render_capabilities(service, name)]}
    )


@router.get("/v1/models/{name:path}", responses=answers(MODEL, 404))
async def model(request: Request, name: Annotated[str, Path(description="The model's name.")]) -> Response:
    """One model by its name."""
    service = service_of(request)
    if name != service.model_name:
        raise NotFound(f"there is no model '{name:.256}'")
    return JsonResponse(_render(service, name))


def _render_capabilities(service: Service, name: str) -> dict[str, Any]:
    # compat: /v1/models: what else clients look for, in another server's shape.
    info = service.engine.info
    return {
        "name": name,
        "model": name,
        "type": "model",
        "capabilities": [
            "completion" if info is None or info.can_generate else "embedding",
            *(["multimodal"] if info is not None and info.media else []),
        ],
        "details": {"format": "gguf"},
    }


def _render(service: Service, name: str) -> dict[str, Any]:
    # compat: /v1/models: answered while the model is still loading, then without `meta`.
    info = service.engine.info
    return {
        "id": name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "llamacpp",
        "meta": info
        and {
            "vocab_type": info.vocab_type,
            "n_vocab": info.n_vocab,
            "n_ctx_train": info.n_ctx_train,
            "n_embd": info.n_embd,
            "n_params": info.n_params,
            "size": info.n_bytes,
            "ftype": info.description,
        },
    }
