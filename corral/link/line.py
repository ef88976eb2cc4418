"""Who waits for a slot, who has one, and how long that takes: told by the orders that pass by."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

_ALPHA = 0.2  # how much the last order counts
_UNKNOWN_S = 1.0  # that an order takes, as long as none has ended


class Line:
    """Mutable. Places count from 1, in the order that the engine says; until it does, by arrival."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._clients: dict[int, str] = {}  # whose orders they are
        self._waiting: dict[int, None] = {}  # in the order in which they came
        self._running: dict[int, float] = {}  # since when
        self._places: dict[int, int] = {}
        self._mean_s = 0.0
        self.n_slots = 1

    @property
    def n_waiting(self) -> int:
        """Orders that no engine has begun."""
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        return len(self._running)

    def n_excess(self, n_more: int = 0) -> int:
        """Orders that have to wait, with so many more; those that have a slot at once do not count."""
        return max(0, self.n_waiting + self.n_running + n_more - self.n_slots)

    def is_waiting(self, order_id: int) -> bool:
        return order_id in self._waiting

    def n_of(self, client: str) -> int:
        """How many of those who wait are this client's."""
        return sum(self._clients[id] == client for id in self._waiting)

    def n_sharing(self, client: str) -> int:
        """How many clients would wait if this one did."""
        return len({client, *(self._clients[id] for id in self._waiting)})

    def enter(self, order_id: int, client: str) -> None:
        self._clients[order_id] = client
        self._waiting[order_id] = None

    def begin(self, order_id: int) -> None:
        """An engine has begun with it."""
        self._waiting.pop(order_id, None)
        self._places.pop(order_id, None)
        self._running.setdefault(order_id, self._clock())

    def leave(self, order_id: int) -> None:
        """It has ended, however it did."""
        self._clients.pop(order_id, None)
        self._waiting.pop(order_id, None)
        self._places.pop(order_id, None)
        started = self._running.pop(order_id, None)
        if started is not None:
            took = self._clock() - started
            self._mean_s += (took - self._mean_s) * (_ALPHA if self._mean_s else 1.0)

    def lose_engine(self) -> None:
        """Everything begins again, in another one."""
        self._waiting = {**dict.fromkeys(self._running), **self._waiting}
        self._running.clear()
        self._places.clear()

    def sort(self, order_ids: Sequence[int]) -> None:
        """The engine's order of those who wait; it may not know of the last ones yet."""
        self._places = {id: place for place, id in enumerate(order_ids, 1) if id in self._waiting}

    def place(self, *order_ids: int) -> int:
        """Of the first of these among all that wait; 0: one does not wait."""
        if not all(id in self._waiting for id in order_ids):
            return 0
        behind = len(self._places)
        return min(self._places.get(id) or behind + self._arrival(id) for id in order_ids)

    def _arrival(self, order_id: int) -> int:
        """Its place among those of whom the engine has not spoken yet."""
        unknown = [id for id in self._waiting if id not in self._places]
        return unknown.index(order_id) + 1

    def expected_s(self, place: int) -> float:
        """How long somebody at this place has to wait, as things went so far."""
        return place * (self._mean_s or self._oldest_s() or _UNKNOWN_S) / self.n_slots

    def _oldest_s(self) -> float:
        now = self._clock()
        return max((now - started for started in self._running.values()), default=0.0)
