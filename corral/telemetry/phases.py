"""The phases of one request, as a flame view shows them. Pure; times are seconds since its arrival.

| prepare | queue | prefix | prompt | decode ......... | send |
                                       | lost |           with its engine, until the next token
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from corral.telemetry.record import RequestRecord, TaskRecord


class PhaseKind(str, enum.Enum):
    PREPARE = "prepare"  # the body is read and checked, the prompt rendered and tokenized
    QUEUE = "queue"  # waits for a slot
    PREFIX = "prefix"  # the cached beginning comes into the slot
    PROMPT = "prompt"  # the rest is evaluated
    DECODE = "decode"
    LOST = "lost"
    SEND = "send"  # the rest of the answer is rendered and sent


@dataclass(frozen=True, slots=True)
class TimedPhase:
    """`n`: tokens reused, evaluated or generated in it."""

    kind: PhaseKind
    start: float
    end: float
    n: int = 0

    @property
    def seconds(self) -> float:
        return self.end - self.start


def request_phases(record: RequestRecord) -> list[TimedPhase]:
    """Return what was done before and after the tasks of a request that has ended."""
    tasks = record.tasks
    if not tasks:
        return [_phase(record, PhaseKind.PREPARE, record.started_at, record.ended_at)]
    found = [_phase(record, PhaseKind.PREPARE, record.started_at, min(task.queued_at for task in tasks))]
    last = max(task.ended_at for task in tasks)
    if last and record.ended_at > last:
        found.append(_phase(record, PhaseKind.SEND, last, record.ended_at))
    return found


def task_phases(record: RequestRecord, task: TaskRecord) -> list[TimedPhase]:
    """Return the phases of one of its tasks, in the order in which they began."""
    return [_phase(record, kind, start, end, n) for kind, start, end, n in _spans(task) if end >= start]


def _spans(task: TaskRecord) -> Iterator[tuple[PhaseKind, float, float, int]]:
    end = task.ended_at or task.last_at
    if not task.admitted_at:
        yield PhaseKind.QUEUE, task.queued_at, end, 0
        return
    n_cached = task.admitted.n_cached if task.admitted is not None else 0
    placed = max(task.queued_at, task.admitted_at - restore_s(task))
    yield PhaseKind.QUEUE, task.queued_at, placed, 0
    if n_cached:
        yield PhaseKind.PREFIX, placed, task.admitted_at, n_cached
    yield PhaseKind.PROMPT, task.admitted_at, task.first_at or end, max(0, task.n_prompt - n_cached)
    if task.first_at:
        n = task.timings.predicted_n if task.timings is not None else 0
        yield PhaseKind.DECODE, task.first_at, task.last_at, n
    for lost, back in task.resumptions:
        yield PhaseKind.LOST, lost, back or end, 0


def restore_s(task: TaskRecord) -> float:
    """Return how long it took to bring the cached prefix into the slot."""
    report = task.admitted.report if task.admitted is not None else None
    if report is None or len(task.resumptions):  # it would be of another engine than `admitted_at`
        return 0.0
    return report.restore_ms / 1e3


def _phase(record: RequestRecord, kind: PhaseKind, start: float, end: float, n: int = 0) -> TimedPhase:
    return TimedPhase(kind, start - record.started_at, end - record.started_at, n)
