"""The queue as the front sees it: which tasks wait for a slot, which have one, and the expected wait."""

from __future__ import annotations

from collections.abc import Sequence

from corral.telemetry.record import TaskRecord

_ALPHA = 0.2  # weight of the last task in the mean
_UNKNOWN_S = 1.0  # assumed service time until a task has ended


class QueueView:
    """Positions count from 1, in the order that the engine reports; until it does, by arrival."""

    def __init__(self) -> None:
        self._clients: dict[int, str] = {}  # by task id
        self._waiting: dict[int, None] = {}  # by arrival
        self._running: dict[int, TaskRecord] = {}
        self._positions: dict[int, int] = {}
        self._mean_s = 0.0
        self.n_slots = 1

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        return len(self._running)

    def n_excess(self, n_more: int = 0) -> int:
        """Return how many tasks must wait if `n_more` arrive now; those that get a slot at once do not
        count."""
        return max(0, self.n_waiting + self.n_running + n_more - self.n_slots)

    def is_waiting(self, task_id: int) -> bool:
        return task_id in self._waiting

    def n_of(self, client: str) -> int:
        """Return the number of waiting tasks of this client."""
        return sum(self._clients[id] == client for id in self._waiting)

    def n_sharing(self, client: str) -> int:
        """Return the number of clients with waiting tasks, including this one."""
        return len({client, *(self._clients[id] for id in self._waiting)})

    def enter(self, task_id: int, client: str) -> None:
        self._clients[task_id] = client
        self._waiting[task_id] = None

    def start(self, task_id: int, task: TaskRecord) -> None:
        self._waiting.pop(task_id, None)
        self._positions.pop(task_id, None)
        self._running[task_id] = task

    def leave(self, task_id: int) -> None:
        self._clients.pop(task_id, None)
        self._waiting.pop(task_id, None)
        self._positions.pop(task_id, None)
        task = self._running.pop(task_id, None)
        if task is not None:
            self._mean_s += (task.service_s - self._mean_s) * (_ALPHA if self._mean_s else 1.0)

    def lose_engine(self) -> None:
        """Return running tasks to the queue, for the next engine."""
        self._waiting = {**dict.fromkeys(self._running), **self._waiting}
        self._running.clear()
        self._positions.clear()

    def lose(self, task_ids: Sequence[int]) -> None:
        """Return these tasks to the queue, for another engine."""
        found = [id for id in task_ids if self._running.pop(id, None) is not None]
        self._waiting = {**dict.fromkeys(found), **self._waiting}

    def sort(self, task_ids: Sequence[int]) -> None:
        """Adopt the engine's order, which may not include the latest tasks yet."""
        self._positions = {id: i for i, id in enumerate(task_ids, 1) if id in self._waiting}

    def position(self, *task_ids: int) -> int:
        """Return the best position of these tasks; 0 if one of them does not wait."""
        if not all(id in self._waiting for id in task_ids):
            return 0
        n_known = len(self._positions)
        return min(self._positions.get(id) or n_known + self._arrival(id) for id in task_ids)

    def _arrival(self, task_id: int) -> int:
        """Return the position among tasks that the engine has not reported yet."""
        unknown = [id for id in self._waiting if id not in self._positions]
        return unknown.index(task_id) + 1

    def expected_s(self, position: int) -> float:
        """Return the expected wait at this position, from the mean service time so far."""
        oldest_s = max((task.service_s for task in self._running.values()), default=0.0)
        return position * (self._mean_s or oldest_s or _UNKNOWN_S) / self.n_slots
