"""The spans of every slot in the last minute: prefill, then decode, for each task."""

from __future__ import annotations

import collections
import enum
from collections.abc import Iterator
from dataclasses import dataclass

from corral.core.result import Admitted, Tier
from corral.telemetry.record import RequestRecord, TaskRecord

MAX_ENDED = 1024  # spans kept
NONE, OWN, SLOT = "none", "own", "slot"
SOURCES = (NONE, OWN, SLOT, Tier.RAM.value, Tier.DISK.value)


class SlotPhase(str, enum.Enum):
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(slots=True, eq=False)
class Span:
    """A span of work: `n_done` prompt tokens are evaluated, or answer tokens generated."""

    number: int
    id_slot: int
    phase: SlotPhase
    task: TaskRecord
    id: str  # of the request
    key: str
    admitted: Admitted
    started_at: float
    ended_at: float = 0.0
    n_done: int = 0
    is_lost: bool = False  # with its engine


def source_of(admitted: Admitted) -> str:
    """Return where the cached prefix came from: the slot itself, another one, a saved state, a file."""
    if admitted.tier is not Tier.LIVE:
        return str(admitted.tier.value)
    return OWN if admitted.id_source == admitted.id_slot else SLOT


class SlotTimeline:
    def __init__(self) -> None:
        self._n = 0
        self._open: dict[TaskRecord, Span] = {}
        self._ended: collections.deque[Span] = collections.deque(maxlen=MAX_ENDED)
        self._ended_since: list[Span] = []

    def __iter__(self) -> Iterator[Span]:
        """Yield ended spans first."""
        yield from self._ended
        yield from self._open.values()

    def admit(self, record: RequestRecord, task: TaskRecord, admitted: Admitted, now: float) -> None:
        self.end(task, now, is_lost=True)  # in a lost engine, if any
        self._begin(SlotPhase.PREFILL, record.id, record.client.name, task, admitted, now)

    def find(self, task: TaskRecord) -> Span | None:
        return self._open.get(task)

    def start_decode(self, span: Span, now: float) -> Span:
        span.n_done = span.task.n_prompt
        self.end(span.task, now)
        return self._begin(SlotPhase.DECODE, span.id, span.key, span.task, span.admitted, now)

    def end(self, task: TaskRecord, now: float, is_lost: bool = False) -> None:
        span = self._open.pop(task, None)
        if span is not None:
            span.ended_at, span.is_lost = now, is_lost
            self._ended.append(span)
            self._ended_since.append(span)

    def lose_engine(self, now: float) -> None:
        for span in list(self._open.values()):
            self.end(span.task, now, is_lost=True)

    def drain_changes(self) -> list[Span]:
        """Return the spans that may have changed since the last call."""
        changes, self._ended_since = [*self._ended_since, *self._open.values()], []
        return changes

    def forget(self, before: float) -> None:
        while self._ended and self._ended[0].ended_at < before:
            self._ended.popleft()

    def _begin(
        self, phase: SlotPhase, id_: str, key: str, task: TaskRecord, admitted: Admitted, now: float
    ) -> Span:
        self._n += 1
        n_done = admitted.n_cached if phase is SlotPhase.PREFILL else 0
        span = Span(self._n, admitted.id_slot, phase, task, id_, key, admitted, now, n_done=n_done)
        self._open[task] = span
        return span
