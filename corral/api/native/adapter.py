"""`/lora-adapters`: which there are and how strongly they count; more can be loaded while running."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.answer import ADAPTER, ADAPTERS, SUCCESS, UNLOADED
from corral.api.body import JsonResponse
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.openapi import answers, body_like, list_of, shape
from corral.api.policy import ModelUse, NamedIn, Role, Unloaded, for_model
from corral.api.read_model import read_content
from corral.api.router import Operation, Router
from corral.core.key_role import Permission
from corral.generate.adapter import MAX_ADAPTERS, Adapter, parse_scales
from corral.generate.call import Call
from corral.generate.services import Services
from corral.schema.adapter import LoadAdapterRequest, UnloadAdapterRequest

_MODEL = ModelUse(Role.ANY, NamedIn.QUERY, Unloaded.LOAD, wakes=True, progress=None)

router = Router()

_SCALES = {**list_of(shape(id="integer", scale="number")), "maxItems": MAX_ADAPTERS}


@router.get(
    "/lora-adapters",
    operation=Operation("listAdapters", "List the adapters and their scales", group.ADAPTERS),
    policy=for_model(Permission.READ, LLAMA_ERRORS, replace(_MODEL, unloaded=Unloaded.REFUSE, wakes=False)),
    responses=answers(ADAPTERS),
)
async def adapters(_request: Request, services: Services) -> Response:
    """All adapters, with the scales that count where a request says nothing."""
    services.admission.check_health()
    return JsonResponse([_render(adapter) for adapter in services.adapters])


@router.post(
    "/lora-adapters",
    operation=Operation("setAdapterScales", "Set the scales of the adapters", group.ADAPTERS),
    policy=for_model(Permission.CHANGE, LLAMA_ERRORS, replace(_MODEL, unloaded=Unloaded.REFUSE)),
    openapi_extra=body_like(_SCALES),
    responses=answers(SUCCESS),
)
async def set_scales(request: Request, services: Services) -> Response:
    """Set the scales of all adapters; those not named are off."""
    services.admission.check_health()
    services.adapters.set(parse_scales(await read_content(request, services), services.adapters.ids, "lora"))
    return JsonResponse({"success": True})


@router.post(
    "/lora-adapters/load",
    operation=Operation("loadAdapter", "Load an adapter", group.ADAPTERS),
    policy=for_model(Permission.CHANGE, LLAMA_ERRORS, _MODEL),
    body=LoadAdapterRequest,
    responses=answers(ADAPTER, 404, 409, 501),
)
async def load(call: Call[LoadAdapterRequest]) -> Response:
    """Load an adapter from a file in `--lora-dir`."""
    services, body = call.services, call.body
    services.admission.check_health()
    begins_off = services.settings.server.lora_init_without_apply
    scale = body.scale if body.scale is not None else 0.0 if begins_off else 1.0
    return JsonResponse(_render(await services.adapters.load(body.name, scale)))


@router.post(
    "/lora-adapters/unload",
    operation=Operation("unloadAdapter", "Unload an adapter", group.ADAPTERS),
    policy=for_model(Permission.CHANGE, LLAMA_ERRORS, _MODEL),
    body=UnloadAdapterRequest,
    responses=answers(UNLOADED, 404),
)
async def unload(call: Call[UnloadAdapterRequest]) -> Response:
    """Forget an adapter; requests that run with it come to their end."""
    adapter = call.services.adapters.unload(call.body.adapter)
    return JsonResponse({"success": True, "id": adapter.info.id})


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
