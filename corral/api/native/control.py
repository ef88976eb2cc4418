"""`POST /v1/chat/completions/control`: control an answer while it is generated."""

from __future__ import annotations

from dataclasses import replace

from starlette.responses import Response

from corral.api import group
from corral.api.answer import CONTROL
from corral.api.body import JsonResponse
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.openapi import answers
from corral.api.policy import Live, ModelUse, NamedIn, Role, Unloaded, for_model
from corral.api.router import Operation, Router
from corral.core.errors import InvalidRequest
from corral.core.key_role import Permission
from corral.core.result import ControlOutcome
from corral.core.task import ControlVerb
from corral.generate.call import Call
from corral.generate.services import Services
from corral.schema.control import ControlRequest

_MODEL = ModelUse(Role.GENERATE, NamedIn.BODY, Unloaded.LOAD, wakes=True, progress=None)

router = Router()

_VERBS = {
    "reasoning_end": ControlVerb.END_REASONING,
    "stop": ControlVerb.STOP,
    "pause": ControlVerb.PAUSE,
    "resume": ControlVerb.RESUME,
    "limit": ControlVerb.LIMIT,
}
# compat: /v1/chat/completions/control: what cannot be done is not an error. The first two are
# llama-server's.
_MESSAGES = {
    ControlOutcome.UNKNOWN: "no active completion for this id",
    ControlOutcome.NOT_ENABLED: "reasoning control not enabled for this completion",
    ControlOutcome.OVER: "what was to be changed is over",
    ControlOutcome.TOO_EARLY: "the request is still being prepared",
}


@router.post(
    "/v1/chat/completions/control",
    "/chat/completions/control",
    "/completion/control",
    operation=Operation("controlCompletion", "Control an answer while it is generated", group.CHAT),
    policy=replace(for_model(Permission.USE, LLAMA_ERRORS, _MODEL), live=Live.ANSWER),
    body=ControlRequest,
    responses=answers(CONTROL),
)
async def control(call: Call[ControlRequest]) -> Response:
    """Control an answer that is being generated."""
    services, body = call.services, call.body
    outcome = await services.live.control(call.client, body.id, _VERBS[body.action], _limit(body, services))
    if outcome is ControlOutcome.DONE:
        return JsonResponse({"success": True})
    return JsonResponse({"success": False, "message": _MESSAGES[outcome]})


def _limit(body: ControlRequest, services: Services) -> int:
    """Return the new limit, at most `--max-predict`."""
    if body.action != "limit":
        return -1
    if body.n_predict is None:
        raise InvalidRequest("the action 'limit' needs it", field="n_predict")
    cap = services.settings.server.max_predict
    if cap < 0:
        return body.n_predict
    return cap if body.n_predict < 0 else min(body.n_predict, cap)
