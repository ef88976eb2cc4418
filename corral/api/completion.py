"""Running prepared completions: from tasks to events and answers, in any dialect that can be rendered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from corral.api.merge import merge
from corral.api.prepare import PreparedCompletion
from corral.api.service import Engine
from corral.core.result import Admitted, Done, TaskResult, TokenProbs, Tokens
from corral.core.task import Task
from corral.link.stream import TaskStream


@dataclass(slots=True)
class Run:
    """Mutable: one prompt on its way to an answer, and everything that came of it so far."""

    index: int
    task: Task
    stream: TaskStream
    id_slot: int = -1
    n_cached: int = 0
    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    probs: list[TokenProbs] = field(default_factory=list)
    done: Done | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def note(self, result: TaskResult) -> None:
        if isinstance(result, Tokens):
            self.texts.append(result.text)
            self.tokens += result.tokens
            self.probs += result.probs
        elif isinstance(result, Admitted):
            self.id_slot = result.id_slot
            self.n_cached = result.n_cached
        elif isinstance(result, Done):
            self.texts.append(result.text)
            self.done = result


def start_runs(prepared: PreparedCompletion, engine: Engine) -> list[Run]:
    runs: list[Run] = []
    try:
        for index, prompt in enumerate(prepared.prompts):
            runs.append(Run(index, *engine.submit(prompt, prepared.params)))
    except BaseException:
        for run in runs:
            run.stream.close()
        raise
    return runs


async def follow(runs: list[Run]) -> AsyncIterator[tuple[Run, TaskResult]]:
    """Every result of every run as it comes, already noted."""
    if len(runs) == 1:
        async for result in runs[0].stream:
            runs[0].note(result)
            yield runs[0], result
        return
    async for index, result in merge([run.stream for run in runs]):
        runs[index].note(result)
        yield runs[index], result


async def finish(runs: list[Run]) -> list[Run]:
    """Wait for all answers."""
    async for _ in follow(runs):
        pass
    return runs
