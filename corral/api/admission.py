"""Whether a request may wait for its turn, and what it is told while it does."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from corral.core.client import Client
from corral.core.errors import Unavailable
from corral.link.stream import TaskStream
from corral.telemetry.queue import QueueView

_POSITION = "x-queue-position"
_WAIT = "x-queue-wait-ms"


def check_queue(queue: QueueView, n_places: int, client: Client, n: int = 1, max_queue_ms: int = -1) -> None:
    """Refuse orders that would have to wait where nobody else may, or longer than they want to.

    Where clients share the server, one that has less than its share of the places may always take one.
    """
    n_waiting = queue.n_excess(n)
    n_sharing = queue.n_sharing(client.id)
    is_greedy = n_sharing == 1 or queue.n_of(client.id) + n > n_places // n_sharing
    if n_waiting > n_places and is_greedy:
        waiting = f"{queue.n_excess()} requests are waiting, {n_places} may (--queue-size)"
        raise _refusal(f"the queue is full: {waiting}", queue.expected_s(n_waiting - n_places))
    expected_ms = queue.expected_s(n_waiting) * 1e3
    if 0 <= max_queue_ms < expected_ms:
        message = f"Field 'max_queue_ms': {max_queue_ms}, but the wait would be about {expected_ms:.0f} ms"
        raise _refusal(message, (expected_ms - max_queue_ms) / 1e3)


def watch_deadline(
    queue: QueueView, streams: Mapping[int, TaskStream], max_queue_ms: int
) -> asyncio.TimerHandle | None:
    """Give up the tasks that have not begun by then, if there is such a limit, and anybody has to wait."""
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


def queue_headers(place: int, wait_s: float) -> dict[str, str]:
    """For a request that has, or had, to wait so long at such a place."""
    return {_POSITION: str(place), _WAIT: f"{wait_s * 1e3:.0f}"}


def _refusal(message: str, wait_s: float) -> Unavailable:
    error = Unavailable(message)
    error.retry_after_s = max(1, math.ceil(wait_s))
    return error
