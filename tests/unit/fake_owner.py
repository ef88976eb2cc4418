"""An `EngineOwner` as a test wants it."""

from __future__ import annotations

import asyncio

from corral.core.errors import InsufficientStorage
from corral.core.result import MemoryPlan


class Owner:
    """Gives memory when the test says so, and counts what it is told."""

    def __init__(self, refusal: InsufficientStorage | None = None) -> None:
        self.refusal = refusal
        self.may_load = asyncio.Event()
        self.planned: list[MemoryPlan] = []
        self.n_wakes = 0
        self.n_idle = 0
        self.n_changes = 0
        self.may_retry = False

    async def admit(self, planned: MemoryPlan) -> None:
        self.planned.append(planned)
        if self.refusal is not None:
            raise self.refusal
        await self.may_load.wait()

    def on_wake(self) -> None:
        self.n_wakes += 1

    def on_idle(self) -> None:
        self.n_idle += 1

    def on_change(self) -> None:
        self.n_changes += 1
