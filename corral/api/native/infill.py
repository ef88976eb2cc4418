"""`POST /infill`: validate, prepare, and answer as `POST /completion` does."""

from __future__ import annotations

from starlette.responses import Response

from corral.api import group
from corral.api.answer import COMPLETION
from corral.api.dialect import AsSent, Dialect, Ready, as_sent, run_dialect
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.native.render_completion import NativeRenderer
from corral.api.openapi import EVENTS, answers
from corral.api.policy import Follow, ModelUse, NamedIn, Policy, Role, Unloaded
from corral.api.router import Operation, Router
from corral.core.key_role import Permission
from corral.generate.call import Call
from corral.generate.prepare_infill import prepare_infill, require_marks
from corral.generate.services import Services
from corral.schema.infill import InfillRequest

_MODEL = ModelUse(
    Role.GENERATE,
    NamedIn.BODY,
    Unloaded.LOAD,
    wakes=True,
    progress={"content": "", "tokens": [], "stop": False},
)

router = Router()


def _require_infill(services: Services) -> None:
    services.model.require_generation()
    require_marks(services.model.vocab.fim)


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
    body=InfillRequest,
    needs=_require_infill,
    responses=answers(COMPLETION, 501, also=[EVENTS]),
)
async def infill(call: Call[InfillRequest]) -> Response:
    """Write what is between two texts."""
    return await run_dialect(call, _INFILL)


async def _prepare(call: Call[InfillRequest], _: AsSent) -> Ready:
    prepared = await prepare_infill(call, call.body)
    return prepared, NativeRenderer(call.services.model.render_context, call.body, prepared)


_INFILL = Dialect(as_sent, _prepare)
