"""Observers of tasks and of the engine. The link does not know who implements them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from corral.core.result import SlotReport, TaskResult
from corral.core.task import Embed, SlotAction, Task


class TaskObserver(Protocol):
    """Follows one task, across engine restarts."""

    def on_submit(self, task: Task | Embed) -> None:
        """The task was submitted and waits for an engine."""
        ...

    def on_result(self, result: TaskResult) -> None: ...

    def on_end(self) -> None:
        """The task has ended: done, failed or cancelled. Called once, after the last result."""
        ...


class EngineObserver(Protocol):
    """Follows the engine itself."""

    def on_slots(self, n_slots: int) -> None:
        """All slots are empty: the engine is new or was unloaded."""
        ...

    def on_queue(self, task_ids: Sequence[int]) -> None:
        """The engine's order of waiting tasks, the next one first."""
        ...

    def on_action(self, action: SlotAction, report: SlotReport) -> None:
        """An action on a slot has finished."""
        ...
