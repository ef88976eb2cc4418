"""Running prepared completions: from tasks to an HTTP response, in whatever dialect renders them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from corral.api.merge import merge
from corral.api.prepare import PreparedCompletion
from corral.api.service import Service, new_task
from corral.core.params import RANDOM_SEED, GenerationParams
from corral.core.result import Admitted, CacheReport, Done, TaskResult, TokenProbs, Tokens
from corral.core.task import Task
from corral.link.stream import TaskStream
from corral.telemetry.record import RequestRecord


@dataclass(slots=True)
class Run:
    """Mutable: one prompt on its way to an answer, and everything that came of it so far.

    `is_first`: of those with the same prompt. `is_last`: no other run of the request is still on its way.
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
        assert self.done is not None, "the run has not ended"
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


def start_runs(prepared: PreparedCompletion, service: Service, record: RequestRecord) -> list[Run]:
    runs: list[Run] = []
    try:
        for prompt in prepared.prompts:
            media = prepared.media.of(prompt) if prepared.media is not None else None
            for sample in range(prepared.n):
                task = new_task(prompt, sample_params(prepared.params, sample), record.client, media)
                task, stream = service.engine.submit(task, service.telemetry.follow(record), media)
                runs.append(Run(len(runs), task, stream, is_first=sample == 0))
    except BaseException:
        for run in runs:
            run.stream.close()
        raise
    return runs


def sample_params(params: GenerationParams, sample: int) -> GenerationParams:
    """Several answers to one prompt have seeds that count up."""
    if not sample:
        return params
    seed = (params.sampling.seed + sample) % RANDOM_SEED
    return msgspec.structs.replace(params, sampling=msgspec.structs.replace(params.sampling, seed=seed))


async def follow(runs: list[Run]) -> AsyncIterator[tuple[Run, TaskResult]]:
    """Every result of every run as it comes, already noted."""
    n_open = len(runs)
    async for index, result in _results(runs):
        run = runs[index]
        run.add_result(result)
        n_open -= run.done is not None
        run.is_last = n_open == 0
        yield run, result


async def _results(runs: list[Run]) -> AsyncIterator[tuple[int, TaskResult]]:
    if len(runs) > 1:
        async for pair in merge([run.stream for run in runs]):
            yield pair
        return
    async for result in runs[0].stream:
        yield 0, result


class Renderer(Protocol):
    """A dialect: how results become events, and finished runs an answer. `last` closes a stream."""

    last: bytes

    def events(self, run: Run, result: TaskResult) -> list[dict[str, Any]]: ...

    def answer(self, runs: list[Run]) -> Any: ...
