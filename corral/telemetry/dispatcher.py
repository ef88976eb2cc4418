"""The one place where results become telemetry: update the task's record, then call every observer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Protocol

from corral.core.result import Admitted, Begun, Decodes, SlotReport, TaskResult, Tokens
from corral.core.task import Embed, SlotAction, Task
from corral.telemetry.counters import TokenCounters
from corral.telemetry.ledger import Ledger
from corral.telemetry.load_meter import LoadMeter
from corral.telemetry.loop_meter import LoopMeter
from corral.telemetry.queue import QueueView
from corral.telemetry.record import Arrival, RequestRecord, TaskRecord
from corral.telemetry.slots import SlotTable


class RecordObserver(Protocol):
    """Reads records while tasks run; the record is up to date at every call."""

    def on_result(self, record: RequestRecord, task: TaskRecord, result: TaskResult) -> None: ...

    def on_end(self, record: RequestRecord, task: TaskRecord) -> None: ...


class Telemetry:
    """All telemetry of a model, on the event loop. An `EngineObserver` of the link."""

    def __init__(self, ledger: Ledger | None = None, loop: LoopMeter | None = None) -> None:
        """`ledger` and `loop`: of the server."""
        self.slots = SlotTable()
        self.counters = TokenCounters()
        self.queue = QueueView()
        self.load = LoadMeter()
        self.loop = loop or LoopMeter()
        self.ledger = ledger or Ledger()
        self.observers: list[RecordObserver] = [self.ledger]
        self.followers: dict[int, TaskFollower] = {}  # of tasks that have not ended, by task id

    @property
    def waiting(self) -> Iterator[TaskFollower]:
        """Followers of tasks that no engine has started."""
        return (each for id, each in self.followers.items() if self.queue.is_waiting(id))

    def follow(self, record: RequestRecord, at_end: Callable[[], None] = lambda: None) -> TaskFollower:
        """Return an observer for one new task of this request. `at_end`: called when it has been counted."""
        return TaskFollower(self, record, at_end)

    def on_slots(self, n_slots: int) -> None:
        self.slots.reset(n_slots)
        self.counters.lose_engine()
        self.queue.n_slots = n_slots
        self.queue.lose_engine()

    def on_engine_slots(self, slots: range, n_slots: int, lost: Sequence[int]) -> None:
        """The same for one of several engines."""
        self.slots.reset_range(slots, n_slots)
        self.counters.lose(lost)
        self.queue.n_slots = n_slots
        self.queue.lose(lost)

    def arrival_of(self, task: Task | Embed) -> Arrival:
        n_slots, n_waiting = self.queue.n_slots, self.queue.n_waiting
        if isinstance(task, Embed):
            return Arrival(n_slots, n_waiting=n_waiting, is_batch=task.is_batch)
        params = task.params
        return Arrival(
            n_slots,
            self.slots.n_taken(task.is_batch),
            n_waiting,
            params.id_slot,
            len(task.media),
            params.constraint is not None,
            params.cache_prompt,
            task.is_batch,
        )

    def on_queue(self, task_ids: Sequence[int]) -> None:
        self.queue.sort(task_ids)

    def on_decodes(self, decodes: Decodes) -> None:
        self.counters.on_decodes(decodes)

    def on_action(self, action: SlotAction, report: SlotReport) -> None:
        self.slots.on_action(action, report)


class TaskFollower:
    """Follows one task. A `TaskObserver` of the link."""

    def __init__(self, telemetry: Telemetry, record: RequestRecord, at_end: Callable[[], None]) -> None:
        self._telemetry = telemetry
        self._at_end = at_end
        self.record = record

    def on_submit(self, task: Task | Embed) -> None:
        n_prompt = len(task.prompt) if isinstance(task, Task) else sum(map(len, task.inputs))
        self._submitted = task
        self.task = self.record.add_task(n_prompt, self._telemetry.arrival_of(task))
        self._telemetry.followers[task.id] = self
        if not task.is_batch:  # it is never in the way of others
            self._telemetry.queue.enter(task.id, task.client)

    def on_result(self, result: TaskResult) -> None:
        telemetry, submitted = self._telemetry, self._submitted
        is_start = not isinstance(result, Tokens) and isinstance(result, Admitted | Begun)
        self.task.update(result, perf_counter())
        if is_start and not submitted.is_batch:
            telemetry.queue.start(submitted.id, self.task)
        telemetry.counters.on_result(result, submitted)
        if isinstance(submitted, Task):
            telemetry.slots.on_result(result, submitted)
        if is_start and isinstance(result, Admitted):
            self.task.load_at_start = telemetry.load.update(telemetry.slots.n_busy)
        elif self.task.n_outputs == 1 and not self.task.load_at_first:
            self.task.load_at_first = telemetry.load.total()
        for observer in telemetry.observers:
            observer.on_result(self.record, self.task, result)

    def on_end(self) -> None:
        telemetry, id = self._telemetry, self._submitted.id
        self.task.ended_at = self.task.ended_at or perf_counter()
        del telemetry.followers[id]
        telemetry.counters.on_end(id)
        telemetry.queue.leave(id)
        self.task.load_at_end = telemetry.load.total()
        telemetry.slots.on_end(id)
        telemetry.load.update(telemetry.slots.n_busy)
        for observer in telemetry.observers:
            observer.on_end(self.record, self.task)
        self._at_end()
