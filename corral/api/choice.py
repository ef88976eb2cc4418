"""The answers to a request as they grow: one choice for each of its tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from corral.api.engine import Runner
from corral.api.prepare import PreparedCompletion
from corral.core.result import Admitted, CacheReport, Done, TaskResult, TokenProbs, Tokens
from corral.core.task import Task
from corral.link.stream import TaskStream
from corral.telemetry.record import RequestRecord


@dataclass(slots=True)
class Choice:
    """Mutable: one answer to a prompt, and everything that came of it so far.

    `is_first`: of those with the same prompt. `is_last`: no other choice of the request is unfinished.
    """

    index: int
    task: Task
    stream: TaskStream
    id_slot: int = -1
    n_cached: int = 0
    report: CacheReport | None = None
    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    probs: list[TokenProbs] = field(default_factory=list)
    done: Done | None = None
    is_first: bool = True
    is_last: bool = False

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def ended(self) -> Done:
        assert self.done is not None, "it has not ended"
        return self.done

    def add_result(self, result: TaskResult) -> None:
        if isinstance(result, Tokens):
            self.texts.append(result.text)
            self.tokens += result.tokens
            self.probs += result.probs
        elif isinstance(result, Admitted):
            self.id_slot = result.id_slot
            self.n_cached = result.n_cached
            self.report = result.report
        elif isinstance(result, Done):
            self.texts.append(result.text)
            self.done = result


def start_choices(prepared: PreparedCompletion, runner: Runner, record: RequestRecord) -> list[Choice]:
    choices: list[Choice] = []
    try:
        for index, (task, media) in enumerate(prepared.tasks):
            task, stream = runner.submit(task, record, media)
            choices.append(Choice(index, task, stream, is_first=index % prepared.n == 0))
    except BaseException:
        for choice in choices:
            choice.stream.close()
        raise
    return choices


async def follow(choices: list[Choice]) -> AsyncIterator[tuple[Choice, TaskResult]]:
    """Every result of every choice as it comes, already added."""
    n_open = len(choices)
    async for index, result in _results(choices):
        choice = choices[index]
        choice.add_result(result)
        n_open -= choice.done is not None
        choice.is_last = n_open == 0
        yield choice, result


async def _results(choices: list[Choice]) -> AsyncIterator[tuple[int, TaskResult]]:
    if len(choices) > 1:
        async for pair in _merge([choice.stream for choice in choices]):
            yield pair
        return
    async for result in choices[0].stream:
        yield 0, result


_Arrived = asyncio.Queue[tuple[int, TaskResult | BaseException | None]]


async def _merge(streams: Sequence[TaskStream]) -> AsyncIterator[tuple[int, TaskResult]]:
    """(index of the stream, result) until all have ended or one fails. Leaving closes them all."""
    arrived: _Arrived = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(i, stream, arrived)) for i, stream in enumerate(streams)]
    try:
        n_open = len(streams)
        while n_open:
            index, result = await arrived.get()
            if isinstance(result, BaseException):
                raise result
            if result is None:
                n_open -= 1
            else:
                yield index, result
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for stream in streams:
            stream.close()


async def _pump(index: int, stream: TaskStream, arrived: _Arrived) -> None:
    try:
        async for result in stream:
            arrived.put_nowait((index, result))
        arrived.put_nowait((index, None))
    except Exception as error:
        arrived.put_nowait((index, error))


class Renderer(Protocol):
    """A dialect: how results become events, and finished choices an answer. `last` closes a stream."""

    last: bytes

    def events(self, choice: Choice, result: TaskResult) -> list[dict[str, Any]]: ...

    def answer(self, choices: list[Choice]) -> Any: ...
