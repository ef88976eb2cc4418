"""`POST /completion` and `POST /v1/completions`: validate, prepare, run, render."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.dialects.error_shape import LLAMA_ERRORS
from corral.api.openapi import EVENTS, answers, body_of
from corral.api.policy import Follow, ModelUse, NamedIn, Policy, Role, Unloaded
from corral.api.prepare import prepare_completion
from corral.api.prepare_text import prepare_text
from corral.api.render.completion import NativeRenderer
from corral.api.render.text import TextRenderer
from corral.api.respond import read_body, respond
from corral.api.router import Operation, Router
from corral.api.schema.answer import COMPLETION, OPENAI_COMPLETION
from corral.api.schema.completion import CompletionRequest
from corral.api.schema.openai import OpenAICompletionRequest
from corral.api.state import state_of
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
    openapi_extra=body_of(CompletionRequest),
    responses=answers(COMPLETION, 501, 507, also=[EVENTS]),
)
async def completion(request: Request) -> Response:
    """Continue a prompt."""
    state = state_of(request)
    body = await read_body(request, CompletionRequest)
    prepared = await prepare_completion(request, body, state.prepare)
    renderer = NativeRenderer(state.model.render_context, body, prepared)
    return await respond(request, prepared, renderer, body.stream)


@router.post(
    "/v1/completions",
    operation=Operation("createOpenaiCompletion", "Complete a prompt (OpenAI)", group.CHAT),
    policy=replace(_POLICY, model=_OPENAI, is_batched=True),
    openapi_extra=body_of(OpenAICompletionRequest),
    responses=answers(OPENAI_COMPLETION, 501, 507, also=[EVENTS]),
)
async def openai_completion(request: Request) -> Response:
    """Continue a prompt, in OpenAI's shape."""
    state = state_of(request)
    body = await read_body(request, OpenAICompletionRequest)
    prepared = await prepare_text(request, body, state.prepare)
    renderer = TextRenderer(state.model.render_context, body, prepared)
    return await respond(request, prepared, renderer, body.stream)
