"""Queue of requests that wait for a slot: clients are served by their share of the slots' time, a client's
own requests by priority and arrival. Lines of batches come after all others.

A client's time is divided by its weight. A client that returns after a pause gets no credit for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from corral.engine.request import Request

_ALPHA = 0.2  # weight of the last request in the mean service time
_UNKNOWN_S = 1.0


_Owner = tuple[bool, str]  # whether these are lines of batches, and the client


@dataclass(slots=True)
class _Account:
    """Mutable: the weighted seconds a client has used, and its waiting requests."""

    weight: float
    used_s: float = 0.0
    waiting: list[Request] = field(default_factory=list)
    running: dict[int, float] = field(default_factory=dict)  # since when

    @property
    def is_active(self) -> bool:
        return bool(self.waiting or self.running)

    def spent(self, now: float, mean_s: float) -> float:
        """Return the weighted seconds used, including the expected time of running requests."""
        return self.used_s + sum(max(now - start, mean_s) for start in self.running.values()) / self.weight


class FairQueue:
    """Mutable. Times are those that the engine passes to `tick`."""

    def __init__(self) -> None:
        self._accounts: dict[_Owner, _Account] = {}
        self._mean_s = _UNKNOWN_S
        self._now = 0.0

    def __len__(self) -> int:
        return sum(len(account.waiting) for account in self._accounts.values())

    def __iter__(self) -> Iterator[Request]:
        """Iterate over waiting requests in the order they would be served if all took the same time."""
        waiting = {owner: sorted(a.waiting, key=_turn) for owner, a in self._accounts.items() if a.waiting}
        spent = {owner: self._accounts[owner].spent(self._now, self._mean_s) for owner in waiting}
        while waiting:
            owner = min(waiting, key=lambda other: (other[0], spent[other], _turn(waiting[other][0])))
            yield waiting[owner].pop(0)
            spent[owner] += self._mean_s / self._accounts[owner].weight
            if not waiting[owner]:
                del waiting[owner]

    def tick(self, now: float) -> None:
        self._now = now

    def add(self, request: Request) -> None:
        task = request.task
        account = self._accounts.setdefault(_owner(request), _Account(task.weight))
        account.weight = task.weight
        if not account.is_active:
            others = [other.used_s for other in self._accounts.values() if other.is_active]
            account.used_s = max(account.used_s, min(others, default=0.0))
        account.waiting.append(request)

    def start(self, request: Request) -> None:
        """Record that a request got a slot."""
        account = self._accounts[_owner(request)]
        account.waiting.remove(request)
        account.running[request.id] = self._now

    def end(self, request: Request) -> None:
        """Record that a request left its slot."""
        account = self._accounts.get(_owner(request))
        start = account.running.pop(request.id, None) if account is not None else None
        if account is not None and start is not None:
            took = self._now - start
            account.used_s += took / account.weight
            self._mean_s += _ALPHA * (took - self._mean_s)

    def remove(self, task_id: int) -> Request | None:
        """Remove a waiting request."""
        for account in self._accounts.values():
            for request in account.waiting:
                if request.id == task_id:
                    account.waiting.remove(request)
                    return request
        return None


def _owner(request: Request) -> _Owner:
    """Return the account of a request: batches use idle time, which costs a client nothing."""
    return request.task.is_batch, request.task.client


def _turn(request: Request) -> tuple[int, int]:
    return -request.task.params.priority, request.arrival
