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
        self._kept: tuple[float, int] | None = None  # another limit, and the commands so far

    def limit_s(self, n_submitted: int) -> float:
        """Return the limit that counts now."""
        if self._kept is None or self._kept[1] != n_submitted:
            return self._limit_s
        return self._kept[0]

    def keep(self, limit_s: float, n_submitted: int) -> None:
        """Start over with another limit, which counts until the next task."""
        self._kept = limit_s, n_submitted
        self._since, self._n_commands = self._clock(), n_submitted

    def left_s(self, n_submitted: int, is_busy: bool) -> float | None:
        """Return the time until it is unloaded if nothing happens; None: never."""
        limit_s = self.limit_s(n_submitted)
        if limit_s < 0:
            return None
        is_used = is_busy or n_submitted != self._n_commands
        return limit_s if is_used else max(0.0, limit_s - (self._clock() - self._since))

    def check(self, n_submitted: int, is_busy: bool) -> bool:
        """Return whether it is time to unload. `n_submitted` counts all tasks so far, so that short ones
        between two checks are noticed."""
        now = self._clock()
        if is_busy or n_submitted != self._n_commands:
            self._since, self._n_commands = now, n_submitted
        return not is_busy and 0 <= self.limit_s(n_submitted) <= now - self._since
