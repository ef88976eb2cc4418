"""Shutdown: let requests finish for a while, then cancel them, then close their connections.

Knows the timeout and the connections, but nothing about requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from uvicorn.server import ServerState

_LAST_WORDS_S = 1.0  # time for errors to reach waiting clients
_LOOK_S = 0.02
_log = logging.getLogger("corral")


class Drain:
    """A shutdown in progress; a second signal ends the wait."""

    def __init__(self, timeout_s: float, dismiss: Callable[[], None]) -> None:
        """`dismiss`: end all running tasks with an error."""
        self._timeout_s = timeout_s
        self._dismiss = dismiss
        self._on_begin: list[Callable[[], None]] = []
        self._is_begun = False
        self._insisted = asyncio.Event()

    def join(self, *on_begin: Callable[[], None]) -> None:
        """Register functions to call when the shutdown begins; call them now if it has begun."""
        self._on_begin += on_begin
        if self._is_begun:
            self._announce()

    def begin(self) -> None:
        _log.info("stopping after running requests are done; a second Ctrl-C (or SIGTERM) stops at once")
        self._announce()

    def insist(self) -> None:
        _log.info("stopping at once")
        self.hurry()

    def hurry(self) -> None:
        self._insisted.set()

    async def run(self, state: ServerState) -> None:
        """Wait for requests until the timeout or a second signal, then cancel the rest."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._insisted.wait(), self._timeout_s)
        if not self._insisted.is_set() and state.tasks:
            _log.warning("--timeout expired: stopping with requests still running")
        self._announce()
        self._dismiss()
        await _until_over(state)
        for connection in list(state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await _until_over(state)

    def _announce(self) -> None:
        """Call all registered functions. Repeated calls are harmless."""
        self._is_begun = True
        for tell in self._on_begin:
            tell()


async def _until_over(state: ServerState) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _LAST_WORDS_S
    while (state.connections or state.tasks) and loop.time() < deadline:
        await asyncio.sleep(_LOOK_S)
