"""What a server with shared storage (`--shared-storage`) does for others: it continues the work of those that
are gone.

It looks for such work every second, and at once when a client asks for something that no server has. For one
event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from corral.api.front_client import FrontClient, shared_url
from corral.core.errors import CorralError
from corral.core.settings import ServerSettings
from corral.storage.front_registry import FrontRegistry
from corral.telemetry.ledger import DAY_S, Ledger

if TYPE_CHECKING:
    from corral.api.batch.runner import BatchRunner
    from corral.api.durable_runner import DurableRunner

_LOOK_S = 1.0
_WAIT_S = 1.0  # for another server that is taking over


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
        self, address: str, batches: BatchRunner | None, durable: DurableRunner | None, ledger: Ledger
    ) -> None:
        """Let others reach this server, and look for those that are gone. Raises CorralError."""
        self.registry.publish(shared_url(self._server, address))
        self._batches, self._durable = batches, durable
        self._task = asyncio.create_task(self._look(ledger))

    async def take_over(self, wait_s: float = _WAIT_S) -> None:
        """Continue what servers have left that are gone. Those that take over at the same time wait, so that
        afterwards everything is somewhere."""
        async with self._lock:
            with contextlib.ExitStack() as at_end:
                alone = await asyncio.to_thread(at_end.enter_context, self.registry.alone(wait_s))
                if alone:
                    await self._take_over()

    async def stop(self) -> None:
        """Take over nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def close(self) -> None:
        """Leave the rest to others."""
        await self.others.close()
        self.registry.close()

    async def _take_over(self) -> None:
        if self._batches is not None:
            await self._batches.take_over()
        if self._durable is not None:
            await self._durable.adopt(self.registry.is_alive)
        await asyncio.to_thread(self.registry.forget_dead)

    async def _look(self, ledger: Ledger) -> None:
        while True:
            with contextlib.suppress(CorralError, OSError):  # a disk that is full or away for a while
                await self.take_over(0)
                await ledger.refresh(int(time.time()) // DAY_S)
            await asyncio.sleep(_LOOK_S)
