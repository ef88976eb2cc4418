"""`POST /completion` and `POST /v1/completions`: validate, prepare, run, render."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from corral.api.openapi import EVENTS, answers, body_of
from corral.api.prepare import prepare_completion
from corral.api.render.completion import NativeRenderer, OpenAIRenderer
from corral.api.respond import read_body, respond
from corral.api.schema.answer import COMPLETION, OPENAI_COMPLETION
from corral.api.schema.completion import CompletionRequest
from corral.api.schema.openai import OpenAICompletionRequest
from corral.api.state import state_of

router = APIRouter()

_BODY, _ANSWERS = body_of(CompletionRequest), answers(COMPLETION, 501, 507, also=[EVENTS])


@router.post("/completion", openapi_extra=_BODY, responses=_ANSWERS)
@router.post("/completions", openapi_extra=_BODY, responses=_ANSWERS)
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
    body.refuse_unsupported()
    asked = body
    if body.logprobs is not None:
        # The engine only reports the chosen token together with others.
        asked = body.with_field("n_probs", max(1, body.n_shown), "logprobs")
    prepared = await prepare_completion(request, asked, state.prepare)
    renderer = OpenAIRenderer(state.model.render_context, body, prepared.warnings)
    return await respond(request, prepared, renderer, body.stream)
