"""Two threads that need the same cores: one works only while the other lets it."""

from __future__ import annotations

import threading
import time


class CoreTimeSlicer:
    """Mutable. The working thread calls `wait` and `end`, the other one the rest."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._is_allowed = True
        self._is_engaged = False
        self._is_working = False
        self._n_pieces = 0
        self._since = 0.0

    @property
    def ms(self) -> float:
        """How long it has been working without a check."""
        return (time.perf_counter() - self._since) * 1e3 if self._is_working else 0.0

    def wait(self) -> None:
        """Wait before every piece of work until it may be done."""
        with self._condition:
            self._is_engaged, self._is_working = True, False
            self._n_pieces += 1
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._is_allowed)
            self._is_working = True
            self._since = time.perf_counter()

    def end(self) -> None:
        with self._condition:
            self._is_engaged = self._is_working = False
            self._condition.notify_all()

    def pause(self) -> None:
        with self._condition:
            self._is_allowed = False
            self._condition.wait_for(lambda: not self._is_working)

    def go_on(self) -> None:
        with self._condition:
            self._is_allowed = True
            self._condition.notify_all()

    def go_on_for(self, seconds: float) -> None:
        with self._condition:
            self._is_allowed, n_before = True, self._n_pieces
            self._condition.notify_all()
            started = time.perf_counter()
            self._condition.wait_for(lambda: not self._is_engaged or self._n_pieces > n_before)
            left = seconds - (time.perf_counter() - started)
            self._condition.wait_for(lambda: not self._is_engaged, max(0.0, left))
        self.pause()
