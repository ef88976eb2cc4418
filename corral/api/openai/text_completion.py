"""`POST /v1/completions`, OpenAI's."""

from __future__ import annotations

from starlette.responses import Response

from corral.api import group
from corral.api.answer import OPENAI_COMPLETION
from corral.api.dialect import AsSent, Dialect, Ready, as_sent, run_dialect
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.openai.render_text import TextRenderer
from corral.api.openapi import EVENTS, answers
from corral.api.policy import Follow, ModelUse, NamedIn, Policy, Role, Unloaded
from corral.api.router import Operation, Router
from corral.core.key_role import Permission
from corral.generate.call import Call
from corral.generate.prepare_text import prepare_text
from corral.schema.openai import OpenAICompletionRequest

_POLICY = Policy(
    permission=Permission.GENERATE,
    errors=LLAMA_ERRORS,
    model=ModelUse(
        Role.GENERATE,
        NamedIn.BODY,
        Unloaded.LOAD,
        wakes=True,
        progress={"object": "text_completion", "choices": []},
    ),
    follow=Follow.CONVERSATION,
    live=None,
    settles=False,
    is_batched=True,
)

router = Router()


@router.post(
    "/v1/completions",
    operation=Operation("createOpenaiCompletion", "Complete a prompt (OpenAI)", group.CHAT),
    policy=_POLICY,
    body=OpenAICompletionRequest,
    responses=answers(OPENAI_COMPLETION, 501, 507, also=[EVENTS]),
)
async def text_completion(call: Call[OpenAICompletionRequest]) -> Response:
    """Continue a prompt, in OpenAI's shape."""
    return await run_dialect(call, _TEXT)


async def _prepare(call: Call[OpenAICompletionRequest], _: AsSent) -> Ready:
    prepared = await prepare_text(call, call.body)
    return prepared, TextRenderer(call.services.model.render_context, call.body, prepared)


_TEXT = Dialect(as_sent, _prepare)
