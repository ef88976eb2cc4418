"""Whether a lost engine gets a successor, and how soon: pure decisions, from what became of engines so far.

An engine that failed by itself may not do so many times in a row. One that had work was perhaps taken down by
it: that work is blamed elsewhere, and no client can use up what engines are allowed.
"""

from __future__ import annotations

from dataclasses import dataclass

SOUND_S = 60.0  # an engine that idles so long has nothing wrong with it
_FIRST_S, _LONGEST_S = 0.5, 30.0  # between engines that fail
_N_AT_ONCE = 2  # engines in a row that work took down, with nothing in between
_LONGEST_BLAMED_S = 2.0


@dataclass(frozen=True, slots=True)
class Life:
    """What an engine that is gone has been through."""

    ready_s: float | None  # None: never
    has_suspects: bool = False  # somebody's work was in it when it ended
    has_completed: bool = False  # some task


class RestartPolicy:
    """Mutable: engines that have failed in a row, or were taken down."""

    def __init__(self, n_failures: int) -> None:
        """`n_failures`: how many in a row may fail."""
        self._n_failures = n_failures
        self._n_failed = 0
        self._n_taken_down = 0

    def end(self, life: Life) -> float | None:
        """An engine is gone that nobody has told to go; seconds until the next one, None: there is none."""
        if life.has_completed:
            self._n_failed = self._n_taken_down = 0
        if life.ready_s is not None and life.has_suspects:
            self._n_taken_down += 1
            return _growing(self._n_taken_down - _N_AT_ONCE, _LONGEST_BLAMED_S)
        if life.has_completed or (life.ready_s is not None and life.ready_s >= SOUND_S):
            self._n_failed = self._n_taken_down = 0
            return 0.0
        self._n_failed += 1
        return _growing(self._n_failed, _LONGEST_S) if self._n_failed <= self._n_failures else None


def _growing(n: int, longest_s: float) -> float:
    """Nothing for none, then twice as long each time."""
    return min(longest_s, _FIRST_S * 2.0 ** min(n - 1, 16)) if n > 0 else 0.0
