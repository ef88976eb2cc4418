"""`POST /completion` and `POST /v1/completions`: validate, prepare, run, render."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response

from corral.api.body import body_of
from corral.api.completion import respond
from corral.api.prepare import prepare_completion
from corral.api.render.completion import NativeRenderer, OpenAIRenderer
from corral.api.schema.completion import CompletionRequest
from corral.api.schema.openai import OpenAICompletionRequest
from corral.api.schema.parse import parse_request
from corral.api.service import require_generation, service_of

router = APIRouter(dependencies=[Depends(require_generation)])


@router.post("/completion", openapi_extra=body_of(CompletionRequest), tags=["native"])
@router.post("/completions", openapi_extra=body_of(CompletionRequest), tags=["native"])
async def completion(request: Request) -> Response:
    """Continue a prompt."""
    service = service_of(request)
    body, warnings = parse_request(CompletionRequest, await service.read(request))
    prepared = await service.in_background(
        prepare_completion, body, service.words, service.limits, service.defaults, service.system_prompt
    )
    prepared = await service.settle(request, body, prepared)
    renderer = NativeRenderer(service, body, warnings, prepared.is_list)
    return await respond(request, service.engine, prepared, renderer, body.stream)


@router.post("/v1/completions", openapi_extra=body_of(OpenAICompletionRequest), tags=["openai"])
async def openai_completion(request: Request) -> Response:
    """Continue a prompt, in OpenAI's shape."""
    service = service_of(request)
    body, warnings = parse_request(OpenAICompletionRequest, await service.read(request))
    body.refuse_unsupported()
    prepared = await service.in_background(
        prepare_completion, body, service.words, service.limits, service.defaults, service.system_prompt
    )
    prepared = await service.settle(request, body, prepared)
    renderer = OpenAIRenderer(service, body, warnings)
    return await respond(request, service.engine, prepared, renderer, body.stream)
