"""What comes into host memory and leaves it, for a front that places tasks by what engines have cached."""

from __future__ import annotations

from corral.core.result import CacheEvent, StateCached, StateEvicted


class StateJournal:
    """Mutable; keeps nothing unless it `is_read`."""

    def __init__(self, is_read: bool) -> None:
        self._is_read = is_read
        self._events: list[CacheEvent] = []
        self._evicted: list[int] = []

    def stash(self, id_slot: int, state: int) -> None:
        """Note a state that was kept; one that had to leave at once was none."""
        if self._is_read and state >= 0 and state not in self._evicted:
            self._flush()
            self._events.append(StateCached(id_slot, state))

    def drop(self, state: int) -> None:
        if self._is_read:
            self._evicted.append(state)

    def take(self) -> list[CacheEvent]:
        self._flush()
        events, self._events = self._events, []
        return events

    def _flush(self) -> None:
        if self._evicted:
            self._events.append(StateEvicted(self._evicted))
            self._evicted = []
