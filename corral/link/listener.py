"""What an engine's lifecycle asks of the owner of the tasks, and reports to it."""

from __future__ import annotations

from typing import Protocol

from corral.core.errors import Unavailable
from corral.core.result import Answer, CacheEvent, Decodes, ModelInfo, Queue, TaskResult
from corral.core.settings import EngineSettings
from corral.link.restart import EngineExit


class EngineListener(Protocol):
    """The owner of the tasks."""

    @property
    def n_submitted(self) -> int:
        """Number of tasks and commands so far; a change means that the engine is in use."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether tasks or commands are unfinished."""
        ...

    def engine_settings(self, settings: EngineSettings) -> EngineSettings:
        """Return the settings for a new engine."""
        ...

    def on_ready(self, info: ModelInfo) -> None: ...

    def on_lost(self, ready_s: float | None) -> EngineExit:
        """Handle an engine lost `ready_s` after it was ready; return what it was doing."""
        ...

    def on_sleep(self) -> None:
        """Reset the slots: the engine is unloaded."""
        ...

    def on_down(self, error: Unavailable) -> None:
        """Fail everything: there will be no engine any more."""
        ...

    def on_event(self, event: Queue | Decodes | CacheEvent | Answer | TaskResult) -> None: ...
