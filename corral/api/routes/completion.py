"""`POST /completion` and `POST /v1/completions`: validate, prepare, run, render."""

from __future__ import annotations

from dataclasses import replace

from starlette.responses import Response

from corral.api import group
from corral.api.call import Call
from corral.api.dialect import AsSent, Dialect, Ready, as_sent, run_dialect
from corral.api.dialects.error_shape import LLAMA_ERRORS
from corral.api.openapi import EVENTS, answers
from corral.api.policy import Follow, ModelUse, NamedIn, Policy, Role, Unloaded
from corral.api.prepare import prepare_completion
from corral.api.prepare_text import prepare_text
from corral.api.render.completion import NativeRenderer
from corral.api.render.text import TextRenderer
from corral.api.router import Operation, Router
from corral.api.schema.answer import COMPLETION, OPENAI_COMPLETION
from corral.api.schema.completion import CompletionRequest
from corral.api.schema.openai import OpenAICompletionRequest
from corral.core.key_role import Permission

_NATIVE = ModelUse(
    Role.GENERATE,
    NamedIn.BODY,
    Unloaded.LOAD,
    wakes=True,
    progress={"content": "", "tokens": [], "stop": False},
)
_OPENAI = replace(_NATIVE, progress={"object": "text_completion", "choices": []})
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


@router.post(
    "/v1/completions",
    operation=Operation("createOpenaiCompletion", "Complete a prompt (OpenAI)", group.CHAT),
    policy=replace(_POLICY, model=_OPENAI, is_batched=True),
    body=OpenAICompletionRequest,
    responses=answers(OPENAI_COMPLETION, 501, 507, also=[EVENTS]),
)
async def openai_completion(call: Call[OpenAICompletionRequest]) -> Response:
    """Continue a prompt, in OpenAI's shape."""
    return await run_dialect(call, _TEXT)


async def _prepare_text(call: Call[OpenAICompletionRequest], _: AsSent) -> Ready:
    prepared = await prepare_text(call, call.body)
    return prepared, TextRenderer(call.services.model.render_context, call.body, prepared)


_TEXT = Dialect(as_sent, _prepare_text)
