"""Decide whether an engine has been idle long enough to be unloaded."""

from __future__ import annotations

import time
from collections.abc import Callable


class Idle:
    """Idle time of one engine since it was ready."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`limit_s`: a negative limit means never."""
        self._limit_s = limit_s
        self._clock = clock
        self._since = clock()
        self._n_commands = 0

    def check(self, n_submitted: int, is_busy: bool) -> bool:
        """Return whether it is time to unload. `n_submitted` counts all tasks so far, so that short ones
        between two checks are noticed."""
        now = self._clock()
        if is_busy or n_submitted != self._n_commands:
            self._since, self._n_commands = now, n_submitted
        return not is_busy and 0 <= self._limit_s <= now - self._since
