"""Run a prepared completion and answer: with one response, or with a stream.

A stream that waits for long gets comments with its queue position; errors after that are events.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.types import Receive

from corral.api.followed_stream import detach
from corral.api.json_encode import PIECE_BYTES, cut_pieces, encode_rows
from corral.api.piece_response import respond_json
from corral.api.sse import COMMENT_S, Encoded, EventStream
from corral.core.task import ControlVerb
from corral.generate.admission import describe_position, describe_waiting, queue_headers, watch_deadline
from corral.generate.background import cancel
from corral.generate.choice import Choice, follow, start_choices
from corral.generate.choice_size import choice_bytes, result_bytes
from corral.generate.disconnect import receive_nothing, run_for_client

if TYPE_CHECKING:
    from corral.api.renderer import EventRenderer, Renderer
    from corral.core.client import Client
    from corral.core.result import TaskResult
    from corral.features.durable.work import DurableWork
    from corral.generate.call import AnyCall
    from corral.generate.pools import Pools
    from corral.generate.prepare import PreparedCompletion
    from corral.generate.services import Services
    from corral.generate.vocab import Vocab
    from corral.telemetry.queue import QueueView
    from corral.telemetry.record import RequestRecord

TaskIds = Callable[[], Sequence[int]]
_BRIEFLY_S = 0.5  # in the queue, before the status is sent

_log = logging.getLogger("corral")


async def respond(call: AnyCall, prepared: PreparedCompletion, renderer: Renderer, stream: bool) -> Response:
    """Run all tasks, and answer; cancel them if the client disconnects."""
    services, record, work = call.services, call.record, call.work
    choices, at_end = await open_choices(services, record, prepared, keeps_probs=not stream, work=work)
    with at_end:
        if renderer.answer_id:
            at_end.callback(services.live.add_alias(record.client, record.id, renderer.answer_id))
        ids = [choice.task.id for choice in choices]
        if stream:
            events = _events(services.pools, record.client, choices, renderer, at_end.pop_all(), work)
            return await respond_events(call, events, renderer, lambda: ids, prepared.ping_s)
        place = place_in_queue(call, ids)
        await run_for_client(_finish(choices), call.caller.disconnect)
    return await respond_whole(call, place, lambda: renderer.answer(choices), sum(map(choice_bytes, choices)))


async def respond_events(
    call: AnyCall,
    events: AsyncGenerator[Any],
    renderer: EventRenderer,
    task_ids: TaskIds,
    ping_s: float | None,
) -> Response:
    """Answer with a stream. `task_ids`: of the tasks that are in work. `ping_s`: if not as in the server's
    settings."""
    services, work = call.services, call.work
    queue = services.telemetry.queue
    if ping_s is None:
        ping_s = services.settings.server.sse_ping_s
    if work is None:
        return await _stream(call.caller.disconnect, queue, task_ids, events, renderer, ping_s)
    responding = _stream(receive_nothing, queue, task_ids, events, renderer, ping_s, is_exact=True)

    def queued() -> str:
        return describe_waiting(queue, task_ids())

    if work.log is not None:
        work.log.ping_s, work.log.queued = max(0, ping_s), queued
        return await responding
    return await detach(call.client, services.streams, work.id, ping_s, queued, responding)


async def respond_whole(call: AnyCall, place: int, render: Callable[[], Any], n_bytes: int) -> Response:
    """Answer after the last result. `place`: in the queue, at the start. `n_bytes`: about the size of what
    `render` returns."""
    waited_s = max(task.queue_s for task in call.record.tasks)
    headers = queue_headers(place, waited_s) if place else None
    return await respond_json(call.services.pools, call.record, render, n_bytes, headers)


def place_in_queue(call: AnyCall, task_ids: Sequence[int]) -> int:
    """Return where the tasks are in the queue; 0: they do not wait."""
    queue = call.services.telemetry.queue
    return queue.position(*task_ids) if queue.n_excess() else 0


async def run_whole(call: AnyCall, prepared: PreparedCompletion) -> list[Choice]:
    """Run all tasks to their end; cancel them if the client disconnects."""
    choices, at_end = await open_choices(call.services, call.record, prepared)
    with at_end:
        await run_for_client(_finish(choices), call.caller.disconnect)
    return choices


async def open_choices(
    services: Services,
    record: RequestRecord,
    prepared: PreparedCompletion,
    keeps_probs: bool = True,
    work: DurableWork | None = None,
) -> tuple[list[Choice], contextlib.ExitStack]:
    """Start all tasks; closing the stack ends those that are not done."""
    queue, max_queue_ms = services.telemetry.queue, prepared.max_queue_ms
    at_end = contextlib.ExitStack()
    is_admitted = work is not None and work.is_resumed  # by an earlier server
    if is_admitted:
        max_queue_ms = -1
    else:
        services.admission.check_queue(record.client, len(prepared.tasks), max_queue_ms)
    places = services.runner.take_places(record.client, [task for task, _ in prepared.tasks], is_admitted)
    at_end.callback(services.runner.give_back, places)
    with at_end:
        if work is not None:
            prepared = await work.adopt(prepared)
            at_end.callback(work.end)
        choices = await start_choices(prepared, services.runner, record, places, keeps_probs, work)
        at_end = at_end.pop_all()
    deadline = watch_deadline(queue, {c.task.id: c.stream for c in choices}, max_queue_ms)
    at_end.callback(_close, choices, deadline)
    at_end.callback(services.live.add(record.client, record.id, choices, work))
    if work is not None and work.is_paused:
        await services.live.control(record.client, record.id, ControlVerb.PAUSE)
    _log_tasks(record.id, choices)
    if services.settings.server.log_prompts:
        _log_prompts(record.id, choices, services.model.vocab)
        at_end.callback(_log_answers, record.id, choices)
    return choices, at_end


async def _finish(choices: list[Choice]) -> None:
    async for _ in follow(choices):
        pass


async def _events(
    pools: Pools,
    client: Client,
    choices: list[Choice],
    renderer: Renderer,
    at_end: contextlib.ExitStack,
    work: DurableWork | None,
) -> AsyncGenerator[Any]:
    with at_end:
        async for choice, result in follow(choices, work):
            if result_bytes(choice, result) < PIECE_BYTES:
                events: Sequence[Any] = renderer.events(choice, result)
            else:
                events = await render_large(pools, client, renderer, choice, result)
            for event in events:
                yield event


async def render_large(
    pools: Pools, client: Client, renderer: EventRenderer, choice: Choice, result: TaskResult
) -> list[Encoded]:
    """Render and encode the events of a large result in a thread."""
    return await pools.continue_text(client, _encode_events, renderer, choice, result)


def _encode_events(renderer: EventRenderer, choice: Choice, result: TaskResult) -> list[Encoded]:
    """Render and encode events; runs in a thread."""
    encode, events = renderer.stream_format.encode, renderer.events(choice, result)
    return [Encoded(cut_pieces(encode(encode_rows(event)))) for event in events]


def _close(choices: list[Choice], deadline: asyncio.TimerHandle | None) -> None:
    if deadline is not None:
        deadline.cancel()
    for choice in choices:
        choice.stream.close()


async def _stream(
    receive: Receive,
    queue: QueueView,
    task_ids: TaskIds,
    events: AsyncGenerator[Any],
    renderer: EventRenderer,
    ping_s: float,
    is_exact: bool = False,
) -> Response:
    """Await the first event before the status is sent, but no longer than until the first ping: an error
    until then is an ordinary answer. `is_exact`: send nothing that depends on time."""
    first = asyncio.ensure_future(_first(events))
    try:
        await run_for_client(_wait_briefly(first, queue, task_ids, ping_s), receive)
        if first.done():
            first.result()  # raises what has ended it
        place = 0 if first.done() else queue.position(*task_ids())
    except BaseException:
        await _drop(first, events)
        raise
    headers = queue_headers(place, queue.expected_s(place)) if place else None
    if is_exact:
        return EventStream(events, renderer.last, headers, renderer.stream_format, first=first)
    place_of = partial(_describe_place, queue, task_ids)
    return EventStream(events, renderer.last, headers, renderer.stream_format, ping_s, first, place_of)


async def _first(events: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    return await anext(events)


async def _wait_briefly(
    first: asyncio.Future[Any], queue: QueueView, task_ids: TaskIds, ping_s: float
) -> None:
    """Wait for the first event, or until the request is known to be queued or a ping is due."""
    clock = asyncio.get_running_loop().time
    due = clock() + ping_s if ping_s > 0 else math.inf
    await asyncio.wait({first}, timeout=_BRIEFLY_S)
    while not first.done() and not queue.position(*task_ids()) and clock() < due:
        await asyncio.wait({first}, timeout=min(COMMENT_S, due - clock()))


def _describe_place(queue: QueueView, task_ids: TaskIds) -> str:
    place = queue.position(*task_ids())
    return describe_position(queue, place) if place else ""


async def _drop(first: asyncio.Future[Any], events: AsyncGenerator[Any]) -> None:
    await cancel(first)
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
