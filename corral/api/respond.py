"""From a prepared completion to an HTTP response: all at once, or as it comes.

A client that has to wait for long gets comments in the stream about its place; then errors are events too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, TypeVar

from fastapi import Request, Response

from corral.api.admission import describe_position, queue_headers, watch_deadline
from corral.api.body import JsonResponse, parse_body
from corral.api.choice import Choice, Renderer, follow, start_choices
from corral.api.disconnect import run_for_client
from corral.api.prepare import PreparedCompletion
from corral.api.schema.completion import GenerationFields
from corral.api.sse import Comment, EventStream
from corral.api.state import state_of
from corral.api.vocab import Vocab
from corral.telemetry.queue import QueueView
from corral.telemetry.scope import record_of

_BRIEFLY_S = 0.5  # in the queue, before the status is sent
_COMMENT_S = 1.0  # between two comments

_log = logging.getLogger("corral")

FieldsT = TypeVar("FieldsT", bound=GenerationFields)


async def read_body(request: Request, model: type[FieldsT]) -> FieldsT:
    """Read a request to generate something, if the queue has room for it."""
    state = state_of(request)
    state.model.require_generation()
    state.admission.check_queue(record_of(request).client)
    return await parse_body(request, model)


async def respond(
    request: Request, prepared: PreparedCompletion, renderer: Renderer, stream: bool
) -> Response:
    """Run all tasks until the client leaves, and answer."""
    state, record, max_queue_ms = state_of(request), record_of(request), prepared.max_queue_ms
    queue = state.telemetry.queue
    state.admission.check_queue(record.client, len(prepared.tasks), max_queue_ms)
    choices = start_choices(prepared, state.runner, record)
    place = queue.position(*(choice.task.id for choice in choices)) if queue.n_excess() else 0
    with contextlib.ExitStack() as at_end:
        deadline = watch_deadline(queue, {c.task.id: c.stream for c in choices}, max_queue_ms)
        at_end.callback(_close, choices, deadline)
        _log_tasks(record.id, choices)
        if state.settings.server.log_prompts:
            _log_prompts(record.id, choices, state.model.vocab)
            at_end.callback(_log_answers, record.id, choices)
        if stream:
            events = _events(choices, renderer, at_end.pop_all())
            return await _stream(request, queue, choices, events, renderer.last)
        await run_for_client(_finish(choices), request.receive)
    waited_s = max(task.queue_s for task in record.tasks)
    return JsonResponse(renderer.answer(choices), headers=queue_headers(place, waited_s) if place else None)


async def _finish(choices: list[Choice]) -> None:
    async for _ in follow(choices):
        pass


async def _events(
    choices: list[Choice], renderer: Renderer, at_end: contextlib.ExitStack
) -> AsyncGenerator[dict[str, Any]]:
    with at_end:
        async for choice, result in follow(choices):
            for event in renderer.events(choice, result):
                yield event


def _close(choices: list[Choice], deadline: asyncio.TimerHandle | None) -> None:
    if deadline is not None:
        deadline.cancel()
    for choice in choices:
        choice.stream.close()


async def _stream(
    request: Request, queue: QueueView, choices: list[Choice], events: AsyncGenerator[Any], last: bytes
) -> Response:
    """The first event is awaited before the status is sent: an error until then is an ordinary answer."""
    first, ids = asyncio.ensure_future(_first(events)), [choice.task.id for choice in choices]
    try:
        await run_for_client(_wait_briefly(first, queue, ids), request.receive)
        if first.done():
            first.result()  # raises what has ended it
        place = 0 if first.done() else queue.position(*ids)
    except BaseException:
        await _drop(first, events)
        raise
    headers = queue_headers(place, queue.expected_s(place)) if place else None
    return EventStream(_announce(first, events, queue, ids), last, headers)


async def _first(events: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    return await anext(events)


async def _wait_briefly(first: asyncio.Future[Any], queue: QueueView, ids: list[int]) -> None:
    """Until something has come, or nothing will for a while."""
    await asyncio.wait({first}, timeout=_BRIEFLY_S)
    while not first.done() and not queue.position(*ids):
        await asyncio.wait({first}, timeout=_COMMENT_S)


async def _announce(
    first: asyncio.Future[Any], events: AsyncGenerator[Any], queue: QueueView, ids: list[int]
) -> AsyncGenerator[Any]:
    """Its place in the queue, for as long as it waits; then its events."""
    try:
        while not first.done():
            if place := queue.position(*ids):
                yield Comment(describe_position(queue, place))
            await asyncio.wait({first}, timeout=_COMMENT_S)
        yield first.result()
        async for event in events:
            yield event
    finally:
        await _drop(first, events)


async def _drop(first: asyncio.Future[Any], events: AsyncGenerator[Any]) -> None:
    first.cancel()
    with contextlib.suppress(BaseException):
        await first
    await events.aclose()


def _log_tasks(id: str, choices: list[Choice]) -> None:
    for choice in choices:
        fields = {"id": id, "tokens": len(choice.task.prompt), "n_predict": choice.task.params.n_predict}
        _log.debug("%(id)s: a prompt of %(tokens)d tokens, n_predict %(n_predict)d", fields)


def _log_prompts(id: str, choices: list[Choice], vocab: Vocab) -> None:
    for choice in choices:
        if choice.is_first:
            text = vocab.detokenize(choice.task.own_prompt)
            _log.info("prompt of %(id)s: %(prompt)s", {"id": id, "prompt": text})


def _log_answers(id: str, choices: list[Choice]) -> None:
    for choice in choices:
        _log.info("answer to %(id)s: %(answer)s", {"id": id, "answer": choice.text})
