"""Start requests, and continue those whose body has come, in order and a few in each pass of the event loop:
a burst of hundreds does not delay the tokens of running streams."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable

_PER_PASS = 8


class StartQueue:
    """On one event loop."""

    def __init__(self) -> None:
        self._waiting: collections.deque[Callable[[], None]] = collections.deque()
        self._n_left = _PER_PASS  # in this pass
        self._is_counting = False

    def add(self, begin: Callable[[], None]) -> None:
        """Call `begin` now, or in one of the next passes."""
        self._waiting.append(begin)
        self._begin()
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._next_pass)

    def _begin(self) -> None:
        while self._waiting and self._n_left:
            self._n_left -= 1
            self._waiting.popleft()()

    def _next_pass(self) -> None:
        has_waiting, self._n_left = bool(self._waiting), _PER_PASS
        self._is_counting = has_waiting
        if has_waiting:
            asyncio.get_running_loop().call_soon(self._next_pass)
            self._begin()


class QueuedEvent(asyncio.Event):
    """An event that takes its turn in the queue to be set."""

    def __init__(self, starts: StartQueue) -> None:
        super().__init__()
        self._starts = starts
        self._is_due = False

    def set(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._starts.add(self._set)

    def clear(self) -> None:
        self._is_due = False
        super().clear()

    def _set(self) -> None:
        if self._is_due:
            super().set()
