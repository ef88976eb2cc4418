"""Waiting for a state that another thread or process reaches: generous, because the machine may be busy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

WAIT_S = 300.0
_LONGEST_S = 0.03


def wait_until(condition: Callable[[], object], interval_s: float = 0.005) -> None:
    """What takes time itself, such as a request, is asked less often: whom it waits for needs the CPU."""
    asked = time.monotonic()
    deadline = asked + WAIT_S
    while not condition():
        answered = time.monotonic()
        assert answered < deadline, "waited in vain"
        time.sleep(max(interval_s, min(2 * (answered - asked), _LONGEST_S)))
        asked = time.monotonic()


async def wait_until_async(condition: Callable[[], object], interval_s: float = 0.001) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(interval_s)


async def let_tasks_run(n: int = 50) -> None:
    """Until every task of this loop waits for something other than its turn."""
    for _ in range(n):
        await asyncio.sleep(0)
