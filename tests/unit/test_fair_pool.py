"""Threads that clients share: whose turn it is, who is refused, and that every thread comes back."""

from __future__ import annotations

import asyncio
import threading

import pytest

from corral.core.client import ANONYMOUS, Client
from corral.core.errors import Unavailable
from corral.generate import fair_pool
from corral.generate.fair_pool import FairPool
from corral.generate.pools import Pools
from tests.tools.wait import wait_until_async

ONE, TWO, HEAVY = Client(id="one"), Client(id="two"), Client(id="heavy", weight=3.0)


class Held:
    """A pool of one thread that is busy until it is let go."""

    def __init__(self) -> None:
        self.pool = FairPool(1, "test")
        self._go = threading.Event()
        self._tasks = [asyncio.create_task(self.pool.run(Client(id="first"), self._go.wait))]
        self.order: list[str] = []

    def add(self, client: Client, name: str = "") -> asyncio.Task[None]:
        task = asyncio.create_task(self.pool.run(client, self.order.append, name or client.id))
        self._tasks.append(task)
        return task

    def release(self) -> None:
        """Let it go, and return when its thread is free."""
        self._go.set()
        self.pool._threads.submit(int).result()

    async def finish(self) -> list[str]:
        self._go.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return self.order


async def test_clients_take_turns_however_much_each_has_sent():
    held = Held()
    for _ in range(6):
        held.add(ONE)
    await wait_until_async(lambda: held.pool.n_waiting == 6)
    for _ in range(3):
        held.add(TWO)
    await wait_until_async(lambda: held.pool.n_waiting == 9)
    order = await held.finish()
    assert sorted(order) == ["one"] * 6 + ["two"] * 3
    assert order[-1] == "one", "the one that sent most is served last"


async def test_a_client_that_leaves_when_its_turn_comes_takes_no_thread_along():
    held = Held()
    await asyncio.sleep(0)
    gone = held.add(ONE)
    held.add(TWO)
    await wait_until_async(lambda: held.pool.n_waiting == 2)
    held.release()  # the event loop does not know yet
    gone.cancel()
    assert await held.finish() == ["two"]
    assert await held.pool.run(ONE, str, 1) == "1"


async def test_a_client_s_own_calls_stay_in_order():
    held = Held()
    await asyncio.sleep(0)
    for i in range(5):
        held.add(ONE, str(i))
    await asyncio.sleep(0)
    assert await held.finish() == list("01234")


def test_time_is_divided_by_weight():
    pool = FairPool(9, "test")
    pool._n_idle = 0
    for client in (ONE, HEAVY):
        pool._enter(client).n_running = 2
    for client in (ONE, HEAVY):
        pool._end(client, 3.0)
    assert pool._accounts["one"].used_s == 3 * pool._accounts["heavy"].used_s


async def test_every_thread_comes_back():
    pool = FairPool(2, "test")

    def fail() -> None:
        raise ValueError

    calls = [pool.run(ONE, fail) for _ in range(5)] + [pool.run(TWO, int) for _ in range(5)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(result, ValueError) for result in results) == 5
    await wait_until_async(lambda: pool._n_idle == 2)
    assert not pool._accounts, "nothing is kept of clients that have gone"


async def test_who_leaves_while_waiting_leaves_the_queue():
    held = Held()
    task = held.add(ONE, "left")
    held.add(TWO, "stays")
    await wait_until_async(lambda: held.pool.n_waiting == 2)
    task.cancel()
    await wait_until_async(lambda: held.pool.n_waiting == 1)
    assert await held.finish() == ["stays"]
    await wait_until_async(lambda: held.pool._n_idle == 1)


async def test_who_leaves_when_its_turn_has_come_passes_it_on():
    held = Held()
    task = held.add(ONE, "left")
    held.add(TWO, "stays")
    await wait_until_async(lambda: held.pool.n_waiting == 2)
    held.pool._pass_on()  # as if the thread were free
    task.cancel()
    assert await held.finish() == ["stays"]


async def test_behind_with_work_those_with_more_than_their_share_are_refused():
    held = Held()
    held.pool._mean_s = fair_pool.BEHIND_S / 3  # as if calls had taken so long
    for _ in range(3):
        held.add(ONE)
    await wait_until_async(lambda: held.pool.n_waiting == 3)
    with pytest.raises(Unavailable) as raised:
        await held.pool.run(ONE, int)
    assert raised.value.retry_after_s is not None
    assert raised.value.retry_after_s >= fair_pool.BEHIND_S
    held.add(TWO)
    await wait_until_async(lambda: held.pool.n_waiting == 4)  # another client may wait
    more = asyncio.create_task(held.pool.run(ONE, int, is_new=False))
    await wait_until_async(lambda: held.pool.n_waiting == 5)  # and so may what has begun
    await held.finish()
    assert await more == 0


async def test_work_is_done_for_the_client_that_asks(monkeypatch):
    clients, run = [], FairPool.run

    async def note(self, client, function, *args, is_new=True):
        clients.append(client.id)
        return await run(self, client, function, *args, is_new=is_new)

    monkeypatch.setattr(FairPool, "run", note)

    pools = Pools(1)
    await pools.run_prompt(ANONYMOUS, len, "")
    for client in (Client(id="a"), Client(id="b")):
        await pools.run_text(client, len, "")
        await pools.continue_text(client, len, "")
    assert clients == ["", "a", "a", "b", "b"]
