"""The state of every slot, derived from the results that pass by; the engine is never asked."""

from __future__ import annotations

from dataclasses import dataclass

from corral.core.result import Admitted, Done, Progress, SlotReport, StopType, TaskResult, Tokens
from corral.core.task import SlotAction, Task, Verb

_CHANGES = (Verb.RESTORE, Verb.ERASE, Verb.SHIFT, Verb.FORK)


@dataclass(slots=True)
class SlotView:
    """The task a slot works on, or worked on last."""

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


class SlotTable:
    """`views`: every slot, by id."""

    def __init__(self) -> None:
        self.views: list[SlotView] = []
        self.n_held_before = 0  # tokens in all slots, until the last reset
        self._by_task: dict[int, SlotView] = {}

    @property
    def n_idle(self) -> int:
        return len(self.views) - self.n_busy

    @property
    def n_busy(self) -> int:
        return len(self._by_task)

    def n_taken(self, is_batch: bool) -> int:
        """Return the number of slots that a task cannot take: batches yield to others."""
        tasks = (view.task for view in self._by_task.values())
        return sum(is_batch or (task is not None and not task.is_batch) for task in tasks)

    @property
    def n_held(self) -> int:
        """Tokens in all slots, idle ones included."""
        return sum(view.n_held for view in self.views)

    def reset(self, n_slots: int) -> None:
        self.n_held_before = self.n_held
        self.views = [SlotView(id) for id in range(n_slots)]
        self._by_task = {}

    def reset_range(self, slots: range, n_slots: int) -> None:
        """Reset the slots of one of several engines, which have `n_slots` together."""
        views = [*self.views, *map(SlotView, range(len(self.views), n_slots))][:n_slots]
        self.views = [SlotView(view.id) if view.id in slots else view for view in views]
        self._by_task = {id: view for id, view in self._by_task.items() if view.id not in slots}

    def on_result(self, result: TaskResult, task: Task) -> None:
        found = self._by_task.get(task.id)
        if isinstance(result, Tokens):
            if found is not None:
                found.n_decoded = result.timings.predicted_n
                found.n_held = len(task.prompt) + found.n_decoded - 1
                found.has_new_line = found.has_new_line or "\n" in result.text
        elif isinstance(result, Admitted):
            n_cached = result.n_cached
            view = SlotView(result.id_slot, task, True, n_past=n_cached, n_cached=n_cached, n_held=n_cached)
            self.views[result.id_slot] = self._by_task[task.id] = view
        elif found is None:
            return
        elif isinstance(result, Progress):
            found.n_past = found.n_held = result.n_past
        elif isinstance(result, Done):
            found.stopping_word = result.stopping_word
            found.stop_type = result.stop_type
            found.n_held = result.n_past

    def on_end(self, task_id: int) -> None:
        view = self._by_task.pop(task_id, None)
        if view is not None:
            view.is_processing = False

    def on_action(self, action: SlotAction, report: SlotReport) -> None:
        """Reset the view of a slot whose content an action has replaced."""
        if action.verb in _CHANGES and not self.views[action.slot].is_processing:
            n_left = 0 if action.verb is Verb.ERASE else report.n_tokens
            self.views[action.slot] = SlotView(action.slot, n_past=n_left, n_held=n_left)
