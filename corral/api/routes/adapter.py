"""`/lora-adapters`: which there are and how strongly they count; more can be loaded while running."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from corral.api.adapter import MAX_ADAPTERS, Adapter, parse_scales
from corral.api.body import JsonResponse
from corral.api.openapi import answers, body_like, body_of, list_of, shape
from corral.api.schema.adapter import LoadAdapterRequest, UnloadAdapterRequest
from corral.api.schema.answer import ADAPTER, ADAPTERS, SUCCESS, UNLOADED
from corral.api.schema.parse import parse_request
from corral.api.service import service_of

router = APIRouter()

_SCALES = {**list_of(shape(id="integer", scale="number")), "maxItems": MAX_ADAPTERS}


@router.get("/lora-adapters", responses=answers(ADAPTERS))
async def adapters(request: Request) -> Response:
    """All adapters, with the scales that count where a request says nothing."""
    service = service_of(request)
    service.check_health()
    return JsonResponse([_render(adapter) for adapter in service.adapters])


@router.post("/lora-adapters", openapi_extra=body_like(_SCALES), responses=answers(SUCCESS))
async def set_scales(request: Request) -> Response:
    """Set the scales of all adapters; those not named are off."""
    service = service_of(request)
    service.check_health()
    store = service.adapters
    store.set(parse_scales(await service.read(request), store.ids, "lora"))
    return JsonResponse({"success": True})


@router.post(
    "/lora-adapters/load",
    openapi_extra=body_of(LoadAdapterRequest),
    responses=answers(ADAPTER, 404, 409, 501),
)
async def load(request: Request) -> Response:
    """Load an adapter from a file in `--lora-dir`."""
    service = service_of(request)
    body, _ = parse_request(LoadAdapterRequest, await service.read(request))
    service.check_health()
    begins_off = service.settings.server.lora_init_without_apply
    scale = body.scale if body.scale is not None else 0.0 if begins_off else 1.0
    return JsonResponse(_render(await service.adapters.load(body.name, scale)))


@router.post(
    "/lora-adapters/unload",
    openapi_extra=body_of(UnloadAdapterRequest),
    responses=answers(UNLOADED, 404),
)
async def unload(request: Request) -> Response:
    """Forget an adapter; requests that run with it come to their end."""
    service = service_of(request)
    body, _ = parse_request(UnloadAdapterRequest, await service.read(request))
    return JsonResponse({"success": True, "id": service.adapters.unload(body.adapter).info.id})


def _render(adapter: Adapter) -> dict[str, Any]:
    info = adapter.info
    return {
        "id": info.id,
        "name": adapter.name,
        "path": info.path,
        "scale": adapter.scale,
        "task_name": info.task_name,
        "prompt_prefix": info.prompt_prefix,
    }
