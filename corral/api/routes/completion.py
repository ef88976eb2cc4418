"""`POST /completion` and `POST /v1/completions`: validate, prepare, run, render."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Depends, Request, Response

from corral.api.openapi import EVENTS, answers, body_of
from corral.api.prepare import PreparedCompletion, prepare_completion
from corral.api.render.completion import NativeRenderer, OpenAIRenderer
from corral.api.respond import respond
from corral.api.schema.answer import COMPLETION, OPENAI_COMPLETION
from corral.api.schema.completion import CompletionRequest
from corral.api.schema.openai import OpenAICompletionRequest
from corral.api.service import Service, require_generation, service_of
from corral.media.collect import mark_prompt

router = APIRouter(dependencies=[Depends(require_generation)])

_BODY, _ANSWERS = body_of(CompletionRequest), answers(COMPLETION, 501, 507, also=[EVENTS])


@router.post("/completion", openapi_extra=_BODY, responses=_ANSWERS)
@router.post("/completions", openapi_extra=_BODY, responses=_ANSWERS)
async def completion(request: Request) -> Response:
    """Continue a prompt."""
    service = service_of(request)
    body, warnings = await service.take(CompletionRequest, request)
    prepared = await service.apply_server_changes(request, body, await _prepare(service, request, body))
    renderer = NativeRenderer(service, body, warnings, prepared.is_list)
    return await respond(request, service, prepared, renderer, body.stream)


@router.post(
    "/v1/completions",
    openapi_extra=body_of(OpenAICompletionRequest),
    responses=answers(OPENAI_COMPLETION, 501, 507, also=[EVENTS]),
)
async def openai_completion(request: Request) -> Response:
    """Continue a prompt, in OpenAI's shape."""
    service = service_of(request)
    body, warnings = await service.take(OpenAICompletionRequest, request)
    body.refuse_unsupported()
    asked = body
    if body.logprobs is not None:
        # The engine only reports the chosen token together with others.
        asked = body.with_field("n_probs", max(1, body.n_shown), "logprobs")
    prepared = await service.apply_server_changes(request, asked, await _prepare(service, request, asked))
    renderer = OpenAIRenderer(service, body, warnings)
    return await respond(request, service, prepared, renderer, body.stream)


async def _prepare(service: Service, request: Request, body: CompletionRequest) -> PreparedCompletion:
    sees = bool(service.info.media)
    mark = partial(mark_prompt, body.prompt, body.image_data, "prompt", sees)
    prompt, media, _ = await service.extract_media(request, mark)
    if media is not None:
        body = body.model_copy(update={"prompt": prompt})
    prepared = await service.run_in_prompt_pool(
        prepare_completion,
        body,
        service.vocab_for(media),
        service.limits,
        service.defaults,
        service.system_prompt,
    )
    return prepared.with_media(media)
