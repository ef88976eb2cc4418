"""What every slot is doing, as told by the results that pass by: no question to the engine is needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from corral.core.result import (
    Admitted,
    Begun,
    Done,
    Failed,
    LastResult,
    Progress,
    SlotReport,
    StopType,
    TaskResult,
    Tokens,
)
from corral.core.task import Embed, SlotAction, Task, Verb
from corral.core.visit import Leg, Visit
from corral.link.line import Line
from corral.link.tally import Tally

_CHANGES = (Verb.RESTORE, Verb.ERASE, Verb.SHIFT, Verb.FORK)


@dataclass(slots=True)
class SlotView:
    """Mutable. The task a slot works on, or worked on last."""

    id: int
    task: Task | None = None
    is_processing: bool = False
    n_past: int = 0
    n_cached: int = 0
    n_decoded: int = 0
    n_held: int = 0  # tokens in the context
    has_new_line: bool = False
    stopping_word: str = ""
    stop_type: StopType = StopType.NONE


class Watcher(Protocol):
    """Whoever wants to know what becomes of orders."""

    def note(self, visit: Visit, leg: Leg, result: TaskResult) -> None:
        """The leg does not know of it yet."""
        ...

    def leave(self, visit: Visit, leg: Leg) -> None:
        """It has ended, however it did."""
        ...


class Board:
    def __init__(self) -> None:
        self.slots: list[SlotView] = []
        self.tally = Tally()
        self.line = Line()
        self.watchers: list[Watcher] = []
        self._visits: dict[int, tuple[Visit, Leg]] = {}
        self._by_task: dict[int, SlotView] = {}

    @property
    def n_idle(self) -> int:
        return sum(not slot.is_processing for slot in self.slots)

    @property
    def n_held(self) -> int:
        """Tokens in all slots, also in those that are idle."""
        return sum(slot.n_held for slot in self.slots)

    @property
    def waiting(self) -> Iterator[tuple[Visit, Leg]]:
        """Orders that no engine has begun."""
        return (visited for id, visited in self._visits.items() if self.line.is_waiting(id))

    def reset(self, n_slots: int) -> None:
        self.slots = [SlotView(id) for id in range(n_slots)]
        self._by_task = {}
        self.tally.lose_engine()
        self.line.n_slots = n_slots
        self.line.lose_engine()

    def enter(self, order: Task | Embed, visit: Visit | None = None) -> None:
        """An order waits for an engine from now on."""
        self.line.enter(order.id, order.client)
        n = len(order.prompt) if isinstance(order, Task) else sum(map(len, order.inputs))
        visit = visit if visit is not None else Visit()
        self._visits[order.id] = visit, visit.enter(n)

    def note(self, result: TaskResult, order: Task | Embed) -> None:
        self.tally.note(result, order)
        if isinstance(result, Admitted | Begun):
            self.line.begin(order.id)
        if visited := self._visits.get(order.id):
            for watcher in self.watchers:
                watcher.note(*visited, result)
            visited[1].note(result, perf_counter())
        if isinstance(order, Task):
            self._note_task(result, order)
        if isinstance(result, LastResult | Failed):
            self.leave(order.id)

    def _note_task(self, result: TaskResult, task: Task) -> None:
        if isinstance(result, Admitted):
            n_cached = result.n_cached
            slot = SlotView(result.id_slot, task, True, n_past=n_cached, n_cached=n_cached, n_held=n_cached)
            self.slots[result.id_slot] = slot
            self._by_task[task.id] = slot
            return
        view = self._by_task.get(task.id)
        if view is None:
            return
        if isinstance(result, Progress):
            view.n_past = view.n_held = result.n_past
        elif isinstance(result, Tokens):
            view.n_decoded = result.timings.predicted_n
            view.n_held = len(task.prompt) + view.n_decoded - 1
            view.has_new_line = view.has_new_line or "\n" in result.text
        elif isinstance(result, Done):
            view.stopping_word = result.stopping_word
            view.stop_type = result.stop_type
            view.n_held = result.n_past

    def note_action(self, action: SlotAction, report: SlotReport) -> None:
        """A slot holds something else than its last task left there."""
        if action.verb in _CHANGES and not self.slots[action.slot].is_processing:
            n_left = 0 if action.verb is Verb.ERASE else report.n_tokens
            self.slots[action.slot] = SlotView(action.slot, n_past=n_left, n_held=n_left)

    def leave(self, task_id: int) -> None:
        self.tally.leave(task_id)
        self.line.leave(task_id)
        if visited := self._visits.pop(task_id, None):
            visited[1].ended_at = visited[1].ended_at or perf_counter()
            for watcher in self.watchers:
                watcher.leave(*visited)
        view = self._by_task.pop(task_id, None)
        if view is not None:
            view.is_processing = False
