"""`POST /completion` and `POST /v1/completions`: validate, prepare, run, render."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from corral.api.openapi import EVENTS, answers, body_of
from corral.api.prepare import prepare_completion
from corral.api.prepare_text import prepare_text
from corral.api.render.completion import NativeRenderer
from corral.api.render.text import TextRenderer
from corral.api.respond import read_body, respond
from corral.api.router import Router
from corral.api.schema.answer import COMPLETION, OPENAI_COMPLETION
from corral.api.schema.completion import CompletionRequest
from corral.api.schema.openai import OpenAICompletionRequest
from corral.api.state import state_of

router = Router()


@router.post(
    "/completion",
    "/completions",
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
