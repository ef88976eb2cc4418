"""Tasks that no caller awaits, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any


class Background:
    """Mutable: the tasks that have not ended."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        await cancel(*self._tasks)


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, one after the other, and wait for their end; what they raise is dropped."""
    for task in tasks:
        task.cancel()
        with contextlib.suppress(BaseException):
            await task
