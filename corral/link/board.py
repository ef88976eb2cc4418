"""What every slot is doing, as told by the results that pass by: no question to the engine is needed."""

from __future__ import annotations

from dataclasses import dataclass

from corral.core.result import Admitted, Done, Failed, Progress, SlotReport, TaskResult, Tokens
from corral.core.task import SlotAction, Task, Verb

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
    has_new_line: bool = False
    stopping_word: str = ""


class Board:
    def __init__(self) -> None:
        self.slots: list[SlotView] = []
        self._by_task: dict[int, SlotView] = {}

    @property
    def n_idle(self) -> int:
        return sum(not slot.is_processing for slot in self.slots)

    def reset(self, n_slots: int) -> None:
        self.slots = [SlotView(id) for id in range(n_slots)]
        self._by_task = {}

    def note(self, result: TaskResult, task: Task) -> None:
        if isinstance(result, Admitted):
            slot = SlotView(result.id_slot, task, True, n_past=result.n_cached, n_cached=result.n_cached)
            self.slots[result.id_slot] = slot
            self._by_task[task.id] = slot
            return
        view = self._by_task.get(task.id)
        if view is None:
            return
        if isinstance(result, Progress):
            view.n_past = result.n_past
        elif isinstance(result, Tokens):
            view.n_decoded = result.timings.predicted_n
            view.has_new_line = view.has_new_line or "\n" in result.text
        elif isinstance(result, Done):
            view.stopping_word = result.stopping_word
        if isinstance(result, Done | Failed):
            self.leave(task.id)

    def note_action(self, action: SlotAction, report: SlotReport) -> None:
        """A slot holds something else than its last task left there."""
        if action.verb in _CHANGES and not self.slots[action.slot].is_processing:
            n_left = 0 if action.verb is Verb.ERASE else report.n_tokens
            self.slots[action.slot] = SlotView(action.slot, n_past=n_left)

    def leave(self, task_id: int) -> None:
        view = self._by_task.pop(task_id, None)
        if view is not None:
            view.is_processing = False
