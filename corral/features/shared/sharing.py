"""What a server with shared storage (`--shared-storage`) does for others: it continues the work of those that
are gone.

It looks for such work every second, and at once when a client asks for something that no server has. For one
event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from corral.core.repeat import repeat
from corral.core.settings import ServerSettings
from corral.features.shared.front_client import FrontClient, shared_url
from corral.storage.front_registry import FrontRegistry
from corral.telemetry.ledger import DAY_S, Ledger

if TYPE_CHECKING:
    from corral.features.batches.runner import BatchRunner
    from corral.features.durable.runner import DurableRunner

_LOOK_S = 1.0
_WAIT_S = 1.0  # for another server that is taking over
_RETRY_S = 0.01


class Sharing:
    """Mutable."""

    def __init__(self, server: ServerSettings) -> None:
        """Raises CorralError if the directory cannot be used."""
        self._server = server
        self.registry = FrontRegistry(Path(server.shared_storage))
        self.others = FrontClient(self.registry, server)
        self._batches: BatchRunner | None = None
        self._durable: DurableRunner | None = None
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    def start(
        self,
        address: str,
        batches: BatchRunner | None,
        durable: DurableRunner | None,
        ledger: Ledger,
        is_ready: Callable[[], bool],
    ) -> None:
        """Let others reach this server, and look for those that are gone while it `is_ready` for their work.
        Raises CorralError if others cannot know how to reach it."""
        self.registry.publish(shared_url(self._server, address))
        self._batches, self._durable = batches, durable
        self._task = asyncio.create_task(self._look(ledger, is_ready))

    async def take_over(self, wait_s: float = _WAIT_S) -> None:
        """Continue what servers have left that are gone. Those that take over at the same time wait, so that
        afterwards everything is somewhere."""
        deadline = time.monotonic() + wait_s
        async with self._lock:
            while not await self._try_take_over() and time.monotonic() < deadline:
                await asyncio.sleep(_RETRY_S)

    async def stop(self) -> None:
        """Take over nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def close(self) -> None:
        """Leave the rest to others."""
        await self.others.close()
        self.registry.close()

    async def _try_take_over(self) -> bool:
        with self.registry.alone() as is_alone:
            if is_alone and self._batches is not None:
                await self._batches.take_over()
            if is_alone and self._durable is not None:
                await self._durable.adopt(self.registry.is_alive)
            if is_alone:
                await asyncio.to_thread(self.registry.forget_dead)
            return is_alone

    async def _look(self, ledger: Ledger, is_ready: Callable[[], bool]) -> None:
        async def look() -> None:
            if is_ready():
                await self.take_over(0)
            await ledger.refresh(int(time.time()) // DAY_S)

        await repeat("looking for servers that are gone", look, _LOOK_S)
