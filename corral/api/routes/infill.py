"""`POST /infill`: validate, prepare, and answer as `POST /completion` does."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.dialects.error_shape import LLAMA_ERRORS
from corral.api.openapi import EVENTS, answers, body_of
from corral.api.policy import Follow, ModelUse, NamedIn, Policy, Role, Unloaded
from corral.api.prepare_infill import prepare_infill, require_marks
from corral.api.render.completion import NativeRenderer
from corral.api.respond import read_body, respond
from corral.api.router import Operation, Router
from corral.api.schema.answer import COMPLETION
from corral.api.schema.infill import InfillRequest
from corral.api.state import state_of
from corral.core.key_role import Permission

_MODEL = ModelUse(
    Role.GENERATE,
    NamedIn.BODY,
    Unloaded.LOAD,
    wakes=True,
    progress={"content": "", "tokens": [], "stop": False},
)

router = Router()


@router.post(
    "/infill",
    operation=Operation("createInfill", "Fill in code between a prefix and a suffix", group.CHAT),
    policy=Policy(
        permission=Permission.GENERATE,
        errors=LLAMA_ERRORS,
        model=_MODEL,
        follow=Follow.EVENTS,
        live=None,
        settles=False,
        is_batched=False,
    ),
    openapi_extra=body_of(InfillRequest),
    responses=answers(COMPLETION, 501, also=[EVENTS]),
)
async def infill(request: Request) -> Response:
    """Write what is between two texts."""
    state = state_of(request)
    state.model.require_generation()
    require_marks(state.model.vocab.fim)
    body = await read_body(request, InfillRequest)
    prepared = await prepare_infill(request, body, state.prepare)
    renderer = NativeRenderer(state.model.render_context, body, prepared)
    return await respond(request, prepared, renderer, body.stream)
