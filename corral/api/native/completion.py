"""`POST /completion`: validate, prepare, run, render."""

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
from corral.generate.prepare import prepare_completion
from corral.schema.completion import CompletionRequest

_NATIVE = ModelUse(
    Role.GENERATE,
    NamedIn.BODY,
    Unloaded.LOAD,
    wakes=True,
    progress={"content": "", "tokens": [], "stop": False},
)
_POLICY = Policy(
    permission=Permission.GENERATE,
    errors=LLAMA_ERRORS,
    model=_NATIVE,
    follow=Follow.CONVERSATION,
    live=None,
    settles=False,
    is_batched=False,
)

router = Router()


@router.post(
    "/completion",
    "/completions",
    operation=Operation("createCompletion", "Complete a prompt", group.CHAT),
    policy=_POLICY,
    body=CompletionRequest,
    responses=answers(COMPLETION, 501, 507, also=[EVENTS]),
)
async def completion(call: Call[CompletionRequest]) -> Response:
    """Continue a prompt."""
    return await run_dialect(call, _COMPLETION)


async def _prepare(call: Call[CompletionRequest], _: AsSent) -> Ready:
    prepared = await prepare_completion(call, call.body)
    return prepared, NativeRenderer(call.services.model.render_context, call.body, prepared)


_COMPLETION = Dialect(as_sent, _prepare)
