"""The record of one HTTP request and its tasks: timestamps and counts, kept once, read by all observers.

Times are those of `time.perf_counter`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from corral.core.client import ANONYMOUS, Client
from corral.core.result import (
    Admitted,
    Begun,
    Done,
    Failed,
    LastResult,
    Progress,
    TaskResult,
    Tier,
    Timings,
    Tokens,
)

LEFT = 499  # a status: the client disconnected before the response was complete


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a task asked for, and what it found when it arrived."""

    n_slots: int = 0
    n_busy: int = 0  # slots with tasks that it cannot displace
    n_waiting: int = 0  # tasks
    id_slot: int = -1  # the slot that it must have
    n_media: int = 0
    has_grammar: bool = False
    uses_cache: bool = True
    is_batch: bool = False  # it yields to all others


UNKNOWN = Arrival()


@dataclass(slots=True, eq=False)
class TaskRecord:
    """The timeline of one task of a request; a time of 0 means not yet."""

    n_prompt: int
    arrived_at: float  # of the request
    queued_at: float
    admitted_at: float = 0.0  # by the first engine
    running_since: float = 0.0  # in the last engine
    first_at: float = 0.0
    last_at: float = 0.0
    ended_at: float = 0.0
    gap_s: float = 0.0  # per token of the last result, since the one before it
    worst_gap_s: float = 0.0  # between two results
    n_past: int = 0  # prompt tokens that are evaluated or cached, as far as was reported
    n_outputs: int = 0  # results with tokens
    n_engines: int = 0  # that have started it
    is_done: bool = False  # neither cancelled nor failed
    tier: Tier = Tier.NONE
    admitted: Admitted | None = None  # by the last engine
    timings: Timings | None = None
    arrival: Arrival = UNKNOWN
    # Sums of busy slots over time: when it got a slot, at its first token, at its end.
    load_at_start: float = 0.0
    load_at_first: float = 0.0
    load_at_end: float = 0.0
    # From the last result of an engine that was lost to the next token of another.
    resumptions: list[tuple[float, float]] = field(default_factory=list)

    @property
    def queue_s(self) -> float:
        """Time spent waiting for a slot, so far or in total."""
        return (self.admitted_at or self.ended_at or time.perf_counter()) - self.queued_at

    @property
    def ttft_s(self) -> float:
        """Time to first token, from the arrival of the request."""
        return self.first_at - self.arrived_at

    @property
    def service_s(self) -> float:
        """Time in a slot of the last engine."""
        return (self.ended_at or time.perf_counter()) - self.running_since

    def update(self, result: TaskResult, now: float) -> None:
        if isinstance(result, Tokens):
            self._add_output(len(result.tokens), now)
            self.timings = result.timings
        elif isinstance(result, Admitted | Begun):
            # After a restart a second engine admits the task again, but the time in the queue counts once.
            if self.admitted_at:
                self.resumptions.append((max(self.running_since, self.last_at), 0.0))
            self.admitted_at = self.admitted_at or now
            self.running_since = now
            self.n_engines += 1
            if isinstance(result, Admitted):
                self.tier = result.tier
                self.admitted = result
        elif isinstance(result, LastResult | Failed):
            self.timings = result.timings if isinstance(result, Done) else self.timings
            self.ended_at = now
            self.is_done = isinstance(result, LastResult)
        elif isinstance(result, Progress):
            self.n_past = result.n_past

    def _add_output(self, n_tokens: int, now: float) -> None:
        self.n_outputs += 1
        if self.n_outputs == 1:
            self.first_at = now
        else:
            gap_s = now - self.last_at
            self.gap_s = gap_s / max(1, n_tokens)
            self.worst_gap_s = max(self.worst_gap_s, gap_s)
        self.last_at = now
        if self.resumptions and not self.resumptions[-1][1]:
            self.resumptions[-1] = (self.resumptions[-1][0], now)


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request. `status`: of the response, or why there was none. `model`: its model's name, on a server
    with many."""

    id: str = ""
    client: Client = ANONYMOUS
    started_at: float = field(default_factory=time.perf_counter)
    tasks: list[TaskRecord] = field(default_factory=list)
    ended_at: float = 0.0
    status: int = 0
    n_bytes: int = 0  # of the answer's body
    is_large: bool = False  # its body or its answer took much memory
    blocked_s: float = 0.0  # the client did not read what was ready to be sent
    model: str = ""

    def add_task(self, n_prompt: int, arrival: Arrival = UNKNOWN) -> TaskRecord:
        task = TaskRecord(n_prompt, self.started_at, time.perf_counter(), arrival=arrival)
        self.tasks.append(task)
        return task
