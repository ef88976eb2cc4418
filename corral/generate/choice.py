"""The answers to a request as they grow: one choice for each of its tasks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from corral.core.errors import Unavailable
from corral.core.result import (
    Admitted,
    CacheReport,
    Done,
    PromptProbs,
    TaskResult,
    TokenProbs,
    Tokens,
)
from corral.link.stream import TaskStream

if TYPE_CHECKING:
    from corral.core.task import Task
    from corral.features.durable.work import DurableWork
    from corral.generate.engine import Runner
    from corral.generate.key_limits import Place
    from corral.generate.prepare import PreparedCompletion
    from corral.telemetry.record import RequestRecord

_PAUSE_TOKENS = 20_000


@dataclass(slots=True)
class Choice:
    """Mutable: one answer to a prompt, with its results so far.

    `steps`: the number of tokens and probabilities of each text. `is_first`: of those with the same prompt.
    `is_last`: no other choice of the request is unfinished.
    """

    index: int
    task: Task
    stream: TaskStream
    place: Place
    id_slot: int = -1
    n_cached: int = 0
    report: CacheReport | None = None
    texts: list[str] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    probs: list[TokenProbs] = field(default_factory=list)
    prompt_probs: list[TokenProbs] = field(default_factory=list)  # of all but the first token
    done: Done | None = None
    is_first: bool = True
    is_last: bool = False
    keeps_probs: bool = True  # what was streamed is not needed again

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def ended(self) -> Done:
        assert self.done is not None, "the choice has not ended"
        return self.done

    def add_result(self, result: TaskResult) -> None:
        if isinstance(result, Tokens):
            self.texts.append(result.text)
            self.steps.append((len(result.tokens), len(result.probs)))
            self.tokens += result.tokens
            if self.keeps_probs:
                self.probs += result.probs
        elif isinstance(result, PromptProbs):
            # Another engine that takes over begins again.
            self.prompt_probs[result.start - 1 :] = result.probs
        elif isinstance(result, Admitted):
            self.id_slot = result.id_slot
            self.n_cached = result.n_cached
            self.report = result.report if self.task.params.cache_report else None
        elif isinstance(result, Done):
            self.texts.append(result.text)
            self.done = result


async def start_choices(
    prepared: PreparedCompletion,
    runner: Runner,
    record: RequestRecord,
    places: Sequence[Place],
    keeps_probs: bool,
    work: DurableWork | None = None,
) -> list[Choice]:
    """Submit the tasks, but not those that an earlier server has finished. `places`: of all tasks."""
    choices: list[Choice] = []
    n_sent = 0
    try:
        for index, (task, media) in enumerate(prepared.tasks):
            if work is not None and work.ended(index):
                stream = TaskStream(on_close=lambda: None)
            else:
                task, stream = runner.submit(task, record, media, places[index])
            is_first = index % prepared.n == 0
            choices.append(
                Choice(index, task, stream, places[index], is_first=is_first, keeps_probs=keeps_probs)
            )
            n_sent += len(task.prompt) + len(task.params.sampling.logit_bias)
            if n_sent > _PAUSE_TOKENS:  # others have their turn before the next long ones are encoded
                n_sent = 0
                await asyncio.sleep(0)
    except BaseException:
        for choice in choices:
            choice.stream.close()
        raise
    return choices


async def follow(
    choices: list[Choice], work: DurableWork | None = None
) -> AsyncGenerator[tuple[Choice, TaskResult]]:
    """Yield every result of every choice as it arrives; it is added to its choice before."""
    if work is not None:
        for index, result in work.replay():
            yield _add(choices, choices[index], result)
    running = [choice for choice in choices if choice.done is None]
    try:
        if len(running) == 1:
            (choice,) = running
            async for result in choice.stream:
                if work is None or await work.take(choice.index, result):
                    yield _add(choices, choice, result)
            return
        async with contextlib.aclosing(_merge(running)) as merged:
            async for choice, result in merged:
                if work is None or await work.take(choice.index, result):
                    yield _add(choices, choice, result)
    except Unavailable as error:
        if work is not None:
            work.note_loss(error)
        raise


def _add(choices: list[Choice], choice: Choice, result: TaskResult) -> tuple[Choice, TaskResult]:
    choice.add_result(result)
    if choice.done is not None:
        choice.is_last = all(each.done is not None for each in choices)
    return choice, result


_Arrived = asyncio.Queue[tuple[Choice, TaskResult | BaseException | None]]


async def _merge(choices: Sequence[Choice]) -> AsyncGenerator[tuple[Choice, TaskResult]]:
    """Yield the results of choices until all have ended or one fails. Closes all streams."""
    arrived: _Arrived = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(choice, arrived)) for choice in choices]
    try:
        n_open = len(choices)
        while n_open:
            choice, result = await arrived.get()
            if isinstance(result, BaseException):
                raise result
            if result is None:
                n_open -= 1
            else:
                yield choice, result
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for choice in choices:
            choice.stream.close()


async def _pump(choice: Choice, arrived: _Arrived) -> None:
    try:
        async for result in choice.stream:
            arrived.put_nowait((choice, result))
        arrived.put_nowait((choice, None))
    except Exception as error:
        arrived.put_nowait((choice, error))
