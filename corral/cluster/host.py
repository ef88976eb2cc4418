"""The Ray actor of an engine: starts the usual engine process on its node, and relays frames, files and log.

Not a Ray Serve replica: a front and an engine have one long conversation in both directions, and a Serve
handle sends every call to any replica (`choose_replica` reserves one for a single call).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from corral.cluster.conversation import Conversation
from corral.cluster.engine_run import EngineRun
from corral.cluster.message import Exit, Lines, encode


class EngineHost(EngineRun):
    """An async actor; all methods run on its event loop, in the order in which they were called."""

    def __init__(self) -> None:
        super().__init__()
        self._front = Conversation(self)

    async def start(self, version: str, body: bytes, n_cpus: int) -> bytes:
        """Start the engine with the settings in a frame; returns its `Place`."""
        return await self.launch(version, body, n_cpus)

    async def feed(self, n: int, message: bytes) -> None:
        """Take the n-th message."""
        self._front.feed(n, message)

    async def events(self) -> AsyncIterator[bytes]:
        """Yield lists of what comes from the engine, until it has ended."""
        async for items in self._front.outbox:
            yield encode(items)

    def on_frame(self, body: bytes) -> None:
        self._front.receive(body)

    def on_line(self, line: Lines) -> None:
        self._front.outbox.put(line)

    async def on_exit(self, code: int) -> None:
        self._front.outbox.put(Exit(code))
