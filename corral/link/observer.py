"""What the link tells others about tasks and slots. It knows nothing of who listens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from corral.core.result import SlotReport, TaskResult
from corral.core.task import Embed, SlotAction, Task


class TaskObserver(Protocol):
    """Follows one task, across engine restarts."""

    def on_submit(self, task: Task | Embed) -> None:
        """It waits for an engine from now on."""
        ...

    def on_result(self, result: TaskResult) -> None: ...

    def on_end(self) -> None:
        """It has ended: done, failed or cancelled. Called once, after the last result."""
        ...


class EngineObserver(Protocol):
    """Follows the engine itself."""

    def on_slots(self, n_slots: int) -> None:
        """All slots are empty, as a new engine has them or a sleeping one left them."""
        ...

    def on_queue(self, task_ids: Sequence[int]) -> None:
        """The engine's order of the tasks that wait for a slot, the next one first."""
        ...

    def on_action(self, action: SlotAction, report: SlotReport) -> None:
        """An action on a slot is done."""
        ...
