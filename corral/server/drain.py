"""The end of a server: what runs may finish for a while, then it is told to end, then it is cut off.

Knows how long, and whose connections; not what runs in them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from uvicorn.server import ServerState

_LAST_WORDS_S = 1.0  # for errors to reach those who were waiting
_LOOK_S = 0.02
_log = logging.getLogger("corral")


class Drain:
    """Mutable: whether somebody insists that it be over at once."""

    def __init__(self, timeout_s: float, dismiss: Callable[[], None]) -> None:
        """`dismiss`: all that runs is to end, with an error."""
        self._timeout_s = timeout_s
        self._dismiss = dismiss
        self._on_begin: list[Callable[[], None]] = []
        self._is_begun = False
        self._insisted = asyncio.Event()

    def join(self, *on_begin: Callable[[], None]) -> None:
        """Who is to know that nothing new should come; at once, where that is so already."""
        self._on_begin += on_begin
        if self._is_begun:
            self._announce()

    def begin(self) -> None:
        _log.info("stopping when running requests are done; a second Ctrl-C (or SIGTERM) stops at once")
        self._announce()

    def insist(self) -> None:
        _log.info("stopping at once")
        self.hurry()

    def hurry(self) -> None:
        self._insisted.set()

    async def run(self, state: ServerState) -> None:
        """Returns when nothing is left to wait for; the rest has had its chance."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._insisted.wait(), self._timeout_s)
        if not self._insisted.is_set() and state.tasks:
            _log.warning("--timeout is over: stopping with requests still running")
        self._announce()
        self._dismiss()
        await _until_over(state)
        for connection in list(state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await _until_over(state)

    def _announce(self) -> None:
        """More than once does no harm."""
        self._is_begun = True
        for tell in self._on_begin:
            tell()


async def _until_over(state: ServerState) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _LAST_WORDS_S
    while (state.connections or state.tasks) and loop.time() < deadline:
        await asyncio.sleep(_LOOK_S)
