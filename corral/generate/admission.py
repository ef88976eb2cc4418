"""Decide whether a request is accepted, and report its place in the queue."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from corral.core.errors import Unavailable
from corral.core.still_loading import still_loading
from corral.link.engine_state import EngineState

if TYPE_CHECKING:
    from corral.core.client import Client
    from corral.generate.engine import Engine
    from corral.generate.model import ModelFacts
    from corral.generate.shutdown import Shutdown
    from corral.link.stream import TaskStream
    from corral.telemetry.queue import QueueView

_POSITION = "x-queue-position"
_WAIT = "x-queue-wait-ms"


class Admission:
    """Decides whether the server accepts requests now."""

    def __init__(
        self, engine: Engine, model: ModelFacts, queue: QueueView, n_places: int, shutdown: Shutdown
    ) -> None:
        self._engine = engine
        self._model = model
        self._queue = queue
        self._n_places = n_places
        self._shutdown = shutdown
        self._helpers: dict[str, Callable[[], bool]] = {}

    def rely_on(self, **helpers: Callable[[], bool]) -> None:
        """Be ready only while these processes are, by their names."""
        self._helpers |= helpers

    def check_health(self, tells_why: bool = True) -> None:
        """Raise unless there is an engine, or a sleeping one that can wake up. `tells_why`: include the
        reason, which may contain paths."""
        state, reason = self._engine.state, self._engine.down_because
        why = f": {reason}" if tells_why and reason else ""
        if state is EngineState.FAILED:
            raise Unavailable(f"The engine is down{why}")
        if state is EngineState.RESTARTING:
            raise Unavailable(f"Engine restarting{why}")
        if state is EngineState.LOADING or not self._model.is_loaded:
            raise still_loading(self._engine.loading)

    @property
    def is_open(self) -> bool:
        """Whether the server runs requests, or lets them wait."""
        try:
            self.check_health()
        except Unavailable:
            return False
        return not self._shutdown.is_begun

    def check_answers(self, tells_why: bool = True) -> None:
        """Raise also if the engine has not sent a heartbeat for a while."""
        self.check_health(tells_why)
        if self._engine.is_silent:
            raise Unavailable("The engine does not respond")

    def check_ready(self, tells_why: bool = True) -> None:
        """Raise unless a request would be accepted now."""
        self.check_answers(tells_why)
        for name, is_ready in self._helpers.items():
            if not is_ready():
                raise Unavailable(f"The {name} does not respond")
        self._shutdown.check()
        if self._queue.n_waiting + self._queue.n_running >= self._queue.n_slots + self._n_places:
            raise Unavailable("All slots are busy and the queue is full (--queue-size)")

    def check_queue(self, client: Client, n: int = 1, max_queue_ms: int = -1) -> None:
        """Refuse tasks if the queue is full, or if the expected wait is longer than their limit.

        If several clients share the server, one with less than its share of the queue may always add a
        task. Lines of batches wait in no queue that clients see.
        """
        if client.is_batch:
            return
        queue, n_places = self._queue, self._n_places
        n_waiting = queue.n_excess(n)
        n_sharing = queue.n_sharing(client.id)
        is_greedy = n_sharing == 1 or queue.n_of(client.id) + n > n_places // n_sharing
        if n_waiting > n_places and is_greedy:
            waiting = f"{queue.n_excess()} requests are waiting, the limit is {n_places} (--queue-size)"
            raise _refusal(f"the queue is full: {waiting}", queue.expected_s(n_waiting - n_places))
        expected_ms = queue.expected_s(n_waiting) * 1e3
        if 0 <= max_queue_ms < expected_ms:
            message = (
                f"Field 'max_queue_ms': the limit is {max_queue_ms} ms, but the expected wait is "
                f"{expected_ms:.0f} ms"
            )
            raise _refusal(message, (expected_ms - max_queue_ms) / 1e3)


def watch_deadline(
    queue: QueueView, streams: Mapping[int, TaskStream], max_queue_ms: int
) -> asyncio.TimerHandle | None:
    """Fail the tasks that still wait after the limit, if there is a limit and the queue is not empty."""
    if max_queue_ms < 0 or not queue.n_excess():
        return None

    def give_up() -> None:
        for task_id, stream in streams.items():
            if queue.is_waiting(task_id):
                message = f"Field 'max_queue_ms': no slot was free within {max_queue_ms} ms"
                stream.give_up(_refusal(message, queue.expected_s(queue.position(task_id))))

    return asyncio.get_running_loop().call_later(max_queue_ms / 1e3, give_up)


def describe_position(queue: QueueView, place: int) -> str:
    return f"queue position {place}, expected wait {queue.expected_s(place):.1f} s"


def describe_waiting(queue: QueueView, task_ids: Sequence[int]) -> str:
    """Return the position of those tasks that wait, and which of several these are; empty: none."""
    waiting = [i for i, id in enumerate(task_ids) if queue.is_waiting(id)]
    if not waiting:
        return ""
    text = describe_position(queue, queue.position(*(task_ids[i] for i in waiting)))
    return text if len(waiting) == len(task_ids) else f"{text}, choices {' '.join(map(str, waiting))}"


def queue_headers(place: int, wait_s: float) -> dict[str, str]:
    """Return headers with the queue position and wait of a request."""
    return {_POSITION: str(place), _WAIT: f"{wait_s * 1e3:.0f}"}


def _refusal(message: str, wait_s: float) -> Unavailable:
    return Unavailable(message, retry_after_s=max(1, math.ceil(wait_s)))
