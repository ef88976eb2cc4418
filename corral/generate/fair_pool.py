"""A thread pool whose time is shared fairly between clients, like that of slots (`engine/fair_queue.py`).

A client's time is divided by its weight. Idle clients collect no credit.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from corral.core.client import Client
from corral.core.errors import Unavailable

T = TypeVar("T")

BEHIND_S = 5.0  # of expected waiting, from which on clients with more than their share are refused
_ALPHA = 0.2  # weight of the last call in the mean


@dataclass(slots=True)
class _Account:
    """Mutable: a client's used time in weighted seconds, and its waiting calls."""

    used_s: float = 0.0
    n_running: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)

    @property
    def is_active(self) -> bool:
        return bool(self.waiting or self.n_running)


class FairPool:
    """Mutable, on the event loop."""

    def __init__(self, n_threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(n_threads, name)
        self._n_threads = self._n_idle = n_threads
        self._accounts: dict[str, _Account] = {}
        self._mean_s = 0.0

    @property
    def n_waiting(self) -> int:
        return sum(len(account.waiting) for account in self._accounts.values())

    async def run(self, client: Client, function: Callable[..., T], *args: Any, is_new: bool = True) -> T:
        """Call it in a thread when it is the client's turn; raises Unavailable if that would take long.

        `is_new`: it starts work, and does not continue work that was admitted.
        """
        account = self._enter(client)
        if self._n_idle:
            self._n_idle -= 1
        else:
            if is_new:
                self._refuse_greedy(account)
            await self._wait(account)
        account.n_running += 1
        loop, began_at = asyncio.get_running_loop(), time.perf_counter()
        future = self._threads.submit(contextvars.copy_context().run, partial(function, *args))
        future.add_done_callback(partial(self._report, loop, client, began_at))
        return await asyncio.wrap_future(future)

    def _enter(self, client: Client) -> _Account:
        account = self._accounts.setdefault(client.id, _Account())
        if not account.is_active:
            others = [other.used_s for other in self._accounts.values() if other.is_active]
            account.used_s = max(account.used_s, min(others, default=0.0))
        return account

    def _refuse_greedy(self, account: _Account) -> None:
        n_waiting = self.n_waiting
        expected_s = (n_waiting + 1) * self._mean_s / self._n_threads
        sharing = [each for each in self._accounts.values() if each.waiting or each is account]
        has_share = len(sharing) > 1 and len(account.waiting) < n_waiting / len(sharing)
        if expected_s > BEHIND_S and not has_share:
            message = f"the server is behind: {n_waiting} requests wait to be read or answered"
            raise Unavailable(message, retry_after_s=math.ceil(expected_s))

    async def _wait(self, account: _Account) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        account.waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in account.waiting:
                account.waiting.remove(turn)
            elif not turn.cancelled():
                self._pass_on()
            raise

    def _report(
        self, loop: asyncio.AbstractEventLoop, client: Client, began_at: float, _: Future[Any]
    ) -> None:
        """Report the end of a call; runs in its thread."""
        took_s = time.perf_counter() - began_at
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._end, client, took_s)

    def _end(self, client: Client, took_s: float) -> None:
        account = self._accounts[client.id]
        account.n_running -= 1
        account.used_s += took_s / client.weight
        self._mean_s += (took_s - self._mean_s) * (_ALPHA if self._mean_s else 1.0)
        self._pass_on()

    def _pass_on(self) -> None:
        """Give a free thread to the waiting client with the least used time."""
        while waiting := [account for account in self._accounts.values() if account.waiting]:
            turn = min(waiting, key=lambda account: account.used_s).waiting.popleft()
            if not turn.cancelled():  # its client may have left in this pass of the event loop
                turn.set_result(None)
                return
        self._n_idle += 1
        if self._n_idle == self._n_threads:
            self._accounts.clear()
