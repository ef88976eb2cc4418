"""`/health`, `/ready`, `/slots` and `/props`: answered by the front alone, also while the engine is busy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from corral import __version__
from corral.api import group
from corral.api.answer import HEALTH, PROPS, SLOTS, SUCCESS
from corral.api.body import JsonResponse
from corral.api.error_shape import LLAMA_ERRORS, render_error
from corral.api.native.slot_call import require_slots
from corral.api.openapi import answers, body_like, queries, query, shape
from corral.api.policy import ModelUse, NamedIn, Role, Unloaded, for_model
from corral.api.render.capability import render_capability
from corral.api.render.native import render_slot
from corral.api.render.warning import render_warnings
from corral.api.router import Operation, Router
from corral.chat.message import MEDIA_MARK
from corral.core.errors import NotSupported, Unavailable
from corral.core.key_role import Permission
from corral.core.libllama import BUILD_INFO
from corral.core.media_item import MediaKind
from corral.core.result import BatchExact
from corral.generate.call import Call
from corral.generate.caller import Caller, caller_in
from corral.generate.model import ChatSettings
from corral.generate.services import ServerServices, Services
from corral.grammar.keyword import render_support
from corral.link.engine_state import EngineState
from corral.schema.parse import RequestModel
from corral.telemetry.slots import SlotView

_WATCHED = ModelUse(Role.ANY, NamedIn.QUERY_ONLY, Unloaded.REFUSE, wakes=False, progress=None)
_DESCRIBED = replace(_WATCHED, unloaded=Unloaded.LOAD)

router = Router()

_INCLUDE = query("include_slots", "Include the state of each slot.", type="string")
_FAIL = query("fail_on_no_slot", "Answer 503 if no slot is idle.", type="string")
_KEYWORDS = query("json_schema", "Include which keywords of JSON Schema are enforced.", type="string")
_PROPS_BODY = body_like({"type": "object"}, required=False)
_READY = shape(status="string")


def _require_props(services: Services) -> None:
    if not services.settings.server.props:
        message = "This server does not support changing global properties. Start it with `--props`"
        raise NotSupported(message)


@router.get(
    "/health",
    "/v1/health",
    operation=Operation("getHealth", "Check that the server is healthy", group.SERVER),
    policy=for_model(Permission.PUBLIC, LLAMA_ERRORS, _WATCHED),
    openapi_extra=queries(_INCLUDE, _FAIL),
    responses=answers(HEALTH),
)
async def health(request: Request, services: ServerServices) -> Response:
    """Whether the server can answer. One with many models can, whatever they do."""
    if not isinstance(services, Services):
        return JsonResponse({"status": "ok"})
    services.admission.check_answers(tells_why=not caller_in(request.scope).is_anonymous)
    slots, query = services.telemetry.slots, request.query_params if request.scope["query_string"] else ()
    n_idle = slots.n_idle
    is_full = not n_idle and ("include_slots" in query or "fail_on_no_slot" in query)
    # compat: /health: the older status for clients that ask about slots; today's is ok for all others.
    status: dict[str, Any] = {
        "status": "no slot available" if is_full else "ok",
        "slots_idle": n_idle,
        "slots_processing": slots.n_busy,
    }
    if engines := services.engine.engines:
        status["engines"] = {"ready": sum(engine.is_serving for engine in engines), "total": len(engines)}
    if "include_slots" in query and services.settings.server.slots and _may_read(caller_in(request.scope)):
        status["slots"] = _render_slots(services)
    if is_full and "fail_on_no_slot" in query:
        # compat: /health: the older status together with today's error shape.
        return JsonResponse({**status, **render_error(Unavailable("no slot available"))}, 503)
    return JsonResponse(status)


@router.get(
    "/ready",
    operation=Operation("getReadiness", "Check that a request would be accepted now", group.SERVER),
    policy=for_model(Permission.PUBLIC, LLAMA_ERRORS, _WATCHED),
    responses=answers(_READY),
)
async def ready(request: Request, services: ServerServices) -> Response:
    """Whether a request would be taken on now."""
    if not isinstance(services, Services):
        services.shutdown.check()
        return JsonResponse({"status": "ready"})
    services.admission.check_ready(tells_why=not caller_in(request.scope).is_anonymous)
    return JsonResponse({"status": "ready"})


@router.get(
    "/slots",
    operation=Operation("listSlots", "List the slots", group.SLOTS),
    policy=for_model(Permission.READ, LLAMA_ERRORS, replace(_WATCHED, named_in=NamedIn.QUERY)),
    openapi_extra=queries(_FAIL),
    responses=answers(SLOTS, 501),
)
async def slots(request: Request, services: Services) -> Response:
    """What every slot is doing."""
    require_slots(services)
    services.admission.check_health()
    if request.query_params.get("fail_on_no_slot") and not services.telemetry.slots.n_idle:
        raise Unavailable("no slot available")
    return await services.pools.run_text(
        caller_in(request.scope).client, lambda: JsonResponse(_render_slots(services))
    )


@router.get(
    "/props",
    operation=Operation("getProps", "Get the server's properties", group.SERVER),
    policy=for_model(Permission.PUBLIC, LLAMA_ERRORS, _DESCRIBED),
    openapi_extra=queries(_KEYWORDS),
    responses=answers(PROPS),
)
async def props(request: Request, services: ServerServices) -> Response:
    """Settings of the server and facts of the model."""
    if not isinstance(services, Services):
        return JsonResponse(_render_router(services, caller_in(request.scope)))
    model, server, system = services.model, services.settings.server, services.defaults.system_prompt
    public: dict[str, Any] = {
        "default_generation_settings": {"n_ctx": model.info.n_ctx},
        "total_slots": model.info.n_slots,
        "model_alias": model.name,
        "model_name": model.title,
        "model_ftype": model.info.description,
        "model_size": model.info.n_bytes,
        "modalities": {
            "vision": MediaKind.IMAGE in model.info.media,
            "audio": MediaKind.AUDIO in model.info.media,
            "video": False,
        },
        "media_marker": MEDIA_MARK,
        "is_sleeping": services.engine.state is EngineState.SLEEPING,
        "build_info": BUILD_INFO,
        "server_version": __version__,
        "batch_exact": _render_exactness(model.info.batch_exact),
    }
    if "json_schema" in request.query_params:
        public["json_schema"] = render_support()
    vocab = model.vocab
    if caller_in(request.scope).is_anonymous:  # nothing that is written in the options, and no path
        return JsonResponse(public)
    return JsonResponse(
        {
            **public,
            "default_generation_settings": _render_slot(services, SlotView(0), ""),
            "model_path": model.path,
            "model_file": model.info.path,
            "endpoint_slots": server.slots,
            "endpoint_props": server.props,
            "endpoint_metrics": server.metrics,
            "chats": services.storage.chats is not None,
            "durable": True,  # streams outlive their clients
            "ui": server.ui,
            "ui_settings": services.ui_settings,
            "ui_mcp_origins": server.ui_mcp_origins,
            "endpoint_tools": services.mcp is not None
            and bool(services.mcp.names(caller_in(request.scope).client)),
            # compat: /props: as they were called before.
            "webui": server.ui,
            "webui_settings": services.ui_settings,
            "cors_proxy_enabled": False,
            "chat_template": model.chat.chat_format.template.source,
            "chat_template_caps": render_capability(model.chat.tool_format),
            **_render_tool_template(model.chat),
            "bos_token": vocab.bos_text,
            "eos_token": vocab.eos_text,
            # compat: /props: how clients begin and end a turn after the system prompt.
            "assistant_name": system.assistant_name,
            "user_name": system.anti_prompt,
        }
    )


@router.post(
    "/props",
    operation=Operation("setProps", "Change the server's properties", group.SERVER),
    policy=for_model(Permission.CHANGE, LLAMA_ERRORS, replace(_DESCRIBED, named_in=NamedIn.QUERY)),
    body=RequestModel,
    default={},
    needs=_require_props,
    openapi_extra=_PROPS_BODY,
    responses=answers(SUCCESS, 501),
)
async def set_props(call: Call[RequestModel]) -> Response:
    """Change properties of the server; there are none to change yet."""
    return JsonResponse({"success": True, **render_warnings(call.body.warnings)})


def _render_router(services: ServerServices, caller: Caller) -> dict[str, Any]:
    """Render what is of no model. compat: /props: as llama-server's router."""
    server, settings = services.settings.server, services.ui_settings
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
    if caller.is_anonymous:
        return public
    chats = services.storage.chats is not None
    return {**public, "ui": server.ui, "ui_settings": settings, "webui_settings": settings, "chats": chats}


def _may_read(caller: Caller) -> bool:
    """Whether a client of a public route may also see what others are doing."""
    return not caller.is_anonymous and caller.client.role.may(Permission.READ)


def _render_tool_template(chat: ChatSettings) -> dict[str, str]:
    source = chat.tool_format.template.source
    return {"chat_template_tool_use": source} if source != chat.chat_format.template.source else {}


def _render_slots(services: Services) -> list[dict[str, Any]]:
    detokenize = services.model.vocab.detokenize
    return [
        _render_slot(services, view, detokenize(view.task.own_prompt) if view.task else "")
        for view in services.telemetry.slots.views
    ]


def _render_slot(services: Services, view: SlotView, prompt: str) -> dict[str, Any]:
    model, defaults = services.model, services.defaults.params
    drafts = services.settings.engine.drafts and defaults.speculative.n_max > 0
    return render_slot(view, model.info.n_ctx, model.name, defaults, prompt, drafts)


def _render_exactness(known: BatchExact) -> dict[str, Any]:
    return {
        "enabled": known.is_on,
        "n_streams": known.n_streams,
        "limits": known.limits,
        "reason": known.reason,
    }
