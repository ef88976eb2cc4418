"""`/health`, `/ready`, `/slots` and `/props`: answered by the front alone, also while the engine is busy."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from corral import BUILD_INFO
from corral.api.body import JsonResponse
from corral.api.error import render_error
from corral.api.openapi import answers, body_like, queries, query, shape
from corral.api.render.native import render_slot
from corral.api.schema.answer import HEALTH, PROPS, SLOTS, SUCCESS
from corral.api.schema.parse import RequestModel, parse_request
from corral.api.service import Service, service_of
from corral.api.slot_query import require_slots
from corral.api.trust import is_anonymous
from corral.chat.message import MEDIA_MARK
from corral.core.errors import NotSupported, Unavailable
from corral.core.media_item import MediaKind
from corral.core.result import ModelInfo
from corral.link.lifecycle import EngineState
from corral.telemetry.slots import SlotView

router = APIRouter()

_INCLUDE = query("include_slots", "Tell what each slot does.", type="string")
_FAIL = query("fail_on_no_slot", "Answer 503 if no slot is idle.", type="string")
_HEALTH_QUERY = queries(_INCLUDE, _FAIL)
_PROPS_BODY = body_like({"type": "object"}, required=False)
_READY = shape(status="string")


@router.get("/health", openapi_extra=_HEALTH_QUERY, responses=answers(HEALTH))
@router.get("/v1/health", openapi_extra=_HEALTH_QUERY, responses=answers(HEALTH))
async def health(request: Request) -> Response:
    """Whether the server can answer."""
    service = service_of(request)
    service.check_answers(tells_why=not is_anonymous(request))
    slots, query = service.telemetry.slots, request.query_params
    n_idle = slots.n_idle
    is_full = not n_idle and ("include_slots" in query or "fail_on_no_slot" in query)
    # compat: /health: the older status for clients that ask about slots; today's is ok for all others.
    status: dict[str, Any] = {
        "status": "no slot available" if is_full else "ok",
        "slots_idle": n_idle,
        "slots_processing": slots.n_busy,
    }
    if "include_slots" in query and service.settings.server.slots and not is_anonymous(request):
        status["slots"] = _render_slots(service)
    if is_full and "fail_on_no_slot" in query:
        # compat: /health: the older status together with today's error shape.
        return JsonResponse({**status, **render_error(Unavailable("no slot available"))}, 503)
    return JsonResponse(status)


@router.get("/ready", responses=answers(_READY))
async def ready(request: Request) -> Response:
    """Whether a request would be taken on now."""
    service_of(request).check_ready(tells_why=not is_anonymous(request))
    return JsonResponse({"status": "ready"})


@router.get("/slots", openapi_extra=queries(_FAIL), responses=answers(SLOTS, 501))
async def slots(request: Request) -> Response:
    """What every slot is doing."""
    service = service_of(request)
    require_slots(service)
    service.check_health()
    if request.query_params.get("fail_on_no_slot") and not service.telemetry.slots.n_idle:
        raise Unavailable("no slot available")
    return JsonResponse(await service.run_in_text_pool(_render_slots, service))


@router.get("/props", responses=answers(PROPS))
async def props(request: Request) -> Response:
    """Settings of the server and facts of the model."""
    service = service_of(request)
    vocab, info, server = service.vocab, service.info, service.settings.server
    if is_anonymous(request):
        return JsonResponse(_public_props(service))
    return JsonResponse(
        {
            "default_generation_settings": render_slot(
                SlotView(0), info.n_ctx, service.model_name, service.defaults, "", service.drafts
            ),
            "total_slots": info.n_slots,
            "model_alias": service.model_name,
            "model_path": service.settings.engine.model,
            "model_file": info.path,
            "model_ftype": info.description,
            "modalities": _modalities(info),
            "media_marker": MEDIA_MARK,
            "endpoint_slots": server.slots,
            "endpoint_props": server.props,
            "endpoint_metrics": server.metrics,
            "chats": service.chats is not None,
            "ui": server.ui,
            "ui_settings": request.app.state.ui_settings,
            # compat: /props: as they were called before.
            "webui": server.ui,
            "webui_settings": request.app.state.ui_settings,
            "chat_template": service.chat.dialogue.template.source,
            "bos_token": vocab.bos_text,
            "eos_token": vocab.eos_text,
            # compat: /props: how clients begin and end a turn behind the system prompt.
            "assistant_name": service.system_prompt.assistant_name,
            "user_name": service.system_prompt.anti_prompt,
            "is_sleeping": _is_sleeping(service),
            "build_info": BUILD_INFO,
        }
    )


@router.post("/props", openapi_extra=_PROPS_BODY, responses=answers(SUCCESS, 501))
async def set_props(request: Request) -> Response:
    """Change properties of the server; there are none to change yet."""
    service = service_of(request)
    if not service.settings.server.props:
        message = "This server does not support changing global properties. Start it with `--props`"
        raise NotSupported(message)
    _, warnings = parse_request(RequestModel, await service.read(request, default={}))
    return JsonResponse({"success": True, **({"warnings": warnings} if warnings else {})})


def _public_props(service: Service) -> dict[str, Any]:
    """What is told without a key: nothing that somebody has written into the options, and no path."""
    info = service.info
    return {
        "default_generation_settings": {"n_ctx": info.n_ctx},
        "total_slots": info.n_slots,
        "model_alias": service.model_name,
        "model_ftype": info.description,
        "modalities": _modalities(info),
        "media_marker": MEDIA_MARK,
        "is_sleeping": _is_sleeping(service),
        "build_info": BUILD_INFO,
    }


def _is_sleeping(service: Service) -> bool:
    return service.engine.state is EngineState.SLEEPING


def _modalities(info: ModelInfo) -> dict[str, bool]:
    return {"vision": MediaKind.IMAGE in info.media, "audio": MediaKind.AUDIO in info.media}


def _render_slots(service: Service) -> list[dict[str, Any]]:
    vocab, n_ctx = service.vocab, service.info.n_ctx
    return [
        render_slot(
            view,
            n_ctx,
            service.model_name,
            service.defaults,
            vocab.detokenize(view.task.own_prompt) if view.task else "",
            service.drafts,
        )
        for view in service.telemetry.slots.views
    ]
