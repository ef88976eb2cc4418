"""How busy the slots are: their number integrated over time, so that two readings give a mean."""

from __future__ import annotations

import time
from collections.abc import Callable


class LoadMeter:
    """Mutable."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._n_busy = 0
        self._total = 0.0
        self._at = clock()

    def update(self, n_busy: int) -> float:
        """Note the number of busy slots from now on; returns the total."""
        total = self.total()
        self._n_busy = n_busy
        return total

    def total(self) -> float:
        """Return the slot seconds so far."""
        now = self._clock()
        self._total += self._n_busy * (now - self._at)
        self._at = now
        return self._total
