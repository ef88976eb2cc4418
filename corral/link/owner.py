"""Who decides about the memory of engines. The link does not know the implementation."""

from __future__ import annotations

from typing import Protocol

from corral.core.result import MemoryPlan


class EngineOwner(Protocol):
    """Decides about the memory of the engines of several models, or of one engine among several."""

    @property
    def may_retry(self) -> bool:
        """Whether an engine that has failed is started again after a while; otherwise it stays as it is."""
        ...

    async def admit(self, planned: MemoryPlan) -> None:
        """Return when there is memory for new engines. Raises CorralError if there never will be."""
        ...

    def on_wake(self) -> None:
        """Called when an unloaded engine is needed again; `EngineLifecycle.load_again` lets it start."""
        ...

    def on_idle(self) -> None:
        """Called when the engine had no work for long; `EngineLifecycle.begin_unload` ends it."""
        ...

    def on_change(self) -> None:
        """Called when the state or the progress of loading has changed."""
        ...
