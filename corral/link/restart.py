"""Decide whether and when a lost engine is replaced: pure decisions from its predecessors.

Engines that fail without work may do so only a few times in a row. An engine with work may have been
crashed by it: the task is charged elsewhere, so no client can use up the engine's restarts. What a cluster or
a network causes is waited for without end.
"""

from __future__ import annotations

from dataclasses import dataclass

SOUND_S = 60.0  # an engine that idled this long is considered healthy
_FIRST_S, _LONGEST_S = 0.5, 30.0  # delay between failing engines
_N_AT_ONCE = 2  # immediate restarts after crashes in a row, without a completed task in between
_LONGEST_BLAMED_S = 2.0


@dataclass(frozen=True, slots=True)
class EngineExit:
    """What happened to an engine that is gone."""

    ready_s: float | None  # None: never
    has_suspects: bool = False  # whether it had work when it ended
    has_completed: bool = False  # it completed a task
    may_pass: bool = False  # the reason was outside of it: a cluster, a network


class RestartPolicy:
    """Counts engines that failed or crashed in a row."""

    def __init__(self, n_failures: int) -> None:
        """`n_failures`: how many in a row may fail."""
        self._n_failures = n_failures
        self._n_failed = 0
        self._n_taken_down = 0
        self._n_waits = 0

    def end(self, life: EngineExit) -> float | None:
        """Record a lost engine. Returns the seconds until the next one; None: start no more."""
        if life.has_completed:
            self._n_failed = self._n_taken_down = 0
        if life.may_pass:
            self._n_waits = 0 if life.ready_s is not None else self._n_waits + 1
            return _growing(self._n_waits, _LONGEST_S)
        self._n_waits = 0
        if life.ready_s is not None and life.has_suspects:
            self._n_taken_down += 1
            return _growing(self._n_taken_down - _N_AT_ONCE, _LONGEST_BLAMED_S)
        if life.has_completed or (life.ready_s is not None and life.ready_s >= SOUND_S):
            self._n_failed = self._n_taken_down = 0
            return 0.0
        self._n_failed += 1
        return _growing(self._n_failed, _LONGEST_S) if self._n_failed <= self._n_failures else None


def _growing(n: int, longest_s: float) -> float:
    """Return 0 for n <= 0, then a delay that doubles with n."""
    return min(longest_s, _FIRST_S * 2.0 ** min(n - 1, 16)) if n > 0 else 0.0
