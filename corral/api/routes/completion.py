"""`POST /completion`: validate, prepare, run, render."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response

from corral.api.body import JsonResponse, body_of
from corral.api.completion import Run, finish, follow, start_runs
from corral.api.disconnect import run_for_client
from corral.api.prepare import prepare_completion
from corral.api.render import native
from corral.api.schema.completion import CompletionRequest
from corral.api.schema.parse import parse_request
from corral.api.service import Service, service_of
from corral.api.sse import EventStream
from corral.core.result import Done, Progress, Tokens

router = APIRouter(tags=["native"])


@router.post("/completion", openapi_extra=body_of(CompletionRequest))
@router.post("/completions", openapi_extra=body_of(CompletionRequest))
async def completion(request: Request) -> Response:
    """Continue a prompt."""
    service = service_of(request)
    body, warnings = parse_request(CompletionRequest, await service.read(request))
    prepared = await service.in_background(
        prepare_completion, body, service.words, service.limits, service.defaults
    )
    runs = start_runs(prepared, service.engine)
    renderer = _Renderer(service, body, warnings)
    if body.stream:
        events = renderer.events(runs)
        first = await run_for_client(_first(events), request.receive)
        return EventStream(_chain(first, events))
    await run_for_client(finish(runs), request.receive)
    answers = [renderer.answer(run, run.text, run.tokens if body.return_tokens else []) for run in runs]
    return JsonResponse(answers if prepared.is_list else answers[0])


class _Renderer:
    """What one request's answers have in common."""

    def __init__(self, service: Service, body: CompletionRequest, warnings: list[str]) -> None:
        self._service = service
        self._body = body
        self._warnings = warnings

    async def events(self, runs: list[Run]) -> AsyncIterator[dict[str, Any]]:
        body, piece = self._body, self._piece
        async for run, result in follow(runs):
            if isinstance(result, Tokens):
                yield native.render_tokens(
                    run.index, result, run.task, run.id_slot, body.timings_per_token, piece
                )
            elif isinstance(result, Progress) and body.return_progress:
                yield native.render_progress(run.index, result, run.task, run.id_slot, run.n_cached)
            elif isinstance(result, Done):
                yield self.answer(run, result.text, [])

    def answer(self, run: Run, content: str, tokens: list[int]) -> dict[str, Any]:
        assert run.done is not None
        body, task = self._body, run.task
        answer = native.render_done(run.index, content, tokens, run.done, task, run.id_slot)
        answer["model"] = self._service.model_name
        answer["prompt"] = self._service.words.detokenize(task.prompt)
        answer["generation_settings"] = {
            **native.render_generation_settings(task.params, body.stream, body.timings_per_token),
            "n_ctx": self._service.info.n_ctx,
            "model": self._service.model_name,
        }
        if run.probs and not body.stream:
            answer["completion_probabilities"] = native.render_probs(
                run.probs, task.params.sampling, self._piece
            )
        if self._warnings:
            answer["warnings"] = self._warnings
        return native.select_fields(answer, body.response_fields)

    def _piece(self, token: int) -> bytes:
        return self._service.words.piece(token, special=True)


async def _first(events: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    """The first event, awaited before the status is sent: an error until here is an ordinary answer."""
    return await anext(events)


async def _chain(first: dict[str, Any], rest: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    yield first
    async for event in rest:
        yield event
