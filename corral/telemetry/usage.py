"""How many tokens the tasks of a request took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from corral.telemetry.record import TaskRecord


@dataclass(frozen=True, slots=True)
class Usage:
    """`n_cached`: of the `n_input` prompt tokens, those that were not evaluated."""

    n_input: int = 0
    n_cached: int = 0
    n_output: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.n_input + other.n_input, self.n_cached + other.n_cached, self.n_output + other.n_output
        )


def usage_of(tasks: Iterable[TaskRecord]) -> Usage:
    return sum(map(_usage_of, tasks), Usage())


def _usage_of(task: TaskRecord) -> Usage:
    if task.timings is not None:
        timings = task.timings
        return Usage(timings.prompt_n + timings.cache_n, timings.cache_n, timings.predicted_n)
    if task.is_done:
        return Usage(n_input=task.n_prompt)
    n_cached = task.admitted.n_cached if task.admitted is not None else 0
    return Usage(n_input=max(task.n_past, n_cached), n_cached=n_cached)  # cancelled before its first token
