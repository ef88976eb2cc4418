"""Observers of tasks and of the engine. The link does not know their implementations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from corral.core.result import Decodes, SlotReport, TaskResult
from corral.core.task import Embed, SlotAction, Task


class TaskObserver(Protocol):
    """Follows one task, across engine restarts."""

    def on_submit(self, task: Task | Embed) -> None:
        """Called when the task was submitted and waits for an engine."""
        ...

    def on_result(self, result: TaskResult) -> None: ...

    def on_end(self) -> None:
        """Called once, after the last result: the task is done, failed or cancelled."""
        ...


class EngineObserver(Protocol):
    """Follows the engine itself."""

    def on_slots(self, n_slots: int) -> None:
        """Called when all slots are empty: the engine is new or was unloaded."""
        ...

    def on_queue(self, task_ids: Sequence[int]) -> None:
        """Called with the engine's order of waiting tasks, the next one first."""
        ...

    def on_decodes(self, decodes: Decodes) -> None:
        """Called with what this engine has evaluated so far, before the last result of a task."""
        ...

    def on_action(self, action: SlotAction, report: SlotReport) -> None:
        """Called when an action on a slot has finished."""
        ...
