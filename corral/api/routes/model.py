"""`GET /v1/models`: the one that is loaded."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from corral.api.body import JsonResponse
from corral.api.openapi import answers
from corral.api.schema.answer import MODEL, MODELS
from corral.api.state import state_of
from corral.core.errors import NotFound
from corral.core.result import ModelInfo

router = APIRouter()


@router.get("/v1/models", responses=answers(MODELS))
@router.get("/models", responses=answers(MODELS))
async def models(request: Request) -> Response:
    """All models: there is one."""
    state = state_of(request)
    name, info = state.model.name, state.engine.info
    data = [_render(name, info, state.started_at)]
    return JsonResponse({"object": "list", "data": data, "models": [_render_capabilities(name, info)]})


@router.get("/v1/models/{name:path}", responses=answers(MODEL, 404))
async def model(request: Request, name: Annotated[str, Path(description="The model's name.")]) -> Response:
    """One model by its name."""
    state = state_of(request)
    if name != state.model.name:
        raise NotFound(f"there is no model '{name:.256}'")
    return JsonResponse(_render(name, state.engine.info, state.started_at))


def _render_capabilities(name: str, info: ModelInfo | None) -> dict[str, Any]:
    # compat: /v1/models: what else clients look for, in another server's shape.
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


def _render(name: str, info: ModelInfo | None, started_at: int) -> dict[str, Any]:
    # compat: /v1/models: answered while the model is still loading, then without `meta`.
    return {
        "id": name,
        "object": "model",
        "created": started_at,
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
