"""How long an engine has had nothing to do, and whether that is long enough for it to sleep."""

from __future__ import annotations

import time
from collections.abc import Callable


class Idle:
    """Mutable: of one engine, since it was ready."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`limit_s`: negative: it never sleeps."""
        self._limit_s = limit_s
        self._clock = clock
        self._since = clock()
        self._n_commands = 0

    def check(self, n_submitted: int, is_busy: bool) -> bool:
        """To be asked now and then: whether it is time to sleep. `n_orders`: of all times, so that none is
        overlooked that came and went since the last look."""
        now = self._clock()
        if is_busy or n_submitted != self._n_commands:
            self._since, self._n_commands = now, n_submitted
        return not is_busy and 0 <= self._limit_s <= now - self._since
