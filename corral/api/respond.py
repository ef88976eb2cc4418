"""From a prepared completion to an HTTP response: all at once, or as it comes.

Who has to wait in line for long is told so in comments of the stream; then errors are events too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from fastapi import Request, Response

from corral.api.admission import describe_position, queue_headers, watch_deadline
from corral.api.body import JsonResponse
from corral.api.completion import Renderer, Run, follow, start_runs
from corral.api.disconnect import run_for_client
from corral.api.prepare import PreparedCompletion
from corral.api.service import Service
from corral.api.sse import Comment, EventStream
from corral.telemetry.queue import QueueView
from corral.telemetry.scope import record_of

_BRIEFLY_S = 0.5  # in line, before the status is sent
_NEWS_S = 1.0  # between two comments

_log = logging.getLogger("corral")


async def respond(
    request: Request, service: Service, prepared: PreparedCompletion, renderer: Renderer, stream: bool
) -> Response:
    """Run everything that was prepared, for as long as the client stays."""
    record, queue, max_queue_ms = record_of(request), service.telemetry.queue, prepared.params.max_queue_ms
    service.check_queue(record.client, len(prepared.prompts) * prepared.n, max_queue_ms)
    runs = start_runs(prepared, service, record)
    place = queue.position(*(run.task.id for run in runs)) if queue.n_excess() else 0
    with contextlib.ExitStack() as at_end:
        at_end.callback(
            _close, runs, watch_deadline(queue, {r.task.id: r.stream for r in runs}, max_queue_ms)
        )
        _log_orders(service, record.id, runs)
        at_end.callback(_log_answers, service, record.id, runs)
        if stream:
            events = _events(runs, renderer, at_end.pop_all())
            return await _stream(request, queue, runs, events, renderer.last)
        await run_for_client(_finish(runs), request.receive)
    waited_s = max(leg.queue_s for leg in record.tasks)
    return JsonResponse(renderer.answer(runs), headers=queue_headers(place, waited_s) if place else None)


async def _finish(runs: list[Run]) -> None:
    async for _ in follow(runs):
        pass


async def _events(
    runs: list[Run], renderer: Renderer, at_end: contextlib.ExitStack
) -> AsyncGenerator[dict[str, Any]]:
    with at_end:
        async for run, result in follow(runs):
            for event in renderer.events(run, result):
                yield event


def _close(runs: list[Run], deadline: asyncio.TimerHandle | None) -> None:
    if deadline is not None:
        deadline.cancel()
    for run in runs:
        run.stream.close()


async def _stream(
    request: Request, queue: QueueView, runs: list[Run], events: AsyncGenerator[Any], last: bytes
) -> Response:
    """The first event is awaited before the status is sent: an error until then is an ordinary answer."""
    first, ids = asyncio.ensure_future(_first(events)), [run.task.id for run in runs]
    try:
        await run_for_client(_wait_briefly(first, queue, ids), request.receive)
        if first.done():
            return EventStream(_chain(first.result(), events), last)
    except BaseException:
        await _drop(first, events)
        raise
    place = queue.position(*ids)
    headers = queue_headers(place, queue.expected_s(place)) if place else None
    return EventStream(_announce(first, events, queue, ids), last, headers)


async def _first(events: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    return await anext(events)


async def _wait_briefly(first: asyncio.Future[Any], queue: QueueView, ids: list[int]) -> None:
    """Until something has come, or nothing will for a while."""
    await asyncio.wait({first}, timeout=_BRIEFLY_S)
    while not first.done() and not queue.position(*ids):
        await asyncio.wait({first}, timeout=_NEWS_S)


async def _announce(
    first: asyncio.Future[Any], events: AsyncGenerator[Any], queue: QueueView, ids: list[int]
) -> AsyncGenerator[Any]:
    """Where it is in line, for as long as it is; then what becomes of it."""
    try:
        while not first.done():
            if place := queue.position(*ids):
                yield Comment(describe_position(queue, place))
            await asyncio.wait({first}, timeout=_NEWS_S)
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


async def _chain(
    first: dict[str, Any], rest: AsyncGenerator[dict[str, Any]]
) -> AsyncGenerator[dict[str, Any]]:
    async with contextlib.aclosing(rest):
        yield first
        async for event in rest:
            yield event


def _log_orders(service: Service, id: str, runs: list[Run]) -> None:
    for run in runs:
        fields = {"id": id, "tokens": len(run.task.prompt), "n_predict": run.task.params.n_predict}
        _log.debug("%(id)s: a prompt of %(tokens)d tokens, n_predict %(n_predict)d", fields)
        if run.is_first and service.settings.server.log_prompts:
            text = service.vocab.detokenize(run.task.own_prompt)
            _log.info("prompt of %(id)s: %(prompt)s", {"id": id, "prompt": text})


def _log_answers(service: Service, id: str, runs: list[Run]) -> None:
    if service.settings.server.log_prompts:
        for run in runs:
            _log.info("answer to %(id)s: %(answer)s", {"id": id, "answer": run.text})
