"""Run a prepared completion and answer: with one response, or with a stream.

A stream that waits for long gets comments with its queue position; errors after that are events.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.types import Receive

from corral.api.admission import describe_position, describe_waiting, queue_headers, watch_deadline
from corral.api.background import cancel
from corral.api.call import AnyCall
from corral.api.choice import Choice, Renderer, follow, start_choices
from corral.api.choice_size import choice_bytes, result_bytes
from corral.api.disconnect import receive_nothing, run_for_client
from corral.api.durable import DurableWork
from corral.api.followed_stream import detach
from corral.api.json_encode import PIECE_BYTES, cut_pieces, encode_rows
from corral.api.piece_response import LONG_BYTES, respond_json
from corral.api.pools import Pools
from corral.api.prepare import PreparedCompletion
from corral.api.render.openai import OpenAIAnswer
from corral.api.services import Services
from corral.api.sse import COMMENT_S, Encoded, EventStream
from corral.api.vocab import Vocab
from corral.core.client import Client
from corral.core.errors import CorralError
from corral.core.result import TaskResult
from corral.core.task import ControlVerb
from corral.telemetry.queue import QueueView
from corral.telemetry.record import RequestRecord

_BRIEFLY_S = 0.5  # in the queue, before the status is sent

_log = logging.getLogger("corral")


Finish = Callable[[CorralError | None], Awaitable[Sequence[Any]]]


async def respond(
    call: AnyCall,
    prepared: PreparedCompletion,
    renderer: Renderer,
    stream: bool,
    finish: Finish | None = None,
) -> Response:
    """Run all tasks, and answer; cancel them if the client disconnects. `finish`: what is to be done between
    the last result and the end of the answer; gets the error of a stream, and returns its last events."""
    services, record, work = call.services, call.record, call.work
    queue, pools = services.telemetry.queue, services.pools
    choices, at_end = await open_choices(services, record, prepared, keeps_probs=not stream, work=work)
    with at_end:
        if isinstance(renderer, OpenAIAnswer):
            at_end.callback(services.live.add_alias(record.client, record.id, renderer.id))
        place = queue.position(*(choice.task.id for choice in choices)) if queue.n_excess() else 0
        if stream:
            events = _events(pools, record.client, choices, renderer, at_end.pop_all(), work, finish)
            default_s = services.settings.server.sse_ping_s
            ping_s = default_s if prepared.ping_s is None else prepared.ping_s
            if work is None:
                return await _stream(call.caller.disconnect, queue, choices, events, renderer, ping_s)
            responding = _stream(receive_nothing, queue, choices, events, renderer, ping_s, is_exact=True)
            queued = partial(describe_waiting, queue, [choice.task.id for choice in choices])
            if work.log is not None:
                work.log.ping_s, work.log.queued = max(0, ping_s), queued
                return await responding
            return await detach(record.client, services.streams, work.id, ping_s, queued, responding)
        await run_for_client(_finish(choices, work), call.caller.disconnect)
    waited_s = max(task.queue_s for task in record.tasks)
    n_bytes = sum(map(choice_bytes, choices))
    if finish is not None:
        await _run_sized(pools, record.client, n_bytes, renderer.answer, choices)
        await finish(None)
    headers = queue_headers(place, waited_s) if place else None
    return await respond_json(pools, record, lambda: renderer.answer(choices), n_bytes, headers)


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


async def _finish(choices: list[Choice], work: DurableWork | None = None) -> None:
    async for _ in follow(choices, work):
        pass


async def _events(
    pools: Pools,
    client: Client,
    choices: list[Choice],
    renderer: Renderer,
    at_end: contextlib.ExitStack,
    work: DurableWork | None,
    finish: Finish | None,
) -> AsyncGenerator[Any]:
    with at_end:
        error = None
        try:
            async for choice, result in follow(choices, work):
                if result_bytes(choice, result) < PIECE_BYTES:
                    events: Sequence[Any] = renderer.events(choice, result)
                else:
                    events = await pools.continue_text(client, _encode_events, renderer, choice, result)
                for event in events:
                    yield event
        except CorralError as raised:
            if finish is None:
                raise
            error = raised
        if finish is not None:
            for event in await finish(error):
                yield event


async def _run_sized(
    pools: Pools, client: Client, n_bytes: int, work: Callable[..., Any], *args: object
) -> None:
    """Run it in a thread if it has much to do."""
    if n_bytes < LONG_BYTES:
        work(*args)
    else:
        await pools.continue_text(client, work, *args)


def _encode_events(renderer: Renderer, choice: Choice, result: TaskResult) -> list[Encoded]:
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
    choices: list[Choice],
    events: AsyncGenerator[Any],
    renderer: Renderer,
    ping_s: int,
    is_exact: bool = False,
) -> Response:
    """Await the first event before the status is sent, but no longer than until the first ping: an error
    until then is an ordinary answer. `is_exact`: send nothing that depends on time."""
    first, ids = asyncio.ensure_future(_first(events)), [choice.task.id for choice in choices]
    try:
        await run_for_client(_wait_briefly(first, queue, ids, ping_s), receive)
        if first.done():
            first.result()  # raises what has ended it
        place = 0 if first.done() else queue.position(*ids)
    except BaseException:
        await _drop(first, events)
        raise
    headers = queue_headers(place, queue.expected_s(place)) if place else None
    if is_exact:
        return EventStream(events, renderer.last, headers, renderer.stream_format, first=first)
    place_of = partial(_describe_place, queue, ids)
    return EventStream(events, renderer.last, headers, renderer.stream_format, ping_s, first, place_of)


async def _first(events: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    return await anext(events)


async def _wait_briefly(first: asyncio.Future[Any], queue: QueueView, ids: list[int], ping_s: int) -> None:
    """Wait for the first event, or until the request is known to be queued or a ping is due."""
    clock = asyncio.get_running_loop().time
    due = clock() + ping_s if ping_s > 0 else math.inf
    await asyncio.wait({first}, timeout=_BRIEFLY_S)
    while not first.done() and not queue.position(*ids) and clock() < due:
        await asyncio.wait({first}, timeout=min(COMMENT_S, due - clock()))


def _describe_place(queue: QueueView, ids: list[int]) -> str:
    place = queue.position(*ids)
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
