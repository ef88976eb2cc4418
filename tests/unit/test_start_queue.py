from __future__ import annotations

import asyncio
from functools import partial

from corral.server.start_queue import _PER_PASS, QueuedEvent, StartQueue


async def test_few_start_at_once():
    starts = StartQueue()
    begun: list[int] = []
    for i in range(_PER_PASS):
        starts.add(partial(begun.append, i))
    assert begun == list(range(_PER_PASS))


async def test_a_burst_starts_in_order_over_several_passes():
    starts, n = StartQueue(), 3 * _PER_PASS + 1
    begun: list[int] = []
    for i in range(n):
        starts.add(partial(begun.append, i))
    passes = []
    while len(begun) < n:
        passes.append(len(begun))
        await asyncio.sleep(0)
    assert passes == [_PER_PASS, 2 * _PER_PASS, 3 * _PER_PASS]
    assert begun == list(range(n))


async def test_later_ones_start_at_once_again():
    starts = StartQueue()
    begun: list[int] = []
    for i in range(2 * _PER_PASS):
        starts.add(partial(begun.append, i))
    for _ in range(3):
        await asyncio.sleep(0)
    starts.add(partial(begun.append, -1))
    assert begun[-1] == -1


async def test_events_are_set_over_several_passes():
    starts = StartQueue()
    events = [QueuedEvent(starts) for _ in range(2 * _PER_PASS)]
    for event in events:
        event.set()
        event.set()
    assert [event.is_set() for event in events] == [True] * _PER_PASS + [False] * _PER_PASS
    await asyncio.gather(*(event.wait() for event in events))


async def test_an_event_that_was_cleared_is_not_set_in_its_turn():
    starts = StartQueue()
    for _ in range(_PER_PASS):
        starts.add(lambda: None)
    event = QueuedEvent(starts)
    event.set()
    event.clear()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not event.is_set()
    event.set()
    assert event.is_set()
