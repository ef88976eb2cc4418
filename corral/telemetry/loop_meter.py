"""How long the event loop stands still: a timer that comes late shows it.

`wall_s` is what clients feel. `cpu_s` is the part of it in which the loop itself computed; in the rest
another thread held the interpreter, or the system gave the cores to others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

_BEAT_S = 0.01
_IDLE_BEAT_S = 0.25  # without connections


class Pause(NamedTuple):
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def longest(self, other: Pause) -> Pause:
        return Pause(max(self.wall_s, other.wall_s), max(self.cpu_s, other.cpu_s))


class LoopMeter:
    """Mutable, on the event loop: the longest pause since it was last read."""

    def __init__(self, beat_s: float = _BEAT_S, idle_beat_s: float = _IDLE_BEAT_S) -> None:
        self._beat_s = beat_s
        self._idle_beat_s = idle_beat_s
        self._longest = Pause()
        self._is_busy: Callable[[], bool] = lambda: True
        self._timer: asyncio.TimerHandle | None = None
        self.observe: Callable[[float], None] = lambda _: None  # every pause, for a histogram

    def start(self, is_busy: Callable[[], bool] = lambda: True) -> None:
        """`is_busy`: whether anything happens that could make it wait; else it looks less often."""
        self._is_busy = is_busy
        self._loop = asyncio.get_running_loop()
        self._wait()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take(self) -> Pause:
        """Return the longest pause since the last call."""
        longest, self._longest = self._longest.longest(self._current()), Pause()
        return longest

    def _wait(self) -> None:
        delay_s = self._beat_s if self._is_busy() else self._idle_beat_s
        self._cpu_s = time.thread_time()
        self._due_at = time.perf_counter() + delay_s
        self._timer = self._loop.call_later(delay_s, self._beat)

    def _beat(self) -> None:
        pause = self._current()
        self._longest = self._longest.longest(pause)
        self._wait()
        self.observe(pause.wall_s)

    def _current(self) -> Pause:
        """The pause that is under way, if the timer is late."""
        if self._timer is None:
            return Pause()
        wall_s = max(0.0, time.perf_counter() - self._due_at)
        return Pause(wall_s, min(wall_s, time.thread_time() - self._cpu_s))
